from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoints.manifest import BadManifest, FileEntry, Manifest, decode, digest, encode
from holdfast.errors import InvalidTypeError

HASH = "0123456789abcdef" * 2


def manifest(*paths: str, **changes: object) -> Manifest:
    files = tuple(FileEntry(path, 3, HASH) for path in paths)
    facts = {"trial": "t1", "index": 2, "attempt": 1, "stage": ".sealed-1-00c0ffee", "total": 3 * len(files)}
    return Manifest(**{**facts, "files": files, **changes})


def test_a_manifest_survives_encoding() -> None:
    original = manifest("a", "b/c", meta={"epoch": 3})
    assert decode(encode(original)) == original


def test_the_file_is_readable_json_and_ends_with_its_digest() -> None:
    record = json.loads(encode(manifest("a")))
    assert record["files"] == [{"path": "a", "size": 3, "hash": HASH}]
    assert list(record)[-1] == "self"
    assert record["self"] == digest(manifest("a"))


def test_any_flipped_byte_is_noticed() -> None:
    data = encode(manifest("a", meta={"k": "v"}))
    for position in range(len(data)):
        for flip in (1, 128):
            changed = bytearray(data)
            changed[position] ^= flip
            with pytest.raises(BadManifest):
                decode(bytes(changed))


def test_any_missing_tail_is_noticed() -> None:
    data = encode(manifest("a"))
    for length in range(len(data)):
        with pytest.raises(BadManifest):
            decode(data[:length])


@pytest.mark.parametrize("path", ["../a", "a/../b", "/etc/passwd", "a//b", "", ".", "a/.", "a\0b"])
def test_a_path_that_leads_out_of_the_checkpoint_is_refused(path: str) -> None:
    with pytest.raises(BadManifest, match=r"leads out|out of order"):
        decode(encode(manifest(path)))


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (manifest("b", "a"), "out of order"),
        (manifest("a", "a"), "listed twice"),
        (manifest("a", total=4), "not the sum"),
        (manifest("a", format=2), "format is 2"),
        (manifest("a", index=-1), "negative"),
        (manifest("a", algo="sha256"), "impossible"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(bad: Manifest, why: str) -> None:
    with pytest.raises(BadManifest, match=why):
        decode(encode(bad))


def test_sha256_is_accepted() -> None:
    original = manifest(algo="sha256", files=(FileEntry("a", 3, "ab" * 32),), total=3)
    assert decode(encode(original)) == original
    assert len(digest(original)) == 64


def test_the_digest_depends_on_every_field() -> None:
    variants = [
        manifest("a"),
        manifest("b"),
        manifest("a", trial="t2"),
        manifest("a", index=3),
        manifest("a", attempt=2),
        manifest("a", stage=".sealed-1-00000000"),
        manifest("a", meta={"x": 1}),
    ]
    assert len({digest(variant) for variant in variants}) == len(variants)


def test_metadata_that_json_cannot_hold_is_named() -> None:
    with pytest.raises(InvalidTypeError, match="metadata cannot be written as JSON"):
        encode(manifest("a", meta={"x": object()}))


@settings(database=None, derandomize=True)
@given(st.sets(st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1)), st.text())
def test_any_file_names_survive(names: set[str], trial: str) -> None:
    paths = sorted(name for name in names if name not in (".", ".."))
    assert decode(encode(manifest(*paths, trial=trial.encode("utf-8", "replace").decode()))).files == tuple(
        FileEntry(path, 3, HASH) for path in paths
    )
