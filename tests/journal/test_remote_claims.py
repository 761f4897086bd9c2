"""Claims in a store: one driver at a time, whoever comes second is told by whom it is held."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from shipping import Lab, history

from holdfast.errors import (
    ExperimentLockedError,
    ObjectMissingError,
    StoreDeniedError,
    StoreUnreachableError,
    UnsafeStoreError,
)
from holdfast.journal import Journal, claim_epoch, holder
from holdfast.shipping.claiming import claim_remote
from holdfast.shipping.remote_holder import refuse_live, remote_claim
from holdfast.shipping.restore_mirror import restore_mirror
from holdfast.storage.probe import probe
from holdfast.storage.store import Stat
from holdfast.testing.memory_store import Fault, MemoryStore


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(tmp_path, monkeypatch)


def copy_of(path: str) -> dict[str, bytes]:
    found = {}
    for folder, _, names in os.walk(path):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                found[os.path.relpath(os.path.join(folder, name), path)] = file.read()
    return found


def test_a_live_driver_elsewhere_refuses_the_next_one_by_name(lab: Lab) -> None:
    first = lab.drive("one")
    first.write()
    lab.clock.sleep(50)
    with pytest.raises(ExperimentLockedError, match=r"pid \d+ on one.*takeover=True") as info:
        lab.drive("two")
    assert (info.value.host, info.value.pid) == ("one", os.getpid())
    assert info.value.age_s == pytest.approx(50)
    assert not os.path.exists(lab.root("two"))


def test_a_silent_driver_elsewhere_is_succeeded_after_a_minute(lab: Lab) -> None:
    first = lab.drive("one")
    first.write()
    lab.clock.sleep(61)
    second = lab.drive("two")
    assert second.found == first.history
    first.ship()
    first.ship(20)
    assert first.shipper.fenced


def test_a_dead_driver_of_this_machine_is_succeeded_at_once(lab: Lab) -> None:
    first = lab.drive("one")
    first.write()
    with pytest.raises(ExperimentLockedError):
        lab.drive("one")
    first.kill()
    assert lab.drive("one").found == first.history


def test_the_local_claim_sees_how_old_the_newest_part_is(lab: Lab) -> None:
    lab.drive("one").write()
    lab.clock.sleep(500)
    with lab.on("two"):
        restore_mirror(lab.store, lab.root("two"))
        current = holder(lab.root("two"))
    assert current is not None
    assert not current.alive
    assert current.age_s == pytest.approx(500, abs=60)


def test_no_claim_is_seen_in_a_store_without_parts(lab: Lab) -> None:
    assert remote_claim(lab.store) is None
    refuse_live(lab.store, None)


def test_a_part_that_vanishes_because_it_was_merged_is_looked_for_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = lab.drive()
    driver.write()
    get, calls = lab.store.get, []

    def vanishing(key: str) -> bytes:
        calls.append(key)
        if len(calls) == 1:
            raise ObjectMissingError("gone")
        return get(key)

    monkeypatch.setattr(lab.store, "get", vanishing)
    current = remote_claim(lab.store)
    assert current is not None
    assert current.claim == driver.claim


def test_sixteen_drivers_on_sixteen_machines_claim_at_once_and_one_wins(lab: Lab) -> None:
    lab.drive("zero").leave()
    ready = threading.Barrier(16)
    won: list[str] = []
    lost: list[ExperimentLockedError] = []
    failed: list[BaseException] = []

    def start(name: str) -> None:
        try:
            restored = restore_mirror(lab.store, lab.root(name))
            claim = claim_epoch(lab.root(name))
            ready.wait(30)
            claim_remote(lab.store, restored, claim)
            won.append(claim.writer)
        except ExperimentLockedError as error:
            lost.append(error)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=start, args=(f"m{n}",)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert (len(won), len(lost)) == (1, 15)
    current = remote_claim(lab.store)
    assert current is not None
    assert current.claim.writer == won[0]
    for n in range(16):  # and nobody's mirror is in the way later
        with lab.on(f"m{n}"):
            assert restore_mirror(lab.store, lab.root(f"m{n}")).case == "equal"


def test_the_driver_that_is_taken_over_may_still_be_shipping(lab: Lab) -> None:
    old = lab.drive("one")
    old.write(2)
    with lab.on("two"):
        restored = restore_mirror(lab.store, lab.root("two"))
        claim = claim_epoch(lab.root("two"), takeover=True)
        old.write(3)
        with pytest.raises(ExperimentLockedError, match="on one"):  # it is not dead at all
            claim_remote(lab.store, restored, claim)
        start = claim_remote(lab.store, restored, claim, takeover=True)
        journal = Journal.create_or_append(lab.root("two"), claim, threaded=False)
    assert start.shipped.seq == 5
    assert history(lab.root("two")) == old.history
    journal.close()
    old.append()
    old.ship()
    assert old.shipper.fenced


@pytest.mark.parametrize("stale", [1, 1000])
def test_a_listing_that_is_older_than_the_part_that_is_there_is_asked_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, stale: int
) -> None:
    old = lab.drive("one")
    with lab.on("two"):
        restored = restore_mirror(lab.store, lab.root("two"))
        claim = claim_epoch(lab.root("two"), takeover=True)
        old.write()
        now, left = lab.store.list, [stale]

        def lagging(prefix: str) -> list[Stat]:
            left[0] -= 1
            return [] if left[0] >= 0 else now(prefix)

        monkeypatch.setattr(lab.store, "list", lagging)
        if stale == 1:
            assert claim_remote(lab.store, restored, claim, takeover=True).shipped.seq == 1
        else:
            with pytest.raises(StoreUnreachableError, match=r"does not list it. Nothing was changed. Try again"):
                claim_remote(lab.store, restored, claim, takeover=True)


def test_a_rival_wins_also_against_a_take_over(lab: Lab) -> None:
    old = lab.drive("one")
    old.write(2)
    with lab.on("two"):
        restored = restore_mirror(lab.store, lab.root("two"))
        claim = claim_epoch(lab.root("two"), takeover=True)
    old.write()
    rival = lab.drive("three", takeover=True)
    with lab.on("two"), pytest.raises(ExperimentLockedError, match="on three"):
        claim_remote(lab.store, restored, claim, takeover=True)
    rival.write()
    assert lab.look() == rival.history


def test_a_claim_whose_answer_is_lost_counts(lab: Lab) -> None:
    lab.store.fail(Fault("lost", ("create",), times=1))
    driver = lab.drive()
    driver.write()
    assert lab.look() == driver.history


@pytest.mark.parametrize(("kind", "error"), [("unreachable", StoreUnreachableError), ("denied", StoreDeniedError)])
def test_a_store_that_does_not_answer_changes_no_mirror(lab: Lab, kind: str, error: type[Exception]) -> None:
    driver = lab.drive()
    driver.write(2)
    driver.kill()
    before = copy_of(driver.root)
    lab.store.fail(Fault(kind))  # type: ignore[arg-type]
    with pytest.raises(error):
        restore_mirror(lab.store, driver.root)
    assert copy_of(driver.root) == before


def test_a_store_that_overwrites_what_it_should_create_is_refused() -> None:
    probe(MemoryStore())
    with pytest.raises(UnsafeStoreError, match="create-only"):
        probe(MemoryStore(honours_create=False))


def test_a_driver_that_could_not_tell_the_store_that_it_left_does_not_block_its_machine(lab: Lab) -> None:
    driver = lab.drive("one")
    driver.append()
    lab.store.fail(Fault("unreachable"))
    assert not driver.leave()
    lab.alive.add(driver.claim.writer)  # its process continues, as a notebook's does
    lab.store.heal()
    again = lab.drive("one")
    assert again.found == driver.history
    with pytest.raises(ExperimentLockedError):
        lab.drive("two")
