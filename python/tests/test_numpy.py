"""Arrays of numpy, written from and read into their own memory."""

import os
import tempfile

import pytest
from mounted import MOUNT

import amphifs
from amphifs.checkpoint import Reader, Writer

numpy = pytest.importorskip("numpy")


@pytest.fixture
def place():
    with tempfile.TemporaryDirectory(prefix="t-", dir=MOUNT) as path:
        yield path


@pytest.mark.parametrize("kind", ["f8", "c16", "i1", ">u4", "M8[ns]", "?", "S7", [("a", "i4"), ("b", "f4", (2,))]])
def test_types_and_shapes(place, kind):
    """Goal: arrays of all types and shapes come back, bit by bit."""
    with amphifs.open(f"{place}/f", "wb") as file:
        for shape in [(), (0,), (3, 0), (1,), (5, 7, 3)]:
            size = int(numpy.prod(shape)) * numpy.dtype(kind).itemsize
            array = numpy.frombuffer(os.urandom(size), dtype=kind).reshape(shape) if size else numpy.empty(shape, kind)
            assert file.write(array, 64) == array.nbytes
            back = numpy.zeros(shape, kind)
            assert file.readinto(back, 64) == array.nbytes
            assert back.tobytes() == array.tobytes()


def test_memory_is_used_as_it_is(place):
    """Goal: slices that are contiguous are read in place; others are refused, and nothing is written."""
    array = numpy.arange(1 << 16, dtype="f4").reshape(256, 256)
    with amphifs.open(f"{place}/f", "wb") as file:
        file.write(array)
        target = numpy.zeros((256, 256), "f4")
        file.readinto(target[16:32], 16 * 1024)
        assert (target[16:32] == array[16:32]).all() and not target[:16].any() and not target[32:].any()
        with pytest.raises(amphifs.AmphiError, match="ascontiguousarray"):
            file.write(array[:, ::2])
        with pytest.raises(amphifs.AmphiError, match="read-only"):
            array.flags.writeable = False
            file.readinto(array)
        page = numpy.frombuffer(amphifs.aligned(1 << 20), "f8")
        assert page.ctypes.data % 4096 == 0 and page.flags.writeable
    with amphifs.open(f"{place}/f", direct=True) as file:
        assert file.readinto(page[: 1 << 15]) == 1 << 18
        assert (page[: 1 << 15].view("f4") == array.reshape(-1)).all()


def test_in_a_checkpoint(place):
    """Goal: arrays are entries of a checkpoint."""
    arrays = {f"a{n}": numpy.random.default_rng(n).normal(size=(n, 1000)) for n in (0, 1, 3000)}
    with Writer(f"{place}/c") as writer:
        for name, array in arrays.items():
            writer.write(name, array, shape=array.shape, dtype=array.dtype.str)
    with Reader(f"{place}/c") as reader:
        for name, array in arrays.items():
            meta = reader.entry(name).meta
            back = numpy.frombuffer(reader.read(name), meta["dtype"]).reshape(meta["shape"])
            assert (back == array).all()
            into = numpy.empty_like(array)
            reader.read_into(into, name)
            assert (into == array).all()
