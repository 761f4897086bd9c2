"""The server of the live page: when it answers, how long its answers take, its memory, and how late a report is.

A real `holdfast ui` beside the process that asks it. The size of the page is that of its files, compressed.
"""

from __future__ import annotations

import gzip
import http.client
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import child
from benchmarks.following import COLUMNS, NO_LOGGERS, REPORTS, holdfast_make

if TYPE_CHECKING:
    from benchmarks.harness import Bench

LATE = 20


def run(bench: Bench) -> None:
    """Serve a small and a large experiment, and ask what the page asks."""
    from benchmarks.harness import OURS, Call, at_most

    large = 2000 if bench.quick else 100_000
    for trials in (100, large):
        root = str(bench.directory() / f"trials-{trials}")
        arguments = {"root": root, "trials": trials}
        bench.once(Call(OURS, "holdfast_make", arguments, env=NO_LOGGERS, timeout_s=1800))
        found = bench.alternate([Call(OURS, "holdfast_serve", arguments)], 2 if bench.quick else 5)
        of, is_large = f"{trials:,} x {REPORTS} reports", trials == 100_000
        bench.row(f"start to the address, {of}", "s", bench.figures(found, "address_s"))
        bench.row(f"start to open, {of}", "s", bench.figures(found, "open_s"))
        bench.row(f"{len(COLUMNS)} columns of {of}", "s", bench.figures(found, "columns_s"), at_most(1.0))
        bench.row(f"sorted and filtered page of {of}", "s", bench.figures(found, "table_s"))
        bench.row(
            f"memory of the server, {of}", "MB", bench.figures(found, "memory_mb"), at_most(400 if is_large else 80)
        )
        bench.row(f"record to event, {of}", "ms", bench.figures(found, "late_s", 1000.0), at_most(1000.0))
        bench.row(f"SIGTERM to exit, {of}", "s", bench.figures(found, "exit_s"), at_most(2.0))
    sizes = {OURS: [page_kb()]}
    bench.row("the page without data, compressed", "KB", sizes, at_most(300.0))


def page_kb() -> float:
    """What a browser loads before any data."""
    import holdfast

    files = (Path(holdfast.__file__).parent / "ui" / "static").iterdir()
    return sum(len(gzip.compress(file.read_bytes(), 1)) for file in files if file.suffix != ".txt") / 1000


class ServedPage:
    """A server, and what a browser asks it, without the browser."""

    def __init__(self, root: str) -> None:
        began = time.monotonic()
        command = [sys.executable, "-m", "holdfast", "ui", root, "--no-browser"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().decode().strip()
        self.address_s = time.monotonic() - began
        place, _, self._token = self.address.removeprefix("http://").partition("/?token=")
        self._place = place
        self._connection = http.client.HTTPConnection(place, timeout=300)
        (one,) = json.loads(self.get("/api/experiments"))
        self.path = f"/api/experiments/{one['id']}"
        while json.loads(self.get(self.path))["loading"] is not None:
            time.sleep(0.02)
        self.open_s = time.monotonic() - began

    def get(self, path: str) -> bytes:
        self._connection.request("GET", path, headers=self._headers())
        response = self._connection.getresponse()
        data = response.read()
        assert response.status == 200, data[:200]
        return gzip.decompress(data) if response.headers.get("Content-Encoding") == "gzip" else data

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}", "Accept-Encoding": "gzip"}

    def timed(self, path: str) -> float:
        began = time.monotonic()
        self.get(self.path + path)
        return time.monotonic() - began

    def events(self) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(self._place, timeout=300)
        connection.request("GET", f"{self.path}/events", headers=self._headers())
        return connection.getresponse()

    def memory_mb(self) -> float:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def end(self) -> float:
        began = time.monotonic()
        self.process.terminate()
        assert self.process.wait() == 0
        return time.monotonic() - began


def holdfast_serve(root: str, trials: int) -> dict[str, float]:
    """One server and one page."""
    page = ServedPage(root)
    figures = {"address_s": page.address_s, "open_s": page.open_s}
    figures["columns_s"] = page.timed(f"/columns?names={','.join(COLUMNS)}")
    figures["table_s"] = page.timed("/trials?filter=loss%20%3C%200.3&sort=loss&limit=100")
    page.timed("/curves?metric=loss")
    figures["memory_mb"] = page.memory_mb()
    figures["late_s"] = _lateness(root, page)
    figures["exit_s"] = page.end()
    return figures


def _lateness(root: str, page: ServedPage) -> float:
    """From a record in the journal to its event, in the mean."""
    from holdfast.core import events as ev
    from holdfast.journal.epoch import claim_epoch
    from holdfast.journal.log import Journal

    stream = page.events()
    claim = claim_epoch(root)
    journal = Journal.create_or_append(root, claim, threaded=False)
    journal.append([ev.encode(ev.EpochStarted(time.time(), claim.epoch, claim.writer, claim.host, claim.pid))])
    _next_event(stream)
    late = []
    for number in range(LATE):
        time.sleep(0.013 * number)  # not in step with the server
        written = time.monotonic()
        journal.append([ev.encode(ev.Noted(time.time(), -1, f"note {number}"))])
        _next_event(stream)
        late.append(time.monotonic() - written)
    journal.append([ev.encode(ev.DriverStopped(time.time(), "finished"))])
    journal.close()
    return sum(late) / len(late)


def _next_event(stream: Any) -> None:
    while not stream.readline().startswith(b"data:"):
        pass


__all__ = ["holdfast_make", "holdfast_serve", "run"]

if __name__ == "__main__":
    child.main(globals())
