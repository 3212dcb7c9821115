"""flash_attn_with_kvcache against float64 math: append, rotation, pages, indices, left padding.

Tensors of a call are on `device`. They are drawn, and the expected results computed, on the CPU.
"""

import inspect
import itertools
import random

import pytest

torch = pytest.importorskip("torch", minversion="2.4")

import libattn.torch as at  # noqa: E402

from .naive import alibi, band, check_close, naive, turned  # noqa: E402

NAMES = (
    "lengths",
    "dim",
    "dtype",
    "heads_kv",
    "new",
    "causal",
    "window",
    "alibi",
    "rotary",
    "interleaved",
    "placement",
    "leftpad",
    "splits",
    "softcap",
)


def sweep(count):
    everything = itertools.product(
        [(1, 128), (1, 339), (3, 241), (64, 200), (16, 400), (128, 128)],
        [32, 59, 64, 80, 128, 256],
        [torch.float16, torch.bfloat16, torch.float32],
        [6, 3, 1],
        ["none", "as queries", "fewer"],
        [False, True],
        [(-1, -1), (20, 11), (50, -1)],
        [False, True],
        [0.0, 0.5, 1.0],
        [False, True],
        ["whole", "indexed", "pages of 16", "pages of 256"],
        [False, True],
        [0, 1, 3],
        [0.0, 4.0],
    )
    return [
        dict(zip(NAMES, case, strict=True))
        for case in random.Random(4).sample(list(everything), count)
    ]


def on(device, *tensors):
    """The tensors on the device; None stays None."""
    return [None if x is None else x.to(device) for x in tensors]


class Cache:
    """A cache [entries, capacity, g, d]: contiguous, indexed or paged. The last two are part of a
    larger tensor; a call must not change the rest of it. k and v are on the device."""

    def __init__(self, device, case, batch, capacity, heads, dim):
        self.batch, self.capacity = batch, capacity
        self.idx = self.table = None
        dtype = case["dtype"]
        if case["placement"].startswith("pages"):
            size = int(case["placement"].split()[-1])
            per_entry = -(-capacity // size)
            self.capacity = per_entry * size
            pages = torch.randperm(3 * batch * per_entry, dtype=torch.int32)
            self.table = pages[: batch * per_entry].view(batch, per_entry)
            shape = (3 * batch * per_entry, size, heads, dim)
        elif case["placement"] == "indexed":
            self.idx = torch.randperm(2 * batch, dtype=torch.int32)[:batch]
            shape = (2 * batch, capacity, heads, dim)
        else:
            shape = (batch, capacity, heads, dim)
        self.k, self.v = (torch.randn(shape).to(device, dtype) for _ in range(2))

    def read(self, memory):
        """[b, capacity, g, d] on the CPU: what the entries hold."""
        memory = memory.cpu()
        if self.table is not None:
            return memory[self.table.long()].flatten(1, 2)
        return memory[self.idx.long()] if self.idx is not None else memory.clone()

    def untouched(self, before, after):
        """True where no entry of the batch lies in the memory and it is as before."""
        before, after = before.cpu(), after.cpu()
        used = torch.zeros(len(before), dtype=torch.bool)
        rows = self.table.flatten() if self.table is not None else self.idx
        used[slice(None) if rows is None else rows.long()] = True
        return torch.equal(before[~used], after[~used])


def tables(case, capacity):
    rotary = int(case["rotary"] * case["dim"]) // 16 * 16 if case["new"] != "none" else 0
    if rotary == 0:
        return None, None
    angle = torch.rand(capacity, rotary // 2) * 6.28
    return torch.cos(angle).to(case["dtype"]), torch.sin(angle).to(case["dtype"])


@pytest.mark.parametrize("case", sweep(48), ids=str)
def test_against_float64(device, case):
    n, m = case["lengths"]
    batch, heads, dim, dtype = 2, 6, case["dim"], case["dtype"]
    torch.manual_seed(n * m + dim)
    cache = Cache(device, case, batch, m, case["heads_kv"], dim)
    q = torch.randn(batch, n, heads, dim).to(dtype)
    len_new = {"none": 0, "as queries": n, "fewer": max(1, n // 2)}[case["new"]]
    k = v = None
    if len_new:
        k, v = (torch.randn(batch, len_new, case["heads_kv"], dim).to(dtype) for _ in range(2))
    start = torch.randint(0 if len_new else 1, m - max(n, len_new) + 2, (batch,)).int()
    start = start.clamp(max=m - max(n, len_new)) if len_new else start
    cos, sin = tables(case, cache.capacity)
    slopes = torch.rand(batch, heads) * 0.3 if case["alibi"] else None
    pad = (torch.rand(batch) * start).int() if case["leftpad"] else torch.zeros(batch).int()
    moving = case["causal"] or case["window"] != (-1, -1)
    before = [x.clone() for x in (cache.k, cache.v)]

    # The expected result: rotate, write and attend, one sequence at a time.
    steps_q = torch.arange(n) * int(moving)
    turned_q, turned_k = q.double(), None if k is None else k.double()
    if cos is not None:
        style = case["interleaved"]
        turned_q = turned(q, cos, sin, start[:, None] + steps_q, style)
        turned_k = turned(k, cos, sin, start[:, None] + torch.arange(len_new), style)
    keys, values = cache.read(cache.k).double(), cache.read(cache.v).double()
    for b in range(batch):
        if len_new:
            keys[b, start[b] : start[b] + len_new] = turned_k[b]
            values[b, start[b] : start[b] + len_new] = v[b].double()

    leftpad = pad if case["leftpad"] else None
    outputs = at.flash_attn_with_kvcache(
        q.to(device),
        cache.k,
        cache.v,
        *on(device, k, v, cos, sin, start, cache.idx, leftpad, cache.table),
        causal=case["causal"],
        window_size=case["window"],
        softcap=case["softcap"],
        rotary_interleaved=case["interleaved"],
        alibi_slopes=on(device, slopes)[0],
        num_splits=case["splits"],
        return_softmax_lse=True,
    )
    assert all(x.device.type == device for x in outputs)
    out, lse = on("cpu", *outputs)

    held = cache.read(cache.k).double()
    eps = torch.finfo(dtype).eps
    assert ((held - keys).abs() <= 2 * eps * (1 + keys.abs())).all(), "the keys in the cache"
    wrong = (cache.read(cache.v).double() != values).nonzero()
    places = wrong[:4].tolist()
    assert not len(wrong), f"the values in the cache: {len(wrong)} differ, the first at {places}"
    assert cache.untouched(before[0], cache.k) and cache.untouched(before[1], cache.v)
    for b in range(batch):
        length = int(start[b]) + len_new
        rows = [turned_q[b : b + 1].to(dtype), held[b : b + 1, :length], values[b : b + 1, :length]]
        seen = band(n, length, case["causal"], case["window"])
        seen &= torch.arange(length) >= pad[b]
        add = None if slopes is None else alibi(slopes[b : b + 1], n, length)
        results = [
            naive(*rows, softcap=case["softcap"], add=add, seen=seen, dtype=kind)
            for kind in (torch.float64, dtype)
        ]
        for name, *triple in zip(("out", "lse"), (out[b : b + 1], lse[b : b + 1]), *results):  # noqa: B905
            check_close(*triple, f"{name} of entry {b}", dtype)


Q, K_NEW = (1, 3, 4, 16), (1, 2, 2, 16)


def step(device, seed=0, **options):
    """A small call with new keys; returns (out, k_cache, v_cache). Options may be on the CPU."""
    torch.manual_seed(seed)
    q, k, v = torch.randn(Q), torch.randn(K_NEW), torch.randn(K_NEW)
    caches = torch.randn(3, 12, 2, 16), torch.randn(3, 12, 2, 16)
    cos, sin = torch.rand(12, 8), torch.rand(12, 8)
    given = {"k": k, "v": v, "cache_seqlens": 4, "rotary_cos": cos, "rotary_sin": sin}
    given["cache_batch_idx"] = torch.tensor([1], dtype=torch.int32)
    given |= options
    given = {n: x.to(device) if torch.is_tensor(x) else x for n, x in given.items()}
    q, *caches = on(device, q, *caches)
    return at.flash_attn_with_kvcache(q, *caches, **given), *caches


OTHER = {
    "k": torch.zeros(K_NEW),
    "v": torch.zeros(K_NEW),
    "rotary_cos": torch.ones(12, 8),
    "rotary_sin": torch.zeros(12, 8),
    "cache_seqlens": torch.tensor([7], dtype=torch.int32),
    "cache_batch_idx": torch.tensor([2], dtype=torch.int32),
    "cache_leftpad": torch.tensor([3], dtype=torch.int32),
    "softmax_scale": 0.7,
    "causal": True,
    "window_size": (1, 0),
    "softcap": 0.3,
    "rotary_interleaved": False,
    "alibi_slopes": torch.full((4,), 0.5),
    "block_table": None,  # test_block_table
    "num_splits": None,  # test_number_of_splits
    "return_softmax_lse": None,  # test_against_float64
}


def test_every_parameter_is_tested():
    parameters = list(inspect.signature(at.flash_attn_with_kvcache).parameters)
    assert parameters[:3] == ["q", "k_cache", "v_cache"] and set(parameters[3:]) == set(OTHER)


@pytest.mark.parametrize("name", [name for name, value in OTHER.items() if value is not None])
def test_each_parameter_changes_the_result(device, name):
    plain, other = step(device), step(device, **{name: OTHER[name]})
    assert not torch.allclose(plain[0], other[0], atol=1e-4)
    k_changes = name in ("k", "rotary_cos", "rotary_sin", "rotary_interleaved", "cache_seqlens")
    moved = name in ("cache_batch_idx", "cache_seqlens")
    assert torch.equal(plain[1], other[1]) != (k_changes or moved)
    assert torch.equal(plain[2], other[2]) != (name == "v" or moved)


def test_number_of_splits(device):
    plain = step(device)[0]
    for splits in (1, 2, 5, 100):
        assert torch.allclose(step(device, num_splits=splits)[0], plain, atol=1e-6)
    with pytest.raises(ValueError, match="num_splits"):
        step(device, num_splits=-1)


def test_block_table(device):
    """The same pages through a table and through an index; a table of other pages differs."""
    plain = step(device)
    table = torch.tensor([[1]], dtype=torch.int32)
    same = step(device, cache_batch_idx=None, block_table=table)
    assert all(torch.equal(a, b) for a, b in zip(plain, same, strict=True))
    other = step(device, cache_batch_idx=None, block_table=table + 1)
    assert not torch.allclose(other[0], plain[0], atol=1e-4)


def test_lengths_as_number_tensor_or_whole(device):
    torch.manual_seed(0)
    q, cache = on(device, torch.randn(2, 3, 4, 16), torch.randn(2, 12, 4, 16))
    whole = at.flash_attn_with_kvcache(q, cache, cache)
    number = at.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=12)
    # On CUDA, a call with lengths may run another kernel.
    assert torch.allclose(number, whole, atol=1e-6) if device == "cuda" else number.equal(whole)
    eight = torch.tensor([8, 8], dtype=torch.int32, device=device)
    part = at.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=eight)
    assert torch.equal(at.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=8), part)
    assert torch.allclose(part, at.flash_attn_func(q, cache[:, :8], cache[:, :8]), atol=1e-6)


def test_without_causal_all_queries_turn_alike(device):
    """Rotation takes every query to cache_seqlens when neither causal nor a window is set."""
    zero = torch.zeros(1, 1, 2, 16, device=device)
    torch.manual_seed(0)
    q = torch.randn(1, 1, 2, 16).to(device).expand(1, 3, 2, 16)
    cache, cos, sin = on(device, torch.randn(1, 8, 2, 16), torch.rand(8, 8), torch.rand(8, 8))
    options = {"k": zero, "v": zero, "rotary_cos": cos, "rotary_sin": sin, "cache_seqlens": 4}
    out = at.flash_attn_with_kvcache(q, cache.clone(), cache.clone(), **options)
    assert torch.equal(out[:, :1].expand_as(out), out)
    wide = at.flash_attn_with_kvcache(
        q, cache.clone(), cache.clone(), window_size=(100, 100), **options
    )
    assert not torch.allclose(wide[:, 0], wide[:, 1], atol=1e-3)


def test_no_gradient_is_recorded(device):
    q = torch.randn(1, 1, 2, 8, requires_grad=True, device=device)
    cache = torch.randn(1, 4, 2, 8, device=device)
    assert not at.flash_attn_with_kvcache(q, cache, cache).requires_grad


def test_empty_entry(device):
    q, cache = on(device, torch.randn(2, 1, 2, 8), torch.randn(2, 4, 2, 8))
    lengths = torch.tensor([0, 3], dtype=torch.int32, device=device)
    out, lse = at.flash_attn_with_kvcache(
        q, cache, cache, cache_seqlens=lengths, return_softmax_lse=True
    )
    assert (out[0] == 0).all() and (lse[0] == -torch.inf).all()
    assert torch.isfinite(out).all() and torch.isfinite(lse[1]).all()


@pytest.mark.parametrize(
    "options",
    [
        {"v": None},
        {"cache_seqlens": None},
        {"cache_seqlens": 11},
        {"cache_seqlens": -1},
        {"cache_seqlens": torch.tensor([4.0])},
        {"cache_seqlens": torch.tensor([4, 4], dtype=torch.int32)},
        {"rotary_sin": None},
        {"rotary_cos": torch.rand(11, 8), "rotary_sin": torch.rand(11, 8)},
        {"rotary_cos": torch.rand(12, 9), "rotary_sin": torch.rand(12, 9)},
        {"k": None, "v": None},
        {"block_table": torch.zeros(1, 1, dtype=torch.int32)},
        {"cache_batch_idx": torch.tensor([1.0])},
        {"cache_leftpad": torch.tensor([1.0])},
        {"window_size": (1,)},
        {"alibi_slopes": torch.zeros(3)},
        {"k": torch.zeros(1, 2, 2, 8)},
    ],
    ids=lambda options: ", ".join(options),
)
def test_bad_input_is_refused(device, options):
    with pytest.raises(ValueError):
        step(device, **options)


def test_no_new_rows(device):
    q, cache = on(device, torch.randn(2, 3, 4, 8), torch.randn(2, 16, 2, 8))
    new, tables = cache[:, :0], torch.rand(16, 4, device=device)
    lengths = torch.tensor([3, 16], dtype=torch.int32, device=device)
    out = at.flash_attn_with_kvcache(q, cache, cache.clone(), new, new, cache_seqlens=lengths)
    assert torch.equal(out, at.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=lengths))
    for causal in (False, True):
        step = at.flash_attn_with_kvcache(
            q, cache, cache, new, new, tables, tables, cache_seqlens=lengths, causal=causal
        )
        assert torch.isfinite(step).all() and not torch.allclose(step, out)
    assert cache._version == 0


@pytest.mark.parametrize(
    "options",
    (
        {"cache_seqlens": torch.tensor(3)},
        {"cache_seqlens": torch.tensor([3])},
        {"cache_seqlens": [3]},
        {"cache_seqlens": 3, "cache_leftpad": torch.tensor([1])},
        {"cache_seqlens": 3, "cache_leftpad": torch.tensor(1)},
    ),
    ids=str,
)
def test_each_sequence_has_its_number(device, options):
    q, cache, new = torch.randn(2, 1, 4, 8), torch.randn(2, 16, 2, 8), torch.randn(2, 1, 2, 8)
    q, cache, new, cos, sin = on(device, q, cache, new, torch.rand(16, 4), torch.rand(16, 4))
    name = list(options)[-1]
    with pytest.raises(ValueError, match=rf"shape of {name}: found \(.*; accepted \[2\]"):
        at.flash_attn_with_kvcache(q, cache, cache.clone(), new, new, cos, sin, **options)


def test_strided_cache_is_refused(device):
    cache = torch.zeros(1, 4, 8, 2, device=device).transpose(-1, -2)
    with pytest.raises(ValueError, match="in place"):
        at.flash_attn_with_kvcache(torch.zeros(1, 1, 2, 8, device=device), cache, cache)
