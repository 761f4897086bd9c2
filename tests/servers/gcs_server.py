"""A stand-in for Google Cloud Storage: the part of its XML interface that object store clients use.

Owns: objects with generations, preconditions, listings and multipart uploads, on disk below one directory. It is a
script of its own and uses the standard library only. It follows the published interface; it is not Google's server,
and proves nothing about that one. It never checks who asks.

    python gcs_server.py PORT DIRECTORY
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
import sqlite3
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

PIECE_BYTES = 256 * 1024
PAGE = 1000

SCHEMA = """
CREATE TABLE IF NOT EXISTS buckets (name TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS objects (bucket TEXT, key TEXT, generation INTEGER, md5 TEXT, size INTEGER,
    modified REAL, blob TEXT, PRIMARY KEY (bucket, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS uploads (id TEXT PRIMARY KEY, bucket TEXT, key TEXT);
CREATE TABLE IF NOT EXISTS parts (upload TEXT, number INTEGER, md5 TEXT, size INTEGER, blob TEXT,
    PRIMARY KEY (upload, number));
"""


class Refused(Exception):
    """An answer other than success."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(status, code)
        self.status, self.code = status, code


@dataclass(frozen=True)
class Object:
    """A live object."""

    key: str
    generation: int
    md5: str
    size: int
    modified: float
    blob: str

    @property
    def headers(self) -> dict[str, str]:
        return {
            "ETag": f'"{self.md5}"',
            "Last-Modified": formatdate(self.modified, usegmt=True),
            "x-goog-generation": str(self.generation),
            "x-goog-metageneration": "1",
            "x-goog-stored-content-length": str(self.size),
            "x-goog-hash": f"md5={base64.b64encode(bytes.fromhex(self.md5)).decode()}",
        }


class Storage:
    """Buckets and objects; each change is one transaction."""

    def __init__(self, directory: Path) -> None:
        self.blobs = directory / "blobs"
        self.blobs.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._database = sqlite3.connect(directory / "index.db", check_same_thread=False)
        self._database.executescript("PRAGMA journal_mode=WAL;" + SCHEMA)

    @contextlib.contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._database:
            yield self._database

    def create_bucket(self, name: str) -> None:
        with self.change() as database:
            try:
                database.execute("INSERT INTO buckets VALUES (?)", (name,))
            except sqlite3.IntegrityError:
                raise Refused(409, "BucketAlreadyOwnedByYou") from None

    def find(self, bucket: str, key: str) -> Object:
        with self.change() as database:
            found = self._find(database, bucket, key)
        if found is None:
            raise Refused(404, "NoSuchKey")
        return found

    def put(self, bucket: str, key: str, new: tuple[str, str, int], expected: int | None) -> Object:
        """Make (blob, md5, size) the live object, if the live generation is the expected one (0: none)."""
        blob, md5, size = new
        with self.change() as database:
            old = self._expect(database, bucket, key, expected)
            generation = max(time.time_ns() // 1000, (old.generation if old else 0) + 1)
            made = Object(key, generation, md5, size, time.time(), blob)
            values = (bucket, key, generation, md5, size, made.modified, blob)
            database.execute("INSERT OR REPLACE INTO objects VALUES (?,?,?,?,?,?,?)", values)
        return made

    def delete(self, bucket: str, key: str, expected: int | None) -> None:
        with self.change() as database:
            if self._expect(database, bucket, key, expected) is None:
                raise Refused(404, "NoSuchKey")
            database.execute("DELETE FROM objects WHERE bucket=? AND key=?", (bucket, key))

    def list(self, bucket: str, prefix: str, after: str) -> list[Object]:
        with self.change() as database:
            self._require_bucket(database, bucket)
            rows = database.execute(
                "SELECT key, generation, md5, size, modified, blob FROM objects"
                " WHERE bucket=? AND key>? AND substr(key, 1, ?)=? ORDER BY key",
                (bucket, after, len(prefix), prefix),
            ).fetchall()
        return [Object(*row) for row in rows]

    def begin_upload(self, bucket: str, key: str) -> str:
        upload = uuid.uuid4().hex
        with self.change() as database:
            self._require_bucket(database, bucket)
            database.execute("INSERT INTO uploads VALUES (?,?,?)", (upload, bucket, key))
        return upload

    def put_part(self, upload: str, number: int, new: tuple[str, str, int]) -> None:
        blob, md5, size = new
        with self.change() as database:
            if not database.execute("SELECT 1 FROM uploads WHERE id=?", (upload,)).fetchone():
                raise Refused(404, "NoSuchUpload")
            database.execute("INSERT OR REPLACE INTO parts VALUES (?,?,?,?,?)", (upload, number, md5, size, blob))

    def parts(self, upload: str) -> dict[int, tuple[str, str]]:
        """The ETag and the blob of each part by its number."""
        with self.change() as database:
            rows = database.execute("SELECT number, md5, blob FROM parts WHERE upload=?", (upload,)).fetchall()
        return {number: (md5, blob) for number, md5, blob in rows}

    def end_upload(self, upload: str) -> None:
        with self.change() as database:
            if not database.execute("DELETE FROM uploads WHERE id=?", (upload,)).rowcount:
                raise Refused(404, "NoSuchUpload")
            database.execute("DELETE FROM parts WHERE upload=?", (upload,))

    def _expect(self, database: sqlite3.Connection, bucket: str, key: str, expected: int | None) -> Object | None:
        self._require_bucket(database, bucket)
        old = self._find(database, bucket, key)
        if expected is not None and expected != (old.generation if old else 0):
            raise Refused(412, "PreconditionFailed")
        return old

    @staticmethod
    def _require_bucket(database: sqlite3.Connection, bucket: str) -> None:
        if not database.execute("SELECT 1 FROM buckets WHERE name=?", (bucket,)).fetchone():
            raise Refused(404, "NoSuchBucket")

    @staticmethod
    def _find(database: sqlite3.Connection, bucket: str, key: str) -> Object | None:
        columns = "key, generation, md5, size, modified, blob"
        row = database.execute(f"SELECT {columns} FROM objects WHERE bucket=? AND key=?", (bucket, key)).fetchone()
        return Object(*row) if row else None


class Handler(BaseHTTPRequestHandler):
    """One request of the XML interface: `/bucket` or `/bucket/key`."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    storage: Storage

    def do_PUT(self) -> None:
        self._serve(self._put)

    def do_POST(self) -> None:
        self._serve(self._post)

    def do_GET(self) -> None:
        self._serve(self._get)

    def do_HEAD(self) -> None:
        self._serve(self._get)

    def do_DELETE(self) -> None:
        self._serve(self._delete)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing: the fault proxy keeps the record."""

    def _serve(self, action: Callable[[], None]) -> None:
        parts = urlsplit(self.path)
        bucket, _, key = parts.path.lstrip("/").partition("/")
        self.bucket, self.key = unquote(bucket), unquote(key)
        self.query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        self.unread = int(self.headers.get("Content-Length", "0"))
        try:
            action()
        except Refused as refused:
            self._discard_body()
            self._answer(refused.status, f"<Error><Code>{refused.code}</Code></Error>".encode())
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    # Verbs.

    def _put(self) -> None:
        if not self.key:
            self._discard_body()
            self.storage.create_bucket(self.bucket)
            self._answer(200)
        elif "uploadId" in self.query:
            new = self._receive()
            self.storage.put_part(self.query["uploadId"], int(self.query["partNumber"]), new)
            self._answer(200, headers={"ETag": f'"{new[1]}"'})
        elif "x-goog-copy-source" in self.headers:
            self._discard_body()
            bucket, _, key = unquote(self.headers["x-goog-copy-source"]).lstrip("/").partition("/")
            source = self.storage.find(bucket, key)
            made = self.storage.put(self.bucket, self.key, (source.blob, source.md5, source.size), self._expected())
            self._answer(200, f'<CopyObjectResult><ETag>"{made.md5}"</ETag></CopyObjectResult>'.encode(), made.headers)
        else:
            made = self.storage.put(self.bucket, self.key, self._receive(), self._expected())
            self._answer(200, headers=made.headers)

    def _post(self) -> None:
        if "uploads" in self.query:
            self._discard_body()
            upload = self.storage.begin_upload(self.bucket, self.key)
            names = f"<Bucket>{escape(self.bucket)}</Bucket><Key>{escape(self.key)}</Key>"
            body = f"<UploadId>{upload}</UploadId>"
            self._answer(200, _document("InitiateMultipartUploadResult", names + body))
        elif "uploadId" in self.query:
            made = self._complete(self.query["uploadId"], self._expected())
            body = f'<Key>{escape(self.key)}</Key><ETag>"{made.md5}"</ETag>'
            self._answer(200, _document("CompleteMultipartUploadResult", body), made.headers)
        else:
            raise Refused(501, "NotImplemented")

    def _get(self) -> None:
        if self.key:
            self._send_object(self.storage.find(self.bucket, self.key))
        elif self.bucket:
            self._list()
        else:
            self._answer(200, _document("ListAllMyBucketsResult", ""))

    def _delete(self) -> None:
        if "uploadId" in self.query:
            self.storage.end_upload(self.query["uploadId"])
        else:
            self.storage.delete(self.bucket, self.key, self._expected())
        self._answer(204)

    # Parts of verbs.

    def _complete(self, upload: str, expected: int | None) -> Object:
        root = ElementTree.fromstring(self.rfile.read(self.unread))
        self.unread = 0
        have = self.storage.parts(upload)
        blob, md5, size = uuid.uuid4().hex, hashlib.md5(), 0
        with (self.storage.blobs / blob).open("wb") as whole:
            for part in (node for node in root if node.tag.endswith("Part")):
                values = {node.tag.rpartition("}")[2]: (node.text or "").strip('"') for node in part}
                etag, source = have.get(int(values["PartNumber"]), ("", ""))
                if not etag or etag != values["ETag"]:
                    raise Refused(400, "InvalidPart")
                with (self.storage.blobs / source).open("rb") as pieces:
                    while piece := pieces.read(PIECE_BYTES):
                        whole.write(piece)
                        md5.update(piece)
                        size += len(piece)
        made = self.storage.put(self.bucket, self.key, (blob, md5.hexdigest(), size), expected)
        self.storage.end_upload(upload)
        return made

    def _send_object(self, found: Object) -> None:
        first, last, status = 0, found.size - 1, 200
        headers = found.headers | {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if wanted and any(wanted.groups()):
            if wanted[1]:
                first, last = int(wanted[1]), min(int(wanted[2] or last), last)
            else:
                first = max(0, found.size - int(wanted[2]))
            if first > last:
                raise Refused(416, "InvalidRange")
            status, headers["Content-Range"] = 206, f"bytes {first}-{last}/{found.size}"
        self._head(status, headers | {"Content-Length": str(last - first + 1)})
        if self.command == "HEAD":
            return
        with (self.storage.blobs / found.blob).open("rb") as blob:
            self.wfile.flush()
            offset = first
            while offset <= last:
                offset += os.sendfile(self.connection.fileno(), blob.fileno(), offset, last - offset + 1)

    def _list(self) -> None:
        prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter", "")
        after = self.query.get("continuation-token") or self.query.get("start-after", "")
        limit = min(int(self.query.get("max-keys", PAGE)), PAGE)
        contents: list[Object] = []
        prefixes: list[str] = []
        last, truncated = after, False
        for found in self.storage.list(self.bucket, prefix, after):
            group = _group(found.key, prefix, delimiter)
            if group and group == last:
                continue  # the group has its place in this page or in the one before
            if len(contents) + len(prefixes) == limit:
                truncated = True
                break
            last = group or found.key
            if group:
                prefixes.append(group)
            else:
                contents.append(found)
        body = "".join(_listed(found) for found in contents)
        body += "".join(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in prefixes)
        body += f"<Name>{escape(self.bucket)}</Name><IsTruncated>{str(truncated).lower()}</IsTruncated>"
        if truncated:
            body += f"<NextContinuationToken>{escape(last)}</NextContinuationToken>"
        self._answer(200, _document("ListBucketResult", body))

    # The wire.

    def _expected(self) -> int | None:
        value = self.headers.get("x-goog-if-generation-match")
        return None if value is None else int(value)

    def _receive(self) -> tuple[str, str, int]:
        """Store the body; returns its blob, md5 and size."""
        blob, md5, size = uuid.uuid4().hex, hashlib.md5(), self.unread
        path = self.storage.blobs / blob
        with path.open("wb") as file:
            for piece in self._body():
                file.write(piece)
                md5.update(piece)
        if self.headers.get("Content-MD5", (own := base64.b64encode(md5.digest()).decode())) != own:
            raise Refused(400, "BadDigest")
        return blob, md5.hexdigest(), size

    def _discard_body(self) -> None:
        for _ in self._body():
            pass

    def _body(self) -> Iterator[bytes]:
        while self.unread:
            piece = self.rfile.read(min(self.unread, PIECE_BYTES))
            if not piece:
                raise ConnectionResetError("the client went away inside a body")
            self.unread -= len(piece)
            yield piece

    def _answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self._head(status, {"Content-Type": "application/xml", **(headers or {}), "Content-Length": str(len(body))})
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


def _group(key: str, prefix: str, delimiter: str) -> str:
    """The common prefix that stands for this key in a listing; empty if the key stands for itself."""
    end = key.find(delimiter, len(prefix)) if delimiter else -1
    return key[: end + len(delimiter)] if end >= 0 else ""


def _listed(found: Object) -> str:
    modified = datetime.fromtimestamp(found.modified, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return (
        f"<Contents><Key>{escape(found.key)}</Key><Generation>{found.generation}</Generation>"
        f'<LastModified>{modified}</LastModified><ETag>"{found.md5}"</ETag><Size>{found.size}</Size></Contents>'
    )


def _document(name: str, body: str) -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?><{name}>{body}</{name}>'.encode()


def main() -> None:
    Handler.storage = Storage(Path(sys.argv[2]))
    ThreadingHTTPServer.daemon_threads = True
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()


if __name__ == "__main__":
    main()
