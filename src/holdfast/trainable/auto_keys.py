"""The keys that every result has although nobody reported them, for trainables that are used directly.

In an experiment the driver fills these keys, because only it knows what survived of a trial's earlier attempts. So
what a class returns from ``train()`` is reduced here to what the user gave before it is sent.
"""

from __future__ import annotations

import functools
import os
import platform
import socket
from collections.abc import Mapping
from datetime import datetime
from typing import Any

USER_WINS = frozenset(
    {"training_iteration", "timesteps_total", "episodes_total", "done", "time_this_iter_s", "timestamp"}
)
"""Keys that keep the user's value if there is one."""

_OVERWRITTEN = frozenset(
    {
        "trial_id",
        "date",
        "time_total_s",
        "pid",
        "hostname",
        "node_ip",
        "config",
        "time_since_restore",
        "iterations_since_restore",
        "timesteps_since_restore",
        "experiment_tag",
    }
)


def reduced(result: Mapping[str, Any], given: frozenset[str]) -> dict[str, Any]:
    """What of a full result the user gave, overrides included.

    Args:
        result: What ``train()`` returned.
        given: The keys that ``step()`` returned.
    """
    dropped = _OVERWRITTEN | (USER_WINS - given)
    return {key: value for key, value in result.items() if key not in dropped}


def debug_keys(trial_id: str, config: Mapping[str, Any], timestamp: float | None = None) -> dict[str, Any]:
    """Where and when: keys that exist even before the first iteration."""
    now = datetime.now()
    return {
        "trial_id": trial_id,
        "date": now.strftime("%Y-%m-%d_%H-%M-%S"),
        "timestamp": int(now.timestamp()) if timestamp is None else timestamp,
        "pid": os.getpid(),
        "hostname": platform.node(),
        "node_ip": node_ip(),
        "config": config,
    }


@functools.cache
def node_ip() -> str:
    """This machine's address as others see it, found without asking a name server."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 1))  # chooses a route; a datagram socket sends nothing
            address: str = probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"
    return address
