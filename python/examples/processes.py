#!/usr/bin/env python3
"""One file that several processes write at a time, each its own pieces, and a sum over it by the same processes: what
the workers of dask and the like do.

    python3 processes.py DIRECTORY
"""

import array
import multiprocessing
import os
import sys

import amphifs

PIECES, PIECE_BYTES = 64, 1 << 20


def write(work: "tuple[str, int]") -> None:
    path, number = work
    with amphifs.open(path, "r+b") as file:
        # Pieces of several writers lie side by side: locks of just the pieces do not collide.
        file.no_expand()
        file.lock_ahead(number * PIECE_BYTES, PIECE_BYTES)
        file.write(array.array("Q", [number]) * (PIECE_BYTES // 8), number * PIECE_BYTES)


def add(work: "tuple[str, int]") -> int:
    path, number = work
    memory = amphifs.aligned(PIECE_BYTES)
    with amphifs.open(path) as file:
        file.advise(amphifs.Advice.ONCE)
        assert file.readinto(memory, number * PIECE_BYTES) == PIECE_BYTES
    return sum(memory.cast("Q"))


def main(directory: str) -> None:
    path = os.path.join(directory, "pieces")
    amphifs.open(path, "wb").close()
    work = [(path, number) for number in range(PIECES)]
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        pool.map(write, work, chunksize=1)
        total = sum(pool.map(add, work, chunksize=1))
    assert total == sum(range(PIECES)) * (PIECE_BYTES // 8), total
    print(f"{PIECES} pieces by 4 processes, sum {total}")


if __name__ == "__main__":
    main(sys.argv[1])
