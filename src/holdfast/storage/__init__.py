"""Bytes under a root: what the layers above use to store and fetch them, and nothing about their meaning."""
