"""Where workers go."""

from __future__ import annotations

import pytest

from holdfast.engines.cluster.bridge_messages import ClusterNode
from holdfast.engines.cluster.handshake import greeting_of
from holdfast.engines.cluster.placement import Node, choose_node, in_the_way, sizes_of, sum_of, why_never
from holdfast.engines.cluster.remote_worker import RemoteWorker, Request

ONE = Request((("CPU", 1.0),), (), "PACK")


class Link:
    """Stands for the connection to a porter."""


def node(name: str, cpus: float, *, lost: str = "", **others: float) -> Node:
    facts = ClusterNode(name, name, "", {"CPU": cpus, **others})
    return Node(facts, None if lost else Link(), lost=lost)  # type: ignore[arg-type]


def test_the_cluster_chooses_while_all_its_nodes_can_be_used() -> None:
    assert choose_node(ONE, [node("a", 2), node("b", 2)], []) == ""


def test_a_worker_is_asked_for_only_where_it_fits() -> None:
    nodes, two = [node("a", 2), node("b", 2)], Request((("CPU", 2.0),), (), "PACK")
    assert choose_node(two, nodes, [("a", ONE)]) == ""
    assert choose_node(two, nodes, [("a", ONE), ("b", ONE)]) is None
    assert choose_node(two, nodes, [("", ONE), ("a", two)]) is None
    assert choose_node(ONE, nodes, [("", ONE), ("a", two)]) == ""


def test_while_one_is_lost_the_freest_of_the_others_is_chosen() -> None:
    nodes = [node("a", 2), node("b", 4), node("c", 64, lost="cut")]
    assert choose_node(ONE, nodes, []) == "b"
    assert choose_node(ONE, nodes, [("b", ONE), ("b", ONE), ("b", ONE)]) == "a"
    assert choose_node(ONE, nodes, [("b", ONE)] * 4 + [("a", ONE)] * 2) is None


def test_there_is_no_place_without_nodes() -> None:
    assert choose_node(ONE, [node("a", 2, lost="cut")], []) is None


def test_what_no_node_can_give_is_refused_with_the_largest() -> None:
    nodes = [node("a", 2), node("b", 8, GPU=1)]
    assert why_never({"CPU": 8.0}, [], nodes) == ""
    assert "the largest, b, has {'CPU': 8}" in why_never({"CPU": 10.0}, [], nodes)
    assert "'licence', which no node" in why_never({"CPU": 1.0, "licence": 1.0}, [], nodes)


def test_gpus_are_whole_or_less_than_one() -> None:
    nodes = [node("a", 2, GPU=4)]
    assert why_never({"CPU": 1.0, "GPU": 0.5}, [], nodes) == why_never({"GPU": 2.0}, [], nodes) == ""
    assert "1.5 GPUs cannot be assigned: request less than one, or an integer" in why_never({"GPU": 1.5}, [], nodes)
    assert "1.5 GPUs" in why_never({"GPU": 2.5}, [{"GPU": 1.0}, {"GPU": 1.5}], nodes)


@pytest.mark.parametrize(("bundles", "refused"), [([{"CPU": 2}, {"CPU": 8}], False), ([{"CPU": 2}, {"CPU": 9}], True)])
def test_each_bundle_needs_one_node(bundles: list[dict[str, float]], refused: bool) -> None:
    assert bool(why_never({"CPU": 10.0}, bundles, [node("a", 2), node("b", 8)])) == refused


@pytest.mark.parametrize(
    ("bundles", "strategy", "refused"),
    [
        ([{"CPU": 2}, {"CPU": 2}], "STRICT_PACK", True),
        ([{"CPU": 1}, {"CPU": 1}], "STRICT_PACK", False),
        ([{"CPU": 1}] * 4, "STRICT_SPREAD", True),
        ([{"CPU": 1}] * 3, "STRICT_SPREAD", False),
        ([{"CPU": 2}, {"CPU": 1, "GPU": 1}, {"CPU": 1}], "STRICT_SPREAD", False),
        ([{"CPU": 1, "GPU": 1}, {"CPU": 1, "GPU": 1}], "STRICT_SPREAD", True),
        ([{"CPU": 2}] * 4, "PACK", True),
        ([{"CPU": 2}] * 3, "PACK", False),
        ([{"CPU": 1.5}] * 4, "SPREAD", True),  # the nodes have as much in all
        ([{"CPU": 1}] * 6, "SPREAD", False),
        ([{"GPU": 1}, {"CPU": 2}, {"CPU": 2}, {"CPU": 2}], "PACK", False),
        ([{"CPU": 0.3}] * 20, "PACK", True),
        ([{"CPU": 0.3}] * 18, "PACK", False),
    ],
)
def test_bundles_must_fit_together(bundles: list[dict[str, float]], strategy: str, refused: bool) -> None:
    nodes = [node("a", 2), node("b", 2), node("c", 2, GPU=2)]
    why = why_never(sum_of(bundles), bundles, nodes, strategy)
    assert bool(why) == refused
    if refused:
        assert "the 3 nodes of the cluster cannot hold them" in why
        assert "the largest, " in why
        assert "an autoscaler is not asked" in why


def test_a_search_that_takes_too_long_refuses_nothing() -> None:
    nodes = [node(f"n{k}", 10 + k / 1000) for k in range(40)]
    bundles = [{"CPU": 4.0 + k / 1000} for k in range(81)]  # two fit on each
    assert why_never(sum_of(bundles), bundles, nodes) == ""


def worker(number: int, where: str, **resources: float) -> RemoteWorker:
    greeting = greeting_of("worker", number, where, "")
    return RemoteWorker(number, Link(), "", greeting, Request(tuple(resources.items()), (), "PACK"))  # type: ignore[arg-type]


def numbers(request: Request, nodes: list[Node], idle: list[RemoteWorker], running: list[RemoteWorker]) -> list[int]:
    taken = [(each.node, each.request) for each in [*idle, *running]]
    return [each.number for each in in_the_way(request, nodes, taken, idle)]


def test_idle_workers_leave_that_fill_every_node_a_little() -> None:
    nodes = [node("a", 2), node("b", 2), node("c", 2)]
    idle = [worker(1, "a", CPU=1), worker(2, "b", CPU=1), worker(3, "b", CPU=1), worker(4, "c", CPU=1)]
    assert numbers(Request((("CPU", 2.0),), (), "PACK"), nodes, idle, []) == [1]
    assert numbers(Request((("CPU", 2.0),), (), "PACK"), nodes, idle, [worker(5, "a", CPU=1)]) == [4]
    assert numbers(ONE, nodes, idle, []) == []


def test_nobody_leaves_for_what_never_fits() -> None:
    nodes = [node("a", 2), node("b", 2, lost="cut")]
    assert numbers(Request((("CPU", 2.0),), (), "PACK"), nodes, [worker(1, "a", CPU=1)], [worker(2, "a", CPU=1)]) == []
    assert numbers(Request((("CPU", 2.0),), (), "PACK"), nodes, [worker(1, "b", CPU=1)], [worker(2, "a", CPU=1)]) == []


@pytest.mark.parametrize(
    ("count", "strategy", "expected"),
    [
        (2, "PACK", []),
        (3, "SPREAD", [1]),
        (2, "STRICT_SPREAD", [1]),
        (3, "STRICT_SPREAD", [1, 2]),
        (2, "STRICT_PACK", []),
    ]
    + [(3, "STRICT_PACK", [3])],
)
def test_idle_workers_leave_for_bundles(count: int, strategy: str, expected: list[int]) -> None:
    nodes = [node("a", 2), node("b", 1), node("c", 3)]
    idle = [worker(1, "a", CPU=2), worker(2, "b", CPU=1), worker(3, "c", CPU=1)]
    request = Request((("CPU", float(count)),), ((("CPU", 1.0),),) * count, strategy)
    assert numbers(request, nodes, idle, []) == expected


def test_each_size_of_machines_is_told_once() -> None:
    assert sizes_of([{"CPU": 2.0}, {"CPU": 4.0, "GPU": 1.0}, {"GPU": 1.0, "CPU": 4.0}, {"CPU": 2.0}]) == (
        {"CPU": 2.0},
        {"GPU": 1.0, "CPU": 4.0},
    )
