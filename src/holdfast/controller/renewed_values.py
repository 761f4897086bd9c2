"""Values that functions of the space made for trials, and that refer to a session of a cluster that has ended.

Such a value is in a file of its own, whose name is its digest. If the space was given again, its function is asked
again, and what it returns takes the place of the value; else the experiment is not continued.

Owns: finding these values and making them again. Must never: change a config; what was drawn besides stays.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from holdfast.controller.experiment import Experiment
from holdfast.controller.references import ended, session
from holdfast.core.state import State, Status
from holdfast.errors import DamageError
from holdfast.space.domains import Function
from holdfast.space.exact import pack, unpack
from holdfast.space.nested import Path, joined
from holdfast.space.objects import find_object, is_marker, make_marker, restore_objects
from holdfast.space.variants import VariantPlan
from holdfast.trainable.pickling import OWN_FILE, VALUES, dump_value


def renew_values(experiment: Experiment, state: State, epoch: int) -> None:
    """Have trials that have not ended use what the functions of the space return now.

    Args:
        experiment: With the space as it was given again, if it was.
        state: The trials.
        epoch: Of the driver.

    Raises:
        InvalidInputError: A value cannot be read here and was not given again; names its key and the call.
    """
    objects, root, began, now = experiment.objects, experiment.root, experiment.spec.session, session()
    if not objects.own_files or not (began or now) or (began == now and not experiment.has_new_space):
        return
    known: dict[str, bool] = {}
    dead: list[str] = []
    renewed: set[str] = set()
    for trial in state.trials:
        for path, key in _own_values(trial.config, ()):
            if trial.status == Status.TERMINATED or key in renewed:
                continue
            if key not in known:
                known[key] = False
                with contextlib.suppress(DamageError):  # which is told by the trial that needs it
                    known[key] = objects.is_reference(key)
            if known[key] and experiment.has_new_space and _renew(experiment, trial.config, path, key):
                renewed.add(key)
            elif known[key] and not trial.final:  # one that has failed may be tried again, but need not be
                dead.append(f"{VALUES}: {joined(path)}")
    if dead:
        raise ended(root.shown, list(dict.fromkeys(dead)))
    if renewed:
        experiment.files.replace(root.values_file, objects.dump(), epoch)
        if root.remote is not None:
            root.remote.send_objects(root)


def _own_values(node: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """Where a config refers to a value in a file of its own, and the name of that."""
    if is_marker(node):
        if node["__object__"].startswith(OWN_FILE):
            yield path, node["__object__"]
    elif isinstance(node, dict):
        for name, value in node.items():
            yield from _own_values(value, (*path, name))
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from _own_values(value, (*path, i))


def _renew(experiment: Experiment, config: dict[str, Any], path: Path, key: str) -> bool:
    """Ask the function again that has made the value at this path; False if none has."""
    function, length = _function_at(experiment.settings.space, path)
    if function is None:
        return False
    space = deepcopy(config)
    _set(space, path[:length], function)
    objects = dict(experiment.objects)
    for _, own in _own_values(space, ()):
        objects[own] = experiment.objects[own]
    variant = VariantPlan(space, seed=experiment.spec.seed, num_samples=1, objects=objects).next(None)
    assert variant is not None
    made: dict[str, Any] = dict(objects)

    def keep(value: Any, where: tuple[Any, ...]) -> dict[str, str]:
        marker = make_marker(f"new/{joined(where)}", value)
        made[marker["__object__"]] = value
        return marker

    value = _get(pack(variant.config, keep), path)
    value = find_object(value, made) if is_marker(value) else restore_objects(unpack(value), made)
    experiment.objects.put(key, dump_value(value, f"the value {joined(path)!r} of the search space"))
    return True


def _function_at(node: Any, path: Path) -> tuple[Function | None, int]:
    """The function on the way to a path, and how long that way is: its value may be a dict with others in it."""
    for length, step in enumerate(path):
        if isinstance(node, Function):
            return node, length
        try:
            node = node[step]
        except (LookupError, TypeError):
            return None, 0
    return (node, len(path)) if isinstance(node, Function) else (None, 0)


def _get(node: Any, path: Path) -> Any:
    for step in path:
        node = node[step]
    return node


def _set(node: Any, path: Path, value: Any) -> None:
    _get(node, path[:-1])[path[-1]] = value
