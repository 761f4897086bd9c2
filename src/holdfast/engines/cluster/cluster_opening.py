"""Opening the engine for clusters: what nodes are told, where they reach the driver, and the wait until they have.

Owns: the errors of an experiment that cannot begin on this cluster. Must never: leave a reason out.
"""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from holdfast.engines.cluster import handshake
from holdfast.engines.cluster import node_messages as say
from holdfast.engines.cluster.cluster_pool import ClusterPool
from holdfast.engines.cluster.courier import Copier
from holdfast.engines.cluster.deliveries import ExperimentFiles
from holdfast.engines.cluster.placement import Node
from holdfast.engines.cluster.porter import boot_id
from holdfast.errors import StorageError, TuneError

PORTERS_S = 60.0
"""How long nodes may take to be ready when the engine opens."""

PROBE_S = 60.0
"""How long a command or function of the user's may take to copy one small file from a node."""

OTHERS_S = 10.0
"""How long the others are waited for once one is ready: a cluster may have nodes that it does not yet know are dead."""


class ClusterSettings(Protocol):
    """What the engine reads of ``holdfast.config.RayEngine``."""

    @property
    def address(self) -> str | None: ...
    @property
    def host(self) -> str | None: ...
    @property
    def port(self) -> int: ...
    @property
    def scratch_dir(self) -> str | None: ...
    @property
    def spares(self) -> int: ...


def open_door(host: str | None, port: int, ip: str) -> tuple[socket.socket, list[tuple[str, int]]]:
    """Listen for workers and porters.

    Args:
        host: The address to listen at; None for all that this machine has.
        port: 0 for a free one.
        ip: This machine, as the cluster sees it.

    Returns:
        The socket, and the addresses at which nodes may reach it, the likeliest first.
    """
    try:
        door = socket.create_server((host or "", port), backlog=1024)
    except OSError as error:
        raise TuneError(
            f"The driver cannot listen at {host or '*'}:{port}: {error.strerror}. Choose another with "
            "RayEngine(host=..., port=...); port=0 takes any free one. Nothing was run."
        ) from error
    number = door.getsockname()[1]
    hosts = [host] if host else list(dict.fromkeys([ip, *handshake.own_addresses()]))
    return door, [(each, number) for each in hosts]


def porter_plan(
    files: ExperimentFiles,
    settings: ClusterSettings,
    addresses: list[tuple[str, int]],
    secret: str,
    run: str,
    marker: tuple[str, str],
) -> say.PorterPlan:
    """How porters start, but for their node.

    Args:
        files: Of the experiment.
        settings: Of the user.
        addresses: Of the driver.
        secret: By which both ends know each other.
        run: Names this engine.
        marker: A file below the experiment's directory, and what is in it.
    """
    return say.PorterPlan(
        addresses=addresses,
        secret=secret,
        node="",
        ip="",
        run=run,
        experiment=files.uid,
        scratch=settings.scratch_dir or "",
        root=files.root,
        marker=marker[0],
        marked=marker[1],
        boot=boot_id(),
        shared=files.shared,
        probe=marker[1] if files.copier is not None else "",
        store=files.store,
    )


def wait_for_nodes(pool: ClusterPool, files: ExperimentFiles, addresses: list[tuple[str, int]]) -> None:
    """Wait until each node has answered.

    Raises:
        TuneError: None can be used, or one does not see the directory that all have to share.
    """
    deadline, one_is_ready, tried_again = time.monotonic() + PORTERS_S, False, False
    while time.monotonic() < deadline:
        if all(node.link is not None or node.facts.id in pool.failures for node in pool.nodes.values()):
            if one_is_ready or tried_again or pool.blind:
                break
            tried_again = True  # a start may fail by chance, and a cluster may have no other node
            pool.try_again()
        pool.turn(0.2)
        if not one_is_ready and any(node.usable for node in pool.nodes.values()):
            one_is_ready, deadline = True, min(deadline, time.monotonic() + OTHERS_S)
    ready = [node for node in pool.nodes.values() if node.usable]
    blind = [node.facts for node in pool.nodes.values() if node.facts.id in pool.blind]
    if blind:
        hosts = ", ".join(f"{node.host} ({node.ip})" for node in blind)
        raise TuneError(
            f"Unable to set up cluster storage: {hosts} cannot see {files.root}, and SyncConfig(syncer=None) says that "
            "all nodes share it. Mount the same file system there, or leave syncer at its default: then checkpoints "
            "are brought to this machine. Nothing was run."
        )
    if not ready:
        why = "; ".join(sorted(set(pool.failures.values()))) or "its nodes did not answer"
        raise TuneError(
            f"No node of the Ray cluster can run trials: {why}. The driver listens at "
            f"{', '.join(f'{host}:{port}' for host, port in addresses)}, and nodes must be able to reach it there: "
            "RayEngine(host=..., port=...) chooses the address. From a machine that the cluster cannot reach, run the "
            "script on the cluster: ray job submit. Nothing was run."
        )


def try_copier(files: ExperimentFiles, nodes: Iterable[Node], content: str) -> None:
    """Have the user's copier, if there is one, copy a small file from each node that does not see the root.

    Raises:
        TuneError: It cannot, or what has arrived is something else; says of which node, and why.
    """
    asked = sorted((node for node in nodes if node.usable and not node.sees_root), key=lambda node: node.facts.host)
    if files.copier is None or not asked:
        return
    with ThreadPoolExecutor(min(8, len(asked)), "holdfast-probe") as threads:
        reasons = threads.map(lambda node: _why_no_copy(files.copier, node, content), asked)
        failed = [(node, why) for node, why in zip(asked, reasons, strict=True) if why]
    if failed:
        node, why = failed[0]
        hosts = ", ".join(f"{node.facts.host} ({node.facts.ip})" for node, _ in failed)
        raise TuneError(
            f"SyncConfig(syncer=...) cannot copy checkpoints from {hosts} to this machine. It was tried with "
            f"{node.place}/{say.PROBE}/: {why}. The driver's machine must be able to log in there without a password, "
            "and what copies must copy directories in directories (rsync -a, scp -r). Or leave syncer out: then "
            "checkpoints come over connections of holdfast's own. Nothing was run."
        )


def _why_no_copy(copier: Copier | None, node: Node, content: str) -> str:
    """Why the copier cannot copy from a node; "" if it can."""
    assert copier is not None
    with tempfile.TemporaryDirectory(prefix="holdfast-probe-") as top:
        try:
            copier(f"{node.place}/{say.PROBE}/", f"{top}/copy", lambda: False, PROBE_S)
            found = Path(top, "copy", say.PROBE_FILE).read_text(errors="replace")
        except FileNotFoundError:
            return f"it said that it had succeeded, and {say.PROBE_FILE}, which is in that directory, has not arrived"
        except (StorageError, OSError) as error:
            return str(error)
    return "" if found == content else "what has arrived is not what was there"
