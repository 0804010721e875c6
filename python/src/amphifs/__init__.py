"""AmphiFS from Python.

Everything here works on the path of a mount (``amphi mount``, ``amphi up``, an fstab line); there is no other
connection to the servers. The parts:

* :mod:`amphifs.mount`: which mounts this machine has, their numbers and tunables.
* :mod:`amphifs.file`: files that read into and write from any buffer without a copy, with the mount's hints.
* :mod:`amphifs.aio`: the same for asyncio.
* :mod:`amphifs.path`: a ``pathlib`` path that knows layouts and modes.
* :mod:`amphifs.checkpoint`: checkpoints that appear whole or not at all.
* :mod:`amphifs.torch`: state dictionaries of PyTorch as such checkpoints (needs ``torch``).
* :mod:`amphifs.filesystem`: ``amphi://`` for fsspec (needs ``fsspec``).

The package itself needs nothing but Python 3.9 and Linux.
"""

from amphifs.buffers import aligned
from amphifs.errors import AmphiError, CheckpointDamaged, CheckpointError, HintRefused, NotOnAmphi
from amphifs.file import File, open
from amphifs.hints import Advice, Mode
from amphifs.mount import Mount, mounts
from amphifs.path import AmphiPath

__all__ = [
    "Advice",
    "AmphiError",
    "AmphiPath",
    "CheckpointDamaged",
    "CheckpointError",
    "File",
    "HintRefused",
    "Mode",
    "Mount",
    "NotOnAmphi",
    "aligned",
    "mounts",
    "open",
]
__version__ = "0.1.0"
