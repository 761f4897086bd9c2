"""The driver's edge for requests of users: request files become observations, and are removed once they are answered.

A request acts at most once, whatever is killed when: an event carries its id, the fold remembers it, and the file goes
only when that event is durable. A file that a new driver finds and whose id the fold does not know was made for an
earlier driver, by the number of its epoch: it is refused. No clock decides that.

Owns the reading and removal of request files. Must never decide what a request leads to, or write to the journal.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Protocol

from holdfast.controller.algorithms import check_algorithms
from holdfast.controller.experiment import Experiment, plan_of
from holdfast.controller.imported import check_samples
from holdfast.controller.request_files import RequestFolder, RequestSource, UserRequest, id_of, parse_request
from holdfast.core import observations as ob
from holdfast.core.events import Action
from holdfast.core.state import State
from holdfast.errors import DamageError, InvalidInputError
from holdfast.storage.crashpoint import crashpoint

MOST_AT_ONCE = 100
"""Requests that are read in one look: trials must not wait for people."""


class SafeJournal(Protocol):
    """What the edge needs to know of the journal."""

    @property
    def written_seq(self) -> int: ...

    @property
    def local_seq(self) -> int: ...

    def request_sync(self) -> None: ...


class RequestEdge:
    """Finds requests, and forgets those that were answered.

    Args:
        source: Where they are.
        state: Knows which were answered.
        journal: Knows which answers are durable.
        epoch: Of this driver.
        total_of: ``num_samples`` -> how many trials that makes; raises `InvalidInputError` if it cannot be.
        warn: Tells the user.
    """

    def __init__(
        self,
        source: RequestSource,
        state: State,
        journal: SafeJournal,
        epoch: int,
        *,
        total_of: Callable[[int], int | None],
        warn: Callable[[str], None],
    ) -> None:
        self._source = source
        self._state = state
        self._journal = journal
        self._epoch = epoch
        self._total_of = total_of
        self._warn = warn
        self._seen: set[str] = set()  # ids that are dealt with for good in this epoch, whatever becomes of the file
        self._answered: dict[str, int] = {}  # ids whose files are to go, and the record that must be durable first
        self._warned: set[str] = set()
        self._asked: dict[str, None] = {}  # ids that were told to the core and have no answer yet

    def look(self) -> list[ob.Observation]:
        """What people have asked for since the last look."""
        try:
            names = self._source.names()
        except OSError as error:
            self._warn_once("", f"requests of users cannot be read: {error}")
            names = None
        found = [] if names is None else self._read_all(names)
        self._tidy()
        return found

    def close(self) -> None:
        """This driver leaves, and all it wrote is durable: remove what it has answered."""
        for request_id in (*self._asked, *self._answered):
            if request_id in self._state.requests:
                self._remove(request_id)

    def _read_all(self, names: list[str]) -> list[ob.Observation]:
        found: list[ob.Observation] = []
        for name in sorted(names):
            request_id = id_of(name)
            if not request_id or request_id in self._seen:
                continue
            if request_id in self._state.requests:  # by a driver that was killed before it could remove the file
                self._seen.add(request_id)
                self._asked[request_id] = None
                continue
            if len(found) == MOST_AT_ONCE:
                self._source.look_again()
                break
            observation = self._read(request_id, name)
            if observation is not None:
                self._seen.add(request_id)
                self._asked[request_id] = None
                found.append(observation)
        return found

    def _read(self, request_id: str, name: str) -> ob.UserAsked | None:
        try:
            data = self._source.read(name)
        except FileNotFoundError:
            return None  # whoever asked has withdrawn it
        except (DamageError, OSError) as error:
            self._seen.add(request_id)
            self._warn_once(request_id, f"the request {name} is ignored: {error}")
            return None
        crashpoint("request.read")
        try:
            request = parse_request(data)
        except InvalidInputError as error:
            return ob.UserAsked(request_id, "", refused=str(error))
        if request.epoch > self._epoch:
            return None  # a successor's, which is about to end this driver
        return self._observation(request_id, request)

    def _observation(self, request_id: str, request: UserRequest) -> ob.UserAsked:
        refused, total = "", None
        if self._is_late(request):
            refused = (
                f"it was made for driver {request.epoch}, which ended before it took it; driver {self._epoch} has the "
                "experiment now. Ask again"
            )
        elif request.action == Action.SAMPLES:
            try:
                total = self._total_of(request.num_samples)
            except InvalidInputError as error:
                refused = str(error)
        return ob.UserAsked(
            request_id,
            request.action,
            request.trial,
            request.text,
            request.tags,
            request.num_samples,
            total,
            request.by,
            refused,
        )

    def _tidy(self) -> None:
        """Remove the files of requests whose answers are durable: whoever waits sees that."""
        journal = self._journal
        for request_id in [each for each in self._asked if each in self._state.requests]:
            del self._asked[request_id]
            self._answered[request_id] = journal.written_seq
            crashpoint("request.answered")
        for request_id, seq in list(self._answered.items()):
            if self._is_safe(seq):
                del self._answered[request_id]
                crashpoint("request.before_remove")
                self._remove(request_id)
                crashpoint("request.removed")
        if self._answered:
            journal.request_sync()

    def _is_late(self, request: UserRequest) -> bool:
        """Whether it was made for a driver before this one."""
        return request.epoch < self._epoch

    def _is_safe(self, seq: int) -> bool:
        """Whether an answer survives a power cut: no earlier may whoever asked take it for one."""
        return self._journal.local_seq >= seq

    def _remove(self, request_id: str) -> None:
        try:
            self._source.remove(f"{request_id}.json")
        except OSError as error:
            self._warn_once(request_id, f"the request {request_id}.json was answered and cannot be removed: {error}")

    def _warn_once(self, about: str, text: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            self._warn(text)


def requests_of(
    experiment: Experiment, state: State, journal: SafeJournal, epoch: int, warn: Callable[[str], None]
) -> RequestEdge:
    """The edge of a driver that has claimed ``epoch``."""
    folder = RequestFolder(experiment.root.path)
    folder.sweep()

    def total_of(samples: int) -> int | None:
        spec, settings = experiment.spec, experiment.settings
        check_samples(spec, settings.space)
        wanted = copy.copy(settings.tune_config)
        wanted._set("num_samples", samples)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they were told when the experiment began
            check_algorithms(wanted, settings.space, spec.seed)
        return plan_of(settings, samples, spec.seed, experiment.objects).total

    return RequestEdge(folder, state, journal, epoch, total_of=total_of, warn=warn)
