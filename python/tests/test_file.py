"""Files: whole transfers from and to the caller's memory, hints, asyncio."""

import array
import asyncio
import errno
import os
import resource
import threading
import time
import unittest

import amphifs
from amphifs import aio, hints
from amphifs.buffers import PAGE, aligned, view
from amphifs.hints import Ahead
from mounted import OnMount, pattern


class Files(OnMount):
    def test_buffers_of_all_kinds(self) -> None:
        """Goal: any buffer is written and read as it lies in memory, at any place, also beyond one call's vectors."""
        data = pattern(3 << 20)
        with amphifs.open(self.path("f"), "xb") as file:
            self.assertEqual(file.write(data, 5), len(data))
            self.assertEqual(file.write(array.array("d", [1.5, -2.0]), 5 + len(data)), 16)
            self.assertEqual(file.size, 5 + len(data) + 16)
            back = bytearray(len(data))
            self.assertEqual(file.readinto(back, 5), len(data))
            self.assertEqual(back, data)
            doubles = array.array("d", [0.0, 0.0])
            file.readinto(doubles, 5 + len(data))
            self.assertEqual(list(doubles), [1.5, -2.0])
            # Past the end: what is there.
            self.assertEqual(file.readinto(bytearray(100), file.size - 7), 7)
            self.assertEqual(file.readinto(bytearray(100), file.size + 7), 0)
            many = [data[n * 100 : n * 100 + 100] for n in range(3000)]
            self.assertEqual(file.write_many(many, 1 << 22), 300_000)
            parts = [bytearray(77) for _ in range(3000)]
            self.assertEqual(file.readinto_many(parts, 1 << 22), 231_000)
            self.assertEqual(b"".join(parts), data[:231_000])
            self.assertEqual(file.write(b"", 0), 0)
            file.sync()
            file.truncate(10)
            self.assertEqual(bytes(file.read(100)), bytes(5) + data[:5])
        self.assertTrue(file.closed)
        file.close()
        with self.assertRaises(FileExistsError):
            amphifs.open(self.path("f"), "xb")
        with self.assertRaises(ValueError):
            file.fileno()

    def test_nothing_is_copied(self) -> None:
        """Goal: the memory that is read into is the caller's. Method: views of it see what came."""
        memory = aligned(1 << 20)
        self.assertTrue(memory.contiguous and memory.nbytes == 1 << 20 and not memory.readonly)
        with amphifs.open(self.path("f"), "wb") as file:
            file.write(pattern(1 << 20))
            before = memory[4096:4100]
            file.readinto(memory)
            self.assertEqual(bytes(before), bytes(pattern(1 << 20)[4096:4100]))
            whole = view(memory)
            whole[0] = 77
            self.assertEqual(memory[0], 77)

    def test_direct(self) -> None:
        """Goal: O_DIRECT works with aligned memory, and the end of a file comes; what does not fit is said before."""
        data = pattern(3 * PAGE + 100)
        with amphifs.open(self.path("f"), "wb") as file:
            file.write(data)
        with amphifs.open(self.path("f"), "r+b", direct=True) as file:
            self.assertEqual(bytes(file.read(len(data))), bytes(data))
            memory = aligned(2 * PAGE)
            memory[:] = data[: 2 * PAGE][::-1]
            file.write(memory, PAGE)
            with self.assertRaises(amphifs.AmphiError) as caught:
                file.write(b"abc", 5)
            self.assertIn("multiples of 4096", str(caught.exception))
        with amphifs.open(self.path("f")) as file:
            expected = data[:PAGE] + data[: 2 * PAGE][::-1] + data[3 * PAGE :]
            self.assertEqual(bytes(file.read(1 << 20)), bytes(expected))

    def test_a_direct_write_that_stops_within_a_page(self) -> None:
        """Goal: a direct write of which the kernel writes a part that is no whole page says why it stopped."""
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        with amphifs.open(self.path("f"), "wb", direct=True) as file:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_001, before[1]))
            try:
                with self.assertRaises(OSError) as caught:
                    file.write(aligned(2 << 20), 0)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
            self.assertEqual(caught.exception.errno, errno.EFBIG)
            self.assertLessEqual(file.size, 1_000_001)

    def test_what_is_refused(self) -> None:
        """Goal: wrong buffers, offsets and modes are refused in words, before anything happens to the file."""
        with amphifs.open(self.path("f"), "wb") as file:
            file.write(b"before")
            for call, text in (
                (lambda: file.readinto(b"read-only"), "read-only"),
                (lambda: file.write("text"), "no buffer of bytes"),
                (lambda: file.write(memoryview(bytes(10))[::2]), "not contiguous"),
                (lambda: file.write(b"x", -1), "offset -1"),
                (lambda: amphifs.open(self.path("f"), "w+"), "give one of rb"),
            ):
                with self.assertRaises(amphifs.AmphiError) as caught:
                    call()
                self.assertIn(text, str(caught.exception))
            self.assertEqual(bytes(file.read(100)), b"before")
        with amphifs.open(self.path("f")) as file, self.assertRaises(OSError) as caught:
            file.write(b"x")
        self.assertEqual(caught.exception.errno, errno.EBADF)


class Hints(OnMount):
    def test_modes_and_locks(self) -> None:
        """Goal: the controls reach the mount. Method: what is set is got back, locks answer, counters move."""
        count = lambda name: amphifs.Mount.of(self.dir).stats()["counters"][name]["samples"]  # noqa: E731
        with amphifs.open(self.path("f"), "wb") as file:
            self.assertEqual(file.io_mode, amphifs.Mode.AUTO)
            before = count("write_direct_user")
            file.io_mode = amphifs.Mode.DIRECT
            self.assertEqual(file.io_mode, amphifs.Mode.DIRECT)
            file.write(aligned(65536))
            self.assertEqual(count("write_direct_user"), before + 1)
            file.io_mode = amphifs.Mode.AUTO
            file.no_expand()
            held = count("lock_ahead_same") + count("lock_ahead_different")
            file.lock_ahead(1 << 19, 4096, wait=True)
            self.assertIn(file.lock_ahead(1 << 19, 4096), (Ahead.SAME, Ahead.DIFFERENT))
            answers = file.lock_ahead_list([(n << 12, 4096) for n in range(160, 200)])
            self.assertEqual(len(answers), 40)
            # The first question may have to be asked; the mount is alone with the file, so it holds all of its first
            # MiB then.
            self.assertGreaterEqual(count("lock_ahead_same") + count("lock_ahead_different"), held + 41)
            for advice in amphifs.Advice:
                file.advise(advice, 0, 4096)
        with amphifs.open(self.path("f")) as file:
            self.assertEqual(file.lock_ahead_list([(0, 4096)]), [-errno.EBADF])

    def test_groups(self) -> None:
        """Goal: a group keeps others out, on another mount too, until it is left; a member learns that others wait."""
        with amphifs.open(self.path("f"), "wb") as mine:
            mine.write(b"first")
            with amphifs.open(self.second("f"), "r+b") as theirs:
                got: list = []
                with mine.group(7):
                    mine.write(b"group")
                    with self.assertRaises(BlockingIOError):
                        with theirs.group(8, wait=False):
                            self.fail("two groups have the file")
                    reader = threading.Thread(target=lambda: got.append(bytes(theirs.read(5))))
                    reader.start()
                    end = time.monotonic() + 60
                    while not hints.group_wanted(mine.fileno()):
                        self.assertLess(time.monotonic(), end, "nobody is seen waiting")
                        time.sleep(0.001)
                    self.assertEqual(got, [])
                reader.join()
                self.assertEqual(got, [b"group"])
                # A group may be taken again once it is left.
                with theirs.group(8):
                    theirs.write(b"other")
            self.assertEqual(bytes(mine.read(5)), b"other")

    def test_what_is_refused(self) -> None:
        """Goal: hints that cannot be are refused with a reason, also on other file systems."""
        with amphifs.open(self.path("f"), "wb") as file:
            for call in (
                lambda: file.lock_ahead(-1, 5),
                lambda: file.advise(amphifs.Advice.NORMAL, 0, 1 << 63),
                lambda: hints.group_lock(file.fileno(), 0),
                lambda: hints.group_unlock(file.fileno(), 5),
            ):
                with self.assertRaises(amphifs.HintRefused):
                    call()
        for path in ("/dev/null", "/etc/passwd"):
            fd = os.open(path, os.O_RDONLY)
            self.addCleanup(os.close, fd)
            with self.assertRaises(amphifs.NotOnAmphi) as caught:
                hints.set_mode(fd, amphifs.Mode.DIRECT)
            self.assertIn("no regular file of an AmphiFS mount", str(caught.exception))


class Asynchronous(OnMount):
    def test_many_calls_at_a_time(self) -> None:
        """Goal: overlapping writes and reads of one file all arrive."""

        async def work() -> None:
            parts = [pattern(50_000, seed) for seed in range(64)]
            async with await aio.open(self.path("f"), "wb") as file:
                await asyncio.gather(*(file.write(part, n * 50_000) for n, part in enumerate(parts)))
                await file.sync()
                back = [bytearray(50_000) for _ in parts]
                await asyncio.gather(*(file.readinto(b, n * 50_000) for n, b in enumerate(back)))
                self.assertEqual(back, parts)
                self.assertEqual(bytes(await file.read(10, 50_000)), bytes(parts[1][:10]))
            with self.assertRaises(FileNotFoundError):
                await aio.open(self.path("none"))

        asyncio.run(work())

    def test_a_cancelled_call_ends_first(self) -> None:
        """Goal: when the cancellation is raised the call has ended. Method: a call that a group keeps waiting."""

        async def work() -> None:
            with amphifs.open(self.path("f"), "wb") as mine:
                mine.write(b"01234")
                async with await aio.open(self.second("f")) as theirs:
                    buffer = bytearray(5)
                    hints.group_lock(mine.fileno(), 7)
                    task = asyncio.ensure_future(theirs.readinto(buffer))
                    while not await aio.run(hints.group_wanted, mine.fileno()):
                        await asyncio.sleep(0.001)
                    task.cancel()
                    done, _ = await asyncio.wait([task], timeout=0.2)
                    self.assertEqual(done, set(), "the buffer is still lent")
                    hints.group_unlock(mine.fileno(), 7)
                    with self.assertRaises(asyncio.CancelledError):
                        await task
                    self.assertEqual(buffer, b"01234")

        asyncio.run(work())


if __name__ == "__main__":
    unittest.main()
