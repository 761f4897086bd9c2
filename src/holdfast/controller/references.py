"""References to objects in the memory of a cluster, among what the user gave: they die with the session that made them.

Owns: finding them, and refusing a restore that would wait for one for ever. Must never: read what one refers to.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.config import LocalEngine
from holdfast.controller.spec import Spec
from holdfast.engines.cluster.joined import is_joined_here
from holdfast.errors import InvalidInputError

SPACE = "param_space"
PARAMETERS = "with_parameters"


def find_references(objects: Mapping[str, Any], trainable: Any) -> list[str]:
    """Where references are: "param_space: key", "with_parameters: name". Looks only if this process is in a cluster."""
    if not is_joined_here():
        return []
    parameters = getattr(trainable, "_holdfast_parameters", None) or {}
    return [
        *(f"{SPACE}: {path}" for path, value in objects.items() if any(_references(value))),
        *(f"{PARAMETERS}: {name}" for name, value in parameters.items() if any(_references(value))),
    ]


def session() -> str:
    """What tells this process's stay in a cluster from every other; "" if it is in none."""
    if not is_joined_here():
        return ""
    context = sys.modules["ray"].get_runtime_context()
    return f"{context.get_job_id()}/{context.get_worker_id()}"


def check_references(spec: Spec, shown: str, *, param_space: Any, trainable: Any, engine: Any = None) -> None:
    """Refuse to continue with references of a session that has ended, or where none can be read.

    Raises:
        InvalidInputError: Some were not given again; names them and the call.
    """
    if _is_local(engine):
        refuse_local(
            engine,
            [
                *(each for each in spec.references if {SPACE: param_space, PARAMETERS: trainable}[_kind(each)] is None),
                *find_references({}, trainable),
            ],
        )
        return
    if not spec.references or spec.session == session():
        return
    given = {SPACE: param_space is not None, PARAMETERS: trainable is not None}
    dead = [each for each in spec.references if not given[_kind(each)]]
    if dead:
        names = _names(dead)
        arguments = [
            *(["param_space=..."] if any(each.startswith(SPACE) for each in dead) else []),
            *(["trainable=tune.with_parameters(...)"] if any(each.startswith(PARAMETERS) for each in dead) else []),
        ]
        raise InvalidInputError(
            f"{', '.join(names)} of this experiment are references to objects in a Ray session that has ended, or that "
            f"this process is not part of. Put the objects into this session with ray.put() and give them again: "
            f"Tuner.restore({shown!r}, {', '.join(arguments)}). Nothing was started."
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
            f"{', '.join(_names(references))} of this experiment are references to objects in a Ray session, and "
            "RunConfig(engine='local') runs trials in processes that are not part of it. Leave engine out, or use "
            "engine='ray'; or give the objects themselves instead of ray.put(). Nothing was started."
        )


def _kind(reference: str) -> str:
    return reference.split(": ", 1)[0]


def _names(references: list[str]) -> list[str]:
    return [f"{each.split(': ', 1)[1]!r}" for each in references]


def _references(value: Any) -> Iterator[Any]:
    if type(value).__name__ == "ObjectRef" and type(value).__module__.split(".")[0] == "ray":
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _references(each)
    elif isinstance(value, list | tuple | set):
        for each in value:
            yield from _references(each)
