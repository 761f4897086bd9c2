"""``python -m benchmarks``: run workloads, print their tables, keep the figures in ``benchmarks/results``."""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
import signal
import sys
import tempfile
import traceback
from pathlib import Path

from benchmarks.harness import OURS, RESULTS, Bench, markdown, show

WORKLOADS = (
    "import_time",
    "first_trial",
    "noop_trials",
    "reports",
    "paced_reports",
    "scaling",
    "reopen",
    "trial_history",
    "following",
    "live_page",
    "painting",
    "worker_kill",
    "driver_kill",
    "checkpoint",
    "store_upload",
    "store_checkpoints",
    "sleepers",
    "robustness",
    "cluster",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"workloads; all of them if none: {', '.join(WORKLOADS)}"
    )
    parser.add_argument("--quick", action="store_true", help="smaller numbers and fewer repeats")
    parser.add_argument("--no-peers", action="store_true", help="holdfast alone; installs nothing")
    parser.add_argument("--markdown", action="store_true", help="print the kept figures as a table; measure nothing")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in WORKLOADS]
    if unknown:
        parser.error(f"there is no workload {unknown[0]!r}: choose from {', '.join(WORKLOADS)}")
    names = [name for name in WORKLOADS if name in options.names or not options.names]
    if options.markdown:
        kept = [RESULTS / f"{name}.json" for name in names]
        print(markdown([json.loads(path.read_text()) for path in kept if path.is_file()]))
        return 0
    RESULTS.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that measured processes and files are cleared away
    scratch = Path(tempfile.mkdtemp(prefix="scratch-", dir=RESULTS))
    try:
        benches = [Bench(name, scratch, quick=options.quick, with_peers=not options.no_peers) for name in names]
        complete = [_measure(bench) for bench in benches]
        return 0 if all(complete) else 1
    finally:
        print("removing what was written; that may take minutes", file=sys.stderr, flush=True)
        shutil.rmtree(scratch, ignore_errors=True)


def _measure(bench: Bench) -> bool:
    """Run one workload; False if holdfast itself could not be measured."""
    print(f"measuring {bench.name} ...", file=sys.stderr, flush=True)
    bench.begin()
    try:
        importlib.import_module(f"benchmarks.{bench.name}").run(bench)
    except Exception:
        traceback.print_exc()
        bench.troubles[OURS] = traceback.format_exc()
    print(show(bench), flush=True)
    bench.save()
    return not any(label.startswith(OURS) for label in bench.troubles)


if __name__ == "__main__":
    sys.exit(main())
