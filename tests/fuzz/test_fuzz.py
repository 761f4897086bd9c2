"""Random damage to every file of an experiment: each reader is right, or names the damage.

None may execute what is stored there, hang, eat the memory, write outside, or end in a traceback of holdfast. A failure
prints the seed; ``python tests/fuzz/judge.py CORPUS --seed SEED --count 1`` repeats it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import corpus
import pytest

JUDGE = str(Path(__file__).with_name("judge.py"))
CHUNK = 100

COPIES = {"unfinished": 1200, "finished": 500, "store": 400, "reports": 400}

CASES = [(kind, seed) for kind, count in COPIES.items() for seed in range(1, count, CHUNK)]


@pytest.fixture(scope="module")
def experiments(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One experiment of each kind, made by real drivers."""
    pytest.importorskip("fsspec")
    home = tmp_path_factory.mktemp("corpus")
    return {kind: corpus.unpack(kind, home / kind) for kind in corpus.KINDS}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "seed"), CASES)
def test_damage_is_named_or_harmless(kind: str, seed: int, experiments: dict[str, Path]) -> None:
    more = ["--store"] if kind == "store" else []
    command = [sys.executable, JUDGE, str(experiments[kind]), "--seed", str(seed), "--count", str(CHUNK), *more]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    assert f"{CHUNK} damaged copies, 0 of them wrong" in done.stdout


def test_a_few_damaged_copies_of_each_kind(experiments: dict[str, Path]) -> None:
    for kind, path in experiments.items():
        more = ["--store"] if kind == "store" else []
        command = [sys.executable, JUDGE, str(path), "--seed", "5001", "--count", "10", *more]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]


def test_the_judge_notices_a_reader_that_is_wrong(experiments: dict[str, Path]) -> None:
    """A canary: with checks switched off, the same damage goes unnoticed and the judge says so."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "sys.argv = ['judge.py', sys.argv[2], '--seed', '1', '--count', '60']\n"
        "from holdfast.checkpoints import verified\n"
        "verified.ensure = lambda *args, **kwargs: None\n"
        "import judge; sys.exit(judge.main())"
    )
    command = [sys.executable, "-c", code, str(Path(JUDGE).parent), str(experiments["finished"])]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-3000:]
    assert "silently wrong" in done.stdout or "UnpicklingError" in done.stdout
