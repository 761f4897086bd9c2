"""Whole frames with right checksums around content that no driver writes are damage, named by the record's number."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import pytest
from forging import READERS, append, arguments, good, really_run, train, with_records

import holdfast as tune
from holdfast.controller.spec import _checksum
from holdfast.core import events as ev
from holdfast.errors import DamageError, JournalDamagedError
from holdfast.journal.frames import encode_frames, encode_header
from holdfast.journal.records import MAX_NESTING
from holdfast.storage.layout import Root
from holdfast.trainable.spool_writer import SpoolFolder, SpoolOwner, spool_path

AT = 1_700_001_000.0
NAN, INF = float("nan"), float("inf")
pack = msgspec.msgpack.encode


def nested(depth: int) -> dict[str, Any]:
    value: Any = 1.0
    for _ in range(depth):
        value = {"a": value}
    return {"loss": value}


def metrics_of_depth(depth: int) -> bytes:
    """A report nested too deeply to be made by an encoder."""
    event = pack(["rep", AT, 0, 1, 101, 0.5])
    return bytes([event[0] + 1]) + event[1:] + b"\x81\xa1a" * depth + b"\x01"


FORGED: dict[str, bytes | ev.AnyEvent] = {
    "nothing": b"",
    "no msgpack": b"\xc1",
    "cut": pack(["rep", AT, 0])[:-1],
    "a number": pack(7),
    "a dict": pack({"n": 1}),
    "an unknown event": pack(["who", AT]),
    "too few fields": pack(["rep", AT, 0]),
    "wrong types": pack(["rep", AT, "0", 1, 101, 0.5, {}]),
    "a float as id": pack(["rep", AT, 0.5, 1, 101, 0.5, {}]),
    "nan as id": pack(["rep", AT, NAN, 1, 101, 0.5, {}]),
    "a negative trial": pack(["rep", AT, -1, 1, 101, 0.5, {}]),
    "a trial that does not exist": pack(["rep", AT, 99, 1, 101, 0.5, {}]),
    "a huge trial": pack(["start", AT, 2**63, 1]),
    "a negative checkpoint": pack(["ckpt", AT, 0, -5, "", 1]),
    "an end of a trial that does not exist": pack(["end", AT, 5, 1, "x"]),
    "a note about a trial that does not exist": pack(["note", AT, 17, "x"]),
    "a negative note": pack(["note", AT, -2, "x"]),
    "no time": pack(["note", NAN, -1, "x"]),
    "endless time": pack(["note", INF, -1, "x"]),
    "the year 30000": pack(["note", 1e12, -1, "x"]),
    "before 1970": pack(["note", -1.0, -1, "x"]),
    "not UTF-8": b"\x94\xa4note\xcb" + struct.pack(">d", AT) + b"\xff\xa2\xff\xfe",
    "not UTF-8 in a name": b"\x94\xa4note\xcb" + struct.pack(">d", AT) + b"\xff\xa1\xff",
    "an absurd length": b"\xdd\xff\xff\xff\xff",
    "an absurd string": b"\xdb\xff\xff\xff\xff",
    "an extension": pack(["rep", AT, 0, 1, 101, 0.5])[:1].replace(b"\x96", b"\x97")
    + pack(["rep", AT, 0, 1, 101, 0.5])[1:]
    + b"\x81\xa1a\xd4\x05\x01",
    "nested 300 deep": metrics_of_depth(300),
    "nested 500 deep": metrics_of_depth(500),
    "nested 100,000 deep": metrics_of_depth(100_000),
    "lists 100,000 deep": b"\x91" * 100_000,
    "a transition that is illegal": ev.TrialPaused(AT, 0, 1),
    "a trial twice": ev.TrialCreated(AT, 0, "abcde_00000", {}, "0"),
    "a trial too early": ev.TrialCreated(AT, 7, "abcde_00007", {}, "7"),
    "a commit of nothing": ev.CheckpointCommitted(AT, 0, 44, "", 1),
    "a donor that does not exist": ev.TrialReconfigured(AT, 0, {}, "", (9, 0)),
    "a parent that does not exist": ev.TrialReconfigured(AT, 0, {}, "", None, 9),
    "a source that does not exist": ev.TrialStarted(AT, 0, 2, 0, (9, 0)),
    "endless resources": ev.TrialCreated(AT, 1, "abcde_00001", {}, "1", request={"CPU": INF}),
}


def forged(path: Path, record: bytes | ev.AnyEvent) -> Path:
    """An experiment with this as record 8."""
    if isinstance(record, ev.TrialCreated) and record.request is not None:
        return with_records(path, record, ev.TrialStarted(AT, 1, 1))
    if isinstance(record, ev.TrialPaused | ev.TrialStarted):
        writer = good(path)
        writer.end(0)
        writer.journal.append([ev.encode(record)])
        return writer.die().path
    return with_records(path, record)


@pytest.mark.parametrize("record", FORGED.values(), ids=FORGED)
def test_a_crafted_record_is_damage_for_every_reader(
    tmp_path: Path, holdfast: Callable[..., Any], record: bytes | ev.AnyEvent
) -> None:
    root = forged(tmp_path / "exp", record)
    for command in READERS:
        (tmp_path / "out").mkdir(exist_ok=True)
        answer = holdfast(*arguments(command, root, tmp_path / "out"))
        assert answer.code == 1, (command, answer)
        assert "record 8" in answer.said or "record 9" in answer.said, (command, answer)
        assert "Traceback" not in answer.said
        assert "bug in holdfast" not in answer.said
    with pytest.raises(JournalDamagedError) as caught:
        tune.ResultGrid.from_path(root)
    assert caught.value.seq in (8, 9)
    assert "holdfast verify" in str(caught.value)


def test_one_bad_experiment_does_not_take_the_list_down(tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    forged(tmp_path / "bad", FORGED["nested 100,000 deep"])
    good(tmp_path / "fine").finish()
    answer = holdfast("list", tmp_path)
    assert "fine" in answer.out
    assert "bad" in answer.out


def test_a_restore_names_a_crafted_record_and_changes_no_trial(tmp_path: Path) -> None:
    root = really_run(tmp_path / "exp")
    append(root, FORGED["nested 500 deep"])
    with pytest.raises(JournalDamagedError):
        tune.Tuner.restore(str(root), trainable=train).fit()


def test_reports_as_deep_as_users_may_make_them_are_read(tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    root = with_records(tmp_path / "exp", ev.Reported(AT, 0, 1, 101, 0.5, nested(60)))
    assert holdfast("status", root).code == 0
    deep = with_records(tmp_path / "deep", ev.Reported(AT, 0, 1, 101, 0.5, nested(MAX_NESTING - 10)))
    for command in READERS:
        (tmp_path / "out").mkdir(exist_ok=True)
        assert holdfast(*arguments(command, deep, tmp_path / "out")).code == 0, command
    assert tune.ResultGrid.from_path(deep).get_dataframe() is not None


def test_many_small_values_are_not_taken_for_nesting(tmp_path: Path) -> None:
    wide = {f"m{n}": [float(n), {"x": n}] for n in range(2000)}
    root = with_records(tmp_path / "exp", ev.Reported(AT, 0, 1, 101, 0.5, wide))
    assert tune.ResultGrid.from_path(root)[0].metrics["m7"] == [7.0, {"x": 7}]


# ------------------------------------------------------------------------------------------- other files


def test_a_frame_of_absurd_length_is_a_torn_end(tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    root = good(tmp_path / "exp").die().path
    (segment,) = (root / ".holdfast" / "journal").iterdir()
    with open(segment, "ab") as file:
        file.write(struct.pack("<HHII", 0xF7C1, 8, 0xFFFFFFFF, 1) + b"x" * 100)
    assert holdfast("status", root).code == 0
    assert holdfast("verify", root).code in (0, 1)


HEADERS = {
    "no JSON": b"\xff\xfe",
    "not UTF-8": b'{"format":1,"epoch":1,"writer":"\xff","first_seq":1,"prev":null}',
    "nested": b'{"format":1,"epoch":1,"writer":"w","first_seq":1,"prev":null,"more":' + b"[" * 100_000,
    "wrong types": b'{"format":"1","epoch":[],"writer":1,"first_seq":{},"prev":7}',
    "huge numbers": b'{"format":1,"epoch":1,"writer":"w","first_seq":1,"prev":{"segment":"00000001-000000000000.hfj",'
    b'"length":' + b"9" * 300 + b',"crc":1}}',
    "negative": b'{"format":1,"epoch":1,"writer":"w","first_seq":1,"prev":{"segment":"../../x","length":-1,"crc":-1}}',
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
@pytest.mark.parametrize("where", ["segment", "snapshot", "synced"])
def test_a_crafted_header_ends_in_a_sentence(
    tmp_path: Path, holdfast: Callable[..., Any], header: bytes, where: str
) -> None:
    writer = good(tmp_path / "exp")
    writer.snapshot()
    root = writer.die().path
    pattern = {"segment": "journal/*.hfj", "snapshot": "snapshots/*.hfs", "synced": "epochs/00000001.synced"}[where]
    files = sorted((root / ".holdfast").glob(pattern)) or [root / ".holdfast" / pattern]
    files[0].write_bytes(encode_header(header) + encode_frames(1, [b"x"]))
    for command in READERS:
        (tmp_path / "out").mkdir(exist_ok=True)
        answer = holdfast(*arguments(command, root, tmp_path / "out"))
        assert answer.code in (0, 1, 2)
        assert answer.said


@pytest.mark.parametrize(
    "part",
    [
        {"file": "../../../../victim", "length": 10, "count": 1},
        {"file": "archive-00000001.hfa", "length": 1 << 60, "count": 1},
        {"file": "archive-00000001.hfa", "length": -7, "count": 1},
        {"file": "archive-00000001.hfa", "length": 10**40, "count": 10**40},
    ],
)
def test_a_snapshot_that_names_something_else_than_its_archives_is_not_used(
    tmp_path: Path, holdfast: Callable[..., Any], part: dict[str, Any]
) -> None:
    writer = good(tmp_path / "exp")
    writer.snapshot()
    root = writer.die().path
    (file,) = (root / ".holdfast" / "snapshots").glob("*.hfs")
    seq = int(file.stem)
    header = {"format": 1, "seq": seq, "position": ["", 0, 1], "archives": [part]}
    header["position"] = {"segment": "../x", "offset": 10**30, "next_seq": seq + 1}
    file.write_bytes(encode_header(msgspec.json.encode(header)) + encode_frames(seq, [b"\x90"]))
    assert holdfast("status", root).code == 0
    assert holdfast("verify", root).code == 1


@pytest.mark.parametrize(
    "payload", [b"\xc1", b"\x91" * 100_000, pack([[], [5], [], [], {}, "", "", None, 0, 0, True, 1, 0.0, 0.0, 0.0, ""])]
)
def test_a_snapshot_of_nonsense_is_not_used(tmp_path: Path, holdfast: Callable[..., Any], payload: bytes) -> None:
    writer = good(tmp_path / "exp")
    writer.snapshot()
    root = writer.die().path
    (file,) = (root / ".holdfast" / "snapshots").glob("*.hfs")
    data, seq = file.read_bytes(), int(file.stem)
    _, _, size, _ = struct.unpack_from("<HHII", data)
    file.write_bytes(data[: 12 + size] + encode_frames(seq, [payload]))
    answer = holdfast("status", root)
    assert answer.code == 0
    assert "1 trial" in answer.out or "1 PENDING" in answer.out
    assert holdfast("verify", root).code in (0, 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("format", "1"),
        ("format", None),
        ("format", []),
        ("utc_offset_s", 10**12),
        ("created_at", 1e300),
        ("created_at", -1.0),
        ("trainable", "a\0b"),
        ("seed", "x"),
        ("retention", [1] * 99),
        ("max_identifier_len", "x"),
    ],
)
def test_a_crafted_spec_is_damage(tmp_path: Path, holdfast: Callable[..., Any], field: str, value: Any) -> None:
    root = good(tmp_path / "exp").die().path
    file = Root(root).spec_file
    raw = msgspec.json.decode(file.read_bytes())
    raw.pop("checksum")
    raw[field] = value
    raw["checksum"] = _checksum(raw)
    file.write_bytes(msgspec.json.encode(raw))
    for command in READERS:
        (tmp_path / "out").mkdir(exist_ok=True)
        answer = holdfast(*arguments(command, root, tmp_path / "out"))
        assert answer.code == 1
        assert "spec.json" in answer.said


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b'{"format":1}', b'{"a":' + b"[" * 100_000, b"\xff\xfe"])
def test_a_spec_of_nonsense_is_damage(tmp_path: Path, holdfast: Callable[..., Any], data: bytes) -> None:
    root = good(tmp_path / "exp").die().path
    Root(root).spec_file.write_bytes(data)
    answer = holdfast("status", root)
    assert answer.code == 1
    assert "spec.json" in answer.said


def test_a_spool_of_nonsense_is_named(tmp_path: Path) -> None:
    owner = SpoolOwner(1, 0, 1)
    path = Path(spool_path(tmp_path, owner))
    path.parent.mkdir(parents=True)
    path.write_bytes(encode_header(b'{"x":' + b"[" * 100_000))
    with pytest.raises(DamageError, match=path.name):
        SpoolFolder(tmp_path).read(owner, 0)


def test_a_manifest_of_nonsense_is_damage(tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    from holdfast.checkpoints.manifest import _hash

    writer = good(tmp_path / "exp")
    manifest = writer.checkpoint_dir(0, 0) / "_manifest.json"
    root = writer.die().path
    for body in (b'{"a":' + b"[" * 100_000 + b"}", b'{"format":1}', b'{"trial":"\xff"}'):
        digest = _hash(body, "xxh3-128")
        manifest.write_bytes(body[:-1] + b',"self":"' + digest.encode() + b'"}\n')
        answer = holdfast("verify", root)
        assert answer.code == 1
        assert "manifest" in answer.out


def test_a_record_left_out_still_shows(tmp_path: Path) -> None:
    """The checksum of a frame is seeded with its number: a forger has to know that, an accident cannot."""
    root = good(tmp_path / "exp").die().path
    (segment,) = (root / ".holdfast" / "journal").iterdir()
    payload = ev.encode(ev.Noted(AT, -1, "x"))
    with open(segment, "ab") as file:
        file.write(struct.pack("<HHII", 0xF7C1, 9, len(payload), crc32(payload, 9)) + payload)
    with pytest.raises(JournalDamagedError):
        tune.ResultGrid.from_path(root)
