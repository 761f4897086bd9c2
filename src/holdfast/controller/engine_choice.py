"""Choose and build the engine of an experiment: this machine, or a cluster.

Owns the choice, and what a cluster's nodes are given of the experiment. Must never: start anything.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import socket
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.checkpoints.remote_checkpoints import ensure_local
from holdfast.config import Environment, LocalEngine, RayEngine, RunConfig
from holdfast.config.run import RAY_CLIENT
from holdfast.controller.remote_experiment import mirrored_in
from holdfast.engines.base import Engine
from holdfast.engines.cluster.joined import is_client_here, is_joined_here, knock
from holdfast.engines.local_engine import LocalProcessEngine
from holdfast.errors import InvalidInputError
from holdfast.space.objects import is_marker
from holdfast.storage.layout import SPEC, Root
from holdfast.sync.node_copier import node_copier
from holdfast.trainable.pickling import OWN_FILE, by_value, dump_trainable

if TYPE_CHECKING:
    from holdfast.controller.experiment import Experiment
    from holdfast.storage.store_access import StoreAccess


def check_cluster(config: RunConfig, environment: Environment) -> None:
    """Refuse a cluster that cannot be there, before anything is written.

    Raises:
        InvalidInputError: Ray is not installed, no cluster is named, it is only reached by Ray Client, nobody listens
            at the address, or the syncer has nothing to copy to.
    """
    settings = _cluster_settings(config.engine, environment)
    if settings is None:
        return
    _refuse_client(settings)
    if importlib.util.find_spec("ray") is None:
        raise InvalidInputError(
            "The Ray engine needs Ray, which is not installed here: pip install 'holdfast[ray]'. Nothing was started."
        )
    if settings.address is None and not is_joined_here():
        raise InvalidInputError(
            "The Ray engine was asked for, and no cluster was named: call ray.init(address=...) first, or give the "
            "address, RunConfig(engine=RayEngine(address='HOST:6379')), or set RAY_ADDRESS. No cluster is joined by "
            "accident. Nothing was started."
        )
    if settings.address is not None:
        _check_address(settings.address)
    if settings.host is not None:
        _check_host(settings.host)
    node_copier(config.sync_config)


def _refuse_client(settings: RayEngine) -> None:
    """Ray Client carries calls into a cluster; nothing there can connect to this process, which has the experiment."""
    address = settings.address or ""
    if not address.startswith(RAY_CLIENT) and (address or not is_client_here()):
        return
    host = address.removeprefix(RAY_CLIENT).rpartition(":")[0] or "HEAD"
    shown = f"{address!r} is" if address else "ray.init() has made this process"
    raise InvalidInputError(
        f"{shown} a Ray Client: it can send calls to the cluster, but workers there cannot connect to this process, "
        "which has the experiment. Run the script on the cluster: `ray job submit "
        f"--address=http://{host}:8265 --working-dir . -- python YOUR_SCRIPT.py`, with "
        "RunConfig(engine=RayEngine(address='auto')). On a machine that is a node of the cluster, "
        f"RayEngine(address='{host}:6379') works; RunConfig(engine='local') runs trials on this machine. "
        "Nothing was started."
    )


def _check_address(address: str) -> None:
    if address == "local":
        raise InvalidInputError(
            "RayEngine.address='local' would start a private cluster on this machine, and no cluster is started by "
            "accident. RunConfig(engine='local') runs trials on this machine without Ray; or start a cluster with "
            "`ray start --head` and give RayEngine(address='auto'). Nothing was started."
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        if address == "auto":
            return
        raise InvalidInputError(
            f"RayEngine.address={address!r} is no address of a cluster. Give 'HOST:PORT', such as '10.0.0.7:6379', or "
            "'auto' for the cluster that this machine is part of. Nothing was started."
        )
    try:
        knock(host, int(port))
    except OSError as error:
        raise InvalidInputError(
            f"There is no Ray cluster at {address!r}: {error.strerror or error}. Start one with `ray start --head`, or "
            "correct the address. Nothing was started."
        ) from error


def _check_host(host: str) -> None:
    try:
        socket.create_server((host, 0)).close()
    except OSError as error:
        raise InvalidInputError(
            f"RayEngine.host={host!r} is no address of this machine at which the driver can listen: "
            f"{error.strerror or error}. Leave it out to listen at all addresses, or correct it. Nothing was started."
        ) from error


def choose_engine(experiment: Experiment, environment: Environment) -> Engine:
    """The engine that the settings ask for; nothing of it has started."""
    settings = experiment.settings.run_config.engine
    cluster = _cluster_settings(settings, environment)
    if cluster is not None:
        return _make_cluster_engine(experiment, cluster)
    local = settings if isinstance(settings, LocalEngine) else LocalEngine()
    return LocalProcessEngine(local, log_dir=experiment.root.logs)


def bring_period_s(config: RunConfig) -> float | None:
    """How often the newest checkpoint of a running trial is brought from its node; None if each one is, at once."""
    sync, checkpoint = config.sync_config, config.checkpoint_config
    if sync is None or sync.sync_on_checkpoint or (checkpoint is not None and checkpoint.wait_for_commit):
        return None
    return float(sync.sync_period)


def _cluster_settings(settings: LocalEngine | RayEngine | str | None, environment: Environment) -> RayEngine | None:
    if isinstance(settings, LocalEngine) or settings == "local":
        return None
    if settings is None:
        return RayEngine() if is_joined_here() else None
    if isinstance(settings, str):
        settings = RayEngine() if settings == "ray" else RayEngine(address=settings)
    if settings.address is None and not is_joined_here() and environment.ray_address:
        settings = dataclasses.replace(settings, address=environment.ray_address)
    return settings


def _make_cluster_engine(experiment: Experiment, settings: RayEngine) -> Engine:
    from holdfast.engines.cluster.cluster_engine import ClusterEngine
    from holdfast.engines.cluster.deliveries import ExperimentFiles

    sync = experiment.settings.run_config.sync_config
    store = _store_access(experiment.root)
    files = ExperimentFiles(
        root=str(experiment.root.path),
        objects=partial(_common_files, experiment),
        values=partial(_value_files, experiment.root),
        shared=sync is not None and sync.syncer is None,
        uid=experiment.spec.uid,
        sync_period_s=300.0 if sync is None else float(sync.sync_period),
        store=store,
        fetch=None if store is None else partial(_fetch_start, experiment.root),
        copier=node_copier(sync),
    )
    return ClusterEngine(settings, files, log_dir=experiment.root.logs)


def _store_access(root: Root) -> StoreAccess | None:
    """What nodes may use to send checkpoints to the experiment's store, and to fetch them, by themselves.

    Not if people look for checkpoints in a directory of this machine that they have chosen, and not for a file system
    object of theirs, which may mean something else elsewhere.
    """
    remote = root.remote
    if remote is None or remote.filesystem is not None or remote.address.is_local or mirrored_in(root.path):
        return None
    from holdfast.storage.store_access import make_access

    return make_access(remote.address, os.environ, (SPEC, root.spec_file.read_bytes()))


def _fetch_start(root: Root, path: str, digest: str) -> None:
    """Have a good copy of a checkpoint of the experiment's store on this machine."""
    assert root.remote is not None
    ensure_local(root.remote.store, path, root.path / path, expect_digest=digest)


def _common_files(experiment: Experiment) -> dict[str, bytes]:
    """What every worker needs, by its place below the root.

    The driver's modules mean nothing on another machine: those that are not installed travel with the trainable.
    """
    root = experiment.root
    with by_value():
        trainable = dump_trainable(experiment.trainable)
    files = {str(root.trainable_file.relative_to(root.path)): trainable}
    if root.values_file.exists():
        files[str(root.values_file.relative_to(root.path))] = experiment.objects.dump_by_value()
    return files


def _value_files(root: Root, config: dict[Any, Any]) -> list[str]:
    """Files of values that this config refers to, by their place below the root."""
    folder = os.path.relpath(root.objects, root.path)
    return [f"{folder}/{path}.pkl" for path in _markers(config) if path.startswith(OWN_FILE)]


def _markers(node: Any) -> Iterator[str]:
    if is_marker(node):
        yield str(node["__object__"])
    elif isinstance(node, dict):
        for value in node.values():
            yield from _markers(value)
    elif isinstance(node, list):
        for value in node:
            yield from _markers(value)
