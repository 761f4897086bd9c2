"""Result files in a store: what a driver that was killed had written and not uploaded."""

from __future__ import annotations

from pathlib import Path

from holdfast.controller.file_sync import SENT, FileSync
from holdfast.testing.memory_store import MemoryStore

DEADLINE_S = 20.0


def test_what_a_killed_driver_left_behind_is_uploaded_by_the_next(tmp_path: Path) -> None:
    written = {
        "t/result.json": b"{}\n",
        "t/progress.csv": b"a\n1\n",
        "t/events.out.tfevents.1.t": b"event",
        "pbt_global.txt": b"[]\n",
        "pbt_policy_t.txt": b"[]\n",
    }
    of_others = {"notes.txt": b"mine", "t/model.bin": b"large", "t/checkpoint_000000/result.json": b"inside"}
    (tmp_path / ".holdfast").mkdir()
    for key, data in (written | of_others).items():
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(data)
    store = MemoryStore()
    sync = FileSync(store, tmp_path, lambda: (), period_s=3600.0)
    sync.start()
    try:
        assert sync.wait(sync.ask(), DEADLINE_S)
    finally:
        sync.close()
    assert store.objects == written


def test_a_round_without_files_says_nothing_about_those_of_others(tmp_path: Path) -> None:
    """Nobody has looked at the fence in it: another driver of the same mirror may have files that were not sent."""
    (tmp_path / ".holdfast").mkdir()
    (tmp_path / "t").mkdir()
    result = tmp_path / "t" / "result.json"
    result.write_bytes(b"{}\n")
    sync = FileSync(MemoryStore(), tmp_path, lambda: (), period_s=3600.0)
    sync.start()
    try:
        assert sync.wait(sync.ask(), DEADLINE_S)
        (tmp_path / SENT).unlink()
        assert sync.wait(sync.ask(), DEADLINE_S)
    finally:
        sync.close()
    assert not (tmp_path / SENT).exists()
