"""The report: one file with the page and its data, from the base install."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from roots import RootWriter, experiment_with_early_damage, many_trials, small_experiment

from holdfast.cli.main import main
from holdfast.results.packing import unpack
from holdfast.ui import report
from holdfast.ui.source import Source

HOSTILE = '</script><script>alert(1)</script><!-- --><svg onload=alert(2)>"\u202e\u2028'


def data_of(page: str) -> dict[str, Any]:
    """What the page finds in itself."""
    found = re.search(r'<script type="application/json" id="holdfast-report">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def answers_of(page: str) -> dict[str, Any]:
    """The answers, without the part of their addresses that names the experiment."""
    responses = data_of(page)["responses"]
    (one,) = responses["/api/experiments"]["json"]
    return {address.replace(f"/api/experiments/{one['id']}", ""): answer for address, answer in responses.items()}


def test_a_report_has_all_that_the_page_asks_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = small_experiment(tmp_path / "digits").die()
    out = tmp_path / "out.html"
    assert main(["report", str(writer.path), str(out)]) == 0
    said = capsys.readouterr().out
    assert f"digits: report written to {out}" in said
    assert "thinned" not in said
    found = answers_of(out.read_text())
    assert found[""]["json"]["state"] == "interrupted"
    assert found[""]["json"]["read_only"] is True
    head, columns = unpack(base64.b64decode(found["/columns"]["base64"]))
    assert head["rows"] == 4
    assert {"trial_id", "status", "metric/loss", "config/lr", "best/loss"} <= columns.keys()
    _, curves = unpack(base64.b64decode(found["/curves?metric=nested%2Fdeep"]["base64"]))
    assert list(curves["value"].data) == [0, 1, 2]
    for n in range(4):
        detail = found[f"/trials/abcde_{n:05d}"]["json"]
        assert detail["trial_id"] == f"abcde_{n:05d}"
        assert found[f"/trials/abcde_{n:05d}/story"]["json"]
        assert found[f"/trials/abcde_{n:05d}/log"]["json"] == {"lines": [], "truncated": False}


def test_a_report_runs_nothing_but_its_own_scripts(tmp_path: Path) -> None:
    writer = RootWriter(tmp_path / "exp").open()
    writer.create({HOSTILE: HOSTILE})
    writer.start(0)
    writer.report(0, {HOSTILE: 1.0, "text": HOSTILE})
    writer.error(0, type=HOSTILE, message=HOSTILE, traceback=HOSTILE)
    page = report.make_report(Source.open(str(writer.die().path))).html.decode()
    assert page.lower().count("<script") == page.lower().count("</script") == 3
    assert "<svg onload" not in page
    assert "alert(1)" in page
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "src=" not in re.sub(r"<script[^>]*>.*?</script>|<style>.*?</style>", "", page, flags=re.DOTALL)
    found = answers_of(page)
    assert found["/trials/abcde_00000"]["json"]["config"] == {HOSTILE: HOSTILE}


def test_a_hostile_name_is_only_text(tmp_path: Path) -> None:
    name = "<b>&amp;\"'x"
    writer = many_trials(tmp_path / name, 1)
    page = report.make_report(Source.open(str(writer.path))).html.decode()
    assert "<title>&lt;b&gt;&amp;amp;&quot;&#x27;x · holdfast</title>" in page
    assert data_of(page)["experiment"] == name


def test_a_large_report_is_thinned_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sixty trials are enough: the limit is set so that the details of some of them do not fit."""
    writer = many_trials(tmp_path / "exp", 60, reports=20)
    monkeypatch.setattr(report, "POINTS", (200_000, 600, 150))
    source = Source.open(str(writer.path))
    whole = report.make_report(source)
    assert whole.note == ""
    bare = report.make_report(source, max_details=0)
    limit = len(bare.html)
    small = report.make_report(source, max_bytes=limit)
    assert len(small.html) < limit * 1.02 < len(whole.html)
    assert "points of each metric" in small.note
    assert re.search(r"details of \d+ of 60 trials", small.note)
    assert data_of(small.html.decode())["note"] == small.note
    found = answers_of(small.html.decode())
    assert unpack(base64.b64decode(found["/columns"]["base64"]))[0]["rows"] == 60
    assert "/trials/abcde_00059" in found, "the best trial is there"
    monkeypatch.setattr("holdfast.cli.report.make_report", lambda source: small)
    assert main(["report", str(writer.path), str(tmp_path / "out.html")]) == 0
    assert "It is thinned: its " in capsys.readouterr().out


def test_a_table_loses_only_the_columns_that_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source.open(str(many_trials(tmp_path / "exp", 200).path))
    whole, limit = len(source.pack_columns([], None)), 400_000
    monkeypatch.setattr(report, "TABLE", (whole - 1) * report.BASE64 / limit)
    made = report.make_report(source, max_bytes=limit, max_details=0)
    (left, of) = re.findall(r"its table has (\d+) of (\d+) columns", made.note)[0]
    assert int(of) - 2 <= int(left) < int(of)


def test_only_so_many_trials_have_details(tmp_path: Path) -> None:
    source = Source.open(str(many_trials(tmp_path / "exp", 5).path))
    made = report.make_report(source, max_details=2)
    assert made.note == "it has details of 2 of 5 trials"
    details = [address for address in answers_of(made.html.decode()) if re.fullmatch(r"/trials/[^/]*", address)]
    assert details == ["/trials/abcde_00004", "/trials/abcde_00003"]


def test_a_tiny_limit_thins_the_table_too(tmp_path: Path) -> None:
    source = Source.open(str(many_trials(tmp_path / "exp", 3000).path))
    made = report.make_report(source, max_bytes=300_000)
    assert "have one of" in made.note
    assert len(made.html) < 500_000
    found = answers_of(made.html.decode())
    _, columns = unpack(base64.b64decode(found["/columns"]["base64"]))
    _, curves = unpack(base64.b64decode(found["/curves?metric=loss"]["base64"]))
    last = dict(zip(curves["trial"].data, curves["value"].data, strict=True))
    table = columns["metric/loss"].data
    assert 0 < len(table) < 3000
    assert all(table[row] == value for row, value in last.items()), "curves name trials by their rows in the table"


@pytest.mark.parametrize("out", ["out.txt", "missing/out.html", "."])
def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path, out: str) -> None:
    writer = many_trials(tmp_path / "exp", 1)
    assert main(["report", str(writer.path), str(tmp_path / out)]) in (1, 2)
    assert not list(tmp_path.glob(".*tmp"))


def test_a_report_of_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "no"), str(tmp_path / "out.html")]) == 2
    assert main(["report", str(tmp_path), str(tmp_path / "out.html")]) == 2
    assert "There is no experiment" in capsys.readouterr().err
    assert not (tmp_path / "out.html").exists()


def test_a_damaged_journal_is_reported_as_far_as_it_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = small_experiment(tmp_path / "exp").finish()
    file = sorted((writer.path / ".holdfast" / "journal").iterdir())[-1]
    os.truncate(file, file.stat().st_size * 3 // 4)
    assert main(["report", str(writer.path), str(tmp_path / "out.html")]) == 1
    assert "holdfast repair" in capsys.readouterr().err
    assert answers_of((tmp_path / "out.html").read_text())[""]["json"]["damage"]


def test_a_report_needs_the_base_install_only(tmp_path: Path) -> None:
    writer = many_trials(tmp_path / "exp", 2)
    code = (
        "import sys\n"
        "class Blocked:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('starlette', 'uvicorn', 'anyio', 'numpy', 'pandas', 'pyarrow', 'scipy'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Blocked())\n"
        "from holdfast.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    out = tmp_path / "out.html"
    command = [sys.executable, "-c", code, "report", str(writer.path), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert out.stat().st_size > 10_000


def test_what_damage_keeps_out_of_a_report_is_refused_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A snapshot hides the damage from whoever opens the experiment; an empty chart would say that all was well."""
    path = experiment_with_early_damage(tmp_path / "exp")
    out = tmp_path / "out.html"
    assert main(["report", str(path), str(out)]) == 1
    assert "damaged at record" in capsys.readouterr().err
    found = answers_of(out.read_text())
    for address in ("/charts/recovery", "/charts/workers", "/charts/lineage", "/curves?metric=loss"):
        assert "holdfast repair" in found[address]["error"], address
        assert found[address].keys() == {"error"}
    overview = found[""]["json"]
    assert overview["resume_command"] is None
    assert overview["repair_command"] == f"holdfast repair {path}"
    assert overview["durable_lag_s"] is None
