"""Puts pictures of the live page into the documentation: ``python docs/screenshots.py build/screenshots docs/images``.

The browser tests have made them (``make screenshots`` runs those first). Owns which of them are shown, and how large
their files may be. Must never draw anything itself.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from PIL import Image

CHOSEN = {
    "light-overview": "page-overview",
    "dark-overview": "page-overview-dark",
    "light-trials": "page-trials",
    "dark-curves": "page-curves-dark",
    "light-parallel": "page-parallel",
    "light-recovery": "page-recovery",
}
MAX_BYTES = 100_000
COLORS = (256, 128, 64, 32)


def small_png(picture: Image.Image) -> bytes:
    """The picture in as many colours as fit into `MAX_BYTES`.

    Raises:
        ValueError: Even the fewest are too many.
    """
    for colors in COLORS:
        file = io.BytesIO()
        picture.convert("RGB").quantize(colors, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
        if file.tell() <= MAX_BYTES:
            return file.getvalue()
    raise ValueError(f"more than {MAX_BYTES} bytes with {COLORS[-1]} colours")


def main() -> None:
    """Called from the command line."""
    made, target = map(Path, sys.argv[1:])
    target.mkdir(parents=True, exist_ok=True)
    for name, called in CHOSEN.items():
        with Image.open(made / f"{name}.png") as picture:
            data = small_png(picture)
        (target / f"{called}.png").write_bytes(data)
        print(f"{target / called}.png: {len(data):,} bytes")


if __name__ == "__main__":
    main()
