"""Nodes, what is free on them, and where the next worker goes.

Owns: that choice. Must never: ask a cluster; it is told what there is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.engines.cluster import bridge_messages as ray
from holdfast.engines.cluster.remote_worker import RemoteWorker, Request
from holdfast.engines.link import SocketLink
from holdfast.trainable.worker_messages import Run

MAX_STEPS = 10_000
"""Of a search for a way to place bundles: a fraction of a second."""

MAX_SEARCHED = 200
"""Bundles for which a way is searched; of more, only their sum is compared."""


class Starting(msgspec.Struct):
    """A worker that was asked for and has not dialled in."""

    request: Request
    node: str  # "" if the cluster chooses
    deadline: float
    tries: int


class Node(msgspec.Struct):
    """A machine of the cluster.

    ``link``: to its porter. ``lost``: why it is not used, although the cluster has it.
    """

    facts: ray.ClusterNode
    link: SocketLink | None = None
    scratch: str = ""
    user: str = ""
    sees_root: bool = False
    lost: str = ""
    asked_at: float = 0.0
    asked: bool = False  # for a porter, and the cluster has not answered yet

    @property
    def place(self) -> str:
        """Its scratch directory, as the address that commands such as rsync and scp understand."""
        return f"{self.user}@{self.facts.ip}:{self.scratch}"

    @property
    def usable(self) -> bool:
        """Whether it may be given workers: it can be reached, and stays."""
        return self.link is not None and not self.lost and self.facts.leaves_at is None


def choose_node(request: Request, nodes: Collection[Node], taken: Iterable[tuple[str, Request]]) -> str | None:
    """Where to start a worker: "" lets the cluster choose; None if no usable node has room now.

    The cluster would choose a dead node as long as it has not noticed, so while one is lost we choose ourselves.

    Args:
        request: What the worker needs.
        nodes: All that the cluster has.
        taken: Node and request of every worker that runs or was asked for.
    """
    usable = [node for node in nodes if node.usable]
    if not usable:
        return None
    if request.bundles:
        return ""
    room = _room_on(usable, taken)
    fitting = [identity for identity, free in room.items() if fits(request.total(), free)]
    if not fitting:
        return None  # the cluster would only let it wait, and its start would time out
    if len(usable) == len(nodes):
        return ""
    return max(fitting, key=lambda identity: room[identity].get("CPU", 0.0))


def in_the_way(
    request: Request, nodes: Collection[Node], taken: Iterable[tuple[str, Request]], idle: Sequence[RemoteWorker]
) -> list[RemoteWorker]:
    """The idle workers that have to leave so that a request fits on a node; none if it fits, or never will.

    Args:
        request: What is wanted; each of its bundles, if it has any, has to fit on a node.
        nodes: All that the cluster has.
        taken: Node and request of everything that stays, and of the idle workers.
        idle: Those that may have to leave, the one that is missed least first.
    """
    room = _room_on([node for node in nodes if node.usable], taken)
    ways = []
    whole = not request.bundles or request.strategy == "STRICT_PACK"
    for candidates in [[w for w in idle if w.node == where] for where in room] if whole else [list(idle)]:
        free = {where: dict(amounts) for where, amounts in room.items()}
        leaving: list[RemoteWorker] = []
        while not _has_room(request, free) and len(leaving) < len(candidates):
            worker = candidates[len(leaving)]
            _add(free, worker.node, worker.request, 1.0)
            leaving.append(worker)
        if _has_room(request, free):
            ways.append(leaving)
    return min(ways, key=len, default=[])


def _room_on(nodes: Iterable[Node], taken: Iterable[tuple[str, Request]]) -> dict[str, dict[str, float]]:
    room = {node.facts.id: dict(node.facts.resources) for node in nodes}
    for where, held in sorted(taken, key=lambda entry: not entry[0]):
        if not where:  # the cluster chooses: where there is room
            where = next((each for each, free in room.items() if fits(held.total(), free)), "")
        _add(room, where, held, -1.0)
    return room


def _add(room: dict[str, dict[str, float]], where: str, held: Request, sign: float) -> None:
    for name, amount in held.total().items() if where in room else ():
        room[where][name] = room[where].get(name, 0.0) + sign * amount


def _has_room(request: Request, room: Mapping[str, Mapping[str, float]]) -> bool:
    if not request.bundles or request.strategy == "STRICT_PACK":
        return any(fits(request.total(), free) for free in room.values())
    left = {where: dict(free) for where, free in room.items()}
    for bundle in sorted(map(dict, request.bundles), key=lambda bundle: -sum(bundle.values())):
        where = next((each for each, free in left.items() if fits(bundle, free)), None)
        if where is None:
            return False
        if request.strategy == "STRICT_SPREAD":
            del left[where]
        else:
            left[where] = {name: amount - bundle.get(name, 0.0) for name, amount in left[where].items()}
    return True


def why_never(
    request: Mapping[str, float],
    bundles: Sequence[Mapping[str, float]],
    nodes: Collection[Node],
    strategy: str = "PACK",
) -> str:
    """Why the machines of the cluster can never give this, however idle they are; "" if they can."""
    facts = [node.facts for node in nodes]
    known = {name for node in facts for name in node.resources}
    unknown = sorted(set(request) - known - {"CPU", "GPU", "memory"})
    if unknown:
        return (
            f"The trainable asks for {', '.join(map(repr, unknown))}, which no node of the cluster has. They have: "
            f"{', '.join(sorted(known))}. Start nodes with `ray start --resources`."
        )
    for wanted in bundles if len(bundles) > 1 else [request]:
        gpus = wanted.get("GPU", 0.0)
        if gpus > 1 and gpus != int(gpus):
            return f"{gpus:g} GPUs cannot be assigned: request less than one, or an integer."
        if not any(fits(wanted, node.resources) for node in facts):
            return (
                f"A trial asks for {dict(wanted)}, and no node of the cluster has as much: {_largest(wanted, facts)}. "
                "Ask for less, or add such a node first: an autoscaler is not asked for one."
            )
    if len(bundles) > 1 and not _can_hold(bundles, [node.resources for node in facts], strategy):
        how = _HOW.get(strategy, "together")
        return (
            f"A trial asks for the bundles {[dict(bundle) for bundle in bundles]} {how}, and "
            f"the {len(facts)} nodes of the cluster cannot hold them, even if nothing else runs: "
            f"{_largest(request, facts)}. Ask for less, choose another strategy, or add nodes first: an autoscaler is "
            "not asked for any."
        )
    return ""


_HOW = {"STRICT_PACK": "on one node (STRICT_PACK)", "STRICT_SPREAD": "each on a node of its own (STRICT_SPREAD)"}


def _largest(wanted: Mapping[str, float], facts: Collection[ray.ClusterNode]) -> str:
    largest = max(facts, key=lambda node: sum(node.resources.get(name, 0.0) for name in wanted), default=None)
    if largest is None:
        return "it has none"
    return f"the largest, {largest.host}, has { ({name: largest.resources.get(name, 0.0) for name in wanted}) }"


def _can_hold(bundles: Sequence[Mapping[str, float]], rooms: Sequence[Mapping[str, float]], strategy: str) -> bool:
    """Whether bundles fit on idle machines. True also if that takes too long to find out."""
    if strategy == "STRICT_PACK":
        return any(fits(sum_of(bundles), room) for room in rooms)
    if not fits(sum_of(bundles), sum_of(rooms)):
        return False
    if len(bundles) > MAX_SEARCHED:
        return True
    search = _Search([dict(room) for room in rooms], alone=strategy == "STRICT_SPREAD")
    return search.place(sorted(map(dict, bundles), key=lambda bundle: -sum(bundle.values()))) or search.left <= 0


class _Search:
    """Tries all ways to put bundles on machines, up to ``MAX_STEPS``."""

    def __init__(self, rooms: list[dict[str, float]], *, alone: bool) -> None:
        self._rooms = rooms
        self._alone = alone
        self._failed: set[tuple[Any, ...]] = set()
        self.left = MAX_STEPS

    def place(self, bundles: Sequence[Mapping[str, float]]) -> bool:
        """Whether the bundles fit, the largest first."""
        if not bundles:
            return True
        state = (len(bundles), *sorted(tuple(sorted(room.items())) for room in self._rooms))
        if state in self._failed:
            return False
        self._failed.add(state)
        tried: list[dict[str, float]] = []
        for i, room in enumerate(self._rooms):
            if room in tried or not fits(bundles[0], room):
                continue  # machines that are alike give the same answer
            self.left -= 1
            if self.left <= 0:
                return False
            tried.append(room)
            after = {name: amount - bundles[0].get(name, 0.0) for name, amount in room.items()}
            self._rooms[i] = {} if self._alone else after
            if self.place(bundles[1:]):
                return True
            self._rooms[i] = room
        return False


def fits(wanted: Mapping[str, float], free: Mapping[str, float]) -> bool:
    return all(amount <= free.get(name, 0.0) + 1e-9 for name, amount in wanted.items())


def sum_of(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for name, amount in part.items():
            total[name] = total.get(name, 0.0) + amount
    return total


def sizes_of(machines: Iterable[Mapping[str, float]]) -> tuple[dict[str, float], ...]:
    """How large machines are, each size once."""
    return tuple({tuple(sorted(size.items())): dict(size) for size in machines}.values())


def request_of(run: Run) -> Request:
    """What an attempt occupies."""
    bundles = tuple(tuple(sorted(bundle.items())) for bundle in run.bundles)
    return Request(tuple(sorted(run.resources.items())), bundles if len(bundles) > 1 else (), run.strategy)
