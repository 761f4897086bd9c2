"""What the trackers (W&B, MLflow, Comet, Aim) share: runs as projections of the journal.

``runs`` says what a run is and what a tracker must do; ``projection`` folds the journal into the rows that may be
shown; ``exporter`` brings a tracker up to date; ``process`` does that in a process of its own beside a driver;
``callback`` is the base of the callbacks. Nothing here imports a tracker's library: the module of each tracker does,
when it is used.
"""
