"""The built page in the package is what its sources say, is small, and needs nobody else."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from servers import page_tools
from servers.install import Unavailable, node

BUILT = ("LICENSES.txt", "app.css", "app.js", "icon.svg", "index.html")
MAX_PAGE_BYTES = 300_000
NAMESPACES = {"http://www.w3.org/2000/svg", "http://www.w3.org/1998/Math/MathML", "http://www.w3.org/1999/xhtml"}
RUN_FILTERS = """
import { compile } from "./src/filter";
import { readFileSync } from "node:fs";
const { rows, matches, errors } = JSON.parse(readFileSync(process.argv[2], "utf8"));
const columns = new Map();
for (const name of Object.keys(rows[0])) {
  const given = rows.map((row) => row[name]);
  if (given.every((v) => v === null || typeof v === "number")) {
    columns.set(name, { name, type: "f64", data: Float64Array.from(given, (v) => v ?? NaN), values: [] });
  } else {
    const values = [...new Set(given.filter((v) => v !== null))];
    const data = Uint32Array.from(given, (v) => (v === null ? 0xffffffff : values.indexOf(v)));
    columns.set(name, { name, type: "category", data, values });
  }
}
const passing = (filter) => {
  const test = compile(filter, columns);
  return rows.filter((_, row) => test(row)).map((row) => row.trial_id);
};
const failing = (filter) => {
  try { passing(filter); } catch (error) { return [error.place, error.message]; }
  return null;
};
const passed = matches.map((each) => passing(each.filter));
const failed = errors.map((each) => failing(each.filter));
console.log(JSON.stringify({ matches: passed, errors: failed }));
"""


def built(name: str) -> bytes:
    return (files("holdfast.ui") / "static" / name).read_bytes()


def test_rebuilding_the_page_gives_the_same_bytes(tmp_path: Path) -> None:
    """Whoever changes `ui/` without `npm run build` ships the page of yesterday."""
    try:
        page_tools.build(tmp_path)
    except Unavailable as reason:
        pytest.skip(str(reason))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(BUILT)
    for name in BUILT:
        assert (tmp_path / name).read_bytes() == built(name), f"{name} is not what ui/ builds: run `make page`"


@pytest.mark.slow
def test_sources_pass_the_type_checker() -> None:
    try:
        home = page_tools.fresh_sources()
    except Unavailable as reason:
        pytest.skip(str(reason))
    checked = subprocess.run(
        [str(node()), "node_modules/typescript/bin/tsc", "--noEmit"], cwd=home, capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout


def test_page_is_small() -> None:
    assert sum(len(gzip.compress(built(name))) for name in BUILT) < MAX_PAGE_BYTES


def test_page_names_no_other_host_and_has_no_source_map() -> None:
    for name in BUILT[1:]:
        text = built(name).decode()
        assert set(re.findall(r"https?://[\w./-]+", text)) <= NAMESPACES, name
        assert "sourceMappingURL" not in text


def test_page_has_no_inline_script_or_style() -> None:
    """The server's policy for content would refuse them."""
    page = built("index.html").decode()
    assert re.findall(r"<script[^>]*>", page) == ['<script src="app.js" defer>']
    assert "<style" not in page
    assert " style=" not in page
    assert not re.search(r"\son\w+=", page)


def test_sources_never_make_markup_from_data() -> None:
    for source in (page_tools.SOURCES / "src").rglob("*.ts*"):
        found = re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", source.read_text())
        assert found is None, source


def test_lock_file_names_no_host() -> None:
    lock = (page_tools.SOURCES / "package-lock.json").read_text()
    assert "resolved" not in lock
    assert "registry" not in lock
    assert json.loads(lock)["packages"]["node_modules/preact"]["version"].startswith("10.")


def test_browser_and_python_agree_about_filters(tmp_path: Path) -> None:
    """Both are held to the same file of examples; this is the browser's half."""
    cases = Path(__file__).with_name("filter_cases.json")
    expected: dict[str, Any] = json.loads(cases.read_text())
    try:
        home = page_tools.fresh_sources()
    except Unavailable as reason:
        pytest.skip(str(reason))
    bundle = tmp_path / "filters.mjs"
    esbuild = [str(node()), "node_modules/esbuild/bin/esbuild", "--bundle", "--platform=node", "--format=esm"]
    options = [f"--outfile={bundle}", "--log-level=error", "--sourcefile=filters.ts", "--loader=ts"]
    subprocess.run([*esbuild, *options], cwd=home, input=RUN_FILTERS, text=True, check=True)
    printed = subprocess.run([str(node()), str(bundle), str(cases)], check=True, capture_output=True, text=True).stdout
    found = json.loads(printed)
    for case, trials in zip(expected["matches"], found["matches"], strict=True):
        assert trials == case["trials"], case["filter"]
    for case, error in zip(expected["errors"], found["errors"], strict=True):
        assert error is not None, case["filter"]
        assert error[0] == case["place"], case["filter"]
        assert case["says"] in error[1], case["filter"]
