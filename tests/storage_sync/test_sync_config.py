"""SyncConfig: what the older spellings mean, and which combinations make no sense."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from holdfast.config import SyncConfig

COMMAND = "aws s3 sync {source} {target}"


@pytest.mark.parametrize(
    ("field", "value", "successor", "meaning"),
    [
        ("node_sync_period", 60, "sync_period", 60),
        ("cloud_sync_period", 60, "sync_period", 60),
        ("sync_to_cloud", COMMAND, "syncer", COMMAND),
        ("sync_to_driver", COMMAND, "syncer", COMMAND),
        ("sync_to_driver", False, "syncer", None),
        ("sync_to_driver", True, "syncer", "auto"),
    ],
)
def test_older_sync_fields_move_to_their_successors(field: str, value: Any, successor: str, meaning: Any) -> None:
    with pytest.warns(DeprecationWarning, match=f"{field}.*{successor}"):
        config = SyncConfig(**{field: value})
    assert getattr(config, successor) == meaning
    assert getattr(dataclasses.replace(config, sync_timeout=5), successor) == meaning  # and no second warning
    later = SyncConfig()
    with pytest.warns(DeprecationWarning, match=f"{field}.*{successor}"):
        setattr(later, field, value)
    assert later == config


def test_upload_dir_is_accepted_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match=r"upload_dir.*storage_path"):
        assert SyncConfig(upload_dir="s3://bucket/x").upload_dir == "s3://bucket/x"


def test_an_address_that_only_a_syncer_understands_has_no_other_spelling() -> None:
    assert SyncConfig(upload_dir="box:/x", syncer=COMMAND).upload_dir == "box:/x"
    with pytest.warns(DeprecationWarning, match=r"upload_dir.*storage_path"):
        assert SyncConfig(upload_dir="s3://bucket/x", syncer=COMMAND).syncer == COMMAND


def test_with_an_upload_dir_the_settings_for_the_cloud_count() -> None:
    with pytest.warns(DeprecationWarning, match="still works"):
        config = SyncConfig(
            upload_dir="s3://bucket/x",
            cloud_sync_period=7,
            node_sync_period=9,
            sync_to_cloud=COMMAND,
            sync_to_driver="rsync {source} {target}",
        )
    assert (config.sync_period, config.syncer) == (7, COMMAND)
    with pytest.warns(DeprecationWarning, match="still works"):
        assert SyncConfig(upload_dir="s3://bucket/x", sync_to_driver=False).syncer == "auto"
    with pytest.warns(DeprecationWarning, match="still works"):
        config = SyncConfig(cloud_sync_period=7, node_sync_period=9, sync_to_cloud=COMMAND, sync_to_driver=print)
    assert (config.sync_period, config.syncer) == (9, print)


def test_an_older_spelling_that_contradicts_the_newer_is_refused() -> None:
    with (
        pytest.warns(DeprecationWarning, match="still works"),
        pytest.raises(ValueError, match=r"sync_period=10 and, in an older spelling, node_sync_period"),
    ):
        SyncConfig(sync_period=10, node_sync_period=60)
    with (
        pytest.warns(DeprecationWarning, match="still works"),
        pytest.raises(ValueError, match=r"Leave sync_to_driver out"),
    ):
        SyncConfig(syncer=COMMAND, sync_to_driver=False)


def test_an_upload_dir_that_nothing_is_copied_to_is_refused() -> None:
    with (
        pytest.warns(DeprecationWarning, match="still works"),
        pytest.raises(ValueError, match=r"syncer=None, which copies nothing"),
    ):
        SyncConfig(upload_dir="s3://bucket/x", syncer=None)


def test_function_of_another_number_of_arguments_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a function \(source, target\).*cannot be called with two arguments"):
        SyncConfig(syncer=lambda source: None)
    assert callable(SyncConfig(syncer=print).syncer)


def test_accepting_a_store_that_does_not_fence_is_a_choice() -> None:
    assert SyncConfig().unfenced_store is False
    assert repr(SyncConfig(unfenced_store=True)) == "SyncConfig(unfenced_store=True)"
    with pytest.raises(ValueError, match="unfenced_store must be True or False"):
        SyncConfig(unfenced_store="yes")  # type: ignore[arg-type]


def test_the_bytes_that_may_wait_for_storage_are_none_or_a_whole_number():
    assert SyncConfig().max_backlog_bytes is None
    assert SyncConfig(max_backlog_bytes=0).max_backlog_bytes == 0
    assert repr(SyncConfig(max_backlog_bytes=10**9)) == "SyncConfig(max_backlog_bytes=1000000000)"
    for wrong in (-1, 1.5, "10GB", True):
        with pytest.raises(ValueError, match="max_backlog_bytes must be None or an integer >= 0"):
            SyncConfig(max_backlog_bytes=wrong)  # type: ignore[arg-type]
