"""What tests of the local engine share: an engine whose trials run code, and eyes on its processes."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from code_runner import CODE_RUNNER

from holdfast.config import LocalEngine
from holdfast.core.observations import Joined, Report
from holdfast.engines import process_tree
from holdfast.engines.local_engine import LocalProcessEngine
from holdfast.engines.nanny import BURIAL_S
from holdfast.storage.trial_logs import OLDER, is_note, log_name
from holdfast.testing.engine_contract import DEADLINE_S, ContractDriver, make_run, make_setup

HERE = str(Path(__file__).parent)
T = TypeVar("T")
LOOK_S = 0.005


class LocalDriver(ContractDriver):
    """A driver of a local engine."""

    engine: LocalProcessEngine

    def __init__(self, directory: Path, setup: dict[str, Any] | None = None, **settings: Any) -> None:
        self.logs = directory / "logs"
        engine = LocalProcessEngine(LocalEngine(cpus=4, **settings), log_dir=self.logs, runner=CODE_RUNNER)
        super().__init__(engine)
        engine.open(make_setup(str(directory), sys_path=(HERE, *sys.path), **(setup or {})))

    def code(self, n: int, code: str, attempt: int = 1, gpus: float = 0.0, **config: Any) -> None:
        """Launch an attempt that runs this code."""
        resources = {"CPU": 1.0} | ({"GPU": gpus} if gpus else {})
        self.engine.launch(make_run(n, attempt, {"code": textwrap.dedent(code), **config}, resources=resources))

    def ran(self, n: int, code: str, **fields: Any) -> Any:
        """Run code to its end, which is returned."""
        self.code(n, code, **fields)
        return self.end_of(n, fields.get("attempt", 1))

    def metrics(self, n: int) -> dict[str, Any]:
        """The trial's first report, waited for."""
        return self.until(lambda: self.reports_of(n))[0].metrics

    def printed(self, n: int) -> str:
        """What is kept of the trial's output, without the lines that are ours."""
        files = (self.logs / (log_name(f"trial_{n}") + ending) for ending in (OLDER, ""))
        text = "".join(file.read_text() for file in files if file.exists())
        return "".join(line for line in text.splitlines(keepends=True) if not is_note(line.rstrip("\n")))

    def pid_of(self, n: int) -> int:
        """The process that ran the trial."""
        worker = next(o.worker for o in self.seen if isinstance(o, Report) and o.n == n)
        return next(o.pid for o in self.seen if isinstance(o, Joined) and o.worker == worker)

    def nanny(self) -> int:
        """The nanny's pid, found as the parent of a worker."""
        self.until(lambda: any(isinstance(o, Joined) for o in self.seen))
        joined = [o for o in self.seen if isinstance(o, Joined)][-1]
        process = process_tree.look(joined.pid)
        assert process is not None
        return process.parent


def wait_until(condition: Callable[[], T], what: str, limit_s: float = DEADLINE_S) -> T:
    """Wait for a condition with a deadline."""
    deadline = time.monotonic() + limit_s
    while not (result := condition()):
        assert time.monotonic() < deadline, f"did not happen within {limit_s} s: {what}"
        time.sleep(LOOK_S)
    return result


def wait_promptly(condition: Callable[[], object], what: str, limit_s: float) -> None:
    """Wait for what was promised within a time, counted in looks: a machine that stands still does not use it up."""
    for _ in range(round(limit_s / LOOK_S)):
        if condition():
            return
        time.sleep(LOOK_S)
    raise AssertionError(f"did not happen within {limit_s} s: {what}")


def gone(pids: list[int]) -> bool:
    """Whether none of these processes runs."""
    return not any(map(process_tree.is_running, pids))


def check_buried(pids: list[int], since: float) -> None:
    """An end is told when nothing is left of the worker, or when its nanny has waited for that long enough.

    A killed process needs a core to end on; on a machine without a free one it may take longer than the nanny waits.
    """
    if not gone(pids):
        assert time.monotonic() - since >= BURIAL_S, "told before the processes were gone"
        wait_until(lambda: gone(pids), "killed processes end")


def open_fds() -> set[str]:
    """What this process has open, without the descriptor of the listing itself."""
    fds = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            fds.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
        except FileNotFoundError:
            pass
    return fds
