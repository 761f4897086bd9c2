"""``holdfast status``: the truth about live, dead, finished and new experiments, for people and for programs."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from roots import RootWriter, experiment_with_early_damage, many_trials, small_experiment

from holdfast.controller.remote_experiment import MIRROR_OF
from holdfast.core import events as ev
from holdfast.results import history

DEADLINE_S = 60.0


@pytest.fixture
def status(holdfast: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    def ask(path: Path) -> dict[str, Any]:
        answer = holdfast("status", path, "--json")
        assert answer.code == 0, answer.err
        facts: dict[str, Any] = json.loads(answer.out)
        return facts

    return ask


def test_a_dead_driver_leaves_an_interrupted_experiment_and_nothing_running(
    tmp_path: Path, status: Callable[..., dict[str, Any]]
) -> None:
    path = small_experiment(tmp_path / "exp").die().path
    facts = status(path)
    assert (facts["name"], facts["state"], facts["holder"]) == ("exp", "interrupted", None)
    assert facts["counts"] == {
        "PENDING": 1,
        "RUNNING": 0,
        "PAUSED": 0,
        "TERMINATED": 2,
        "ERROR": 1,
        "NOT_STARTED": 0,
    }
    assert "exited without shutting down" in facts["why"]
    assert facts["resume"] == f"holdfast resume {path}"
    assert facts["restore"] == f'Tuner.restore("{path}").fit()'
    assert facts["durable_lag_s"] == 0.0
    lost = facts["trials"][3]
    assert (lost["status"], lost["interrupted"]) == ("PENDING", True)
    assert lost["on_resume"] == "continues from checkpoint_000000 (iteration 1)"
    assert [trial["interrupted"] for trial in facts["trials"][:3]] == [False, False, False]


@pytest.mark.parametrize(
    ("identity", "place"),
    [("1a2b3c:pre/fix/exp", "pre/fix/exp in the storage_filesystem"), ("s3://bucket/exp", "s3://bucket/exp")],
)
def test_the_store_that_a_mirror_waits_for_is_named(
    tmp_path: Path, holdfast: Callable[..., Any], identity: str, place: str
) -> None:
    root = small_experiment(tmp_path / "exp")
    root.stage(3, {"model.txt": "four"})
    root.add(ev.BacklogFilled(root.tick(), 1, 4, 2))
    (root.path / MIRROR_OF).write_text(identity)
    assert f"of checkpoints are not yet in {place}, limit 2 B" in holdfast("status", root.path).out


def test_a_live_driver_is_named(tmp_path: Path, status: Callable[..., dict[str, Any]]) -> None:
    root = small_experiment(tmp_path / "exp")
    facts = status(root.path)
    assert facts["state"] == "running"
    assert facts["holder"]["pid"] == os.getpid()
    assert facts["holder"]["host"] == root.claim.host
    assert facts["resume"] is None
    assert facts["trials"][3]["status"] == "RUNNING"
    root.finish()


def test_a_driver_that_left_in_order_says_why(tmp_path: Path, status: Callable[..., dict[str, Any]]) -> None:
    facts = status(small_experiment(tmp_path / "exp").finish("SIGTERM").path)
    assert (facts["state"], facts["why"]) == ("interrupted", "SIGTERM")
    assert facts["trials"][3]["interrupted"] is False


def test_finished_with_errors_offers_to_try_those_again(tmp_path: Path, status: Callable[..., dict[str, Any]]) -> None:
    root = small_experiment(tmp_path / "exp")
    root.end(3)
    root.add(ev.SearchEnded(root.tick(), "all samples"))
    facts = status(root.finish().path)
    assert facts["state"] == "finished"
    assert facts["resume"].endswith("--resume-errored")
    assert "resume_errored=True" in facts["restore"]


def test_all_done_is_finished_even_if_the_driver_died_before_it_could_say_so(
    tmp_path: Path, status: Callable[..., dict[str, Any]]
) -> None:
    root = RootWriter(tmp_path / "exp").open()
    root.create({})
    root.start(0)
    root.report(0, {"loss": 1.0})
    root.end(0)
    root.add(ev.SearchEnded(root.tick(), "all samples"))
    facts = status(root.die().path)
    assert (facts["state"], facts["resume"]) == ("finished", None)


def test_trials_that_are_still_to_be_created_make_it_interrupted(
    tmp_path: Path, status: Callable[..., dict[str, Any]]
) -> None:
    root = RootWriter(tmp_path / "exp", total=2).open()
    root.create({})
    root.start(0)
    root.end(0)
    assert status(root.die().path)["state"] == "interrupted"


def test_an_experiment_that_never_ran_is_new(tmp_path: Path, status: Callable[..., dict[str, Any]]) -> None:
    facts = status(RootWriter(tmp_path / "exp").path)
    assert (facts["state"], facts["trials"], facts["holder"]) == ("new", [], None)


def test_trials_carry_results_checkpoints_and_failures(tmp_path: Path, status: Callable[..., dict[str, Any]]) -> None:
    root = small_experiment(tmp_path / "exp").finish()
    facts = status(root.path)
    done, failed, retried, _ = facts["trials"]
    assert (done["trial_id"], done["name"]) == ("abcde_00000", "train_abcde_00000")
    assert done["last_result"]["loss"] == 1.0
    assert done["config"] == {"lr": 0.1}
    assert [each["index"] for each in done["checkpoints"]] == [0, 1, 2]
    newest = done["checkpoints"][-1]
    assert (newest["iteration"], newest["bytes"], newest["state"]) == (3, 9, "committed")
    assert (root.path / newest["path"] / "model.txt").read_text() == "weights 2"
    assert (failed["status"], failed["failures"]) == ("ERROR", 1)
    assert (failed["error"]["type"], failed["error"]["cause"]) == ("ValueError", "exception")
    assert (retried["failures"], retried["error"], retried["attempts"]) == (1, None, 2)
    assert retried["last_failure"]["cause"] == "signal"
    assert facts["failures"][0]["location"].endswith("train.py:17")
    assert facts["best"] == {"trial": "train_abcde_00000", "metric": "loss", "value": 1.0}


def test_nan_becomes_null_so_that_every_parser_can_read_it(tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    root = RootWriter(tmp_path / "exp").open()
    root.create({"odd": {1: "int key"}})
    root.start(0)
    root.report(0, {"loss": math.nan, "other": math.inf})
    answer = holdfast("status", root.finish().path, "--json")
    facts = json.loads(answer.out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert facts["trials"][0]["last_result"]["loss"] is None


def test_people_get_progress_best_failures_and_the_way_on(tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    path = small_experiment(tmp_path / "exp").die().path
    out = holdfast("status", path).out
    assert "exp: interrupted" in out
    assert "3 of 4 trials ended: 1 pending, 2 done, 1 failed" in out
    assert "best: loss=1 by train_abcde_00000 (lr=0.1)" in out
    assert "ValueError at /home/me/train.py:17: lr is too large (1 trial)" in out
    assert f"resume: holdfast resume {path}" in out
    assert "running" not in out.replace("was running when the driver exited", "")


def test_people_see_the_trials_of_a_live_driver(tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    root = small_experiment(tmp_path / "exp")
    out = holdfast("status", root.path).out
    assert f"by pid {os.getpid()} on" in out
    assert "train_abcde_00003  RUNNING" in out
    root.finish()


def test_a_hundred_trials_with_three_kinds_of_failure_take_few_lines(
    tmp_path: Path, holdfast: Callable[..., Any]
) -> None:
    root = RootWriter(tmp_path / "exp", total=100).open()
    for n in range(100):
        root.create({"lr": n})
        root.start(n)
        if n % 33 == 5:
            root.error(n, type="ValueError", message="bad\nlines\x1b[31m", location=f"train.py:{n}")
        elif n < 80:
            root.report(n, {"loss": float(n)})
            root.end(n)
    for state in ("running", "interrupted"):
        out = holdfast("status", root.path).out
        assert state in out
        assert len(out.splitlines()) <= 40
        assert "\x1b" not in out
        assert "train.py:5" in out
        if state == "running":
            root.die()


def test_the_printed_command_survives_a_path_with_spaces(tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    path = small_experiment(tmp_path / "my exp").die().path
    assert f"holdfast resume '{path}'" in holdfast("status", path).out


def test_a_tilde_is_the_home_directory(
    tmp_path: Path, holdfast: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_experiment(tmp_path / "exp").finish()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "exp: interrupted" in holdfast("status", "~/exp").out


def test_watching_what_does_not_run_ends_at_once(tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    answer = holdfast("status", small_experiment(tmp_path / "exp").die().path, "--watch")
    assert answer.code == 0
    assert "interrupted" in answer.out


def test_watching_follows_the_journal_until_the_driver_leaves(tmp_path: Path) -> None:
    root = RootWriter(tmp_path / "exp", total=2).open()
    root.create({})
    root.start(0)
    command = [sys.executable, "-m", "holdfast", "status", str(root.path), "--watch"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watcher:
        assert watcher.stdout is not None
        try:
            assert "0 of 2 trials ended: 1 running, 1 pending" in watcher.stdout.readline()
            root.report(0, {"loss": 1.0})
            root.end(0)
            line = next(line for line in watcher.stdout if "1 of 2" in line)  # it may have looked in between
            assert "1 of 2 trials ended: 1 pending, 1 done; 1 report" in line
            root.finish("SIGINT")
            rest = watcher.stdout.read()
            assert "interrupted (SIGINT)" in rest
            assert watcher.wait(DEADLINE_S) == 0
        finally:
            watcher.kill()


def test_watching_as_json_prints_one_object_a_line(tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    answer = holdfast("status", small_experiment(tmp_path / "exp").die().path, "--watch", "--json")
    assert [json.loads(line)["state"] for line in answer.out.splitlines()] == ["interrupted"]


def test_looking_at_a_live_experiment_survives_a_change_of_drivers(tmp_path: Path) -> None:
    """A follower's place in the journal is void once a newer driver sealed the journal before it."""
    from holdfast.results.follow import Follower
    from holdfast.results.history import open_history

    root = RootWriter(tmp_path / "exp").open()
    root.create({})
    follower = Follower(str(root.path), open_history(root.path))
    root.start(0)
    follower.advance()
    assert follower.history.state.counts["RUNNING"] == 1
    root.die()
    follower.advance()
    assert follower.history.state.counts["RUNNING"] == 0


def test_status_of_many_trials_needs_no_heavy_module(tmp_path: Path) -> None:
    path = many_trials(tmp_path / "exp", 50).path
    script = (
        "import sys; from holdfast.cli.main import main; main(['status', sys.argv[1], '--json']); "
        "print([m for m in ('rich', 'pandas', 'numpy', 'cloudpickle', 'holdfast.tuner') if m in sys.modules], "
        "file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert len(json.loads(done.stdout)["trials"]) == 50


def test_a_driver_killed_for_real_is_seen_as_gone(tmp_path: Path, status: Callable[..., dict[str, Any]]) -> None:
    """Nothing but the process itself says whether it lives."""
    script = (
        "import sys, time; from pathlib import Path; from roots import small_experiment; "
        "small_experiment(Path(sys.argv[1])); print('ready', flush=True); time.sleep(600)"
    )
    path = tmp_path / "exp"
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    driver = subprocess.Popen(
        [sys.executable, "-c", script, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    with driver:
        assert driver.stdout is not None
        assert driver.stdout.readline().strip() == "ready"
        assert status(path)["state"] == "running"
        driver.kill()
        driver.wait()
    deadline = time.monotonic() + DEADLINE_S
    while status(path)["state"] == "running":
        assert time.monotonic() < deadline
    assert status(path)["counts"]["RUNNING"] == 0


def test_a_status_loads_nothing_that_it_does_not_need(tmp_path: Path) -> None:
    """What draws configurations, runs trials or paints tables takes time to import; a script may ask every second."""
    path = small_experiment(tmp_path / "exp").finish().path
    script = (
        "import sys; from holdfast.cli.main import main; main(sys.argv[1:]);"
        "print(*(name for name in sys.modules), file=sys.stderr)"
    )
    command = [sys.executable, "-c", script, "status", str(path), "--json"]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stderr.split()
    needless = {"cloudpickle", "numpy", "pandas", "rich", "holdfast.tuner", "holdfast.space.domains"}
    assert "holdfast.cli.status" in loaded
    assert not needless.intersection(loaded)


def test_a_driver_that_commits_while_one_reads_is_no_loss(
    tmp_path: Path, holdfast: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal was read; then the driver saves a checkpoint, of a known and of a new trial; then one looks there."""
    root = RootWriter(tmp_path / "exp").open()
    root.create({"lr": 0.1})
    root.start(0)
    look = history.unknown_checkpoints
    found: list[int] = []

    def commit_and_look(path: Path, known: Any) -> Any:
        root.create({"lr": 0.2})
        root.start(1)
        for n in (0, 1):
            root.report(n, {"loss": 1.0})
            root.save(n, {"model.txt": "weights"})
        unknown = look(path, known)
        found.append(len(unknown))
        return unknown

    monkeypatch.setattr(history, "unknown_checkpoints", commit_and_look)
    answer = holdfast("status", root.path, "--json")
    assert found == [2]
    assert answer.code == 0, answer.err
    facts = json.loads(answer.out)
    assert facts["journal_damage"] is None
    assert facts["reports"] == 2
    root.finish()


def test_what_a_killed_driver_had_not_synced_is_not_called_durable(
    tmp_path: Path, status: Callable[..., dict[str, Any]]
) -> None:
    writer = small_experiment(tmp_path / "exp")
    writer.journal.sync()
    mark = writer.path / ".holdfast" / "epochs" / "00000001.synced"
    synced = mark.read_bytes()
    writer.report(3, {"loss": 1.5})
    writer.die()  # which syncs
    assert status(writer.path)["durable_lag_s"] == 0.0
    mark.write_bytes(synced)
    assert status(writer.path)["durable_lag_s"] is None
    mark.unlink()
    assert status(writer.path)["durable_lag_s"] is None


def test_damage_before_a_snapshot_is_said_and_a_repair_is_offered(tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    """A resume reads all records, and would refuse."""
    path = experiment_with_early_damage(tmp_path / "exp")
    answer = holdfast("status", path)
    assert answer.code == 1
    assert "DAMAGED: the journal has records that cannot be read" in answer.out
    assert f"repair it: holdfast repair {path}" in answer.out
    assert "holdfast resume" not in answer.out
    assert "On resume" not in answer.out
    facts = json.loads(holdfast("status", path, "--json").out)
    assert (facts["repair"], facts["resume"], facts["restore"]) == (f"holdfast repair {path}", None, None)
    assert facts["journal_damage"]["message"]
    assert facts["durable_lag_s"] is None


def test_of_a_journal_that_is_gone_nothing_is_claimed(tmp_path: Path, holdfast: Callable[..., Any]) -> None:
    path = small_experiment(tmp_path / "exp").die().path
    for segment in (path / ".holdfast" / "journal").iterdir():
        segment.unlink()
    facts = json.loads(holdfast("status", path, "--json").out)
    assert facts["durable_lag_s"] is None
    assert (facts["resume"], facts["restore"]) == (None, None)
