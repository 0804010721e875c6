"""The device controls of open files (docs/IOCTL.md).

Owns: the numbers and the form of the arguments. Does not own: the files (:mod:`amphifs.file`).
"""

from __future__ import annotations

import enum
import errno
import fcntl
import struct
from typing import List, Sequence, Tuple, Union

from amphifs.errors import HintRefused, NotOnAmphi

SET_MODE = 0x40044101
GET_MODE = 0x80044102
NO_EXPAND = 0x40044103
LOCK_AHEAD = 0x40184104
GROUP_LOCK = 0x40104105
GROUP_UNLOCK = 0x40084106
LOCK_AHEAD_LIST = 0xC3084107
GROUP_WANTED = 0x80044108
ADVISE = 0x40184109

#: Ranges of one ``LOCK_AHEAD_LIST``.
RANGES_MAX = 32


class Mode(enum.IntEnum):
    """Which way the requests of an open file go."""

    AUTO = 0
    BUFFERED = 1
    DIRECT = 2


class Advice(enum.IntEnum):
    """How an open file will be read; ``RANDOM``, ``SEQUENTIAL`` and ``ONCE`` count for the whole file."""

    NORMAL = 0
    RANDOM = 1
    SEQUENTIAL = 2
    WILL_NEED = 3
    DO_NOT_NEED = 4
    ONCE = 5


class Ahead(enum.IntEnum):
    """Answer to a lock that is asked for ahead of its use."""

    #: Asked for; with ``wait`` it means that the lock was refused.
    ASKED = 0
    #: The mount holds just this lock.
    SAME = 1
    #: The mount holds other locks that cover the bytes.
    DIFFERENT = 2


def _control(fd: int, command: int, argument: Union[bytes, bytearray]) -> Tuple[int, bytes]:
    """One control; its result and the argument as it came back."""
    # A mutable buffer makes fcntl return the call's own result, which some of the controls use.
    buffer = bytearray(argument)
    try:
        result = fcntl.ioctl(fd, command, buffer, True)
    except OSError as e:
        if e.errno == errno.ENOTTY:
            raise NotOnAmphi(
                f"open file {fd} is no regular file of an AmphiFS mount, so the hint has nobody to go to; open the "
                "file by its path on the mount"
            ) from e
        if e.errno == errno.EINVAL:
            raise HintRefused(
                f"the mount refused the hint {command:#010x}: a range below 0, a group of 0 or one that the file is in "
                "already, or none that it could leave; nothing was changed"
            ) from e
        raise
    return result, bytes(buffer)


def set_mode(fd: int, mode: Mode) -> None:
    """How requests of this open file go from now on."""
    _control(fd, SET_MODE, struct.pack("=I", Mode(mode)))


def get_mode(fd: int) -> Mode:
    """How requests of this open file go."""
    return Mode(struct.unpack("=I", _control(fd, GET_MODE, bytes(4))[1])[0])


def no_expand(fd: int, on: bool = True) -> None:
    """Locks are granted as asked and not wider: for strided writers that write each place once."""
    _control(fd, NO_EXPAND, struct.pack("=I", bool(on)))


def lock_ahead(fd: int, offset: int, length: int, write: bool = True, wait: bool = False) -> Ahead:
    """Asks for a lock of just these bytes before they are used. Nobody is asked to give anything back.

    Raises:
        OSError: EBADF, the file is not open for the access; EBUSY, too many such questions are under way.
    """
    packed = struct.pack("=QQII", *_range(offset, length), bool(write), bool(wait))
    return Ahead(_control(fd, LOCK_AHEAD, packed)[0])


def lock_ahead_list(fd: int, ranges: Sequence[Tuple[int, int]], write: bool = True) -> List[Union[Ahead, int]]:
    """:func:`lock_ahead` for many ranges of ``(offset, length)``, 32 a call.

    Returns:
        For each range its answer, or minus the errno.
    """
    answers: List[Union[Ahead, int]] = []
    for at in range(0, len(ranges), RANGES_MAX):
        part = ranges[at : at + RANGES_MAX]
        packed = struct.pack("=II", len(part), 0)
        packed += b"".join(struct.pack("=QQIi", *_range(*r), bool(write), 0) for r in part)
        _, back = _control(fd, LOCK_AHEAD_LIST, packed.ljust(776, b"\0"))
        results = (struct.unpack_from("=i", back, 8 + 24 * i + 20)[0] for i in range(len(part)))
        answers.extend(Ahead(r) if r >= 0 else r for r in results)
    return answers


def group_lock(fd: int, group: int, wait: bool = True) -> None:
    """The open file joins a group: as long as a group has a file, its members alone read and write it.

    Raises:
        BlockingIOError: not to wait, and others have the file.
        OSError: EBADF, the file is not open for writing; EINTR, a signal came while waiting.
    """
    if not 0 < group < 1 << 64:
        raise HintRefused(f"{group} is no group: give a number from 1 to 2**64 - 1")
    _control(fd, GROUP_LOCK, struct.pack("=QII", group, not wait, 0))


def group_unlock(fd: int, group: int) -> None:
    """The open file leaves its group. Everything is written back; a failure of that is raised as ``OSError``."""
    _control(fd, GROUP_UNLOCK, struct.pack("=Q", group))


def group_wanted(fd: int) -> bool:
    """Whether anybody waits for the end of the group."""
    return bool(struct.unpack("=I", _control(fd, GROUP_WANTED, bytes(4))[1])[0])


def advise(fd: int, advice: Advice, offset: int = 0, length: int = 0) -> None:
    """Says how the file will be read; a length of 0 means to its end."""
    _control(fd, ADVISE, struct.pack("=QQII", *_range(offset, length), Advice(advice), 0))


def _range(offset: int, length: int) -> Tuple[int, int]:
    if offset < 0 or length < 0 or offset + length >= 1 << 63:
        raise HintRefused(f"bytes {offset} + {length}: a range begins at 0 or behind, and its length is not negative")
    return offset, length
