"""SeaweedFS, a production S3 server that honours conditional puts: the first choice."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from pathlib import Path

from servers.install import program
from servers.process import HOST
from servers.s3 import S3Server

_PROBE = "holdfast-ready"
_SOCKETS = Path("/tmp")  # fixed in the server, whatever TMPDIR says
_STALE_SOCKET_S = 3600
_GRPC = ("master", "volume", "filer", "s3")
# Each bucket is a collection with volumes of its own; the default of eight volumes is gone with the second bucket.
_MAX_VOLUMES = 100_000


class SeaweedFS(S3Server):
    """`with SeaweedFS(directory) as server: server.bucket("name")`."""

    name = "SeaweedFS"

    def command(self) -> list[str]:
        ports = [f"-{part}.port={self._port(part)}" for part in _GRPC]
        ports += [f"-{part}.port.grpc={self.reserve(f'{part} grpc')}" for part in _GRPC]
        return [
            *(program("weed"), "-logtostderr", "server", "-s3", f"-ip={HOST}", f"-ip.bind={HOST}"),
            *(f"-dir={self.data}", f"-s3.config={self.directory / 'keys.json'}", *ports),
            *("-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false", "-master.peers=none"),
            # A master that resumes its state sometimes "warms up" for 15 seconds and lets every put hang meanwhile.
            "-master.resumeState=false",
            *("-master.volumeSizeLimitMB=1024", f"-volume.max={_MAX_VOLUMES}", "-volume.minFreeSpace=64MiB"),
        ]

    def prepare(self) -> None:
        identity = {
            "name": "tests",
            "credentials": [{"accessKey": self.access_key, "secretKey": self.secret_key}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (self.directory / "keys.json").write_text(json.dumps({"identities": [identity]}))
        _remove_dead_sockets()

    def variables(self) -> dict[str, str]:
        return {"WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"}

    def ready(self) -> bool:
        """Whether an object can be written and read: the S3 port opens before the volumes are there."""
        path = f"/{_PROBE}/object"
        return (
            super().ready()
            and self.request("PUT", f"/{_PROBE}")[0] in (200, 409)
            and self.request("PUT", path, b"x")[0] == 200
            and self.request("GET", path) == (200, b"x")
        )

    def clean(self) -> None:
        names = [f"{part}-grpc-{self.reserve(f'{part} grpc')}" for part in _GRPC]
        for name in (*names, f"filer-{self._port('filer')}", f"s3-{self._port('s3')}"):
            (_SOCKETS / f"seaweedfs-{name}.sock").unlink(missing_ok=True)

    def _port(self, part: str) -> int:
        return self.port if part == "s3" else self.reserve(part)


def _remove_dead_sockets() -> None:
    """Remove what servers left whose test process was killed; never the socket of one that lives or just starts."""
    for path in _SOCKETS.glob("seaweedfs-*.sock"):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            if time.time() - path.stat().st_mtime > _STALE_SOCKET_S:
                try:
                    probe.connect(str(path))
                except ConnectionRefusedError:
                    path.unlink()
