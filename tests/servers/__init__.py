"""Real servers that tests start by themselves on free loopback ports. See README.md beside this file."""
