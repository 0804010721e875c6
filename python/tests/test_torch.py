"""State dictionaries of PyTorch. Runs where torch is installed; ``scripts/python --torch`` installs it."""

import collections
import multiprocessing
import os
import tempfile

import pytest
from mounted import MOUNT, SECOND

from amphifs import CheckpointDamaged, CheckpointError
from amphifs.checkpoint import Reader

torch = pytest.importorskip("torch")
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.checkpoint.api import CheckpointException  # noqa: E402

import amphifs.dcp as atomic  # noqa: E402
import amphifs.torch as checkpoints  # noqa: E402


@pytest.fixture
def place():
    with tempfile.TemporaryDirectory(prefix="t-", dir=MOUNT) as path:
        yield path


def equal(a, b):
    """Whether two states are the same, to the bit."""
    if isinstance(a, torch.Tensor):
        same = isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape
        return same and torch.equal(a.detach(), b.detach())
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


def trained(steps, seed=0):
    """A small model and its optimizer after some steps."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(300, 500), torch.nn.BatchNorm1d(500), torch.nn.Linear(500, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step(model, optimizer, steps)
    return model, optimizer


def step(model, optimizer, steps):
    generator = torch.Generator().manual_seed(99)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(32, 300, generator=generator)).square().mean().backward()
        optimizer.step()


def test_training_goes_on(place):
    """Goal: training that was saved and loaded goes on as one that was not stopped."""
    model, optimizer = trained(3)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    checkpoints.save(state, f"{place}/c")
    loaded = checkpoints.load(f"{place}/c")
    assert equal(loaded, state)
    other, other_optimizer = trained(0, seed=5)
    other.load_state_dict(loaded["model"])
    other_optimizer.load_state_dict(loaded["optimizer"])
    step(model, optimizer, 2)
    step(other, other_optimizer, 2)
    assert equal(dict(model.state_dict()), dict(other.state_dict()))


def test_all_kinds_of_values(place):
    """Goal: types, shapes, views and plain values come back; one tensor in two places is one tensor again."""
    shared = torch.arange(10.0)
    names = "float16 bfloat16 float32 float64 int8 uint8 int16 int32 int64 bool complex64 complex128".split()
    names += [n for n in ("float8_e4m3fn", "float8_e5m2", "uint16", "uint64") if hasattr(torch, n)]
    raw = torch.randint(0, 2, (4, 16), dtype=torch.uint8)
    state = {
        "types": {n: raw.view(getattr(torch, n)).clone() for n in names},
        "shapes": [torch.zeros(()), torch.zeros(0, 3), torch.zeros(2, 1, 3)],
        "views": (torch.arange(12).reshape(3, 4).t(), torch.arange(10)[::3], torch.ones(1).expand(4, 4)),
        "tied": [shared, shared, shared[:5]],
        3: collections.OrderedDict([("b", 1), ("a", float("inf")), (None, None), (True, "text"), ((1, 2), b"\0\xff")]),
        "parameter": torch.nn.Parameter(torch.ones(3)),
        "size": torch.Size([1, 2]),
        "dtype": torch.bfloat16,
        "device": torch.device("cpu"),
        "conj": torch.tensor([1 + 2j]).conj(),
    }
    checkpoints.save(state, f"{place}/c")
    loaded = checkpoints.load(f"{place}/c")
    for part in ("shapes", "views", "tied", 3, "size", "dtype", "device", "conj"):
        assert equal(loaded[part], state[part]), part
    for n in names:
        assert torch.equal(loaded["types"][n].view(torch.uint8), state["types"][n].view(torch.uint8)), n
        assert loaded["types"][n].dtype == getattr(torch, n)
    assert loaded["tied"][0] is loaded["tied"][1] and loaded["tied"][2] is not loaded["tied"][0]
    assert torch.equal(loaded["parameter"], torch.ones(3))
    with Reader(f"{place}/c") as reader:
        assert "state['tied'][0]" in reader.names() and "state['tied'][1]" not in reader.names()


def test_into_memory_that_is_there(place):
    """Goal: a model is loaded into its own memory; what does not fit is named, and nothing is changed then."""
    model, _ = trained(1)
    checkpoints.save({"model": model.state_dict()}, f"{place}/c")
    other, _ = trained(0, seed=7)
    where = [t.data_ptr() for t in other.state_dict().values()]
    checkpoints.load(f"{place}/c", into={"model": other.state_dict()})
    assert equal(dict(other.state_dict()), dict(model.state_dict()))
    assert where == [t.data_ptr() for t in other.state_dict().values()]
    # Memory that is not in one piece gets the values as well.
    strided = {k: torch.zeros((*v.shape, 2), dtype=v.dtype)[..., 0] for k, v in model.state_dict().items()}
    assert not strided["0.weight"].is_contiguous()
    checkpoints.load(f"{place}/c", into={"model": strided})
    assert all(torch.equal(strided[k], v) for k, v in model.state_dict().items())
    wrong = {k: torch.full_like(v, 7) for k, v in model.state_dict().items()}
    for change, text in (
        (lambda s: s.pop("0.bias"), r"state\['model'\] does not have the keys that were saved: '0.bias'"),
        (lambda s: s.update({"2.bias": torch.zeros(11)}), r"\['2.bias'\]: a tensor of float32 \[10\] was saved"),
        (lambda s: s.update({"2.bias": torch.zeros(10, dtype=torch.float64)}), "float64"),
        (lambda s: s.update({"2.bias": 5}), "there is a int to load it into"),
    ):
        into = dict(wrong)
        change(into)
        with pytest.raises(CheckpointError, match=text):
            checkpoints.load(f"{place}/c", into={"model": into})
        assert all((wrong[k] == 7).all() for k in wrong)


def test_what_cannot_be_kept(place):
    """Goal: what cannot be kept is named with its place, and no checkpoint is begun."""
    for value, text in (
        ({"a": [1, object()]}, r"state\['a'\]\[1\] is a object"),
        ({"a": torch.eye(3).to_sparse()}, "no plain memory"),
        ({"a": torch.zeros(3, device="meta")}, "no plain memory"),
        ({"a": {1, 2}}, "is a set"),
    ):
        with pytest.raises(CheckpointError, match=text):
            checkpoints.save(value, f"{place}/c")
    looped = []
    looped.append(looped)
    with pytest.raises(CheckpointError, match="contain itself"):
        checkpoints.save(looped, f"{place}/c")
    assert os.listdir(place) == []


def test_damage(place):
    """Goal: a bit that changed in a tensor is found when it is loaded."""
    checkpoints.save({"a": torch.zeros(1 << 20)}, f"{place}/c")
    with open(f"{place}/c/shard-00000.data", "r+b") as file:
        file.seek(1 << 21)
        file.write(b"\x01")
    with pytest.raises(CheckpointDamaged, match="shard-00000.data: bytes"):
        checkpoints.load(f"{place}/c")
    assert checkpoints.load(f"{place}/c", verify=False)["a"].count_nonzero() == 1


def test_distributed_checkpoint(place):
    """Goal: a checkpoint of torch.distributed.checkpoint appears whole; after an error the old one stays."""
    path = f"{place}/c"
    dcp.save({"a": torch.ones(1000)}, storage_writer=atomic.AtomicWriter(path))
    with pytest.raises(CheckpointException, match="exists; give another name"):
        dcp.save({"a": torch.ones(1000)}, storage_writer=atomic.AtomicWriter(path))

    class Failing(atomic.AtomicWriter):
        def write_data(self, plan, planner):
            super().write_data(plan, planner)
            raise RuntimeError("planted")

    for name in ("c", "d"):
        with pytest.raises(CheckpointException, match="planted"):
            dcp.save({"a": torch.zeros(1000)}, storage_writer=Failing(f"{place}/{name}", replace=True))
    assert not os.path.exists(f"{place}/d")
    back = {"a": torch.zeros(1000)}
    dcp.load(back, checkpoint_id=path)
    assert (back["a"] == 1).all()
    # What failed before is no part of what comes then.
    assert "__0_0.distcp" in os.listdir(f"{place}/.c.partial-dcp")
    with open(f"{place}/.c.partial-dcp/stale", "w"):
        pass
    dcp.save({"a": torch.full((1000,), 2.0)}, storage_writer=atomic.AtomicWriter(path, replace=True))
    dcp.save({"a": torch.full((1000,), 3.0)}, checkpoint_id=f"{place}/d", storage_writer=atomic.AtomicWriter(path))
    for name, value in (("c", 2), ("d", 3)):
        dcp.load(back, checkpoint_id=f"{place}/{name}")
        assert (back["a"] == value).all()
    assert sorted(os.listdir(place)) == ["c", "d"]
    assert {".metadata", "__0_0.distcp"} <= set(os.listdir(path)) and "stale" not in os.listdir(path)
    os.mkdir(f"{place}/folder")
    with pytest.raises(CheckpointException, match="is no checkpoint of PyTorch"):
        dcp.save({"a": torch.ones(1)}, storage_writer=atomic.AtomicWriter(f"{place}/folder", replace=True))


def _rank(rank, path, rendezvous, answers):
    try:
        torch.distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=3)
        torch.manual_seed(rank)
        for replace in (False, True):
            state = {"rank": rank, "part": torch.randn(1 << 18)}
            checkpoints.save(state, path, replace=replace, timeout_s=120)
            assert equal(checkpoints.load(path), state)
            torch.distributed.barrier()
            shared = {"step": 5, "part": torch.full((1000,), 7.0), f"own{rank}": torch.full((10,), float(rank))}
            dcp.save(shared, storage_writer=atomic.AtomicWriter(path + "-dcp", replace=replace))
            torch.distributed.barrier()
            back = {"part": torch.zeros(1000), "own2": torch.zeros(10)}
            dcp.load(back, checkpoint_id=path + "-dcp")
            assert (back["part"] == 7).all() and (back["own2"] == 2).all()
            torch.distributed.barrier()
        torch.distributed.destroy_process_group()
        answers.put(None)
    except BaseException as e:
        answers.put(f"rank {rank}: {e!r}")


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
def test_ranks(place, tmp_path):
    """Goal: processes of torch.distributed, on two mounts, save one checkpoint, and replace it."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    other = os.path.join(SECOND, os.path.relpath(place, MOUNT))
    paths = [f"{place}/c", f"{other}/c", f"{place}/c"]
    ranks = [context.Process(target=_rank, args=(n, paths[n], tmp_path / "meet", answers)) for n in range(3)]
    for rank in ranks:
        rank.start()
    assert [answers.get(timeout=300) for _ in ranks] == [None] * 3
    for rank in ranks:
        rank.join()
    assert sorted(os.listdir(place)) == ["c", "c-dcp"]
    with Reader(f"{place}/c") as reader:
        assert reader.ranks == 3
        reader.check()
