"""Runs the contracts of engines on Ray, on machine "a" of the tests of clusters, and prints what failed.

The test outside loses and starts machine "b" for it: a file asks for it, and vanishes when it is done.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.config import RayEngine
from holdfast.engines.cluster.cluster_engine import ClusterEngine
from holdfast.engines.cluster.deliveries import ExperimentFiles
from holdfast.testing import elsewhere_contract, engine_contract
from holdfast.testing.scripted import SCRIPTED_RUNNER


class Machines:
    """See ``testing.elsewhere_contract.Machines``."""

    def __init__(self, ask: Path) -> None:
        self.root = tempfile.mkdtemp(prefix="contract-")
        self.place = {"CPU": 1.0, "host_b": 1.0}
        self._ask = ask
        Path(self.root, ".holdfast").mkdir()
        self._have("up")

    def make(self) -> ClusterEngine:
        files = ExperimentFiles(
            root=self.root,
            objects=lambda: {".holdfast/trainable.pkl": b""},
            values=lambda config: [],
            shared=False,
            uid="contract",
            sync_period_s=300.0,
        )
        return ClusterEngine(RayEngine(), files, log_dir=Path(self.root, "logs"), runner=SCRIPTED_RUNNER)

    def lose(self) -> None:
        self._have("lose")

    def lose_all(self) -> None:
        self._have("lose all")

    def _have(self, what: str) -> None:
        fresh = self._ask.with_suffix(".new")
        fresh.write_text(what)
        fresh.rename(self._ask)
        while self._ask.exists():
            time.sleep(0.02)


def main(address: str, ask: str) -> None:
    import ray

    ray.init(address=address, log_to_driver=False)  # once, and not for each engine
    make = partial(Machines, Path(ask))
    failed = {}
    checks: list[tuple[Callable[..., None], Callable[[], Any]]] = [
        *((check, lambda: make().make()) for check in engine_contract.CHECKS),
        *((check, make) for check in elsewhere_contract.CHECKS),
    ]
    for check, made in checks:
        print(check.__name__, flush=True)
        try:
            check(made)
        except BaseException:
            failed[check.__name__] = traceback.format_exc()
    print("RESULT " + json.dumps({"checks": len(checks), "failed": failed}))


if __name__ == "__main__":
    main(*sys.argv[1:])
