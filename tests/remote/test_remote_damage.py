"""Objects of the store are damaged or gone between the loss of a machine and the restore on another one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import msgspec
import pytest
from lab import mostly_slow, until
from remote_experiments import RemotePlan
from remote_lab import MANIFEST, RemoteLab
from test_remote_crash_points import forget_lost

from holdfast.core import events as ev
from holdfast.core.state import State, Status
from holdfast.shipping import parts
from holdfast.storage.store import Store
from servers.fault_proxy import Answer, FaultProxy

PLAN = RemotePlan(trials=2, steps=12, every=2, pause_s=0.02, bytes=4_000, max_failures=0)


def delete_all(store: Store, key: str) -> None:
    store.delete([stat.key for stat in store.list(f"{key}/")])


def delete_a_file(store: Store, key: str) -> None:
    store.delete([f"{key}/state.json"])


def cut_a_file(store: Store, key: str) -> None:
    store.put(f"{key}/sub/weights.bin", store.get(f"{key}/sub/weights.bin")[:100])


def flip_a_bit(store: Store, key: str) -> None:
    flip(store, f"{key}/sub/weights.bin")


def flip_a_bit_of_the_manifest(store: Store, key: str) -> None:
    flip(store, key + MANIFEST)


def delete_the_manifest(store: Store, key: str) -> None:
    store.delete([key + MANIFEST])


def use_an_older_one(store: Store, key: str) -> None:
    """As a careless person would, to make the error go away."""
    older = key.rpartition("_")[0] + "_000000"
    for stat in store.list(f"{older}/"):
        store.put(key + stat.key.removeprefix(older), store.get(stat.key))


DAMAGES = [
    (flip_a_bit, delete_the_manifest),
    (delete_all, flip_a_bit_of_the_manifest),
    (delete_a_file, cut_a_file),
    (use_an_older_one, flip_a_bit),
]


def flip(store: Store, key: str) -> None:
    data = store.get(key)
    store.put(key, data[:50] + bytes([data[50] ^ 1]) + data[51:])


def lost_in_the_middle(lab: RemoteLab) -> State:
    """Every trial has three checkpoints in the store and has not ended; its driver is dead."""
    hold = lab.folder / "hold"
    hold.touch()
    plan = msgspec.structs.replace(PLAN, hold=str(hold), hold_at=7)
    driver = lab.start(plan)
    until(lambda: driver.ended or all(len(found) == 3 for found in checkpoints(lab).values()), lambda: driver.output)
    wanted = {ev.CheckpointCommitted: 6}
    until(lambda: driver.ended or count(lab.stored_history(), wanted) == wanted, lambda: driver.output, step_s=0.2)
    driver.kill()
    hold.unlink()
    lab.check_no_process_left()
    state = lab.state()
    assert not any(trial.final for trial in state.trials)
    forget_lost(lab)
    return state


def count(history: list[ev.AnyEvent], kinds: Iterable[type]) -> dict[type, int]:
    return {kind: sum(isinstance(event, kind) for event in history) for kind in kinds}


def checkpoints(lab: RemoteLab) -> dict[int, list[str]]:
    """The keys of each trial's checkpoints in the store, oldest first."""
    keys = sorted(lab.committed_keys())
    return {n: [key for key in keys if re.search(rf"_{n:05d}_", key.partition("/")[0])] for n in range(PLAN.trials)}


@pytest.mark.parametrize("damages", mostly_slow(DAMAGES, DAMAGES[0]))
def test_a_trial_whose_newest_checkpoint_is_damaged_goes_on_from_the_one_before_it(
    lab: RemoteLab, damages: tuple[Callable[[Store, str], None], ...]
) -> None:
    """Two trials, each with its own damage."""
    lost_in_the_middle(lab)
    lab.lose("a")
    victims = {n: found[-1] for n, found in checkpoints(lab).items()}
    for damage, key in zip(damages, victims.values(), strict=True):
        damage(lab.store, key)
    output = lab.run(PLAN, "b").must_finish()
    history = lab.history()
    for n, key in victims.items():
        index = int(key[-6:])
        assert f"checkpoint_{index:06d} cannot be used" in output
        (rejected,) = [e for e in history if isinstance(e, ev.CheckpointRejected) and (e.n, e.index) == (n, index)]
        restart = next(e for e in history[history.index(rejected) :] if isinstance(e, ev.TrialStarted) and e.n == n)
        assert restart.source == (n, index - 1)
        assert restart.rows == index * PLAN.every
        assert str(lab.folder) not in rejected.reason
    lab.check_finished(PLAN)


@pytest.mark.slow
def test_a_damaged_local_copy_is_fetched_again(lab: RemoteLab) -> None:
    """The store's copy is good, so nothing is lost: the trial does not even go back."""
    state = lost_in_the_middle(lab)
    for trial in state.trials:
        for path in lab.dir_of(trial.id).glob("checkpoint_*/sub/weights.bin"):
            path.write_bytes(b"rubbish")
    lab.run(PLAN, "a").must_finish()
    history = lab.history()
    assert not [e for e in history if isinstance(e, ev.CheckpointRejected) and "weights.bin" in e.reason]
    again = [e for e in history if isinstance(e, ev.TrialStarted) and e.attempt > 1]
    assert again
    assert all(e.source is not None for e in again)
    lab.check_finished(PLAN)


@pytest.mark.slow
def test_a_trial_without_a_good_checkpoint_ends_in_error_instead_of_starting_from_scratch(lab: RemoteLab) -> None:
    lost_in_the_middle(lab)
    lab.lose("a")
    for key in checkpoints(lab)[1]:
        flip_a_bit(lab.store, key)
    driver = lab.run(PLAN, "b")
    assert driver.process.returncode == 0, driver.output
    assert "fit() has returned, errors: 1" in driver.output
    after = lab.state()
    assert [trial.status for trial in after.trials] == [Status.TERMINATED, Status.ERROR]
    trial = after.trials[1]
    assert trial.cause == ev.Cause.DAMAGED
    assert trial.error is not None
    assert "every checkpoint of this trial is damaged" in trial.error.message
    lab.run(RemotePlan(restore={"restart_errored": True}), "b").must_finish()
    lab.check_finished(PLAN)


@pytest.mark.slow
def test_a_store_that_does_not_give_a_checkpoint_is_waited_for(proxied: tuple[RemoteLab, FaultProxy]) -> None:
    """Trouble with the store is no damage (C22): there is no fall-back, and no attempt before it is over."""
    lab, proxy = proxied
    lost_in_the_middle(lab)
    lab.lose("a")
    before = len(lab.stored_history())
    busy = proxy.rule(Answer(503), method="GET", path="/checkpoint_", times=5)
    denied = proxy.rule(Answer(403), method="GET", path="/checkpoint_", when=lambda _: busy.hits >= 5)
    driver = lab.start(PLAN, "b")
    until(lambda: denied.hits >= 3 or driver.ended, lambda: driver.output)
    assert not driver.ended, driver.output
    assert not [e for e in lab.history()[before:] if isinstance(e, ev.TrialStarted | ev.CheckpointRejected)]
    proxy.clear()
    driver.must_finish()
    assert not [e for e in lab.history()[before:] if isinstance(e, ev.CheckpointRejected) and "upload" not in e.reason]
    lab.check_finished(PLAN)
    lab.check_stored()


# --- the journal


def part_keys(lab: RemoteLab) -> list[str]:
    return [key for key in lab.keys(parts.PREFIX) if parts.parse_key(key)]


def contents(lab: RemoteLab) -> dict[str, bytes]:
    return {stat.key: lab.store.get(stat.key) for stat in lab.store.list("")}


def delete_it(store: Store, key: str) -> None:
    store.delete([key])


def truncate(store: Store, key: str) -> None:
    store.put(key, store.get(key)[:-5])


@pytest.mark.slow
def test_a_part_of_the_journal_that_is_missing_or_damaged_is_named(lab: RemoteLab) -> None:
    """And once it is put back, the experiment continues."""
    lost_in_the_middle(lab)
    victim = part_keys(lab)[1]
    good = lab.store.get(victim)
    for harm in (delete_it, flip, truncate):
        harm(lab.store, victim)
        there = contents(lab)
        driver = lab.run(PLAN, "b")
        assert driver.process.returncode == 1
        assert "JournalDamagedError" in driver.output
        assert victim.rpartition("/")[2].removesuffix(".hfp") in driver.output, driver.output
        assert contents(lab) == there, "something was changed"
        lab.store.put(victim, good)
    lab.run(PLAN, "b").must_finish()
    lab.check_finished(PLAN)


@pytest.mark.slow
def test_the_machine_that_wrote_a_lost_part_can_still_go_on_or_says_why(lab: RemoteLab) -> None:
    """Its mirror has the same records; whatever it does, it must not lose them or hide the damage."""
    lost_in_the_middle(lab)
    lab.store.delete([part_keys(lab)[1]])
    driver = lab.run(PLAN, "a")
    lab.check_nothing_lost()
    if driver.process.returncode == 0:
        driver.must_finish()
        lab.check_finished(PLAN)
    else:
        assert "JournalDamagedError" in driver.output, driver.output


@pytest.mark.slow
def test_a_private_file_that_is_gone_is_said(lab: RemoteLab) -> None:
    lost_in_the_middle(lab)
    for name in ("spec.json", "objects/settings.pkl", "objects/trainable.pkl"):
        key = f".holdfast/{name}"
        good = lab.store.get(key)
        lab.store.delete([key])
        driver = lab.run(RemotePlan(restore_only=True), "b")
        assert driver.process.returncode == 1, driver.output
        last = driver.output.splitlines()[-1]
        assert "Error" in last
        assert name.rpartition("/")[2].partition(".")[0] in last or "experiment" in last
        lab.store.put(key, good)
        lab.lose("b")


# --- retention


def test_deleting_a_checkpoint_begins_with_its_manifest(lab: RemoteLab) -> None:
    """Whoever looks at any moment finds a manifest with all its files, or none."""
    plan = RemotePlan(trials=1, steps=8, every=1, keep=1, pause_s=0.05, max_failures=0)
    driver = lab.start(plan)

    def look() -> bool:
        lab.check_manifests_are_whole()
        return driver.ended

    until(look, lambda: driver.output)
    driver.must_finish()
    lab.check_finished(plan)
    lab.check_stored()
