"""What workers on a node are told."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from holdfast.engines.cluster import deliveries
from holdfast.engines.cluster.bridge_messages import ClusterNode
from holdfast.engines.cluster.deliveries import Deliveries, ExperimentFiles
from holdfast.engines.cluster.placement import Node
from holdfast.testing.engine_contract import driving, make_setup
from loopback import Loopback


def sys_path_on(
    tmp_path: Path, sys_path: tuple[str, ...], *, ip: str, sees_root: bool, shared: bool
) -> tuple[str, ...]:
    files = ExperimentFiles(str(tmp_path), dict, lambda config: [], shared, "uid", 300.0)
    setup = make_setup(str(tmp_path), sys_path=sys_path)
    node = Node(ClusterNode("b", "b", ip, {}, False), sees_root=sees_root, scratch="/scratch")
    return Deliveries(files, setup, {"10.0.0.1"}).setup_for(1, node).sys_path


def test_a_node_of_another_machine_imports_from_its_own_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "code").mkdir()
    places = (str(tmp_path / "code"), "/driver/only")
    assert sys_path_on(tmp_path, places, ip="10.0.0.2", sees_root=False, shared=False) == ()
    assert sys_path_on(tmp_path, places, ip="10.0.0.1", sees_root=True, shared=False) == places
    assert sys_path_on(tmp_path, places, ip="10.0.0.1", sees_root=True, shared=True) == places
    assert sys_path_on(tmp_path, places, ip="10.0.0.2", sees_root=True, shared=True) == places[:1]
    monkeypatch.setattr(deliveries, "_is_on_one_disk", lambda path, other: False)
    assert sys_path_on(tmp_path, places, ip="10.0.0.2", sees_root=True, shared=True) == ()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds porters in /proc")
def test_workers_elsewhere_do_not_search_the_drivers_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Loopback(tmp_path, monkeypatch)
    cluster.runner = "loopback:report_paths"
    with driving(cluster.make, sys_path=("/driver/only", *sys.path)) as driver:
        driver.launch(0)
        driver.end_of(0)
        seen = driver.reports_of(0)[0].metrics["sys_path"]
    assert "/driver/only" not in seen
    assert os.path.dirname(__file__) in seen  # of its own environment
