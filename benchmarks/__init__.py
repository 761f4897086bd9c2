"""Speed of holdfast beside that of its peers, measured in the same minute on the same machine.

``python -m benchmarks [NAME ...] [--quick] [--no-peers]``; what the figures mean is in docs/benchmarks.md.
"""
