"""``holdfast report``: the page of an experiment as one file, which appears whole or not at all."""

from __future__ import annotations

import argparse
from pathlib import Path

from holdfast.cli.printing import complain, say, size_text
from holdfast.errors import InvalidInputError
from holdfast.results.output_file import written_whole
from holdfast.ui.report import make_report
from holdfast.ui.source import Source


def run(arguments: argparse.Namespace) -> int:
    """Write the file; 1 if the journal is damaged, of which the page shows what is left."""
    out = Path(arguments.out).expanduser()
    if out.suffix.lower() not in (".html", ".htm"):
        raise InvalidInputError(f"{str(out)!r}: a report is an HTML file; use a name that ends in .html.")
    source = Source.open(arguments.path)
    report = make_report(source)
    with written_whole(out) as file:
        file.write_bytes(report.html)
    said = f"{source.history.info.name}: report written to {out} ({size_text(len(report.html))})."
    say(f"{said} It is thinned: {report.note}." if report.note else said)
    if source.history.known_damage is not None:
        complain(str(source.history.known_damage))
        return 1
    return 0
