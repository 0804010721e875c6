"""A ``pathlib`` path on a mount, with the attributes that AmphiFS keeps for files and directories.

Owns: layout, mode, kernel cache and checksums by name (``amphi layout``). Paths are made without looking at the disk;
only the members below need a mount.
"""

from __future__ import annotations

import errno
import json
import os
import pathlib
from typing import Dict

from amphifs.errors import HintRefused, NotOnAmphi
from amphifs.file import File
from amphifs.mount import Mount, _reason, find


class AmphiPath(pathlib.PosixPath):
    """A path whose file or directory lies on an AmphiFS mount."""

    @property
    def amphi_mount(self) -> Mount:
        """The mount. Raises :class:`NotOnAmphi` if there is none."""
        return Mount.of(self)

    @property
    def is_on_amphi(self) -> bool:
        """Whether it, or its nearest parent that exists, lies on an AmphiFS."""
        return find(self) is not None

    def open_amphi(self, mode: str = "rb", *, direct: bool = False) -> File:
        """Opens it for transfers without copies: :class:`amphifs.File`."""
        return File(self, mode, direct=direct)

    @property
    def layout(self) -> str:
        """Over which targets its data lies: ``growing``, ``whole`` or ``striped,size=1M,count=4``; of a directory, what
        files that are made in it get. A file that has data keeps its layout."""
        return self._get("layout")

    @layout.setter
    def layout(self, layout: str) -> None:
        self._set("layout", layout)

    @property
    def io_mode(self) -> str:
        """``auto``, ``buffered`` or ``direct``."""
        return self._get("mode")

    @io_mode.setter
    def io_mode(self, mode: str) -> None:
        self._set("mode", mode)

    @property
    def kernel_cache(self) -> str:
        """Whether the kernel serves its reads: ``auto``, ``on`` or ``off``."""
        return self._get("kernel_cache")

    @kernel_cache.setter
    def kernel_cache(self, whether: str) -> None:
        self._set("kernel_cache", whether)

    @property
    def checksums(self) -> str:
        """Whether blocks that are written get a checksum: ``auto``, ``on`` or ``off``."""
        return self._get("checksums")

    @checksums.setter
    def checksums(self, whether: str) -> None:
        self._set("checksums", whether)

    def unstable(self) -> Dict[str, int]:
        """Bytes of the file that a loss of power would take now, by where they are."""
        found: Dict[str, int] = json.loads(self._get("unstable"))
        return found

    def _get(self, name: str) -> str:
        try:
            return os.getxattr(self, f"user.amphi.{name}").decode()
        except OSError as e:
            raise self._explained(e) from e

    def _set(self, name: str, value: str) -> None:
        Mount.of(self)
        try:
            os.setxattr(self, f"user.amphi.{name}", value.encode())
        except OSError as e:
            raise self._explained(e) from e

    def _explained(self, e: OSError) -> Exception:
        if e.errno in (errno.ENODATA, errno.EOPNOTSUPP) and find(self) is None:
            return NotOnAmphi(f"{self} is not on an AmphiFS mount, so it has no such attribute")
        if e.errno == errno.EINVAL:
            return HintRefused(f"{self}: {_reason(self, e)}; nothing was changed")
        return e
