"""What a worker has started is found by its marks, and nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.engines import process_tree
from holdfast.engines.cluster import marks
from holdfast.engines.nanny_messages import WORKER_VARIABLE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_a_node_does_not_find_the_processes_of_another_node_on_the_same_machine(tmp_path: Path) -> None:
    run = os.urandom(4).hex()
    mark = process_tree.worker_mark(marks.run_on(run, "a"), 1)
    with subprocess.Popen(["sleep", "1000"], env={**os.environ, WORKER_VARIABLE: mark}) as child:
        try:
            assert marks.marked(str(tmp_path), marks.run_on(run, "a")) == [child.pid]
            assert marks.marked(str(tmp_path), marks.run_on(run, "b")) == []
        finally:
            child.kill()
