"""Restoring a mirror: whatever a driver finds on this machine, it continues with what is in the store."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import pytest
from shipping import Lab, dying_at, history

from holdfast.errors import FencedError, JournalDamagedError, StorageError, StorageFullError
from holdfast.journal import Journal, SnapshotStore, claim_epoch
from holdfast.shipping import parts
from holdfast.shipping import restore_mirror as restore_module
from holdfast.shipping.progress_file import FILE as NOTE
from holdfast.shipping.remote_holder import remote_claim
from holdfast.shipping.restore_mirror import restore_mirror
from holdfast.storage.locks import lock
from holdfast.testing.memory_store import Fault


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


def fetched(lab: Lab, since: int) -> list[str]:
    """Return what was downloaded; a fetch of several objects counts as its first."""
    return [
        request.key
        for request in lab.store.requests[since:]
        if request.verb in ("get", "fetch") and request.objects and request.key.startswith(".holdfast")
    ]


# ------------------------------------------------------------------------------------------- the five cases


def test_an_empty_machine_gets_the_mirror_back_byte_for_byte(lab: Lab) -> None:
    driver = lab.drive("one")
    lab.store.put(".holdfast/spec.json", b"facts")
    lab.store.put(".holdfast/objects/trainable.pkl", b"pickle")
    driver.write(5)
    driver.write(2)
    with lab.on("two"):
        found = restore_mirror(lab.store, lab.root("two"))
    assert found.case == "absent"
    mine, theirs = copy_of(driver.root), copy_of(lab.root("two"))
    assert theirs.pop(".holdfast/spec.json") == b"facts"
    assert theirs.pop(".holdfast/objects/trainable.pkl") == b"pickle"
    assert msgspec.json.decode(theirs.pop(NOTE)) == msgspec.json.decode(mine.pop(NOTE))
    assert theirs.pop(".holdfast/epochs/00000001.synced") == mine.pop(".holdfast/epochs/00000001.synced")
    assert theirs == mine
    assert sorted(os.listdir(lab.root("two"))) == [".holdfast"]


def test_nothing_comes_of_an_empty_store_and_no_mirror(lab: Lab) -> None:
    found = restore_mirror(lab.store, lab.root("one"))
    assert (found.case, found.shipped.number, found.holder) == ("absent", 0, None)
    assert os.listdir(lab.root("one")) == []


def test_a_mirror_that_the_store_knows_nothing_of_is_ahead(lab: Lab) -> None:
    os.makedirs(lab.root("one") + "/.holdfast")
    assert restore_mirror(lab.store, lab.root("one")).case == "ahead"
    assert os.listdir(lab.root("one")) == [".holdfast"]


def test_a_mirror_that_is_equal_is_kept_and_only_the_last_part_is_read(lab: Lab) -> None:
    driver = lab.drive()
    for _ in range(10):
        driver.write()
    driver.kill()
    before, since = copy_of(driver.root), len(lab.store.requests)
    found = restore_mirror(lab.store, driver.root)
    assert found.case == "equal"
    assert fetched(lab, since) == [parts.part_key(11)]
    assert copy_of(driver.root) == before


@pytest.mark.parametrize("note", ["kept", "lost", "damaged"])
def test_a_mirror_that_knows_more_is_kept_and_ships_the_rest(lab: Lab, note: str) -> None:
    driver = lab.drive()
    driver.write(3)
    driver.append(4)
    driver.kill()
    path = os.path.join(driver.root, NOTE)
    if note == "lost":
        os.remove(path)
    elif note == "damaged":
        Path(path).write_bytes(b"{}")
    again = lab.drive()
    assert again.restored.case == "ahead"
    assert again.found == driver.history
    assert again.shipper.shipped_seq == 3
    again.ship()
    assert lab.look() == driver.history


@pytest.mark.parametrize("note", ["kept", "lost"])
def test_a_mirror_that_is_behind_is_brought_up(lab: Lab, note: str) -> None:
    first = lab.drive("one")
    first.write(3)
    first.leave()
    os.makedirs(first.root + "/.holdfast/logs")
    Path(first.root + "/.holdfast/logs/driver.log").write_bytes(b"mine")
    second = lab.drive("two")
    second.write(4)
    lab.store.put(".holdfast/objects/new.pkl", b"new")
    second.leave()
    if note == "lost":
        os.remove(os.path.join(first.root, NOTE))
    since = len(lab.store.requests)
    third = lab.drive("one")
    assert third.restored.case == "behind"
    assert third.restored.message == ""
    assert third.found == second.history
    if note == "kept":
        assert parts.part_key(1) not in fetched(lab, since)
    assert Path(first.root + "/.holdfast/objects/new.pkl").read_bytes() == b"new"
    assert Path(first.root + "/.holdfast/logs/driver.log").read_bytes() == b"mine"
    assert sorted(os.listdir(first.root)) == [".holdfast"]
    third.write()
    assert lab.look() == third.history


@pytest.mark.parametrize("note", ["kept", "lost"])
def test_a_mirror_that_has_gone_on_alone_is_set_aside_and_rebuilt(
    lab: Lab, note: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = lab.drive("one")
    first.write(3)
    first.append(2)
    first.kill()
    second = lab.drive("two", takeover=True)
    assert second.found == first.history[:3]
    second.write(4)
    second.leave()
    if note == "lost":
        os.remove(os.path.join(first.root, NOTE))
    third = lab.drive("one")
    assert third.restored.case == "diverged"
    aside = third.restored.superseded
    assert aside == os.path.join(first.root, ".holdfast.superseded-1")
    assert aside in third.restored.message
    assert aside in caplog.text
    assert third.found == second.history
    shutil.copytree(aside, lab.root("aside"))
    assert history(lab.root("aside")) == first.history
    third.write()
    assert lab.look() == third.history


def test_directories_of_a_history_that_does_not_count_are_set_aside_with_it(lab: Lab) -> None:
    """A checkpoint there may have the name of one that the store's history has, or will have."""
    first = lab.drive("one")
    first.write(2)
    first.append()
    first.kill()
    checkpoint = os.path.join(first.root, "trial", "checkpoint_000001")
    os.makedirs(checkpoint)
    second = lab.drive("two", takeover=True)
    second.write(1)
    second.leave()
    third = lab.drive("one")
    assert not os.path.exists(checkpoint)
    assert os.path.isdir(os.path.join(third.restored.superseded, "trial", "checkpoint_000001"))


def test_what_was_set_aside_before_stays(lab: Lab) -> None:
    for machine, other in (("one", "two"), ("one", "three")):
        driver = lab.drive(machine, takeover=True)
        driver.write()
        driver.append()
        driver.kill()
        lab.drive(other, takeover=True).leave()
    lab.drive("one")
    names = [name for name in sorted(os.listdir(lab.root("one"))) if "superseded" in name]
    assert len(names) == 2


def test_a_claim_that_never_arrived_is_not_a_history_to_set_aside(lab: Lab) -> None:
    first = lab.drive("one")
    first.write(3)
    first.leave()
    claim_epoch(first.root)  # and dies before the claim in the store
    second = lab.drive("two")
    second.write()
    second.leave()
    third = lab.drive("one")
    assert third.restored.case == "behind"
    assert third.found == second.history


def test_a_claim_that_never_arrived_is_shipped_by_the_next_driver(lab: Lab) -> None:
    first = lab.drive("one")
    first.write(3)
    first.leave()
    claim_epoch(first.root)
    second = lab.drive("one")
    assert second.claim.epoch == 3
    second.write()
    third = lab.drive("two", takeover=True)
    assert third.claim.epoch == 4
    second.ship(20)
    assert second.shipper.fenced


def test_parts_go_on_where_a_plain_copy_of_a_local_root_ends(lab: Lab) -> None:
    root = lab.root("zero")
    journal = Journal.create_or_append(root, claim_epoch(root), threaded=False)
    journal.append([b"one", b"two"])
    journal.close()
    for file, data in copy_of(root).items():
        lab.store.put(file, data)
    lab.store.put(".holdfast/spec.json", b"facts")
    driver = lab.drive("one")
    assert driver.restored.case == "absent"
    assert driver.found == [b"one", b"two"]
    assert driver.shipper.shipped_seq == 2
    assert driver.claim.epoch == 2
    driver.write(3)
    assert lab.look() == driver.history
    driver.kill()
    again = lab.drive("one")
    assert again.restored.case == "equal"
    again.write()
    assert lab.look() == again.history


def test_a_plain_copy_of_the_mirror_itself_is_gone_on_with(lab: Lab) -> None:
    """The copy was made while the journal was written: it ends in the middle of a record."""
    root = lab.root("one")
    journal = Journal.create_or_append(root, claim_epoch(root), threaded=False)
    journal.append([b"one" * 10, b"two" * 10])
    for file, data in copy_of(root).items():
        lab.store.put(file, data[:-7] if file.endswith(".hfj") else data)
    journal.append([b"three"])
    journal.close()
    driver = lab.drive("one")
    assert driver.restored.case == "ahead"
    assert driver.shipper.shipped_seq == 1
    driver.write()
    assert lab.look() == driver.history == [b"one" * 10, b"two" * 10, b"three", driver.history[-1]]


def test_a_bucket_that_was_emptied_is_filled_again(lab: Lab) -> None:
    driver = lab.drive()
    driver.write(3)
    driver.kill()
    lab.store.delete(lab.store.objects)
    again = lab.drive()
    assert again.restored.case == "ahead"
    again.ship()
    assert lab.look() == driver.history


def test_a_snapshot_of_a_history_that_was_set_aside_is_not_used(lab: Lab) -> None:
    first = lab.drive("one")
    first.write(3)
    first.append(2)
    first.journal.sync()
    SnapshotStore(first.root, epoch=1).write(5, first.journal.position, b"state")
    first.kill()
    lab.drive("two", takeover=True).leave()
    third = lab.drive("one")
    assert SnapshotStore(third.root).load() is None


def test_records_that_only_stand_in_other_files_are_not_set_aside(lab: Lab) -> None:
    """The second driver copied what the first had not said to be synced, and died before it shipped anything."""
    first = lab.drive("one")
    first.write(3)
    first.kill()
    os.remove(first.root + "/.holdfast/epochs/00000001.synced")
    second = lab.drive("one")
    second.kill()
    third = lab.drive("two", takeover=True)
    third.write()
    third.leave()
    fourth = lab.drive("one")
    assert fourth.restored.case == "behind"
    assert fourth.found == third.history


def test_what_was_restored_is_not_copied_and_shipped_again(lab: Lab) -> None:
    first = lab.drive("one")
    first.write(50, size=1000)
    first.leave()
    second = lab.drive("two")
    second.write()
    assert len(lab.store.objects[parts.part_key(5)]) < 2000


# ------------------------------------------------------------------------------------------- readers


def test_a_reader_changes_neither_mirror_nor_store(lab: Lab) -> None:
    first = lab.drive("one")
    first.write(3)
    first.append(2)
    second = lab.drive("two", takeover=True)
    second.write()
    mirror, objects, since = copy_of(first.root), lab.store.objects, len(lab.store.requests)
    found = restore_mirror(lab.store, first.root, read_only=True)
    assert found.case in ("absent", "equal")
    assert found.root != first.root
    assert history(found.root) == second.history
    assert copy_of(first.root) == mirror
    assert lab.store.objects == objects
    assert {request.verb for request in lab.store.requests[since:]} <= {"list", "get", "fetch", "stat"}
    second.write()
    again = restore_mirror(lab.store, first.root, read_only=True)
    assert history(again.root) == second.history


def test_a_reader_uses_the_mirror_of_a_live_driver(lab: Lab) -> None:
    driver = lab.drive()
    driver.write(3)
    driver.append(2)
    found = restore_mirror(lab.store, driver.root, read_only=True)
    assert (found.case, found.root) == ("ahead", driver.root)


def test_whoever_may_only_read_can_look(lab: Lab) -> None:
    driver = lab.drive("one")
    driver.write(3)
    lab.store.fail(Fault("denied", ("put", "create", "delete", "send", "replace")))
    with lab.on("two"):
        current = remote_claim(lab.store)
        assert current is not None
        assert current.claim == driver.claim
        assert history(restore_mirror(lab.store, lab.root("two"), read_only=True).root) == driver.history


# ------------------------------------------------------------------------------------------- damage and death


def test_a_missing_part_is_damage_and_is_named(lab: Lab) -> None:
    driver = lab.drive()
    for _ in range(4):
        driver.write()
    lab.store.delete([parts.part_key(3)])
    with pytest.raises(JournalDamagedError, match=r"000000000003\.hfp is missing") as info:
        lab.look()
    assert info.value.file == parts.part_key(3)


@pytest.mark.parametrize("known_by", ["note", "mark"])
def test_parts_that_are_there_and_not_listed_yet_are_read(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, known_by: str
) -> None:
    driver = lab.drive("one")
    driver.write(2)
    driver.write(2)
    newest = max(stat.key for stat in lab.store.list(parts.PREFIX))
    if known_by == "mark":
        last = parts.parse_key(newest)
        assert last is not None
        lab.store.put(parts.mark_key(last.last), b"")
    now = lab.store.list
    monkeypatch.setattr(lab.store, "list", lambda prefix: [stat for stat in now(prefix) if stat.key != newest])
    machine = "two" if known_by == "mark" else "one"
    with lab.on(machine):
        assert restore_mirror(lab.store, lab.root(machine)).case == ("absent" if known_by == "mark" else "equal")
        assert history(lab.root(machine)) == history(driver.root)
        lab.store.delete([newest])
        if known_by == "mark":
            shutil.rmtree(lab.root(machine))
            with pytest.raises(JournalDamagedError, match="is missing"):
                restore_mirror(lab.store, lab.root(machine))


def test_a_part_of_another_experiment_is_damage_and_is_named(lab: Lab, tmp_path: Path) -> None:
    driver = lab.drive()
    for _ in range(4):
        driver.write()
    ours = lab.store.objects
    lab.store.delete(ours)
    lab.promised = []
    other = lab.drive("two")
    for _ in range(4):
        other.write()
    lab.store.delete([parts.part_key(4)])
    lab.store.put(parts.part_key(4), ours[parts.part_key(4)])
    with pytest.raises(JournalDamagedError, match=r"000000000004\.hfp does not follow the part 3"):
        lab.look()


def test_every_flipped_byte_of_a_part_is_noticed(lab: Lab) -> None:
    driver = lab.drive()
    driver.write(2)
    key = parts.part_key(2)
    data = lab.store.objects[key]
    for place in range(0, len(data), 7):
        lab.store.put(key, data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        with pytest.raises(JournalDamagedError, match=r"000000000002\.hfp"):
            lab.look()


@pytest.mark.parametrize("machine", ["one", "two"])
@pytest.mark.parametrize(
    ("place", "nth"),
    [
        ("restore_mirror.file", 1),
        ("restore_mirror.file", 2),
        ("restore_mirror.before_move", 1),
        ("restore_mirror.before_move", 2),
    ],
)
def test_a_kill_while_a_mirror_is_restored_is_healed_by_the_next_start(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, machine: str, place: str, nth: int
) -> None:
    """On machine one there is a mirror that has continued alone, on machine two there is none."""
    first = lab.drive("one")
    first.write(3)
    first.append(2)
    first.kill()
    other = lab.drive("three", takeover=True)
    other.write(2)
    other.leave()
    if (machine, place, nth) == ("two", "restore_mirror.before_move", 2):
        return  # nothing has to be moved away there
    with dying_at(monkeypatch, place, nth), lab.on(machine):
        restore_mirror(lab.store, lab.root(machine))
    driver = lab.drive(machine)
    assert driver.found == other.history
    driver.write()
    assert lab.look() == driver.history
    assert not [name for name in os.listdir(driver.root) if "hydrating" in name]
    if machine == "one":
        aside = driver.restored.superseded or os.path.join(first.root, ".holdfast.superseded-1")
        shutil.copytree(aside, lab.root("aside"))
        assert history(lab.root("aside")) == first.history


def test_an_object_cannot_write_outside_the_mirror(lab: Lab) -> None:
    lab.drive("one").write()
    lab.store.put(".holdfast/../../escaped", b"bad")
    lab.store.put(".holdfast/journal/../../../escaped", b"bad")
    with lab.on("two"):
        restore_mirror(lab.store, lab.root("two"))
    assert not list(lab.folder.rglob("*escaped*"))


def test_an_object_that_no_disk_can_hold_is_not_fetched(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse file of a terabyte in a store that is a directory would be copied for hours."""
    lab.drive("one").write()
    lab.store.put(".holdfast/objects/settings.pkl", b"x" * 1000)
    monkeypatch.setattr(restore_module, "free_bytes", lambda path: 500)
    text = r"objects/settings\.pkl alone has 1,000 bytes, and 500 are free"
    with pytest.raises(StorageFullError, match=text), lab.on("two"):
        restore_mirror(lab.store, lab.root("two"))


def test_a_driver_whose_mirror_was_rebuilt_under_it_stops(lab: Lab) -> None:
    """A sleeping driver of this machine was succeeded elsewhere; then its own machine starts a new one."""
    sleeper = lab.drive("one")
    sleeper.write(2)
    sleeper.append(1)
    lab.drive("two", takeover=True).leave()
    lab.drive("one")
    with pytest.raises(FencedError):
        sleeper.journal.append([b"void"])


def test_a_process_that_hangs_while_it_restores_keeps_nobody_waiting_for_ever(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.drive("one").write(2)
    root = lab.root("two")
    os.makedirs(root)
    monkeypatch.setattr(restore_module, "LOCK_S", 0.05)
    held = os.open(root, os.O_RDONLY)
    try:
        assert lock(held)
        for read_only in (False, True):
            with pytest.raises(StorageError, match=f"pid {os.getpid()} has been updating") as info:
                restore_mirror(lab.store, root, read_only=read_only)
            assert str(info.value).startswith(lab.store.url)
    finally:
        os.close(held)
    assert len(history(restore_mirror(lab.store, root).root)) == 2
