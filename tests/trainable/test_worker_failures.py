from __future__ import annotations

import errno
import gc
import json
import weakref
from pathlib import Path

import pytest

from holdfast.errors import StorageError, StorageFullError
from holdfast.trainable import failures, tracebacks


def caught(function: object) -> BaseException:
    try:
        function()  # type: ignore[operator]
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def test_the_location_is_the_users_line_even_if_a_library_raised() -> None:
    def parse() -> None:
        json.loads("{")

    facts = failures.error_facts(caught(parse))
    assert facts.location == f"{__file__}:{parse.__code__.co_firstlineno + 1}"
    assert "json/decoder.py" in facts.traceback


def test_our_frames_are_left_out_of_the_whole_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracebacks, "_PACKAGE", json.__file__.rpartition("/")[0] + "/")

    def chained() -> None:
        try:
            json.loads("{")
        except ValueError as error:
            raise RuntimeError("outer") from error

    text = failures.error_facts(caught(chained)).traceback
    assert "decoder.py" not in text
    assert text.count("in chained") == 2


def test_a_failure_without_any_user_frame_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracebacks, "_PACKAGE", str(Path(__file__).parent) + "/")

    def ours() -> None:
        raise RuntimeError("our bug")

    facts = failures.error_facts(caught(ours))
    assert "in ours" in facts.traceback
    assert facts.location == ""


def test_a_module_that_a_node_lacks_is_told_with_the_node_and_what_to_do() -> None:
    def plain() -> None:
        import only_on_driver  # type: ignore[import-not-found]  # noqa: F401

    def wrapped() -> None:
        try:
            plain()
        except ImportError as error:
            raise RuntimeError("no model") from error

    for function in (plain, wrapped):
        facts = failures.error_facts(caught(function), "", "node7")
        for text in (facts.message, facts.traceback):
            assert "node7 has no module 'only_on_driver'" in text
            assert "install it on every node of the cluster" in text
            assert "import it in your script before fit()" in text
    assert failures.error_facts(caught(plain)).message == "No module named 'only_on_driver'"
    assert "node7" not in failures.error_facts(ValueError("x"), "", "node7").message


def test_groups_are_told_whole() -> None:
    def fail() -> None:
        raise ExceptionGroup("two", [ValueError("a"), OSError(errno.ENOSPC, "b")])

    error = caught(fail)
    facts = failures.error_facts(error)
    assert "ValueError: a" in facts.traceback
    assert failures.is_full(error, "/")


def test_a_broken_exception_is_still_told() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise KeyError("no text")

    def fail() -> None:
        raise Broken

    facts = failures.error_facts(caught(fail))
    assert facts.type == "Broken"
    assert "cannot be shown" in facts.message


def test_text_that_is_no_unicode_and_endless_tracebacks_fit_the_wire() -> None:
    def fail() -> None:
        raise ValueError("\ud800" + "x" * 300_000)

    facts = failures.error_facts(caught(fail))
    assert facts.message.startswith("\\ud800")
    assert len(facts.message) < 11_000
    assert len(facts.traceback) < 110_000
    assert "characters left out" in facts.traceback
    facts.traceback.encode()


def test_storage_trouble_is_told_from_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(tmp_path)
    assert failures.is_storage_trouble(StorageError("nfs"), root)
    assert not failures.is_full(StorageError("nfs"), root)
    assert failures.is_full(StorageFullError("full"), root)
    assert not failures.is_storage_trouble(ValueError("user"), root)
    monkeypatch.setattr(failures, "free_bytes", lambda path: 1000)
    assert failures.is_storage_trouble(ValueError("hidden by a library"), root)


def test_a_full_disk_that_only_the_user_sees_is_doubtful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(tmp_path)
    raised = OSError(errno.ENOSPC, "No space left on device")
    assert failures.is_storage_trouble(raised, root)
    assert failures.is_doubtful(raised, root)
    assert not failures.is_doubtful(StorageFullError("full"), root)
    monkeypatch.setattr(failures, "free_bytes", lambda path: 1000)
    assert not failures.is_doubtful(raised, root)


def test_free_space_of_a_place_that_is_gone_is_not_no_space() -> None:
    assert failures.free_bytes("/no/such/place") >= failures.LEAST_FREE_BYTES


def test_released_frames_hold_nothing() -> None:
    class Model:
        pass

    alive: list[weakref.ref[Model]] = []

    def fail() -> None:
        model = Model()
        alive.append(weakref.ref(model))
        raise ValueError("x")

    error = caught(fail)
    failures.release(error)
    gc.collect()
    assert alive[0]() is None
