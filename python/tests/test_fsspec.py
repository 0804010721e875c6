"""``amphi://``: fsspec's own abstract suite, and what is particular here."""

import io
import os
import pickle
import tempfile

import pytest
from mounted import MOUNT, SECOND, pattern

import amphifs

fsspec = pytest.importorskip("fsspec")
from fsspec.tests import abstract  # noqa: E402

from amphifs.filesystem import AmphiFileSystem  # noqa: E402


class AmphiFixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self):
        return AmphiFileSystem(auto_mkdir=True)

    @pytest.fixture
    def fs_path(self):
        with tempfile.TemporaryDirectory(prefix="t-", dir=MOUNT) as path:
            yield path


class TestCopy(abstract.AbstractCopyTests, AmphiFixtures):
    pass


class TestGet(abstract.AbstractGetTests, AmphiFixtures):
    pass


class TestPut(abstract.AbstractPutTests, AmphiFixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, AmphiFixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, AmphiFixtures):
    pass


@pytest.fixture
def place():
    with tempfile.TemporaryDirectory(prefix="t-", dir=MOUNT) as path:
        yield path


def test_by_url(place):
    """Goal: the protocol is registered, and files go by URL. Method: fsspec.open, which looks the entry point up."""
    url = f"amphi://{place}/f"
    with fsspec.open(url, "wb") as file:
        file.write(b"bytes")
    with fsspec.open(url) as file:
        assert file.read() == b"bytes"
    with fsspec.open(url + ".gz", "wt", compression="infer") as file:
        file.write("text")
    with fsspec.open(url + ".gz", "rt", compression="infer") as file:
        assert file.read() == "text"
    assert open(f"{place}/f.gz", "rb").read(2) == b"\x1f\x8b"
    fs, path = fsspec.core.url_to_fs(url)
    assert isinstance(fs, AmphiFileSystem) and path == f"{place}/f"
    assert fs.unstrip_protocol(path) == url
    assert sorted(fs.ls(place, detail=False)) == [f"{place}/f", f"{place}/f.gz"]
    assert fs.find(place) == [f"{place}/f", f"{place}/f.gz"]
    assert fs.du(place) == sum(os.path.getsize(f"{place}/{n}") for n in ("f", "f.gz"))


def test_only_on_a_mount(place, tmp_path):
    """Goal: nothing is made, read or removed outside of mounts; nor is a mount itself removed."""
    fs = AmphiFileSystem(auto_mkdir=True)
    (tmp_path / "kept").write_bytes(b"kept")
    outside = str(tmp_path / "kept")
    for call in (
        lambda: fs.open(outside),
        lambda: fs.open(str(tmp_path / "new"), "wb"),
        lambda: fs.rm(outside),
        lambda: fs.rm(str(tmp_path), recursive=True),
        lambda: fs.touch(outside),
        lambda: fs.mv(outside, f"{place}/moved"),
        lambda: fs.cp_file(outside, f"{place}/copied"),
        lambda: fs.ls(str(tmp_path)),
    ):
        with pytest.raises(amphifs.NotOnAmphi, match="is not on an AmphiFS mount"):
            call()
    assert os.listdir(tmp_path) == ["kept"] and (tmp_path / "kept").read_bytes() == b"kept"
    with pytest.raises(amphifs.AmphiError, match="is a mount"):
        fs.rm(SECOND, recursive=True)
    with pytest.raises(amphifs.AmphiError, match="write amphi:///mnt/x"):
        fs.info("amphi://mnt/x")
    with pytest.raises(IsADirectoryError, match="recursive=True"):
        fs.rm(place)
    assert os.path.isdir(place)


def test_transactions(place):
    """Goal: files of a transaction appear when it ends, whole; after an error none does, and the old stay."""
    fs = AmphiFileSystem()
    fs.pipe(f"{place}/a", b"old")
    with fs.transaction:
        with fs.open(f"{place}/a", "wb") as a, fs.open(f"{place}/b", "xb") as b:
            a.write(b"new")
            b.write(b"more")
        assert fs.cat(f"{place}/a") == b"old" and not fs.exists(f"{place}/b")
    assert fs.cat(f"{place}/a") == b"new" and fs.cat(f"{place}/b") == b"more"
    with pytest.raises(RuntimeError, match="planted"):
        with fs.transaction:
            with fs.open(f"{place}/a", "wb") as a:
                a.write(b"lost")
            raise RuntimeError("planted")
    assert fs.cat(f"{place}/a") == b"new"
    assert sorted(os.listdir(place)) == ["a", "b"]
    with pytest.raises(FileExistsError):
        fs.open(f"{place}/a", "xb", autocommit=False)
    with pytest.raises(amphifs.AmphiError, match="no transaction can"):
        fs.open(f"{place}/a", "ab", autocommit=False)


def test_copies(place, tmp_path):
    """Goal: copies are whole at sizes around those of one step, in all directions, and tell their progress."""
    fs = AmphiFileSystem()
    seen = fsspec.callbacks.Callback()
    for size in (0, 1, 4095, 1 << 20, (3 << 20) + 7):
        data = bytes(pattern(size))
        (tmp_path / "in").write_bytes(data)
        fs.put_file(str(tmp_path / "in"), f"{place}/a", callback=seen)
        assert seen.size == size
        fs.cp_file(f"{place}/a", f"{place}/b")
        fs.cp_file(f"{place}/b", f"{SECOND}/{os.path.relpath(place, MOUNT)}/c")
        fs.get_file(f"{place}/c", str(tmp_path / "out"))
        assert (tmp_path / "out").read_bytes() == data
        held = io.BytesIO()
        fs.get_file(f"{place}/c", held)
        assert held.getvalue() == data
        assert fs.cat_file(f"{place}/c", size // 3, size // 2) == data[size // 3 : size // 2]
    with pytest.raises(amphifs.AmphiError, match="the same file"):
        fs.cp_file(f"{place}/a", f"{place}/a")
    with pytest.raises(FileNotFoundError):
        fs.cp_file(f"{place}/none", f"{place}/a")
    assert fs.size(f"{place}/a") == size
    with pytest.raises(FileExistsError):
        fs.put_file(str(tmp_path / "in"), f"{place}/a", mode="create")


def test_links_times_and_moves(place, tmp_path):
    """Goal: links are shown as what they lead to, dead ones as themselves; a move replaces a file in one step."""
    fs = AmphiFileSystem()
    fs.pipe(f"{place}/f", b"12345")
    fs.symlink(f"{place}/f", f"{place}/l")
    fs.symlink("nowhere", f"{place}/dead")
    info = fs.info(f"{place}/l")
    assert info["islink"] and info["size"] == 5 and info["type"] == "file" and info["destination"] == f"{place}/f"
    assert fs.info(f"{place}/dead")["type"] == "other"
    assert len(fs.ls(place)) == 3
    assert abs(fs.modified(f"{place}/f").timestamp() - os.stat(f"{place}/f").st_mtime) < 1e-5
    fs.mv(f"{place}/f", f"{place}/g")
    assert fs.cat(f"{place}/g") == b"12345" and not fs.exists(f"{place}/l") and fs.lexists(f"{place}/l")
    fs.touch(f"{place}/g", truncate=False)
    assert fs.size(f"{place}/g") == 5
    fs.touch(f"{place}/g")
    assert fs.size(f"{place}/g") == 0
    # A link out of the mount can be removed, and nothing behind it.
    fs.symlink(str(tmp_path), f"{place}/out")
    with pytest.raises(amphifs.NotOnAmphi):
        fs.pipe(f"{place}/out/f", b"")
    fs.rm([f"{place}/l", f"{place}/dead", f"{place}/out"], recursive=True)
    assert fs.ls(place, detail=False) == [f"{place}/g"] and tmp_path.is_dir()


def test_pickled(place):
    """Goal: the file system, and a file that is read, go to another process; one that is written does not."""
    fs = pickle.loads(pickle.dumps(AmphiFileSystem(auto_mkdir=True)))
    assert fs.auto_mkdir
    with fs.open(f"{place}/d/f", "wb") as file:
        file.write(b"0123456789")
        with pytest.raises(amphifs.AmphiError, match="close it first"):
            pickle.dumps(file)
    with fs.open(f"{place}/d/f") as file:
        file.seek(4)
        other = pickle.loads(pickle.dumps(file))
        assert other.read() == b"456789"
        other.close()


def test_into_memory(place):
    """Goal: a read into a buffer fills it, whatever its size."""
    data = bytes(pattern(5 << 20))
    fs = AmphiFileSystem(sync=True)
    fs.pipe(f"{place}/f", data)
    with fs.open(f"{place}/f") as file:
        assert file.size == len(data)
        memory = amphifs.aligned(3 << 20)
        assert file.readinto(memory[:10]) == 10
        assert file.readinto(memory) == 3 << 20
        assert bytes(memory) == data[10 : 10 + (3 << 20)]
        assert file.readline()[:5] == data[10 + (3 << 20) :][:5]
