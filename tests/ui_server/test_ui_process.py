"""The process: its first line, its end, and everything that it refuses before its port opens."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from roots import RootWriter, many_trials, small_experiment
from ui_clients import LiveServer

from holdfast.cli.main import main
from holdfast.errors import JournalDamagedError

Serve = Callable[..., LiveServer]


def refused(*arguments: object, program: Sequence[str] = ("-m", "holdfast"), **environ: str) -> tuple[int, str]:
    """The exit code of a server that does not start, and its one sentence."""
    command = [sys.executable, *program, "ui", "--no-browser", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **environ})
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("holdfast: ")
    return done.returncode, done.stderr


def test_the_first_line_is_the_address(tmp_path: Path, serve: Serve) -> None:
    server = serve(many_trials(tmp_path / "exp", 1).path)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{20,}", server.address)
    assert server.request("/").status == 200


def test_every_server_makes_its_own_token(tmp_path: Path, serve: Serve) -> None:
    path = many_trials(tmp_path / "exp", 1).path
    assert serve(path).token != serve(path).token


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_order_also_with_open_streams(tmp_path: Path, serve: Serve, number: int) -> None:
    server = serve(small_experiment(tmp_path / "exp").die().path)
    path = server.only()
    streams = [server.stream(f"{path}/events") for _ in range(3)]
    code, err = server.stop(number)
    assert (code, err) == (0, "")
    assert all(stream.next() is None for stream in streams)
    with pytest.raises(OSError):
        socket.create_connection((server.host, server.port), timeout=5)


def test_a_signal_right_after_the_address_is_not_lost(tmp_path: Path, serve: Serve) -> None:
    path = many_trials(tmp_path / "exp", 1).path
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
        assert serve(path).stop(number) == (0, "")


def test_a_signal_ends_it_while_it_starts(tmp_path: Path) -> None:
    """The signal may come at any time from the first import on; what counts is that nothing is left running."""
    path = many_trials(tmp_path / "exp", 2000, reports=5).path
    command = [sys.executable, "-m", "holdfast", "ui", "--no-browser", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode in (0, -signal.SIGTERM)


def test_a_signal_while_a_request_waits_is_no_error(tmp_path: Path, serve: Serve) -> None:
    """The driver, this process, never answers."""
    writer = small_experiment(tmp_path / "exp")
    server = serve(writer.path)
    path = server.only()
    replies: list[Any] = []
    asking = threading.Thread(target=lambda: replies.append(server.post(f"{path}/note", {"text": "x"})))
    asking.start()
    server.until(lambda: list((writer.path / ".holdfast").glob("requests/*.json")), "the request")
    assert server.stop() == (0, "")
    asking.join(60)
    assert [reply.status for reply in replies] == [503]
    writer.finish()


def test_signals_are_taken_before_anything_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    monkeypatch.setattr("holdfast.cli.ui.find_spec", stopped)
    try:
        assert main(["ui", str(many_trials(tmp_path / "exp", 1).path)]) == 0
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGINT, before[1])


def test_a_port_of_the_users_own(tmp_path: Path, serve: Serve) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = serve(many_trials(tmp_path / "exp", 1).path, "--port", port)
    assert server.port == port
    code, err = refused(tmp_path / "exp", "--port", port)
    assert code == 2
    assert f"Port {port} of 127.0.0.1 cannot be used" in err
    assert server.request("/").status == 200


def test_an_address_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    path = many_trials(tmp_path / "exp", 1).path
    assert "192.0.2.1 cannot be used" in refused(path, "--host", "192.0.2.1")[1]
    assert refused(path, "--port", 70000)[0] == 2
    assert refused(path, "--port", "-1")[0] == 2
    assert "--token needs at least 8" in refused(path, "--host", "0.0.0.0", "--token", "short")[1]
    assert "--token needs at least 1" in refused(path, "--token", "")[1]
    assert refused(path, "--token", "has a space in it")[0] == 2


def test_no_experiment_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, err = refused(tmp_path / "empty")
    assert code == 2
    assert f"There is no experiment at {tmp_path / 'empty'}" in err
    assert refused(tmp_path / "missing")[0] == 2
    (tmp_path / "file").write_text("text")
    assert refused(tmp_path / "file")[0] == 2
    assert refused("no-such-name-anywhere")[0] == 2


def journal_files(root: Path) -> list[Path]:
    return sorted((root / ".holdfast" / "journal").iterdir())


def test_a_damaged_journal_is_refused(tmp_path: Path) -> None:
    writer = small_experiment(tmp_path / "exp").finish()
    file = journal_files(writer.path)[0]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)
    code, err = refused(writer.path)
    assert code == 1
    assert "holdfast repair" in err


def test_damage_before_a_snapshot_is_refused(tmp_path: Path) -> None:
    """Opening begins behind the snapshot, and would not meet it."""
    writer = many_trials(tmp_path / "exp", 20, snapshot=True)
    file = journal_files(writer.path)[0]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)
    code, err = refused(writer.path)
    assert code == 1
    assert "holdfast repair" in err


def test_the_port_stays_closed_until_a_usual_journal_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long that takes; only a large one may be damaged behind what was read in time."""
    serving, catalogue = pytest.importorskip("holdfast.ui.serve"), pytest.importorskip("holdfast.ui.catalogue")
    writer = small_experiment(tmp_path / "exp").finish()
    file = journal_files(writer.path)[0]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)
    asked, answered = threading.Event(), threading.Event()
    really_open = catalogue.Source.open

    def slowly(path: str, progress: object = None) -> object:
        asked.set()
        assert answered.wait(60)
        return really_open(path, progress)

    monkeypatch.setattr(catalogue.Source, "open", slowly)
    monkeypatch.setattr(serving, "GRACE_S", 0.0)
    monkeypatch.setattr(serving, "CHECKED_BYTES", 0)
    serving._check_single(catalogue.Catalogue(str(writer.path)))  # a large one: it is read behind the open port
    monkeypatch.setattr(serving, "CHECKED_BYTES", 1 << 20)
    asked.clear()
    threading.Thread(target=lambda: (asked.wait(60), answered.set())).start()
    with pytest.raises(JournalDamagedError):
        serving._check_single(catalogue.Catalogue(str(writer.path)))


def test_a_journal_that_has_lost_records_is_refused(tmp_path: Path) -> None:
    writer = small_experiment(tmp_path / "exp").finish()
    file = journal_files(writer.path)[-1]
    os.truncate(file, file.stat().st_size // 2)
    assert refused(writer.path)[0] == 1


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    writer = many_trials(tmp_path / "exp", 1)
    file = writer.path / ".holdfast" / "spec.json"
    file.write_bytes(msgspec.json.encode({**msgspec.json.decode(file.read_bytes()), "format": 99}))
    code, err = refused(writer.path)
    assert code == 2
    assert "newer" in err


def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    path = many_trials(tmp_path / "exp", 1).path
    code = (
        "import sys, importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name in ('starlette', 'uvicorn') else find(name, *more)\n"
        "from holdfast.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run([sys.executable, "-c", code, "ui", str(path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "pip install 'holdfast[ui]'" in done.stderr


def test_one_damaged_experiment_among_others_is_shown_as_such(tmp_path: Path, serve: Serve) -> None:
    many_trials(tmp_path / "good", 2)
    bad = small_experiment(tmp_path / "bad").finish()
    file = journal_files(bad.path)[0]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)
    newer = many_trials(tmp_path / "newer", 1).path / ".holdfast" / "spec.json"
    newer.write_bytes(msgspec.json.encode({**msgspec.json.decode(newer.read_bytes()), "format": 99}))
    server = serve(tmp_path)
    found = {each["name"]: each for each in server.experiments()}
    assert found["good"]["state"] == "finished"
    assert "error" not in found["good"]
    assert "holdfast repair" in found["bad"]["error"]
    assert found["newer"]["state"] == "newer format"
    assert "newer" in found["newer"]["error"]
    reply = server.request(f"/api/experiments/{found['newer']['id']}")
    assert reply.status == 409
    assert "newer" in reply.error
    assert reply.json["state"] == "newer format"


def test_damage_that_is_found_later_is_shown(tmp_path: Path, serve: Serve) -> None:
    writer = RootWriter(tmp_path / "exp").open()
    writer.create({"lr": 0.1})
    writer.start(0)
    writer.report(0, {"loss": 3.0})
    server = serve(writer.path)
    path = server.only()
    assert server.get(path)["damage"] is None
    before = journal_files(writer.path)[-1].stat().st_size
    writer.report(0, {"loss": 2.0})
    writer.report(0, {"loss": 1.0})
    writer.die()
    file = journal_files(writer.path)[-1]
    data = bytearray(file.read_bytes())
    data[before + 20] ^= 0xFF
    file.write_bytes(data)
    server.until(lambda: server.get(path)["damage"], "the damage")
    assert server.get(f"{path}/trials")["rows"][0]["trial_id"] == "abcde_00000"


def test_damage_before_a_snapshot_is_shown_once_a_full_pass_has_met_it(tmp_path: Path, serve: Serve) -> None:
    """Opening begins behind the snapshot; only curves, charts and stories read what stands before it."""
    root = tmp_path / "all" / "exp"
    file = journal_files(many_trials(root, 20, snapshot=True).path)[0]
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] + bytes([whole[len(whole) // 2] ^ 0xFF]) + whole[len(whole) // 2 + 1 :])
    server = serve(root.parent)
    path = server.only()
    assert server.get(path)["damage"] is None
    stream = server.stream(f"{path}/events")
    assert server.request(f"{path}/curves?metric=loss").status == 409
    assert stream.next() is not None, "the page is told to ask again"
    facts = server.get(path)
    assert "holdfast repair" in facts["damage"]
    assert facts["journal_damage"]["message"] == facts["damage"]
    (line,) = server.until(lambda: [e for e in server.get("/api/experiments") if "error" in e], "the list")
    assert line["error"] == facts["damage"]
    assert server.request(f"{path}/trials/abcde_00003/story").status == 409
    file.write_bytes(whole)
    assert server.request(f"{path}/curves?metric=loss").status == 200
    server.until(lambda: server.get(path)["damage"] is None, "the repair")


def test_an_experiment_that_vanishes_is_told(tmp_path: Path, serve: Serve) -> None:
    writer = many_trials(tmp_path / "exp", 2)
    server = serve(writer.path)
    path = server.only()
    shutil.rmtree(writer.path)
    server.until(lambda: server.request(path).json.get("state") == "not found", "the loss")
    assert not server.request(path).json.get("damage"), "it is not there, which is no damage"
    server.until(lambda: server.get("/api/experiments")[0]["state"] == "not found", "the list")
    assert server.stop()[0] == 0
