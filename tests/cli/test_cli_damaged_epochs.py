"""Commands name a damaged epoch file, and show everything else as it is."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from roots import RootWriter

DAMAGES = {"empty": b"", "not UTF-8": b'{"epoch":1,"writer":"\xff', "cut": b'{"epoch":1,', "other": b"[]"}


@pytest.fixture
def finished(tmp_path: Path) -> RootWriter:
    root = RootWriter(tmp_path / "exp").open()
    n = root.create({"lr": 0.1})
    root.start(n)
    root.report(n, {"loss": 0.5})
    root.end(n)
    return root.finish()


def damage(root: RootWriter, data: bytes, *, alive: bool) -> None:
    file = root.path / ".holdfast" / "epochs" / "00000001"
    file.write_bytes(data)
    if alive:
        (file.parent / "00000001.released").unlink()
        os.utime(file, (time.time() - 7,) * 2)


@pytest.mark.parametrize("alive", [False, True])
@pytest.mark.parametrize("data", DAMAGES.values(), ids=DAMAGES)
def test_status_show_list_and_verify_name_a_damaged_claim(
    finished: RootWriter, holdfast: Callable[..., Any], data: bytes, alive: bool
) -> None:
    damage(finished, data, alive=alive)
    status = holdfast("status", finished.path)
    assert status.code == 0
    assert "00000001 is damaged" in status.out
    assert "pid 0" not in status.out
    assert ("perhaps running, by an unknown driver" in status.out) == alive
    facts = json.loads(holdfast("status", finished.path, "--json").out)
    assert "00000001 is damaged" in facts["damage"]
    assert facts["holder"] is None or facts["holder"]["pid"] is None
    show = holdfast("show", finished.path)
    assert show.code == 0
    assert "00000001 is damaged" in show.err
    listed = holdfast("list", finished.path.parent)
    assert "damaged epoch file" in listed.out
    verify = holdfast("verify", finished.path)
    assert verify.code == 1
    assert "damage: .holdfast/epochs/00000001" in verify.out
    assert "This file holds no results" in verify.out
    assert "takeover" in verify.out


def test_a_damaged_claim_of_a_past_driver_is_only_noted(finished: RootWriter, holdfast: Callable[..., Any]) -> None:
    finished.open()
    finished.finish()
    damage(finished, b"\xff", alive=False)
    verify = holdfast("verify", finished.path)
    assert verify.code == 0
    assert "note: .holdfast/epochs/00000001" in verify.out
    assert "is damaged" not in holdfast("status", finished.path).out
