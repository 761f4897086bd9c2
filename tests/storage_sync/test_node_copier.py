"""Copying from nodes with what users give: addresses, failures, timeouts, several copies at once."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import holdfast as tune
from holdfast.engines import process_tree
from holdfast.errors import InvalidInputError, SyncError
from holdfast.sync.node_copier import NodeCopier, node_copier
from holdfast.syncer import CommandSyncer, Syncer

SOURCE = "ray@10.0.0.8:/scratch/root/t0/.sealed/"


def copier(syncer: Any, **more: Any) -> NodeCopier:
    made = node_copier(tune.SyncConfig(syncer=syncer, **more))
    assert made is not None
    return made


def never() -> bool:
    return False


@pytest.mark.parametrize("kind", ["command", "object"])
def test_a_command_gets_the_address_as_its_source(tmp_path: Path, kind: str) -> None:
    command = "echo {source} > {target}said"
    copier(command if kind == "command" else CommandSyncer(command))(SOURCE, str(tmp_path / "x"), never)
    assert (tmp_path / "x" / "said").read_text() == f"{SOURCE}\n"


def test_a_function_gets_the_address_as_its_source(tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []
    copier(lambda source, target: told.append((source, target)))(SOURCE, str(tmp_path / "x"), never)
    assert told == [(SOURCE, f"{tmp_path / 'x'}/")]


def test_the_older_spelling_copies_from_nodes_too(tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match="sync_to_driver"):
        config = tune.SyncConfig(sync_to_driver="echo {source} > {target}said")
    made = node_copier(config)
    assert made is not None
    made(SOURCE, str(tmp_path / "x"), never)
    assert (tmp_path / "x" / "said").read_text() == f"{SOURCE}\n"


@pytest.mark.parametrize("syncer", ["echo no such host >&2; exit 3 # {source} {target}", "function"])
def test_a_failure_is_a_storage_error_with_its_reason(tmp_path: Path, syncer: str) -> None:
    def fails(source: str, target: str) -> None:
        raise ZeroDivisionError("no such host")

    with pytest.raises(SyncError, match="no such host"):
        copier(fails if syncer == "function" else syncer)(SOURCE, str(tmp_path / "x"), never)


def test_a_copy_that_nobody_needs_any_more_is_ended(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    command = f"echo $$ > {pid_file}; exec sleep 1000 # {{source}} {{target}}"
    with pytest.raises(SyncError, match="given up"):
        copier(command)(SOURCE, str(tmp_path / "x"), lambda: pid_file.exists() and bool(pid_file.read_text()))
    pid, deadline = int(pid_file.read_text()), time.monotonic() + 30
    while process_tree.is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_copy_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with pytest.raises(SyncError):
        copier("sleep 1000 # {source} {target}", sync_timeout=0.1)(SOURCE, str(tmp_path / "x"), never)


def test_copies_of_several_trials_run_at_once(tmp_path: Path) -> None:
    both = threading.Barrier(2, timeout=30)
    copy = copier(lambda source, target: both.wait())
    threads = [threading.Thread(target=copy, args=(SOURCE, str(tmp_path / str(k)), never)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert both.broken is False
    assert both.n_waiting == 0


class Vault(Syncer):
    def sync_up(self, local_dir: str, remote_dir: str, exclude: Any = None) -> bool:
        return bool(shutil.copytree(local_dir, remote_dir))

    def sync_down(self, remote_dir: str, local_dir: str, exclude: Any = None) -> bool:
        return bool(shutil.copytree(remote_dir, local_dir))

    def delete(self, remote_dir: str) -> bool:
        return True


def test_a_syncer_for_stores_needs_one() -> None:
    with pytest.raises(InvalidInputError, match="no upload_dir to copy to"):
        node_copier(tune.SyncConfig(syncer=Vault()))


@pytest.mark.parametrize(
    "config", [{}, {"syncer": None}, {"syncer": "cp -r {source} {target}", "upload_dir": "box:/x"}, {"syncer": "auto"}]
)
def test_nothing_else_copies_from_nodes(config: dict[str, Any]) -> None:
    assert node_copier(tune.SyncConfig(**config)) is None
