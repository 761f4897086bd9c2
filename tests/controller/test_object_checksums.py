"""Stored trainables, settings and values: changed bytes are noticed before anything is unpickled, and named."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast as tune
from holdfast.cli.main import main
from holdfast.controller import loading
from holdfast.controller.opening import open_state, snapshot_payload
from holdfast.controller.spec import Spec, read_spec
from holdfast.core import events as ev
from holdfast.core.retention import Retention
from holdfast.errors import DamageError, ExperimentExistsError, ObjectDamagedError
from holdfast.journal.reader import read_journal
from holdfast.journal.snapshot import SnapshotStore
from holdfast.storage.digest import digest_of
from holdfast.storage.layout import Root
from holdfast.trainable.sealed import BadObject, check_object, seal

BASE = ("settings.pkl", "trainable.pkl", "values.pkl")


class Box:
    """A value that is no plain data."""

    def __init__(self, content: int) -> None:
        self.content = content


class Memory(tune.Callback):
    """A callback that is kept in a file of its own."""

    def __init__(self) -> None:
        self.seen = 0

    def on_trial_result(self, **_: Any) -> None:
        self.seen += 1

    def get_state(self) -> dict[str, int]:
        return {"seen": self.seen}

    def set_state(self, state: dict[str, int]) -> None:
        self.seen = state["seen"]


def train(config: dict[str, Any]) -> None:
    for step in range(3):
        tune.report({"loss": config["box"].content + config["made"].content + step})


def space() -> dict[str, Any]:
    return {"box": tune.grid_search([Box(1), Box(2)]), "made": tune.sample_from(lambda _: Box(10))}


def tune_config() -> tune.TuneConfig:
    return tune.TuneConfig(metric="loss", mode="min", seed=1)


def run_config(home: Path, **more: Any) -> tune.RunConfig:
    return tune.RunConfig(
        name="exp", storage_path=str(home), verbose=0, stop={"loss": 100}, callbacks=[Memory()], **more
    )


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("original")
    tune.Tuner(train, param_space=space(), tune_config=tune_config(), run_config=run_config(home)).fit()
    return home / "exp"


@pytest.fixture
def root(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "exp"))


def objects(root: Path) -> Path:
    return root / ".holdfast" / "objects"


def flip(path: Path, at: int = -1, bit: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if at < 0 else at] ^= bit
    path.write_bytes(data)


def verify(root: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    capsys.readouterr()
    code = main(["verify", str(root)])
    return code, capsys.readouterr().out


@pytest.fixture
def no_unpickling(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("something was unpickled")

    monkeypatch.setattr(pickle, "load", refuse)
    monkeypatch.setattr(pickle, "loads", refuse)


def test_the_facts_name_the_digest_of_every_file_that_was_created(original: Path) -> None:
    facts = json.loads((original / ".holdfast" / "spec.json").read_text())
    assert sorted(facts["objects"]) == list(BASE)
    for name, digest in facts["objects"].items():
        assert digest_of((objects(original) / name).read_bytes()) == digest


def test_an_untouched_experiment_is_whole(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(root, capsys)[0] == 0
    names = {path.name for path in objects(root).iterdir()}
    assert {*BASE, "callback-states.pkl"} < names
    assert any(name.startswith("value-") for name in names)


def _damages() -> dict[str, Callable[[Path], None]]:
    return {
        "flipped": flip,
        "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
        "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
        "empty": lambda path: path.write_bytes(b""),
        "deleted": lambda path: path.unlink(),
        "another pickle": lambda path: path.write_bytes(pickle.dumps({"box": 1})),
    }


@pytest.mark.parametrize("how", _damages())
@pytest.mark.parametrize("name", BASE)
def test_a_restore_names_the_damaged_file_before_it_unpickles_it(
    root: Path, name: str, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = objects(root) / name
    _damages()[how](path)
    with pytest.raises(ObjectDamagedError) as caught:
        tune.Tuner.restore(root)
    assert caught.value.path == str(path)
    assert f"{path} is damaged" in str(caught.value)
    assert "Tuner.restore(path, " in str(caught.value)
    assert isinstance(caught.value, DamageError)
    code, said = verify(root, capsys)
    assert code == 1
    assert f"damage: .holdfast/objects/{name}" in said
    assert len(tune.ResultGrid.from_path(root)) == 2
    assert main(["status", str(root)]) == 0


def test_nothing_is_unpickled_from_a_damaged_file(root: Path, no_unpickling: None) -> None:
    for name in BASE:
        flip(objects(root) / name)
    with pytest.raises(ObjectDamagedError):
        tune.Tuner.restore(root)


def test_the_files_of_another_experiment_are_noticed(root: Path, tmp_path: Path) -> None:
    tune.Tuner(lambda config: {"loss": 7}, run_config=tune.RunConfig(name="other", storage_path=str(tmp_path)))
    shutil.copy(objects(tmp_path / "other") / "trainable.pkl", objects(root))
    with pytest.raises(ObjectDamagedError, match=r"trainable\.pkl is damaged"):
        tune.Tuner.restore(root)


def test_a_swap_of_two_files_is_noticed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = objects(root)
    (folder / "values.pkl").rename(folder / "x")
    (folder / "settings.pkl").rename(folder / "values.pkl")
    (folder / "x").rename(folder / "settings.pkl")
    with pytest.raises(ObjectDamagedError):
        tune.Tuner.restore(root)
    assert verify(root, capsys)[0] == 1


# --- the ways out


def unfinished(root: Path) -> None:
    """Let the trials of a finished experiment run again, as if they never had."""
    for folder in root.glob("train_*"):
        shutil.rmtree(folder)
    shutil.rmtree(root / ".holdfast" / "journal")
    shutil.rmtree(root / ".holdfast" / "epochs")
    shutil.rmtree(root / ".holdfast" / "snapshots", ignore_errors=True)


def test_a_trainable_that_is_given_again_takes_the_place_of_a_damaged_one(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unfinished(root)
    flip(objects(root) / "trainable.pkl")
    grid = tune.Tuner.restore(root, trainable=train).fit()
    assert [result.metrics["loss"] for result in grid] == [13, 14]
    assert verify(root, capsys)[0] == 0
    tune.Tuner.restore(root).fit()


def test_a_space_that_is_given_again_takes_the_place_of_damaged_values(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unfinished(root)
    flip(objects(root) / "values.pkl")
    with pytest.warns(UserWarning, match=r"values\.pkl is damaged"):
        tuner = tune.Tuner.restore(root, param_space=space())
    assert [result.metrics["loss"] for result in tuner.fit()] == [13, 14]
    assert verify(root, capsys)[0] == 0
    tune.Tuner.restore(root)


def test_settings_that_are_all_given_again_take_the_place_of_damaged_ones(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unfinished(root)
    flip(objects(root) / "settings.pkl")
    with pytest.raises(ObjectDamagedError, match=r"tune_config=\.\.\., run_config=\.\.\."):
        tune.Tuner.restore(root, run_config=run_config(root.parent))
    with pytest.warns(UserWarning, match=r"settings\.pkl is damaged"):
        tuner = tune.Tuner.restore(
            root, param_space=space(), tune_config=tune_config(), run_config=run_config(root.parent)
        )
    assert [result.metrics["loss"] for result in tuner.fit()] == [13, 14]
    assert verify(root, capsys)[0] == 0
    tune.Tuner.restore(root)


def test_the_same_script_goes_on_if_its_settings_are_damaged(root: Path) -> None:
    flip(objects(root) / "settings.pkl")
    config = run_config(root.parent, if_exists="resume")
    with pytest.warns(UserWarning, match=r"settings\.pkl is damaged"):
        grid = tune.Tuner(train, param_space=space(), tune_config=tune_config(), run_config=config).fit()
    assert len(grid) == 2


# --- replaced files


def test_a_replaced_file_is_checked_like_the_first_one(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tune.Tuner.restore(root, trainable=train, param_space=space()).fit()
    assert verify(root, capsys)[0] == 0
    for name in ("trainable.pkl", "values.pkl"):
        path = objects(root) / name
        whole = path.read_bytes()
        for at in range(0, len(whole), 37):
            flip(path, at)
            with pytest.raises(ObjectDamagedError, match=name.replace(".", r"\.")):
                tune.Tuner.restore(root)
            path.write_bytes(whole)
    tune.Tuner.restore(root)


def test_an_older_file_that_was_put_back_is_noticed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = (objects(root) / "trainable.pkl").read_bytes()
    tune.Tuner.restore(root, trainable=train).fit()
    (objects(root) / "trainable.pkl").write_bytes(old)
    code, said = verify(root, capsys)
    assert code == 1
    assert "an older one" in said
    with pytest.raises(ObjectDamagedError, match="an older one"):
        tune.Tuner.restore(root).fit()
    tune.Tuner.restore(root, trainable=train).fit()
    assert verify(root, capsys)[0] == 0


def test_a_driver_that_was_killed_after_it_replaced_a_file_leaves_a_whole_experiment(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Between the rename and the first record: the file names an epoch that the journal does not know."""
    spec = read_spec(Root(root))
    old = (objects(root) / "trainable.pkl").read_bytes()
    (objects(root) / "trainable.pkl").write_bytes(seal(old, spec.uid, "trainable.pkl", epoch=2))
    assert verify(root, capsys)[0] == 0
    tune.Tuner.restore(root).fit()


def test_a_tuner_that_was_made_before_another_driver_replaced_a_file_says_so(root: Path) -> None:
    early = tune.Tuner.restore(root)
    tune.Tuner.restore(root, trainable=train).fit()
    with pytest.raises(ExperimentExistsError, match="replaced by another driver"):
        early.fit()


def test_every_driver_records_what_it_ran_with(root: Path) -> None:
    tune.Tuner.restore(root, trainable=train).fit()
    events = [ev.decode(payload) for _, payload in read_journal(root)]
    starts = [event for event in events if isinstance(event, ev.EpochStarted)]
    assert starts[0].objects == read_spec(Root(root)).objects
    assert starts[1].objects["settings.pkl"] == starts[0].objects["settings.pkl"]
    assert starts[1].objects["trainable.pkl"] == digest_of((objects(root) / "trainable.pkl").read_bytes())


# --- after a repair


def lose_last_driver(root: Path, *, snapshot: bool) -> None:
    """Remove the records of the newest driver; whether a snapshot knows them."""
    shutil.rmtree(root / ".holdfast" / "snapshots")
    if snapshot:
        opened = open_state(root, Retention())
        place = opened.contents.position
        payload = snapshot_payload(opened.state, opened.state.trials, {})
        SnapshotStore(root, epoch=opened.state.epoch).write(place.next_seq - 1, place, payload)
    max((root / ".holdfast" / "journal").iterdir()).unlink()


def repair(root: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    capsys.readouterr()
    code = main(["repair", "--yes", str(root)])
    return code, capsys.readouterr().out


@pytest.mark.parametrize("snapshot", [True, False], ids=["snapshot", "no snapshot"])
def test_files_of_a_driver_whose_records_are_lost_are_accepted_by_a_repair(
    root: Path, snapshot: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    tune.Tuner.restore(root, trainable=train, param_space=space()).fit()
    lose_last_driver(root, snapshot=snapshot)
    code, said = repair(root, capsys)
    assert code == 0, said
    assert ("trainable.pkl, values.pkl match their own checksums" in said) is not snapshot
    assert verify(root, capsys)[0] == 0
    tune.Tuner.restore(root).fit()
    assert verify(root, capsys)[0] == 0


@pytest.mark.parametrize("snapshot", [True, False], ids=["snapshot", "no snapshot"])
def test_a_repair_does_not_accept_an_older_file_that_was_put_back(
    root: Path, snapshot: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the second driver the journal still knows the trainable; of the third one only the snapshot."""
    older = [(objects(root) / "trainable.pkl").read_bytes()]
    for _ in range(2):
        tune.Tuner.restore(root, trainable=train).fit()
        older.append((objects(root) / "trainable.pkl").read_bytes())
    lose_last_driver(root, snapshot=snapshot)
    (objects(root) / "trainable.pkl").write_bytes(older[1 if snapshot else 0])
    code, said = repair(root, capsys)
    assert code == 1
    assert "trainable.pkl: it is not the one that the experiment last ran with, but an older one" in said
    with pytest.raises(ObjectDamagedError, match="an older one"):
        tune.Tuner.restore(root).fit()
    (objects(root) / "trainable.pkl").write_bytes(older[2 if snapshot else 1])
    assert verify(root, capsys)[0] == 0


def test_a_file_that_a_repair_has_accepted_is_compared_from_then_on(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = (objects(root) / "trainable.pkl").read_bytes()
    tune.Tuner.restore(root, trainable=train).fit()
    lose_last_driver(root, snapshot=False)
    assert repair(root, capsys)[0] == 0
    (objects(root) / "trainable.pkl").write_bytes(old)
    assert verify(root, capsys)[0] == 1
    with pytest.raises(ObjectDamagedError, match="an older one"):
        tune.Tuner.restore(root).fit()


def test_a_repair_accepts_no_file_of_another_experiment(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tune.Tuner.restore(root, trainable=train).fit()
    lose_last_driver(root, snapshot=False)
    payload = check_object((objects(root) / "trainable.pkl").read_bytes(), "trainable.pkl").payload
    (objects(root) / "trainable.pkl").write_bytes(seal(payload, "another", "trainable.pkl", epoch=2))
    code, said = repair(root, capsys)
    assert code == 1
    assert "trainable.pkl: it belongs to another experiment" in said


# --- values of their own, and memories of callbacks


@pytest.mark.parametrize("how", _damages())
def test_a_value_in_a_file_of_its_own_is_checked(root: Path, how: str, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = objects(root).glob("value-*.pkl")
    _damages()[how](path)
    results = tune.Tuner.restore(root).get_results()
    with pytest.raises(ObjectDamagedError) as caught:
        results[0].config  # noqa: B018
    assert caught.value.path == str(path)
    code, said = verify(root, capsys)
    assert code == 1
    assert path.name in said


def test_a_worker_refuses_a_damaged_value_and_the_trial_says_which(root: Path) -> None:
    unfinished(root)
    made = tune.Tuner.restore(root)
    made.fit()
    unfinished(root)
    again = tune.Tuner.restore(root)
    for path in objects(root).glob("value-*.pkl"):
        flip(path)
    grid = again.fit()  # the value is made anew under the same name, which is there already
    assert [type(error).__name__ for error in grid.errors] == ["TrialError(ObjectDamagedError)"] * 2
    assert all("is damaged" in str(error) and "value-" in str(error) for error in grid.errors)


@pytest.mark.parametrize("name", ["trainable.pkl", "values.pkl"])
def test_a_worker_refuses_a_file_that_was_damaged_after_the_driver_had_read_it(root: Path, name: str) -> None:
    unfinished(root)
    tuner = tune.Tuner.restore(root)
    flip(objects(root) / name)
    grid = tuner.fit()
    assert len(grid.errors) == 2
    assert all(f"{name} is damaged" in str(error) for error in grid.errors)


def test_damaged_memories_of_callbacks_are_named_and_the_run_goes_on(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(objects(root) / "callback-states.pkl")
    code, said = verify(root, capsys)
    assert code == 1
    assert "callback-states.pkl" in said
    tune.Tuner.restore(root, run_config=tune.RunConfig(verbose=1)).fit()
    assert "callback-states.pkl is damaged" in "".join(capsys.readouterr())
    assert verify(root, capsys)[0] == 0


# --- every byte


def test_no_flipped_byte_of_any_object_goes_unnoticed(root: Path) -> None:
    """Each byte of each file, by the comparison that stands before every reader."""
    spec = read_spec(Root(root))
    files = {path.name: path.read_bytes() for path in objects(root).iterdir()}
    files["sealed"] = seal(b"payload", spec.uid, "sealed", 3)
    for name, whole in files.items():
        assert check_object(whole, name, spec.uid, spec.objects)
        for at in range(len(whole)):
            flipped = whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :]
            with pytest.raises(BadObject):
                check_object(flipped, name, spec.uid, spec.objects)
        for size in range(0, len(whole), 13):
            with pytest.raises(BadObject):
                check_object(whole[:size], name, spec.uid, spec.objects)


def test_with_any_file_damaged_every_reader_is_right_or_names_the_damage(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bytes all over each object and epoch file: no command and no call ends in anything but results or a TuneError."""
    rows = [result.metrics["loss"] for result in tune.ResultGrid.from_path(root)]
    files = [*objects(root).iterdir(), root / ".holdfast" / "epochs" / "00000001"]
    for path in files:
        whole = path.read_bytes()
        for at in range(0, len(whole), max(1, len(whole) // 12)):
            flip(path, at, 0x80)
            for command in ("status", "show"):
                assert main([command, str(root)]) == 0
            assert main(["export", str(root), str(tmp_path / "out.csv")]) == 0
            assert main(["verify", str(root)]) == 1, path
            assert path.name in capsys.readouterr().out
            assert [result.metrics["loss"] for result in tune.ResultGrid.from_path(root)] == rows
            if path.name in BASE:
                with pytest.raises(ObjectDamagedError, match=path.stem):
                    tune.Tuner.restore(root)
            else:
                tune.Tuner.restore(root).get_results()
            path.write_bytes(whole)
    assert main(["verify", str(root)]) == 0


def test_a_sealed_file_of_another_experiment_or_name_is_refused() -> None:
    with pytest.raises(BadObject, match="another experiment"):
        check_object(seal(b"x", "a", "trainable.pkl", 1), "trainable.pkl", "b", {"trainable.pkl": "0"})
    with pytest.raises(BadObject, match=r"values\.pkl"):
        check_object(seal(b"x", "a", "values.pkl", 1), "trainable.pkl", "a", {"trainable.pkl": "0"})


# --- others who write meanwhile


def test_an_experiment_that_is_made_anew_while_it_is_read_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has run it, so another process may replace it: between our look at its facts and at its files, say."""

    def make(seed: int) -> None:
        config = tune.TuneConfig(metric="loss", mode="min", seed=seed)
        tune.Tuner(train, param_space=space(), tune_config=config, run_config=run_config(tmp_path))

    read: list[str] = []

    def read_slowly(root: Root) -> Spec:
        spec = read_spec(root)
        read.append(spec.uid)
        if len(read) == 1:
            make(seed=2)
        return spec

    make(seed=1)
    monkeypatch.setattr(loading, "read_spec", read_slowly)
    tune.Tuner.restore(tmp_path / "exp")
    assert len(set(read)) == 2
    assert read_spec(Root(tmp_path / "exp")).seed == 2


# --- earlier versions


def test_an_experiment_without_digests_opens_and_is_protected_from_then_on(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unfinished(root)
    _forget_digests(root)
    tune.Tuner.restore(root).fit()
    assert verify(root, capsys)[0] == 0
    flip(objects(root) / "settings.pkl")
    assert verify(root, capsys)[0] == 1


def test_unreadable_values_of_an_experiment_without_digests_are_named(root: Path) -> None:
    _forget_digests(root)
    (objects(root) / "values.pkl").write_bytes(b"\xc1")
    with pytest.raises(ObjectDamagedError, match=r"values\.pkl is damaged"):
        tune.Tuner.restore(root)


def _forget_digests(root: Path) -> None:
    path = root / ".holdfast" / "spec.json"
    facts = msgspec.json.decode(path.read_bytes())
    del facts["objects"], facts["checksum"]
    path.write_bytes(msgspec.json.encode(facts))
