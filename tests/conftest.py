"""Shared by all tests."""

import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from _pytest.reports import CollectReport, TestReport
from hypothesis import HealthCheck, settings

# Their assertions shall tell what they compare. Several folders use them: this comes before any of those is imported.
for suite in ("elsewhere", "engine", "journal", "scheduler", "searcher", "store"):
    pytest.register_assert_rewrite(f"holdfast.testing.{suite}_contract")

# A shell without job control starts its background jobs with SIGINT ignored, nohup does so with SIGHUP, and children
# inherit both: drivers under test would not hear Ctrl+C. Programs that are started from here have the defaults again.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Several processes run tests at once, and numerical libraries would start a thread per core in each of them. These wait
# for one another in busy loops, which takes more CPU time than the little that they compute.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No limits in wall time: a machine that stands still for 0.2 s, as a busy one does, would fail a test.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

# Helpers that several tests of one folder share are plain modules beside them; those of many are packages of this one.
for folder in ("core", "cli", "ui_server", ""):
    sys.path.insert(0, str(Path(__file__).parent / folder))


@pytest.fixture(scope="module", autouse=True)
def _libraries(request: pytest.FixtureRequest) -> None:
    """Let the first test of a module import what is heavy: ``import_libraries`` makes the names global, or skips.

    Each process that runs tests collects all of them, and would import PyTorch and ten more without using them.
    """
    getattr(request.module, "import_libraries", lambda: None)()


def _tell_how_to_get_it(report: TestReport | CollectReport) -> None:
    """A test that is skipped because a library is missing says how to install it."""
    if report.skipped and isinstance(report.longrepr, tuple):
        path, line, why = report.longrepr
        if "could not import" in why and "make " not in why:
            report.longrepr = (path, line, f"{why}: `make test` installs what the tests need")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, TestReport, TestReport]:
    report = yield
    _tell_how_to_get_it(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, CollectReport, CollectReport]:
    report = yield
    _tell_how_to_get_it(report)
    return report
