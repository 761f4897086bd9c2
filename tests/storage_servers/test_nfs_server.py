"""The NFS machine: the kernel's server and two clients."""

from __future__ import annotations

import os
import sys

import pytest

from servers.nfs import NFS

pytestmark = pytest.mark.slow

SEMANTICS = """
import errno, fcntl, os, sys
a, b = sys.argv[1:]
kinds = {line.split()[1]: line.split()[2] for line in open("/proc/mounts")}
assert kinds[a] == kinds[b] == "nfs4", kinds
descriptor = os.open(f"{a}/exclusive", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
os.write(descriptor, b"content")
os.fsync(descriptor)
os.close(descriptor)
try:
    os.open(f"{b}/exclusive", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
except FileExistsError:
    pass
else:
    raise AssertionError("O_EXCL created the file twice")
assert open(f"{b}/exclusive").read() == "content"
os.link(f"{a}/exclusive", f"{a}/linked")
os.makedirs(f"{a}/full/x")
os.mkdir(f"{a}/other")
try:
    os.rename(f"{a}/other", f"{a}/full")
except OSError as error:
    assert error.errno in (errno.ENOTEMPTY, errno.EEXIST), error
else:
    raise AssertionError("a rename replaced a full directory")
print("as NFS should")
"""


def test_two_clients_see_one_real_nfs(nfs: NFS) -> None:
    done = nfs.run([sys.executable, "-c", SEMANTICS, *nfs.mounts])
    assert (done.returncode, done.stdout) == (0, "as NFS should\n")


NEWS = """
import os, sys
from holdfast.storage.local import look_anew
a, b = sys.argv[1:]
os.mkdir(f"{a}/news")
assert not os.path.exists(f"{b}/news/x") and not os.path.exists(f"{b}/news/x")
os.mkdir(f"{a}/news/x")
look_anew(f"{b}/news")
assert os.path.isdir(f"{b}/news/x"), "a missing name is still believed to be missing"
print("seen")
"""


def test_a_name_that_another_client_has_made_is_seen_when_the_directory_is_looked_at_anew(nfs: NFS) -> None:
    path = os.pathsep.join(sys.path)
    done = nfs.run(["/usr/bin/env", f"PYTHONPATH={path}", sys.executable, "-c", NEWS, *nfs.mounts])
    assert (done.returncode, done.stdout) == (0, "seen\n"), done.stdout


def test_files_outlive_a_restart_of_the_nfs_server(nfs: NFS) -> None:
    path = f"{nfs.mounts[0]}/kept"
    write = f"import os; f = open({path!r}, 'w'); f.write('kept'); f.flush(); os.fsync(f.fileno())"
    assert nfs.run([sys.executable, "-c", write]).returncode == 0
    nfs.restart_server()
    done = nfs.run([sys.executable, "-c", f"print(open({nfs.mounts[1]!r} + '/kept').read())"])
    assert (done.returncode, done.stdout) == (0, "kept\n")
