"""`rclone serve s3`: an independent S3 that ignores the conditions of puts, which a probe must refuse."""

from __future__ import annotations

from servers.install import program
from servers.process import HOST
from servers.s3 import S3Server


class Rclone(S3Server):
    """`with Rclone(directory) as server: server.bucket("name")`. A range is answered with the whole object."""

    name = "rclone serve s3"
    conditional_puts = False

    def command(self) -> list[str]:
        keys = f"{self.access_key},{self.secret_key}"
        return [
            *(program("rclone"), "serve", "s3", "--addr", f"{HOST}:{self.port}", "--auth-key", keys),
            *("--config", str(self.directory / "rclone.conf"), "--cache-dir", str(self.directory / "cache")),
            str(self.data),
        ]

    def prepare(self) -> None:
        (self.directory / "rclone.conf").touch()
