"""Every route of the live page's server, asked over real connections."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from roots import RootWriter, many_trials, small_experiment
from ui_clients import LiveServer, unpacked

from holdfast.core import events as ev
from holdfast.storage import trial_logs

Serve = Callable[..., LiveServer]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One small experiment whose driver has died."""
    return small_experiment(tmp_path_factory.mktemp("routes") / "digits").die().path


@pytest.fixture(scope="module")
def small(digits: Path, serve_all: Serve) -> tuple[LiveServer, str]:
    """A server of it, and its address there."""
    server = serve_all(digits)
    return server, server.only()


def test_the_list_says_how_each_experiment_stands(tmp_path: Path, serve: Serve) -> None:
    small_experiment(tmp_path / "runs" / "one").die()
    many_trials(tmp_path / "runs" / "deep" / "two", 5)
    found = {each["name"]: each for each in serve(tmp_path / "runs").experiments()}
    assert sorted(found) == ["deep/two", "one"]
    one = found["one"]
    assert (one["state"], one["trials"], one["metric"], one["mode"]) == ("interrupted", 4, "loss", "min")
    assert one["counts"]["ERROR"] == 1
    assert one["best"]["value"] == 1.0
    assert one["path"] == str(tmp_path / "runs" / "one")
    assert one["started"] < one["updated"]
    assert found["deep/two"]["state"] == "finished"
    assert one["id"] != found["deep/two"]["id"]
    assert all(int(each["id"], 16) for each in found.values())


def test_an_id_is_the_same_for_every_server(tmp_path: Path, serve: Serve) -> None:
    writer = many_trials(tmp_path / "exp", 2)
    assert serve(writer.path).only() == serve(tmp_path).only()


def test_an_experiment_is_shown_with_the_keys_of_status(small: tuple[LiveServer, str]) -> None:
    server, path = small
    facts = server.get(path)
    assert (facts["name"], facts["state"], facts["total"]) == ("digits", "interrupted", 4)
    assert path.endswith(facts["id"])
    assert facts["loading"] is None
    assert facts["record"] > 30
    assert facts["best"]["trial_id"] == "abcde_00000"
    assert facts["best"]["value"] == 1.0
    assert facts["best"]["config"] == {"lr": 0.1}
    (failure,) = facts["failures"]
    assert (failure["type"], failure["count"], failure["trials"]) == ("ValueError", 1, ["abcde_00001"])
    assert facts["resume_command"].startswith("holdfast resume ")
    assert facts["damage"] is None
    assert set(facts["metrics"]) >= {"loss", "nested/deep"}
    assert facts["params"] == ["lr"]
    assert (facts["live"], facts["read_only"]) == (False, True)
    assert facts["notes"] == []


def test_trials_are_filtered_sorted_and_paged(small: tuple[LiveServer, str]) -> None:
    server, path = small
    everything = server.get(f"{path}/trials")
    assert everything["total"] == 4
    assert [row["trial_id"] for row in everything["rows"]] == [f"abcde_{n:05d}" for n in range(4)]
    assert everything["rows"][0]["config/lr"] == 0.1
    found = server.get(f"{path}/trials?filter={quote('loss < 5 and not status == ERROR')}&sort=loss&desc=1")
    assert [row["loss"] for row in found["rows"]] == [4.0, 2.0, 1.0]
    paged = server.get(f"{path}/trials?sort=config/lr&offset=1&limit=2")
    assert (paged["total"], [row["trial_id"] for row in paged["rows"]]) == (4, ["abcde_00001", "abcde_00002"])
    some = server.get(f"{path}/trials?columns=status,metric/loss&limit=1")
    assert some["rows"] == [{"trial_id": "abcde_00000", "status": "TERMINATED", "metric/loss": 1.0}]
    assert server.get(f"{path}/trials?offset=100")["rows"] == []
    assert server.get(f"{path}/trials?desc=1")["rows"][0]["trial_id"] == "abcde_00003"


def test_trials_without_a_value_come_last_in_both_directions(tmp_path: Path, serve: Serve) -> None:
    writer = RootWriter(tmp_path / "exp").open()
    for n, loss in enumerate((2.0, float("nan"), 1.0)):
        writer.create({"x": n})
        writer.start(n)
        writer.report(n, {"loss": loss})
    writer.create({"x": 3})
    server = serve(writer.die().path)
    path = server.only()
    for desc, order in ((0, [2, 0, 1, 3]), (1, [0, 2, 1, 3])):
        rows = server.get(f"{path}/trials?sort=loss&desc={desc}")["rows"]
        assert [row["config/x"] for row in rows] == order
    assert server.get(f"{path}/trials")["rows"][1]["loss"] is None


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("sort=nosuch", "no column 'nosuch'"),
        ("columns=status,nosuch", "no column 'nosuch'"),
        ("offset=-1", "offset=-1 is not between"),
        ("offset=x", "'x' is not a whole number"),
        ("limit=1_0", "'1_0' is not a whole number"),
        (f"limit={quote(chr(0xFF11))}", "is not a whole number"),
        ("limit=1001", "limit=1001 is not between"),
        ("limit=9999999999999999999999999999999999999999999", "limit has 43 characters"),
        ("desc=maybe", "desc='maybe' is neither"),
        ("filter=loss+%3C", "expected a value"),
        ("filter=nosuch+%3C+3", "'nosuch'"),
        ("filter=" + "(" * 100 + "loss<1", "nested more than"),
        ("filter=" + "x" * 5000, "the limit is 4,000"),
        ("filter=" + "+or+".join(["loss<1"] * 300), "comparisons"),
    ],
)
def test_a_bad_parameter_is_refused_in_one_sentence(small: tuple[LiveServer, str], query: str, says: str) -> None:
    server, path = small
    reply = server.request(f"{path}/trials?{query}")
    assert reply.status == 400
    assert says in reply.error


def test_a_bad_filter_names_its_place(small: tuple[LiveServer, str]) -> None:
    server, path = small
    reply = server.request(f"{path}/trials?filter={quote('loss < 1 status == ERROR')}")
    assert (reply.status, reply.json["place"]) == (400, 9)


def test_one_trial_is_shown_in_detail(small: tuple[LiveServer, str]) -> None:
    server, path = small
    done = server.get(f"{path}/trials/abcde_00000")
    assert (done["status"], done["config"], done["metrics"]["loss"]) == ("TERMINATED", {"lr": 0.1}, 1.0)
    assert [each["state"] for each in done["checkpoints"]] == ["committed"] * 3
    assert done["checkpoints"][1]["step"] == 2
    assert done["checkpoints"][1]["path"].endswith("/checkpoint_000001")
    assert done["checkpoints"][1]["bytes"] > 0
    assert done["lineage"] == []
    failed = server.get(f"{path}/trials/abcde_00001")
    assert failed["error"]["type"] == "ValueError"
    assert "line 17" in failed["error"]["traceback"]


def test_rows_are_those_that_survive(small: tuple[LiveServer, str]) -> None:
    server, path = small
    found = server.get(f"{path}/trials/abcde_00002/rows")
    assert [(row["training_iteration"], row["loss"]) for row in found["rows"]] == [(1, 5.0), (2, 4.0)]
    assert server.get(f"{path}/trials/abcde_00000/rows?offset=1&limit=1") == {
        "total": 3,
        "rows": [server.get(f"{path}/trials/abcde_00000/rows")["rows"][1]],
    }
    assert "is not between" in server.request(f"{path}/trials/abcde_00000/rows?limit=1000000").error


def test_a_story_is_told(small: tuple[LiveServer, str]) -> None:
    server, path = small
    lines = server.get(f"{path}/trials/abcde_00002/story")
    assert any("SIGKILL" in line["text"] for line in lines)
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
    assert any(line["kind"] == "AttemptFailed" for line in lines)


def test_the_end_of_a_log_is_shown(small: tuple[LiveServer, str], digits: Path) -> None:
    server, path = small
    file = digits / trial_logs.FOLDER / trial_logs.log_name("abcde_00000")
    file.parent.mkdir(exist_ok=True)
    lines = "".join(f"line {n}\n" for n in range(500))
    file.write_bytes(trial_logs.make_head("abcde_00000", 1, 1_700_000_000.0) + lines.encode())
    found = server.get(f"{path}/trials/abcde_00000/log?tail=3")
    assert found == {"lines": ["line 497", "line 498", "line 499"], "truncated": True}
    assert len(server.get(f"{path}/trials/abcde_00000/log")["lines"]) == 200
    assert server.get(f"{path}/trials/abcde_00001/log") == {"lines": [], "truncated": False}
    assert server.request(f"{path}/trials/abcde_00000/log?tail=x").status == 400


def test_columns_come_as_arrays(small: tuple[LiveServer, str]) -> None:
    server, path = small
    reply = server.request(f"{path}/columns?names=trial_id,status,iteration,metric/loss,config/lr,metric/nosuch")
    assert reply.headers["Content-Type"] == "application/octet-stream"
    head, columns = unpacked(reply.body)
    assert head["rows"] == 4
    assert head["record"] == server.get(path)["record"]
    assert columns["status"] == ["TERMINATED", "ERROR", "TERMINATED", "PENDING"]
    assert columns["metric/loss"] == [1.0, 9.0, 4.0, 2.0]
    assert columns["config/lr"] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert columns["iteration"] == [3, 1, 2, 2]
    assert "metric/nosuch" not in columns
    _, some = unpacked(server.request(f"{path}/columns?names=trial_id,metric/loss&trials=abcde_00003,nosuch").body)
    assert some == {"trial_id": ["abcde_00003"], "metric/loss": [2.0]}


def test_curves_come_as_arrays(small: tuple[LiveServer, str]) -> None:
    server, path = small
    head, columns = unpacked(server.request(f"{path}/curves?metric=loss").body)
    assert head["thinned"] is False
    points = list(zip(columns["trial"], columns["step"], columns["value"], strict=True))
    assert points == [(0, 1, 3), (0, 2, 2), (0, 3, 1), (1, 1, 9), (2, 1, 5), (2, 2, 4), (3, 1, 2.5), (3, 2, 2)]
    _, some = unpacked(server.request(f"{path}/curves?metric=loss&trials=abcde_00001").body)
    assert some["value"] == [9]
    assert server.request(f"{path}/curves").status == 400
    assert server.request(f"{path}/curves?metric=loss&max_points=1").status == 400


def test_what_does_not_exist_is_not_found(small: tuple[LiveServer, str]) -> None:
    server, path = small
    for missing in (
        "/nosuch",
        "/api/nosuch",
        "/api/experiments/0123456789ab",
        "/api/experiments/..%2f..%2fetc",
        f"{path}/nosuch",
        f"{path}/trials/nosuch",
        f"{path}/trials/nosuch/rows",
        f"{path}/trials/{quote(chr(0x660))}",
        f"{path}/trials/{'9' * 5000}",
        f"{path}/trials/nosuch/story",
        f"{path}/trials/nosuch/log",
        f"{path}/trials/..%2f..%2fspec.json",
        f"{path}/charts/nosuch",
        "/static/app.js",
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/index.html/..",
    ):
        reply = server.request(missing)
        assert reply.status == 404, missing
        assert reply.error.endswith(".")


def test_a_wrong_method_is_refused(small: tuple[LiveServer, str]) -> None:
    server, path = small
    assert server.request(path, method="DELETE").status == 405
    assert server.request(f"{path}/stop").status == 405
    assert server.request("/", method="PUT").status == 405


def test_large_answers_are_compressed(tmp_path: Path, serve: Serve) -> None:
    server = serve(many_trials(tmp_path / "exp", 50).path)
    path = server.only()
    plain = server.request(f"{path}/trials")
    packed = server.request(f"{path}/trials", Accept_Encoding="gzip, deflate, br")
    assert "Content-Encoding" not in plain.headers
    assert packed.headers["Content-Encoding"] == "gzip"
    assert int(packed.headers["Content-Length"]) < int(plain.headers["Content-Length"])
    assert packed.json == plain.json
    refused = server.request(f"{path}/trials", Accept_Encoding="gzip;q=0")
    assert "Content-Encoding" not in refused.headers
    arrays = server.request(f"{path}/columns?names=trial_id,config/lr", Accept_Encoding="gzip")
    assert "Content-Encoding" not in arrays.headers  # to send them on this machine takes less than to compress them


def test_the_page_is_served_and_kept_by_browsers(small: tuple[LiveServer, str]) -> None:
    server, _ = small
    page = server.request("/")
    assert page.headers["Content-Type"].startswith("text/html")
    assert b"holdfast" in page.body
    again = server.request("/", If_None_Match=page.headers["ETag"])
    assert (again.status, again.body) == (304, b"")


def test_looking_changes_nothing(tmp_path: Path, serve: Serve) -> None:
    writer = small_experiment(tmp_path / "exp").die()

    def files() -> dict[str, tuple[int, int]]:
        found = (file for file in tmp_path.rglob("*"))
        return {str(file): (file.stat().st_size, file.stat().st_mtime_ns) for file in found}

    before = files()
    server = serve(writer.path)
    path = server.only()
    for each in ("", "/trials", "/columns", "/curves?metric=loss"):
        assert server.request(path + each).status == 200
    for each in ("", "/rows", "/story", "/log"):
        assert server.request(f"{path}/trials/abcde_00000{each}").status == 200
    assert server.stop()[0] == 0
    assert files() == before


def test_a_read_only_experiment_is_shown(tmp_path: Path, serve: Serve) -> None:
    writer = many_trials(tmp_path / "exp", 3)
    folders = [writer.path, *(file for file in writer.path.rglob("*") if file.is_dir())]
    for folder in folders:
        folder.chmod(0o500)
    try:
        server = serve(writer.path)
        assert server.get(server.only())["state"] == "finished"
        server.stop()
    finally:
        for folder in folders:
            folder.chmod(0o700)


@pytest.mark.slow
def test_experiments_that_appear_later_are_listed(tmp_path: Path, serve: Serve) -> None:
    many_trials(tmp_path / "first", 1)
    server = serve(tmp_path)
    many_trials(tmp_path / "second", 1)
    server.until(lambda: len(server.get("/api/experiments")) == 2)
    assert json.dumps(server.experiments())


def test_charts_are_drawn_from_their_data(small: tuple[LiveServer, str]) -> None:
    server, path = small
    importance = server.get(f"{path}/charts/importance?metric=loss")
    assert [param["name"] for param in importance["params"]] == ["lr"]
    edf = server.get(f"{path}/charts/edf")
    assert edf["points"] == [[1, 0.25], [2, 0.5], [4, 0.75], [9, 1]]
    pareto = server.get(f"{path}/charts/pareto?x=loss&y=nested/deep&y_mode=max")
    assert pareto["points"] == [["abcde_00000", 1, 2, 1]]
    assert pareto["y_mode"] == "max"
    workers = server.get(f"{path}/charts/workers")["workers"]
    spans = [span for worker in workers for span in worker["spans"]]
    assert {span[2] for span in spans} == {f"abcde_{n:05d}" for n in range(4)}
    assert {span[4] for span in spans} <= {"done", "failed", "interrupted", "running"}
    recovery = server.get(f"{path}/charts/recovery")
    assert {event["kind"] for event in recovery["events"]} == {"crash", "retry", "rewind", "driver_lost"}
    assert recovery["by_kind"]["retry"]["count"] == 1
    assert recovery["by_kind"]["crash"] == {"count": 1, "lost_s": None}, "what it cost is not known"
    assert recovery["by_kind"]["driver_lost"] == {"count": 1, "lost_s": None}, "nobody has resumed it yet"
    assert recovery["lost_s"] == recovery["by_kind"]["retry"]["lost_s"], "a rewind costs what its cause has cost"
    assert server.get(f"{path}/charts/lineage") == {"nodes": [], "edges": [], "params": []}


def test_a_chart_without_data_says_why(tmp_path: Path, serve: Serve) -> None:
    writer = RootWriter(tmp_path / "exp").open()
    writer.create({"lr": 0.1, "layers": 3})
    server = serve(writer.die().path)
    path = server.only()
    for chart in ("importance", "edf", "pareto", "contour", "contour?x=lr&y=layers", "edf?metric=loss"):
        assert server.get(f"{path}/charts/{chart}")["note"]
    for chart in ("workers", "lineage", "recovery"):
        assert server.get(f"{path}/charts/{chart}")


def test_a_chart_of_what_nobody_reported_is_refused(small: tuple[LiveServer, str]) -> None:
    server, path = small
    for chart in (
        "importance?metric=nosuch",
        "edf?metric=nosuch",
        "contour?metric=loss&x=lr&y=nosuch",
        "pareto?x=loss&y=nosuch",
        "pareto?x=loss&y=loss&x_mode=sideways",
    ):
        assert server.request(f"{path}/charts/{chart}").status == 400, chart


def test_unknown_names_are_refused_with_those_that_exist(small: tuple[LiveServer, str]) -> None:
    server, path = small
    for address, said in {
        f"{path}/columns?names=nosuch": "no column 'nosuch'. The columns are: trial_id, status",
        f"{path}/columns?names=trial_id,statuss": "Did you mean 'status'?",
        f"{path}/curves?metric=nosuch": "no metric 'nosuch'. The metrics are: loss, nested/deep",
        f"{path}/curves?metric=loss&max_point=500": "Did you mean 'max_points'?",
        f"{path}/trials?fliter=x": "Did you mean 'filter'?",
        f"{path}/trials/abcde_00000?odd=1": "There are no parameters.",
        f"{path}/trials/abcde_00000/log?tial=3": "Did you mean 'tail'?",
        f"{path}/charts/edf?metrc=loss": "Did you mean 'metric'?",
        f"{path}/events?afer=3": "Did you mean 'after'?",
        f"{path}?odd=1": "no parameter 'odd'",
        "/api/experiments?odd=1": "no parameter 'odd'",
    }.items():
        reply = server.request(address)
        assert reply.status == 400, address
        assert said in reply.error, address


def test_a_failure_without_exception_has_a_title(small: tuple[LiveServer, str]) -> None:
    server, path = small
    assert server.get(path)["failures"][0]["title"] == "ValueError"
    assert server.get(f"{path}/trials/abcde_00002")["last_failure"]["title"] == "the process was killed"


def test_populations_are_shown_with_their_lineage(tmp_path: Path, serve: Serve) -> None:
    writer = RootWriter(tmp_path / "exp").open()
    for n in range(2):
        writer.create({"lr": 0.1 * (n + 1)})
        writer.start(n)
        writer.report(n, {"loss": float(n)})
        writer.save(n, {"model.txt": "weights"})
    writer.add(ev.TrialPaused(writer.tick(), 1, 1))
    writer.add(ev.TrialReconfigured(writer.tick(), 1, {"lr": 0.05}, "1_lr=0.05", (0, 0), 0))
    writer.add(ev.TrialResumed(writer.tick(), 1))
    writer.start(1, source=(0, 0))
    writer.report(1, {"loss": 0.5})
    server = serve(writer.die().path)
    path = server.only()
    lineage = server.get(f"{path}/charts/lineage")
    (edge,) = lineage["edges"]
    assert (edge["from"], edge["to"], edge["checkpoint"]) == ("abcde_00000", "abcde_00001", 0)
    nodes = {node["trial_id"]: node["segments"] for node in lineage["nodes"]}
    assert [segment[4]["lr"] for segment in nodes["abcde_00001"]] == [0.2, 0.05]
    assert len(nodes["abcde_00000"]) == 1
    assert lineage["params"] == ["lr"]
    (copy,) = server.get(f"{path}/trials/abcde_00001")["lineage"]
    assert (copy["from"], copy["checkpoint"]) == ("abcde_00000", "checkpoint_000000")
    trial = server.get(f"{path}/trials/abcde_00001")
    assert trial["attempts"] == 2
    assert server.get(f"{path}/trials/train_abcde_00001") == trial, "by its name as well"
    outcomes = [attempt["outcome"] for attempt in trial["attempt_list"]]
    assert outcomes[0] == "paused"


def test_every_key_of_a_row_is_a_column_of_the_same_meaning(small: tuple[LiveServer, str]) -> None:
    server, path = small
    rows = server.get(f"{path}/trials")["rows"]
    names = list(dict.fromkeys(name for row in rows for name in row))
    asked = quote(",".join(quote(name, safe="") for name in names))
    chosen = server.get(f"{path}/trials?columns={asked}")["rows"]
    for row, again in zip(rows, chosen, strict=True):
        assert {name: again[name] for name in row} == row
    assert server.get(f"{path}/trials?filter={quote('ended == returned')}")["total"] == 2
    ended = [row["ended_at"] for row in server.get(f"{path}/trials?sort=ended_at")["rows"]]
    assert ended[:3] == sorted(ended[:3])
    assert ended[3] is None
    _, columns = unpacked(server.request(f"{path}/columns?names=ended_at,started_at").body)
    assert sorted(columns["ended_at"][:3]) == ended[:3]
    assert columns["started_at"] == [row["started_at"] for row in rows]
