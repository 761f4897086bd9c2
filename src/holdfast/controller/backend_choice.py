"""Choose the backend of an experiment from its settings: a directory, a remote store, or a directory with a syncer.

Owns the choice. Must never: open or claim anything.
"""

from __future__ import annotations

from holdfast.controller.backends import ExperimentBackend, LocalBackend
from holdfast.controller.experiment import Experiment
from holdfast.storage.address import join_address


def backend_of(experiment: Experiment) -> ExperimentBackend:
    """Where the experiment lives."""
    config, root = experiment.settings.run_config, experiment.root
    assert config.sync_config is not None
    if root.remote is not None:
        from holdfast.controller.remote_backend import RemoteBackend

        return RemoteBackend(root, config.durability, config.sync_config)
    if config.sync_config.upload_dir is not None and config.sync_config.has_own_syncer:
        from holdfast.controller.synced_backend import SyncedBackend

        waits = config.checkpoint_config is not None and config.checkpoint_config.wait_for_commit
        return SyncedBackend(root, config.durability, config.sync_config, wait_for_commit=waits)
    return LocalBackend(root, config.durability)


def address_of(experiment: Experiment) -> str:
    """Where the experiment is for other machines; "" if it is nowhere but in its directory."""
    config, root = experiment.settings.run_config.sync_config, experiment.root
    if root.remote is not None:
        return root.remote.url
    if config is not None and config.upload_dir is not None and config.has_own_syncer:
        return join_address(config.upload_dir, root.name)
    return ""
