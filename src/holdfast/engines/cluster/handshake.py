"""Connections between the driver and other machines: their lease, and the handshake on them.

The kernel keeps the lease: it probes an idle connection and gives up an unanswered one, on both ends, after about
``LEASE_S``. So no heartbeat competes with training for the interpreter, and a cut ends both ends.

Whoever dials knows a secret, which travelled through the cluster's own channels. Both ends prove that they know it
before anything else is said; a stranger learns nothing and is cut off.

Owns: socket options, the handshake, its messages. Must never: know what is said afterwards.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import os
import secrets
import socket
import struct
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.storage.framing import HEADER_BYTES
from holdfast.trainable.worker_messages import FRAMING

LEASE_S = 10.0
"""A cut that is shorter goes unnoticed; after a longer one both ends have given each other up."""

DIAL_S = 10.0
"""How long one try to reach the driver at one address may take."""

HANDSHAKE_S = 10.0

_PROBE_S = 2
_NONCE_BYTES = 32
_READ_BYTES = 1 << 20
_SIOCGIFADDR = 0x8915


class Challenge(msgspec.Struct, array_like=True, tag="challenge", frozen=True):
    """The driver's first word to whoever dials."""

    nonce: bytes


class Greeting(msgspec.Struct, array_like=True, tag="greeting", frozen=True, kw_only=True):
    """Who dials, and the proof that it may."""

    role: str  # "worker", "porter" or "carrier"
    number: int  # of the worker or the carrier
    node: str  # the cluster's name for the machine
    host: str
    ip: str
    pid: int
    gpus: tuple[str, ...] = ()  # that the cluster has given to the worker
    sees_root: bool = False
    scratch: str = ""
    user: str = ""  # who runs the porter, and owns its scratch directory
    nonce: bytes
    proof: bytes = b""


class Welcome(msgspec.Struct, array_like=True, tag="welcome", frozen=True):
    """The driver's proof."""

    proof: bytes


class HandshakeError(Exception):
    """The other end is not who it should be, or says nothing."""


_challenge = msgspec.msgpack.Decoder(Challenge).decode
_greeting = msgspec.msgpack.Decoder(Greeting).decode
_welcome = msgspec.msgpack.Decoder(Welcome).decode
_encode = msgspec.msgpack.Encoder().encode


def frame(message: Any) -> bytes:
    """One message, ready to be sent."""
    return FRAMING.encode(_encode(message))


def new_secret() -> str:
    """A secret for the connections of one driver."""
    return secrets.token_hex(32)


def new_challenge() -> Challenge:
    return Challenge(secrets.token_bytes(_NONCE_BYTES))


def keep_lease(sock: socket.socket, lease_s: float = LEASE_S) -> None:
    """Have the kernel end the connection, on this end, when the other has been silent for this long."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": _PROBE_S,
        "TCP_KEEPINTVL": _PROBE_S,
        "TCP_KEEPCNT": max(1, int(lease_s) // _PROBE_S - 1),
        "TCP_USER_TIMEOUT": int(lease_s * 1000),
    }
    for name, value in options.items():
        if hasattr(socket, name):  # macOS has no TCP_USER_TIMEOUT
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def proof_of(secret: str, nonce: bytes, greeting: Greeting) -> bytes:
    """What only somebody who knows the secret can say to this challenge; it covers all of the greeting."""
    unsigned = msgspec.structs.replace(greeting, proof=b"")
    return hmac.digest(bytes.fromhex(secret), b"dials" + nonce + _encode(unsigned), hashlib.sha256)


def answer_of(secret: str, greeting: Greeting) -> bytes:
    """The driver's proof for this greeting."""
    return hmac.digest(bytes.fromhex(secret), b"hears" + greeting.nonce, hashlib.sha256)


def read_greeting(payload: bytes, challenge: Challenge, secret: str) -> Greeting:
    """The greeting of somebody who knows the secret; raises ``HandshakeError`` for anybody else."""
    try:
        greeting = _greeting(payload)
    except msgspec.DecodeError as error:
        raise HandshakeError(f"no greeting ({error})") from None
    if not hmac.compare_digest(proof_of(secret, challenge.nonce, greeting), greeting.proof):
        raise HandshakeError("the greeting does not prove that it knows the secret")
    return greeting


def dial(addresses: Sequence[tuple[str, int]], secret: str, greeting: Greeting) -> socket.socket:
    """Connect to the driver at the first of these addresses that answers.

    Raises:
        OSError: None of them can be reached; the message has all of them and why.
        HandshakeError: Somebody else listens there.
    """
    failures = []
    for address in addresses:
        try:
            sock = socket.create_connection(address, DIAL_S)
        except OSError as error:
            failures.append(f"{address[0]}:{address[1]} ({error.strerror or error})")
            continue
        try:
            keep_lease(sock)
            sock.settimeout(HANDSHAKE_S)
            _introduce(sock, secret, greeting)
            sock.settimeout(None)
            return sock
        except BaseException:
            sock.close()
            raise
    raise OSError(f"the driver cannot be reached from {greeting.host} ({greeting.ip}) at {', '.join(failures)}")


def _introduce(sock: socket.socket, secret: str, greeting: Greeting) -> None:
    greeting = msgspec.structs.replace(greeting, nonce=secrets.token_bytes(_NONCE_BYTES), proof=b"")
    challenge = _challenge(receive_frame(sock))
    sock.sendall(frame(msgspec.structs.replace(greeting, proof=proof_of(secret, challenge.nonce, greeting))))
    welcome = _welcome(receive_frame(sock))
    if not hmac.compare_digest(welcome.proof, answer_of(secret, greeting)):
        raise HandshakeError("who answered is not this experiment's driver")


def receive_frame(sock: socket.socket) -> bytes:
    """The next frame, and not a byte more; for a socket that blocks.

    Raises:
        HandshakeError: The connection has ended.
    """
    try:
        size = FRAMING.length_of(receive_exactly(sock, HEADER_BYTES))
    except ValueError as error:
        raise HandshakeError(str(error)) from None
    return bytes(receive_exactly(sock, size))


def receive_exactly(sock: socket.socket, size: int) -> bytearray:
    """So many bytes; raises ``ConnectionError`` if the connection ends before."""
    data = bytearray(size)
    view = memoryview(data)
    while view:
        got = sock.recv_into(view, min(len(view), _READ_BYTES))
        if not got:
            raise ConnectionResetError("the connection has ended")
        view = view[got:]
    return data


def own_addresses() -> list[str]:
    """Addresses of this machine by which others may reach it, the likeliest first.

    Asks no name server: one that does not answer would delay every start by ten seconds.
    """
    found, others = [], []
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # without an address
                facts = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                others.append(socket.inet_ntoa(facts[20:24]))
        probe.connect(("192.0.2.1", 9))  # sends nothing
        found.append(str(probe.getsockname()[0]))
    found += [address for address in others if not address.startswith("127.")]
    return list(dict.fromkeys([*found, "127.0.0.1"]))


def greeting_of(role: str, number: int, node: str, ip: str, **facts: Any) -> Greeting:
    """A greeting of this process."""
    return Greeting(
        role=role, number=number, node=node, host=socket.gethostname(), ip=ip, pid=os.getpid(), nonce=b"", **facts
    )
