"""Where workers, porters and carriers dial in: whoever does not know the secret is cut off.

Owns: the listening socket and connections whose handshake is not over. Must never: block.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import time
from collections.abc import Callable

from holdfast.engines.cluster import handshake
from holdfast.engines.cluster.driver_sockets import close_in_forks
from holdfast.engines.link import SocketLink

_log = logging.getLogger(__name__)


class Door:
    """Lets in who proves that it may.

    Args:
        sock: It listens.
        secret: That whoever dials in must know.
        selector: Of the loop; what it finds here is called with the events.
        welcome: Told who has come in, and what it said.
    """

    def __init__(
        self,
        sock: socket.socket,
        secret: str,
        selector: selectors.BaseSelector,
        welcome: Callable[[SocketLink, handshake.Greeting], None],
    ) -> None:
        self._sock = close_in_forks(sock)
        self._secret = secret
        self._selector = selector
        self._welcome = welcome
        self._strangers: dict[SocketLink, tuple[handshake.Challenge, float]] = {}
        sock.setblocking(False)
        selector.register(sock, selectors.EVENT_READ, self._on_door)

    def __bool__(self) -> bool:
        """Whether somebody stands before it."""
        return bool(self._strangers)

    def _on_door(self, mask: int) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            while True:
                sock, _ = self._sock.accept()
                handshake.keep_lease(close_in_forks(sock))
                link, challenge = SocketLink(sock), handshake.new_challenge()
                self._strangers[link] = (challenge, time.monotonic() + handshake.HANDSHAKE_S)
                self._selector.register(sock, selectors.EVENT_READ, lambda mask, link=link: self._on_stranger(link))
                link.send(handshake.frame(challenge))

    def _on_stranger(self, link: SocketLink) -> None:
        challenge, _ = self._strangers[link]
        try:
            payloads = link.receive()
            if payloads is None:
                self._refuse(link)
            elif payloads:  # it says no more before it is welcome
                greeting = handshake.read_greeting(payloads[0], challenge, self._secret)
                del self._strangers[link]
                self._selector.unregister(link.socket)
                link.send(handshake.frame(handshake.Welcome(handshake.answer_of(self._secret, greeting))))
                self._welcome(link, greeting)
        except (ValueError, handshake.HandshakeError) as error:
            _log.warning("a connection was refused: %s", error)
            self._refuse(link)

    def _refuse(self, link: SocketLink) -> None:
        self._strangers.pop(link, None)
        with contextlib.suppress(KeyError):
            self._selector.unregister(link.socket)
        link.close()

    def drop_silent(self) -> None:
        """Cut off whoever has said nothing for too long."""
        now = time.monotonic()
        for link, (_, deadline) in list(self._strangers.items()):
            if deadline <= now:
                self._refuse(link)

    def close(self) -> None:
        """Let nobody in any more."""
        for link in list(self._strangers):
            self._refuse(link)
        self._sock.close()
