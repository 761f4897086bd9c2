"""Parts of a recorded experiment in a store are gone or damaged: whoever opens it says so, and what is missing."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpus
import pytest

import holdfast as tune
from holdfast.errors import JournalDamagedError
from holdfast.shipping import parts


@pytest.fixture
def filesystem() -> Any:
    return pytest.importorskip("fsspec.implementations.local").LocalFileSystem()


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filesystem: Any) -> Path:
    """The address of a finished experiment, on a machine that knows nothing of it."""
    monkeypatch.setenv("HOLDFAST_LOCAL_CACHE_DIR", str(tmp_path / "cache"))
    return corpus.unpack("store", tmp_path / "storage")


def objects(root: Path) -> list[Path]:
    return sorted((root / ".holdfast" / "parts").iterdir())


READERS: dict[str, Callable[..., tune.ResultGrid]] = {
    "from_path": tune.ResultGrid.from_path,
    "get_results": lambda root, **options: tune.Tuner.restore(root, **options).get_results(),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("lost", [12, 33])
def test_newest_parts_that_are_gone_with_their_marks_are_missed(
    stored: Path, filesystem: Any, reader: str, lost: int
) -> None:
    """Only the checkpoints in the store tell, and a mirror that was just made has none of them."""
    whole = READERS[reader](str(stored), storage_filesystem=filesystem)
    assert [len(result.metrics_dataframe) for result in whole] == [6, 3, 6, 6]  # type: ignore[arg-type]
    shutil.rmtree(os.environ["HOLDFAST_LOCAL_CACHE_DIR"])
    shutil.rmtree(stored / ".holdfast" / "marks")
    for path in objects(stored)[-lost:]:
        path.unlink()
    with pytest.raises(JournalDamagedError, match="lost records"):
        print(READERS[reader](str(stored), storage_filesystem=filesystem))


def seq_of(path: Path) -> tuple[int, float]:
    """The last record that is in the store with a part, and when the part was made."""
    header = parts.decode_parts(path.read_bytes(), f"{parts.PREFIX}{path.name}")[-1].header
    return header.seq, header.at


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("number", [1, 2, 9, 17, 32])
@pytest.mark.parametrize("damage", ["gone", "cut", "another"])
def test_the_error_about_a_part_says_how_many_records_are_missing_and_since_when(
    stored: Path, filesystem: Any, reader: str, number: int, damage: str
) -> None:
    there = objects(stored)
    victim = there[number - 1]
    (before, since), (behind, _) = (0, None) if number == 1 else seq_of(there[number - 2]), seq_of(victim)
    if damage == "gone":
        victim.unlink()
    elif damage == "cut":
        os.truncate(victim, victim.stat().st_size // 2)
    else:
        shutil.copy(there[number - 2], victim)
    with pytest.raises(JournalDamagedError) as caught:
        READERS[reader](str(stored), storage_filesystem=filesystem)
    error = caught.value
    assert error.file == f"{parts.PREFIX}{victim.name}"
    assert (error.missing, error.since, error.seq) == (behind - before or None, since, before + 1)
    if error.missing:
        assert re.search(rf"{error.missing} records? (is|are) missing", str(error))
