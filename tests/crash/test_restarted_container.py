"""A driver dies with its container; the container is started again with the same host name and a new pid namespace.

Two real pid namespaces on one kernel stand for the two containers. The second one is made before the first one ends, so
that the kernel cannot give both the same number.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.cli.main import main
from holdfast.errors import ExperimentLockedError
from holdfast.journal import Claim, claim_epoch, holder, liveness
from holdfast.journal import epoch as epochs

UNSHARE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]

CODE = """
import sys
from holdfast.errors import ExperimentLockedError
from holdfast.journal import claim_epoch
for line in sys.stdin:  # one claim for each line
    try:
        claim = claim_epoch(line.strip())
        print("claimed", claim.epoch, flush=True)
    except ExperimentLockedError as error:
        print("refused", error.dead_in_s, error, flush=True)
"""


def _can_unshare() -> bool:
    try:
        return subprocess.run([*UNSHARE, "true"], capture_output=True, timeout=30).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


needs_namespaces = pytest.mark.skipif(not _can_unshare(), reason="this user may not make pid namespaces")


class Container:
    """A Python in a pid namespace of its own."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [*UNSHARE, sys.executable, "-c", CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def claim(self, root: Path) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{root}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def first_process(self) -> int:
        """The pid, here, of the first process of the namespace: it ends with all others if that ends."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return int(children.split()[0])

    def kill(self) -> None:
        if self.process.poll() is None:
            os.kill(self.first_process(), signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def containers() -> Iterator[tuple[Container, Container]]:
    both = Container(), Container()
    try:
        yield both
    finally:
        for each in both:
            each.kill()


@needs_namespaces
def test_a_restarted_container_goes_on_at_once(containers: tuple[Container, Container], tmp_path: Path) -> None:
    first, second = containers
    assert first.claim(tmp_path) == "claimed 1\n"
    first.kill()
    assert second.claim(tmp_path) == "claimed 2\n"


@needs_namespaces
def test_outside_of_its_container_too_a_dead_driver_is_known_to_be_dead(
    containers: tuple[Container, Container], tmp_path: Path
) -> None:
    containers[0].claim(tmp_path)
    alive = holder(tmp_path)
    assert alive is not None
    assert (alive.alive, alive.certain) == (True, False)
    containers[0].kill()
    dead = holder(tmp_path)
    assert dead is not None
    assert (dead.alive, dead.certain, dead.released) == (False, True, False)


@needs_namespaces
def test_a_live_driver_in_another_container_is_left_alone_and_the_refusal_says_for_how_long(
    containers: tuple[Container, Container], tmp_path: Path
) -> None:
    first, second = containers
    assert first.claim(tmp_path) == "claimed 1\n"
    answer = second.claim(tmp_path)
    kind, seconds, _ = answer.split(" ", 2)
    assert kind == "refused"
    assert 0 < float(seconds) <= epochs.SILENCE_S
    assert "counts as dead in" in answer
    assert "takeover=True" in answer


@needs_namespaces
def test_a_frozen_container_is_not_taken_for_dead_before_it_was_silent_for_long(
    containers: tuple[Container, Container], tmp_path: Path
) -> None:
    first, second = containers
    first.claim(tmp_path)
    os.kill(first.first_process(), signal.SIGSTOP)
    assert second.claim(tmp_path).startswith("refused")
    # Both containers began before it was last heard of, so none is the other's successor.
    heard = time.time() - epochs.MISSED_BEATS * epochs.HEARTBEAT_S - 1
    young = time.time() - (liveness.namespace_age_s() or 0.0)
    if young > heard:
        pytest.skip("this machine, or the container of these tests, has just been started")
    assert holder_after(tmp_path, heard).alive
    assert not holder_after(tmp_path, time.time() - epochs.SILENCE_S - 1).alive


def holder_after(root: Path, heard: float) -> epochs.Holder:
    file = root / ".holdfast" / "epochs" / "00000001"
    os.utime(file, (heard, heard))
    found = holder(root)
    assert found is not None
    return found


# --- without namespaces: what follows from the facts


def forged(root: Path, **facts: object) -> Claim:
    """The claim of a driver of another namespace of this kernel, as nobody is there to hold its lock."""
    mine = claim_epoch(root)
    boot = mine.machine.partition(" ")[0]
    epochs.release(root, mine)
    (root / ".holdfast" / "epochs" / "00000001.released").unlink()
    other = msgspec.structs.replace(mine, **{"machine": f"{boot} pid:[1]", **facts})
    (root / ".holdfast" / "epochs" / "00000001").write_bytes(epochs.encode_claim(other))
    return mine


def test_without_a_lock_the_predecessor_is_taken_for_dead_after_a_few_missed_heartbeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a network file system: the container was restarted after the driver was last heard of."""
    forged(tmp_path, lock="")
    monkeypatch.setattr(epochs, "namespace_age_s", lambda: 1.0)
    silence_s = epochs.MISSED_BEATS * epochs.HEARTBEAT_S
    found = holder_after(tmp_path, time.time() - silence_s / 2)
    assert found.alive
    assert found.dead_in_s == pytest.approx(silence_s / 2, abs=5)
    assert not holder_after(tmp_path, time.time() - silence_s - 1).alive
    monkeypatch.setattr(epochs, "namespace_age_s", lambda: 3600.0)
    assert holder_after(tmp_path, time.time() - silence_s - 1).alive


def test_another_host_name_is_not_a_predecessor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forged(tmp_path, lock="", host="another")
    monkeypatch.setattr(epochs, "namespace_age_s", lambda: 1.0)
    assert holder_after(tmp_path, time.time() - epochs.SILENCE_S + 10).alive


def test_a_copy_of_the_claim_elsewhere_proves_nothing(tmp_path: Path) -> None:
    """A mirror made from a store holds the claim of a live driver, but not its lock."""
    forged(tmp_path, lock="1:2")
    found = holder_after(tmp_path, time.time() - 20)
    assert found.alive
    assert not found.certain


def test_after_a_reboot_the_driver_before_it_is_known_to_be_dead(tmp_path: Path) -> None:
    forged(tmp_path, machine="00000000-0000-4000-8000-000000000000 pid:[4026531836]")
    found = holder_after(tmp_path, time.time())
    assert (found.alive, found.certain) == (False, True)
    assert claim_epoch(tmp_path).epoch == 2


def test_on_another_machine_with_the_same_disk_it_may_be_alive(tmp_path: Path) -> None:
    forged(tmp_path, machine="00000000-0000-4000-8000-000000000000 pid:[4026531836]", host="another")
    with pytest.raises(ExperimentLockedError, match="counts as dead in"):
        claim_epoch(tmp_path)


def test_status_does_not_call_running_what_it_cannot_see(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))
    from roots import RootWriter

    root = RootWriter(tmp_path / "exp").open()
    root.journal.close(release=False)
    other = msgspec.structs.replace(root.claim, machine="elsewhere", host="farm", lock="")
    file = root.path / ".holdfast" / "epochs" / "00000001"
    file.write_bytes(epochs.encode_claim(other))
    os.utime(file, (time.time() - 20,) * 2)
    assert main(["status", str(root.path)]) == 0
    said = capsys.readouterr().out
    assert "perhaps running" in said
    assert "last heartbeat 2" in said
    assert "counts as dead in" in said
