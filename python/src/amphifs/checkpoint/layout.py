"""What a checkpoint consists of on the disk.

Owns: names of files and directories, the form of index and manifest, reading them with their checks.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from typing import Any, Dict, List, Optional

from amphifs.errors import CheckpointDamaged, CheckpointError

#: Form of index and manifest; a reader refuses others.
FORMAT = "amphifs.checkpoint/1"
MANIFEST = "manifest.json"
#: Bytes that have one checksum and are written in one call: large enough to go direct on a mount by default, small
#: enough that four threads share one tensor.
PIECE_BYTES = 8 << 20
#: Entries of at least this size begin on a page, so that their pieces can go direct; others begin on 64 bytes.
PAGED_BYTES = 64 << 10
#: Longest index or manifest that is read, bytes: of 10 million entries.
JSON_MAX = 4 << 30

_ATTEMPT = re.compile(r"[A-Za-z0-9._-]{1,64}")


def data_name(rank: int) -> str:
    """File with the bytes of a rank."""
    return f"shard-{rank:05d}.data"


def index_name(rank: int) -> str:
    """File that says what lies where in them."""
    return f"shard-{rank:05d}.json"


def split(path: str) -> tuple[str, str]:
    """Parent and name of a checkpoint.

    Raises:
        CheckpointError: the path names none.
    """
    whole = os.path.abspath(path)
    parent, name = os.path.split(whole)
    if not name or name.startswith("."):
        raise CheckpointError(f"{path!r} names no checkpoint: its last part has to be a name that begins with no dot")
    return parent, name


def partial_prefix(name: str) -> str:
    """How the directories begin in which a checkpoint is made."""
    return f".{name}.partial-"


def check_attempt(attempt: str) -> str:
    """The attempt, if it can be a part of a file name."""
    if not _ATTEMPT.fullmatch(attempt):
        raise CheckpointError(f"attempt {attempt!r}: give 1 to 64 letters, digits, dots, dashes or underscores")
    return attempt


@dataclass(frozen=True)
class Entry:
    """Bytes of a shard that have a name."""

    name: str
    #: Where they begin in the file of the shard, and how many they are.
    offset: int
    length: int
    #: CRC-32 of each piece of ``PIECE_BYTES``, the last one shorter.
    crc32: List[int]
    #: What the writer noted of them, such as type and shape.
    meta: Dict[str, Any]


@dataclass(frozen=True)
class Index:
    """What a shard holds."""

    attempt: str
    rank: int
    ranks: int
    #: Size of the file with the bytes.
    size: int
    piece_bytes: int
    entries: Dict[str, Entry]
    #: Anything else that the writer wants kept.
    notes: Dict[str, Any]

    def encode(self) -> bytes:
        """As it is written."""
        entries = [[e.name, e.offset, e.length, e.crc32, e.meta] for e in self.entries.values()]
        fields = {k: getattr(self, k) for k in ("attempt", "rank", "ranks", "size", "piece_bytes", "notes")}
        return json.dumps({"format": FORMAT, **fields, "entries": entries}, separators=(",", ":")).encode()


@dataclass(frozen=True)
class Manifest:
    """What makes a directory a checkpoint."""

    attempt: str
    ranks: int
    #: When it was committed, nanoseconds since 1970.
    time_ns: int
    #: SHA-256 of each shard's index.
    index_sha256: List[str]

    def encode(self) -> bytes:
        """As it is written."""
        return json.dumps({"format": FORMAT, **self.__dict__}, indent=1).encode()


def digest(text: bytes) -> str:
    """The checksum of an index in the manifest."""
    return hashlib.sha256(text).hexdigest()


def read_file(directory: int, name: str, where: str) -> bytes:
    """A file of the directory that ``directory`` is open on.

    Raises:
        FileNotFoundError: it is not there.
        CheckpointDamaged: it cannot be one of ours.
    """
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    with os.fdopen(fd, "rb") as file:
        if os.fstat(fd).st_size > JSON_MAX:
            raise CheckpointDamaged(f"{where}/{name}: larger than {JSON_MAX} bytes, which none of a checkpoint is")
        return file.read()


def decode_index(text: bytes, where: str) -> Index:
    """An index from its text.

    Raises:
        CheckpointDamaged: it is none, or contradicts itself.
    """
    try:
        found = json.loads(text)
        _check_format(found, where)
        rows = found["entries"]
        entries = {e[0]: Entry(e[0], int(e[1]), int(e[2]), [int(c) for c in e[3]], dict(e[4])) for e in rows}
        index = Index(
            str(found["attempt"]),
            int(found["rank"]),
            int(found["ranks"]),
            int(found["size"]),
            int(found["piece_bytes"]),
            entries,
            dict(found["notes"]),
        )
        _check_index(index)
    except (ValueError, KeyError, TypeError, IndexError) as e:
        raise CheckpointDamaged(f"{where} is damaged: {e}; take another checkpoint") from e
    return index


def _check_index(index: Index) -> None:
    if not 0 <= index.rank < index.ranks or index.piece_bytes <= 0:
        raise ValueError(f"rank {index.rank} of {index.ranks}, pieces of {index.piece_bytes} bytes")
    for e in index.entries.values():
        pieces = -(-e.length // index.piece_bytes)
        if e.offset < 0 or e.length < 0 or e.offset + e.length > index.size or len(e.crc32) != pieces:
            raise ValueError(f"entry {e.name!r}: {e.length} bytes at {e.offset} of {index.size}")


def decode_manifest(text: bytes, where: str) -> Manifest:
    """A manifest from its text.

    Raises:
        CheckpointDamaged: it is none.
        CheckpointError: it has another form.
    """
    try:
        found = json.loads(text)
        _check_format(found, where)
        sums = [str(s) for s in found["index_sha256"]]
        manifest = Manifest(str(found["attempt"]), int(found["ranks"]), int(found["time_ns"]), sums)
        if manifest.ranks != len(sums) or manifest.ranks < 1:
            raise ValueError(f"{manifest.ranks} ranks and {len(sums)} checksums")
    except (ValueError, KeyError, TypeError) as e:
        raise CheckpointDamaged(f"{where} is damaged: {e}; take another checkpoint") from e
    return manifest


def _check_format(found: Any, where: str) -> None:
    form = found.get("format") if isinstance(found, dict) else None
    if not isinstance(form, str) or not form.startswith("amphifs.checkpoint/"):
        raise ValueError("it is no file of a checkpoint")
    if form != FORMAT:
        raise CheckpointError(f"{where} has the form {form}, and this program reads {FORMAT}: take a newer amphifs")


def manifest_of(path: str) -> Optional[Manifest]:
    """The manifest of a checkpoint; None if there is no checkpoint at the path."""
    try:
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return decode_manifest(read_file(directory, MANIFEST, path), f"{path}/{MANIFEST}")
    except FileNotFoundError:
        return None
    finally:
        os.close(directory)
