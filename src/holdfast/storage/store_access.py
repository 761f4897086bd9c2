"""What another machine needs to use the store of an experiment: the address, the credentials, and a proof.

The driver grants it, and a node opens it with a storage agent of its own. A node may reach another server at the same
address ("localhost"), so it reads one object first and compares that with what the driver has read.

Owns which variables of the environment travel. Must never write one of them to a file, a log or a message.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping

import msgspec

from holdfast.errors import ObjectMissingError, StorageError
from holdfast.storage.address import Address
from holdfast.storage.digest import digest_of
from holdfast.storage.options import StoreOptions
from holdfast.storage.store import Store

PROBE_S = 10.0
"""A store that does not answer a machine within this time cannot be used from there."""

# They name a file or a server of the driver's own machine; a node has its own, or none.
_OF_ONE_MACHINE = (
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_CONTAINER_",
    "AWS_CA_BUNDLE",
    "AZURE_FEDERATED_TOKEN_FILE",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "IDENTITY_",
    "MSI_",
)
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CONNECTION_STRING")


class StoreAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Leave to use a store.

    Attributes:
        address: Its URL, which has no secrets.
        environ: Variables from which the clouds' clients take endpoints and credentials.
        witness: The key of an object, and the xxh3-128 of its content, by which the store is known.
    """

    address: str
    environ: dict[str, str]
    witness: tuple[str, str]

    def __repr__(self) -> str:
        return f"StoreAccess(address={self.address!r})"  # the rest is nobody's business

    __str__ = __repr__


def make_access(address: Address, environ: Mapping[str, str], witness: tuple[str, bytes]) -> StoreAccess:
    """What the driver lets its nodes use.

    Args:
        address: The store.
        environ: The driver's environment.
        witness: The key of an object of the store, and its content.
    """
    from holdfast.storage.agent_client import credentials

    said = {name: value for name, value in credentials(environ).items() if not name.startswith(_OF_ONE_MACHINE)}
    return StoreAccess(address=str(address), environ=said, witness=(witness[0], digest_of(witness[1])))


def adopt(access: StoreAccess, environ: MutableMapping[str, str]) -> None:
    """Let this process's storage agent, which is not running yet, use the driver's credentials.

    Where the driver has keys of a cloud, the variables of this machine for that cloud go: half of one pair of keys and
    half of another open nothing. Otherwise this machine's own credentials stay.
    """
    clouds = {name.partition("_")[0] + "_" for name in access.environ if any(word in name for word in _SECRET)}
    for name in [name for name in environ if name.startswith(tuple(clouds))] if clouds else []:
        del environ[name]
    environ.update(access.environ)


def open_access(access: StoreAccess) -> Store:
    """Connect to the store, from a machine that was granted this.

    Raises:
        InvalidInputError: The package for object stores is not installed here.
        StorageError: The store refuses or does not answer, or it is another one.
    """
    from holdfast.storage.agent_client import connect

    adopt(access, os.environ)
    probe = connect(access.address, options=StoreOptions(timeout_s=PROBE_S))
    store = connect(access.address)
    try:
        key, digest = access.witness
        try:
            found = digest_of(probe.get(key))
        except ObjectMissingError:
            found = ""
        if found != digest:
            raise StorageError(f"what {probe.url} leads to from here is not the store of this experiment")
    except BaseException:
        store.close()
        raise
    finally:
        probe.close()
    return store
