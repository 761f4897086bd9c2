"""What runs inside a measured process: pick the function, hand its figures back.

Must never import anything but the standard library at the top, and little of that: some workloads measure start-up.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

OUT = "HOLDFAST_BENCH_OUT"
"""Environment variable: the file for the figures."""


def main(functions: dict[str, Any]) -> None:
    """Run ``FUNCTION JSON-ARGUMENTS`` from the command line and write what it returns as JSON."""
    import json

    function: Callable[..., dict[str, Any] | None] = functions[sys.argv[1]]
    figures = function(**json.loads(sys.argv[2]))
    with open(os.environ[OUT], "w", encoding="utf-8") as file:
        json.dump(figures or {}, file)


@contextlib.contextmanager
def ray_cluster(cpus: int) -> Iterator[None]:
    """A Ray cluster that belongs to this process alone.

    Its sockets need a short path (107 bytes for all of it), so it cannot live beside the other files of a run.
    """
    import shutil
    import tempfile

    import ray

    place = tempfile.mkdtemp(prefix="hfb")
    try:
        ray.init(
            address="local",
            num_cpus=cpus,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            _temp_dir=place,
        )
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(place, ignore_errors=True)


def rate_after(stamps: list[float], skip: int) -> float:
    """Events per second from the ``skip``-th on, so that starting the workers does not count."""
    stamps = sorted(stamps)
    return (len(stamps) - skip - 1) / (stamps[-1] - stamps[skip])
