"""Memory that reads and writes use as it is.

Owns: what counts as a buffer, and memory that begins on a page. Invariant: no function here copies bytes.
"""

from __future__ import annotations

import mmap
from typing import Any

from amphifs.errors import AmphiError

#: Alignment of direct I/O and of blocks on the servers, bytes.
PAGE = 4096


def aligned(size: int) -> memoryview:
    """Writable zeroed memory of ``size`` bytes that begins on a page, as O_DIRECT wants it.

    The view keeps the memory alive; ``numpy.frombuffer(aligned(n), dtype)`` makes an array of it.
    """
    if size < 0:
        raise AmphiError(f"{size} bytes: give a size of at least 0")
    return memoryview(mmap.mmap(-1, max(size, 1)))[:size]


def view(buffer: Any, writable: bool = False) -> memoryview:
    """The bytes of a buffer, a numpy array or a CPU tensor of PyTorch, as one flat view of its own memory.

    Raises:
        AmphiError: it is no buffer, not contiguous, on another device, or read-only where it has to be written.
    """
    found = _view(buffer)
    if writable and found.readonly:
        raise AmphiError(f"{_name(buffer)} is read-only, so nothing can be read into it; give a bytearray or an array")
    return found


def _view(buffer: Any) -> memoryview:
    if hasattr(buffer, "untyped_storage") and hasattr(buffer, "data_ptr"):
        return _tensor(buffer)
    try:
        whole = memoryview(buffer)
    except (TypeError, ValueError) as e:
        # Arrays whose type has no code in the buffer protocol (bfloat16, datetime64) still have bytes.
        if hasattr(buffer, "__array_interface__") and buffer.flags.c_contiguous:
            return memoryview(buffer.reshape(-1).view("u1"))
        raise AmphiError(f"{_name(buffer)} has no buffer of bytes that could be read or written: {e}") from e
    if not whole.c_contiguous:
        raise AmphiError(f"{_name(buffer)} is not contiguous in memory; make a copy first (numpy.ascontiguousarray)")
    if whole.nbytes == 0:
        return memoryview(bytearray())
    try:
        return whole.cast("B")
    except (TypeError, ValueError):
        if hasattr(buffer, "__array_interface__"):
            return memoryview(buffer.reshape(-1).view("u1"))
        raise


def _tensor(tensor: Any) -> memoryview:
    """The bytes of a tensor, by its address: numpy has no name for some of PyTorch's types, and need not be there."""
    import ctypes

    if tensor.device.type != "cpu":
        raise AmphiError(f"the tensor is on {tensor.device}; bring it to the CPU first: tensor.cpu()")
    if not tensor.is_contiguous():
        raise AmphiError("the tensor is not contiguous in memory; make it so first: tensor.contiguous()")
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return memoryview(bytearray())
    memory = (ctypes.c_ubyte * size).from_address(tensor.data_ptr())
    # The view owns the array of ctypes, and that keeps the tensor.
    memory._tensor = tensor
    return memoryview(memory).cast("B")


def _name(buffer: Any) -> str:
    return f"a {type(buffer).__name__}"
