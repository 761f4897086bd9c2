"""A runner for tests of the local engine: a trial's config is Python code that runs in the worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from typing import Any

from holdfast.core.events import ErrorFacts
from holdfast.core.observations import Raised, Report, Returned, Stopped
from holdfast.trainable.worker_messages import Channel, Decision, Quit, Run, Setup

CODE_RUNNER = "code_runner:run_attempts"


class Stop(Exception):
    pass


def run_attempts(setup: Setup, channel: Channel) -> None:
    while not isinstance(message := channel.receive(), Quit):
        if isinstance(message, Run):
            attempt(setup, message, channel)


def attempt(setup: Setup, run: Run, channel: Channel) -> None:
    who = (run.n, run.attempt, setup.worker)
    ordinal = 0

    def report(**metrics: Any) -> None:
        nonlocal ordinal
        ordinal += 1
        channel.send(Report(*who, ordinal, 0.0, metrics))
        while not isinstance(message := channel.receive(), Decision):
            pass
        if message.go != "go":
            raise Stop

    names = {
        "channel": channel,
        "config": run.config,
        "os": os,
        "report": report,
        "setup": setup,
        "signal": signal,
        "subprocess": subprocess,
        "sys": sys,
        "threading": threading,
        "time": time,
        "who": who,
    }
    try:
        exec(run.config["code"], names)
    except Stop:
        channel.send(Stopped(*who))
    except Exception as error:
        facts = ErrorFacts(type(error).__name__, str(error), "", traceback.format_exc())
        channel.send(Raised(*who, facts))
    else:
        channel.send(Returned(*who))
