"""The servers, for the tests of the servers."""

from servers.fixtures import *  # noqa: F403
