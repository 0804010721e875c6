"""Checkpoints: whole or absent, whatever ends the writer; resumed; damage is found."""

import array
import json
import multiprocessing
import os
import signal
import threading
import unittest
from unittest import mock

import amphifs
from amphifs import checkpoint
from amphifs.checkpoint import Reader, Writer
from amphifs.checkpoint import rename as renames
from amphifs.checkpoint import writer as writing
from mounted import OnMount, pattern

LARGE = 2 * checkpoint.PIECE_BYTES + 12345


def save(path: str, seed: int, **options: object) -> Writer:
    with Writer(path, **options) as writer:  # type: ignore[arg-type]
        writer.write("large", pattern(LARGE, seed), shape=[LARGE])
        writer.write("small", array.array("i", [seed, 2]))
        writer.write("nothing", b"")
        writer.note("step", seed)
    return writer


def seed_of(path: str) -> int:
    """Which save the checkpoint is of; fails if it is not all of one."""
    with Reader(path) as reader:
        seed: int = reader.index().notes["step"]
        assert bytes(reader.read("large")) == bytes(pattern(LARGE, seed))
        small = array.array("i", [0, 0])
        reader.read_into(small, "small")
        assert list(small) == [seed, 2]
        return seed


class Whole(OnMount):
    def test_saved_and_read(self) -> None:
        """Goal: what was saved comes back, from the other mount too; the latest is found; nothing else is left."""
        self.assertIsNone(checkpoint.latest(self.dir))
        for seed in (2, 1):
            save(self.path(f"step-{seed}"), seed)
        self.assertEqual(seed_of(self.second("step-2")), 2)
        self.assertEqual(checkpoint.latest(self.dir), self.path("step-1"))
        with Reader(self.path("step-1")) as reader:
            self.assertEqual(reader.names(), ["large", "small", "nothing"])
            self.assertEqual(reader.entry("large").meta, {"shape": [LARGE]})
            self.assertEqual(reader.entry("large").offset % 4096, 0)
            self.assertEqual(reader.read("nothing").nbytes, 0)
            self.assertEqual(reader.check(), LARGE + 8)
        self.assertEqual(sorted(os.listdir(self.dir)), ["step-1", "step-2"])
        files = ["manifest.json", "shard-00000.data", "shard-00000.json"]
        self.assertEqual(sorted(os.listdir(self.path("step-1"))), files)

    def test_an_error_commits_nothing(self) -> None:
        """Goal: an error in the block leaves no checkpoint; the next save goes on and writes only what is new."""
        with self.assertRaisesRegex(RuntimeError, "planted"):
            with Writer(self.path("c")) as writer:
                writer.write("large", pattern(LARGE, 1))
                raise RuntimeError("planted")
        self.assertFalse(os.path.exists(self.path("c")))
        with self.assertRaisesRegex(amphifs.CheckpointError, "a save began and has not ended"):
            Reader(self.path("c"))
        again = save(self.path("c"), 1)
        self.assertEqual((again.kept_bytes, again.written_bytes), (LARGE, 8))
        self.assertEqual(seed_of(self.path("c")), 1)
        self.assertEqual(os.listdir(self.dir), ["c"])

    def test_what_an_earlier_attempt_left_is_compared(self) -> None:
        """Goal: pieces that differ from those of an earlier attempt are written anew, also where it was longer."""
        with Writer(self.path("c")) as writer:
            data = pattern(LARGE, 1)
            data[checkpoint.PIECE_BYTES + 5] ^= 1
            writer.write("large", data)
            writer.write("more", pattern(LARGE, 3))
            writer.abandon()
            self.assertRaises(amphifs.CheckpointError, writer.write, "late", b"")
            with self.assertRaises(amphifs.CheckpointError):
                writer.commit()
        self.assertFalse(os.path.exists(self.path("c")))
        again = save(self.path("c"), 1)
        self.assertEqual(again.kept_bytes, LARGE - checkpoint.PIECE_BYTES)
        self.assertEqual(seed_of(self.path("c")), 1)
        with Reader(self.path("c")) as reader:
            self.assertEqual(os.path.getsize(self.path("c/shard-00000.data")), reader.index().size)

    def test_replacing(self) -> None:
        """Goal: a checkpoint is replaced when that is asked for, and only one; a reader keeps what it opened."""
        save(self.path("c"), 1)
        with self.assertRaisesRegex(amphifs.CheckpointError, "exists; give another name, or replace=True"):
            save(self.path("c"), 2)
        save(self.path("c"), 2, replace=True)
        self.assertEqual(seed_of(self.path("c")), 2)
        os.mkdir(self.path("folder"))
        with self.assertRaisesRegex(amphifs.CheckpointError, "is no checkpoint, so it is not replaced"):
            save(self.path("folder"), 3, replace=True)
        with Reader(self.path("c")) as reader:
            reader.read("small")
            save(self.path("c"), 3, replace=True)
            # Its files are those of the old one, though they have no name any more.
            self.assertEqual(bytes(reader.read("large")), bytes(pattern(LARGE, 2)))
        self.assertEqual(seed_of(self.path("c")), 3)
        self.assertEqual(sorted(os.listdir(self.dir)), ["c", "folder"])

    def test_somebody_else_was_faster(self) -> None:
        """Goal: what was made at the path during a save stays."""
        with self.assertRaisesRegex(amphifs.CheckpointError, "exists"):
            with Writer(self.path("c")) as writer:
                writer.write("x", b"1")
                os.mkdir(self.path("c"))
        self.assertEqual(os.listdir(self.path("c")), [])
        self.assertEqual(checkpoint.clean(self.path("c")), [writer.partial])
        self.assertEqual(os.listdir(self.dir), ["c"])

    def test_killed_anywhere(self) -> None:
        """Goal: at any step the old checkpoint or the new one is there, whole, and the next save succeeds. Method: a
        process that replaces a checkpoint is killed before and after each call that changes the file system."""
        save(self.path("c"), 1)
        step, seeds = 0, set()
        while True:
            child = multiprocessing.get_context("fork").Process(target=_save_until, args=(self.path("c"), 2, step))
            child.start()
            child.join()
            found = seed_of(self.path("c"))
            seeds.add(found)
            self.assertIn(found, (1, 2))
            if child.exitcode == 0:
                break
            self.assertEqual(child.exitcode, -signal.SIGKILL)
            save(self.path("c"), 1, replace=True)
            self.assertEqual(seed_of(self.path("c")), 1)
            self.assertLessEqual(len(os.listdir(self.dir)), 2)
            step += 1
        self.assertGreater(step, 12)
        self.assertEqual(seeds, {1, 2})
        checkpoint.clean(self.path("c"))
        self.assertEqual(os.listdir(self.dir), ["c"])


def _save_until(path: str, seed: int, step: int) -> None:
    """Saves, and is killed at the ``step``-th point between changes of the file system."""
    left = [step]

    def stepped(call):  # type: ignore[no-untyped-def]
        def point(*args, **named):  # type: ignore[no-untyped-def]
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return call(*args, **named)

        return point

    for name in ("ftruncate", "fsync", "rename", "unlink", "rmdir", "pwrite", "makedirs"):
        setattr(os, name, stepped(getattr(os, name)))
    for name in ("exchange", "into_place", "sync_directory"):
        setattr(writing, name, stepped(getattr(renames, name)))
    writing.shutil.rmtree = stepped(writing.shutil.rmtree)
    save(path, seed, replace=True, threads=1)


class Ranks(OnMount):
    def test_shards_from_two_mounts(self) -> None:
        """Goal: four ranks, two on each mount, make one checkpoint; all of them return when it is there."""
        errors: list = []

        def rank(number: int) -> None:
            path = (self.path if number % 2 else self.second)("c")
            try:
                with Writer(path, rank=number, ranks=4, attempt="job-1", timeout_s=60) as writer:
                    writer.write("part", pattern(LARGE, number))
                with Reader(path) as reader:
                    assert reader.ranks == 4
                    for other in range(4):
                        assert bytes(reader.read("part", other)) == bytes(pattern(LARGE, other)), other
            except BaseException as e:
                errors.append((number, e))

        threads = [threading.Thread(target=rank, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])

    def test_a_rank_that_is_missing(self) -> None:
        """Goal: without all shards nothing is committed; the next attempt takes over what is there, and shards of ranks
        that the job no longer has are left out."""
        for rank in (2, 0):
            with self.assertRaisesRegex(amphifs.CheckpointError, "has not (finished|committed)"):
                with Writer(self.path("c"), rank=rank, ranks=3, attempt="a", timeout_s=0.2) as writer:
                    writer.write("part", pattern(LARGE, rank))
        self.assertFalse(os.path.exists(self.path("c")))
        writers = [Writer(self.path("c"), rank=rank, ranks=2, attempt="b", timeout_s=5) for rank in range(2)]
        for rank, writer in enumerate(writers):
            writer.write("part", pattern(LARGE, rank))
        self.assertEqual([w.kept_bytes for w in writers], [LARGE, 0])
        writers[1].finish()
        writers[0].commit()
        writers[1].wait_committed()
        with Reader(self.path("c")) as reader:
            self.assertEqual(reader.ranks, 2)
            self.assertEqual(reader.check(), 2 * LARGE)
            with self.assertRaisesRegex(amphifs.CheckpointError, "there is no rank 2"):
                reader.names(2)
        self.assertEqual(len(os.listdir(self.path("c"))), 5)
        self.assertEqual(len(checkpoint.clean(self.path("c"))), 1)

    def test_two_processes_of_one_rank(self) -> None:
        """Goal: two writers of a rank are told apart; a cleaning leaves the one that writes alone."""
        first = Writer(self.path("c"), rank=0, ranks=2, attempt="a")
        with self.assertRaisesRegex(amphifs.CheckpointError, "another process writes rank 0"):
            Writer(self.second("c"), rank=0, ranks=2, attempt="a")
        self.assertEqual(checkpoint.clean(self.second("c")), [])
        first.abandon()
        self.assertEqual(len(checkpoint.clean(self.second("c"))), 1)

    def test_what_is_refused(self) -> None:
        """Goal: arguments that contradict each other are refused before anything is made."""
        for path, options, text in (
            ("c", {"rank": 2, "ranks": 2, "attempt": "a"}, "ranks count from 0"),
            ("c", {"ranks": 2}, "need attempt"),
            ("c", {"attempt": "a/b"}, "letters, digits"),
            ("no/c", {}, "is no directory"),
            (".hidden", {}, "begins with no dot"),
        ):
            with self.assertRaisesRegex(amphifs.CheckpointError, text):
                Writer(self.path(path), **options)  # type: ignore[arg-type]
        self.assertEqual(os.listdir(self.dir), [])
        with Writer(self.path("c")) as writer:
            writer.write("x", b"1")
            self.assertRaisesRegex(amphifs.CheckpointError, "in this shard already", writer.write, "x", b"2")
        with self.assertRaisesRegex(amphifs.CheckpointError, "JSON"):
            with Writer(self.path("d")) as writer:
                writer.note("what", object())
        self.assertFalse(os.path.exists(self.path("d")))


class Damage(OnMount):
    def setUp(self) -> None:
        super().setUp()
        save(self.path("c"), 1)

    def _change(self, name: str, at: int) -> None:
        with open(self.path(f"c/{name}"), "r+b") as file:
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 0x10]))

    def test_each_byte_counts(self) -> None:
        """Goal: a bit that changes anywhere is found and its place named; other entries are read."""
        for at in (0, checkpoint.PIECE_BYTES, LARGE - 1):
            self._change("shard-00000.data", at)
            with Reader(self.path("c")) as reader:
                with self.assertRaisesRegex(amphifs.CheckpointDamaged, "shard-00000.data: bytes"):
                    reader.read("large")
                self.assertRaises(amphifs.CheckpointDamaged, reader.check)
                self.assertEqual(reader.read("small").nbytes, 8)
            with Reader(self.path("c"), verify=False) as reader:
                self.assertEqual(reader.read("large").nbytes, LARGE)
            self._change("shard-00000.data", at)
        self.assertEqual(seed_of(self.path("c")), 1)

    def test_index_and_manifest(self) -> None:
        """Goal: damage of what describes the bytes is found, at each of many places, and is no other error."""
        for name, step in (("shard-00000.json", 17), ("manifest.json", 7)):
            for at in range(0, os.path.getsize(self.path(f"c/{name}")), step):
                self._change(name, at)
                try:
                    self.assertEqual(seed_of(self.path("c")), 1)
                    self.assertEqual(name, "manifest.json", f"{name} {at} was not noticed")
                except amphifs.CheckpointError:
                    pass
                self._change(name, at)
        self.assertEqual(seed_of(self.path("c")), 1)

    def test_what_is_missing(self) -> None:
        """Goal: files that are short or gone are named; a directory without a manifest is no checkpoint."""
        os.truncate(self.path("c/shard-00000.data"), LARGE // 2)
        with Reader(self.path("c")) as reader, self.assertRaisesRegex(amphifs.CheckpointDamaged, "ends at byte"):
            reader.read("large")
        os.unlink(self.path("c/shard-00000.data"))
        with Reader(self.path("c")) as reader, self.assertRaisesRegex(amphifs.CheckpointDamaged, "is missing"):
            reader.read("large")
        os.unlink(self.path("c/manifest.json"))
        self.assertRaisesRegex(amphifs.CheckpointError, "it is no checkpoint", Reader, self.path("c"))
        self.assertRaisesRegex(amphifs.CheckpointError, "there is no checkpoint", Reader, self.path("none"))
        self.assertIsNone(checkpoint.latest(self.dir))

    def test_other_forms(self) -> None:
        """Goal: a manifest of another version, and a buffer of another size, are refused by name."""
        with Reader(self.path("c")) as reader:
            wrong = bytearray(7)
            self.assertRaisesRegex(amphifs.CheckpointError, "has 8 bytes", reader.read_into, wrong, "small")
            self.assertEqual(wrong, bytes(7))
            self.assertRaisesRegex(amphifs.CheckpointError, "no entry 'none'", reader.read, "none")
        with open(self.path("c/manifest.json")) as file:
            text = json.load(file)
        with open(self.path("c/manifest.json"), "w") as file:
            json.dump({**text, "format": "amphifs.checkpoint/2"}, file)
        self.assertRaisesRegex(amphifs.CheckpointError, "take a newer amphifs", Reader, self.path("c"))


class Full(OnMount):
    def test_a_full_disk(self) -> None:
        """Goal: a disk that is full while a checkpoint is written is an error of that write; the old one stays."""
        save(self.path("c"), 1)
        with mock.patch.object(os, "pwrite", side_effect=OSError(28, "No space left on device")):
            with self.assertRaises(OSError):
                save(self.path("c"), 2, replace=True)
        self.assertEqual(seed_of(self.path("c")), 1)
        save(self.path("c"), 2, replace=True)
        self.assertEqual(seed_of(self.path("c")), 2)

if __name__ == "__main__":
    unittest.main()
