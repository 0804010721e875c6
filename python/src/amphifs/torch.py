"""State dictionaries of PyTorch as checkpoints (:mod:`amphifs.checkpoint`).

Owns: how dictionaries, lists and plain values are described in JSON, tensors that are used twice, ranks of
``torch.distributed``. Nothing is pickled, so loading a checkpoint runs no code of whoever wrote it. Tensors on the CPU
are written from their own memory and read into it.
"""

from __future__ import annotations

import base64
import collections
import uuid
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

import torch

from amphifs.buffers import view
from amphifs.checkpoint import Reader, Writer
from amphifs.errors import CheckpointError
from amphifs.mount import StrPath

#: Note of the index that describes what was saved.
TREE = "tree"
#: Deepest nesting of what is saved.
DEPTH_MAX = 200


def save(
    state: Any,
    path: StrPath,
    *,
    rank: Optional[int] = None,
    ranks: Optional[int] = None,
    attempt: Optional[str] = None,
    replace: bool = False,
    threads: int = 4,
    timeout_s: float = 1800.0,
) -> None:
    """Saves dictionaries, lists and tuples of tensors and plain values; the checkpoint is stable when this returns.

    Each rank of ``torch.distributed`` saves its own state into its own shard; all of them have to call this. Where it
    is not in use, ``rank``, ``ranks`` and ``attempt`` are those of :class:`amphifs.checkpoint.Writer`.

    Raises:
        CheckpointError: something cannot be kept; the text names the place in the state. No checkpoint was made.
        OSError: the disk is full or fails. The next save goes on with what was written.
    """
    if rank is None and ranks is None and _distributed():
        rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
        word = [attempt or uuid.uuid4().hex]
        torch.distributed.broadcast_object_list(word, src=0)
        attempt = word[0]
    # What cannot be kept is found before anything is written.
    tensors: Dict[str, torch.Tensor] = {}
    tree = _Describe(tensors).value(state, "state", 0)
    writer = Writer(
        path,
        rank=rank or 0,
        ranks=ranks or 1,
        attempt=attempt,
        replace=replace,
        threads=threads,
        timeout_s=timeout_s,
    )
    with writer:
        for name, tensor in tensors.items():
            writer.write(name, tensor.cpu().contiguous(), dtype=_dtype_name(tensor), shape=list(tensor.shape))
        writer.note(TREE, tree)


def load(
    path: StrPath,
    *,
    rank: Optional[int] = None,
    device: Any = "cpu",
    into: Any = None,
    verify: bool = True,
    threads: int = 4,
) -> Any:
    """What a rank saved; its own one in ``torch.distributed``, otherwise that of rank 0.

    Args:
        device: Where the tensors go.
        into: A state like the one that was saved. Its tensors get the values, in their own memory where they lie on the
            CPU in one piece, and it is returned with the saved plain values in fresh dictionaries and lists.
        verify: Whether everything is compared with its checksums.
    Raises:
        CheckpointError: there is no checkpoint, or ``into`` has another shape; the text names the place. Of ``into``
            nothing was changed.
        CheckpointDamaged: bytes are not those that were written. Tensors of ``into`` may be changed already.
    """
    if rank is None:
        rank = torch.distributed.get_rank() if _distributed() else 0
    with Reader(path, verify=verify, threads=threads) as reader:
        tree = reader.index(rank).notes.get(TREE)
        if tree is None:
            raise CheckpointError(f"{reader.path} is not of amphifs.torch; read it with amphifs.checkpoint.Reader")
        targets: Dict[str, torch.Tensor] = {}
        if into is not None:
            _match(tree, into, "state", reader, rank, targets)
        loaded: Dict[str, torch.Tensor] = {}

        def tensor(name: str) -> torch.Tensor:
            if name not in loaded:
                loaded[name] = _read(reader, rank, name, targets.get(name), device)
            return loaded[name]

        return _rebuild(tree, tensor)


def _distributed() -> bool:
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).split(".", 1)[1]


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise CheckpointError(f"this PyTorch ({torch.__version__}) has no type {name}; take the one that saved it")
    return found


def _read(
    reader: Reader, rank: int, name: str, target: Optional[torch.Tensor], device: Any
) -> torch.Tensor:
    """One tensor, into the target's memory where there is one that can be read into."""
    meta = reader.entry(name, rank).meta
    if target is not None and target.device.type == "cpu" and target.is_contiguous():
        reader.read_into(view(target.detach()), name, rank)
        return target
    read = torch.empty(meta["shape"], dtype=_dtype(meta["dtype"]))
    reader.read_into(view(read), name, rank)
    if target is None:
        return read.to(device)
    with torch.no_grad():
        target.copy_(read)
    return target


class _Describe:
    """What is saved as JSON: a value that JSON has stands for itself, everything else is ``{kind: ...}``."""

    def __init__(self, tensors: Dict[str, torch.Tensor]) -> None:
        self.tensors = tensors
        self.names: Dict[Tuple[Any, ...], str] = {}

    def value(self, value: Any, place: str, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise CheckpointError(f"{place}: nested more than {DEPTH_MAX} times; does it contain itself?")
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, torch.Tensor):
            return {"tensor": self.tensor(value, place)}
        if type(value) in (dict, collections.OrderedDict):
            pairs = [
                [self.value(k, f"{place}: key {k!r}", depth + 1), self.value(v, f"{place}[{k!r}]", depth + 1)]
                for k, v in value.items()
            ]
            return {"ordered" if type(value) is collections.OrderedDict else "dict": pairs}
        if type(value) in (list, tuple, torch.Size):
            items = [self.value(v, f"{place}[{n}]", depth + 1) for n, v in enumerate(value)]
            return {{list: "list", tuple: "tuple", torch.Size: "size"}[type(value)]: items}
        if isinstance(value, bytes):
            return {"bytes": base64.b64encode(value).decode()}
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).split(".", 1)[1]}
        if isinstance(value, torch.device):
            return {"device": str(value)}
        raise CheckpointError(
            f"{place} is a {type(value).__name__}, which is not kept: give tensors, dictionaries, lists, tuples, "
            "numbers, texts and bytes (of an object: its state_dict(), of an array: torch.from_numpy)"
        )

    def tensor(self, tensor: torch.Tensor, place: str) -> str:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            raise CheckpointError(f"{place} is a {type(tensor).__name__}; save its local tensor (to_local())")
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
            raise CheckpointError(f"{place} has no plain memory (sparse, quantized or meta); save a dense tensor")
        tensor = tensor.detach()
        if tensor.is_conj() or tensor.is_neg():
            tensor = tensor.resolve_conj().resolve_neg()
        # The same memory seen in the same way is written once, and is one tensor again after loading.
        seen = (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() and seen in self.names:
            return self.names[seen]
        name = place
        while name in self.tensors:
            name += "'"
        self.tensors[name] = tensor
        self.names[seen] = name
        return name


def _rebuild(tree: Any, tensor: Callable[[str], torch.Tensor]) -> Any:
    if not isinstance(tree, dict):
        return tree
    (kind, inner), = tree.items()
    makers: Mapping[str, Callable[[Any], Any]] = {
        "tensor": tensor,
        "dict": lambda pairs: {_rebuild(k, tensor): _rebuild(v, tensor) for k, v in pairs},
        "ordered": lambda pairs: collections.OrderedDict((_rebuild(k, tensor), _rebuild(v, tensor)) for k, v in pairs),
        "list": lambda items: [_rebuild(i, tensor) for i in items],
        "tuple": lambda items: tuple(_rebuild(i, tensor) for i in items),
        "size": lambda items: torch.Size(items),
        "bytes": base64.b64decode,
        "dtype": _dtype,
        "device": torch.device,
    }
    if kind not in makers:
        raise CheckpointError(f"the checkpoint holds a {kind!r}, which is not known here: take a newer amphifs")
    return makers[kind](inner)


def _match(
    tree: Any, into: Any, place: str, reader: Reader, rank: int, targets: Dict[str, torch.Tensor]
) -> None:
    """Finds the tensor of ``into`` for each that was saved, before anything is read."""
    if not isinstance(tree, dict):
        return
    (kind, inner), = tree.items()
    if kind == "tensor":
        meta = reader.entry(inner, rank).meta
        if not isinstance(into, torch.Tensor):
            raise CheckpointError(f"{place}: a tensor was saved, and there is a {type(into).__name__} to load it into")
        if list(into.shape) != meta["shape"] or _dtype_name(into) != meta["dtype"]:
            raise CheckpointError(
                f"{place}: a tensor of {meta['dtype']} {meta['shape']} was saved, and there is one of "
                f"{_dtype_name(into)} {list(into.shape)} to load it into"
            )
        if targets.setdefault(inner, into) is not into and targets[inner].data_ptr() != into.data_ptr():
            raise CheckpointError(f"{place}: one tensor was saved for several places, and here they are different ones")
    elif kind in ("dict", "ordered"):
        saved = [_rebuild(k, _no_tensor) for k, _ in inner]
        if not isinstance(into, dict) or set(saved) != set(into):
            other = sorted(map(repr, set(saved) ^ set(into))) if isinstance(into, dict) else [type(into).__name__]
            raise CheckpointError(f"{place} does not have the keys that were saved: {', '.join(other)}")
        for key, (_, value) in zip(saved, inner):
            _match(value, into[key], f"{place}[{key!r}]", reader, rank, targets)
    elif kind in ("list", "tuple"):
        if not isinstance(into, (list, tuple)) or len(into) != len(inner):
            raise CheckpointError(f"{place}: {len(inner)} items were saved, and there are others to load them into")
        for n, value in enumerate(inner):
            _match(value, into[n], f"{place}[{n}]", reader, rank, targets)


def _no_tensor(name: str) -> torch.Tensor:
    raise CheckpointError(f"{name}: a tensor is the key of a dictionary; save it under a text")
