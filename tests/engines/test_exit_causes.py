"""Exit statuses, out-of-memory evidence and log tails, without any process."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from holdfast.core.events import Cause
from holdfast.engines.exits import TAIL_BYTES, OomWitness, explain, size_of, tail


def test_only_an_unexplained_sigkill_with_evidence_is_out_of_memory() -> None:
    killed = int(signal.SIGKILL)
    cause, detail = explain(killed, halted=False, oom=True, peak_kib=3 * 1024 * 1024)
    assert cause == Cause.OUT_OF_MEMORY
    assert "probably out of memory" in detail
    assert "3,072 MiB" in detail
    assert explain(killed, halted=False, oom=False, peak_kib=0)[0] == Cause.SIGNAL
    assert explain(killed, halted=True, oom=True, peak_kib=0) == (Cause.SIGNAL, "ended at the driver's request")
    assert explain(int(signal.SIGSEGV), halted=False, oom=True, peak_kib=0)[0] == Cause.SIGNAL


def test_a_signal_without_a_name_is_told_by_number() -> None:
    assert explain(63, halted=False, oom=False, peak_kib=0) == (Cause.SIGNAL, "killed by signal 63")


def test_the_witness_explains_as_many_deaths_as_there_were_kills_and_forgets_them_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("holdfast.engines.exits.time.monotonic", lambda: now[0])
    group, machine = tmp_path / "memory.events", tmp_path / "vmstat"

    def write(count: int) -> None:
        group.write_text(f"low 0\noom 1\noom_kill {count}\n")
        machine.write_text(f"nr_free_pages 5\noom_kill {count + 7}\n")

    write(4)
    witness = OomWitness([str(group), str(machine), str(tmp_path / "absent")])
    assert not witness.explains()
    write(6)
    assert [witness.explains() for _ in range(3)] == [True, True, False]
    write(7)
    witness.look()
    now[0] += 60
    assert not witness.explains()


def test_the_witness_reads_what_this_machine_has() -> None:
    assert not OomWitness().explains()


def test_the_tail_is_bounded_and_begins_at_the_offset(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    offset = size_of(str(log))
    assert tail(str(log), offset) == ""
    with log.open("a") as file:
        file.write("after é\rprogress 1\rprogress 2\n")
    assert tail(str(log), offset).splitlines() == ["after é", "progress 1", "progress 2"]
    with log.open("ab") as file:
        file.write(b"\xff" * 3 * TAIL_BYTES)
    assert len(tail(str(log), offset)) <= TAIL_BYTES
    assert tail(str(tmp_path / "absent"), 0) == ""
    log.write_text("cut meanwhile")
    assert tail(str(log), 10**6) == "cut meanwhile"
