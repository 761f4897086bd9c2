"""Looks at a damaged copy through every reader, and judges: right, or the damage is named. Nothing else will do.

Run as a program it damages and judges many copies: ``python tests/fuzz/judge.py CORPUS --seed 1 --count 100``. A line
of its output repeats a single case: ``--seed S --count 1``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import corpus
from damage import damage

import holdfast as tune
from holdfast.cli.main import main as command
from holdfast.errors import DamageError, InternalError, TuneError

HANG_S = 60
MEMORY_BYTES = 6 << 30
RESUME_EVERY = 10
NAMED = "named"


class Wrong(Exception):
    """A reader was neither right nor did it name the damage."""


class Hung(BaseException):
    """It took too long."""


class Case:
    """One experiment, whole; and what readers say about it."""

    def __init__(self, root: Path, *, store: bool) -> None:
        self.root = root
        self.store = store
        self.truth = {name: read(root, self.filesystem) for name, read in READERS.items()}

    @property
    def filesystem(self) -> Any:
        """The file system in which a store's objects are; None for a directory."""
        if not self.store:
            return None
        from fsspec.implementations.local import LocalFileSystem

        return LocalFileSystem()

    def judge(self, root: Path, *, resume: bool) -> None:
        """Compare every reader's answer about a damaged copy.

        Raises:
            Wrong: One of them was wrong, or failed in a way that helps nobody.
        """
        answers = {name: ask(name, read, root, self.filesystem) for name, read in READERS.items()}
        for name, answer in answers.items():
            if answer is not NAMED and answer != self.truth[name]:
                raise Wrong(f"{name} is silently wrong: {difference(self.truth[name], answer)}")
        if not self.store:
            whole = self._verify(root)
            wrong = [name for name, answer in answers.items() if answer is NAMED]
            if whole and wrong:
                raise Wrong(f"verify says whole, but {', '.join(wrong)} cannot be read")
            self._list(root)
        if resume:
            self._resume(root)

    def _verify(self, root: Path) -> bool:
        code, out, err = run_command("verify", str(root))
        if code not in (0, 1, 2):
            raise Wrong(f"verify ended with {code}")
        if code and not (out + err).strip():
            raise Wrong("verify says nothing")
        return code == 0

    def _list(self, root: Path) -> None:
        code, out, _ = run_command("list", str(root.parent), "--json")
        names = [facts["name"] for facts in json.loads(out)]
        if code not in (0, 1) or "other" not in names:
            raise Wrong(f"list ended with {code} and shows {names}")

    def _resume(self, root: Path) -> None:
        try:
            with quiet():
                grid = tune.Tuner.restore(
                    str(root), storage_filesystem=self.filesystem, run_config=tune.RunConfig(verbose=0)
                ).fit()
            self._check_end(grid)
        except TuneError as error:
            check_named("restore", error)

    def _check_end(self, grid: tune.ResultGrid) -> None:
        """Whether all trials have come to the end that they would have had without the damage."""
        for result in grid:
            if result.config["x"] == 2 or (result.error is not None and result.error.cause == "damaged"):
                continue
            if result.error is not None:
                raise Wrong(f"after a restore, trial {result.config['x']} failed: {result.error}")
            rows = [row["value"] for row in result._source.rows()]
            if rows != [corpus.expected(result.config, step) for step in range(1, corpus.STEPS + 1)]:
                raise Wrong(f"after a restore, trial {result.config['x']} has {rows}")
        if len(grid) != 4:
            raise Wrong(f"after a restore there are {len(grid)} trials")


def ask(name: str, read: Callable[[Path, Any], Any], root: Path, filesystem: Any) -> Any:
    """A reader's answer, or ``NAMED`` if it says what is damaged."""
    try:
        return read(root, filesystem)
    except TuneError as error:
        check_named(name, error)
        return NAMED


def check_named(who: str, error: TuneError) -> None:
    """Whether an error helps: it is none of our bugs, and says something."""
    if isinstance(error, InternalError) or len(str(error)) < 20:
        raise Wrong(f"{who}: {type(error).__name__}: {error}") from error


def read_grid(root: Path, filesystem: Any) -> Any:
    """All results, as code sees them."""
    grid = tune.ResultGrid.from_path(str(root), storage_filesystem=filesystem)
    return [
        {
            # Whether a driver that left no claim is alive cannot be known, so a trial may be called either.
            "status": result._source.status.replace("RUNNING", "PENDING"),
            "config": str({key: str(type(value)) if key == "thing" else value for key, value in result.config.items()}),
            "rows": [(row["training_iteration"], row["value"]) for row in result._source.rows()],
            "error": str(result.error),
        }
        for result in grid
    ]


def read_checkpoints(root: Path, filesystem: Any) -> Any:
    """What is in all checkpoints."""
    grid = tune.ResultGrid.from_path(str(root), storage_filesystem=filesystem)
    return [
        [(checkpoint.to_dict(), metrics["value"]) for checkpoint, metrics in result.best_checkpoints] for result in grid
    ]


def read_status(root: Path, filesystem: Any) -> Any:
    """What ``holdfast status`` says of trials."""
    if filesystem is not None:
        return None  # the command line knows no file system objects
    facts = json.loads(told("status", str(root), "--json"))
    trials = [{key: trial[key] for key in ("trial_id", "iteration", "config")} for trial in facts["trials"]]
    return [facts["total"], facts["reports"], facts["best"], trials]


def read_export(root: Path, filesystem: Any) -> Any:
    """What ``holdfast export`` writes."""
    if filesystem is not None:
        return None
    file = root.parent / "export.json"
    told("export", str(root), str(file), "--rows")
    rows = json.loads(file.read_text())
    return [[row["trial_id"], row["training_iteration"], row["value"]] for row in rows]


def read_show(root: Path, filesystem: Any) -> Any:
    """What ``holdfast show`` says, its story included."""
    if filesystem is not None:
        return None
    lines = [line["text"] for line in json.loads(told("show", str(root), "--story", "--json"))]
    return [line for line in lines if not line.startswith("Driver ")]  # how a driver ended is told by its claim


READERS = {
    "grid": read_grid,
    "checkpoints": read_checkpoints,
    "status": read_status,
    "export": read_export,
    "show": read_show,
}


def told(*arguments: str) -> str:
    """What a command prints if all is well; otherwise a `DamageError` with what it says instead."""
    code, out, err = run_command(*arguments)
    if code == 0 and "damaged" not in err:  # a damaged claim does not keep the rest from being shown
        return out
    if code not in (0, 1, 2) or len(err) < 20:
        raise Wrong(f"{arguments[0]} ended with {code} and says {err!r}")
    raise DamageError(err)


def run_command(*arguments: str) -> tuple[int, str, str]:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = command(list(arguments))
    return code, out.getvalue(), err.getvalue()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Warnings are how some damage is named; they must not fill the output."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def difference(truth: Any, answer: Any) -> str:
    """The first place where two answers differ."""
    if isinstance(truth, list) and isinstance(answer, list) and len(truth) == len(answer):
        for one, other in zip(truth, answer, strict=True):
            if one != other:
                return difference(one, other)
    if isinstance(truth, dict) and isinstance(answer, dict) and truth.keys() == answer.keys():
        for key in truth:
            if truth[key] != answer[key]:
                return f"{key}: {difference(truth[key], answer[key])}"
    return f"{str(truth)[:300]} became {str(answer)[:300]}"


def tree(folder: Path) -> dict[str, bytes]:
    """Everything below a directory that nobody may touch."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


class Bench:
    """A place for damaged copies, and one beside it that nobody may touch."""

    def __init__(self, home: Path, case: Case) -> None:
        self._home = home
        self._case = case
        self._other = home / "other-template"
        shutil.copytree(case.root, self._other, symlinks=True)
        self.outside = home / "outside"
        self._before = self._lay_out()

    def _lay_out(self) -> dict[str, bytes]:
        shutil.rmtree(self.outside, ignore_errors=True)
        (self.outside / "folder").mkdir(parents=True)
        (self.outside / "secret.txt").write_text("not yours")
        (self.outside / "folder" / "secret.txt").write_text("nor this")
        return tree(self.outside)

    def run(self, seed: int) -> str:
        """Damage one copy and judge it; returns what is wrong, or "" if nothing is."""
        rng = random.Random(seed)
        place = Path(tempfile.mkdtemp(dir=self._home))
        copy = place / "exp"
        resume = seed % RESUME_EVERY == 0
        # Readers change nothing, so links are enough for them; what is damaged is copied first.
        shutil.copytree(self._case.root, copy, symlinks=True, copy_function=shutil.copy2 if resume else os.link)
        if not self._case.store:
            shutil.copytree(self._other, place / "other", symlinks=True, copy_function=os.link)
        os.environ["HOLDFAST_LOCAL_CACHE_DIR"] = str(place / "cache")
        what = damage(copy, rng, self.outside)
        signal.alarm(HANG_S)
        try:
            self._case.judge(copy, resume=resume)
            trouble = ""
        except Hung:
            trouble = f"it hangs: {traceback.format_exc(limit=-4)}"
        except Wrong as wrong:
            trouble = str(wrong)
        except MemoryError:
            trouble = f"it eats all memory: {traceback.format_exc(limit=-4)}"
        except Exception as error:
            trouble = f"traceback: {type(error).__name__}: {error}\n{traceback.format_exc(limit=-4)}"
        finally:
            signal.alarm(0)
            shutil.rmtree(place, ignore_errors=True)
        if tree(self.outside) != self._before:
            trouble += "\nsomething outside was touched"
            if (self.outside / "executed").exists():
                trouble += ": a pickle was loaded"
            self._lay_out()
        return f"seed {seed}: {what}: {trouble}" if trouble else ""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("corpus", type=Path, help="an experiment that corpus.build has made")
    parser.add_argument("--store", action="store_true", help="it is in a store")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    arguments = parser.parse_args()

    def hung(signum: int, frame: Any) -> None:
        raise Hung

    signal.signal(signal.SIGALRM, hung)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    warnings.simplefilter("ignore")
    failures = 0
    with tempfile.TemporaryDirectory(prefix="fuzz-") as home:
        os.environ["HOLDFAST_LOCAL_CACHE_DIR"] = os.path.join(home, "cache")
        bench = Bench(Path(home), Case(arguments.corpus, store=arguments.store))
        for seed in range(arguments.seed, arguments.seed + arguments.count):
            trouble = bench.run(seed)
            if trouble:
                failures += 1
                print(trouble, flush=True)
    print(f"{arguments.count} damaged copies, {failures} of them wrong")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
