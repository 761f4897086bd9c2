"""moto, an S3 of Python that keeps everything in memory: a store that loses its data with a crash."""

from __future__ import annotations

from servers.install import program
from servers.process import HOST
from servers.s3 import S3Server


class Moto(S3Server):
    """`with Moto(directory) as server: server.bucket("name")`. Signatures are not checked."""

    name = "moto"
    durable = False

    def command(self) -> list[str]:
        script = program("moto_server")
        return [program("python"), script, "-H", HOST, "-p", str(self.port)]

    def variables(self) -> dict[str, str]:
        return {"PYTHONDONTWRITEBYTECODE": "1"}
