"""The documentation site builds offline, without a warning, and every link in it leads somewhere."""

import os
import re
import runpy
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SITE = ROOT / "docs" / "site"
NOWHERE = "http://127.0.0.1:9"
problems = runpy.run_path(str(SITE / "links.py"))["problems"]
needs_sphinx = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("sphinx", "furo", "myst_parser")),
    reason="the documentation site needs pip install -c constraints/base.txt -r constraints/docs.txt",
)


def build(site_folder, target):
    """Run what `make docs` runs; a proxy that is not there refuses every download."""
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), NOWHERE)
    environment = os.environ | proxies | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(site_folder / "build.py"), str(target)]
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@needs_sphinx
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_site_builds_without_warnings_and_dead_links(tmp_path):
    """One test, because the build takes half a minute, and processes that run tests share nothing."""
    site = tmp_path / "docs"
    done = build(SITE, site)
    assert done.returncode == 0, done.stdout
    for page in [*(ROOT / "docs" / "guides").glob("*.md"), *(ROOT / "examples").glob("*.py")]:
        assert (site / page.relative_to(ROOT)).with_suffix(".html").is_file()
    check_landing_page((site / "index.html").read_text())
    check_names_are_links((site / "docs" / "guides" / "getting-started.html").read_text())
    check_short_names_are_links((site / "docs" / "guides" / "fault-tolerance.html").read_text())
    check_arguments_are_shown((site / "docs" / "api" / "tuner.html").read_text())


def check_landing_page(page):
    assert "kill-and-resume.svg" in page
    assert "Toggle Light / Dark / Auto color theme" in page


def check_names_are_links(guide):
    assert re.search(r'<a class="api-name[^>]*href="\.\./api/training\.html#holdfast\.report"', guide)
    assert 'href="../api/command-line.html#resume"' in guide


def check_short_names_are_links(guide):
    """``tune.TuneError`` is described where it is defined, in ``holdfast.errors``."""
    assert 'href="../api/errors.html#holdfast.errors.TuneError"' in guide
    assert 'href="../api/errors.html#holdfast.errors.OwnershipError"' in guide


def check_arguments_are_shown(reference):
    signature = reference.split('id="holdfast.Tuner"')[1].split("</dt>")[0]
    assert "param_space" in signature


SMALL_README = """\
# Small

```bash
pip install .
```

```python run
import holdfast
```

Start it, and kill it after two seconds:

```bash
true
```
"""


@pytest.fixture
def small(tmp_path):
    """A project with one page, and the means to build its site."""
    shutil.copytree(SITE, tmp_path / "docs" / "site", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "docs/kill-and-resume.svg"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "README.md").write_text(SMALL_README)
    (tmp_path / "docs" / "site" / "templates" / "landing.html").write_text('{% extends "page.html" %}')

    def make(text):
        (tmp_path / "docs" / "index.md").write_text(f"# Index\n\n## Start\n\n[Readme](../README.md) {text}\n")
        return build(tmp_path / "docs" / "site", tmp_path / "build" / "docs")

    return make


@needs_sphinx
@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[dead](../examples/missing.py)", "examples/missing.py"),
        ("[dead](../README.md#nothing)", "nothing"),
        ("```{api} holdfast\nTunerr\n```", "Tunerr"),
        ('<img src="https://example.com/x.png">', "index.html loads https://example.com/x.png from another host"),
        ('<a href="missing.html">x</a>', "index.html links to missing.html, which does not exist"),
    ],
)
def test_a_site_with_a_fault_is_refused(small, text, said):
    done = small(f"\n\n{text}")
    assert done.returncode == 1
    assert said in done.stdout


@needs_sphinx
@pytest.mark.slow
def test_a_site_without_a_fault_is_accepted(small):
    done = small("`holdfast.Tuner`")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ('<a href="other.html">', "links to other.html, which does not exist"),
        ('<a href="index.html#there">', "links to index.html#there, and there is no such anchor in that page"),
        ('<a href="#there">', "links to #there, and there is no such anchor in that page"),
        ('<script src="https://cdn.example/x.js"></script>', "loads https://cdn.example/x.js from another host"),
        ('<link rel="stylesheet" href="//cdn.example/x.css">', "loads //cdn.example/x.css from another host"),
        ('<img src="x.png">', "loads x.png, which does not exist"),
        ("<style>@import 'https://cdn.example/x.css';</style>", "loads https://cdn.example/x.css from another host"),
    ],
)
def test_the_check_finds_what_is_wrong_with_a_page(tmp_path, page, said):
    (tmp_path / "index.html").write_text(f"<p>{page}</p>")
    assert problems(tmp_path) == [f"index.html {said}"]


def test_the_check_accepts_what_is_right(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "index.html").write_text('<a href="sub/x.html#a%20b"></a><a href="https://example.com/">elsewhere</a>')
    (tmp_path / "sub" / "x.html").write_text(
        '<p id="a b"><a href="../index.html"></a><img src="data:image/gif;base64,"></p>'
    )
    assert problems(tmp_path) == []


def test_the_check_reads_style_sheets(tmp_path):
    (tmp_path / "x.css").write_text("@font-face { src: url(https://fonts.example/a.woff2) }")
    assert problems(tmp_path) == ["x.css loads https://fonts.example/a.woff2"]
