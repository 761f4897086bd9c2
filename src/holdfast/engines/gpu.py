"""GPUs of this machine: which there are, and which of them an attempt gets.

Owns: detection and packing. Must never: initialise CUDA, or fail because there is no GPU.
"""

from __future__ import annotations

import os
import shutil
import subprocess

VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"

_WHOLE = 10_000  # units of one GPU; requests are cut to units, so that 3 x 1/3 and 6 x 1/6 fit on one
_ASK_TIMEOUT_S = 5.0


def visible_gpus(wanted: float | None) -> dict[str, float]:
    """Device id and share of each GPU that attempts may use.

    Args:
        wanted: How many to use; None means all that this process can see.
    """
    named = os.environ.get(VISIBLE_VARIABLE)
    if wanted is None:
        ids = _split(named) if named is not None else _present()
        return dict.fromkeys(ids, 1.0)
    whole, rest = int(wanted), wanted - int(wanted)
    known = _split(named) if named else []
    ids = [known[i] if i < len(known) else str(i) for i in range(whole + (rest > 0))]
    return {gpu: 1.0 if i < whole else rest for i, gpu in enumerate(ids)}


def _split(named: str) -> list[str]:
    """CUDA reads the list up to the first id it does not accept; -1 is the usual way to hide the rest."""
    ids: list[str] = []
    for part in named.split(","):
        name = part.strip()
        if not name or name.startswith("-") or name == "NoDevFiles":
            break
        ids.append(name)
    return ids


def _present() -> list[str]:
    try:
        return [str(i) for i in range(len(os.listdir("/proc/driver/nvidia/gpus")))]
    except OSError:
        pass
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        answer = subprocess.run(
            [program, "-L"], capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return []
    lines = answer.stdout.splitlines() if answer.returncode == 0 else []
    return [str(i) for i in range(sum(line.startswith("GPU ") for line in lines))]


class GpuPool:
    """Shares out GPUs. The same requests in the same order always get the same devices."""

    def __init__(self, gpus: dict[str, float]) -> None:
        self._free = {gpu: _units(share) for gpu, share in gpus.items()}
        self._total = dict(self._free)

    def take(self, amount: float) -> tuple[str, ...] | None:
        """The devices for this request, or None while they are not free.

        A fraction continues the fullest device where it still fits, to keep whole devices free.
        """
        assert amount > 0
        if amount >= 1:
            whole = [gpu for gpu, free in self._free.items() if free == _WHOLE][: int(amount)]
            chosen = whole if len(whole) == amount else []
        else:
            fitting = [gpu for gpu, free in self._free.items() if free >= _units(amount)]
            chosen = [min(fitting, key=lambda gpu: self._free[gpu])] if fitting else []
        for gpu in chosen:
            self._free[gpu] -= _units(min(amount, 1.0))
        return tuple(chosen) or None

    def give_back(self, gpus: tuple[str, ...], amount: float) -> None:
        """Undo a ``take``."""
        for gpu in gpus:
            self._free[gpu] += _units(min(amount, 1.0))
            assert self._free[gpu] <= self._total[gpu]

    def why_never(self, amount: float) -> str:
        """Why this request could not be met even if nothing else ran; empty if it could."""
        if amount > 1 and amount != int(amount):
            return f"{amount:g} GPUs cannot be assigned: request less than one, or an integer"
        if amount >= 1 and sum(units == _WHOLE for units in self._total.values()) < amount:
            return f"{amount:g} whole GPUs were requested and there are {len(self._total)}"
        if amount < 1 and all(units < _units(amount) for units in self._total.values()):
            return f"{amount:g} of a GPU was requested and no device has that much"
        return ""


def _units(amount: float) -> int:
    return int(amount * _WHOLE + 1e-6)
