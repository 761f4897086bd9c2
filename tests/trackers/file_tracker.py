"""A tracker in a directory, which can be made to fail: what it was told is appended to one file per run.

Files in the directory named ``down``, ``hang`` and ``crash`` make its methods raise, never return, and end the process.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from holdfast.integration.trackers.callback import TrackerCallback
from holdfast.integration.trackers.runs import Logged, Row, RunFacts, TrackerTarget
from holdfast.views.trials import ExperimentInfo


class FileTrackerCallback(TrackerCallback):
    label: ClassVar[str] = "file"

    def __init__(self, directory: str, upload_timeout: float = 60.0) -> None:
        super().__init__(upload_timeout)
        self.directory = directory

    def check(self) -> None:
        pass

    def target(self, info: ExperimentInfo) -> TrackerTarget:
        return TrackerTarget(self.label, __name__, "FileTracker", {"directory": self.directory})

    def command_arguments(self) -> dict[str, Any]:
        return {"directory": self.directory}


class FileTracker:
    live = True
    counts_timesteps = False

    def __init__(self, directory: str, live: bool = True) -> None:
        self.live = live
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "pid").write_text(str(os.getpid()))

    def is_complete(self, run: RunFacts, rows: int) -> bool:
        return False

    def open(self, run: RunFacts) -> Logged:
        self._obstacles()
        found = self._events(run.id)
        return Logged(sum(event[0] == "row" for event in found))

    def log(self, run: RunFacts, rows: Sequence[Row]) -> None:
        self._obstacles()
        self._append(run, *(["row", row.number, row.step, row.result["loss"]] for row in rows))

    def close(self, run: RunFacts, rows: int) -> None:
        self._append(run, ["close", run.status, rows])

    def retire(self, run: RunFacts) -> None:
        (self.directory / f"{run.id}.jsonl").unlink(missing_ok=True)

    def finish(self) -> None:
        pass

    def _append(self, run: RunFacts, *events: Any) -> None:
        with open(self.directory / f"{run.id}.jsonl", "a", encoding="utf-8") as file:
            file.write("".join(json.dumps([run.trial_id, *event]) + "\n" for event in events))

    def _events(self, run_id: str) -> list[Any]:
        path = self.directory / f"{run_id}.jsonl"
        return [json.loads(line)[1:] for line in path.read_text().splitlines()] if path.exists() else []

    def _obstacles(self) -> None:
        if (self.directory / "down").exists():
            raise ConnectionError("the tracker is down")
        if (self.directory / "hang").exists():
            threading.Event().wait()
        if (self.directory / "crash").exists():
            (self.directory / "crash").unlink()
            os._exit(9)


def read_files(directory: str | Path) -> dict[str, list[list[tuple[int, float]]]]:
    """Steps and losses of all runs, by trial."""
    found: dict[str, list[list[tuple[int, float]]]] = {}
    for path in sorted(Path(directory).glob("*.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        found.setdefault(lines[0][0], []).append([(line[3], line[4]) for line in lines if line[1] == "row"])
    return found
