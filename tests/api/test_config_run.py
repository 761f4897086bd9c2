"""RunConfig and LocalEngine: where an experiment lives, and which of several paths is its root."""

from __future__ import annotations

import copy
import dataclasses
import os
import pathlib
import warnings
from typing import Any

import pytest

from holdfast.config import CheckpointConfig, FailureConfig, LocalEngine, RunConfig, SyncConfig


@pytest.fixture(autouse=True)
def no_storage_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOLDFAST_STORAGE", "RAY_STORAGE", "TUNE_RESULT_DIR", "HOLDFAST_RESULT_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOLDFAST_LOCAL_CACHE_DIR", "RAY_AIR_LOCAL_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)


# --- LocalEngine


def test_local_engine_defaults_and_normalisation() -> None:
    engine = LocalEngine()
    assert (engine.start, engine.preload, engine.cpus, engine.gpus, engine.resources) == ("fork", (), None, None, None)
    given = {"licence": 1}
    engine = LocalEngine(cpus=0.5, gpus=0, resources=given, preload=["json"], memory_limit_bytes=1 << 30)
    given["licence"] = 9
    assert engine.resources == {"licence": 1}
    assert engine.preload == ("json",)


@pytest.mark.parametrize(
    ("arguments", "keyword"),
    [
        ({"cpus": 0}, "cpus must be a number > 0"),
        ({"cpus": "4"}, "cpus must be a number > 0"),
        ({"gpus": -1}, "gpus must be a number >= 0"),
        ({"resources": ["licence"]}, "resources must be a dict"),
        ({"resources": {"licence": "two"}}, r"resources\['licence'\] must be a number"),
        ({"resources": {3: 1}}, "must be a str"),
        ({"resources": {"CPU": 1}}, r"Use LocalEngine\(cpus=...\)"),
        ({"resources": {"gpu": 1}}, r"Use LocalEngine\(gpus=...\)"),
        ({"resources": {"memory": 1}}, r"Use LocalEngine\(memory_limit_bytes=...\)"),
        ({"start": "thread"}, r"start must be one of \['fork', 'spawn'\]"),
        ({"preload": "torch"}, "preload must be a list of module names"),
        ({"preload": [3]}, "preload must be a list of module names"),
        ({"memory_limit_bytes": 0}, "memory_limit_bytes must be None or an integer >= 1"),
        ({"memory_limit_bytes": 1.5}, "memory_limit_bytes must be None or an integer >= 1"),
        ({"max_trials_per_worker": 0}, "max_trials_per_worker must be None or an integer >= 1"),
    ],
)
def test_local_engine_is_checked(arguments: dict[str, Any], keyword: str) -> None:
    with pytest.raises(ValueError, match=keyword):
        LocalEngine(**arguments)


# --- RunConfig


def test_run_defaults() -> None:
    config = RunConfig()
    assert config.storage_path == os.path.expanduser("~/holdfast_results")
    assert config.failure_config == FailureConfig()
    assert config.checkpoint_config == CheckpointConfig()
    assert config.sync_config == SyncConfig()
    assert (config.if_exists, config.durability, config.engine) == ("error", "group", None)
    assert (config.log_to_file, config.log_files) == (False, None)


def test_sub_configs_are_not_shared_between_runs() -> None:
    assert RunConfig().failure_config is not RunConfig().failure_config


@pytest.mark.parametrize("name", ["failure_config", "checkpoint_config", "sync_config"])
def test_sub_configs_have_their_type(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a "):
        RunConfig(**{name: {"max_failures": 3}})


@pytest.mark.parametrize("name", ["", "/abs", "a//b", "../up", ".", "a\0b", 3])
def test_name_stays_below_the_storage_path(name: Any) -> None:
    with pytest.raises(ValueError, match="name must be a relative name"):
        RunConfig(name=name)


def test_storage_path_is_settled_against_later_changes(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert RunConfig(storage_path="here").storage_path == str(tmp_path / "here")
    assert RunConfig(storage_path=tmp_path).storage_path == str(tmp_path)
    assert RunConfig(storage_path="~/x").storage_path == "/home/me/x"
    assert RunConfig(storage_path="s3://bucket/a").storage_path == "s3://bucket/a"


@pytest.mark.parametrize("path", ["", 3, b"/x"])
def test_storage_path_is_a_path(path: Any) -> None:
    with pytest.raises(ValueError, match="storage_path must be a directory or a URI"):
        RunConfig(storage_path=path)


def test_storage_variables_are_honoured_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNE_RESULT_DIR", "/tune")
    assert RunConfig().storage_path == "/tune"
    monkeypatch.setenv("RAY_STORAGE", "s3://ray")
    assert RunConfig().storage_path == "s3://ray"
    monkeypatch.setenv("HOLDFAST_STORAGE", "/own")
    assert RunConfig().storage_path == "/own"
    assert RunConfig(storage_path="/given").storage_path == "/given"
    assert repr(RunConfig()) == "RunConfig()"


def test_mistake_in_an_unrelated_variable_does_not_break_a_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNE_MAX_LEN_IDENTIFIER", "long")
    assert RunConfig().storage_path


def test_storage_filesystem_goes_with_a_path_inside_it() -> None:
    filesystem = object()
    config = RunConfig(storage_path="bucket/prefix", storage_filesystem=filesystem)
    assert config.storage_path == "bucket/prefix"
    for path in (None, "s3://bucket"):
        with pytest.raises(ValueError, match="storage_path must be a path inside storage_filesystem"):
            RunConfig(storage_path=path, storage_filesystem=filesystem)
    with pytest.raises(ValueError, match="storage_filesystem must be a file system object"):
        RunConfig(storage_path="x", storage_filesystem="s3")


def test_local_dir_alone_is_the_storage_path() -> None:
    with pytest.warns(DeprecationWarning, match=r"local_dir.*storage_path"):
        config = RunConfig(local_dir="/data")
    assert config.storage_path == "/data"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert copy.copy(config).storage_path == "/data"


def test_local_dir_with_upload_dir_is_the_staging_root() -> None:
    with pytest.warns(DeprecationWarning, match="still works"):
        config = RunConfig(local_dir="~/data", sync_config=SyncConfig(upload_dir="s3://bucket/x"))
    with pytest.warns(DeprecationWarning, match="still works"):
        renamed = dataclasses.replace(config, name="n")
    for each in (config, renamed):
        assert each.storage_path == "s3://bucket/x"
        assert each.local_dir == "~/data"


def test_local_dir_with_a_uri_as_storage_path_is_the_staging_root() -> None:
    with pytest.warns(DeprecationWarning, match="still works"):
        config = RunConfig(storage_path="gs://bucket", local_dir="/data")
    assert (config.storage_path, config.local_dir) == ("gs://bucket", "/data")


def test_settled_root_follows_a_later_upload_dir() -> None:
    with pytest.warns(DeprecationWarning, match="still works"):
        sync = SyncConfig(upload_dir="s3://bucket")
    config = RunConfig(name="n")
    config.sync_config = sync
    assert config.storage_path == "s3://bucket"
    assert dataclasses.replace(RunConfig(), sync_config=sync).storage_path == "s3://bucket"


def test_two_roots_are_refused() -> None:
    with (
        pytest.warns(DeprecationWarning, match="still works"),
        pytest.raises(ValueError, match=r"two roots.*leave local_dir out"),
    ):
        RunConfig(storage_path="/a", local_dir="/b")
    with (
        pytest.warns(DeprecationWarning, match="still works"),
        pytest.raises(ValueError, match=r"two roots.*SyncConfig.upload_dir"),
    ):
        RunConfig(storage_path="/a", sync_config=SyncConfig(upload_dir="s3://b"))
    with pytest.warns(DeprecationWarning, match="still works"):
        assert RunConfig(storage_path="/a", local_dir="/a").storage_path == "/a"


@pytest.mark.parametrize(
    ("value", "files"),
    [
        (False, None),
        (True, ("stdout", "stderr")),
        ("out.log", ("out.log", "out.log")),
        (("o", "e"), ("o", "e")),
        (["o", "e"], ("o", "e")),
    ],
)
def test_log_to_file_names_two_files(value: Any, files: Any) -> None:
    assert RunConfig(log_to_file=value).log_files == files


@pytest.mark.parametrize("value", ["", ("a",), ("a", "b", "c"), 3, None, ("a", 1), ("a", ""), {"a": 1, "b": 2}])
def test_log_to_file_of_another_kind_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="log_to_file must be True, False, one file name or a pair"):
        RunConfig(log_to_file=value)


def test_verbose_is_a_level() -> None:
    assert [RunConfig(verbose=level).verbose for level in (None, 0, 3, True)] == [None, 0, 3, 1]
    for level in (4, -1, "1", 1.5):
        with pytest.raises(ValueError, match="verbose must be None, 0, 1, 2 or 3"):
            RunConfig(verbose=level)  # type: ignore[arg-type]


def test_callbacks_are_a_list_of_objects() -> None:
    class Watch:
        def on_trial_result(self, **info: object) -> None: ...

    watch = Watch()
    assert RunConfig(callbacks=[watch]).callbacks == [watch]
    with pytest.raises(ValueError, match=r"callbacks\[0\] must be an instance.*Write Watch\(...\)"):
        RunConfig(callbacks=[Watch])
    for callbacks in (watch, "watch"):
        with pytest.raises(ValueError, match="callbacks must be a list"):
            RunConfig(callbacks=callbacks)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="progress_reporter must be an instance"):
        RunConfig(progress_reporter=Watch)


def test_choices_of_a_run_are_checked() -> None:
    assert RunConfig(if_exists="resume", durability="sync", engine="ray").engine == "ray"
    assert RunConfig(engine=LocalEngine(cpus=1)).engine == LocalEngine(cpus=1)
    with pytest.raises(ValueError, match=r"if_exists must be one of \['error', 'resume', 'new'\]"):
        RunConfig(if_exists="overwrite")
    with pytest.raises(ValueError, match=r"durability must be one of \['group', 'sync'\]"):
        RunConfig(durability="none")
    with pytest.raises(ValueError, match=r"engine must be one of \['local', 'ray'\]"):
        RunConfig(engine="slurm")
    with pytest.raises(ValueError, match="engine must be None, a LocalEngine"):
        RunConfig(engine=LocalEngine)  # type: ignore[arg-type]
