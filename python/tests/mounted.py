"""Where the tests run: a mount, and a second one of the same cluster, named by the environment.

``scripts/python`` and the end-to-end tests set ``AMPHIFS_TEST_MOUNT`` and ``AMPHIFS_TEST_SECOND``.
"""

import os
import shutil
import tempfile
import unittest


def _named(variable: str) -> str:
    path = os.environ.get(variable)
    if not path:
        raise RuntimeError(f"{variable} names no mount; run scripts/python, which makes one")
    return path


MOUNT = _named("AMPHIFS_TEST_MOUNT")
#: The same cluster on another mount.
SECOND = _named("AMPHIFS_TEST_SECOND")


class OnMount(unittest.TestCase):
    """A test with a directory of its own on the mount."""

    def setUp(self) -> None:
        self.dir = tempfile.mkdtemp(prefix="t-", dir=MOUNT)
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)

    def path(self, name: str) -> str:
        return os.path.join(self.dir, name)

    def second(self, name: str) -> str:
        """The same file on the second mount."""
        return os.path.join(SECOND, os.path.relpath(self.path(name), MOUNT))


def pattern(size: int, seed: int = 1) -> bytearray:
    """Bytes that tell where they belong."""
    word = b"".join((n * 2654435761 + seed & 0xFFFFFFFF).to_bytes(4, "little") for n in range(4096))
    return bytearray((word * (size // len(word) + 1))[:size])
