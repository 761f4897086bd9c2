"""SyncedCopy: rounds, their order, their failures, and the end."""

from __future__ import annotations

import itertools
import math
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sync_tools import CP, WAIT_S, Cut, Experiment, TreeSyncer, content_of, files_in, records_in, until

from holdfast.core.backoff import Backoff
from holdfast.errors import NotShippedError
from holdfast.storage.address import join_address, split_address
from holdfast.storage.layout import SYNC_SEAL
from holdfast.sync import synced_copy
from holdfast.sync.command_syncer import CommandSyncer
from holdfast.sync.synced_copy import SyncedCopy
from holdfast.sync.syncer import FunctionSyncer, Syncer


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return Experiment(tmp_path / "here" / "exp")


@pytest.fixture
def make_copy(experiment: Experiment, tmp_path: Path) -> Iterator[Callable[..., SyncedCopy]]:
    """Makes synced copies of the experiment, and closes them."""
    made = []

    def make(syncer: Syncer, **options: Any) -> SyncedCopy:
        options = {"position": lambda: experiment.records, **options}
        made.append(SyncedCopy(experiment.root, str(tmp_path / "remote"), syncer, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def restored(tmp_path: Path, name: str = "elsewhere") -> Path:
    """Fetch the experiment on another machine."""
    root = tmp_path / name / "exp"
    fetcher = SyncedCopy(root, str(tmp_path / "remote"), TreeSyncer())
    fetcher.fetch()
    fetcher.close()
    return root


# --- when


def test_a_round_runs_at_once_then_every_period_and_on_request(make_copy: Callable[..., SyncedCopy]) -> None:
    sync = make_copy(TreeSyncer(), period_s=100)
    assert [sync.step(now) for now in (0, 1, 99, 100, 150)] == [True, False, False, True, False]
    sync.request()
    assert [sync.step(now) for now in (151, 152, 250, 251)] == [True, False, False, True]


def test_a_failed_round_is_repeated_after_a_pause_that_grows(make_copy: Callable[..., SyncedCopy]) -> None:
    broken = [True]
    heard: list[str | None] = []

    def on_file(rel: str) -> None:
        if broken[0]:
            raise OSError("no route to host")

    sync = make_copy(TreeSyncer(on_file), period_s=300, on_trouble=heard.append)
    tried = [now for now in range(40) if sync.step(now)]
    assert tried == [0, 5, 15, 35]
    sync.request()
    assert not sync.step(36)  # a request does not hammer what is down
    assert sync.trouble is not None
    assert sync.trouble.endswith("remote could not be brought up to date: no route to host")
    assert heard == [sync.trouble] * 4
    assert sync.arrived == 0
    broken[0] = False
    assert sync.step(75)
    assert (sync.trouble, sync.arrived, heard[4:]) == (None, 1, [None])
    assert not sync.step(374)
    assert sync.step(375)


def test_pauses_stay_within_their_maximum(make_copy: Callable[..., SyncedCopy]) -> None:
    sync = make_copy(CommandSyncer("false {source} {target}"), period_s=10_000)
    now, pauses = 0.0, []
    for _ in range(9):
        assert sync.step(now)
        pauses.append(sync._not_before - now)
        now = sync._not_before
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 300]


def test_the_thread_runs_rounds_on_request_and_tells_what_has_arrived(
    experiment: Experiment, make_copy: Callable[..., SyncedCopy], tmp_path: Path
) -> None:
    arrived: list[int] = []
    sync = make_copy(TreeSyncer(), period_s=3600, on_arrived=arrived.append)
    sync.start()
    until(lambda: arrived == [1], "the first round")
    experiment.checkpoint()
    sync.request()
    until(lambda: arrived == [1, 2], "the second round")
    sync.close()
    assert records_in(restored(tmp_path)) == [1, 2]


def test_closing_does_not_wait_for_a_copy_that_hangs(make_copy: Callable[..., SyncedCopy]) -> None:
    begun, release = threading.Event(), threading.Event()

    def hang(source: str, target: str) -> None:
        begun.set()
        release.wait(WAIT_S)

    sync = make_copy(FunctionSyncer(hang))
    sync.start()
    assert begun.wait(WAIT_S)
    sync.close()
    assert not release.is_set()
    release.set()
    assert not sync.step(0)


def test_a_copy_that_somebody_else_gives_up_has_not_arrived(make_copy: Callable[..., SyncedCopy]) -> None:
    """Two experiments that share a syncer, of which one ends: its end must not pass for the success of the other."""
    begun, release = threading.Event(), threading.Event()

    def hang(source: str, target: str) -> None:
        begun.set()
        release.wait(WAIT_S)

    syncer = FunctionSyncer(hang)
    sync = make_copy(syncer)
    round_of_the_other = threading.Thread(target=sync.step, args=(0,))
    round_of_the_other.start()
    assert begun.wait(WAIT_S)
    syncer.reset()
    round_of_the_other.join(WAIT_S)
    release.set()
    assert sync.arrived == 0
    assert "was given up" in str(sync.trouble)


def test_a_period_of_zero_is_no_busy_loop(make_copy: Callable[..., SyncedCopy]) -> None:
    sync = make_copy(TreeSyncer(), period_s=0)
    assert [sync.step(now) for now in (0, 0, 0.5, 1, 1)] == [True, False, False, True, False]


# --- what arrives


def test_the_other_end_is_equal_to_the_root_but_for_stages_and_seals(
    experiment: Experiment, make_copy: Callable[..., SyncedCopy], tmp_path: Path
) -> None:
    (experiment.root / "trial" / ".stage-1-00000001").mkdir()
    (experiment.root / "trial" / ".stage-1-00000001" / "half").write_text("x")
    sync = make_copy(TreeSyncer())
    sync.step(0)
    assert sync.trouble is None
    expected = {rel: data for rel, data in content_of(experiment.root).items() if ".stage-" not in rel}
    found = content_of(tmp_path / "remote")
    plain = {rel: data for rel, data in found.items() if not rel.startswith(".holdfast-safe/")}
    assert plain.pop(f".holdfast/{SYNC_SEAL}")
    assert plain == expected


def test_the_root_itself_is_never_given_to_a_syncer_nor_changed(
    experiment: Experiment, make_copy: Callable[..., SyncedCopy]
) -> None:
    before = content_of(experiment.root)
    sources = []

    class Recording(TreeSyncer):
        def copy_up(self, local_dir: str, remote_dir: str, exclude: Sequence[str] | None) -> None:
            sources.append(local_dir)
            super().copy_up(local_dir, remote_dir, exclude)

    sync = make_copy(Recording())
    sync.step(0)
    work = experiment.root.parent / ".sync-exp" / "tree"
    assert sources == [str(work), str(work / ".holdfast-safe"), str(work / ".holdfast")]
    assert content_of(experiment.root) == before


@pytest.mark.parametrize("simple", [False, True], ids=["like rsync", "like cp"])
def test_wherever_a_round_is_cut_what_has_arrived_can_be_restored(
    experiment: Experiment,
    make_copy: Callable[..., SyncedCopy],
    tmp_path: Path,
    simple: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The experiment continues while files are copied, and the copying is cut at every single file in turn.

    A tool that writes again what is there already may leave a file of an old checkpoint half written, which a reader
    notices; the history is whole even then.
    """
    monkeypatch.setattr(os, "sync", bool)  # a hundred restores, and no loss of power
    copied, cut, most = 0, 0, 12 if simple else 60

    def on_file(rel: str) -> None:
        nonlocal copied
        copied += 1
        if copied % 3 == 0 and experiment.records < most:
            experiment.checkpoint()
        if copied % 10 == 0:
            experiment.rotate()
        if copied == cut:
            raise Cut

    sync = make_copy(TreeSyncer(on_file, simple=simple))
    sync.step(0)
    best = sync.arrived
    assert best == 1
    for cut in itertools.count(1):
        copied = 0
        sync.step(cut * 1e6)
        if sync.trouble is None:
            break
        assert sync.arrived == 1
        root = restored(tmp_path, f"cut-{cut}")
        records = records_in(root, damaged=1 if simple else 0)
        assert len(records) >= best  # what could be restored once can be restored ever after
        best = len(records)
    assert cut > 20
    assert len(records_in(restored(tmp_path))) == sync.arrived


def test_a_tool_that_deletes_at_the_other_end_never_deletes_the_journal_there(
    experiment: Experiment, make_copy: Callable[..., SyncedCopy], tmp_path: Path
) -> None:
    seen_without = []

    class Deleting(TreeSyncer):
        """As `rsync --delete` in a template without {exclude}."""

        def _copy(self, source: str, target: str, exclude: Sequence[str]) -> None:
            super()._copy(source, target, ())
            for rel in set(files_in(target)) - set(files_in(source)):
                Path(target, rel).unlink()
            if arrived and not (tmp_path / "remote" / ".holdfast" / SYNC_SEAL).exists():
                seen_without.append(source)

    arrived: list[int] = []
    sync = make_copy(Deleting(), on_arrived=arrived.append)
    for now in range(3):
        experiment.checkpoint()
        sync.step(now * 1e6)
    sync.close()
    again = make_copy(Deleting())  # the next driver on this machine
    again.step(0)
    assert (seen_without, again.trouble) == ([], None)
    assert records_in(restored(tmp_path)) == [1, 2, 3, 4]


# --- syncers that do not do what they say


def skip_directories(source: str, target: str) -> None:
    """Like `rsync {source} {target}`, which says "skipping directory" and ends with 0."""


@pytest.mark.parametrize(
    "syncer",
    [
        FunctionSyncer(skip_directories),
        CommandSyncer("cp -r {source} {target}"),  # into a directory below an existing target
        CommandSyncer("cp -r {source}. {target}; rm -f {target}.sync-seal.json"),
    ],
    ids=["copies nothing", "copies to the wrong place", "loses a file"],
)
def test_a_syncer_that_only_says_that_it_copies_is_found_out_at_once(
    make_copy: Callable[..., SyncedCopy], syncer: Syncer
) -> None:
    sync = make_copy(syncer)
    sync.step(0)
    assert sync.arrived == 0
    assert sync.trouble is not None
    assert "reports success, but the journal it has sent" in sync.trouble
    assert "rsync -a {source} {target}" in sync.trouble


def test_a_copy_that_silently_stops_working_is_found_out_at_the_end(
    experiment: Experiment, make_copy: Callable[..., SyncedCopy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synced_copy, "FLUSH_RETRY", Backoff(2 * WAIT_S, math.inf))  # one try
    works = [True]
    real = TreeSyncer()

    def copy(source: str, target: str) -> None:
        if works[0]:
            real._copy(source, target, ())

    sync = make_copy(FunctionSyncer(copy))
    sync.step(0)
    assert sync.trouble is None
    works[0] = False
    experiment.checkpoint()
    with pytest.raises(NotShippedError, match="does not come back"):
        sync.flush(timeout=WAIT_S)


# --- the end


def test_flush_brings_everything_there(
    experiment: Experiment, make_copy: Callable[..., SyncedCopy], tmp_path: Path
) -> None:
    sync = make_copy(CommandSyncer(CP), period_s=3600)
    sync.step(0)
    experiment.checkpoint()
    sync.flush(timeout=WAIT_S)
    assert sync.arrived == 2
    assert records_in(restored(tmp_path)) == [1, 2]


def test_flush_tries_again(make_copy: Callable[..., SyncedCopy], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synced_copy, "FLUSH_RETRY", Backoff(0.01, math.inf))
    failures = [OSError("blip"), OSError("blip")]

    def on_file(rel: str) -> None:
        if failures:
            raise failures.pop()

    sync = make_copy(TreeSyncer(on_file))
    sync.flush(timeout=WAIT_S)
    assert (sync.arrived, failures) == (1, [])


def test_a_sync_that_keeps_failing_at_the_end_is_an_error_that_says_what_is_safe(
    experiment: Experiment, make_copy: Callable[..., SyncedCopy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synced_copy, "FLUSH_RETRY", Backoff(0.01, math.inf))
    count = tmp_path / "count"
    sync = make_copy(CommandSyncer(f"echo x >> {count}; echo 'disk quota' >&2; false {{source}} {{target}}"))
    with pytest.raises(NotShippedError) as failure:
        sync.flush(timeout=3600)
    text = str(failure.value)
    assert "on this machine only" in text
    assert "Stderr: disk quota. Everything is safe in" in text
    assert str(experiment.root) in text
    assert len(count.read_text().split()) == synced_copy.TRIES_OF_WHAT_NEVER_WORKED
    assert isinstance(failure.value, OSError)


def test_flush_ends_in_time_when_a_copy_hangs(make_copy: Callable[..., SyncedCopy]) -> None:
    release = threading.Event()
    sync = make_copy(FunctionSyncer(lambda source, target: release.wait(WAIT_S)))
    with pytest.raises(NotShippedError, match=r"took longer than .* and was given up|no time was left to copy"):
        sync.flush(timeout=0.5)
    release.set()


def test_flush_ends_in_time_when_a_round_of_the_thread_hangs(make_copy: Callable[..., SyncedCopy]) -> None:
    begun, release = threading.Event(), threading.Event()

    def hang(source: str, target: str) -> None:
        begun.set()
        release.wait(WAIT_S)

    sync = make_copy(FunctionSyncer(hang))
    sync.start()
    assert begun.wait(WAIT_S)
    with pytest.raises(NotShippedError, match="a copy still runs"):
        sync.flush(timeout=0.05)
    release.set()


def test_a_copy_longer_than_the_timeout_is_given_up(make_copy: Callable[..., SyncedCopy], tmp_path: Path) -> None:
    sync = make_copy(CommandSyncer("sleep 600; : {source} {target}"), timeout_s=0.05)
    assert sync.step(0)
    assert sync.trouble is not None
    assert "took longer than 0.05 s" in sync.trouble


def test_a_syncer_that_works_at_once_and_never_returns_is_given_up_too(make_copy: Callable[..., SyncedCopy]) -> None:
    release = threading.Event()

    class Hanging(Syncer):
        def sync_up(self, local_dir: str, remote_dir: str, exclude: Sequence[str] | None = None) -> bool:
            return release.wait(WAIT_S)

        def sync_down(self, remote_dir: str, local_dir: str, exclude: Sequence[str] | None = None) -> bool:
            return True

        def delete(self, remote_dir: str) -> bool:
            return True

    sync = make_copy(Hanging(), timeout_s=0.05)
    sync.step(0)
    assert sync.trouble is not None
    assert "took longer" in sync.trouble
    release.set()


# --- deletions


def test_what_is_obsolete_is_deleted_after_a_round_that_succeeds(
    experiment: Experiment, make_copy: Callable[..., SyncedCopy], tmp_path: Path
) -> None:
    syncer = TreeSyncer()
    sync = make_copy(syncer)
    sync.step(0)
    gone = "trial/checkpoint_000001"
    with pytest.raises(ValueError, match="not obsolete"):
        sync.delete(gone)
    shutil.rmtree(experiment.root / gone)
    sync.delete(gone)
    assert (tmp_path / "remote" / gone).exists()
    sync.step(1e6)
    assert not (tmp_path / "remote" / gone).exists()
    assert syncer.calls[-1] == ("delete", str(tmp_path / "remote" / gone))


def test_what_came_back_is_not_deleted(
    experiment: Experiment, make_copy: Callable[..., SyncedCopy], tmp_path: Path
) -> None:
    sync = make_copy(TreeSyncer())
    sync.delete("trial/checkpoint_000002")
    experiment.checkpoint()
    sync.step(0)
    assert (tmp_path / "remote" / "trial" / "checkpoint_000002").exists()


def test_a_deletion_that_fails_is_repeated_a_few_times_and_is_no_trouble(
    make_copy: Callable[..., SyncedCopy], caplog: pytest.LogCaptureFixture
) -> None:
    syncer = TreeSyncer()
    sync = make_copy(syncer)
    sync.delete("trial/never_there")
    for now in range(synced_copy.DELETE_TRIES + 2):
        sync.step(now * 1e6)
        assert sync.trouble is None
    assert [kind for kind, _ in syncer.calls].count("delete") == synced_copy.DELETE_TRIES
    assert "trial/never_there is obsolete and stays" in caplog.text


@pytest.mark.parametrize("path", ["", "/", "/etc", "..", "trial/../..", "a//b", ".", ".holdfast", ".holdfast-safe/x"])
def test_only_what_is_below_the_root_can_be_deleted(make_copy: Callable[..., SyncedCopy], path: str) -> None:
    with pytest.raises(ValueError, match="cannot be deleted"):
        make_copy(TreeSyncer()).delete(path)


def test_addresses_are_joined_before_a_query() -> None:
    assert join_address("s3://b/p/", "x/y") == "s3://b/p/x/y"
    assert join_address("s3://b/p?region=x", "y") == "s3://b/p/y?region=x"
    assert join_address("box:/a?b", "y") == "box:/a?b/y"


@pytest.mark.parametrize("base", ["s3://b/p", "s3://b/p?region=x", "box:/a?b", "/data", ""])
def test_an_address_that_was_joined_can_be_split(base: str) -> None:
    assert split_address(join_address(base, "exp")) == (base, "exp")


def test_a_mark_of_the_last_round_is_at_the_other_end_alone_and_nothing_follows_it(tmp_path: Path) -> None:
    experiment = Experiment(tmp_path / "here" / "exp")
    remote = tmp_path / "remote"
    sync = SyncedCopy(experiment.root, str(remote), TreeSyncer())
    sync.flush(timeout=20, mark="epochs/00000001.released")
    assert (remote / ".holdfast" / "epochs" / "00000001.released").read_bytes() == b""
    assert not (experiment.root / ".holdfast" / "epochs" / "00000001.released").exists()
    experiment.checkpoint()
    sync.request()
    assert not sync.step(math.inf)
    sync.close()
    back = tmp_path / "back"
    fetcher = SyncedCopy(back, str(remote), TreeSyncer())
    fetcher.fetch()
    fetcher.close()
    assert records_in(back) == [1]
    assert (back / ".holdfast" / "epochs" / "00000001.released").exists()
