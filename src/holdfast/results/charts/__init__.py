"""The data of every chart, as pure functions over plain numbers; the page and ``holdfast.plots`` draw the same.

Nothing here reads a file, needs NumPy or knows of an experiment, except for ``experiment_charts``, which takes what a
``Follower`` knows. Results are dicts that JSON can hold: what is missing, NaN or infinite is None.
"""
