"""``Experiment``: what ``tune.run`` is told, as an object, for ``run_experiments`` and for several at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.config.arguments import KnownArguments, suggestion
from holdfast.errors import InvalidTypeError, TuneError


class Experiment(KnownArguments):
    """One experiment to run.

    Args:
        name: Its name.
        run: The trainable: a function, a ``Trainable`` subclass or a registered name.
        options: Any other argument of ``tune.run``, by its name there.

    Example:
        >>> def train(config):
        ...     return {"loss": config["x"]}
        >>> Experiment("first", train, config={"x": 1}, num_samples=2)
        Experiment('first')
    """

    def __init__(self, name: str, run: Any, **options: Any) -> None:
        from holdfast.compat.tune_run import OPTIONS

        if run is None:
            raise TuneError(f"No trainable specified! Experiment({name!r}, run=...) needs one.")
        for option in options:
            if option not in OPTIONS and option != "env":
                raise InvalidTypeError(f"Experiment() has no argument {option!r}.{suggestion(option, OPTIONS)}")
        self.name = name
        self.run = run
        env = options.pop("env", None)
        if env is not None:
            options["config"] = {**(options.get("config") or {}), "env": env}
        self.options = options

    @classmethod
    def from_json(cls, name: str, spec: Mapping[str, Any]) -> Experiment:
        """An experiment from a dict of arguments, with the trainable as "run".

        Raises:
            TuneError: There is no "run".
        """
        if not isinstance(spec, Mapping):
            raise InvalidTypeError(f"The specification of {name!r} must be a dict of arguments, got {spec!r}.")
        if "run" not in spec:
            raise TuneError(f'No trainable specified! The specification of {name!r} has no "run": it has {list(spec)}.')
        options = {key: value for key, value in spec.items() if key != "run"}
        return cls(name, spec["run"], **options)

    def __repr__(self) -> str:
        return f"Experiment({self.name!r})"


def experiments_from(given: Any) -> list[Experiment]:
    """What ``run_experiments`` was given, as a list.

    Raises:
        InvalidTypeError: It is something else.
    """
    if isinstance(given, Experiment):
        return [given]
    if isinstance(given, Mapping):
        return [
            each if isinstance(each, Experiment) else Experiment.from_json(name, each) for name, each in given.items()
        ]
    if isinstance(given, list | tuple) and all(isinstance(each, Experiment) for each in given):
        return list(given)
    raise InvalidTypeError(
        f"run_experiments() takes an Experiment, a list of them, or a dict of names and specifications; got {given!r}."
    )
