#!/usr/bin/env python3
"""A zarr array whose chunks several processes write, and which is read by URL through fsspec.

    python3 zarr_store.py DIRECTORY
"""

import multiprocessing
import os
import sys

import numpy
import zarr

SIDE, CHUNK = 512, 128


def fill(work: "tuple[str, int]") -> None:
    """Writes one row of chunks: each process has chunks of its own, so none waits for another."""
    path, row = work
    array = zarr.open_array(path, mode="r+")
    array[row : row + CHUNK] = numpy.repeat(numpy.arange(row, row + CHUNK, dtype="i4"), SIDE).reshape(CHUNK, SIDE)


def main(directory: str) -> None:
    path = os.path.join(directory, "array.zarr")
    zarr.create_array(path, shape=(SIDE, SIDE), chunks=(CHUNK, CHUNK), dtype="i4")
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.map(fill, [(path, row) for row in range(0, SIDE, CHUNK)])
    expected = numpy.broadcast_to(numpy.arange(SIDE, dtype="i4")[:, None], (SIDE, SIDE))
    assert (zarr.open_array(path, mode="r")[:] == expected).all()

    # The same through fsspec: what a library that takes URLs does.
    import fsspec

    files = fsspec.filesystem("amphi").find(f"amphi://{path}")
    with fsspec.open(f"amphi://{path}/zarr.json") as metadata:
        assert b"array" in metadata.read()
    print(f"{SIDE} x {SIDE} numbers in {len(files)} files, written by two processes")


if __name__ == "__main__":
    main(sys.argv[1])
