"""The address of an experiment: one URL, parsed.

Owns the spelling of addresses: schemes, the options after ``?``, and how a name is appended to one. Must never look at
an environment variable, a disk or a network.
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

import msgspec

from holdfast.config.secrets import hidden, refuse_missing_slashes, refuse_secrets
from holdfast.errors import InvalidInputError, InvalidTypeError

_SCHEMES = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "gcs": "gs",
    "az": "az",
    "azure": "az",
    "abfs": "az",
    "abfss": "az",
    "file": "file",
}
_OPTIONS = {
    "endpoint_url": "endpoint_url",
    "endpoint_override": "endpoint_url",  # pyarrow's word
    "endpoint": "endpoint_url",
    "region": "region",
    "scheme": "scheme",
    "allow_http": "allow_http",
    "path_style": "path_style",
    "anonymous": "anonymous",
    "account": "account",
    "account_name": "account",
}
LOCAL = "local"
"""How file systems of this machine call themselves; those of fsspec say "file"."""

_SWITCHES = frozenset({"allow_http", "path_style", "anonymous"})
_TRUE = frozenset({"true", "1", "yes", "on", ""})
_FALSE = frozenset({"false", "0", "no", "off"})


class Address(msgspec.Struct, frozen=True):
    """A place for objects: ``s3://bucket/prefix?region=eu-west-1``, or a local directory.

    Attributes:
        scheme: ``"s3"``, ``"gs"``, ``"az"`` or ``"file"``, whichever way the URL spelled it.
        bucket: The bucket or container; empty for a local directory.
        path: What stands before every key, without slashes around it; an absolute path for a directory of this machine.
        options: What stood behind ``?``, as (name, value) in order of names.
    """

    scheme: str
    bucket: str
    path: str
    options: tuple[tuple[str, str], ...] = ()

    @property
    def is_local(self) -> bool:
        """Whether this is a directory of this machine."""
        return self.scheme == "file"

    @property
    def url(self) -> str:
        """The address without its options, for messages."""
        if self.is_local:
            return self.path
        return f"{self.scheme}://{self.bucket}/{self.path.lstrip('/')}".rstrip("/")

    @property
    def endpoint(self) -> str:
        """The server that was asked for, ``http://host:port``, or "" for the cloud's own."""
        value = self.option("endpoint_url")
        if not value or "://" in value:
            return value.rstrip("/")
        return f"{self.option('scheme') or 'https'}://{value}".rstrip("/")

    @property
    def allow_http(self) -> bool:
        """Whether bytes may travel without encryption: said outright, or by an address that begins with http."""
        return self.switch("allow_http") or self.option("scheme") == "http" or self.endpoint.startswith("http://")

    def option(self, name: str) -> str:
        """Return an option's value, or ""."""
        return dict(self.options).get(name, "")

    def switch(self, name: str) -> bool:
        """Return an option that is on or off; off if it was not given."""
        return self.option(name) == "true"

    def __truediv__(self, name: str) -> Address:
        parts = [part for part in name.split("/") if part]
        if ".." in parts or "." in parts:
            raise InvalidInputError(f"{name!r} cannot be a name below {self.url}: '.' and '..' are not allowed.")
        joined = "/".join([self.path.rstrip("/"), *parts])
        return msgspec.structs.replace(self, path=joined if self.path.startswith("/") else joined.strip("/"))

    def __str__(self) -> str:
        query = "&".join(f"{name}={quote(value, safe=':/')}" for name, value in self.options)
        return f"{self.url}?{query}" if query else self.url


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Tell whether a storage path is a URL of something else than a local directory."""
    scheme, found, _ = os.fspath(path).partition("://")
    return bool(found) and scheme.lower() != "file"


def check_filesystem(filesystem: Any) -> None:
    """Refuse what is neither a pyarrow nor an fsspec file system, by what it can do: neither need be importable here.

    Raises:
        InvalidInputError: It is something else.
    """
    is_arrow = hasattr(filesystem, "open_input_stream")
    is_fsspec = hasattr(filesystem, "protocol") and hasattr(filesystem, "ls")
    if not (is_arrow or is_fsspec):
        raise InvalidInputError(
            f"storage_filesystem={filesystem!r} is neither a pyarrow.fs.FileSystem nor an fsspec file system. For S3, "
            f"Google Cloud Storage and Azure none is needed: storage_path='s3://bucket/path'."
        )


def within(filesystem: Any, path: str) -> Address:
    """A place in a file system of the user's.

    Raises:
        InvalidInputError: It is no file system.
    """
    check_filesystem(filesystem)
    # The agent that uses it has another working directory than the user's script.
    inside = os.path.abspath(path) if type_of(filesystem) == LOCAL else path.strip("/")
    return Address(scheme="fs", bucket="", path=inside)


def unwrapped(path: str, filesystem: Any) -> tuple[str, Any]:
    """A path in a file system; its URI and None if that is a store of ours that was shown as one of pyarrow's."""
    uri_of = getattr(getattr(filesystem, "handler", None), "uri_of", None)
    return (path, filesystem) if uri_of is None else (uri_of(path), None)


def type_of(filesystem: Any) -> str:
    """What kind of file system an object stands for."""
    kind = getattr(filesystem, "type_name", None) or getattr(filesystem, "protocol", None)
    if isinstance(kind, tuple | list):
        kind = kind[0]
    return LOCAL if kind == "file" else str(kind or type(filesystem).__name__)


def parse(path: str | os.PathLike[str]) -> Address:
    """Take a storage path or URL apart.

    Example:
        >>> str(parse("s3://bucket/runs/?region=eu-west-1") / "mnist")
        's3://bucket/runs/mnist?region=eu-west-1'

    Raises:
        InvalidInputError: If the scheme or an option is not known, or the bucket is missing.
    """
    try:
        text = os.fspath(path)
    except TypeError:
        raise InvalidTypeError(f"A storage path is a string or a path, not {type(path).__name__}.") from None
    if "\0" in text:
        raise InvalidInputError(f"The storage path {hidden(text)!r} contains a NUL character.")
    refuse_missing_slashes("storage_path", text)
    scheme, found, rest = text.partition("://")
    if not found:
        return Address(scheme="file", bucket="", path=os.path.abspath(os.path.expanduser(text)))
    refuse_secrets("storage_path", text)
    known = _SCHEMES.get(scheme.lower())
    if known is None:
        raise InvalidInputError(
            f"storage_path={hidden(text)!r}: the scheme {scheme + '://'!r} is not known. Known are "
            f"{', '.join(f'{name}://' for name in _SCHEMES)} and plain paths. For anything else pass a pyarrow or "
            f"fsspec file system: RunConfig(storage_filesystem=..., storage_path='path/inside/it')."
        )
    if known == "file":
        return Address(scheme="file", bucket="", path=_local_path(text, rest))
    place, _, query = rest.partition("?")
    bucket, _, prefix = place.partition("/")
    options = _parse_options(text, query)
    if "@" in bucket:
        bucket = _split_account(bucket, options)
    if not bucket:
        raise InvalidInputError(f"storage_path={hidden(text)!r} names no bucket. Expected {known}://BUCKET/some/path.")
    address = Address(scheme=known, bucket=bucket, path="", options=tuple(sorted(options.items())))
    return address / prefix


def join_address(base: str, relative: str) -> str:
    """Return the address of something below ``base``: a path, a URI with or without a query, or a syncer's own kind."""
    path, mark, query = base.partition("?") if "://" in base else (base, "", "")
    return f"{path.rstrip('/')}/{relative}{mark}{query}"


def split_address(address: str) -> tuple[str, str]:
    """Take the last name off an address: what `join_address` would make the address of."""
    path, mark, query = address.partition("?") if "://" in address else (address, "", "")
    base, _, name = path.rstrip("/").rpartition("/")
    return f"{base}{mark}{query}", name


def _local_path(text: str, rest: str) -> str:
    host, slash, path = rest.partition("/")
    if host not in ("", "localhost") or not slash:
        raise InvalidInputError(
            f"storage_path={hidden(text)!r} names a host. A local URL has three slashes: file:///some/path."
        )
    return os.path.abspath(unquote(slash + path))


def _parse_options(text: str, query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        known = _OPTIONS.get(name.lower())
        if known is None:
            raise InvalidInputError(
                f"storage_path={hidden(text)!r}: the option {name!r} is not known. Known are {', '.join(_OPTIONS)}. "
                f"Credentials are taken from the environment, never from a URL."
            )
        options[known] = _switch(text, name, value) if known in _SWITCHES else value
    if options.get("scheme", "http") not in ("http", "https"):
        raise InvalidInputError(
            f"storage_path={hidden(text)!r}: scheme={options['scheme']!r} is neither 'http' nor 'https'."
        )
    return options


def _switch(text: str, name: str, value: str) -> str:
    if value.lower() in _TRUE:
        return "true"
    if value.lower() in _FALSE:
        return "false"
    raise InvalidInputError(f"storage_path={hidden(text)!r}: {name}={value!r} is neither 'true' nor 'false'.")


def _split_account(bucket: str, options: dict[str, str]) -> str:
    """``abfss://container@account.dfs.core.windows.net/path`` names its account before the path."""
    container, _, host = bucket.rpartition("@")
    options.setdefault("account", host.partition(".")[0])
    return container
