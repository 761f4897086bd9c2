"""Older spellings that are no more than another name for something that exists."""
