"""The shipper: what it says is in the store is there, nothing twice, and nothing after a successor has come."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from shipping import Lab, dying_at, history

from holdfast.errors import FencedError, JournalDamagedError, StoreDeniedError, StoreUnreachableError
from holdfast.journal import is_fenced
from holdfast.journal import segment_writer as segment_writer_module
from holdfast.shipping import parts
from holdfast.shipping import pending as pending_module
from holdfast.shipping.progress_file import read_note
from holdfast.shipping.shipper import RETRY, ShippingTrouble
from holdfast.testing.memory_store import Fault


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(tmp_path, monkeypatch)


def creations(lab: Lab) -> int:
    return sum(request.verb == "create" for request in lab.store.requests)


def test_a_record_is_in_the_store_a_period_after_it_was_synced(lab: Lab) -> None:
    driver = lab.drive()
    driver.write(3)
    assert driver.shipper.shipped_seq == 3
    assert lab.look() == driver.history


def test_a_record_that_is_not_synced_here_is_not_shipped(lab: Lab) -> None:
    driver = lab.drive()
    driver.write(2)
    driver.append(2)
    lab.clock.sleep(1)
    driver.step()
    assert driver.shipper.shipped_seq == 2
    assert lab.look() == driver.history[:2]


def test_records_wait_for_company_but_not_when_one_is_requested(lab: Lab) -> None:
    driver = lab.drive()
    driver.write()
    before = creations(lab)
    driver.append()
    driver.ship(0.1)
    driver.append()
    driver.ship(0.1)
    assert creations(lab) == before
    driver.append()
    driver.shipper.request(4)
    driver.ship(0.1)
    assert creations(lab) == before + 1
    assert driver.shipper.shipped_seq == 4


def test_an_idle_driver_sends_only_a_heartbeat_every_15_seconds(lab: Lab) -> None:
    driver = lab.drive()
    driver.write()
    before = len(lab.store.requests)
    for _ in range(1200):
        lab.clock.sleep(0.25)
        driver.shipper.step()
    assert len(lab.store.requests) - before == 20


def test_a_busy_driver_sends_one_part_a_second(lab: Lab) -> None:
    driver = lab.drive()
    driver.write()
    before = len(lab.store.requests)
    for _ in range(240):
        driver.append()
        driver.ship(0.25)
    assert len(lab.store.requests) - before <= 60
    assert driver.shipper.lag_s <= 1.0


def test_the_lag_is_the_age_of_the_oldest_record_that_is_not_shipped(lab: Lab) -> None:
    driver = lab.drive()
    assert driver.shipper.lag_s == 0
    lab.store.fail(Fault("unreachable"))
    driver.append()
    driver.ship(0)
    for _ in range(1500):
        driver.append()
        driver.ship(1)
    assert driver.shipper.lag_s == 1500
    lab.store.heal()
    driver.ship(RETRY.longest_s)
    driver.ship(1)
    assert driver.shipper.lag_s == 0
    assert lab.look() == driver.history


def test_segments_that_end_are_shipped_with_those_that_follow(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_writer_module, "SEGMENT_BYTES", 300)
    driver = lab.drive()
    for count in (1, 7, 2, 30):
        driver.write(count)
        assert lab.look() == driver.history
    files = os.listdir(f"{driver.root}/.holdfast/journal")
    assert len(files) > 5
    noted = read_note(driver.root)
    assert noted is not None
    assert noted.is_held_by(driver.root)


def test_a_rotation_between_the_look_at_the_journal_and_the_reading_leaves_no_gap(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_writer_module, "SEGMENT_BYTES", 300)
    driver = lab.drive()
    driver.write(2)
    pending = driver.shipper._pending
    driver.append(30)
    driver.journal.sync()
    for synced in range(2, 33):
        batch = pending.collect(synced)
        assert batch.seq == synced
        driver.journal.append([])


def test_a_backlog_is_shipped_in_parts_of_limited_size(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_writer_module, "SEGMENT_BYTES", 5000)
    driver = lab.drive()
    monkeypatch.setattr(pending_module.PendingRecords.collect, "__defaults__", (1000,))
    driver.append(3, size=200)
    driver.append(1, size=4000)
    driver.append(20, size=200)
    driver.ship()
    assert driver.shipper.shipped_seq == 24
    sizes = [len(data) for key, data in lab.store.objects.items() if key.startswith(parts.PREFIX)]
    assert sum(size > 2000 for size in sizes) == 1  # the record that is larger than a part
    assert len(sizes) > 6
    assert lab.look() == driver.history


def test_a_segment_that_repeats_older_records_replaces_them_at_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the disk does not sync the dead driver's segment, the next one copies it; the copy is longer than a part."""
    first = lab.drive()
    first.write(20, size=200)
    first.kill()

    def refuse(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("holdfast.storage.local._sync_data", refuse)
        second = lab.drive()
    monkeypatch.setattr(pending_module.PendingRecords.collect, "__defaults__", (1000,))
    second.append()
    second.journal.sync()
    lab.clock.sleep(1)
    while second.shipper.step() == 0.0:
        assert lab.look()[:20] == first.history
    assert lab.look() == second.history


def test_a_lost_answer_is_not_taken_for_a_rival(lab: Lab) -> None:
    driver = lab.drive()
    for _ in range(5):
        lab.store.fail(Fault("lost", ("create",), times=1))
        driver.write()
        driver.ship(RETRY.longest_s)
    driver.ship()
    assert not driver.shipper.fenced
    assert driver.shipper.shipped_seq == 5
    assert lab.look() == driver.history


def test_an_outage_is_waited_for_and_told_of_once(lab: Lab) -> None:
    driver = lab.drive()
    told: list[ShippingTrouble | None] = []
    driver.shipper.on_trouble = told.append
    began = lab.clock.now()
    lab.store.fail(Fault("unreachable", until=lab.clock.wall() + 600))
    before = len(lab.store.requests)
    for _ in range(599):
        driver.append()
        driver.ship(1)
    assert len(lab.store.requests) - before < 100
    assert driver.shipper.trouble is not None
    assert driver.shipper.trouble.kind == "unreachable"
    assert driver.shipper.trouble.since == began + 1
    assert isinstance(driver.shipper.trouble.error, StoreUnreachableError)
    driver.ship(RETRY.longest_s)
    driver.ship(1)
    assert [trouble and trouble.kind for trouble in told] == ["unreachable", None]
    assert lab.look() == driver.history


def test_a_refusal_is_another_trouble_than_an_outage(lab: Lab) -> None:
    driver = lab.drive()
    told: list[ShippingTrouble | None] = []
    driver.shipper.on_trouble = told.append
    fault = lab.store.fail(Fault("unreachable"))
    driver.write()
    lab.store.faults.remove(fault)
    lab.store.fail(Fault("denied"))
    driver.ship(RETRY.longest_s)
    assert driver.shipper.trouble is not None
    assert driver.shipper.trouble.since == lab.clock.now()
    assert isinstance(driver.shipper.trouble.error, StoreDeniedError)
    assert [trouble and trouble.kind for trouble in told] == ["unreachable", "denied"]


def test_a_driver_that_was_taken_over_is_fenced_here_too(lab: Lab) -> None:
    old = lab.drive("one")
    old.write(3)
    new = lab.drive("two", takeover=True)
    assert new.found == old.history
    old.append()
    old.ship()
    assert old.shipper.fenced
    assert is_fenced(old.root, old.claim)
    assert old.successors == [new.claim]
    with pytest.raises(FencedError, match="on two"):
        old.journal.append([b"void"])
    assert not old.leave()
    new.write()
    assert lab.look() == new.history


def test_a_driver_whose_last_answer_was_lost_sees_its_successor_behind_its_own_part(lab: Lab) -> None:
    """It was stopped while a part was on its way; when it wakes up, its older result files must not be uploaded."""
    driver = lab.drive("one")
    driver.write(2)
    assert not driver.shipper.is_overtaken()
    lab.store.fail(Fault("lost", ("create",), times=1))
    driver.write()
    assert not driver.shipper.is_overtaken()
    driver.kill()
    lab.drive("two", takeover=True).write(3)
    assert driver.shipper.is_overtaken()


def test_a_driver_that_wakes_up_after_everything_was_merged_is_fenced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(tmp_path, monkeypatch, merging=(4, 4))
    old = lab.drive("one")
    old.write(3)
    new = lab.drive("two", takeover=True)
    for _ in range(40):
        new.write()
    claim = parts.part_key(new.restored.shipped.number + 1)
    assert claim in lab.store.objects
    assert parts.part_key(new.restored.shipped.number + 2) not in lab.store.objects
    old.append()
    old.ship()
    assert old.shipper.fenced
    assert lab.look() == new.history


def test_an_answer_lost_before_a_take_over_does_not_hide_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old driver's last part arrived, was merged and deleted; its repetition may succeed, the next part not."""
    lab = Lab(tmp_path, monkeypatch, merging=(4, 4))
    old = lab.drive("one")
    lab.store.fail(Fault("lost", ("create",), times=1))
    old.write()
    new = lab.drive("two", takeover=True)
    assert new.found == old.history
    for _ in range(40):
        new.write()
    assert parts.part_key(2) not in lab.store.objects
    assert old.shipper.is_overtaken()
    lab.promised = old.history  # what it says next is true, and old
    old.append()
    old.journal.sync()
    lab.clock.sleep(RETRY.longest_s)
    while old.shipper.step() == 0.0:
        pass
    assert old.shipper.shipped_seq <= 1
    lab.clock.sleep(1)
    old.shipper.step()
    assert old.shipper.fenced
    assert lab.look() == new.history


def test_a_second_driver_of_the_same_mirror_stops_the_first_ones_shipping(lab: Lab) -> None:
    old = lab.drive()
    old.write(2)
    old.append(2)
    old.journal.sync()
    new = lab.drive(takeover=True)
    assert new.found == old.history
    new.append()
    before = lab.store.objects
    lab.clock.sleep(1)
    old.step()
    assert old.shipper.fenced
    assert lab.store.objects == before
    new.ship()
    assert lab.look() == new.history


def test_leaving_ships_the_rest_and_lets_the_next_driver_in(lab: Lab) -> None:
    driver = lab.drive("one")
    driver.write()
    driver.append(2)
    assert driver.leave()
    assert lab.look() == driver.history
    assert driver.shipper.step() > 1e9
    following = lab.drive("two")  # no takeover, at once
    assert following.found == driver.history


def test_leaving_gives_up_at_its_deadline_and_says_so(lab: Lab) -> None:
    driver = lab.drive()
    driver.append(2)
    lab.store.fail(Fault("unreachable"))
    began = lab.clock.now()
    assert not driver.leave()
    assert lab.clock.now() - began <= 30
    lab.store.heal()
    again = lab.drive()
    assert again.restored.case == "ahead"
    again.ship()
    assert lab.look() == driver.history


def test_closing_without_release_asks_nothing_if_all_is_shipped(lab: Lab) -> None:
    driver = lab.drive()
    driver.write()
    before = len(lab.store.requests)
    assert driver.shipper.close(release=False)
    assert len(lab.store.requests) == before


def test_the_thread_ships_and_tells_whoever_waits(lab: Lab) -> None:
    driver = lab.drive()
    driver.append(5)
    driver.journal.sync()
    told: list[int] = []
    seen = threading.Event()
    driver.shipper.on_shipped = lambda seq: (told.append(seq), seen.set())[0]
    driver.shipper.start()
    assert driver.shipper.wait_shipped(5, timeout=30)
    assert seen.wait(30)
    assert told == [5]
    assert not driver.shipper.wait_shipped(6, timeout=0.01)
    assert driver.leave()
    assert not driver.shipper.wait_shipped(6)  # and does not wait for what never comes
    assert lab.look() == driver.history


def test_a_bug_ends_the_thread_and_wakes_whoever_waits(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    driver = lab.drive()
    driver.append()
    driver.journal.sync()

    def fail(_: int) -> None:
        raise ValueError("a bug")

    driver.shipper.on_shipped = fail
    driver.shipper.start()
    assert not driver.shipper.wait_shipped(2, timeout=30)
    assert driver.shipper.trouble is not None
    assert driver.shipper.trouble.kind == "bug"
    assert f"nothing more is shipped to {lab.store.url}" in caplog.text
    driver.shipper.close()


@pytest.mark.parametrize("place", ["ship.before_put", "ship.after_put", "ship.before_note"])
def test_a_kill_while_shipping_loses_and_repeats_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    driver = lab.drive()
    driver.write(2)
    driver.append(2)
    with dying_at(monkeypatch, place):
        driver.ship()
    driver.kill()
    again = lab.drive()
    assert again.found == driver.history
    assert again.restored.case == ("ahead" if place == "ship.before_put" else "equal")
    again.write()
    assert lab.look() == again.history
    elsewhere = lab.drive("two", takeover=True)
    assert elsewhere.found == again.history


@pytest.mark.parametrize("place", ["merge.before_put", "merge.before_delete"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_kill_while_merging_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, nth: int
) -> None:
    lab = Lab(tmp_path, monkeypatch, merging=(4, 4))
    driver = lab.drive()
    with dying_at(monkeypatch, place, nth):
        for _ in range(30):
            driver.write()
    assert lab.look() == driver.history
    driver.kill()
    again = lab.drive()
    for _ in range(10):
        again.write()
    assert lab.look() == again.history
    spans = [parts.parse_key(key) for key in lab.store.objects if key.startswith(parts.PREFIX)]
    singles = [span for span in spans if span is not None and span.first == span.last]
    assert len(singles) <= 4 + 4 + 2  # those kept, those not yet merged, two claims


def test_merging_keeps_few_objects_and_the_whole_chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(tmp_path, monkeypatch, merging=(8, 8))
    driver = lab.drive()
    for _ in range(100):
        driver.write()
    keys = [key for key in lab.store.objects if key.startswith(parts.PREFIX)]
    assert len(keys) < 101 // 8 + 8 + 8 + 1
    assert lab.look() == driver.history
    monkeypatch.undo()
    assert history(driver.root) == driver.history


def test_nothing_is_deleted_if_a_merged_object_is_not_what_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lab = Lab(tmp_path, monkeypatch, merging=(4, 4))
    driver = lab.drive()
    write = lab.store._write

    def spoil(key: str, data: bytes) -> None:
        write(key, data[:-1] + bytes([data[-1] ^ 1]) if "-" in key else data)

    monkeypatch.setattr(lab.store, "_write", spoil)
    for _ in range(20):
        driver.write()
    assert "could not be merged" in caplog.text
    assert {parts.part_key(number) for number in range(1, 22)} <= set(lab.store.objects)
    assert lab.look() == driver.history  # a spoiled object is passed over as long as its parts are there


def test_a_damaged_merged_object_is_named_when_its_parts_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(tmp_path, monkeypatch, merging=(4, 4))
    driver = lab.drive()
    for _ in range(20):
        driver.write()
    key = parts.Span(5, 8).key
    data = lab.store.objects[key]
    lab.store.put(key, data[:100] + bytes([data[100] ^ 1]) + data[101:])
    with pytest.raises(JournalDamagedError, match=r"000000000005-000000000008\.hfp does not match") as info:
        lab.look()
    assert info.value.file == key


def test_nothing_is_deleted_for_a_merged_object_of_another_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lab = Lab(tmp_path, monkeypatch, merging=(4, 4))
    other = lab.drive("two")
    for _ in range(4):
        other.write()
    merged = lab.store.get(parts.Span(1, 4).key)
    lab.store.delete(lab.store.objects)
    lab.promised = []
    driver = lab.drive("one")
    driver.write()
    lab.store.put(parts.Span(1, 4).key, merged)
    for _ in range(10):
        driver.write()
    assert "holds another part 4" in caplog.text
    assert {parts.part_key(number) for number in range(1, 13)} <= set(lab.store.objects)
