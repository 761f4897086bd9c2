"""``holdfast verify``: reads every byte of an experiment and names everything that is damaged. Never writes."""

from __future__ import annotations

import argparse

from holdfast.cli.printing import print_json, say
from holdfast.cli.verify_report import VerifyReport, as_data, report_lines
from holdfast.cli.verify_root import verify_experiment
from holdfast.cli.verify_store import verify_stored
from holdfast.storage.address import parse
from holdfast.storage.layout import Root
from holdfast.storage.remote_root import remote_of


def run(arguments: argparse.Namespace) -> int:
    """Check an experiment and print the findings."""
    report = verify_path(arguments.path, quick=arguments.quick)
    if arguments.json:
        print_json(as_data(report))
    else:
        say(*report_lines(report, quick=arguments.quick))
    return 0 if report.whole else 1


def verify_path(path: str, *, quick: bool = False) -> VerifyReport:
    """Check the experiment at a path or a URI; raises as ``verify_experiment`` does."""
    remote = remote_of(path)
    if remote is None:
        return verify_experiment(Root(parse(path).path), quick=quick)
    return verify_stored(remote, quick=quick)
