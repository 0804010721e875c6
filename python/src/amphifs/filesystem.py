"""``amphi://`` for fsspec.

Paths are absolute paths of this machine: ``amphi:///mnt/amphi/results``. What is opened, made or removed has to lie on
a mount of AmphiFS. Files are written in place, or in a transaction beside their target, from where they take its name
in one step when the transaction ends.
"""

from __future__ import annotations

import datetime
import errno
import io
import os
import shutil
import stat
import uuid
from typing import Any, Dict, List, Optional, Union

from fsspec.callbacks import NoOpCallback
from fsspec.core import get_compression
from fsspec.compression import compr
from fsspec.spec import AbstractFileSystem
from fsspec.utils import isfilelike, stringify_path

from amphifs.checkpoint.rename import sync_directory
from amphifs.errors import AmphiError
from amphifs.mount import Mount

#: Bytes that are read and written at a time where the caller says nothing: a request of the kernel to a mount.
BLOCK_BYTES = 1 << 20
#: Bytes of one copy within or between file systems.
COPY_BYTES = 64 << 20


class AmphiFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Files of AmphiFS mounts.

    Args:
        auto_mkdir: Whether the directory of a file that is made is made with it.
        sync: Whether a file that was written is stable before its ``close`` returns; files of a transaction always are
            before they get their name.
    """

    protocol = "amphi"
    root_marker = "/"
    local_file = True

    def __init__(self, auto_mkdir: bool = False, sync: bool = False, **kwargs: Any) -> None:
        super().__init__(auto_mkdir=auto_mkdir, sync=sync, **kwargs)
        self.auto_mkdir = auto_mkdir
        self.sync = sync

    @property
    def fsid(self) -> str:
        return "amphi"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(p) for p in path]
        text = stringify_path(path)
        for prefix in ("amphi://", "amphi:"):
            if text.startswith(prefix):
                text = text[len(prefix) :]
                if not text.startswith("/"):
                    raise AmphiError(f"amphi://{text} names no absolute path; write amphi:///{text}")
                break
        text = os.path.join(os.getcwd(), text) if not text.startswith("/") else text
        return text.rstrip("/") or "/"

    def unstrip_protocol(self, name: str) -> str:
        return f"amphi://{self._strip_protocol(name)}"

    def _on_mount(self, path: Any) -> str:
        """The path, if what it leads to lies on a mount. Raises :class:`amphifs.NotOnAmphi` otherwise."""
        text: str = self._strip_protocol(path)
        Mount.of(text)
        return text

    def _name_on_mount(self, path: Any) -> str:
        """The path, if its name lies on a mount: a link does, wherever it leads. Raises as above."""
        text: str = self._strip_protocol(path)
        Mount.of(os.path.dirname(text) if os.path.islink(text) else text)
        return text

    # Directories

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        path = self._on_mount(path)
        if create_parents:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        os.mkdir(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        os.makedirs(self._on_mount(path), exist_ok=exist_ok)

    def rmdir(self, path: str) -> None:
        os.rmdir(self._on_mount(path))

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> List[Any]:
        path = self._on_mount(path)
        info = self._info(path)
        if info["type"] != "directory":
            return [info] if detail else [info["name"]]
        found: List[Any] = []
        with os.scandir(path) as entries:
            for entry in entries:
                name = os.path.join(path, entry.name)
                if not detail:
                    found.append(name)
                    continue
                try:
                    found.append(self._info(name))
                except FileNotFoundError:
                    # Removed since it was listed.
                    continue
        return found

    def info(self, path: str, **kwargs: Any) -> Dict[str, Any]:
        return self._info(self._name_on_mount(path))

    def _info(self, path: str) -> Dict[str, Any]:
        own = os.lstat(path)
        is_link = stat.S_ISLNK(own.st_mode)
        shown = own
        if is_link:
            try:
                shown = os.stat(path)
            except OSError:
                # A link that leads nowhere is shown as itself.
                pass
        kinds = ((stat.S_ISDIR, "directory"), (stat.S_ISREG, "file"))
        info: Dict[str, Any] = {
            "name": path,
            "size": shown.st_size,
            "type": next((kind for test, kind in kinds if test(shown.st_mode)), "other"),
            "created": own.st_ctime,
            "islink": is_link,
        }
        info.update({key: getattr(shown, f"st_{key}") for key in ("mode", "uid", "gid", "mtime", "ino", "nlink")})
        if is_link:
            info["destination"] = os.readlink(path)
        return info

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Whether there is something at the path; a link that leads nowhere is nothing."""
        return os.path.exists(self._name_on_mount(path))

    def lexists(self, path: str, **kwargs: Any) -> bool:
        return os.path.lexists(self._strip_protocol(path))

    def created(self, path: str) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self.info(path)["created"], tz=datetime.timezone.utc)

    def modified(self, path: str) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self.info(path)["mtime"], tz=datetime.timezone.utc)

    # Files

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: Optional[int] = None,
        autocommit: bool = True,
        cache_options: Any = None,
        compression: Any = None,
        **kwargs: Any,
    ) -> OpenFile:
        path = self._on_mount(path)
        self._make_parent(path, mode)
        return OpenFile(self, path, mode, block_size or BLOCK_BYTES, autocommit, compression)

    def _make_parent(self, path: str, mode: str = "wb") -> None:
        if self.auto_mkdir and not mode.startswith("r"):
            os.makedirs(os.path.dirname(path), exist_ok=True)

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        path = self._on_mount(path)
        self._make_parent(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if truncate else 0)
        fd = os.open(path, flags, 0o666)
        try:
            os.utime(fd)
        finally:
            os.close(fd)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Copies a file within the kernel where that can be, or makes the directory that ``path1`` is."""
        self._copy(self._on_mount(path1), self._on_mount(path2))

    def get_file(self, rpath: str, lpath: Any, callback: Any = None, **kwargs: Any) -> None:
        rpath = self._on_mount(rpath)
        if isfilelike(lpath):
            with open(rpath, "rb", buffering=0) as file:
                shutil.copyfileobj(file, lpath, BLOCK_BYTES)
        else:
            self._copy(rpath, stringify_path(lpath), callback)

    def put_file(self, lpath: str, rpath: str, callback: Any = None, mode: str = "overwrite", **kwargs: Any) -> None:
        rpath = self._on_mount(rpath)
        if mode == "create" and os.path.lexists(rpath):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), rpath)
        self._copy(stringify_path(lpath), rpath, callback)

    def _copy(self, source: str, target: str, callback: Any = None) -> None:
        if self.auto_mkdir:
            os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
        if os.path.isdir(source):
            os.makedirs(target, exist_ok=True)
            return
        with open(source, "rb", buffering=0) as reader:
            if os.path.isdir(target):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), target)
            if os.path.exists(target) and os.path.samefile(source, target):
                raise AmphiError(f"{source} and {target} are the same file; nothing was copied")
            # A target that exists is cut only when the source could be opened.
            with open(target, "wb", buffering=0) as writer:
                _copy_bytes(reader, writer, callback or NoOpCallback())
                if self.sync:
                    os.fsync(writer.fileno())

    def mv(self, path1: str, path2: str, recursive: bool = True, maxdepth: Optional[int] = None, **kwargs: Any) -> None:
        """Renames; between two mounts the bytes are copied, and then the source is removed."""
        source, target = self._name_on_mount(path1), self._name_on_mount(path2)
        self._make_parent(target)
        shutil.move(source, target)

    mv_file = mv

    def link(self, src: str, dst: str, **kwargs: Any) -> None:
        os.link(self._name_on_mount(src), self._name_on_mount(dst))

    def symlink(self, src: str, dst: str, **kwargs: Any) -> None:
        os.symlink(stringify_path(src), self._name_on_mount(dst))

    def islink(self, path: str) -> bool:
        return os.path.islink(self._strip_protocol(path))

    def chmod(self, path: str, mode: int) -> None:
        os.chmod(self._on_mount(path), mode)

    def rm_file(self, path: str) -> None:
        os.remove(self._name_on_mount(path))

    def _rm(self, path: str) -> None:
        self.rm_file(path)

    def rm(self, path: Union[str, List[str]], recursive: bool = False, maxdepth: Optional[int] = None) -> None:
        for one in path if isinstance(path, list) else [path]:
            one = self._name_on_mount(one)
            if os.path.ismount(one):
                raise AmphiError(f"{one} is a mount: remove what is in it, or unmount it (amphi umount)")
            if os.path.isdir(one) and not os.path.islink(one):
                if not recursive:
                    raise IsADirectoryError(errno.EISDIR, "give recursive=True to remove a directory", one)
                shutil.rmtree(one)
            else:
                os.remove(one)

    def _isfilestore(self) -> bool:
        return True


def _copy_bytes(reader: Any, writer: Any, callback: Any) -> None:
    """Copies a file to its end: within the kernel (``copy_file_range``) where both sides can, else through memory."""
    size = os.fstat(reader.fileno()).st_size
    callback.set_size(size)
    done = 0
    in_kernel = True
    while True:
        if in_kernel:
            try:
                moved = os.copy_file_range(reader.fileno(), writer.fileno(), COPY_BYTES)
            except OSError as e:
                if e.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                    raise
                in_kernel = False
                continue
            if moved == 0 and done < size:
                # Some file systems answer 0 where they cannot; a file that was cut meanwhile ends the loop below.
                in_kernel = False
                continue
        else:
            part = os.read(reader.fileno(), BLOCK_BYTES)
            moved = 0
            while moved < len(part):
                moved += os.write(writer.fileno(), memoryview(part)[moved:])
        if moved == 0:
            return
        done += moved
        callback.relative_update(moved)


class OpenFile(io.IOBase):
    """A file of fsspec. Reads into a buffer that are larger than ``block_size`` go straight into it.

    With ``autocommit=False`` the bytes go to a hidden file beside the target, which takes its name in :meth:`commit`
    once they are stable, or is removed by :meth:`discard`.
    """

    def __init__(
        self, fs: AmphiFileSystem, path: str, mode: str, block_size: int, autocommit: bool, compression: Any
    ) -> None:
        self.fs, self.path, self.mode, self.blocksize = fs, path, mode, block_size
        self.autocommit = autocommit or mode.startswith("r")
        self.compression = get_compression(path, compression)
        self.temporary = path
        if not self.autocommit:
            if mode[0] in "a" or "+" in mode:
                raise AmphiError(f"mode {mode!r} changes a file in place, which no transaction can; use wb or xb")
            if mode[0] == "x" and os.path.lexists(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            parent, name = os.path.split(path)
            self.temporary = os.path.join(parent, f".{name}.amphi-{uuid.uuid4().hex}")
        self._begin()

    def _begin(self) -> None:
        self.raw: Any = open(self.temporary, self.mode, buffering=self.blocksize)
        self.f: Any = compr[self.compression](self.raw, mode=self.mode[0]) if self.compression else self.raw
        self.size = os.fstat(self.raw.fileno()).st_size if self.mode.startswith("r") else None

    def __getstate__(self) -> Dict[str, Any]:
        if not self.mode.startswith("r"):
            raise AmphiError(f"{self.path} is open for writing, so it cannot go to another process; close it first")
        kept = {k: v for k, v in self.__dict__.items() if k not in ("raw", "f")}
        return {**kept, "position": self.tell()}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        position = state.pop("position")
        self.__dict__.update(state)
        self._begin()
        self.seek(position)

    def commit(self) -> None:
        """Gives the file its name; it replaces what had it, in one step."""
        if self.autocommit:
            raise AmphiError(f"{self.path} was not opened in a transaction, so it has its name already")
        self.close()
        if self.mode[0] == "x":
            os.link(self.temporary, self.path)
            os.remove(self.temporary)
        else:
            os.replace(self.temporary, self.path)
        sync_directory(os.path.dirname(self.path))

    def discard(self) -> None:
        """Removes what was written; what had the name stays."""
        if self.autocommit:
            raise AmphiError(f"{self.path} was not opened in a transaction, so it cannot be discarded")
        self.close()
        os.remove(self.temporary)

    def close(self) -> None:
        if "f" not in self.__dict__ or self.raw.closed:
            return
        try:
            if self.f is not self.raw:
                self.f.close()
            if not self.mode.startswith("r") and not self.raw.closed:
                self.raw.flush()
                if self.fs.sync or not self.autocommit:
                    os.fsync(self.raw.fileno())
        finally:
            self.raw.close()

    @property
    def closed(self) -> bool:
        return "f" not in self.__dict__ or bool(self.raw.closed)

    def readable(self) -> bool:
        return "r" in self.mode or "+" in self.mode

    def writable(self) -> bool:
        return "r" not in self.mode or "+" in self.mode

    def seekable(self) -> bool:
        return bool(self.f.seekable())

    def read(self, size: int = -1) -> bytes:
        found: bytes = self.f.read(size)
        return found

    def readinto(self, buffer: Any) -> int:
        return int(self.f.readinto(buffer))

    def readline(self, size: Optional[int] = -1) -> bytes:
        found: bytes = self.f.readline(-1 if size is None else size)
        return found

    def write(self, data: Any) -> int:
        return int(self.f.write(data))

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self.f.seek(offset, whence))

    def tell(self) -> int:
        return int(self.f.tell())

    def flush(self, force: bool = False) -> None:
        if not self.closed:
            self.f.flush()

    def truncate(self, size: Optional[int] = None) -> int:
        return int(self.f.truncate(size))

    def fileno(self) -> int:
        return int(self.raw.fileno())

    def __enter__(self) -> OpenFile:
        return self

    def __exit__(self, *unused: Any) -> None:
        self.close()

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:
            # Nobody is left who could be told; who wants to know closes the file.
            pass
