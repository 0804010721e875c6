#!/usr/bin/env python3
"""HDF5 on a mount, with its locks on: rows are appended while another process reads (SWMR).

    python3 hdf5.py DIRECTORY
"""

import os
import subprocess
import sys

import h5py
import numpy

# HDF5 locks its files; AmphiFS keeps the locks on all mounts, so they stay on (the default of h5py).
os.environ["HDF5_USE_FILE_LOCKING"] = "TRUE"

ROWS, COLUMNS = 64, 1000

READER = """
import sys, time, h5py, numpy
with h5py.File(sys.argv[1], "r", libver="latest", swmr=True) as file:
    rows = file["rows"]
    print("watching", flush=True)
    end = time.monotonic() + 60
    while True:
        rows.refresh()
        got = rows[:]
        # A row is there before its numbers are; until then it has the fill value.
        right = numpy.arange(len(got))[:, None] == got
        assert (right | (got == -1)).all(), "a row that was not written"
        if len(got) == int(sys.argv[2]) and right.all():
            break
        assert time.monotonic() < end, f"only {len(got)} rows came"
print("seen", len(got))
"""


def main(directory: str) -> None:
    path = os.path.join(directory, "rows.h5")
    with h5py.File(path, "w", libver="latest") as file:
        shape = {"shape": (0, COLUMNS), "maxshape": (None, COLUMNS), "chunks": (8, COLUMNS)}
        rows = file.create_dataset("rows", dtype="f8", fillvalue=-1, **shape)
        file.swmr_mode = True
        # The reader may look through another mount of the same cluster.
        seen = os.path.join(sys.argv[2] if len(sys.argv) > 2 else directory, "rows.h5")
        command = [sys.executable, "-c", READER, seen, str(ROWS)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdout is not None and reader.stdout.readline() == "watching\n"
            for n in range(ROWS):
                rows.resize(n + 1, axis=0)
                rows[n] = numpy.full(COLUMNS, float(n))
                rows.flush()
            assert reader.stdout.read() == f"seen {ROWS}\n" and reader.wait() == 0
    # Who writes keeps others from writing.
    with h5py.File(path, "a"):
        again = [sys.executable, "-c", "import h5py, sys; h5py.File(sys.argv[1], 'a')", seen]
        assert subprocess.run(again, stderr=subprocess.DEVNULL, check=False).returncode != 0
    print(f"{ROWS} rows were seen by another process while they were written")


if __name__ == "__main__":
    main(sys.argv[1])
