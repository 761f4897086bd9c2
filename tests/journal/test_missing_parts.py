"""The newest parts in a store are gone, or parts are another experiment's: whoever reads them says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shipping import Lab, history

from holdfast.errors import JournalDamagedError
from holdfast.shipping import parts
from holdfast.shipping.remote_holder import look
from holdfast.shipping.restore_mirror import restore_mirror
from holdfast.shipping.shipper import MARK_S


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(tmp_path, monkeypatch)


def newest(lab: Lab) -> int:
    return max(span.last for span in look(lab.store, parts.PREFIX).spans)


def test_a_newest_part_that_is_gone_after_a_driver_has_left_is_missed_on_every_machine(lab: Lab) -> None:
    driver = lab.drive()
    for _ in range(3):
        driver.write()
    driver.leave()
    last = newest(lab)
    assert lab.look() == driver.history
    lab.store.delete([parts.part_key(last)])
    for _ in range(2):
        with pytest.raises(JournalDamagedError, match=f"says that there were parts up to {last}") as caught:
            lab.look()
        assert caught.value.file == parts.part_key(last)
        assert "--before-damage" in str(caught.value)
        assert caught.value.missing is None, "a mark says that there was a part, not what was in it"
        assert caught.value.since is not None
    with pytest.raises(JournalDamagedError):
        restore_mirror(lab.store, lab.root("two"))


def test_a_driver_that_is_killed_has_marked_what_it_shipped_a_while_ago(lab: Lab) -> None:
    driver = lab.drive()
    driver.write()
    driver.ship(MARK_S + 1.0)
    marked = newest(lab)
    driver.write()
    driver.kill()
    lab.store.delete([parts.part_key(newest(lab))])
    assert lab.look() == driver.history[:-1], "nobody has vouched for the part behind the mark"
    lab.store.delete([parts.part_key(marked)])
    with pytest.raises(JournalDamagedError, match=f"parts up to {marked}"):
        lab.look()


def test_only_the_newest_mark_of_a_driver_stays(lab: Lab) -> None:
    driver = lab.drive()
    for _ in range(3):
        driver.write()
        driver.ship(MARK_S + 1.0)
    driver.leave()
    marks = [key for key in lab.store.objects if key.startswith(parts.MARKS)]
    assert marks == [parts.mark_key(newest(lab))]


def test_the_machine_that_has_the_records_ships_them_again(lab: Lab) -> None:
    driver = lab.drive()
    for _ in range(3):
        driver.write()
    driver.leave()
    lab.store.delete([parts.part_key(number) for number in (newest(lab), newest(lab) - 1)])
    again = lab.drive()
    assert again.found == driver.history
    again.write()
    assert lab.look() == again.history


def test_what_this_machine_has_shipped_is_missed_even_without_a_mark(lab: Lab) -> None:
    driver = lab.drive()
    for _ in range(3):
        driver.write()
    driver.kill()
    lab.store.delete([parts.part_key(newest(lab))])
    segment = max(Path(driver.root, ".holdfast", "journal").iterdir())
    segment.write_bytes(segment.read_bytes()[:-40])  # the mirror has lost it, too
    with pytest.raises(JournalDamagedError, match="this machine has shipped parts up to") as caught:
        restore_mirror(lab.store, driver.root)
    assert (caught.value.seq, caught.value.missing) == (3, 1)
    assert caught.value.since is not None


def test_an_object_that_holds_many_parts_is_missed_with_the_number_of_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(tmp_path, monkeypatch, merging=(4, 4))
    driver = lab.drive()
    for _ in range(13):
        driver.write()
        driver.ship(1.0)
    driver.leave()
    merged = sorted(span for span in look(lab.store, parts.PREFIX).spans if span.last > span.first)
    assert len(merged) > 1
    first, second = merged[:2]
    last = [parts.decode_parts(lab.store.get(span.key), span.key)[-1].header for span in (first, second)]
    lab.store.delete([second.key, *(parts.part_key(number) for number in range(second.first, second.last + 1))])
    with pytest.raises(JournalDamagedError) as caught:
        lab.look()
    assert caught.value.missing == last[1].seq - last[0].seq
    assert (caught.value.seq, caught.value.since) == (last[0].seq + 1, last[0].at)
    lab.store.put(second.key, b"not a part")
    with pytest.raises(JournalDamagedError) as caught:
        lab.look()
    assert (caught.value.file, caught.value.missing) == (second.key, last[1].seq - last[0].seq)


def test_parts_of_another_experiment_are_named(lab: Lab) -> None:
    """All of them were swapped, so that they follow one another."""
    for machine, uid in (("one", "aaaaa111"), ("two", "bbbbb222")):
        private = Path(lab.root(machine), ".holdfast")
        private.mkdir(parents=True)
        private.joinpath("spec.json").write_text(json.dumps({"uid": uid}))
    driver = lab.drive("one")
    driver.write()
    driver.leave()
    theirs = {key: data for key, data in lab.store.objects.items() if key.startswith(".holdfast/")}
    lab.store.delete(theirs)
    lab.promised = []
    lab.store.put(".holdfast/spec.json", json.dumps({"uid": "bbbbb222"}).encode())
    other = lab.drive("two")
    other.write()
    assert lab.look() == other.history
    lab.store.delete([key for key in lab.store.objects if key.startswith(parts.PREFIX)])
    for key, data in theirs.items():
        lab.store.put(key, data)
    with pytest.raises(JournalDamagedError, match="belongs to another experiment"):
        lab.look()


def test_a_driver_that_left_in_order_says_so_on_the_machine_that_goes_on(lab: Lab) -> None:
    driver = lab.drive()
    driver.write()
    driver.leave()
    heir = lab.drive("two")
    assert heir.found == driver.history
    assert Path(heir.root, ".holdfast", "epochs", "00000001.released").exists()
    assert history(heir.root) == driver.history
