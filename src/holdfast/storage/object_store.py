"""A bucket of S3, Google Cloud Storage or Azure as a `Store`.

Owns retries, deadlines and the renewal of credentials; how a file becomes one request or many. Must be used in the
storage agent only, because the client library does not survive a fork of its process.

A request is repeated until its deadline, whatever it was: all verbs can be, and `create` leaves it to
`store.create_once` to find out whether the first answer was lost.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from holdfast.errors import (
    ObjectMissingError,
    StorageError,
    StoreDeniedError,
    StoreUnreachableError,
    TuneError,
)
from holdfast.storage import stale_uploads, store_failures
from holdfast.storage.address import Address
from holdfast.storage.clients import Clients
from holdfast.storage.crashpoint import crashpoint
from holdfast.storage.digest import digest_of
from holdfast.storage.key_names import from_key, to_key
from holdfast.storage.options import MB, REQUEST_BACKOFF, StoreOptions
from holdfast.storage.store import ABSENT, ANY, Fetching, Replaced, Replacing, Sending, Stat
from holdfast.storage.transfers import HashedReader, Progress, Transfers, read_whole, write_hashed

T = TypeVar("T")

_MAX_PARTS = 9000  # S3 takes 10,000
_PARTS_AT_ONCE = 8
_STREAM_BYTES = MB
_DELETE_BATCH = 1000
_LIST_BATCH = 1000
_LARGE_PUT = MB
_LARGEST_REPLACED = 64 * MB  # an upload in parts knows no condition
_RENEW_EVERY_S = 1.0


class ObjectStore:
    """The `Store` of a cloud's bucket, or of a part of one.

    Args:
        address: Bucket and prefix.
        options: Limits; `Transfers` has those of bytes and files.
        transfers: The threads that move files.
        environ: Where credentials are looked for.
    """

    def __init__(
        self, address: Address, options: StoreOptions, transfers: Transfers, environ: Mapping[str, str] = os.environ
    ) -> None:
        self.address = address
        self._options = options
        self._transfers = transfers
        self._environ = environ
        self._lock = threading.Lock()
        self._clients: Clients | None = None
        self._built = 0.0
        self._opened = time.time()
        self._worked = False  # the bucket exists, and it let us in
        self._ranges: bool | None = None  # None: no answer to a range was seen yet
        self._bulk_delete = True
        self._checksums = True  # of created objects, in the head of the request
        self._conditions = True  # it has not refused a request because it had one
        self._sending: set[str] = set()

    @property
    def url(self) -> str:
        return self.address.url

    def create_is_atomic(self) -> bool | None:
        """Whether `create` keeps two writers apart; None if only a trial can tell."""
        return None

    # ------------------------------------------------------------------ small requests

    def put(self, key: str, data: bytes) -> None:
        name = to_key(key)

        def work(clients: Clients) -> None:
            obstore.put(_client(clients, data), name, data, use_multipart=False)

        self._run(f"put {key}", work)

    def create(self, key: str, data: bytes) -> bool:
        name = to_key(key)

        crashpoint("store.before_create")
        made = self._run(f"create {key}", lambda clients: self._put_if(clients, name, data, ABSENT))
        crashpoint("store.after_create")
        return made is not None

    def _put_if(self, clients: Clients, name: str, data: bytes, version: str) -> str | None:
        """Write an object if it is still of that version. Returns the new version, or None if it is not."""
        put = self._put_new if version == ABSENT else partial(self._put_over, version=version)
        try:
            return self._version(put(clients, name, data))
        except (AlreadyExistsError, PreconditionError) as error:
            if store_failures.is_conflict(error):
                raise StoreUnreachableError(
                    f"{self.url}: two writers wrote {from_key(name)} at the same moment."
                ) from error
            return None

    def _put_new(self, clients: Clients, name: str, data: bytes) -> Any:
        if self._checksums:
            checked = clients.bulk_create if len(data) > _LARGE_PUT else clients.create
            try:
                return obstore.put(checked, name, data, mode="create", use_multipart=False)
            except BaseError as error:
                if not store_failures.refuses_header(error):
                    raise
        made = obstore.put(_client(clients, data), name, data, mode="create", use_multipart=False)
        self._checksums = False  # it was the checksum that the server did not want
        return made

    def _put_over(self, clients: Clients, name: str, data: bytes, version: str) -> Any:
        put = partial(obstore.put, _client(clients, data), name, data, use_multipart=False)
        if self._conditions:
            try:
                expected: Any = {self._version_field: version}
                return put(mode=expected)
            except BaseError as error:
                # Nothing less clear: a refusal for another reason must not be repeated without the condition.
                if not store_failures.lacks_verb(error):
                    raise
        made = put()
        self._conditions = False  # it was the condition that the server did not want
        return made

    @property
    def _version_field(self) -> str:
        return "version" if self.address.scheme == "gs" else "e_tag"

    def _version(self, facts: Any) -> str:
        return (self._conditions and facts[self._version_field]) or ANY

    def get(self, key: str) -> bytes:
        name = to_key(key)
        return self._run(f"get {key}", lambda clients: bytes(obstore.get(clients.stream, name).bytes()))

    def stat(self, key: str) -> Stat | None:
        name = to_key(key)
        try:
            found = self._run(f"stat {key}", lambda clients: obstore.head(clients.small, name))
        except ObjectMissingError:
            return None
        return _stat(found, self._version(found))

    def list(self, prefix: str) -> list[Stat]:
        # The library lists whole directories only.
        folder = prefix.rpartition("/")[0]
        within = to_key(folder) if folder else None

        def work(clients: Clients) -> list[Stat]:
            pages = obstore.list(clients.small, within, chunk_size=_LIST_BATCH)
            found = (_stat(entry) for page in pages for entry in page)
            return [stat for stat in found if stat.key.startswith(prefix)]

        return sorted(self._run(f"list {prefix or 'everything'}", work), key=lambda stat: stat.key)

    def delete(self, keys: Iterable[str]) -> None:
        names = [to_key(key) for key in keys]
        for start in range(0, len(names), _DELETE_BATCH):
            self._delete_batch(names[start : start + _DELETE_BATCH])

    def _delete_batch(self, names: Sequence[str]) -> None:
        if self._bulk_delete and len(names) > 1:
            try:
                self._run(f"delete {len(names)} objects", lambda clients: obstore.delete(clients.small, names))
                return
            except ObjectMissingError:
                pass  # some stores say so; one by one it is known which
            except StoreDeniedError as error:
                if error.__cause__ is None or not store_failures.lacks_verb(error.__cause__):
                    raise
                self._bulk_delete = False
        self._transfers.each(self._delete_one, names)

    def _delete_one(self, name: str) -> None:
        try:
            self._run(f"delete {from_key(name)}", lambda clients: obstore.delete(clients.small, name))
        except ObjectMissingError:
            pass

    def abort_stale(self, prefix: str) -> int:
        if self.address.scheme != "s3":
            return 0  # Azure drops parts that were never committed by itself; for Google's, a life-cycle rule does
        return self._run(
            f"list unfinished uploads below {prefix}",
            lambda _: stale_uploads.abort(
                self.address,
                self._environ,
                prefix=prefix,
                older_than_s=time.time() - self._opened,
                spared=frozenset(self._sending),
            ),
        )

    def close(self) -> None:
        self._clients = None

    # ------------------------------------------------------------------ files

    def send(self, files: Sequence[Sending]) -> Sequence[str]:
        return self._transfers.each(self._send_one, files)

    def fetch(self, files: Sequence[Fetching]) -> Sequence[str]:
        return self._transfers.each(self._fetch_one, files)

    def replace(self, files: Sequence[Replacing]) -> Sequence[Replaced]:
        return self._transfers.each(self._replace_one, files)

    def _send_one(self, file: Sending) -> str:
        name = to_key(file.key)
        with self._local_file(file):
            size = os.stat(file.path).st_size
            send = self._send_parts if size > 2 * self._options.part_bytes else self._send_whole
            digest = send(file, name, size)
        crashpoint("store.file_sent")
        return digest

    def _replace_one(self, file: Replacing) -> Replaced:
        with self._local_file(file):
            size = os.stat(file.path).st_size
            if file.version != ANY and size <= _LARGEST_REPLACED:
                return self._replace_whole(file, size)
        self._send_one(Sending(file.path, file.key))
        return Replaced(True, ANY)

    @contextmanager
    def _local_file(self, file: Sending | Replacing) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if isinstance(error, StorageError):
                raise
            raise StorageError(f"{file.path}, which is to become {self.url}/{file.key}, is not there.") from error

    def _send_whole(self, file: Sending, name: str, size: int) -> str:
        with self._transfers.budget.take(size):
            data = read_whole(file.path, size)
            progress = Progress(self._options.stall_s)
            put = partial(obstore.put, path=name, file=data, use_multipart=False)
            self._move(f"send {file.key}", progress, lambda clients: put(clients.bulk))
            return digest_of(data)

    def _replace_whole(self, file: Replacing, size: int) -> Replaced:
        name = to_key(file.key)
        with self._transfers.budget.take(size):
            data = read_whole(file.path, size)
            progress = Progress(self._options.stall_s)
            version = self._move(
                f"replace {file.key}", progress, lambda clients: self._put_if(clients, name, data, file.version)
            )
        if version is None:
            found = self.stat(file.key)
            return Replaced(False, ABSENT if found is None else found.version)
        crashpoint("store.file_sent")
        return Replaced(True, version)

    def _send_parts(self, file: Sending, name: str, size: int) -> str:
        part = self._options.part_bytes
        while size > part * _MAX_PARTS:
            part *= 2
        progress = Progress(self._options.stall_s)

        def work(clients: Clients) -> str:
            budget = self._transfers.budget
            # One part more than are on their way: the one that has been read and waits for its turn.
            at_once = max(1, min(_PARTS_AT_ONCE, budget.limit // (2 * part) - 1))
            with budget.take((at_once + 1) * part):
                reader = HashedReader(file.path, size, part, progress.moved)
                pieces = _with_crashpoint(reader)
                try:
                    obstore.put(
                        clients.bulk, name, pieces, use_multipart=True, chunk_size=part, max_concurrency=at_once
                    )
                except FileNotFoundError as error:
                    raise self._lost_upload(error, file) from error
                return reader.digest()

        self._sending.add(name)
        try:
            return self._move(f"send {file.key}", progress, work)
        finally:
            self._sending.discard(name)

    def _lost_upload(self, error: FileNotFoundError, file: Sending) -> TuneError:
        """The upload is gone: its last answer was lost and it is complete, or somebody gave it up. Once more, then."""
        failure = store_failures.classify(error, f"send {file.key}", self.url)
        if isinstance(failure, ObjectMissingError):
            return StoreUnreachableError(f"{self.url}: the unfinished upload of {file.key} is no longer in the store.")
        return failure

    def _fetch_one(self, file: Fetching) -> str:
        name = to_key(file.key)
        progress = Progress(self._options.stall_s)

        def work(clients: Clients) -> str:
            whole = obstore.get(clients.stream, name)
            expected = int(whole.meta["size"])
            if expected > 4 * self._options.part_bytes and self._has_ranges(clients, name):
                etag = whole.meta["e_tag"]
                del whole  # its connection, and what is on its way
                with self._transfers.budget.take((_PARTS_AT_ONCE // 2 + 1) * self._options.part_bytes):
                    size, digest = write_hashed(
                        file.path, self._ranges_of(clients, name, expected, etag), progress.moved
                    )
            else:
                with self._transfers.budget.take(min(expected, 4 * _STREAM_BYTES)):
                    pieces = whole.stream(min_chunk_size=_STREAM_BYTES)
                    size, digest = write_hashed(file.path, pieces, progress.moved)
            if size != expected:
                raise StoreUnreachableError(f"{self.url}: {file.key} broke off after {size} of {expected} bytes.")
            return digest

        return self._move(f"fetch {file.key}", progress, work)

    def _has_ranges(self, clients: Clients, name: str) -> bool:
        """Ask for one byte, once: some servers answer with everything, which must not be taken for a part."""
        if self._ranges is None:
            try:
                obstore.get_range(clients.bulk, name, start=0, end=1)
                self._ranges = True
            except BaseError as error:
                if not store_failures.lacks_ranges(error):
                    raise
                self._ranges = False
        return self._ranges

    def _ranges_of(self, clients: Clients, name: str, size: int, etag: str | None) -> Iterator[Any]:
        """Yield the parts of an object in order, while the next ones are fetched."""
        part = self._options.part_bytes
        same = {"if_match": etag} if etag else {}

        def fetch(start: int) -> list[bytes]:
            options: Any = {"range": (start, min(start + part, size)), **same}
            # In pieces, because putting a part together would take as much memory again, fresh from the kernel.
            return list(obstore.get(clients.bulk, name, options=options).stream(min_chunk_size=_STREAM_BYTES))

        coming: deque[Future[list[bytes]]] = deque()
        starts = iter(range(0, size, part))
        try:
            for start in starts:
                coming.append(self._transfers.part(partial(fetch, start)))
                if len(coming) > _PARTS_AT_ONCE // 2:
                    yield from coming.popleft().result()
            while coming:
                yield from coming.popleft().result()
        finally:
            for future in coming:
                future.cancel()

    # ------------------------------------------------------------------ attempts

    def _run(self, doing: str, work: Callable[[Clients], T]) -> T:
        """Try a small request until it works, is refused, or its time is up."""
        deadline = time.monotonic() + self._options.timeout_s
        failures, renewed = 0, False
        while True:
            clients = self._current()
            try:
                return self._attempt(doing, clients, work)
            except ObjectMissingError as missing:
                raise self._known(missing, clients) from missing.__cause__
            except StoreDeniedError:
                if renewed or not self._renew(clients):
                    raise
                renewed = True
            except StoreUnreachableError:
                failures += 1
                delay_s = REQUEST_BACKOFF.delay_s(failures)
                if time.monotonic() + delay_s > deadline:
                    raise
                time.sleep(delay_s)

    def _move(self, doing: str, progress: Progress, work: Callable[[Clients], T]) -> T:
        """Try to move a file for as long as something moves."""
        renewed = False
        while True:
            clients = self._current()
            try:
                result = self._attempt(doing, clients, work)
            except ObjectMissingError as missing:
                raise self._known(missing, clients) from missing.__cause__
            except StoreDeniedError:
                if renewed or not self._renew(clients):
                    raise
                renewed = True
            except StoreUnreachableError as failure:
                if failure.__cause__ is not None and store_failures.is_timeout(failure.__cause__):
                    self._transfers.budget.shrink()
                progress.wait_for_next_try(failure)
            else:
                self._transfers.budget.grow()
                return result

    def _attempt(self, doing: str, clients: Clients, work: Callable[[Clients], T]) -> T:
        try:
            result = work(clients)
        except TuneError:
            raise
        except (BaseError, OSError, ValueError) as error:
            raise store_failures.classify(error, doing, self.url, worked_before=self._worked) from error
        self._worked = True
        return result

    def _known(self, missing: ObjectMissingError, clients: Clients) -> ObjectMissingError | StoreDeniedError:
        """An answer may not tell a missing object from a missing bucket: as long as nothing has worked, ask."""
        if self._worked:
            return missing
        for pause_s in (0.1, 0.3, 1.0, 0.0):
            try:
                self._attempt("list", clients, lambda _: next(iter(obstore.list(clients.small, chunk_size=1)), None))
                return missing
            except ObjectMissingError as error:
                return StoreDeniedError(f"{error} Is there such a bucket?")
            except StoreUnreachableError:
                time.sleep(pause_s)
        return missing  # it has answered once, and that was its answer

    def _current(self) -> Clients:
        with self._lock:
            if self._clients is None:
                self._clients = self._build()
            return self._clients

    def _renew(self, refused: Clients) -> bool:
        """Look for credentials anew after a refusal; False if that was done a moment ago."""
        with self._lock:
            if self._clients is not refused:
                return True
            if time.monotonic() - self._built < _RENEW_EVERY_S:
                return False
            self._clients = self._build()
            return True

    def _build(self) -> Clients:
        self._built = time.monotonic()
        return Clients(self.address, self._environ, self._options.timeout_s, self._options.stall_s)


def _client(clients: Clients, data: bytes) -> Any:
    return clients.bulk if len(data) > _LARGE_PUT else clients.small


def _stat(entry: Any, version: str = ANY) -> Stat:
    return Stat(from_key(entry["path"]), int(entry["size"]), entry["last_modified"].timestamp(), version)


def _with_crashpoint(pieces: Iterable[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        yield piece
        crashpoint("store.part_sent")
