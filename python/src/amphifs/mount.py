"""Mounts of this machine: where they are, what they count, their tunables.

Owns: the kernel's table of mounts and the control attributes of a mount (docs/OPERATIONS.md, "Control attributes").
Only root and the user who mounted may use the attributes; everybody may ask where mounts are.
"""

from __future__ import annotations

import errno
import json
import os
import re
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Union

from amphifs.errors import HintRefused, NotOnAmphi

StrPath = Union[str, "os.PathLike[str]"]

#: Type of an AmphiFS in the kernel's table of mounts.
KIND = "fuse.amphi"


@dataclass(frozen=True)
class Mount:
    """An AmphiFS that is mounted on this machine."""

    #: Mount point.
    path: str
    #: What is mounted: addresses of servers, or the data folder of ``amphi up``.
    source: str
    #: ``st_dev`` of its files.
    device: int

    @staticmethod
    def of(path: StrPath) -> Mount:
        """The mount on which ``path``, or its nearest parent that exists, lies.

        Raises:
            NotOnAmphi: there is none; the text names the mounts of this machine.
        """
        found = find(path)
        if found is None:
            raise NotOnAmphi(f"{os.fspath(path)} is not on an AmphiFS mount; {_what_there_is()}")
        return found

    def stats(self) -> Dict[str, Any]:
        """The counters of ``amphi stats --json``."""
        found: Dict[str, Any] = json.loads(self._read("stats.json"))
        return found

    def status(self) -> Dict[str, Any]:
        """Servers, targets and mounts of the cluster, as ``amphi status --json`` shows them."""
        found: Dict[str, Any] = json.loads(self._read("status"))
        return found

    def tunables(self, pattern: str = "*") -> Dict[str, str]:
        """Tunables and their values; ``*`` and ``?`` in the pattern stand for any text and any character."""
        lines = self._read("tunables" if pattern == "*" else f"tunables.{pattern}").splitlines()
        pairs = (line.split(" #", 1)[0].split("=", 1) for line in lines)
        return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}

    def set(self, pattern: str, value: object) -> None:
        """Sets every tunable that the pattern names.

        Raises:
            HintRefused: no such tunable, or no value for it; the text is the mount's. Nothing was changed.
        """
        self._write("set", f"{pattern}={value}")

    def sync(self) -> None:
        """Makes everything that was written on this mount stable; sync(1) does not reach it."""
        self._write("sync", "all")

    def _read(self, name: str) -> str:
        try:
            return os.getxattr(self.path, f"user.amphi.{name}").decode()
        except PermissionError as e:
            raise PermissionError(
                e.errno, f"only root and the user who mounted {self.path} may read user.amphi.{name}", self.path
            ) from e
        except OSError as e:
            if e.errno in (errno.ENODATA, errno.EINVAL):
                raise HintRefused(f"{self.path}: {_reason(self.path, e)}") from e
            raise

    def _write(self, name: str, text: str) -> None:
        try:
            os.setxattr(self.path, f"user.amphi.{name}", text.encode())
        except PermissionError as e:
            raise PermissionError(
                e.errno, f"only root and the user who mounted {self.path} may write user.amphi.{name}", self.path
            ) from e
        except OSError as e:
            if e.errno == errno.EINVAL:
                raise HintRefused(f"{self.path}: {_reason(self.path, e)}") from e
            raise


def _reason(path: StrPath, otherwise: OSError) -> str:
    """Why the mount refused the last change, in its own words, or the errno where nobody may ask."""
    try:
        text = os.getxattr(path, "user.amphi.error").decode().strip()
    except OSError:
        text = ""
    return text or str(otherwise.strerror)


def _unescaped(field: str) -> str:
    """The kernel writes blanks and backslashes of mount points as octal numbers."""
    raw = re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m.group(1), 8)]), os.fsencode(field))
    return os.fsdecode(raw)


def _parse(table: str) -> List[Mount]:
    """The AmphiFS mounts of a text with the form of ``/proc/self/mountinfo``."""
    found = []
    for line in table.splitlines():
        left, dash, right = line.partition(" - ")
        fields, rest = left.split(" "), right.split(" ")
        if not dash or len(fields) < 5 or len(rest) < 2 or rest[0] != KIND:
            continue
        major, minor = (int(n) for n in fields[2].split(":"))
        found.append(Mount(_unescaped(fields[4]), _unescaped(rest[1]), os.makedev(major, minor)))
    return found


def mounts() -> List[Mount]:
    """The AmphiFS mounts that this process can see, in the order in which they were mounted."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
        return _parse(table.read())


def find(path: StrPath) -> Optional[Mount]:
    """The mount on which ``path``, or its nearest parent that exists, lies; None if it is not on an AmphiFS."""
    whole = os.path.realpath(os.fspath(path))
    # Names that do not exist yet belong to the file system of their parent.
    while not os.path.lexists(whole) and whole != "/":
        whole = os.path.dirname(whole)
    device = os.stat(whole).st_dev
    inside = [m for m in mounts() if m.device == device]
    # A file system may be bound to several places: the one above the path is meant, the topmost one last.
    above = [m for m in inside if whole == m.path or whole.startswith(m.path.rstrip("/") + "/")]
    return max(above or inside, key=lambda m: len(m.path), default=None)


def _what_there_is() -> str:
    there = ", ".join(m.path for m in mounts())
    if not there:
        return "this machine has none: mount one (amphi mount --cluster ADDR DIR, amphi up --data DIR --mount DIR)"
    return f"those of this machine are {there}"
