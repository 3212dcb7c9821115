"""libattn and PyTorch in one process: which threads compute, calls in parallel, and forks."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", minversion="2.4")

from libattn import _library  # noqa: E402

# The package's own library links no OpenMP; another build of it may.
pytestmark = pytest.mark.skipif(
    any(name in pathlib.Path(_library.PATH).read_bytes() for name in (b"libgomp.so", b"libomp.so")),
    reason="this build of the library links OpenMP itself",
)

OPENING = """
import os, threading
import numpy as np

def runtimes():
    lines = open("/proc/self/maps").read().splitlines()
    paths = {line.split()[-1] for line in lines if "/" in line}
    names = ("libgomp", "libomp.", "libomp-", "libiomp5")
    return sorted(path for path in paths if os.path.basename(path).startswith(names))

def threads():
    return len(os.listdir("/proc/self/task"))

def draw(seed):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((2, 64, 4, 32)).astype(np.float32) for _ in "qkv"]

def textbook(q, k, v):
    q, k, v = (x.astype(np.float64).swapaxes(1, 2) for x in (q, k, v))
    p = np.exp(q @ k.swapaxes(2, 3) / np.sqrt(32))
    return (p / p.sum(-1, keepdims=True) @ v).swapaxes(1, 2)

def right(seed):
    return np.abs(libattn.attention(*draw(seed)) - textbook(*draw(seed))).max() < 1e-5
"""


def run(program: str) -> None:
    """A program in a process of its own; a hang is a failure."""
    done = subprocess.run(
        [sys.executable, "-c", OPENING + program], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_torch_first_shares_its_threads():
    run("""
import torch
torch.set_num_threads(4)
x = torch.randn(512, 512)
for _ in range(3): torch.exp(x @ x).sum()
torch.exp(torch.randn(1 << 20))
before = threads()
import libattn
libattn.set_num_threads(4)
assert right(1) and right(2)
assert threads() == before, (before, threads())
assert len(runtimes()) == 1, runtimes()
""")


def test_libattn_first_then_torch():
    run("""
import libattn
libattn.set_num_threads(3)
assert right(1)
assert runtimes() == [], runtimes()
own = threads()
assert own >= 3
import torch
torch.set_num_threads(3)
torch.exp(torch.randn(1 << 20))
with_torch = threads()
assert right(2)
assert threads() == with_torch, (with_torch, threads())
assert len(runtimes()) == 1, runtimes()
""")


def test_numpy_alone_brings_no_runtime():
    run("""
import libattn
libattn.set_num_threads(2)
assert right(1)
assert runtimes() == [], runtimes()
""")


def test_while_torch_computes_in_other_threads():
    run("""
import libattn, torch
libattn.set_num_threads(2)
torch.set_num_threads(2)
stop = threading.Event()
wrong = []
x = torch.ones(1 << 18)
def work():
    while not stop.is_set():
        if torch.add(x, 1).sum().item() != 2 * x.numel():
            wrong.append("torch")
others = [threading.Thread(target=work) for _ in range(2)]
for other in others: other.start()
for seed in range(40):
    if not right(seed): wrong.append(seed)
stop.set()
for other in others: other.join()
assert not wrong, wrong
assert len(runtimes()) == 1, runtimes()
""")


@pytest.mark.parametrize("first", ["libattn", "torch"])
def test_workers_of_a_data_loader(first: str):
    run(f"""
import {first}
import libattn, torch
libattn.set_num_threads(2)
torch.set_num_threads(2)
torch.exp(torch.randn(1 << 20))
assert right(0)

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 6
    def __getitem__(self, at):
        return torch.from_numpy(libattn.attention(*draw(at)))

loader = torch.utils.data.DataLoader(Rows(), batch_size=2, num_workers=2)
rows = torch.cat(list(loader)).numpy()
for at in range(6):
    assert np.abs(rows[at] - textbook(*draw(at))).max() < 1e-5
assert right(1)
assert len(runtimes()) == 1, runtimes()
""")


def test_a_child_and_its_child():
    run("""
import libattn, torch
libattn.set_num_threads(3)
torch.set_num_threads(2)
torch.exp(torch.randn(1 << 20))
assert right(0)
def in_child(body):
    child = os.fork()
    if child == 0:
        os._exit(0 if body() else 1)
    return os.waitpid(child, 0)[1] == 0
assert in_child(lambda: right(1) and right(2) and in_child(lambda: right(3)))
assert right(4)
""")


def test_gradients_through_torch_in_a_child():
    run("""
import libattn, libattn.torch, torch
torch.set_num_threads(2)
def works():
    q, k, v = (torch.from_numpy(x).requires_grad_() for x in draw(5))
    libattn.torch.attention(q, k, v).sum().backward()
    return bool(torch.allclose(v.grad.sum(), torch.tensor(float(q.numel())), rtol=1e-4))
child = os.fork()
if child == 0:
    import signal; signal.alarm(60)
    os._exit(0 if works() else 1)
assert os.waitpid(child, 0)[1] == 0
assert works()
""")
