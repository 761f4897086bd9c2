"""Several experiments of one ``tune.run``: at the same time where they can share the machine, else one after the other.

At the same time, each has its share of the CPUs, in whole ones. One after the other if they have a searcher in common,
which then learns from each for the next; if trials ask for anything but CPUs, which cannot be divided here; if a share
would be too small for a trial; or if two have the same name. Owns that choice, and what a signal means for all of them.
"""

from __future__ import annotations

import io
import math
import sys
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from holdfast.compat import ray
from holdfast.compat.running import RunTuner, equipped, prepare
from holdfast.config import Environment, LocalEngine, RayEngine
from holdfast.config.registry import get_trainable, trainable_name
from holdfast.config.resources import asks_by_config, flat_request, resources_of
from holdfast.controller.signals import watch_signals
from holdfast.engines.capacity import usable_cpus

LOOK_S = 0.2

Job = tuple[Any, dict[str, Any]]


def run_all(jobs: list[Job]) -> list[Any]:
    """Run experiments, and return what each gives; after Ctrl+C, only those that had begun.

    Args:
        jobs: The trainable and all arguments of ``tune.run``, for each.

    Raises:
        TuneError: A trial did not complete.
    """
    at_once = how_many_at_once(jobs)
    if at_once > 1:
        return _run_together(jobs, at_once)
    found = []
    for trainable, given in jobs:
        tuner = prepare(trainable, given)
        tuner.fit()
        found.append(tuner.results())
        if tuner.is_interrupted:
            break
    return found


def how_many_at_once(jobs: list[Job]) -> int:
    """How many of them can share the machine."""
    names = [given["name"] or trainable_name(trainable) for trainable, given in jobs]
    if len(set(names)) < len(names) or any(given["search_alg"] is not None for _, given in jobs):
        return 1
    if isinstance(ray.engine(), RayEngine):
        return 1  # the cluster knows its CPUs, not we
    needs = [_cpus_of_a_trial(*job) for job in jobs]
    return min(len(jobs), max(1, _total_cpus() // max(needs, default=1)))


def _total_cpus() -> int:
    engine = ray.engine()
    cpus = engine.cpus if isinstance(engine, LocalEngine) else None
    return int(usable_cpus() if cpus is None else cpus)


def _cpus_of_a_trial(trainable: Any, given: dict[str, Any]) -> int:
    """Whole CPUs; all of them if it asks for other things too, or for what only its config says."""
    found = equipped(get_trainable(trainable) if isinstance(trainable, str) else trainable, given)
    request = {} if asks_by_config(found) else flat_request(resources_of(found, {}))
    if not request or set(request) != {"CPU"}:
        return _total_cpus()
    return max(1, math.ceil(request["CPU"]))


class _NamedLines(io.TextIOBase):
    """Lines on the standard output, each with the name of the experiment that it is about."""

    def __init__(self, name: str) -> None:
        self._name, self._begun = name, ""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        sys.stdout.write("".join(f"{self._name}: {line}\n" for line in lines))
        return len(text)

    def flush(self) -> None:
        sys.stdout.flush()


class _Running:
    """The experiments that run at the same time, for whoever wants to end them all."""

    def __init__(self, tuners: list[RunTuner]) -> None:
        self._tuners = tuners
        self._reasons: list[str] = []
        self._told = [0] * len(tuners)

    def end(self, reason: str) -> None:
        """Only notes it: called in the handler of a signal."""
        self._reasons.append(reason)

    def fit(self, tuner: RunTuner) -> Any:
        """Run one, unless all are to end."""
        if self._reasons:
            return None
        tuner.fit()
        return tuner.results()

    def tell(self) -> None:
        """Pass on what was asked for, to those that have begun meanwhile too."""
        for number, tuner in enumerate(self._tuners):
            for reason in self._reasons[self._told[number] :]:
                if tuner._driver is not None and tuner._driver.end(reason):
                    self._told[number] += 1


def _run_together(jobs: list[Job], at_once: int) -> list[Any]:
    tuners = [prepare(trainable, given) for trainable, given in jobs]
    for tuner in tuners:
        tuner.share(_total_cpus() // at_once, _NamedLines(tuner._experiment.root.name))  # type: ignore[arg-type]
    running = _Running(tuners)
    handles_sigint = not Environment.read().disable_sigint_handler
    with watch_signals(running.end, sigint=handles_sigint) as signals, ThreadPoolExecutor(at_once) as pool:
        futures = [pool.submit(running.fit, tuner) for tuner in tuners]
        _wait_for_all(futures, running)
    if signals.exit_code is not None:
        sys.exit(signals.exit_code)
    found = [future.result() for future in futures]  # raises what one of them has raised
    return [each for each in found if each is not None]


def _wait_for_all(futures: list[Future[Any]], running: _Running) -> None:
    open_: set[Future[Any]] = set(futures)
    while open_:
        _, open_ = wait(open_, timeout=LOOK_S, return_when=FIRST_COMPLETED)
        running.tell()
