"""``renameat2``, which Python lacks: a rename that replaces nothing, and one that exchanges two directories."""

from __future__ import annotations

import ctypes
import errno
import os

from amphifs.errors import CheckpointError

_AT_FDCWD = -100
_NOREPLACE = 1
_EXCHANGE = 2
_LIBC = ctypes.CDLL(None, use_errno=True)


def _rename(source: str, target: str, flags: int) -> None:
    call = getattr(_LIBC, "renameat2", None)
    if call is None:
        raise CheckpointError("the C library has no renameat2; it needs glibc 2.28, or musl 1.2.5")
    if call(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), ctypes.c_uint(flags)) != 0:
        error = ctypes.get_errno()
        if error == errno.EINVAL:
            raise CheckpointError(f"the file system of {target} cannot rename so; write to an AmphiFS, ext4 or xfs")
        raise OSError(error, os.strerror(error), source, None, target)


def into_place(source: str, target: str) -> None:
    """Renames, if nothing has the name of the target. Raises FileExistsError otherwise."""
    _rename(source, target, _NOREPLACE)


def exchange(one: str, other: str) -> None:
    """Exchanges two names in one step; both have to be there."""
    _rename(one, other, _EXCHANGE)


def sync_directory(path: str) -> None:
    """Makes the names in a directory stable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
