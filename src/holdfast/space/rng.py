"""Random numbers from a seed: the one generator that sampling uses, and adapters for the user's own.

Owns the bit stream: seeding and output follow NumPy's ``SeedSequence`` and ``PCG64`` exactly, so
``Rng(seed)`` and ``numpy.random.default_rng(seed)`` agree on ``random``, ``uniform`` and ``integers``
while NumPy need not be installed, and a seed means the same numbers on every machine and version.
Must never read or change the global state of ``random`` or ``numpy.random``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from math import cos, log1p, pi, sqrt
from operator import index
from typing import Any, Protocol, TypeVar

from holdfast.errors import InvalidInputError, InvalidTypeError

T = TypeVar("T")

_M32 = 0xFFFFFFFF
_M64 = 0xFFFFFFFFFFFFFFFF
_M128 = (1 << 128) - 1
_PCG_MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645
_DOUBLE_UNIT = 1.0 / (1 << 53)
_POOL = 4


def _hash_constants(start: int, multiplier: int, count: int) -> list[tuple[int, int]]:
    """The (xor, multiply) pairs of successive hash steps: they depend on the step, never on the seed."""
    pairs = []
    for _ in range(count):
        following = start * multiplier & _M32
        pairs.append((start, following))
        start = following
    return pairs


_MULT_A = 0x931E8875
_ABSORB = _hash_constants(0x43B0D7E5, _MULT_A, _POOL * _POOL)
_SQUEEZE = _hash_constants(0x8B51F9DD, 0x58F38DED, 2 * _POOL)


def _mix(x: int, y: int) -> int:
    z = (0xCA01F9DD * x - 0x4973F715 * y) & _M32
    return z ^ z >> 16


def _words(seed: int | Iterable[int]) -> list[int]:
    """The seed as 32-bit words, little end first, as ``SeedSequence`` reads it."""
    try:
        numbers = [index(seed)] if hasattr(seed, "__index__") else [index(n) for n in seed]  # type: ignore[arg-type]
    except TypeError:
        raise InvalidTypeError(
            f"A seed must be a non-negative int or a sequence of them, got {seed!r} "
            f"({type(seed).__name__}). Pass for example 42."
        ) from None
    words = []
    for number in numbers:
        if number < 0:
            raise InvalidInputError(f"A seed must not be negative, got {seed!r}. Pass for example 42.")
        words.append(number & _M32)
        number >>= 32
        while number:
            words.append(number & _M32)
            number >>= 32
    return words


def _seed_state(words: list[int]) -> list[int]:
    """Eight 32-bit words of initial state for these words of entropy."""
    extra = words[_POOL:]
    pool = words[:_POOL] + [0] * (_POOL - len(words))
    steps = iter(_ABSORB)
    for i in range(_POOL):
        xor, multiply = next(steps)
        value = (pool[i] ^ xor) * multiply & _M32
        pool[i] = value ^ value >> 16
    for source in range(_POOL):
        for target in range(_POOL):
            if source != target:
                xor, multiply = next(steps)
                value = (pool[source] ^ xor) * multiply & _M32
                pool[target] = _mix(pool[target], value ^ value >> 16)
    xor = _ABSORB[-1][1]
    for word in extra:
        for target in range(_POOL):
            multiply = xor * _MULT_A & _M32
            value = (word ^ xor) * multiply & _M32
            pool[target] = _mix(pool[target], value ^ value >> 16)
            xor = multiply
    state = []
    for i, (xor, multiply) in enumerate(_SQUEEZE):
        value = (pool[i % _POOL] ^ xor) * multiply & _M32
        state.append(value ^ value >> 16)
    return state


class RandomSource(Protocol):
    """What a sampler asks of its generator."""

    def random(self) -> float:
        """A float in [0, 1)."""
        ...

    def uniform(self, low: float, high: float) -> float:
        """A float in [low, high)."""
        ...

    def integers(self, low: int, high: int) -> int:
        """An int in [low, high)."""
        ...

    def normal(self, mean: float, sd: float) -> float:
        """A normally distributed float."""
        ...


class Rng:
    """A seeded generator of random numbers.

    Args:
        seed: A non-negative int, or a sequence of them. Each different sequence is an independent
            stream, so ``Rng([seed, sample, cell])`` gives every cell of a search its own.

    Example:
        >>> Rng(42).uniform(0, 1)
        0.7739560485559633
    """

    __slots__ = ("_half", "_increment", "_state")

    def __init__(self, seed: int | Sequence[int]) -> None:
        a, b, c, d, e, f, g, h = _seed_state(_words(seed))
        start = (b << 32 | a) << 64 | d << 32 | c
        increment = ((f << 32 | e) << 64 | h << 32 | g) << 1 & _M128 | 1
        self._increment = increment
        self._state = ((increment + start) * _PCG_MULTIPLIER + increment) & _M128
        self._half: int | None = None

    def _next64(self) -> int:
        self._state = state = (self._state * _PCG_MULTIPLIER + self._increment) & _M128
        folded = (state >> 64 ^ state) & _M64
        turn = state >> 122
        return (folded >> turn | folded << (64 - turn)) & _M64

    def _next32(self) -> int:
        # NumPy hands out a 64-bit draw as two halves, low half first; the second waits for its turn.
        if self._half is not None:
            half, self._half = self._half, None
            return half
        both = self._next64()
        self._half = both >> 32
        return both & _M32

    def random(self) -> float:
        """A float in [0, 1), a multiple of 2**-53."""
        return (self._next64() >> 11) * _DOUBLE_UNIT

    def uniform(self, low: float, high: float) -> float:
        """A float in [low, high); rounding may reach ``high`` when the range is very narrow."""
        return low + (high - low) * self.random()

    def integers(self, low: int, high: int) -> int:
        """An int in [low, high), each equally likely.

        Raises:
            InvalidInputError: The range is empty.
        """
        span = high - low
        if span <= 0:
            raise InvalidInputError(f"integers({low}, {high}) has no value to draw: high must be above low.")
        if span == 1:
            return low
        if span > _M64 + 1:
            return low + self._wide(span)
        bits = 32 if span <= _M32 + 1 else 64
        draw = self._next32 if bits == 32 else self._next64
        mask = (1 << bits) - 1
        product = draw() * span
        # Lemire's method: the high half of the product is the answer, except for the few low halves
        # that would make some answers likelier than others. A power of two has none to refuse.
        if product & mask < span:
            refused = (1 << bits) % span
            while product & mask < refused:
                product = draw() * span
        return low + (product >> bits)

    def _wide(self, span: int) -> int:
        """Ranges beyond 64 bits, which NumPy does not have: whole words, refused when too large."""
        bits = (span - 1).bit_length()
        while True:
            value = 0
            for _ in range(-(-bits // 64)):
                value = value << 64 | self._next64()
            value &= (1 << bits) - 1
            if value < span:
                return value

    def normal(self, mean: float = 0.0, sd: float = 1.0) -> float:
        """A normal deviate by the Box-Muller transform of two uniforms; the second deviate is dropped.

        NumPy uses a table-driven method here, so these numbers differ from NumPy's for the same seed.
        """
        radius = sqrt(-2.0 * log1p(-self.random()))
        return mean + sd * radius * cos(2.0 * pi * self.random())

    def choice(self, options: Sequence[T]) -> T:
        """One of the options, each equally likely."""
        return options[self.integers(0, len(options))]


class _Borrowed:
    """A generator of the user's, seen as a RandomSource."""

    __slots__ = ("_integers", "normal", "random")

    def __init__(self, random: Any, integers: Any, normal: Any) -> None:
        self.random = random
        self._integers = integers
        self.normal = normal

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * float(self.random())

    def integers(self, low: int, high: int) -> int:
        return int(self._integers(low, high))


def as_random_source(random_state: Any) -> RandomSource:
    """The generator behind any accepted ``random_state``.

    Args:
        random_state: None (fresh entropy), a seed, an ``Rng``, a ``random.Random``, or a NumPy
            ``Generator`` or ``RandomState`` (recognised by their methods, so that nothing is imported for them).

    Raises:
        InvalidTypeError: It is none of these.
    """
    if random_state is None:
        return Rng(int.from_bytes(os.urandom(16), "little"))
    if isinstance(random_state, Rng | _Borrowed):
        return random_state
    if hasattr(random_state, "randrange") and hasattr(random_state, "normalvariate"):
        return _Borrowed(random_state.random, random_state.randrange, random_state.normalvariate)
    if hasattr(random_state, "random_sample") and hasattr(random_state, "randint"):
        return _Borrowed(random_state.random_sample, random_state.randint, random_state.normal)
    if all(hasattr(random_state, name) for name in ("random", "integers", "normal")):
        return _Borrowed(random_state.random, random_state.integers, random_state.normal)
    return Rng(random_state)


def seed_from(random_state: Any) -> int:
    """A seed for a whole search: the int itself, or one number asked of a generator.

    Raises:
        InvalidTypeError: ``random_state`` is neither an int nor a generator.
        InvalidInputError: It is negative.
    """
    if random_state is None or isinstance(random_state, bool | str | bytes | list | tuple):
        raise InvalidTypeError(
            f"random_state must be an int or a random generator, got {random_state!r} "
            f"({type(random_state).__name__}). Pass for example random_state=42."
        )
    if not hasattr(random_state, "__index__"):
        return as_random_source(random_state).integers(0, 1 << 32)
    seed = index(random_state)
    if seed < 0:
        raise InvalidInputError(f"random_state must not be negative, got {seed}. Pass for example 42.")
    return seed
