"""Checkpoints of ``torch.distributed.checkpoint`` that appear whole or not at all.

    import torch.distributed.checkpoint as dcp
    dcp.save(state, storage_writer=amphifs.dcp.AtomicWriter("/mnt/run/step-100"))
    dcp.load(state, checkpoint_id="/mnt/run/step-100")

The files are those of PyTorch's own ``FileSystemWriter``, so its reader reads them, with another number of ranks as
well. They are made in ``.NAME.partial-dcp`` beside the checkpoint, synced, and renamed at the end. PyTorch's format has
no checksums; :mod:`amphifs.torch` has them.
"""

from __future__ import annotations

import os
import pathlib
import shutil
from typing import Any, Optional

from torch.distributed.checkpoint import FileSystemWriter

from amphifs.checkpoint import layout
from amphifs.checkpoint.rename import exchange, into_place, sync_directory
from amphifs.errors import CheckpointError
from amphifs.mount import StrPath

#: File whose presence makes a directory a checkpoint of PyTorch.
METADATA = ".metadata"


class AtomicWriter(FileSystemWriter):  # type: ignore[misc]
    """A storage writer for ``dcp.save`` and ``dcp.async_save``; all ranks make it with the same path.

    A save that fails leaves what has the name of the checkpoint as it was; the next one begins anew.
    """

    def __init__(self, path: StrPath, *, replace: bool = False, thread_count: int = 4, **named: Any) -> None:
        """Further arguments are those of ``FileSystemWriter``.

        Args:
            replace: Whether a checkpoint that has the name already is exchanged for the new one.
        Raises:
            CheckpointError: the path names no checkpoint, or what is there is not replaced.
        """
        if named.pop("sync_files", True) is not True:
            raise CheckpointError("sync_files=False: a checkpoint that is not stable could appear and then be lost")
        super().__init__(path, sync_files=True, thread_count=thread_count, **named)
        self.replace = replace
        self._aim(path)

    def _aim(self, path: StrPath) -> None:
        parent, name = layout.split(os.fspath(path))
        self.target = os.path.join(parent, name)
        self.path = pathlib.Path(parent) / f"{layout.partial_prefix(name)}dcp"

    def reset(self, checkpoint_id: Optional[StrPath] = None) -> None:
        super().reset(None)
        if checkpoint_id is not None:
            self._aim(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **named: Any) -> None:
        if not named.get("use_collectives", True):
            raise CheckpointError("use_collectives=False: without a coordinator nobody can say that all ranks are done")
        super().set_up_storage_writer(is_coordinator, *args, **named)

    def prepare_global_plan(self, plans: Any) -> Any:
        """On the coordinator, before any rank writes."""
        self._check_target()
        # What a save that failed has left would be a part of this one.
        shutil.rmtree(self.path, ignore_errors=True)
        os.mkdir(self.path)
        return super().prepare_global_plan(plans)

    def finish(self, metadata: Any, results: Any) -> None:
        """On the coordinator, when all ranks have written and synced their files."""
        super().finish(metadata, results)
        sync_directory(os.fspath(self.path))
        self._check_target()
        partial, parent = os.fspath(self.path), os.path.dirname(self.target)
        if self.replace and os.path.lexists(self.target):
            exchange(partial, self.target)
            sync_directory(parent)
            shutil.rmtree(partial)
            return
        try:
            into_place(partial, self.target)
        except FileExistsError as e:
            raise CheckpointError(f"{self.target} was made by somebody else meanwhile; it stays as it is") from e
        sync_directory(parent)

    def _check_target(self) -> None:
        if not os.path.lexists(self.target):
            return
        if not self.replace:
            raise CheckpointError(f"{self.target} exists; give another name, or replace=True")
        if not os.path.exists(os.path.join(self.target, METADATA)):
            raise CheckpointError(f"{self.target} is no checkpoint of PyTorch and is not replaced; give another name")
