"""Syncing with a shell command: ``rsync -a {source} {target}``.

Owns the template's placeholders and their quoting, and the life of the command's processes: they end with the command,
with its timeout, and with this process, even after ``kill -9``. Must never judge from a command's output whether it
succeeded: only the exit code counts.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import IO, Any, Self

from holdfast.config.checkpoint import check_copier
from holdfast.config.settings import refuse
from holdfast.errors import InvalidInputError, SyncError, SyncTimeoutError
from holdfast.sync.directories import as_directory, delete_by_address, make_local
from holdfast.sync.syncer import BackgroundSyncer

_PLACE = re.compile(r"\{(source|target|options|exclude)\}")
_SHOWN_OUTPUT = 4000

# The command's process group has a guard, which waits for the end of a pipe whose other end only this process holds:
# after a kill -9 no command of a dead driver continues writing. $1 is the command.
_GUARDED = """\
exec 3<&0 </dev/null
(read -r _ <&3; kill -KILL 0) >/dev/null 2>&1 &
guard=$!
/bin/sh -c "$1" 3<&-
code=$?
kill -KILL "$guard"
exit "$code"
"""


class CommandSyncer(BackgroundSyncer):
    """Copies with a shell command, in the background.

    ``{source}`` and ``{target}`` stand for directories, quoted for the shell and with a slash at the end. Local ones
    exist when the command runs. It has failed if its exit code is not 0.

    Example:
        >>> syncer = CommandSyncer("rsync -a {exclude} {source} {target}", delete_template="ssh box rm -r {target}")

    Args:
        template: The command for both directions. Two more places may be in it: ``{options}``, and ``{exclude}`` for
            what is to be left out; without the latter, everything is copied.
        delete_template: The command that deletes ``{target}``. None deletes through the file system of the address
            where that is possible (a local directory, or a URI that fsspec or pyarrow know), and nothing elsewhere.
        sync_period: As for `Syncer`.
        sync_timeout: Seconds after which the command and all processes it has started are killed.
        options: What replaces ``{options}``, as it is.
        exclude_option: What ``{exclude}`` says for each pattern; ``{pattern}`` is the quoted pattern.
    """

    _processes: set[subprocess.Popen[bytes]]
    _process_lock: threading.Lock
    _transient = BackgroundSyncer._transient | {"_processes", "_process_lock"}

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls)
        self._processes = set()
        self._process_lock = threading.Lock()
        return self

    def __init__(
        self,
        template: str,
        delete_template: str | None = None,
        *,
        sync_period: float = 300.0,
        sync_timeout: float = 1800.0,
        options: str = "",
        exclude_option: str = "--exclude {pattern}",
    ) -> None:
        super().__init__(sync_period, sync_timeout)
        if not isinstance(template, str):
            raise refuse("A sync template", template, "a command with {source} and {target}")
        check_copier("The template", template)
        if delete_template is not None and "{target}" not in delete_template:
            raise InvalidInputError(
                f"Sync delete template missing '{{target}}'. It is {delete_template!r}; the command names what is to "
                "be deleted, for example 'aws s3 rm --recursive {target}'."
            )
        if "{pattern}" not in exclude_option:
            raise refuse("exclude_option", exclude_option, "an option with {pattern}", "For example '-x {pattern}'.")
        self.template = template
        self.delete_template = delete_template
        self.options = options
        self.exclude_option = exclude_option

    def copy_up(self, local_dir: str, remote_dir: str, exclude: Sequence[str] | None) -> None:
        """Run the command from ``local_dir`` to ``remote_dir``."""
        make_local(remote_dir)
        self._run(self.command(local_dir, remote_dir, exclude))

    def copy_down(self, remote_dir: str, local_dir: str, exclude: Sequence[str] | None) -> None:
        """Run the command from ``remote_dir`` to ``local_dir``."""
        make_local(local_dir)
        self._run(self.command(remote_dir, local_dir, exclude))

    def remove(self, remote_dir: str) -> None:
        """Run the command that deletes, or delete by address."""
        if self.delete_template is None:
            delete_by_address(remote_dir)
        else:
            self._run(_PLACE.sub(lambda place: self._fill(place[1], "", remote_dir, None), self.delete_template))

    def command(self, source: str, target: str, exclude: Sequence[str] | None = None) -> str:
        """Return the command that copies ``source`` to ``target``."""
        # One pass: a directory whose name looks like a place is not filled again.
        return _PLACE.sub(lambda place: self._fill(place[1], source, target, exclude), self.template)

    def _fill(self, place: str, source: str, target: str, exclude: Sequence[str] | None) -> str:
        if place == "options":
            return self.options
        if place == "exclude":
            options = (self.exclude_option.replace("{pattern}", shlex.quote(pattern)) for pattern in exclude or ())
            return " ".join(options)
        return shlex.quote(as_directory(source if place == "source" else target))

    def interrupt(self) -> None:
        """Kill the command that runs, and all that it has started."""
        with self._process_lock:
            for process in self._processes:
                _kill_group(process)

    def _run(self, command: str) -> None:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            with self._started(command, out, err) as process:
                try:
                    code = process.wait(self.sync_timeout)
                except subprocess.TimeoutExpired:
                    raise SyncTimeoutError(
                        f"Sync error. Ran command: {command}\nIt was killed after sync_timeout={self.sync_timeout:g} s."
                    ) from None
            if code:
                raise SyncError(
                    f"Sync error. Ran command: {command}\nIts exit code was {code}. Stderr: {_tail(err) or _tail(out)}"
                )

    @contextlib.contextmanager
    def _started(self, command: str, out: IO[bytes], err: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
        with self._process_lock:
            if self.given_up:  # between this check and the next line nobody can interrupt
                raise SyncError(f"Sync error. The command was given up before it began: {command}")
            process = subprocess.Popen(
                ["/bin/sh", "-c", _GUARDED, "holdfast-sync", command],
                stdin=subprocess.PIPE,
                # Files, not pipes: a process that the command leaves behind would keep a pipe open for ever.
                stdout=out,
                stderr=err,
                # No terminal: what would ask for a password fails, instead of waiting for an answer.
                start_new_session=True,
            )
            self._processes.add(process)
        try:
            yield process
        finally:
            with self._process_lock:
                _kill_group(process)
                self._processes.discard(process)
            process.wait()
            if process.stdin is not None:
                process.stdin.close()


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:  # until it is waited for, its id cannot be somebody else's
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _tail(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _SHOWN_OUTPUT))
    return file.read().decode(errors="replace").strip()
