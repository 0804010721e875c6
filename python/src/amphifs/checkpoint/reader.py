"""Reading a checkpoint, with its checksums.

Owns: a checkpoint that is open. It stays the one that was opened, also while another one takes its name.
"""

from __future__ import annotations

import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, Optional, Type

from amphifs.buffers import aligned, view
from amphifs.checkpoint import layout
from amphifs.checkpoint.layout import Entry, Index
from amphifs.checkpoint.writer import all_of, leftovers
from amphifs.errors import CheckpointDamaged, CheckpointError
from amphifs.mount import StrPath


class Reader:
    """A checkpoint that is open for reading; a context manager."""

    def __init__(self, path: StrPath, *, verify: bool = True, threads: int = 4) -> None:
        """Opens the checkpoint.

        Args:
            verify: Whether what is read is compared with its checksums.
            threads: How many pieces are read at a time.
        Raises:
            CheckpointError: there is none; the text says whether a save began.
            CheckpointDamaged: its manifest is damaged.
        """
        self.path = os.path.abspath(os.fspath(path))
        try:
            self._directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError) as e:
            raise CheckpointError(f"there is no checkpoint at {self.path}{_began(self.path)}") from e
        try:
            text = layout.read_file(self._directory, layout.MANIFEST, self.path)
            self.manifest = layout.decode_manifest(text, f"{self.path}/{layout.MANIFEST}")
        except FileNotFoundError as e:
            os.close(self._directory)
            raise CheckpointError(f"{self.path} has no {layout.MANIFEST}, so it is no checkpoint") from e
        except Exception:
            os.close(self._directory)
            raise
        self.verify = verify
        self._files: Dict[int, int] = {}
        self._indexes: Dict[int, Index] = {}
        self._pool = ThreadPoolExecutor(max(1, threads), "amphifs-checkpoint")

    @property
    def ranks(self) -> int:
        """How many shards it has."""
        return self.manifest.ranks

    def index(self, rank: int = 0) -> Index:
        """What the shard of a rank holds: ``entries`` by name, ``notes``.

        Raises:
            CheckpointError: there is no such rank.
            CheckpointDamaged: the index is not the one that was committed.
        """
        if not 0 <= rank < self.ranks:
            raise CheckpointError(f"{self.path} has {self.ranks} ranks, counted from 0; there is no rank {rank}")
        if rank not in self._indexes:
            where = f"{self.path}/{layout.index_name(rank)}"
            try:
                text = layout.read_file(self._directory, layout.index_name(rank), self.path)
            except FileNotFoundError as e:
                raise CheckpointDamaged(f"{where} is missing; {_another(self.path)}") from e
            if layout.digest(text) != self.manifest.index_sha256[rank]:
                raise CheckpointDamaged(f"{where} is not what was committed; take another checkpoint")
            self._indexes[rank] = layout.decode_index(text, where)
        return self._indexes[rank]

    def names(self, rank: int = 0) -> List[str]:
        """Names of the entries of a rank, in the order in which they were written."""
        return list(self.index(rank).entries)

    def entry(self, name: str, rank: int = 0) -> Entry:
        """Size, place and ``meta`` of an entry."""
        entries = self.index(rank).entries
        if name not in entries:
            raise CheckpointError(f"{self.path} has no entry {name!r} of rank {rank}; names() lists those that it has")
        return entries[name]

    def read(self, name: str, rank: int = 0) -> memoryview:
        """An entry in fresh memory that begins on a page."""
        memory = aligned(self.entry(name, rank).length)
        self.read_into(memory, name, rank)
        return memory

    def read_into(self, buffer: Any, name: str, rank: int = 0) -> None:
        """Reads an entry into a buffer, an array or a CPU tensor of its size, without a copy in this process.

        Raises:
            CheckpointError: the buffer has another size; it is unchanged.
            CheckpointDamaged: the bytes are not those that were written; the buffer holds some of them.
        """
        entry, index = self.entry(name, rank), self.index(rank)
        data = view(buffer, writable=True)
        if data.nbytes != entry.length:
            why = f"{name!r} has {entry.length} bytes, and the buffer {data.nbytes}; give one of its size"
            raise CheckpointError(why)
        fd = self._file(rank)
        starts = range(0, entry.length, index.piece_bytes)
        step, sums = index.piece_bytes, entry.crc32
        pieces = [(entry.offset + at, data[at : at + step], sums[n]) for n, at in enumerate(starts)]
        if len(pieces) == 1:
            self._piece(fd, rank, *pieces[0])
        else:
            all_of([self._pool.submit(self._piece, fd, rank, *piece) for piece in pieces])

    def _piece(self, fd: int, rank: int, offset: int, data: memoryview, crc: int) -> None:
        where = f"{self.path}/{layout.data_name(rank)}"
        done = 0
        while done < len(data):
            got = os.preadv(fd, [data[done:]], offset + done)
            if got == 0:
                raise CheckpointDamaged(f"{where} ends at byte {offset + done}; take another checkpoint")
            done += got
        if self.verify and zlib.crc32(data) != crc:
            raise CheckpointDamaged(
                f"{where}: bytes {offset} to {offset + len(data)} are not those that were written; take another "
                "checkpoint"
            )

    def check(self) -> int:
        """Reads all shards and compares them with their checksums.

        Returns:
            How many bytes were compared.
        Raises:
            CheckpointDamaged: the first entry that is damaged.
        """
        total, verify = 0, self.verify
        self.verify = True
        try:
            for rank in range(self.ranks):
                for name in self.names(rank):
                    total += self.read(name, rank).nbytes
        finally:
            self.verify = verify
        return total

    def _file(self, rank: int) -> int:
        if rank not in self._files:
            try:
                self._files[rank] = os.open(layout.data_name(rank), os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._directory)
            except FileNotFoundError as e:
                raise CheckpointDamaged(
                    f"{self.path}/{layout.data_name(rank)} is missing; {_another(self.path)}"
                ) from e
        return self._files[rank]

    def close(self) -> None:
        """Closes the files; a second time nothing happens."""
        self._pool.shutdown()
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: object, trace: object) -> None:
        self.close()


def _another(path: str) -> str:
    return f"if {path} was replaced meanwhile, open it anew; otherwise take another checkpoint"


def _began(path: str) -> str:
    left = leftovers(path)
    if not left:
        return ""
    return f"; a save began and has not ended ({', '.join(left)}): save again, it goes on with what is there"


def latest(directory: StrPath) -> Optional[str]:
    """The checkpoint in a directory that was committed last; None if there is none. Those that are not whole, or whose
    manifest is damaged, are passed over."""
    found = []
    for entry in os.scandir(directory):
        if entry.name.startswith(".") or not entry.is_dir():
            continue
        try:
            manifest = layout.manifest_of(entry.path)
        except CheckpointError:
            continue
        if manifest is not None:
            found.append((manifest.time_ns, entry.path))
    return max(found)[1] if found else None
