"""Writing a checkpoint.

Owns: the directory in which it is made, the shard of this rank, what an earlier attempt has left, the commit by rank 0.
Does not own: the form (:mod:`layout`).

Invariants. Whoever writes a shard holds ``flock`` on its data. An index is there only when all bytes that it names are
stable. Rank 0 commits while it holds the locks of all shards, so that nobody writes to a shard, or takes it away, from
its last look on. A failure at any step leaves what has the name of the checkpoint as it was.

An attempt goes on where an earlier one ended: its shard is taken over, pieces that are right already are compared and
not written again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
import uuid
import zlib
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Dict, Iterator, List, Optional, Sequence, Type, TypeVar

from amphifs.buffers import aligned, view
from amphifs.checkpoint import layout
from amphifs.checkpoint.layout import Entry, Index, Manifest
from amphifs.checkpoint.rename import exchange, into_place, sync_directory
from amphifs.errors import CheckpointError
from amphifs.mount import StrPath

T = TypeVar("T")

#: How often rank 0 looks whether the others are done, seconds.
LOOK_S = 0.02


class Writer:
    """One rank's part of a checkpoint; a context manager.

    Leaving the block without an error finishes the shard; on rank 0 it waits for all shards and commits, on the others
    it waits until that has happened. Leaving it with an error commits nothing; what was written stays for the next
    attempt.
    """

    def __init__(
        self,
        path: StrPath,
        *,
        rank: int = 0,
        ranks: int = 1,
        attempt: Optional[str] = None,
        replace: bool = False,
        threads: int = 4,
        timeout_s: float = 1800.0,
    ) -> None:
        """Begins, or goes on with what an earlier attempt has left.

        Args:
            path: The checkpoint, a directory that does not exist yet, or is replaced at the end with ``replace``.
            attempt: A word that all ranks of this save share and that no earlier save to ``path`` had, such as job
                number, restart count and step. Needed with several ranks, so that no shard of an earlier save is taken
                for one of this. With one rank it is made up.
            threads: How many pieces are written at a time.
            timeout_s: How long the ranks wait for each other at the end.
        Raises:
            CheckpointError: the arguments contradict each other; something is at ``path`` and ``replace`` was not
                given; another process writes this shard. Nothing was changed.
        """
        if not 0 <= rank < ranks:
            raise CheckpointError(f"rank {rank} of {ranks}: ranks count from 0")
        if attempt is None and ranks > 1:
            raise CheckpointError(
                "several ranks need attempt=WORD, the same on all of them and a new one for each save: job number, "
                "restart count and step, for instance"
            )
        self.path = os.path.abspath(os.fspath(path))
        self.rank, self.ranks = rank, ranks
        self.attempt = layout.check_attempt(attempt or uuid.uuid4().hex)
        self.replace, self.timeout_s = replace, timeout_s
        self.parent, self.name = layout.split(self.path)
        self.partial = os.path.join(self.parent, layout.partial_prefix(self.name) + self.attempt)
        self._check_target()
        #: Bytes that were written, and that were found right already.
        self.written_bytes = self.kept_bytes = 0
        #: Whether the bytes of this shard are stable, with an index that says so.
        self.finished = False
        self._entries: Dict[str, Entry] = {}
        self._notes: Dict[str, Any] = {}
        self._end = 0
        self._fd = self._take_shard()
        self._old_bytes = os.fstat(self._fd).st_size
        self._pool = ThreadPoolExecutor(max(1, threads), "amphifs-checkpoint")

    # Content

    def write(self, name: str, buffer: Any, **meta: Any) -> None:
        """Writes a buffer, an array or a CPU tensor under a name, from its own memory.

        It may be changed again when this returns. ``meta`` is kept beside it; it has to be what JSON can hold.

        Raises:
            CheckpointError: the name is used, or the writer has ended.
            OSError: the disk is full or fails; the attempt cannot be finished and another one goes on.
        """
        self._check_open()
        if name in self._entries:
            raise CheckpointError(f"{name!r} is in this shard already; give each entry a name of its own")
        data = view(buffer)
        align = 4096 if data.nbytes >= layout.PAGED_BYTES else 64
        offset = -(-self._end // align) * align
        starts = range(0, data.nbytes, layout.PIECE_BYTES)
        pieces = [(offset + at, data[at : at + layout.PIECE_BYTES]) for at in starts]
        if len(pieces) == 1:
            sums = [self._piece(*pieces[0])]
        else:
            sums = all_of([self._pool.submit(self._piece, *piece) for piece in pieces])
        self._entries[name] = Entry(name, offset, data.nbytes, [crc for crc, _ in sums], meta)
        self.kept_bytes += sum(len(p) for (_, p), (_, kept) in zip(pieces, sums) if kept)
        self.written_bytes += sum(len(p) for (_, p), (_, kept) in zip(pieces, sums) if not kept)
        self._end = offset + data.nbytes

    def note(self, key: str, value: Any) -> None:
        """Keeps something that JSON can hold in the index of this shard."""
        self._check_open()
        self._notes[key] = value

    def _piece(self, offset: int, data: memoryview) -> tuple[int, bool]:
        """Writes a piece unless it is there; its checksum, and whether it was."""
        crc = zlib.crc32(data)
        if offset + len(data) <= self._old_bytes:
            old = aligned(len(data))
            if os.preadv(self._fd, [old], offset) == len(data) and zlib.crc32(old) == crc and old == data:
                return crc, True
        done = 0
        while done < len(data):
            done += os.pwrite(self._fd, data[done:], offset + done)
        return crc, False

    # The end

    def finish(self) -> None:
        """Makes the bytes of this shard stable, and then says what it holds. A second time nothing happens."""
        if self.finished:
            return
        self._check_open()
        os.ftruncate(self._fd, self._end)
        os.fsync(self._fd)
        index = Index(
            self.attempt, self.rank, self.ranks, self._end, layout.PIECE_BYTES, self._entries, self._notes
        )
        try:
            text = index.encode()
        except (TypeError, ValueError) as e:
            raise CheckpointError(f"meta and notes have to be what JSON can hold: {e}") from e
        _write_whole(self.partial, layout.index_name(self.rank), text)
        self.finished = True
        self._close()

    def commit(self) -> None:
        """Waits for the shards of all ranks and gives the checkpoint its name. For rank 0.

        Raises:
            CheckpointError: shards are missing after ``timeout_s``, or somebody else made the checkpoint meanwhile.
        """
        self.finish()
        with contextlib.ExitStack() as locks:
            deadline = self._deadline()
            sums = [self._settled(rank, deadline, locks) for rank in range(self.ranks)]
            self._remove_strangers()
            manifest = Manifest(self.attempt, self.ranks, time.time_ns(), sums)
            _write_whole(self.partial, layout.MANIFEST, manifest.encode())
            self._check_target()
            # What has the name now is kept until the new one has it.
            if self.replace and os.path.lexists(self.path):
                exchange(self.partial, self.path)
                sync_directory(self.parent)
                shutil.rmtree(self.partial)
            else:
                try:
                    into_place(self.partial, self.path)
                except FileExistsError as e:
                    raise CheckpointError(f"{self.path} was made by somebody else meanwhile; it stays as it is") from e
                sync_directory(self.parent)

    def wait_committed(self) -> None:
        """Waits until rank 0 has committed this attempt.

        Raises:
            CheckpointError: it has not after ``timeout_s``.
        """
        deadline = self._deadline()
        while True:
            manifest = layout.manifest_of(self.path)
            if manifest is not None and manifest.attempt == self.attempt:
                return
            if time.monotonic() > deadline:
                raise CheckpointError(
                    f"rank 0 has not committed {self.path} within {self.timeout_s:g} s; save again under another "
                    "attempt, it goes on with what is there"
                )
            time.sleep(LOOK_S)

    def abandon(self) -> None:
        """Ends without a commit. What was written stays for the next attempt."""
        self._close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: object, trace: object) -> None:
        try:
            if kind is None and (self.finished or self._fd >= 0):
                self.finish()
                if self.rank == 0:
                    self.commit()
                else:
                    self.wait_committed()
        finally:
            self.abandon()

    # Steps

    def _deadline(self) -> float:
        return time.monotonic() + self.timeout_s

    def _check_open(self) -> None:
        if self._fd < 0:
            raise CheckpointError(f"this writer of {self.path} has ended; begin another one")

    def _check_target(self) -> None:
        if not os.path.isdir(self.parent):
            raise CheckpointError(f"{self.parent} is no directory; make it first")
        if not os.path.lexists(self.path):
            return
        if not self.replace:
            raise CheckpointError(f"{self.path} exists; give another name, or replace=True")
        if layout.manifest_of(self.path) is None:
            raise CheckpointError(f"{self.path} is no checkpoint, so it is not replaced; give another name")

    def _take_shard(self) -> int:
        """Opens the shard of this rank with its lock: that of this attempt, or what another one has left, or new."""
        mine = os.path.join(self.partial, layout.data_name(self.rank))
        while True:
            os.makedirs(self.partial, exist_ok=True)
            if not os.path.exists(mine):
                self._take_over(mine)
            # Another attempt may have taken the directory for one that is done with as long as it was empty.
            with contextlib.suppress(FileNotFoundError):
                fd = os.open(mine, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                break
        if not _lock(fd):
            os.close(fd)
            raise CheckpointError(
                f"another process writes rank {self.rank} of attempt {self.attempt}; has each process its own rank?"
            )
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.partial, layout.index_name(self.rank)))
        return fd

    def _take_over(self, mine: str) -> None:
        """Moves the shard that an earlier attempt has left to this one, if nobody writes it."""
        for other in leftovers(self.path):
            if other == self.partial or _remove_empty(other):
                continue
            theirs = os.path.join(other, layout.data_name(self.rank))
            with contextlib.suppress(FileNotFoundError):
                fd = os.open(theirs, os.O_RDWR | os.O_CLOEXEC)
                try:
                    if not _lock(fd):
                        continue
                    # A commit may have taken the directory away between the two calls; then there is no such name.
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(os.path.join(other, layout.index_name(self.rank)))
                    os.rename(theirs, mine)
                    _remove_empty(other)
                    return
                finally:
                    _unlock(fd)

    def _settled(self, rank: int, deadline: float, locks: contextlib.ExitStack) -> str:
        """Waits for the shard of a rank and holds its lock; the checksum of its index."""
        data, index = (os.path.join(self.partial, f(rank)) for f in (layout.data_name, layout.index_name))
        while True:
            with contextlib.suppress(FileNotFoundError):
                with open(index, "rb") as file:
                    text = file.read()
                found = layout.decode_index(text, index)
                if (found.attempt, found.rank, found.ranks) != (self.attempt, rank, self.ranks):
                    raise CheckpointError(
                        f"{index} is of rank {found.rank} of {found.ranks} in attempt {found.attempt}, not of rank "
                        f"{rank} of {self.ranks} in {self.attempt}; do all ranks agree?"
                    )
                fd = os.open(data, os.O_RDWR | os.O_CLOEXEC)
                if _lock(fd):
                    locks.callback(_unlock, fd)
                    # Nobody writes it from here on; what was read before may be of a writer that began anew meanwhile.
                    with open(index, "rb") as file:
                        if file.read() == text and os.fstat(fd).st_size == found.size:
                            return layout.digest(text)
                    raise CheckpointError(f"{data} changed during the commit; does somebody else save to {self.path}?")
                os.close(fd)
            if time.monotonic() > deadline:
                raise CheckpointError(
                    f"rank {rank} has not finished its shard of {self.path} within {self.timeout_s:g} s; save again "
                    "under another attempt, it goes on with what is there"
                )
            time.sleep(LOOK_S)

    def _remove_strangers(self) -> None:
        """Removes what belongs to ranks beyond the last one, left by a job that had more of them."""
        own = {f(rank) for rank in range(self.ranks) for f in (layout.data_name, layout.index_name)}
        for name in os.listdir(self.partial):
            if name not in own:
                os.unlink(os.path.join(self.partial, name))

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            _unlock(fd)
            self._pool.shutdown()


def all_of(futures: Sequence[Future[T]]) -> List[T]:
    """The results of all, once none runs any more: until then the caller's memory is in use. Raises the first error."""
    wait(futures)
    return [future.result() for future in futures]


def _lock(fd: int) -> bool:
    """Takes the lock of an open shard; False if somebody has it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unlock(fd: int) -> None:
    """Gives the lock back at once: by the close alone it may go a little later."""
    try:
        fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


def _write_whole(directory: str, name: str, text: bytes) -> None:
    """Makes a file with this text, stable, under its name in one step."""
    temporary = os.path.join(directory, f".{name}.new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    with os.fdopen(fd, "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(fd)
    os.rename(temporary, os.path.join(directory, name))
    sync_directory(directory)


def _remove_empty(directory: str) -> bool:
    """Removes the directory of an attempt that has no shard any more; whether it was one."""
    try:
        names = os.listdir(directory)
        if any(name.endswith(".data") for name in names):
            return False
        for name in names:
            os.unlink(os.path.join(directory, name))
        # Refused if somebody has begun to use it meanwhile.
        os.rmdir(directory)
    except OSError:
        pass
    return True


def leftovers(path: StrPath) -> List[str]:
    """Directories of attempts to write the checkpoint at ``path`` that have not been committed, also those that run."""
    return sorted(_partials(*layout.split(os.fspath(path))))


def _partials(parent: str, name: str) -> Iterator[str]:
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(parent):
            if entry.name.startswith(layout.partial_prefix(name)) and entry.is_dir(follow_symlinks=False):
                yield entry.path


def clean(path: StrPath) -> List[str]:
    """Removes what attempts at ``path`` have left, except those of which a shard is being written at the moment.

    Returns:
        What was removed.
    """
    removed = []
    for partial in leftovers(path):
        with contextlib.ExitStack() as locks:
            for name in os.listdir(partial):
                if name.endswith(".data"):
                    fd = os.open(os.path.join(partial, name), os.O_RDWR | os.O_CLOEXEC)
                    if not _lock(fd):
                        os.close(fd)
                        break
                    locks.callback(_unlock, fd)
            else:
                shutil.rmtree(partial)
                removed.append(partial)
    return removed
