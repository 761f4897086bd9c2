"""Settings: defaults, order, validation, messages, older spellings."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import math
import os
import pickle
from typing import Any

import pytest

from holdfast.config import (
    CheckpointConfig,
    FailureConfig,
    LocalEngine,
    ResumeConfig,
    RunConfig,
    SyncConfig,
    TuneConfig,
)
from holdfast.errors import InvalidInputError, TuneError

ALL = [TuneConfig, RunConfig, FailureConfig, CheckpointConfig, SyncConfig, ResumeConfig, LocalEngine]


@pytest.fixture(autouse=True)
def no_storage_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOLDFAST_STORAGE", "RAY_STORAGE", "TUNE_RESULT_DIR", "HOLDFAST_RESULT_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOLDFAST_LOCAL_CACHE_DIR", "RAY_AIR_LOCAL_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)


# --- what all settings share


@pytest.mark.parametrize(
    ("kind", "order"),
    [
        (
            TuneConfig,
            "mode metric search_alg scheduler num_samples max_concurrent_trials time_budget_s reuse_actors "
            "trial_name_creator trial_dirname_creator chdir_to_trial_dir",
        ),
        (
            RunConfig,
            "name storage_path storage_filesystem failure_config checkpoint_config sync_config verbose stop "
            "callbacks progress_reporter log_to_file local_dir",
        ),
        (FailureConfig, "max_failures fail_fast"),
        (
            CheckpointConfig,
            "num_to_keep checkpoint_score_attribute checkpoint_score_order checkpoint_frequency checkpoint_at_end "
            "keep_checkpoints_num checkpoint_score_attr",
        ),
        (
            SyncConfig,
            "upload_dir syncer sync_on_checkpoint sync_period sync_timeout sync_artifacts "
            "sync_artifacts_on_checkpoint node_sync_period cloud_sync_period sync_to_cloud sync_to_driver",
        ),
        (ResumeConfig, "finished unfinished errored"),
        (LocalEngine, ""),
    ],
)
def test_positional_order_is_that_of_the_contract_and_new_fields_are_keywords(kind: Any, order: str) -> None:
    positional = [field.name for field in dataclasses.fields(kind) if not field.kw_only]
    assert positional == order.split()


@pytest.mark.parametrize("kind", ALL)
def test_defaults_print_as_nothing_and_compare_equal(kind: Any) -> None:
    assert repr(kind()) == f"{kind.__name__}()"
    assert kind() == kind()


def test_repr_shows_what_differs_from_the_default() -> None:
    config = RunConfig(name="x", failure_config=FailureConfig(max_failures=2), if_exists="new")
    assert repr(config) == "RunConfig(name='x', failure_config=FailureConfig(max_failures=2), if_exists='new')"


def test_repr_survives_values_that_refuse_comparison() -> None:
    class Touchy:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("ambiguous")

        def __repr__(self) -> str:
            return "Touchy()"

    assert repr(TuneConfig(search_alg=Touchy())) == "TuneConfig(search_alg=Touchy())"


@pytest.mark.parametrize("kind", ALL)
def test_copies_and_pickles_are_equal_and_stay_validated(kind: Any) -> None:
    config = kind()
    for again in (copy.copy(config), copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert again == config
        with pytest.raises(AttributeError):
            again.no_such_field = 1
    assert dataclasses.replace(config) == config


def test_assignment_is_validated_and_a_refused_one_changes_nothing() -> None:
    config = FailureConfig(max_failures=2)
    config.max_failures = 3
    assert config.max_failures == 3
    with pytest.raises(ValueError, match="max_failures must be 0"):
        config.fail_fast = True
    assert config == FailureConfig(max_failures=3)


def test_assignment_to_an_unknown_name_suggests_the_right_one() -> None:
    with pytest.raises(AttributeError, match=r"no field 'storage_pth'\. Did you mean 'storage_path'"):
        RunConfig().storage_pth = "/x"  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="It has: max_failures, fail_fast"):
        FailureConfig().zzz = 1  # type: ignore[attr-defined]


def test_refusals_are_value_errors_of_the_projects_tree() -> None:
    with pytest.raises(InvalidInputError) as caught:
        TuneConfig(num_samples=0)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, TuneError)


def test_legacy_warning_points_at_the_users_line() -> None:
    with pytest.warns(DeprecationWarning, match="CheckpointConfig") as constructed:
        config = CheckpointConfig(keep_checkpoints_num=1)
    with pytest.warns(DeprecationWarning, match="CheckpointConfig") as assigned:
        config.keep_checkpoints_num = 2
    assert [os.path.basename(seen[0].filename) for seen in (constructed, assigned)] == ["test_config.py"] * 2
    assert config.num_to_keep == 2


# --- TuneConfig


def test_tune_defaults() -> None:
    config = TuneConfig()
    assert (config.num_samples, config.reuse_actors, config.seed) == (1, False, None)
    assert (config.mode, config.metric, config.max_concurrent_trials, config.time_budget_s) == (None,) * 4


@pytest.mark.parametrize("mode", ["best", "MAX", 1, ["min"]])
def test_mode_is_min_or_max(mode: Any) -> None:
    with pytest.raises(ValueError, match=r"must be one of \['min', 'max'\]"):
        TuneConfig(mode=mode)


@pytest.mark.parametrize("metric", ["", 3, ["a", "b"]])
def test_metric_is_one_name(metric: Any) -> None:
    with pytest.raises(ValueError, match="the name of one metric"):
        TuneConfig(metric=metric)


@pytest.mark.parametrize("number", [0, -2, 1.5, "3", True, None])
def test_number_of_samples_is_positive_or_minus_one(number: Any) -> None:
    with pytest.raises(ValueError, match="num_samples must be -1"):
        TuneConfig(num_samples=number)


def test_unbounded_samples_and_numpy_integers_are_accepted() -> None:
    np = pytest.importorskip("numpy")
    assert TuneConfig(num_samples=-1).num_samples == -1
    assert type(TuneConfig(num_samples=np.int64(3)).num_samples) is int


@pytest.mark.parametrize("limit", [-1, 1.5, "2"])
def test_concurrency_limit_is_not_negative(limit: Any) -> None:
    with pytest.raises(ValueError, match="max_concurrent_trials must be None or 0"):
        TuneConfig(max_concurrent_trials=limit)


def test_concurrency_may_be_unlimited() -> None:
    assert TuneConfig(max_concurrent_trials=0).max_concurrent_trials == 0
    assert TuneConfig(max_concurrent_trials=4).max_concurrent_trials == 4


def test_time_budget_is_seconds_or_timedelta() -> None:
    assert TuneConfig(time_budget_s=1.5).time_budget_s == 1.5
    assert TuneConfig(time_budget_s=datetime.timedelta(hours=1)).time_budget_s == 3600


@pytest.mark.parametrize("budget", [0, -1, math.nan, "1h", True, datetime.timedelta(0)])
def test_time_budget_of_another_kind_is_refused(budget: Any) -> None:
    with pytest.raises(ValueError, match=r"time_budget_s must be a number > 0.*timedelta"):
        TuneConfig(time_budget_s=budget)


@pytest.mark.parametrize("name", ["search_alg", "scheduler"])
def test_class_instead_of_searcher_or_scheduler_is_refused(name: str) -> None:
    class ASHAScheduler: ...

    with pytest.raises(ValueError, match=r"Write ASHAScheduler\(...\)"):
        TuneConfig(**{name: ASHAScheduler})
    assert getattr(TuneConfig(**{name: "asha"}), name) == "asha"


@pytest.mark.parametrize("name", ["trial_name_creator", "trial_dirname_creator"])
def test_name_creators_are_functions(name: str) -> None:
    assert getattr(TuneConfig(**{name: str}), name) is str
    with pytest.raises(ValueError, match=f"{name} must be a function"):
        TuneConfig(**{name: "trial"})


def test_reuse_of_workers_is_a_flag() -> None:
    assert TuneConfig(reuse_actors=None).reuse_actors is None
    with pytest.raises(ValueError, match="reuse_actors must be True or False"):
        TuneConfig(reuse_actors=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [-1, 1.5, "x"])
def test_seed_is_a_whole_number(seed: Any) -> None:
    assert TuneConfig(seed=0).seed == 0
    with pytest.raises(ValueError, match="seed must be an integer >= 0"):
        TuneConfig(seed=seed)


def test_chdir_is_accepted_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="HOLDFAST_CHDIR_TO_TRIAL_DIR"):
        assert TuneConfig(chdir_to_trial_dir=False).chdir_to_trial_dir is False
    with (
        pytest.warns(DeprecationWarning, match="still works"),
        pytest.raises(ValueError, match="chdir_to_trial_dir must be True"),
    ):
        TuneConfig(chdir_to_trial_dir="no")


# --- FailureConfig


def test_failure_defaults() -> None:
    config = FailureConfig()
    assert (config.max_failures, config.fail_fast, config.stall_timeout_s, config.grace_s) == (0, False, None, 30)


def test_raise_is_read_in_any_case() -> None:
    assert FailureConfig(fail_fast="RAISE").fail_fast == "raise"


@pytest.mark.parametrize("fail_fast", ["stop", 1, None])
def test_fail_fast_of_another_kind_is_refused(fail_fast: Any) -> None:
    with pytest.raises(ValueError, match="fail_fast must be True, False or 'raise'"):
        FailureConfig(fail_fast=fail_fast)


@pytest.mark.parametrize("fail_fast", [True, "raise"])
@pytest.mark.parametrize("retries", [1, -1])
def test_retries_and_fail_fast_exclude_each_other(fail_fast: Any, retries: int) -> None:
    with pytest.raises(ValueError, match="max_failures must be 0 if fail_fast="):
        FailureConfig(max_failures=retries, fail_fast=fail_fast)


def test_any_negative_number_of_retries_means_for_ever() -> None:
    assert FailureConfig(max_failures=-5).max_failures == -1


@pytest.mark.parametrize("retries", [1.5, "1", None, True])
def test_retries_are_a_whole_number(retries: Any) -> None:
    with pytest.raises(ValueError, match="max_failures must be an integer"):
        FailureConfig(max_failures=retries)


def test_times_of_failures_are_checked() -> None:
    assert FailureConfig(stall_timeout_s=5, grace_s=0).grace_s == 0
    for value in (0, -1, "5", math.inf):
        with pytest.raises(ValueError, match="stall_timeout_s must be a number > 0"):
            FailureConfig(stall_timeout_s=value)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="grace_s must be a number >= 0"):
        FailureConfig(grace_s=-1)


# --- CheckpointConfig


def test_checkpoint_defaults() -> None:
    config = CheckpointConfig()
    assert (config.num_to_keep, config.num_to_keep_overall, config.checkpoint_score_order) == (None, None, "max")
    assert (config.checkpoint_frequency, config.checkpoint_at_end) == (0, None)


@pytest.mark.parametrize("name", ["num_to_keep", "num_to_keep_overall"])
@pytest.mark.parametrize("number", [0, -1, 1.5, "2", True])
def test_number_to_keep_is_none_or_positive(name: str, number: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} .*Must be None or an integer >= 1"):
        CheckpointConfig(**{name: number})


def test_score_order_and_frequency_are_checked() -> None:
    with pytest.raises(ValueError, match=r"checkpoint_score_order must be one of \['max', 'min'\]"):
        CheckpointConfig(checkpoint_score_order="best")
    for frequency in (-1, 1.5, None):
        with pytest.raises(ValueError, match="checkpoint_frequency must be an integer >= 0"):
            CheckpointConfig(checkpoint_frequency=frequency)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="checkpoint_at_end must be True or False"):
        CheckpointConfig(checkpoint_at_end="yes")  # type: ignore[arg-type]
    for attribute in ("", 3):
        with pytest.raises(ValueError, match="checkpoint_score_attribute must be None or a metric's name"):
            CheckpointConfig(checkpoint_score_attribute=attribute)  # type: ignore[arg-type]


def test_older_spellings_of_retention_move_to_the_newer() -> None:
    with pytest.warns(DeprecationWarning, match="still works") as seen:
        config = CheckpointConfig(keep_checkpoints_num=3, checkpoint_score_attr="min-loss")
    messages = [str(w.message) for w in seen]
    assert "keep_checkpoints_num" in messages[0]
    assert "num_to_keep=" in messages[0]
    assert "checkpoint_score_attribute=" in messages[1]
    assert config == CheckpointConfig(num_to_keep=3, checkpoint_score_attribute="min-loss")


def test_two_spellings_of_one_setting_must_agree() -> None:
    with pytest.warns(DeprecationWarning, match="still works"):
        assert CheckpointConfig(num_to_keep=3, keep_checkpoints_num=3).num_to_keep == 3
    with (
        pytest.warns(DeprecationWarning, match="still works"),
        pytest.raises(ValueError, match="Leave keep_checkpoints_num out"),
    ):
        CheckpointConfig(num_to_keep=2, keep_checkpoints_num=3)
    with (
        pytest.warns(DeprecationWarning, match="still works"),
        pytest.raises(ValueError, match="Must be None or an integer >= 1"),
    ):
        CheckpointConfig(keep_checkpoints_num=0)


# --- SyncConfig


class CopyingSyncer:
    def sync_up(self, local_dir: str, remote_dir: str, exclude: Any = None) -> bool: ...
    def sync_down(self, remote_dir: str, local_dir: str, exclude: Any = None) -> bool: ...
    def delete(self, remote_dir: str) -> bool: ...


def test_sync_defaults() -> None:
    config = SyncConfig()
    assert (config.syncer, config.sync_on_checkpoint, config.sync_period) == ("auto", True, 300)
    assert (config.sync_timeout, config.sync_artifacts, config.sync_artifacts_on_checkpoint) == (1800, False, True)
    assert (config.node_sync_period, config.cloud_sync_period) == (-1, -1)


@pytest.mark.parametrize(
    "syncer", [None, "auto", "rsync {source} {target}", lambda source, target: None, CopyingSyncer()]
)
def test_every_kind_of_syncer_is_accepted(syncer: Any) -> None:
    assert SyncConfig(syncer=syncer).syncer is syncer


@pytest.mark.parametrize(
    ("template", "missing"),
    [("cp {target}", "{source}"), ("cp {source}", "{target}"), ("rsync", "{source}")],
)
def test_template_without_both_places_is_refused(template: str, missing: str) -> None:
    with pytest.raises(ValueError, match=rf"Sync template missing '\{missing[:-1]}\}}'\."):
        SyncConfig(syncer=template)
    for name in ("sync_to_cloud", "sync_to_driver"):
        with (
            pytest.warns(DeprecationWarning, match="still works"),
            pytest.raises(ValueError, match="Sync template missing"),
        ):
            SyncConfig(**{name: template})


@pytest.mark.parametrize("syncer", [3, True, CopyingSyncer, object()])
def test_syncer_of_another_kind_is_refused(syncer: Any) -> None:
    with pytest.raises(ValueError, match=r"syncer must be a command with \{source\} and \{target\}"):
        SyncConfig(syncer=syncer)


def test_older_sync_fields_are_silent_at_their_defaults() -> None:
    config = SyncConfig(None, None, False, 60, 10, True, False, -1, None, None, None)
    assert (config.syncer, config.sync_period) == (None, 60)


@pytest.mark.parametrize(
    ("field", "value", "keyword"),
    [
        ("sync_period", -1, "sync_period must be a number >= 0"),
        ("sync_period", "300", "sync_period must be a number >= 0"),
        ("sync_timeout", 0, "sync_timeout must be a number > 0"),
        ("sync_on_checkpoint", "yes", "sync_on_checkpoint must be True or False"),
        ("sync_artifacts", 1, "sync_artifacts must be True or False"),
        ("sync_artifacts_on_checkpoint", None, "sync_artifacts_on_checkpoint must be True or False"),
    ],
)
def test_sync_fields_are_checked(field: str, value: Any, keyword: str) -> None:
    with pytest.raises(ValueError, match=keyword):
        SyncConfig(**{field: value})


@pytest.mark.parametrize("field", ["node_sync_period", "cloud_sync_period"])
def test_older_periods_are_checked(field: str) -> None:
    with (
        pytest.warns(DeprecationWarning, match="still works"),
        pytest.raises(ValueError, match=f"{field} must be a number >= 0"),
    ):
        SyncConfig(**{field: -3})


@pytest.mark.parametrize("upload_dir", ["/mnt/x", "", 3])
def test_upload_dir_is_a_uri(upload_dir: Any) -> None:
    with (
        pytest.warns(DeprecationWarning, match="still works"),
        pytest.raises(ValueError, match="upload_dir must be a URI"),
    ):
        SyncConfig(upload_dir=upload_dir)


def test_own_syncer_may_use_addresses_of_its_own() -> None:
    assert SyncConfig(upload_dir="box:/x", syncer=CopyingSyncer()).upload_dir == "box:/x"


# --- ResumeConfig


def test_resume_defaults_and_strings() -> None:
    kinds = ResumeConfig.ResumeType
    assert {kind.name: kind.value for kind in kinds} == {"RESUME": "resume", "RESTART": "restart", "SKIP": "skip"}
    assert ResumeConfig() == ResumeConfig(kinds.SKIP, kinds.RESUME, kinds.SKIP)
    assert ResumeConfig(errored="RESTART").errored is kinds.RESTART  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["again", None, 3])
def test_resume_of_another_kind_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"finished must be a ResumeConfig.ResumeType or one of \['resume'"):
        ResumeConfig(finished=value)
