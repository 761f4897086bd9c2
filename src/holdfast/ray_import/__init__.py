"""Experiments that were made with Ray Tune, read without Ray and written as holdfast experiments."""
