"""Mounts, tunables, attributes of paths, and what is refused."""

import os
import pathlib
import tempfile
import unittest

import amphifs
from amphifs.mount import _parse
from mounted import MOUNT, SECOND, OnMount


class Mounts(OnMount):
    def test_finds_the_mount_of_a_path(self) -> None:
        """Goal: a path, one that does not exist yet, and a link to it belong to their mount; others to none."""
        self.assertEqual(amphifs.Mount.of(MOUNT).path, MOUNT)
        self.assertEqual(amphifs.Mount.of(self.path("not/there/yet")).path, MOUNT)
        self.assertEqual(amphifs.Mount.of(SECOND).path, SECOND)
        self.assertLessEqual({MOUNT, SECOND}, {m.path for m in amphifs.mounts()})
        with tempfile.TemporaryDirectory() as outside:
            link = os.path.join(outside, "link")
            os.symlink(self.dir, link)
            self.assertEqual(amphifs.Mount.of(link).path, MOUNT)
            with self.assertRaises(amphifs.NotOnAmphi) as caught:
                amphifs.Mount.of(outside)
            self.assertIn(f"{outside} is not on an AmphiFS mount; those of this machine are", str(caught.exception))
            self.assertIn(MOUNT, str(caught.exception))
            # Nothing is made where it does not belong.
            with self.assertRaises(amphifs.NotOnAmphi):
                amphifs.open(os.path.join(outside, "new"), "wb")
            self.assertEqual(os.listdir(outside), ["link"])

    def test_the_table_of_mounts(self) -> None:
        """Goal: names with blanks are read, other file systems are passed over. Method: a table by hand."""
        table = (
            "42 27 0:39 / /mnt/my\\040data rw,nodev - fuse.amphi tcp:a:1,tcp:b:2 rw,user_id=0\n"
            "43 27 8:1 / /mnt/fuse.amphi rw shared:1 - ext4 /dev/sda1 rw\n"
            "44 27 0:40 / /a\\134b rw shared:1 master:2 - fuse.amphi /srv/x\\040y rw\n"
            "broken\n"
        )
        found = [(m.path, m.source, m.device) for m in _parse(table)]
        expected = [("/mnt/my data", "tcp:a:1,tcp:b:2", os.makedev(0, 39)), ("/a\\b", "/srv/x y", os.makedev(0, 40))]
        self.assertEqual(found, expected)

    def test_numbers_and_tunables(self) -> None:
        """Goal: counters, status and tunables are read and set; a refusal says why and changes nothing."""
        mount = amphifs.Mount.of(self.dir)
        pathlib.Path(self.path("f")).write_bytes(b"x")
        mount.sync()
        self.assertGreater(mount.stats()["counters"]["create"]["samples"], 0)
        self.assertTrue(all(server["up"] for server in mount.status()["servers"]))
        before = mount.tunables("hybrid.small_bytes")["hybrid.small_bytes"]
        self.addCleanup(mount.set, "hybrid.small_bytes", before)
        mount.set("hybrid.small_bytes", "12K")
        self.assertEqual(mount.tunables("hybrid.small_bytes"), {"hybrid.small_bytes": "12K"})
        with self.assertRaises(amphifs.HintRefused) as caught:
            mount.set("no.such.tunable", 1)
        self.assertIn('no tunable matches "no.such.tunable"', str(caught.exception))
        with self.assertRaises(amphifs.HintRefused):
            mount.set("hybrid.small_bytes", "many")
        self.assertEqual(mount.tunables("hybrid.small_bytes"), {"hybrid.small_bytes": "12K"})

    def test_attributes_of_paths(self) -> None:
        """Goal: layouts and modes of directories are inherited; what cannot be is refused in the mount's words."""
        folder = amphifs.AmphiPath(self.dir)
        self.assertTrue(folder.is_on_amphi and folder.amphi_mount.path == MOUNT)
        folder.layout, folder.io_mode = "striped,size=1M,count=2", "direct"
        folder.kernel_cache, folder.checksums = "off", "on"
        file = folder / "f"
        self.assertIsInstance(file, amphifs.AmphiPath)
        file.write_bytes(b"abc")
        self.assertEqual((file.layout, file.io_mode), ("striped,size=1M,count=2", "direct"))
        self.assertEqual((file.kernel_cache, file.checksums), ("off", "on"))
        self.assertEqual(set(file.unstable()), {"dirty", "sending", "accepted", "unsynced"})
        with self.assertRaises(amphifs.HintRefused) as caught:
            folder.layout = "round"
        self.assertIn("is no layout", str(caught.exception))
        self.assertEqual(folder.layout, "striped,size=1M,count=2")
        with self.assertRaises(FileNotFoundError):
            print(amphifs.AmphiPath(self.path("none")).layout)
        with tempfile.TemporaryDirectory() as outside:
            path = amphifs.AmphiPath(outside)
            self.assertFalse(path.is_on_amphi)
            for attempt in (lambda: path.layout, lambda: setattr(path, "layout", "whole")):
                with self.assertRaises(amphifs.NotOnAmphi):
                    attempt()


if __name__ == "__main__":
    unittest.main()
