"""Files on a mount whose reads and writes use the caller's memory.

Owns: opening, whole transfers at offsets, hints of an open file. A call moves everything or raises: short transfers of
the kernel go on where they ended. Offsets are explicit, so threads may share a file. The interpreter's lock is free
while the kernel works.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Any, Iterator, List, Optional, Sequence, Tuple, Type, Union

from amphifs import hints
from amphifs.buffers import PAGE, aligned, view
from amphifs.errors import AmphiError, NotOnAmphi
from amphifs.hints import Advice, Ahead, Mode
from amphifs.mount import Mount, StrPath

#: Buffers of one ``preadv`` or ``pwritev``.
VECTORS_MAX = 1024

_FLAGS = {
    "rb": os.O_RDONLY,
    "r+b": os.O_RDWR,
    "wb": os.O_RDWR | os.O_CREAT | os.O_TRUNC,
    "xb": os.O_RDWR | os.O_CREAT | os.O_EXCL,
}


class File:
    """An open file.

    ``mode`` is ``rb``, ``r+b``, ``wb`` or ``xb``. Nothing is buffered here: a write that has returned is seen by every
    mount, and is safe from a loss of power once :meth:`sync` has returned.
    """

    def __init__(self, path: StrPath, mode: str = "rb", *, direct: bool = False, permissions: int = 0o666) -> None:
        """Opens the file; ``direct`` opens it with O_DIRECT, for which memory and offsets have to be of whole pages.

        Raises:
            NotOnAmphi: the path does not lie on a mount of AmphiFS. The file was neither made nor cut.
            AmphiError: no such mode.
        """
        name = mode if mode in _FLAGS else mode + "b"
        if name not in _FLAGS:
            raise AmphiError(f"mode {mode!r}: give one of {', '.join(_FLAGS)}")
        Mount.of(path)
        self.path = os.fspath(path)
        self.mode = name
        self.direct = direct
        self._fd = os.open(self.path, _FLAGS[name] | os.O_CLOEXEC | (os.O_DIRECT if direct else 0), permissions)

    # Reading

    def readinto(self, buffer: Any, offset: int = 0) -> int:
        """Reads from ``offset`` into the whole buffer, without a copy in this process.

        Returns:
            How many bytes came: fewer than the buffer has only at the end of the file.
        """
        return self.readinto_many([buffer], offset)

    def readinto_many(self, buffers: Sequence[Any], offset: int = 0) -> int:
        """The same into several buffers, one behind the other (``preadv``)."""
        return self._transfer([view(b, writable=True) for b in buffers], offset, os.preadv)

    def read(self, size: int, offset: int = 0) -> memoryview:
        """Reads up to ``size`` bytes into fresh memory that begins on a page."""
        # Direct reads want whole pages, also of the last part of a file.
        room = -(-size // PAGE) * PAGE if self.direct else size
        memory = aligned(room)
        return memory[: min(self.readinto(memory, offset), size)]

    # Writing

    def write(self, buffer: Any, offset: int = 0) -> int:
        """Writes the whole buffer at ``offset``, without a copy in this process.

        Returns:
            The bytes of the buffer.
        Raises:
            OSError: what was written before the error stays.
        """
        return self.write_many([buffer], offset)

    def write_many(self, buffers: Sequence[Any], offset: int = 0) -> int:
        """The same from several buffers, one behind the other (``pwritev``)."""
        views = [view(b) for b in buffers]
        done = self._transfer(views, offset, os.pwritev)
        left = _behind([v for v in views if v.nbytes], done)
        if left:
            # The kernel has written a part that ends within a page (a limit, a full disk). Only a descriptor without
            # O_DIRECT can go on there, and learns why.
            done += self._write_on(left, offset + done)
        return done

    def _write_on(self, left: List[memoryview], offset: int) -> int:
        fd = os.open(f"/proc/self/fd/{self._fd}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            done = 0
            while left:
                moved = os.pwritev(fd, left[:VECTORS_MAX], offset + done)
                if moved == 0:
                    raise OSError(errno.EIO, f"nothing more can be written behind byte {offset + done}", str(self.path))
                done += moved
                left = _behind(left, moved)
            return done
        finally:
            os.close(fd)

    def _transfer(self, views: List[memoryview], offset: int, call: Any) -> int:
        if offset < 0:
            raise AmphiError(f"offset {offset}: give one of at least 0")
        if self.direct:
            self._check_direct(views, offset)
        done = 0
        left = [v for v in views if v.nbytes]
        while left:
            moved = call(self._fd, left[:VECTORS_MAX], offset + done)
            if moved == 0:
                break
            done += moved
            left = _behind(left, moved)
            # The end of a file that is no whole page; what is left could not be asked for.
            if self.direct and moved % PAGE:
                break
        return done

    def _check_direct(self, views: List[memoryview], offset: int) -> None:
        if offset % PAGE or any(v.nbytes % PAGE for v in views):
            raise AmphiError(
                f"{self.path} is open with direct=True: offset {offset} and lengths {[v.nbytes for v in views]} have "
                f"to be multiples of {PAGE}; open it without, the mount goes direct by itself where that is faster"
            )

    # Size and safety

    @property
    def size(self) -> int:
        """The size of the file, bytes."""
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        """Cuts or extends the file."""
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        """Returns when everything that was written to the file is safe from a loss of power.

        Raises:
            OSError: something is lost. It stays so for this file until it is opened again.
        """
        os.fsync(self._fd)

    # Hints; docs/IOCTL.md says what each does.

    @property
    def io_mode(self) -> Mode:
        """Which way the requests of this open file go."""
        return hints.get_mode(self._fd)

    @io_mode.setter
    def io_mode(self, mode: Mode) -> None:
        hints.set_mode(self._fd, mode)

    def no_expand(self, on: bool = True) -> None:
        """:func:`amphifs.hints.no_expand`."""
        hints.no_expand(self._fd, on)

    def lock_ahead(self, offset: int, length: int, write: bool = True, wait: bool = False) -> Ahead:
        """:func:`amphifs.hints.lock_ahead`."""
        return hints.lock_ahead(self._fd, offset, length, write, wait)

    def lock_ahead_list(self, ranges: Sequence[Tuple[int, int]], write: bool = True) -> List[Union[Ahead, int]]:
        """:func:`amphifs.hints.lock_ahead_list`."""
        return hints.lock_ahead_list(self._fd, ranges, write)

    def advise(self, advice: Advice, offset: int = 0, length: int = 0) -> None:
        """:func:`amphifs.hints.advise`."""
        hints.advise(self._fd, advice, offset, length)

    @contextlib.contextmanager
    def group(self, number: int, wait: bool = True) -> Iterator[File]:
        """A member of a group as long as the block runs; everything is written back at its end."""
        hints.group_lock(self._fd, number, wait)
        try:
            yield self
        finally:
            hints.group_unlock(self._fd, number)

    # The descriptor

    def fileno(self) -> int:
        """The descriptor, which stays this file's."""
        if self._fd < 0:
            raise ValueError(f"{self.path} is closed")
        return self._fd

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._fd < 0

    def close(self) -> None:
        """Closes the file; a second time nothing happens.

        Raises:
            OSError: bytes that were written cannot be kept (no space, a failed disk).
        """
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> File:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: object, trace: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            with contextlib.suppress(OSError):
                self.close()

    def __repr__(self) -> str:
        return f"<amphifs.File {self.path!r} {self.mode}{' closed' if self.closed else ''}>"


def _behind(views: List[memoryview], moved: int) -> List[memoryview]:
    """What is left of the views when so many bytes have moved."""
    for at, one in enumerate(views):
        if moved < one.nbytes:
            return [one[moved:], *views[at + 1 :]]
        moved -= one.nbytes
    return []


def open(path: StrPath, mode: str = "rb", *, direct: bool = False, permissions: int = 0o666) -> File:
    """Opens a file on a mount; see :class:`File`."""
    return File(path, mode, direct=direct, permissions=permissions)


__all__ = ["Advice", "Ahead", "File", "Mode", "NotOnAmphi", "open"]
