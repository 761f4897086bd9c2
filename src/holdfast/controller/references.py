"""References to objects in the memory of a cluster, among what the user gave: they die with the session that made them.

Owns: where they were found, and refusing a restore that would wait for one for ever. Must never: read what one refers
to.
"""

from __future__ import annotations

import contextlib
import sys
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.config import LocalEngine
from holdfast.controller.spec import Spec
from holdfast.engines.cluster.joined import is_joined_here
from holdfast.errors import InvalidInputError
from holdfast.space.domains import Domain
from holdfast.space.nested import joined
from holdfast.trainable.pickling import CODE, PARAMETERS, SETTINGS, VALUES, holds_reference, noting_references

CONFIGS = ("tune_config", "run_config")

_process = uuid.uuid4().hex
"""The first job of every new cluster has the same numbers, its driver and its objects, too."""

_CALLS = {
    VALUES: "param_space=...",
    PARAMETERS: "trainable=tune.with_parameters(...)",
    CODE: "trainable=...",
    "tune_config": "tune_config=tune.TuneConfig(...)",
    "run_config": "run_config=tune.RunConfig(...)",
}


@contextlib.contextmanager
def noted_references() -> Iterator[list[tuple[str, str]]]:
    """What is pickled meanwhile and refers to a cluster's memory; looks only if this process is in a cluster."""
    if not is_joined_here():
        yield []
        return
    with noting_references() as found:
        yield found


def places_of(noted: list[tuple[str, str]], trainable: Any, settings: Any) -> list[str]:
    """Where the references are: "param_space: key", "with_parameters: name", "trainable: name", "run_config: field".

    Args:
        noted: What ``noted_references`` has found.
        trainable: That was pickled.
        settings: With the attributes ``space``, ``tune_config`` and ``run_config``.
    """
    places: list[str] = []
    for kind, name in noted:
        if kind == PARAMETERS:
            parameters = getattr(trainable, "_holdfast_parameters", None) or {}
            places += [f"{PARAMETERS}: {each}" for each, value in parameters.items() if holds_reference(value)]
        elif kind == SETTINGS:
            places += [f"{VALUES}: {joined(path)}" for path in _referring(settings.space, ())]
            for config in CONFIGS:
                fields = vars(getattr(settings, config))
                places += [f"{config}: {each}" for each, value in fields.items() if holds_reference(value)]
        else:
            places.append(f"{kind}: {name}")
    return places


def _referring(node: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Functions and other domains of a space that hold references."""
    if isinstance(node, Domain):
        if holds_reference(node):
            yield path
    elif isinstance(node, Mapping):
        for key, value in node.items():
            yield from _referring(value, (*path, key))
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from _referring(value, (*path, i))


def session() -> str:
    """What tells this process's stay in a cluster from every other; "" if it is in none."""
    if not is_joined_here():
        return ""
    context = sys.modules["ray"].get_runtime_context()
    cluster = context.get_session_name() if hasattr(context, "get_session_name") else ""
    return f"{cluster}/{context.get_job_id()}/{_process}"


def check_references(spec: Spec, shown: str, given: Mapping[str, Any], engine: Any = None) -> None:
    """Refuse to continue with references of a session that has ended, or where none can be read.

    Args:
        spec: The experiment's facts.
        shown: Its place.
        given: What was given again, as the arguments of ``Tuner.restore`` are named.
        engine: The setting.

    Raises:
        InvalidInputError: Some were not given again; names them and the call.
    """
    missing = [each for each in spec.references if not _is_given(each, given)]
    if _is_local(engine):
        refuse_local(engine, missing)
    elif missing and spec.session != session():
        raise ended(shown, missing)


def _is_given(reference: str, given: Mapping[str, Any]) -> bool:
    kind, name = reference.split(": ", 1)
    if kind in CONFIGS:
        return bool(getattr(given.get(kind), name, None))
    return given.get("param_space" if kind == VALUES else "trainable") is not None


def ended(shown: str, references: list[str]) -> InvalidInputError:
    """The error that names what the user has to give again."""
    arguments = dict.fromkeys(_CALLS[each.split(": ", 1)[0]] for each in references)
    if _CALLS[PARAMETERS] in arguments:
        arguments.pop(_CALLS[CODE], None)
    return InvalidInputError(
        f"{', '.join(_names(references))} of this experiment are or hold references to objects in a Ray session that "
        "has ended, or that this process is not part of. Put the objects into this session with ray.put() and give "
        f"them again: Tuner.restore({shown!r}, {', '.join(arguments)}). Nothing was started."
    )


def _is_local(engine: Any) -> bool:
    """Whether a setting says that trials run on this machine, outside any cluster."""
    return engine == "local" or isinstance(engine, LocalEngine)


def refuse_local(engine: Any, references: list[str]) -> None:
    """Refuse to run trials on this machine, if the setting says so, that need objects in the memory of a cluster.

    Raises:
        InvalidInputError: There is a reference; names all of them.
    """
    if references and _is_local(engine):
        raise InvalidInputError(
            f"{', '.join(_names(references))} of this experiment are or hold references to objects in a Ray session, "
            "and RunConfig(engine='local') runs trials in processes that are not part of it. Leave engine out, or use "
            "engine='ray'; or give the objects themselves instead of ray.put(). Nothing was started."
        )


def _names(references: list[str]) -> list[str]:
    return list(dict.fromkeys(f"{each.split(': ', 1)[1]!r}" for each in references))
