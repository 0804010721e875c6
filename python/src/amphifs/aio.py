"""Files for asyncio.

Linux has no completions for files of a mount that an event loop could wait for, so calls run in threads, ``THREADS`` at
most at a time; the interpreter's lock is free meanwhile. Invariant: an awaited call that is cancelled ends before the
cancellation is raised, so that a buffer is never written to behind its owner's back.
"""

from __future__ import annotations

import asyncio
import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Optional, Sequence, Type, TypeVar

from amphifs.file import File
from amphifs.mount import StrPath

T = TypeVar("T")

#: Calls under way at a time: twice what keeps a mount and a disk busy with requests of 1 MiB.
THREADS = 16
_THREADS = ThreadPoolExecutor(THREADS, "amphifs")


async def run(call: Callable[..., T], *args: Any, **named: Any) -> T:
    """Runs a call in a thread. If the task is cancelled, the cancellation is raised when the call has ended."""
    future = asyncio.get_running_loop().run_in_executor(_THREADS, functools.partial(call, *args, **named))
    cancelled: Optional[asyncio.CancelledError] = None
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError as e:
            if future.cancelled():
                raise
            cancelled = e
        except BaseException:
            break
    if cancelled is not None:
        # Its error, if there is one, is nobody's any more.
        if not future.cancelled():
            future.exception()
        raise cancelled
    return future.result()


class AsyncFile:
    """:class:`amphifs.file.File` whose calls are awaited. Calls may overlap; offsets are explicit."""

    def __init__(self, file: File) -> None:
        self.file = file

    async def readinto(self, buffer: Any, offset: int = 0) -> int:
        """:meth:`File.readinto`; the buffer is lent until this returns or raises."""
        return await run(self.file.readinto, buffer, offset)

    async def readinto_many(self, buffers: Sequence[Any], offset: int = 0) -> int:
        """:meth:`File.readinto_many`."""
        return await run(self.file.readinto_many, buffers, offset)

    async def read(self, size: int, offset: int = 0) -> memoryview:
        """:meth:`File.read`."""
        return await run(self.file.read, size, offset)

    async def write(self, buffer: Any, offset: int = 0) -> int:
        """:meth:`File.write`; the buffer must not change until this returns or raises."""
        return await run(self.file.write, buffer, offset)

    async def write_many(self, buffers: Sequence[Any], offset: int = 0) -> int:
        """:meth:`File.write_many`."""
        return await run(self.file.write_many, buffers, offset)

    async def sync(self) -> None:
        """:meth:`File.sync`."""
        await run(self.file.sync)

    async def close(self) -> None:
        """:meth:`File.close`."""
        await run(self.file.close)

    async def __aenter__(self) -> AsyncFile:
        return self

    async def __aexit__(self, kind: Optional[Type[BaseException]], value: object, trace: object) -> None:
        await self.close()


async def open(path: StrPath, mode: str = "rb", *, direct: bool = False, permissions: int = 0o666) -> AsyncFile:
    """:func:`amphifs.file.open`, awaited: ``async with await amphifs.aio.open(path) as f``."""
    return AsyncFile(await run(File, path, mode, direct=direct, permissions=permissions))
