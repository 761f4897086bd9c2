"""A running `holdfast ui`, and the ways to talk to it: plain HTTP, and event streams."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from holdfast.results.packing import MISSING

START_S = 60.0
ANSWER_S = 30.0


class Reply(NamedTuple):
    """A response."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        sentence = self.json["error"]
        assert "\n" not in sentence.strip()
        return str(sentence)


class LiveServer:
    """One process. ``address`` is what it printed first."""

    def __init__(self, arguments: list[str], environ: dict[str, str]) -> None:
        command = [sys.executable, "-m", "holdfast", "ui", "--port", "0", "--no-browser", *arguments]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **environ}
        )
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], START_S)
        self.address = self.process.stdout.readline().decode().strip() if ready else ""
        if not self.address:
            self.process.kill()
            out, err = self.process.communicate()
            raise AssertionError(f"no address: {out!r} {err.decode()}")
        parts = urlsplit(self.address)
        assert parts.hostname is not None
        assert parts.port is not None
        self.host, self.port = parts.hostname, parts.port
        self._streams: list[EventReader] = []
        self.token = parts.query.removeprefix("token=")

    def request(
        self,
        path: str,
        *,
        method: str = "GET",
        token: str | None = "",
        body: bytes | None = None,
        **headers: str,
    ) -> Reply:
        """Ask; ``token=None`` leaves it out. Names of headers are written with underscores."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent.setdefault("Authorization", f"Bearer {token or self.token}")
        connection = http.client.HTTPConnection(self.host, self.port, timeout=ANSWER_S)
        try:
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            data = response.read()
        finally:
            connection.close()
        if response.headers.get("Content-Encoding") == "gzip":
            data = gzip.decompress(data)
        return Reply(response.status, response.headers, data)

    def get(self, path: str) -> Any:
        """The JSON at a path, which must be there."""
        reply = self.request(path)
        assert reply.status == 200, (path, reply.status, reply.body[:500])
        return reply.json

    def post(self, path: str, body: Any, **headers: str) -> Reply:
        headers.setdefault("Content_Type", "application/json")
        return self.request(path, method="POST", body=json.dumps(body).encode(), **headers)

    def experiments(self) -> list[Any]:
        """All, once all are read."""
        return self.until(
            lambda: [each for each in [self.get("/api/experiments")] if all(e["state"] != "loading" for e in each)]
        )[0]

    def only(self) -> str:
        """The path of the only experiment, once it is read."""
        (one,) = self.get("/api/experiments")
        path = f"/api/experiments/{one['id']}"
        self.until(lambda: self.get(path)["loading"] is None)
        return path

    def until(self, condition: Any, what: str = "the condition") -> Any:
        """Poll with a deadline."""
        deadline = time.monotonic() + ANSWER_S
        while True:
            found = condition()
            if found:
                return found
            assert time.monotonic() < deadline, f"waited {ANSWER_S} s for {what}"
            time.sleep(0.05)

    def stream(self, path: str, **headers: str) -> EventReader:
        """An event stream, closed with the server."""
        self._streams.append(EventReader(self, path, headers))
        return self._streams[-1]

    def stop(self, number: int = signal.SIGTERM, within_s: float = 30.0) -> tuple[int, str]:
        """End it; its exit code, and what it had to complain about."""
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=within_s)
        return self.process.returncode, err.decode()

    def kill(self) -> None:
        for stream in self._streams:
            stream.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


class Event(NamedTuple):
    """A server-sent event."""

    kind: str
    id: int
    data: Any


class EventReader:
    """An open event stream."""

    def __init__(self, server: LiveServer, path: str, headers: dict[str, str]) -> None:
        self._connection = http.client.HTTPConnection(server.host, server.port, timeout=ANSWER_S)
        sent = {"Authorization": f"Bearer {server.token}"}
        self._connection.request("GET", path, headers={**sent, **{n.replace("_", "-"): v for n, v in headers.items()}})
        self.response = self._connection.getresponse()
        if self.response.status != 200:
            self.close()
        assert self.response.status == 200
        assert self.response.headers["Content-Type"].startswith("text/event-stream")

    def next(self) -> Event | None:
        """The next event; None if the stream has ended."""
        fields: dict[str, str] = {}
        while line := self.response.readline():
            text = line.decode().rstrip("\n")
            if not text:
                if "data" in fields:
                    return Event(fields["event"], int(fields["id"]), json.loads(fields["data"]))
                fields = {}
            elif not text.startswith(":"):
                name, _, value = text.partition(": ")
                fields[name] = value
        return None

    def until(self, condition: Any) -> Event:
        """The first event that fits."""
        while event := self.next():
            if condition(event):
                return event
        raise AssertionError("the stream has ended")

    def close(self) -> None:
        self.response.close()
        self._connection.close()


def unpacked(body: bytes) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """The head and the columns of a binary answer; what is missing is None."""
    from array import array

    length = int.from_bytes(body[:4], "little")
    head = json.loads(body[4 : 4 + length])
    at = -(-(4 + length) // 8) * 8
    assert not any(body[4 + length : at])
    columns: dict[str, list[Any]] = {}
    for column in head["columns"]:
        data = array({"f32": "f", "f64": "d", "i32": "i", "category": "I"}[column["type"]])
        size = head["rows"] * data.itemsize
        data.frombytes(body[at : at + size])
        at += -(-size // 8) * 8
        if column["type"] == "category":
            columns[column["name"]] = [None if code == MISSING else column["values"][code] for code in data]
        else:
            columns[column["name"]] = [None if value != value else value for value in data]
    assert at == len(body)
    return head, columns
