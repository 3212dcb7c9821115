"""FLOP counts and profiler names of the operators."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.4")

import libattn  # noqa: E402
from libattn import _reference  # noqa: E402
from libattn.torch import _counting, attention, decode, flash_attn_func  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402
from torch.utils import flop_counter  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

B, N, M, H, G, D, E = 2, 7, 11, 4, 2, 8, 6


def i32(*values):
    return torch.tensor(values, dtype=torch.int32)


def qkv(n=N, m=M):
    torch.manual_seed(0)
    shapes = (B, n, H, D), (B, m, G, D), (B, m, G, E)
    return [torch.randn(s).requires_grad_() for s in shapes]


def counted(function, backward=False):
    """{operator: FLOP} of a call, and of its backward."""
    with FlopCounterMode(display=False) as mode:
        out = function()
        if backward:
            out.sum().backward()
    found = {
        str(name).split(".")[-1]: flop for name, flop in mode.get_flop_counts()["Global"].items()
    }
    assert sum(found.values()) == mode.get_total_flops()
    return found


BEGIN = torch.arange(N, dtype=torch.int32) // 2
OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "top left": {"causal": True, "diagonal": "top_left"},
    "diagonal": {"causal": True, "diagonal": -2},
    "origin": {"causal": True, "diagonal": "origin", "origin": libattn.Origin(q=9, kv=6)},
    "window": {"window": (3, 1)},
    "ranges": {"kv_begin": BEGIN[None], "kv_end": torch.stack([BEGIN + 3, BEGIN - 1])},
    "lengths": {"len_q": i32(3, N), "len_kv": i32(M, 4), "causal": True},
    "bias": {"bias": torch.zeros(1, 1, 1, M), "softcap": 2.0, "alibi_slopes": torch.ones(H)},
    "dropout": {"dropout_p": 0.5, "seed": 3},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_counts_are_those_of_visible_pairs(name):
    options = OPTIONS[name]
    q, k, v = qkv()
    arrays = {n: x.numpy() if torch.is_tensor(x) else x for n, x in options.items()}
    arrays.pop("dropout_p", None)
    result = _reference.attention(*(x.detach().numpy() for x in (q, k, v)), **arrays)
    pairs = int((result.p > 0).sum())
    found = counted(lambda: attention(q, k, v, **options), backward=True)
    assert found == {"forward": 2 * pairs * (D + E), "backward": pairs * (6 * D + 4 * E)}


def test_square_causal_is_half():
    q, k, v = qkv(N, N)
    half = B * H * N * N / 2
    assert counted(lambda: attention(q, k, v, causal=True)) == {"forward": 2 * half * (D + E)}
    assert counted(lambda: flash_attn_func(q, k, v, causal=True))["forward"] == 2 * half * (D + E)
    q, k = torch.randn(2, N, H, D, requires_grad=True), torch.randn(2, N, H, D)
    found = counted(lambda: attention(q, k, k), backward=True)
    assert found["backward"] == 2.5 * found["forward"]


def test_packed_sequences():
    q, k, v = torch.randn(9, H, D), torch.randn(12, G, D), torch.randn(12, G, E)
    lengths = {"cu_len_q": i32(0, 4, 4, 9), "cu_len_kv": i32(0, 5, 7, 12)}
    pairs = 4 * 5 + 5 * 5
    assert counted(lambda: attention(q, k, v, **lengths)) == {"forward": 2 * H * pairs * (D + E)}
    begin = {"kv_begin": i32(*[2] * 9), "causal": True}
    rows = [max(i + 1 - 1, 0) for i in range(4)]  # diag 1: i + 2 keys, without the first 2
    rows += [max(i + 1 - 2, 0) for i in range(5)]
    found = counted(lambda: attention(q, k, v, **lengths, **begin))
    assert found == {"forward": 2 * H * sum(rows) * (D + E)}


def test_decoding():
    q, k, v = (x.detach() for x in qkv(n=1))
    length = {"len_kv": i32(4, 9)}
    each = 2 * H * (D + E)
    assert counted(lambda: decode(q, k, v, **length)) == {"decode": 13 * each}
    new = {"k_new": k[:, :1].clone(), "v_new": v[:, :1].clone()}
    assert counted(lambda: decode(q, k, v, **new, **length)) == {"decode_append": 15 * each}
    pages = k.reshape(B * M, 1, G, D), v.reshape(B * M, 1, G, E)
    table = i32(*range(12)).reshape(2, 6)
    assert counted(lambda: decode(q, *pages, block_table=table)) == {"decode": 12 * each}


def test_tensors_without_data():
    q, k, v = (x.detach().to("meta") for x in qkv())
    lengths = {"len_kv": torch.empty(B, dtype=torch.int32, device="meta")}
    found = counted(lambda: attention(q, k, v, **lengths))
    assert found == {"forward": 2 * B * H * N * M * (D + E)}


def test_a_counter_that_is_imported_later(monkeypatch):
    """The formulas are registered even if the counter is imported after libattn.torch."""
    operators = [getattr(torch.ops.libattn, name) for name in _counting._FORMULAS]
    for operator in operators:
        monkeypatch.delitem(flop_counter.flop_registry, operator)
    q, k, v = qkv()
    with FlopCounterMode(display=False) as mode:
        attention(q, k, v)
    assert mode.get_total_flops() == 2 * B * H * N * M * (D + E)
    assert set(operators) <= set(flop_counter.flop_registry)


def test_profiler_names():
    q, k, v = qkv()
    seed = torch.tensor([1])
    with profile(activities=[ProfilerActivity.CPU]) as plain:
        attention(q.detach(), k.detach(), v.detach())
    with profile(activities=[ProfilerActivity.CPU]) as options:
        o = attention(
            q, k, v, causal=True, window=(3, None), dropout_p=0.5, seed=seed, kv_begin=BEGIN[None]
        )
        o.sum().backward()
        decode(q.detach(), k.detach(), v.detach(), len_kv=i32(3, 4))
    names = {one.name for one in plain.events()} | {one.name for one in options.events()}
    expected = {
        "libattn::forward [cpu float32]",
        "libattn::forward [cpu float32 ranges causal window dropout]",
        "libattn::backward [cpu float32 ranges causal window dropout]",
        "libattn::decode",
    }
    assert expected <= names, sorted(n for n in names if "libattn" in n)
    assert np.isfinite(o.detach().numpy()).all()


def test_import_after_the_counter():
    """The operators have formulas where PyTorch's counter was imported before libattn.torch."""
    program = (
        "import torch, torch.utils.flop_counter as f, libattn.torch\n"
        "print(torch.ops.libattn.decode_append in f.flop_registry)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["True"], done.stderr
