"""Which cluster this process has joined."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from holdfast.engines.cluster.joined import is_joined_here, is_joined_to


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    context = SimpleNamespace(gcs_address="127.0.0.1:6379")
    ray = SimpleNamespace(is_initialized=lambda: True, get_runtime_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray", ray)
    return ray


@pytest.mark.parametrize("address", [None, "", "auto", "127.0.0.1:6379", "localhost:6379"])
def test_the_same_cluster_has_many_names(joined: SimpleNamespace, address: str | None) -> None:
    assert is_joined_to(address)


@pytest.mark.parametrize("address", ["127.0.0.1:6380", "192.0.2.1:6379", "no.such.host.invalid:6379"])
def test_another_cluster_is_not_taken_for_the_one_that_was_joined(joined: SimpleNamespace, address: str) -> None:
    assert is_joined_here()
    assert not is_joined_to(address)


def test_who_has_joined_none_has_joined_none(joined: SimpleNamespace) -> None:
    joined.is_initialized = lambda: False
    assert not is_joined_to(None)
