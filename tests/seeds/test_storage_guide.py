"""The blocks of "How to Configure Storage Options for a Distributed Tune Experiment", on one machine."""

from __future__ import annotations

import shutil
from pathlib import Path

from guide_scripts import Machine, checkpoints_in, steps_of

import holdfast

ALL = list(range(1, 9))

# Left out by the guide: `trainable`.
DEFAULT = """
from your_module import trainable
from holdfast.compat import tune
from holdfast.compat.air.config import RunConfig

tuner = tune.Tuner(
    trainable,
    run_config=RunConfig(
        name="experiment_name",
        local_dir="~/ray_results",
        sync_config=tune.SyncConfig(
            syncer="auto",
            # Sync approximately every minute rather than on every checkpoint
            sync_on_checkpoint=False,
            sync_period=60,
        )
    )
)
tuner.fit()
"""


def test_without_external_storage_all_results_are_below_the_local_directory(machine: Machine) -> None:
    machine.run(DEFAULT)
    assert steps_of(machine.home / "ray_results" / "experiment_name") == [ALL]
    assert len(checkpoints_in(machine.home / "ray_results" / "experiment_name")) == 8


# Left out by the guide: `trainable`.
NETWORK = """
from your_module import trainable
from holdfast.compat import air, tune

tuner = tune.Tuner(
    trainable,
    run_config=air.RunConfig(
        name="experiment_name",
        local_dir="<shared>/",
        sync_config=tune.SyncConfig(
            syncer=None  # Disable syncing
        )
    )
)
tuner.fit()
"""


def test_a_network_filesystem_is_the_place_of_all_results(machine: Machine, tmp_path: Path) -> None:
    machine.run(NETWORK, shared=str(tmp_path / "shared"))
    shutil.rmtree(machine.home)
    assert steps_of(tmp_path / "shared" / "experiment_name") == [ALL]


# Left out by the guide: `trainable`.
CLOUD = """
from your_module import trainable
from holdfast.compat import tune
from holdfast.compat.air.config import RunConfig

tuner = tune.Tuner(
    trainable,
    run_config=RunConfig(
        name="experiment_name",
        sync_config=tune.SyncConfig(
            upload_dir="<bucket>/sub-path/",
            syncer="auto",
        )
    )
)
tuner.fit()
"""


def test_cloud_storage_with_the_automatic_syncer_has_all_results(machine: Machine, bucket: str) -> None:
    machine.run(CLOUD, bucket=bucket)
    shutil.rmtree(machine.home)
    place = f"{bucket}/sub-path/experiment_name"
    assert steps_of(place) == [ALL]
    (result,) = holdfast.ResultGrid.from_path(place)
    assert result.checkpoint.to_dict() == {"step": 8}  # fetched from there


# As the guide has it.
EXAMPLE_IN_CLOUD = """
from holdfast.compat import ray
from holdfast.compat import air, tune
from your_module import my_trainable

# Look for the existing cluster and connect to it
ray.init()

sync_config = tune.SyncConfig(
    upload_dir="<bucket>/path/",  # requires AWS credentials
)

tuner = tune.Tuner(
    my_trainable,
    run_config=air.RunConfig(
        # Name of your experiment
        name="my-tune-exp",
        local_dir="<local>",
        # See above! we will sync our checkpoints to S3 directory
        sync_config=sync_config,
        checkpoint_config=air.CheckpointConfig(
            checkpoint_score_attribute="max-auc",
            checkpoint_score_order="max",
            num_to_keep=5,
        ),
    ),
)
# This starts the run!
results = tuner.fit()
"""

# As the guide has it.
RESTORE = """
from holdfast.compat import tune
tuner = tune.Tuner.restore(
    "<place>",
    resume_errored=True
)
tuner.fit()
"""


def test_the_cloud_example_is_resumed_from_the_bucket_by_a_machine_that_has_nothing_else(
    machine: Machine, bucket: str, tmp_path: Path
) -> None:
    (machine.home / "fails").touch()
    machine.run(EXAMPLE_IN_CLOUD, bucket=bucket, local=str(tmp_path / "mypath"))
    (machine.home / "fails").unlink()
    shutil.rmtree(tmp_path / "mypath")
    place = f"{bucket}/path/my-tune-exp"
    machine.run(RESTORE, place=place)
    assert machine.starts() == [0, 3]
    assert steps_of(place) == [ALL]
    (result,) = holdfast.ResultGrid.from_path(place)
    assert sorted(metrics["step"] for _, metrics in result.best_checkpoints) == [2, 3, 4, 5, 6]
    assert result.checkpoint.path.startswith(f"{place}/my_trainable_")


def test_the_local_directory_has_the_checkpoints_of_this_machines_trials(
    machine: Machine, bucket: str, tmp_path: Path
) -> None:
    """In ``local_dir/<experiment>/<trial>/checkpoint_<step>``; another experiment of that name does not mix in."""
    machine.run(EXAMPLE_IN_CLOUD, bucket=bucket, local=str(tmp_path / "mypath"))
    (result,) = holdfast.ResultGrid.from_path(f"{bucket}/path/my-tune-exp")
    (trial,) = (path for path in (tmp_path / "mypath" / "my-tune-exp").iterdir() if not path.name.startswith("."))
    assert trial.name == Path(result.path).name
    assert (trial / Path(result.checkpoint.path).name).is_dir()
    elsewhere = EXAMPLE_IN_CLOUD.replace("<bucket>/path/", "<bucket>/another-path/")
    refused = machine.run(elsewhere, fails=True, bucket=bucket, local=str(tmp_path / "mypath"))
    for place in ("path/my-tune-exp", "another-path/my-tune-exp"):
        assert f"{bucket}/{place}" in refused.err


# Left out by the guide: `air`, and the last line.
EXAMPLE_BY_DEFAULT = """
from holdfast.compat import air
from holdfast.compat import ray
from holdfast.compat import tune
from your_module import my_trainable

# Look for the existing cluster and connect to it
ray.init()

# This starts the run!
tuner = tune.Tuner(
    my_trainable,
    run_config=air.RunConfig(
        name="my-tune-exp",
        local_dir="<local>",
        # Use the default syncing behavior
        sync_config=tune.SyncConfig(),
        checkpoint_config=air.CheckpointConfig(
            checkpoint_score_attribute="max-auc",
            checkpoint_score_order="max",
            num_to_keep=5,
        ),
    )
)
tuner.fit()
"""


def test_the_default_example_is_resumed_from_its_directory(machine: Machine, tmp_path: Path) -> None:
    (machine.home / "fails").touch()
    machine.run(EXAMPLE_BY_DEFAULT, local=str(tmp_path / "mypath"))
    (machine.home / "fails").unlink()
    place = tmp_path / "mypath" / "my-tune-exp"
    machine.run(RESTORE, place=str(place))
    assert machine.starts() == [0, 3]
    assert steps_of(place) == [ALL]
    assert len(checkpoints_in(place)) == 6  # the best five, and the latest


def test_trial_results_are_csv_and_json_in_the_directories_of_the_trials(machine: Machine) -> None:
    machine.run(DEFAULT)
    (trial,) = (machine.home / "ray_results" / "experiment_name").glob("my_trainable_*")
    assert len((trial / "result.json").read_text().splitlines()) == 8
    assert len((trial / "progress.csv").read_text().splitlines()) == 9
