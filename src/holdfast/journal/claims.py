"""Claims: what the file of an epoch says about the driver that made it, and whether the file is still what it was.

Owns the content of epoch files and its checksum. Must never judge whether a driver is alive: see `epoch`.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import xxhash

_MAX_PID = 2**31
_MAX_TIME = 1e11
_FIRST_FIELDS = frozenset(("epoch", "writer", "host", "pid", "machine", "process_start", "claimed_at"))


class Claim(msgspec.Struct, frozen=True):
    """Who wrote, or writes, an epoch.

    Attributes:
        epoch: Its number, from 1.
        writer: Unique name of the claim.
        host: Host name, for people.
        pid: Process id on that host.
        machine: Boot and process namespace in which ``pid`` means something.
        process_start: When the process began, in ticks since boot; tells it from a later one of the same pid.
        claimed_at: Seconds since 1970.
        lock: The directory whose lock its process holds while it lives, see `liveness`; "" if there is none.
        checksum: Of all other fields; "" in claims of earlier versions.
    """

    epoch: int
    writer: str
    host: str
    pid: int
    machine: str
    process_start: int
    claimed_at: float
    lock: str = ""
    checksum: str = ""


msgspec.json.Decoder(Claim)  # resolves its types now, not in two threads at once, see CONTRIBUTING.md


def unknown_claim(epoch: int) -> Claim:
    """A claim of which only the number is known."""
    return Claim(epoch, writer="", host="unknown", pid=0, machine="", process_start=0, claimed_at=0.0)


def decode_claim(data: bytes, epoch: int) -> tuple[Claim, str]:
    """The claim in an epoch file, and what is wrong with it; if something is, a claim of which only the number counts.

    A file system without links can show a claim that is half written.
    """
    nobody = unknown_claim(epoch)
    if not data.strip():
        return nobody, "it is empty"
    try:
        raw = msgspec.json.decode(data, type=dict[str, Any])
        claim = msgspec.convert(raw, Claim)
    except (ValueError, OverflowError, RecursionError) as error:  # msgspec's errors, and text that is not UTF-8
        return nobody, f"it cannot be read ({error})"
    if raw.pop("checksum", "") != _checksum(raw) and (claim.checksum or not raw.keys() <= _FIRST_FIELDS):
        return nobody, "its content does not match its checksum"
    if claim.epoch != epoch:
        return nobody, f"it is the claim of epoch {claim.epoch}"
    is_sane = 0 <= claim.pid < _MAX_PID and 0 <= claim.claimed_at < _MAX_TIME and math.isfinite(claim.claimed_at)
    return (claim, "") if is_sane else (nobody, "it says what cannot be")


def with_checksum(claim: Claim) -> Claim:
    facts = msgspec.to_builtins(claim)
    del facts["checksum"]
    return msgspec.structs.replace(claim, checksum=_checksum(facts))


def encode_claim(claim: Claim) -> bytes:
    """The content of the file of a claim, with the checksum that belongs to it."""
    return msgspec.json.encode(with_checksum(claim)) + b"\n"


def _checksum(facts: dict[str, Any]) -> str:
    """Of all facts, those of a later version included."""
    return xxhash.xxh3_64_hexdigest(msgspec.json.encode(facts, order="sorted"))
