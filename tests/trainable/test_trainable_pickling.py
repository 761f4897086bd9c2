from __future__ import annotations

import functools
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from holdfast.config.resources import with_parameters
from holdfast.errors import NotSerializableError, TuneError
from holdfast.trainable import pickling
from holdfast.trainable.pickling import (
    diagnose,
    dump_objects,
    dump_trainable,
    load_objects,
    load_trainable,
)
from holdfast.trainable.trainable import Trainable

LOCK = threading.Lock()


@pytest.fixture(autouse=True)
def _by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)


def test_functions_and_classes_survive() -> None:
    factor = 3

    def train(config: dict[str, Any]) -> int:
        return config["x"] * factor

    class Count(Trainable):
        def step(self) -> dict[str, Any]:
            return {"factor": factor}

    assert load_trainable(dump_trainable(train))({"x": 2}) == 6
    assert load_trainable(dump_trainable(Count))().train()["factor"] == 3


def test_a_trainable_of_a_script_loads_in_another_process(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from holdfast.trainable.pickling import dump_trainable\n"
        "helper = 5\n"
        "def train(config): return config['x'] + helper\n"
        f"open({str(tmp_path / 'file')!r}, 'wb').write(dump_trainable(train))\n"
    )
    subprocess.run([sys.executable, str(script)], check=True)
    assert load_trainable((tmp_path / "file").read_bytes())({"x": 1}) == 6


def test_parameters_are_kept_apart_and_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(config: dict[str, Any], data: bytes) -> int:
        return len(data)

    class Count(Trainable):
        def setup(self, config: dict[str, Any], data: bytes) -> None:
            self.size = len(data)

    monkeypatch.setattr(pickling, "MAX_TRAINABLE_BYTES", 100_000)
    data = bytes(200_000)
    dumped = dump_trainable(with_parameters(train, data=data))
    assert load_trainable(dumped)({}) == 200_000
    assert load_trainable(dump_trainable(with_parameters(Count, data=data)))().size == 200_000


def test_a_trainable_that_is_too_large_names_what_makes_it_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickling, "MAX_TRAINABLE_BYTES", 100_000)
    dataset = bytes(200_000)

    def train(config: dict[str, Any]) -> int:
        return len(dataset)

    with pytest.raises(TuneError, match=r"too large.*closure variable 'dataset' \(200,.*with_parameters"):
        dump_trainable(train)


def test_what_cannot_be_pickled_is_named_with_the_way_to_it() -> None:
    holder = {"inner": [threading.Lock()]}

    def train(config: dict[str, Any]) -> None:
        print(holder)

    with pytest.raises(TypeError, match="train is not serializable") as caught:
        dump_trainable(train)
    assert isinstance(caught.value, NotSerializableError)
    text = str(caught.value)
    assert "closure variable 'holder': dict" in text
    assert "item 'inner': list" in text
    assert "item 0: lock (cannot pickle '_thread.lock' object)" in text


class Unpicklable:
    def __init__(self) -> None:
        self.lock = threading.Lock()


def uses_global(config: dict[str, Any]) -> Any:
    def inner() -> Any:
        return LOCK

    return inner


def default_argument(config: dict[str, Any], thing: Any = LOCK) -> None: ...


class AClass(Trainable):
    shared = Unpicklable()

    def step(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize(
    ("obj", "line"),
    [
        (uses_global, "global variable 'LOCK': lock"),
        (default_argument, "default of argument 'thing': lock"),
        (AClass, "class attribute 'shared': Unpicklable"),
        (Unpicklable(), "attribute 'lock': lock"),
        (functools.partial(print, Unpicklable()), "argument 0 of the partial: Unpicklable"),
        (Unpicklable().__init__, "the method's own object: Unpicklable"),
        (with_parameters(lambda config, data: None, data=LOCK), "attribute '_holdfast_parameters': dict"),
    ],
)
def test_diagnose_follows_every_kind_of_reference(obj: Any, line: str) -> None:
    lines = diagnose(obj)
    assert any(found.startswith(line) for found in lines), lines
    assert "cannot pickle" in lines[-1]


def test_diagnose_has_nothing_to_say_about_what_pickles() -> None:
    assert diagnose(len) == []


def test_objects_are_loaded_one_by_one_and_anew(tmp_path) -> None:
    file = tmp_path / "values.pkl"
    file.write_bytes(dump_objects({"a": [1], "b/0": {2}}))
    objects = load_objects(file)
    assert dict(objects) == {"a": [1], "b/0": {2}}
    objects["a"].append(2)
    assert objects["a"] == [1]
    with pytest.raises(KeyError):
        objects["c"]
    with pytest.raises(NotSerializableError, match="'data/1' of the search space is not serializable"):
        dump_objects({"data/1": LOCK})


def test_values_of_modules_that_are_not_installed_can_be_loaded_where_those_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "colours_beside.py").write_text(
        "import enum\nclass Colour(enum.Enum):\n    RED = 1\ndef is_red(value):\n    return value is Colour.RED\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "beside")
    import colours_beside  # type: ignore[import-not-found]

    file, code = tmp_path / "values.pkl", tmp_path / "trainable.pkl"
    file.write_bytes(dump_objects({"a": colours_beside.Colour.RED, "b": b"plain"}))
    stored = load_objects(file)
    assert stored["a"] is colours_beside.Colour.RED  # a machine that has the module imports it
    file.write_bytes(stored.dump_by_value())
    with pickling.by_value():
        code.write_bytes(dump_trainable(colours_beside.is_red))
    script = (
        "import sys; from pathlib import Path\n"
        "from holdfast.trainable.pickling import load_objects, load_trainable\n"
        "values, is_red = load_objects(sys.argv[1]), load_trainable(Path(sys.argv[2]).read_bytes())\n"
        "print(is_red(values['a']), values['b'], 'colours_beside' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(file), str(code)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "True b'plain' False\n"
