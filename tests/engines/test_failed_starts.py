"""A worker process that cannot be started for want of files is no failure of the trial that was to run in it."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable

import pytest
from engine_harness import LocalDriver

from holdfast.core.events import Cause
from holdfast.core.observations import Died, Returned
from holdfast.engines import worker_pool
from holdfast.engines.exits import cause_of_failed_start
from holdfast.engines.link import SocketLink

Drive = Callable[..., LocalDriver]


def test_too_many_open_files_in_the_driver_are_not_counted(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = drive()

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(worker_pool.socket, "socketpair", refuse)
        end = driver.ran(0, "report(a=1)")
    assert isinstance(end, Died)
    assert end.cause == Cause.STORAGE
    assert end.cause not in Cause.COUNTED
    assert isinstance(driver.ran(0, "report(a=1)", attempt=2), Returned)


def test_what_a_failed_start_says_of_its_cause() -> None:
    assert cause_of_failed_start(OSError(errno.ENFILE, "")) == Cause.STORAGE
    assert cause_of_failed_start(OSError(errno.ENOMEM, "")) == Cause.EXIT  # trials may be what has used it
    assert cause_of_failed_start(OSError("the supervisor was lost three times")) == Cause.EXIT


def test_a_descriptor_that_the_kernel_had_to_drop_is_missed_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    link = SocketLink(theirs)
    sender = SocketLink(ours)
    monkeypatch.setattr(socket, "recv_fds", lambda *_: (b"", [], socket.MSG_CTRUNC, None))
    link.receive_with_fds()
    assert link.take_fd() == -1
    link.close()
    sender.close()
