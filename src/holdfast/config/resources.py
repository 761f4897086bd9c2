"""What a trial needs: its resources and its large parameters.

Owns: ``PlacementGroupFactory`` (a request), ``with_resources`` and ``with_parameters`` (what a user attaches to a
trainable), and ``resources_of`` (what the engine reads back).
Must never: know what a machine has, or import the class that trainables derive from: such a class is known by
its attribute ``_holdfast_trainable``.
"""

from __future__ import annotations

import functools
import inspect
import math
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.errors import CannotWrapError, InvalidInputError, UsageError

_STANDARD = {"cpu": "CPU", "gpu": "GPU", "memory": "memory"}


class PlacementGroupFactory:
    """A trial's request for resources: one bundle for its own process, further ones for its helpers.

    Requests with the same bundles, strategy and arguments are equal. Amounts of zero are dropped. The names
    CPU, GPU and memory may be written in any case; other names are custom resources and kept as they are.

    Args:
        bundles: Resources of each process, the trial's own first. The first may be empty if others follow.
        strategy: How a cluster places the bundles: PACK, SPREAD, STRICT_PACK or STRICT_SPREAD.
        *args: Handed on to the cluster's placement group.
        **kwargs: Handed on to the cluster's placement group.

    Example:
        >>> PlacementGroupFactory([{"cpu": 1}, {"CPU": 2, "gpu": 0.5}]).required_resources
        {'CPU': 3.0, 'GPU': 0.5}
    """

    def __init__(
        self, bundles: Sequence[Mapping[str, float]], strategy: str = "PACK", *args: Any, **kwargs: Any
    ) -> None:
        if isinstance(bundles, Mapping | str) or not isinstance(bundles, Sequence):
            raise InvalidInputError(
                f"PlacementGroupFactory needs a list of bundles, got {bundles!r}. "
                'Write [{"CPU": 1}] for a trial of one process.'
            )
        cleaned = [_clean_bundle(bundle) for bundle in bundles]
        if not any(cleaned):
            raise InvalidInputError(
                f"Cannot make a PlacementGroupFactory with zero bundles, or with empty ones only; got {bundles!r}. "
                'Write [{"CPU": 1}] for a trial of one process.'
            )
        self._head_bundle_is_empty = not cleaned[0]
        self._bundles = cleaned[1:] if self._head_bundle_is_empty else cleaned
        self._strategy = strategy
        self._args = args
        self._kwargs = kwargs

    @property
    def bundles(self) -> list[dict[str, float]]:
        """A copy of the bundles, without an empty first one."""
        return [dict(bundle) for bundle in self._bundles]

    @property
    def head_bundle_is_empty(self) -> bool:
        """Whether the trial's own process asks for nothing."""
        return self._head_bundle_is_empty

    @property
    def head_cpus(self) -> float:
        """CPUs of the trial's own process."""
        return 0.0 if self._head_bundle_is_empty else self._bundles[0].get("CPU", 0.0)

    @property
    def strategy(self) -> str:
        """How a cluster places the bundles."""
        return self._strategy

    @property
    def required_resources(self) -> dict[str, float]:
        """Sums over all bundles."""
        total: dict[str, float] = {}
        for bundle in self._bundles:
            for name, amount in bundle.items():
                total[name] = total.get(name, 0.0) + amount
        return total

    def _identity(self) -> tuple[Any, ...]:
        return self._head_bundle_is_empty, self._bundles, self._strategy, self._args, self._kwargs

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PlacementGroupFactory):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        # The further arguments may be unhashable; equal requests still have equal bundles.
        bundles = tuple(frozenset(bundle.items()) for bundle in self._bundles)
        return hash((self._head_bundle_is_empty, bundles, self._strategy))

    def __repr__(self) -> str:
        bundles = [{}, *self._bundles] if self._head_bundle_is_empty else self._bundles
        parts = [repr(bundles)]
        if self._strategy != "PACK" or self._args:
            parts.append(repr(self._strategy))
        parts += [repr(arg) for arg in self._args]
        parts += [f"{name}={value!r}" for name, value in self._kwargs.items()]
        return f"PlacementGroupFactory({', '.join(parts)})"


def _clean_bundle(bundle: Any) -> dict[str, float]:
    if not isinstance(bundle, Mapping):
        raise InvalidInputError(f'A bundle must be a dict such as {{"CPU": 1}}, got {bundle!r}.')
    cleaned: dict[str, float] = {}
    for key, value in bundle.items():
        if not isinstance(key, str) or not key:
            raise InvalidInputError(f"The name of a resource must be a str, got {key!r} in {bundle!r}.")
        name = _STANDARD.get(key.lower(), key)
        if name in cleaned:
            raise InvalidInputError(f"The resource {name} is given twice in {bundle!r}. Keep one spelling.")
        cleaned[name] = _amount(name, value)
    return {name: amount for name, amount in cleaned.items() if amount}


def _amount(name: str, value: Any) -> float:
    if value is None:
        return 0.0
    if not isinstance(value, bool | str | bytes):
        try:
            amount = float(value)
        except (TypeError, ValueError):
            amount = math.nan
        if math.isfinite(amount) and amount >= 0:
            return amount
    raise InvalidInputError(f"The amount of the resource {name} must be a number >= 0, got {value!r}.")


def request_from_dict(resources: Mapping[str, Any]) -> PlacementGroupFactory:
    """Turn ``{"cpu": 2, "gpu": 1, "custom_resources": {...}}`` into a request for one process.

    A dict without any positive amount means the default, one CPU.
    """
    flat = {key: value for key, value in resources.items() if key != "custom_resources"}
    custom = resources.get("custom_resources") or {}
    if not isinstance(custom, Mapping):
        raise InvalidInputError(f"custom_resources must be a dict of names and amounts, got {custom!r}.")
    bundle = _clean_bundle(flat)
    for name, amount in _clean_bundle(custom).items():
        if name in bundle:
            raise InvalidInputError(f"The resource {name} is given twice in {dict(resources)!r}. Keep one.")
        bundle[name] = amount
    return PlacementGroupFactory([bundle or {"CPU": 1}])


def flat_request(request: PlacementGroupFactory) -> dict[str, float]:
    """Sums of a request by name: CPU, GPU, memory and custom names; what is not asked for is absent."""
    return request.required_resources


class BoundFunction:
    """A function trainable with parameters and resources attached; behaves like the function, name included.

    It is an instance of an importable class, not a closure, so that a stored one does not contain this
    library's byte code and loads again under another Python.
    """

    def __init__(self, function: Callable[..., Any], parameters: dict[str, Any], resources: Any) -> None:
        functools.update_wrapper(self, function)
        if isinstance(function, functools.partial):
            self.__name__ = _display_name(function)
        self._holdfast_bound = (function, resources)
        self._holdfast_parameters = parameters

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._holdfast_bound[0](*args, **{**self._holdfast_parameters, **kwargs})

    @property
    def __signature__(self) -> inspect.Signature:
        """The function's signature without what is already attached."""
        signature = inspect.signature(self._holdfast_bound[0])
        left = [p for p in signature.parameters.values() if p.name not in self._holdfast_parameters]
        return signature.replace(parameters=left)

    def __repr__(self) -> str:
        return f"<trainable {_display_name(self)} with {', '.join(self._holdfast_parameters) or 'no parameters'}>"


def with_resources(trainable: Any, resources: Any) -> Any:
    """Return ``trainable`` with the resources that each of its trials needs.

    The original stays as it is, so it can be given other resources elsewhere.

    Args:
        trainable: Function, or subclass of Trainable.
        resources: Dict such as ``{"cpu": 2, "gpu": 0.5}``, a PlacementGroupFactory, or a function of the trial's
            config that returns either.

    Raises:
        InvalidInputError: ``resources`` is none of these, or ``trainable`` is no trainable.
        CannotWrapError: ``trainable`` is a bound method or a builtin.

    Example:
        >>> def train(config): ...
        >>> resources_of(with_resources(train, {"gpu": 1}), {})
        PlacementGroupFactory([{'GPU': 1.0}])
    """
    _check_trainable("with_resources", trainable)
    if isinstance(trainable, types.MethodType | types.BuiltinFunctionType | types.MethodWrapperType):
        raise CannotWrapError(
            f"tune.with_resources() cannot be used on {trainable!r}: a bound method or builtin has no place for "
            "settings. Wrap it in a regular function: `def train(config): return obj.method(config)`."
        )
    if not isinstance(resources, PlacementGroupFactory) and not callable(resources):
        if not isinstance(resources, Mapping):
            raise InvalidInputError(
                "tune.with_resources() takes a dict, a PlacementGroupFactory or a function of the config, "
                f'got {resources!r}. Write for example with_resources(train, {{"cpu": 2}}).'
            )
        resources = request_from_dict(resources)
    return _attach(trainable, {}, resources)


def with_parameters(trainable: Any, **kwargs: Any) -> Any:
    """Return ``trainable`` with large objects attached, which stay out of the config.

    A function gets them as keyword arguments, a class in ``setup(config, **kwargs)``. They are sent to workers
    once, not with each trial. The name stays the same, so a restored experiment recognises the trainable.

    Raises:
        InvalidInputError: ``trainable`` is no trainable, or does not take an argument of that name.

    Example:
        >>> def train(config, data): return {"n": len(data)}
        >>> with_parameters(train, data=[1, 2, 3])({})
        {'n': 3}
    """
    _check_trainable("with_parameters", trainable)
    if not isinstance(trainable, type):
        _check_arguments(trainable, kwargs)
    return _attach(trainable, kwargs, None)


def with_exports(trainable: Any, formats: Sequence[str]) -> Any:
    """Return ``trainable`` with formats that its model is exported in when a trial ends; a function has none."""
    _check_trainable("run", trainable)
    if isinstance(trainable, type):
        trainable = _attach(trainable, {}, None)
        trainable._holdfast_exports = tuple(formats)
    return trainable


def resources_of(
    trainable: Any, config: Mapping[str, Any], *, resources_per_trial: Any = None
) -> PlacementGroupFactory:
    """Return what one trial of ``trainable`` asks for; one CPU if nobody said.

    Args:
        trainable: Function or class (look registered names up before).
        config: The trial's configuration, for requests that depend on it.
        resources_per_trial: What the older ``tune.run`` was given: a dict or a PlacementGroupFactory.

    Raises:
        UsageError: Both the trainable and ``resources_per_trial`` ask for resources.
    """
    declared = _declared_resources(trainable, config)
    if declared is not None and resources_per_trial is not None:
        raise UsageError(
            f"Resources for {_display_name(trainable)} have been automatically set to {_as_request(declared)!r} by "
            "the trainable itself (with_resources or default_resource_request), and resources_per_trial="
            f"{resources_per_trial!r} was given too. Please clear the `resources_per_trial` option."
        )
    wanted = declared if declared is not None else resources_per_trial
    return PlacementGroupFactory([{"CPU": 1}]) if wanted is None else _as_request(wanted)


def asks_by_config(trainable: Any) -> bool:
    """Whether what a trial of ``trainable`` asks for depends on its config."""
    if isinstance(trainable, type):
        return _class_asks_by_config(trainable)
    if isinstance(trainable, functools.partial):
        return asks_by_config(trainable.func)
    return isinstance(trainable, BoundFunction) and callable(trainable._holdfast_bound[1])


def _class_asks_by_config(trainable: type) -> bool:
    """Whether a class overrides ``default_resource_request``, other than by resources that ``with_resources`` fixed."""
    for kind in trainable.__mro__:
        own = vars(kind)
        if "default_resource_request" in own:
            bound = own.get("_holdfast_bound")
            return "_holdfast_trainable" not in own if bound is None else callable(bound[1])
    return False


def _declared_resources(trainable: Any, config: Mapping[str, Any]) -> Any:
    if isinstance(trainable, type):
        ask = getattr(trainable, "default_resource_request", None)
        return None if ask is None else ask(config)
    if isinstance(trainable, functools.partial):
        return _declared_resources(trainable.func, config)
    attached = trainable._holdfast_bound[1] if isinstance(trainable, BoundFunction) else None
    return attached(config) if callable(attached) else attached


def _as_request(resources: Any) -> PlacementGroupFactory:
    if isinstance(resources, PlacementGroupFactory):
        return resources
    if isinstance(resources, Mapping):
        return request_from_dict(resources)
    raise InvalidInputError(
        f'Resources of a trial must be a dict such as {{"cpu": 2}} or a PlacementGroupFactory, got {resources!r}.'
    )


def _attach(trainable: Any, parameters: dict[str, Any], resources: Any) -> Any:
    """Make one wrapper that carries both, also when the two functions are applied one after the other."""
    # Only the object's own attributes count: a user's subclass of a wrapped class is a class of its own.
    own = vars(trainable) if hasattr(trainable, "__dict__") else {}
    inner, earlier = own.get("_holdfast_bound", (trainable, None))
    merged = {**own.get("_holdfast_parameters", {}), **parameters}
    wrap = _subclass if isinstance(inner, type) else BoundFunction
    return wrap(inner, merged, earlier if resources is None else resources)


def _subclass(base: Any, parameters: dict[str, Any], resources: Any) -> type:
    class Bound(base):  # type: ignore[misc]
        _holdfast_bound = (base, resources)
        _holdfast_parameters = parameters

        if parameters:

            def setup(self, config: dict[str, Any], **kwargs: Any) -> Any:
                return super().setup(config, **{**Bound._holdfast_parameters, **kwargs})

        if resources is not None:

            @classmethod
            def default_resource_request(cls, config: dict[str, Any]) -> Any:
                if isinstance(resources, PlacementGroupFactory):
                    return resources
                return _as_request(resources(config))

    for attribute in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(Bound, attribute, getattr(base, attribute))
    return Bound


def _check_trainable(caller: str, trainable: Any) -> None:
    if isinstance(trainable, type):
        valid = getattr(trainable, "_holdfast_trainable", False) is True
    else:
        valid = callable(trainable)
    if not valid:
        raise InvalidInputError(
            f"tune.{caller}() only works with functions and with classes that inherit from tune.Trainable, "
            f"got {trainable!r} of type {type(trainable).__name__}."
        )


def _check_arguments(function: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse at once what would otherwise fail in every worker."""
    if isinstance(function, BoundFunction):
        function = function._holdfast_bound[0]
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return
    name = _display_name(function)
    first = next(iter(parameters), None)
    if first is not None and first.name in kwargs and first.kind is first.POSITIONAL_OR_KEYWORD:
        raise InvalidInputError(
            f"tune.with_parameters() cannot attach {first.name!r}: {name} gets the trial's config in it. "
            "Choose another name for the parameter."
        )
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    accepted = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    for key in kwargs:
        if key not in accepted:
            raise InvalidInputError(
                f"tune.with_parameters() got {key!r}, but {name} takes no argument of that name. "
                f"Add it: def {name}(config, {key}): ..."
            )


def _display_name(trainable: Any) -> str:
    if isinstance(trainable, functools.partial):
        return _display_name(trainable.func)
    name = getattr(trainable, "__name__", None)
    return name if isinstance(name, str) else type(trainable).__name__
