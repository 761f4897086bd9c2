"""``filesystem`` of checkpoints and results in a store: with pyarrow, a file system of pyarrow's that reaches them."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast as tune
from servers.process import Server

fs = pytest.importorskip("pyarrow.fs")


def trainable(config: dict[str, int]) -> None:
    tune.report({"loss": config["x"]}, checkpoint=tune.Checkpoint.from_dict({"x": config["x"]}))


@pytest.fixture
def grid(seaweedfs: Server, bucket_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tune.ResultGrid:
    """Of an experiment with one trial in a bucket."""
    for name, value in seaweedfs.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOLDFAST_LOCAL_CACHE_DIR", str(tmp_path / "cache"))
    seaweedfs.bucket(bucket_name)
    config = tune.RunConfig(name="exp", storage_path=f"s3://{bucket_name}/runs", verbose=0)
    return tune.Tuner(trainable, param_space={"x": 7}, run_config=config).fit()


def test_pyarrow_reads_a_checkpoint_through_its_file_system(grid: tune.ResultGrid, tmp_path: Path) -> None:
    checkpoint = grid[0].checkpoint
    assert checkpoint is not None
    files = checkpoint.filesystem
    assert isinstance(files, fs.FileSystem)
    assert files == grid.filesystem == grid[0].filesystem == pickle.loads(pickle.dumps(files))
    plain = checkpoint.path.removeprefix("s3://")
    (tmp_path / "copy").mkdir()
    for path in (checkpoint.path, plain):
        assert files.get_file_info(path).type == fs.FileType.Directory
        assert files.get_file_info(f"{path}/nothing").type == fs.FileType.NotFound
        found = {info.base_name: info for info in files.get_file_info(fs.FileSelector(path))}
        assert set(found) == {"_dict_checkpoint.pkl", "_manifest.json"}
        with files.open_input_file(f"{path}/_dict_checkpoint.pkl") as file:
            data = file.read()
        assert pickle.loads(data) == {"x": 7}
        assert found["_dict_checkpoint.pkl"].size == len(data)
        fs.copy_files(path, str(tmp_path / "copy"), source_filesystem=files)
        assert sorted(os.listdir(tmp_path / "copy")) == sorted(found)
        assert tune.Checkpoint(path, filesystem=files).to_dict() == {"x": 7}
    with pytest.raises(FileNotFoundError):
        files.open_input_stream(f"{plain}/nothing")
    with pytest.raises(FileNotFoundError):
        files.get_file_info(fs.FileSelector(f"{plain}/nothing"))


def test_pyarrow_writes_and_deletes_through_it(grid: tune.ResultGrid, tmp_path: Path) -> None:
    files, top = grid.filesystem, grid.experiment_path.removeprefix("s3://").partition("/")[0]
    (tmp_path / "mine" / "deep").mkdir(parents=True)
    (tmp_path / "mine" / "deep" / "a").write_bytes(b"alpha")
    fs.copy_files(str(tmp_path / "mine"), f"{top}/mine", destination_filesystem=files)
    selector = fs.FileSelector(f"{top}/mine", recursive=True)
    assert [info.path for info in files.get_file_info(selector)] == [f"{top}/mine/deep", f"{top}/mine/deep/a"]
    files.move(f"{top}/mine/deep/a", f"{top}/mine/b")
    assert files.open_input_file(f"{top}/mine/b").read() == b"alpha"
    assert files.get_file_info(f"{top}/mine/deep").type == fs.FileType.NotFound
    stream = files.open_output_stream(f"{top}/mine/half")
    stream.write(b"half")
    del stream
    assert files.get_file_info(f"{top}/mine/half").type == fs.FileType.NotFound
    files.delete_dir(f"{top}/mine")
    assert files.get_file_info(f"{top}/mine").type == fs.FileType.NotFound
    with pytest.raises(PermissionError, match="bucket"):
        files.delete_dir_contents(top)


def test_it_opens_the_experiment_again(grid: tune.ResultGrid) -> None:
    files, place = grid.filesystem, grid.experiment_path.removeprefix("s3://")
    again = tune.ResultGrid.from_path(place, storage_filesystem=files)
    assert again.experiment_path == grid.experiment_path
    assert tune.Result.from_path(grid[0].path, storage_filesystem=files).metrics["loss"] == 7
    assert tune.Tuner.can_restore(place, storage_filesystem=files)


FORKED = """
import os, sys
import holdfast as tune
checkpoint = tune.Checkpoint(sys.argv[1])
files = checkpoint.filesystem
size = files.get_file_info(sys.argv[1] + "/_manifest.json").size
child = os.fork()
if child == 0:
    same = files.get_file_info(sys.argv[1] + "/_manifest.json").size == size
    os._exit(0 if same else 1)
assert os.waitpid(child, 0)[1] == 0
assert files.get_file_info(sys.argv[1] + "/_manifest.json").size == size
"""


def test_it_works_in_a_fork_of_a_process_that_has_used_it(grid: tune.ResultGrid) -> None:
    checkpoint = grid[0].checkpoint
    assert checkpoint is not None
    subprocess.run([sys.executable, "-c", FORKED, checkpoint.path], check=True, timeout=120)
