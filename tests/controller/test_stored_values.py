from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from holdfast.controller.spec import store_value
from holdfast.errors import StorageError, StorageFullError
from holdfast.storage import local
from holdfast.storage.layout import Root


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("step", ["write", "fsync", "fsync_dir"])
def test_a_value_for_which_there_is_no_space_can_be_stored_later(
    tmp_path: Path, code: int, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Root(tmp_path)
    root.objects.mkdir(parents=True)

    def fail(*args: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(local if step == "fsync_dir" else os, step, fail)
        with pytest.raises(StorageFullError, match="'lr' of the search space") as caught:
            store_value(root, {1, 2}, "lr")
    assert caught.value.errno == code
    assert list(root.objects.iterdir()) == []
    key = store_value(root, {1, 2}, "lr")
    assert [path.name for path in root.objects.iterdir()] == [f"{key}.pkl"]


def test_a_broken_disk_is_not_taken_for_a_full_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Root(tmp_path)
    root.objects.mkdir(parents=True)

    def fail(*args: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output") as caught:
        store_value(root, {1, 2}, "lr")
    assert not isinstance(caught.value, StorageError)
