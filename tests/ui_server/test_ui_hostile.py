"""Experiments of somebody else: names, metrics, notes and logs of any kind are data, and cost what others cost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from roots import RootWriter, many_trials
from ui_clients import LiveServer, unpacked

from holdfast.controller.spec import write_spec
from holdfast.core import events as ev
from holdfast.storage import trial_logs
from holdfast.storage.layout import Root

Serve = Callable[..., LiveServer]

SCRIPT = "</script><script>alert(1)</script>"
RIGHT_TO_LEFT = "\u202eevil\u2066"
ODD = "a,b %2C `c` 'd' \"e\" \\ / & + # ? = \u0000\u001b[31m"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory, serve_all: Serve) -> tuple[LiveServer, str]:
    root = tmp_path_factory.mktemp("hostile") / SCRIPT.replace("/", "_")
    writer = RootWriter(root, metric=SCRIPT).open()
    huge = "x" * 1_000_000
    for n in range(3):
        config: dict[str, Any] = {SCRIPT: RIGHT_TO_LEFT, ODD: n, "huge": huge, "nested": {"a": {"b": [1, "two"]}}}
        writer.add(ev.TrialCreated(writer.tick(), n, f"abcde_{n:05d}", config, f"{n}_tag", tuple(config)))
        writer.start(n)
        writer.report(n, {SCRIPT: float(n), ODD: float("inf"), "text": SCRIPT, "huge": huge, "nan": float("nan")})
    writer.error(0, type=SCRIPT, message=huge, location=RIGHT_TO_LEFT, traceback=f"{SCRIPT}\n{huge}")
    server = serve_all(writer.die().path)
    return server, server.only()


def test_answers_are_json_that_is_never_html(hostile: tuple[LiveServer, str]) -> None:
    server, path = hostile
    for each in (
        "/api/experiments",
        path,
        f"{path}/trials",
        f"{path}/trials/abcde_00000",
        f"{path}/trials/abcde_00000/rows",
    ):
        reply = server.request(each)
        assert reply.status == 200
        assert reply.headers["Content-Type"] == "application/json"
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        assert b"NaN" not in reply.body
        assert b"Infinity" not in reply.body
    (one,) = server.get("/api/experiments")
    assert "<script>" in one["name"]
    assert server.get(path)["best"]["config"][SCRIPT] == RIGHT_TO_LEFT


def test_a_megabyte_in_every_trial_does_not_make_every_answer_one(hostile: tuple[LiveServer, str]) -> None:
    server, path = hostile
    assert len(server.request(path).body) < 700_000
    assert len(server.request(f"{path}/trials").body) < 50_000
    assert len(server.request(f"{path}/columns").body) < 50_000
    assert len(server.request(f"{path}/trials/abcde_00000/rows").body) < 50_000
    detail = server.request(f"{path}/trials/abcde_00000")
    assert len(detail.body) < 2_500_000
    assert detail.json["config"]["huge"].endswith("(1,000,000 characters)")


def test_names_of_all_kinds_can_be_asked_for(hostile: tuple[LiveServer, str]) -> None:
    server, path = hostile
    for name in (f"metric/{SCRIPT}", f"config/{ODD}", f"config/{SCRIPT}", "config/nested/a/b"):
        item = name.replace("%", "%25").replace(",", "%2C")
        _, columns = unpacked(server.request(f"{path}/columns?names={quote(item, safe='')}").body)
        assert list(columns) == [name]
        assert server.get(f"{path}/trials?sort={quote(name, safe='')}")["total"] == 3
    _, curves = unpacked(server.request(f"{path}/curves?metric={quote(SCRIPT, safe='')}").body)
    assert curves["value"] == [0, 1, 2]
    odd = ODD.replace("`", "")
    assert server.request(f"{path}/trials?filter={quote(f'`{odd}` == 1', safe='')}").status == 400
    script = quote(f"`{SCRIPT}` > 0", safe="")
    assert server.get(f"{path}/trials?filter={script}")["total"] == 2


def test_log_lines_are_only_text(tmp_path: Path, serve: Serve) -> None:
    writer = many_trials(tmp_path / "exp", 1)
    folder = writer.path / trial_logs.FOLDER
    folder.mkdir(exist_ok=True)
    text = f"{SCRIPT}\n{'y' * 3_000_000}\n\xff".encode("latin-1")
    (folder / trial_logs.log_name("abcde_00000")).write_bytes(trial_logs.make_head("abcde_00000", 1, 0.0) + text)
    server = serve(writer.path)
    found = server.get(f"{server.only()}/trials/abcde_00000/log")
    assert found["lines"][0] == SCRIPT
    assert max(map(len, found["lines"])) <= 10_000


def test_links_out_of_the_root_are_not_followed(tmp_path: Path, serve: Serve) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("do not show")
    writer = many_trials(tmp_path / "runs" / "exp", 1)
    folder = writer.path / trial_logs.FOLDER
    folder.mkdir(exist_ok=True)
    (folder / trial_logs.log_name("abcde_00000")).symlink_to(secret)
    server = serve(tmp_path / "runs")
    (one,) = server.experiments()
    reply = server.request(f"/api/experiments/{one['id']}/trials/abcde_00000/log")
    assert reply.status == 409
    assert "symbolic link" in reply.error
    assert b"do not show" not in reply.body


def test_no_address_leads_out_of_the_root(tmp_path: Path, serve: Serve) -> None:
    (tmp_path / "secret.txt").write_text("do not show")
    server = serve(many_trials(tmp_path / "exp", 1).path)
    path = server.only()
    for way_out in ("..", "%2e%2e", "..%2f..%2fsecret.txt", "%2fetc%2fpasswd", "\\..\\secret.txt"):
        for address in (
            f"/api/experiments/{way_out}",
            f"{path}/trials/{way_out}",
            f"{path}/trials/{way_out}/log",
            f"/{way_out}",
        ):
            reply = server.request(address)
            assert reply.status == 404, address
            assert b"do not show" not in reply.body


def test_two_experiments_with_the_same_id_have_different_addresses(tmp_path: Path, serve: Serve) -> None:
    for name, trials in (("a", 1), ("b", 2), ("c", 3)):
        writer = many_trials(tmp_path / name, trials)
        write_spec(Root(writer.path), msgspec.structs.replace(writer.spec, uid="0" * 16))
    server = serve(tmp_path)
    found = server.experiments()
    assert len({each["id"] for each in found}) == 3
    for each in found:
        facts = server.get(f"/api/experiments/{each['id']}")
        server.until(lambda facts=facts, each=each: server.get(f"/api/experiments/{each['id']}")["loading"] is None)
        assert server.get(f"/api/experiments/{each['id']}")["name"] == each["name"]
        assert server.get(f"/api/experiments/{each['id']}/trials")["total"] == ord(each["name"]) - ord("a") + 1


def test_a_directory_that_is_no_text_is_shown(tmp_path: Path, serve: Serve) -> None:
    """Names of directories are bytes; JSON is not."""
    writer = many_trials(tmp_path / "exp", 1)
    odd = tmp_path / "bad\udcffname"
    writer.path.rename(odd)
    server = serve(tmp_path)
    (one,) = server.experiments()
    assert "bad" in one["name"]
