"""Many short lives of drivers that share their imports: one process imports everything once, each life is a fork of it.

A life is a process of its own, with its own session, environment and output, and dies as any other does; only the
seconds that importing Optuna or PyTorch takes are spent once. Run as ``python warm_drivers.py NAME MODULES``: imports
the modules that the file MODULES lists, and then reads from its standard input one line for each life of a driver that
searches with NAME. Owns: that process. Must never: run anything of an experiment in the process that is forked.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

import holdfast as tune

TIMEOUT_S = 120.0


class Life(msgspec.Struct):
    """One driver: the experiment that it begins or continues, and where its output goes."""

    root: str
    output: str
    environment: dict[str, str]


class WarmDrivers:
    """The process from which drivers for one kind of search are forked; ``with`` ends it."""

    def __init__(self, directory: Path, name: str, modules: Path) -> None:
        self._directory = directory
        self._lives = 0
        self._process = subprocess.Popen(
            [sys.executable, "-u", __file__, name, str(modules)],
            env={**os.environ, "PYTHONPATH": str(Path(tune.__file__).parents[1])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def __enter__(self) -> WarmDrivers:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(TIMEOUT_S)
        finally:
            self._process.kill()  # a life that does not end keeps it
            self._process.wait()
            self._process.stdout.close()

    def live(self, root: Path, **environment: str) -> tuple[int, str]:
        """One driver's life: exit code, as `subprocess` tells it, and output."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._lives += 1
        output = self._directory / f"life_{self._lives}.txt"
        life = Life(str(root), str(output), environment)
        self._process.stdin.write(msgspec.json.encode(life) + b"\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the process that starts drivers has ended"
        return int(answer), output.read_text()


def serve(live: Callable[[str], None]) -> None:
    """Fork one process for each line; it returns from here as that process, with the life to lead."""
    for line in sys.stdin.buffer:
        life = msgspec.json.decode(line, type=Life)
        child = os.fork()
        if child == 0:
            _become(life)
            live(life.root)
            return
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become(life: Life) -> None:
    """Be as a process that was started for this life."""
    os.setsid()
    output = os.open(life.output, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.environ.update(life.environment)
    importlib.reload(importlib.import_module("holdfast.storage.crashpoint"))  # it reads its variable when imported


def list_modules(file: str) -> None:
    """Write what this process has imported, in order."""
    names = [name for name, module in list(sys.modules.items()) if getattr(module, "__spec__", None) is not None]
    Path(file).write_text("\n".join(names))


def main(name: str, modules: str) -> None:
    for module in Path(modules).read_text().splitlines():
        with contextlib.suppress(Exception):  # some exist under their name only after another was imported
            importlib.import_module(module)
    import searcher_experiments

    serve(lambda root: searcher_experiments.live(root, name))


if __name__ == "__main__":
    main(*sys.argv[1:])
