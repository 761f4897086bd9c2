"""A file system object of this machine as storage: the same paths as without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast as tune
from holdfast.storage.address import within


def train(config: dict[str, Any]) -> None:
    tune.report({"loss": 1.0}, checkpoint=tune.Checkpoint.from_dict({"step": 1}))


@pytest.mark.slow
@pytest.mark.parametrize("relative", [False, True])
def test_checkpoints_are_found_again_wherever_the_script_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, relative: bool
) -> None:
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.chdir(tmp_path)
    storage = "runs" if relative else str(tmp_path / "runs")
    config = tune.RunConfig(name="exp", storage_path=storage, storage_filesystem=fsspec.filesystem("file"), verbose=0)
    (result,) = tune.Tuner(train, run_config=config).fit()
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict() == {"step": 1}
    assert Path(result.checkpoint.path).is_relative_to(tmp_path / "runs" / "exp")
    assert (tmp_path / "runs" / "exp" / ".holdfast").is_dir()


def test_only_paths_of_this_machine_are_absolute() -> None:
    fsspec = pytest.importorskip("fsspec")
    local, memory = fsspec.filesystem("file"), fsspec.filesystem("memory")
    assert (within(local, "/a/b/") / "c").path == "/a/b/c"
    assert (within(memory, "/a/b/") / "c").path == "a/b/c"
    assert within(local, "/a/b").url == "fs:///a/b"
