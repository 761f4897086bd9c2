"""A damaged epoch file is named, never misread, and never keeps anybody from continuing for good."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import msgspec
import pytest

from holdfast.errors import ExperimentLockedError
from holdfast.journal import Claim, claim_epoch, holder, is_fenced, release
from holdfast.journal.epoch import SILENCE_S, damaged_claims, fenced_error
from holdfast.journal.log import Journal
from holdfast.journal.reader import read_journal

DAMAGES = {
    "empty": b"",
    "blank": b"\n",
    "not UTF-8": b'{"epoch":1,"writer":"\xff"}',
    "not JSON": b"claim",
    "cut": b'{"epoch":1,"writer":"ab',
    "another type": b"[1, 2]",
    "absurd numbers": b'{"epoch":1,"writer":"","host":"h","pid":-7,"machine":"","process_start":1e400,"claimed_at":1}',
    "absurd pid": b'{"epoch":1,"writer":"","host":"h","pid":99999999999,"machine":"","process_start":1,"claimed_at":1}',
    "absurd time": b'{"epoch":1,"writer":"","host":"h","pid":9,"machine":"","process_start":1,"claimed_at":1e300}',
    "huge number": b'{"epoch":1,"writer":"","host":"h","pid":' + b"9" * 5000 + b"}",
    "deep": b"[" * 100_000,
    "another epoch": msgspec.json.encode(Claim(7, "w", "h", 9, "m", 1, 1.0)),
}


def epoch_file(root: Path, epoch: int = 1) -> Path:
    return root / ".holdfast" / "epochs" / f"{epoch:08d}"


def put(root: Path, data: bytes, age_s: float = 0.0) -> Path:
    path = epoch_file(root)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    heard = path.stat().st_mtime - age_s
    os.utime(path, (heard, heard))
    return path


@pytest.mark.parametrize("data", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_claim_that_may_be_alive_is_refused_and_can_be_taken_over(tmp_path: Path, data: bytes) -> None:
    put(tmp_path, data, age_s=12)
    found = holder(tmp_path)
    assert found is not None
    assert found.alive
    assert not found.certain
    assert found.damage
    with pytest.raises(ExperimentLockedError) as caught:
        claim_epoch(tmp_path)
    message = str(caught.value)
    for part in (".holdfast/epochs/00000001, is damaged", "counts as dead in", "takeover=True", "--takeover"):
        assert part in message
    assert "pid 0" not in message
    assert "started" not in message
    assert caught.value.dead_in_s == pytest.approx(SILENCE_S - 12, abs=10)
    assert claim_epoch(tmp_path, takeover=True).epoch == 2


@pytest.mark.parametrize("data", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_claim_that_is_silent_is_succeeded_and_named(
    tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, data, age_s=SILENCE_S + 5)
    with caplog.at_level(logging.WARNING):
        assert claim_epoch(tmp_path).epoch == 2
    assert "00000001" in caplog.text
    assert "damaged" in caplog.text
    assert list(damaged_claims(tmp_path)) == [1]


def test_a_damaged_claim_that_was_released_is_succeeded_at_once(tmp_path: Path) -> None:
    claim = claim_epoch(tmp_path)
    release(tmp_path, claim)
    put(tmp_path, b"\xff")
    found = holder(tmp_path)
    assert found is not None
    assert (found.alive, found.released) == (False, True)
    assert claim_epoch(tmp_path).epoch == 2


def test_a_driver_that_was_taken_over_by_a_damaged_claim_is_told_so(tmp_path: Path) -> None:
    mine = claim_epoch(tmp_path)
    epoch_file(tmp_path, 2).write_bytes(b"\xfe")
    assert is_fenced(tmp_path, mine)
    assert "an unknown driver" in str(fenced_error(str(tmp_path), mine))


def test_no_flipped_bit_of_a_claim_makes_another_claim(tmp_path: Path) -> None:
    claim = claim_epoch(tmp_path)
    path = epoch_file(tmp_path)
    whole = path.read_bytes()
    noticed = 0
    for at in range(len(whole)):
        for bit in (0x01, 0x10, 0x80):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
            found = holder(tmp_path)
            assert found is not None
            if found.damage:
                noticed += 1
            else:  # the line break at the end became another blank, or a time got another digit that floats do not have
                assert found.claim == claim
    assert noticed >= 3 * (len(whole) - 2)


def test_no_cut_of_a_claim_makes_another_claim(tmp_path: Path) -> None:
    claim_epoch(tmp_path)
    path = epoch_file(tmp_path)
    whole = path.read_bytes()
    for size in range(len(whole) - 1):
        path.write_bytes(whole[:size])
        found = holder(tmp_path)
        assert found is not None
        assert found.damage


def test_claims_of_earlier_versions_have_no_checksum_and_are_read(tmp_path: Path) -> None:
    old = b'{"epoch":1,"writer":"","host":"h","pid":9,"machine":"","process_start":1,"claimed_at":1700000000.5}\n'
    put(tmp_path, old)
    found = holder(tmp_path)
    assert found is not None
    assert not found.damage
    assert found.who == "pid 9 on h"


def test_claims_that_have_vanished_are_named_and_their_numbers_are_not_taken_again(tmp_path: Path) -> None:
    for _ in range(2):
        claim = claim_epoch(tmp_path, takeover=True)
        journal = Journal.create_or_append(tmp_path, claim, threaded=False)
        journal.append([b"a record"])
        journal.close()
    shutil.rmtree(tmp_path / ".holdfast" / "epochs")
    found = holder(tmp_path)
    assert found is not None
    assert (found.claim.epoch, found.damage) == (2, "it is missing")
    with pytest.raises(ExperimentLockedError, match=r"epochs/00000002, is damaged: it is missing"):
        claim_epoch(tmp_path)  # whether a driver is alive cannot be known for a while
    assert claim_epoch(tmp_path, takeover=True).epoch == 3
    assert [payload for _, payload in read_journal(tmp_path)] == [b"a record", b"a record"]
