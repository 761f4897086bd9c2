"""Progress reporters under the name that users of other tuners import them by."""

from holdfast.display.reporters import CLIReporter, JupyterNotebookReporter, ProgressReporter

__all__ = ["CLIReporter", "JupyterNotebookReporter", "ProgressReporter"]
