"""The digest by which stored content is known: xxh3-128 in hex. Formats name it, so it must never change."""

from __future__ import annotations

import xxhash


def digest_of(data: bytes) -> str:
    """Return the digest of some bytes."""
    return xxhash.xxh3_128_hexdigest(data)
