"""Which file systems have other clients, and how a look at one of those is taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.storage import mounts
from holdfast.storage.local import REAL_DISK, look_anew
from holdfast.storage.mounts import SharedDisk, disk_of, file_system_of

TABLE = r"""22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:40 / /data rw shared:7 master:2 - nfs4 host:/export rw,vers=4.2
31 30 0:41 / /data/scratch rw - tmpfs tmpfs rw
32 22 0:42 / /with\040blank rw - fuse.sshfs host: rw
33 22 0:43 / /twice rw - xfs /dev/vdb rw
34 33 0:44 / /twice rw - cifs //host/share rw
"""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = tmp_path / "mountinfo"
    written.write_text(TABLE)
    monkeypatch.setattr(mounts, "_TABLE", str(written))


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("path", "kind", "shared"),
    [
        ("/home/x", "ext4", False),
        ("/data", "nfs4", True),
        ("/data/exp/not/there", "nfs4", True),
        ("/database", "ext4", False),
        ("/data/scratch/exp", "tmpfs", False),
        ("/with blank/exp", "fuse.sshfs", True),
        ("/twice/exp", "cifs", True),
    ],
)
def test_a_path_belongs_to_the_innermost_and_newest_mount(path: str, kind: str, shared: bool) -> None:
    assert file_system_of(path) == kind
    assert isinstance(disk_of(path), SharedDisk) == shared


def test_what_is_not_known_may_have_other_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "_TABLE", str(tmp_path / "missing"))
    assert file_system_of("/") == ""
    assert isinstance(disk_of("/"), SharedDisk)


def test_a_look_for_a_file_on_a_shared_disk_asks_for_its_directory_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(mounts, "look_anew", lambda path: (asked.append(path), look_anew(path)))
    disk = SharedDisk()
    assert not disk.exists(str(tmp_path / "a"))
    assert not disk.exists(str(tmp_path / "missing" / "a"))
    assert disk.exists(str(tmp_path))
    assert asked == [str(tmp_path), str(tmp_path / "missing"), str(tmp_path.parent)]


def test_this_machines_own_disk_is_not_asked_twice() -> None:
    assert disk_of("/dev/shm") is REAL_DISK  # a tmpfs on every Linux
