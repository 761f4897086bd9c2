"""Waiting until a GPU's memory is free, for trials that follow others on it."""

from __future__ import annotations

import shutil
import subprocess
import time

from holdfast.engines.gpu import visible_gpus
from holdfast.errors import InvalidInputError, NotRunError

_ASK_TIMEOUT_S = 10.0


def wait_for_gpu(
    gpu_id: int | str | None = None,
    target_util: float = 0.01,
    retry: int = 20,
    delay_s: float = 5,
    gpu_memory_limit: float | None = None,
) -> bool:
    """Wait until hardly any memory of a GPU is in use.

    Args:
        gpu_id: Its index or UUID; None takes the first that this process can see.
        target_util: The share of its memory that may be in use.
        retry: How often to look.
        delay_s: Seconds between two looks.
        gpu_memory_limit: Older spelling of ``target_util``.

    Returns:
        True once it is free.

    Raises:
        RuntimeError: It did not become free, or nvidia-smi is missing.
        ValueError: There is no such GPU.
    """
    allowed = target_util if gpu_memory_limit is None else gpu_memory_limit
    wanted = str(gpu_id) if gpu_id is not None else next(iter(visible_gpus(None)), "0")
    used = 1.0
    for attempt in range(max(retry, 1)):
        if attempt:
            time.sleep(delay_s)
        used = _used(wanted)
        if used <= allowed:
            return True
    raise NotRunError(
        f"GPU memory was not freed: after {retry} looks, {delay_s:g} s apart, {used:.0%} of the memory of GPU {wanted} "
        f"are still in use, more than {allowed:.0%}. Another process holds it."
    )


def _used(wanted: str) -> float:
    """The share of a GPU's memory that is in use."""
    program = shutil.which("nvidia-smi")
    if program is None:
        raise NotRunError("wait_for_gpu() asks nvidia-smi, which is not on PATH: install NVIDIA's driver tools.")
    query = [program, "--query-gpu=index,uuid,memory.used,memory.total", "--format=csv,noheader,nounits"]
    answer = subprocess.run(query, capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, stdin=subprocess.DEVNULL)
    if answer.returncode:
        raise NotRunError(f"nvidia-smi failed: {answer.stderr.strip() or answer.stdout.strip()}")
    rows = [[part.strip() for part in line.split(",")] for line in answer.stdout.splitlines() if line.strip()]
    for index, uuid, used, total in rows:
        if wanted in (index, uuid):
            return float(used) / max(float(total), 1.0)
    raise InvalidInputError(
        f"There is no GPU {wanted!r}: nvidia-smi lists {', '.join(row[0] for row in rows) or 'none'}."
    )
