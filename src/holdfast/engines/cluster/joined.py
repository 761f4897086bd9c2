"""Whether this process has joined a Ray cluster, and whether anybody listens at an address. Never imports Ray."""

from __future__ import annotations

import socket
import sys

REACH_S = 5.0
"""How long somebody may take to accept a connection."""


def is_joined_here() -> bool:
    """Whether ``ray.init()`` was called in this process."""
    ray = sys.modules.get("ray")
    return bool(ray is not None and hasattr(ray, "is_initialized") and ray.is_initialized())


def is_client_here() -> bool:
    """Whether ``ray.init("ray://...")`` was called in this process: calls go to the cluster, and nothing comes back."""
    client = sys.modules.get("ray.util.client")
    return bool(client is not None and hasattr(client, "ray") and client.ray.is_connected())


def is_joined_to(address: str | None) -> bool:
    """Whether it was called for the cluster at this address; None and "auto" are any."""
    if not is_joined_here():
        return False
    joined = str(sys.modules["ray"].get_runtime_context().gcs_address)
    return address in (None, "", "auto", joined) or _resolved(str(address)) == _resolved(joined)


def _resolved(address: str) -> tuple[str, str]:
    host, _, port = address.rpartition(":")
    try:
        return socket.gethostbyname(host), port
    except OSError:
        return host, port


def knock(host: str, port: int) -> None:
    """Connect to an address and hang up; raises ``OSError`` if nobody listens there."""
    socket.create_connection((host, port), REACH_S).close()
