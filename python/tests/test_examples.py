"""The examples, each as a program of its own."""

import os
import pathlib
import subprocess
import sys
import unittest

from mounted import MOUNT, SECOND, OnMount

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"


class Examples(OnMount):
    def run_example(self, name: str, *more: str) -> str:
        command = [sys.executable, str(EXAMPLES / name), self.dir, *more]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_processes(self) -> None:
        self.assertIn("64 pieces by 4 processes, sum 264241152", self.run_example("processes.py"))

    def test_hdf5(self) -> None:
        """The reader is on the other mount."""
        self._needs("h5py")
        other = os.path.join(SECOND, os.path.relpath(self.dir, MOUNT))
        self.assertIn("64 rows were seen", self.run_example("hdf5.py", other))

    def test_zarr(self) -> None:
        self._needs("zarr")
        self.assertIn("in 17 files, written by two processes", self.run_example("zarr_store.py"))

    def _needs(self, name: str) -> None:
        try:
            __import__(name)
        except ImportError:
            self.skipTest(f"{name} is not installed")


if __name__ == "__main__":
    unittest.main()
