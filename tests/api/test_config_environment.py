"""Environment variables: every spelling, every type, every refusal."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import pytest

from holdfast.config import Environment
from holdfast.config.environment import IGNORED_VARIABLES
from holdfast.errors import InvalidInputError

SETTINGS = [
    ("TUNE_GLOBAL_CHECKPOINT_S", "snapshot_period_s", None, "12.5", 12.5),
    ("TUNE_GLOBAL_CHECKPOINT_S", "snapshot_period_s", None, "auto", None),
    ("TUNE_GLOBAL_CHECKPOINT_S", "snapshot_period_s", None, "0", 0.0),
    ("TUNE_RESTORE_RETRY_NUM", "restore_retries", 0, "3", 3),
    ("TUNE_MAX_PENDING_TRIALS_PG", "max_pending_trials", None, "16", 16),
    ("TUNE_MAX_PENDING_TRIALS_PG", "max_pending_trials", None, "auto", None),
    ("TUNE_FORCE_TRIAL_CLEANUP_S", "force_trial_cleanup_s", 600.0, "5", 5.0),
    ("TUNE_DISABLE_SIGINT_HANDLER", "disable_sigint_handler", False, "1", True),
    ("TUNE_DISABLE_STRICT_METRIC_CHECKING", "disable_strict_metric_checking", False, "true", True),
    ("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "disable_auto_callback_loggers", False, "YES", True),
    ("TUNE_DISABLE_DATED_SUBDIR", "disable_dated_subdir", False, "on", True),
    ("TUNE_MAX_LEN_IDENTIFIER", "max_len_identifier", 130, "40", 40),
    ("TUNE_WARN_INSUFFICIENT_RESOURCE_THRESHOLD_S", "warn_insufficient_resources_s", 60.0, "5", 5.0),
    ("TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S", "warn_insufficient_resources_s", 60.0, "5", 5.0),
    ("TUNE_RESULT_DIR", "result_dir", None, "/x", "/x"),
    ("HOLDFAST_STORAGE", "storage", None, "s3://b/x", "s3://b/x"),
    ("RAY_STORAGE", "storage", None, "/x", "/x"),
    ("HOLDFAST_LOCAL_CACHE_DIR", "local_cache_dir", None, "/x", "/x"),
    ("RAY_AIR_LOCAL_CACHE_DIR", "local_cache_dir", None, "/x", "/x"),
    ("HOLDFAST_CHDIR_TO_TRIAL_DIR", "chdir_to_trial_dir", True, "0", False),
    ("RAY_CHDIR_TO_TRIAL_DIR", "chdir_to_trial_dir", True, "off", False),
    ("RAY_TRAIN_COUNT_PREEMPTION_AS_FAILURE", "count_preemption_as_failure", False, "1", True),
    ("RAY_TUNE_CALLBACKS", "callbacks", (), "a.b.C, d.E,", ("a.b.C", "d.E")),
    ("RAY_AIR_FULL_TRACEBACKS", "full_tracebacks", False, "1", True),
    ("HOLDFAST_RAY_ADDRESS", "ray_address", None, "10.0.0.7:6379", "10.0.0.7:6379"),
    ("RAY_ADDRESS", "ray_address", None, "auto", "auto"),
    ("_TEST_TUNE_TRIAL_UUID", "trial_id_prefix", None, "abcde", "abcde"),
]


@pytest.mark.parametrize(("variable", "field", "default", "text", "value"), SETTINGS)
def test_variable_is_read_and_typed(variable: str, field: str, default: Any, text: str, value: Any) -> None:
    assert getattr(Environment.read({}), field) == default
    read = getattr(Environment.read({variable: text}), field)
    assert read == value
    assert type(read) is type(value)


def test_every_field_is_covered_above() -> None:
    assert {field.name for field in dataclasses.fields(Environment)} == {row[1] for row in SETTINGS}


@pytest.mark.parametrize("row", [row for row in SETTINGS if row[0].startswith("TUNE_")])
def test_own_spelling_is_accepted_and_wins(row: tuple[str, str, Any, str, Any]) -> None:
    variable, field, _, text, value = row
    own = "HOLDFAST_" + variable.removeprefix("TUNE_")
    assert getattr(Environment.read({own: text}), field) == value
    assert getattr(Environment.read({own: text, variable: "nonsense"}), field) == value


def test_own_spelling_wins_over_both_spellings_of_a_misspelt_variable() -> None:
    spelt = {
        "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S": "1",
        "TUNE_WARN_INSUFFICIENT_RESOURCE_THRESHOLD_S": "2",
        "HOLDFAST_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S": "3",
    }
    assert Environment.read(spelt).warn_insufficient_resources_s == 3.0
    del spelt["HOLDFAST_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S"]
    assert Environment.read(spelt).warn_insufficient_resources_s == 2.0


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("TUNE_GLOBAL_CHECKPOINT_S", "often", "'auto' or seconds >= 0"),
        ("TUNE_GLOBAL_CHECKPOINT_S", "-1", "'auto' or seconds >= 0"),
        ("TUNE_WARN_THRESHOLD_S", "nan", "seconds >= 0"),
        ("TUNE_RESTORE_RETRY_NUM", "1.5", "an integer >= 0"),
        ("TUNE_RESTORE_RETRY_NUM", "-1", "an integer >= 0"),
        ("TUNE_MAX_PENDING_TRIALS_PG", "0", "'auto' or an integer >= 1"),
        ("TUNE_MAX_LEN_IDENTIFIER", "0", "an integer >= 1"),
        ("TUNE_DISABLE_SIGINT_HANDLER", "maybe", "0 or 1"),
        ("HOLDFAST_RESTORE_RETRY_NUM", "x", "an integer >= 0"),
        ("RAY_TUNE_CALLBACKS", "Callback", "a comma-separated list of classes"),
        ("RAY_TUNE_CALLBACKS", "a..B", "a comma-separated list of classes"),
    ],
)
def test_wrong_value_names_the_variable_and_the_way_out(variable: str, text: str, expected: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        Environment.read({variable: text})
    message = str(caught.value)
    assert f"The environment variable {variable} must be {expected}" in message
    assert repr(text) in message
    assert f"unset {variable}" in message


@pytest.mark.parametrize("text", ["", "  "])
def test_empty_value_counts_as_not_set(text: str) -> None:
    assert Environment.read({"TUNE_MAX_LEN_IDENTIFIER": text, "HOLDFAST_STORAGE": text}) == Environment()


def test_empty_own_spelling_leaves_the_other_in_force() -> None:
    read = Environment.read({"HOLDFAST_RESTORE_RETRY_NUM": "", "TUNE_RESTORE_RETRY_NUM": "2"})
    assert read.restore_retries == 2


@pytest.mark.parametrize(
    ("variable", "text", "wrong"),
    [
        ("TUNE_RESULT_BUFFER_LENGTH", "100", "0"),
        ("TUNE_RESULT_BUFFER_MIN_TIME_S", "1", "soon"),
        ("TUNE_RESULT_BUFFER_MAX_TIME_S", "5", "late"),
        ("TUNE_FUNCTION_THREAD_TIMEOUT_S", "9", "-1"),
        ("TUNE_PRINT_ALL_TRIAL_ERRORS", "0", "some"),
        ("TUNE_RESULT_DELIM", ".", None),
        ("TUNE_WARN_THRESHOLD_S", "2", "nan"),
        ("TUNE_WARN_SLOW_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S", "7", "x"),
        ("TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S", "7", "x"),
        ("TUNE_ONLY_STORE_CHECKPOINT_SCORE_ATTRIBUTE", "1", "2"),
        ("RAY_AIR_NEW_OUTPUT", "no", "maybe"),
        ("HOLDFAST_NEW_OUTPUT", "no", "maybe"),
        ("HOLDFAST_WARN_THRESHOLD_S", "2", "inf"),
    ],
)
def test_a_variable_without_effect_is_checked_and_changes_nothing(variable: str, text: str, wrong: str | None) -> None:
    assert any(variable in names for names in IGNORED_VARIABLES)
    assert Environment.read({variable: text}) == Environment()
    if wrong is not None:
        with pytest.raises(InvalidInputError, match=f"The environment variable {variable} must be"):
            Environment.read({variable: wrong})


def test_storage_root_prefers_the_newer_variables() -> None:
    assert Environment.read({}).storage_root == os.path.expanduser("~/holdfast_results")
    environ = {"TUNE_RESULT_DIR": "~/t"}
    assert Environment.read(environ).storage_root == os.path.expanduser("~/t")
    environ["HOLDFAST_RESULT_DIR"] = "/h"
    assert Environment.read(environ).storage_root == "/h"
    environ["RAY_STORAGE"] = "gs://r"
    assert Environment.read(environ).storage_root == "gs://r"
    environ["HOLDFAST_STORAGE"] = "/own"
    assert Environment.read(environ).storage_root == "/own"


def test_staging_root_prefers_the_cache_directory() -> None:
    assert Environment.read({}).staging_root is None
    environ = {"TUNE_RESULT_DIR": "/t"}
    assert Environment.read(environ).staging_root == "/t"
    environ["RAY_AIR_LOCAL_CACHE_DIR"] = "/c"
    assert Environment.read(environ).staging_root == "/c"


def test_environment_of_this_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_RESTORE_RETRY_NUM", "4")
    assert Environment.read().restore_retries == 4


def test_environment_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Environment().restore_retries = 1  # type: ignore[misc]
