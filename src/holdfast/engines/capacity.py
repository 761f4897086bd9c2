"""What this machine offers to attempts.

Owns: counting CPUs and memory as this process may use them (affinity, cgroup limits).
Must never: fail; what cannot be found out is left out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from holdfast.engines.exits import cgroup_paths

_NO_LIMIT = 1 << 60  # cgroup version 1 writes a huge number for "none"


def capacity(cpus: float | None, gpus: Mapping[str, float], resources: Mapping[str, float] | None) -> dict[str, float]:
    """Everything attempts can be given at the same time, by name."""
    offer: dict[str, float] = {"CPU": float(cpus if cpus is not None else usable_cpus())}
    if gpus:
        offer["GPU"] = sum(gpus.values())
    memory = usable_memory()
    if memory:
        offer["memory"] = float(memory)
    return offer | {name: float(amount) for name, amount in (resources or {}).items()}


def usable_cpus() -> int:
    """CPUs that this process may run on, no more than its cgroups' quota; at least one."""
    try:
        count = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        count = os.cpu_count() or 1
    quotas = [quota for quota in map(_quota_v2, _directories("")) if quota]
    quotas += [quota for quota in map(_quota_v1, _directories("cpu")) if quota]
    return max(1, min([count, *map(int, quotas)]))


def usable_memory() -> int:
    """Bytes of memory, no more than the cgroups' limit; 0 if unknown."""
    try:
        limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    except (ValueError, OSError):
        return 0
    limits += [_number(f"{folder}/memory.max") for folder in _directories("")]
    limits += [_number(f"{folder}/memory.limit_in_bytes") for folder in _directories("memory")]
    return min(limit for limit in limits if 0 < limit < _NO_LIMIT)


def _directories(controller: str) -> list[str]:
    """Directories of this process's cgroup and its ancestors; ``controller`` "" means version 2."""
    base = f"/sys/fs/cgroup/{controller}" if controller else "/sys/fs/cgroup"
    for controllers, path in cgroup_paths():
        if controller in controllers.split(","):
            parts = path.strip("/").split("/") if path else []
            # Inside a container the path may be the host's and not exist here; the mount's root then is ours.
            return [base, *("/".join([base, *parts[: i + 1]]) for i in range(len(parts)))]
    return []


def _quota_v2(folder: str) -> float:
    try:
        with open(f"{folder}/cpu.max", encoding="ascii") as file:
            quota, period = file.read().split()
        return 0.0 if quota == "max" else float(quota) / float(period)
    except (OSError, ValueError, ZeroDivisionError):
        return 0.0


def _quota_v1(folder: str) -> float:
    quota, period = _number(f"{folder}/cpu.cfs_quota_us"), _number(f"{folder}/cpu.cfs_period_us")
    return quota / period if quota > 0 and period > 0 else 0.0


def _number(path: str) -> int:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0
