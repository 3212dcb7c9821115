"""flash_attn_* of full and packed sequences against float64 math, results and gradients.

Lengths, head dims and options are a sample of those that flash-attention's own tests sweep.
"""

import itertools
import random

import pytest

torch = pytest.importorskip("torch", minversion="2.4")

import libattn  # noqa: E402
import libattn.torch as at  # noqa: E402
from libattn.torch import _flash  # noqa: E402

from .naive import alibi, band, check_close, naive  # noqa: E402

LENGTHS = [(1, 147), (113, 203), (128, 217), (108, 256), (203, 113), (97, 97), (3, 241), (241, 3)]
DIMS = [16, 32, 40, 59, 64, 80, 111, 128, 160, 192, 224, 256]
WINDOWS = [(-1, -1), (17, 0), (3, 40), (-1, 9), (30, -1), (0, 0)]
DTYPES = [torch.float16, torch.bfloat16, torch.float32]


def sweep(count, seed):
    everything = itertools.product(
        LENGTHS,
        DIMS,
        DTYPES,
        ["mha", "gqa", "mqa"],
        [False, True],
        WINDOWS,
        [0.0, 5.0],
        [False, True],
        [0.0, 0.17],
    )
    cases = random.Random(seed).sample(list(everything), count)
    return [dict(zip(NAMES, case, strict=True)) for case in cases]


NAMES = ("lengths", "dim", "dtype", "heads", "causal", "window", "softcap", "alibi", "p")
HEADS_KV = {"mha": 4, "gqa": 2, "mqa": 1}
SEED = 77


def kept_pairs(batch, heads, n, m, p):
    """The factors of dropout [b, h, n, m] that the next call after manual_seed(SEED) will use:
    with equal scores and v = 1, each output is the factor of its pair over m."""
    if p == 0:
        return None
    torch.manual_seed(SEED)
    zeros = torch.zeros(batch, max(n, m), heads, 4)
    eye = torch.eye(m)[:, None].expand(batch, m, heads, m)
    out = at.flash_attn_func(zeros[:, :n], zeros[:, :m], eye, p)
    kept = (out > 0).transpose(1, 2)
    steps = int(256 * (1 - p) + 0.5)
    return torch.where(kept, 256.0 / steps, 0.0)


def slopes_of(case, batch):
    if not case["alibi"]:
        return None
    torch.manual_seed(3)
    return torch.rand(batch, 4) * 0.3


def random_inputs(case, batch=2):
    n, m = case["lengths"]
    torch.manual_seed(n * m + case["dim"])
    heads_kv = HEADS_KV[case["heads"]]
    shapes = ((n, 4), (m, heads_kv), (m, heads_kv))
    return [torch.randn(batch, x, h, case["dim"]).to(case["dtype"]) for x, h in shapes]


def wanted(case, inputs, dtype, upstream):
    """out, lse and the gradients of q, k, v in `dtype`, for a whole batch."""
    n, m = inputs[0].size(1), inputs[1].size(1)
    leaves = [x.detach().to(dtype).requires_grad_() for x in inputs]
    slopes = slopes_of(case, inputs[0].size(0))
    out, lse = naive(
        *leaves,
        softcap=case["softcap"],
        add=None if slopes is None else alibi(slopes, n, m),
        seen=band(n, m, case["causal"], case["window"]),
        kept=kept_pairs(inputs[0].size(0), 4, n, m, case["p"]),
        dtype=dtype,
    )
    return out, lse, *torch.autograd.grad(out, leaves, upstream.to(dtype))


def options_of(case, slopes):
    return {
        "dropout_p": case["p"],
        "causal": case["causal"],
        "window_size": case["window"],
        "softcap": case["softcap"],
        "alibi_slopes": slopes,
    }


def check(case, got, inputs, upstream):
    want = wanted(case, inputs, torch.float64, upstream)
    rough = wanted(case, inputs, case["dtype"], upstream)
    for name, *values in zip(("out", "lse", "dq", "dk", "dv"), got, want, rough, strict=True):
        check_close(*values, name, case["dtype"])


@pytest.mark.parametrize("case", sweep(22, 0), ids=str)
def test_full_sequences(case):
    inputs = random_inputs(case)
    upstream = torch.randn(inputs[0].shape).to(case["dtype"])
    slopes = slopes_of(case, 2)
    leaves = [x.detach().requires_grad_() for x in inputs]
    torch.manual_seed(SEED)
    out, lse, probabilities = at.flash_attn_func(
        *leaves, return_attn_probs=True, **options_of(case, slopes)
    )
    assert probabilities is None and lse.dtype == torch.float32 and out.dtype == case["dtype"]
    gradients = torch.autograd.grad(out, leaves, upstream)
    check(case, (out, lse, *gradients), inputs, upstream)
    stacked = torch.stack(inputs[1:], 2).requires_grad_()
    query = leaves[0]
    torch.manual_seed(SEED)
    again = at.flash_attn_kvpacked_func(query, stacked, **options_of(case, slopes))
    assert torch.equal(again, out)
    dq, dkv = torch.autograd.grad(again, (query, stacked), upstream)
    check(case, (again, lse, dq, *dkv.unbind(2)), inputs, upstream)


@pytest.mark.parametrize("case", [c for c in sweep(200, 1) if c["heads"] == "mha"][:8], ids=str)
def test_stacked_qkv(case):
    n = min(case["lengths"][0], 128)
    case = {**case, "lengths": (n, n)}
    inputs = random_inputs(case)
    upstream = torch.randn(inputs[0].shape).to(case["dtype"])
    qkv = torch.stack(inputs, 2).requires_grad_()
    options = options_of(case, slopes_of(case, 2))
    torch.manual_seed(SEED)
    out, lse, _ = at.flash_attn_qkvpacked_func(qkv, return_attn_probs=True, **options)
    gradient = torch.autograd.grad(out, qkv, upstream)[0]
    check(case, (out, lse, *gradient.unbind(2)), inputs, upstream)
    flat = qkv.detach().flatten(0, 1).requires_grad_()
    cu = torch.tensor([0, n, 2 * n], dtype=torch.int32)
    torch.manual_seed(SEED)
    out, lse, _ = at.flash_attn_varlen_qkvpacked_func(
        flat, cu, n, return_attn_probs=True, **options
    )
    gradient = torch.autograd.grad(out, flat, upstream.flatten(0, 1))[0]
    padded = [x.unflatten(0, (2, n)) for x in (out, *gradient.unbind(1))]
    lse = lse.unflatten(1, (2, n)).transpose(0, 1)
    check(case, (padded[0], lse, *padded[1:]), inputs, upstream)


@pytest.mark.parametrize("kvpacked", [False, True])
@pytest.mark.parametrize("case", sweep(12, 2), ids=str)
def test_packed_sequences(case, kvpacked):
    """Sequences of different lengths, one of them empty, each compared separately."""
    n, m = case["lengths"]
    lens_q, lens_k = (n, 0, max(1, n // 3), n // 2), (m, min(m, 5), m // 2, 0)
    full = random_inputs(case, batch=4)
    packed = []
    for x, lens in zip(full, (lens_q, lens_k, lens_k), strict=True):
        packed.append(torch.cat([x[b, :size] for b, size in enumerate(lens)]).requires_grad_())
    cu = [
        torch.tensor([0, *itertools.accumulate(lens)], dtype=torch.int32)
        for lens in (lens_q, lens_k)
    ]
    slopes = slopes_of(case, 4)
    options = {**options_of(case, slopes), "return_attn_probs": True}
    leaves = packed
    torch.manual_seed(SEED)
    if kvpacked:
        leaves = [packed[0], torch.stack(packed[1:], 1).detach().requires_grad_()]
        out, lse, _ = at.flash_attn_varlen_kvpacked_func(*leaves, *cu, n, m, **options)
    else:
        out, lse, _ = at.flash_attn_varlen_func(*leaves, *cu, n, m, **options)
    upstream = torch.randn(out.shape).to(case["dtype"])
    gradients = torch.autograd.grad(out, leaves, upstream)
    if kvpacked:
        gradients = [gradients[0], *gradients[1].unbind(1)]
    kept = kept_pairs(4, 4, n, m, case["p"])
    for b in range(4):
        rows, keys = (slice(int(c[b]), int(c[b + 1])) for c in cu)
        entry = [x[at_][None] for x, at_ in zip(packed, (rows, keys, keys), strict=True)]
        got = [out[rows][None], lse[None, :, rows]]
        got += [g[at_][None] for g, at_ in zip(gradients, (rows, keys, keys), strict=True)]
        results = []
        for kind in (torch.float64, case["dtype"]):
            ours = [x.detach().to(kind).requires_grad_() for x in entry]
            size_q, size_k = lens_q[b], lens_k[b]
            o, l = naive(  # noqa: E741
                *ours,
                softcap=case["softcap"],
                add=None if slopes is None else alibi(slopes[b : b + 1], size_q, size_k),
                seen=band(size_q, size_k, case["causal"], case["window"]),
                kept=None if kept is None else kept[b : b + 1, :, :size_q, :size_k],
                dtype=kind,
            )
            grads = torch.autograd.grad(o, ours, upstream[rows][None].to(kind))
            results.append((o, l, *grads))
        for name, *values in zip(("out", "lse", "dq", "dk", "dv"), got, *results, strict=True):
            check_close(*values, f"{name} of entry {b}", case["dtype"])


@pytest.mark.parametrize("page_size", [1, 7, 16, 256])
@pytest.mark.parametrize("case", sweep(4, 3), ids=str)
def test_packed_queries_over_pages(case, page_size):
    n, m = case["lengths"]
    lens_q, lens_k = (n, max(1, n // 2)), (m, max(1, m // 2))
    q, k, v = random_inputs(case)
    packed = torch.cat([q[b, :size] for b, size in enumerate(lens_q)])
    per_entry = -(-m // page_size)
    table = torch.randperm(2 * per_entry + 3)[: 2 * per_entry].to(torch.int32).view(2, per_entry)
    pages = [torch.full((2 * per_entry + 3, page_size, *x.shape[2:]), 1e4) for x in (k, v)]
    for page, x in zip(pages, (k, v), strict=True):
        for b, j in itertools.product(range(2), range(m)):
            page[table[b, j // page_size], j % page_size] = x[b, j].float()
    pages = [page.to(case["dtype"]) for page in pages]
    cu = [torch.tensor([0, a, a + b], dtype=torch.int32) for a, b in (lens_q, lens_k)]
    slopes = slopes_of(case, 2)
    options = {**options_of(case, slopes), "return_attn_probs": True}
    torch.manual_seed(SEED)
    out, lse, _ = at.flash_attn_varlen_func(packed, *pages, *cu, n, m, block_table=table, **options)
    flat = [torch.cat([x[b, :size] for b, size in enumerate(lens_k)]) for x in (k, v)]
    torch.manual_seed(SEED)
    want, want_lse, _ = at.flash_attn_varlen_func(packed, *flat, *cu, n, m, **options)
    eps = torch.finfo(case["dtype"]).eps
    for got, expected in ((out, want), (lse, want_lse)):
        assert torch.equal(torch.isinf(got), torch.isinf(expected))
        some = torch.isfinite(expected)
        error = (got[some] - expected[some]).abs()
        assert (error <= 4 * eps * (1 + expected[some].abs())).all()


def paged():
    torch.manual_seed(SEED)
    q, kv = torch.randn(7, 4, 8), torch.randn(12, 2, 8)
    pages = torch.cat([kv[:8], kv[:4] * torch.nan, kv[8:]]).view(4, 4, 2, 8)
    table = torch.tensor([[0, 1], [3, 2]], dtype=torch.int32)
    return q, kv, pages, table, [0, 3, 7], [0, 8, 12]


@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("longest", (0, 3, 5, 8, torch.tensor(5)))
def test_keys_past_the_largest_length_are_hidden(causal, longest):
    q, kv, pages, table, cu_q, cu_k = paged()
    found = at.flash_attn_varlen_func(
        q, pages, pages, cu_q, cu_k, 4, longest, block_table=table, causal=causal
    )
    wanted = at.flash_attn_varlen_func(q, kv, kv, cu_q, cu_k, 4, longest, causal=causal)
    torch.testing.assert_close(found, wanted)
    if longest != 8:
        assert not torch.allclose(
            wanted, at.flash_attn_varlen_func(q, kv, kv, cu_q, cu_k, 4, 8, causal=causal)
        )


@pytest.mark.parametrize(
    ("option", "found"),
    (
        ("deterministic", "x"),
        ("return_attn_probs", 1),
        ("max_seqlen_q", torch.tensor(3.9)),
        ("max_seqlen_k", torch.tensor(True)),
        ("max_seqlen_k", -1),
        ("cu_seqlens_k", "x"),
    ),
    ids=str,
)
@pytest.mark.parametrize("in_pages", (False, True))
def test_bad_options_of_packed_sequences(option, found, in_pages):
    q, kv, pages, table, cu_q, cu_k = paged()
    options = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, "max_seqlen_q": 4, "max_seqlen_k": 8}
    options |= {"block_table": table} if in_pages else {}
    keys = pages if in_pages else kv
    with pytest.raises(
        ValueError, match=r"(seqlen|len_kv|deterministic|probs).*: found .*; accepted "
    ):
        at.flash_attn_varlen_func(q, keys, keys, **(options | {option: found}))


def test_pages_have_no_gradient():
    q = torch.randn(3, 2, 8, requires_grad=True)
    pages = torch.randn(2, 4, 2, 8)
    cu, table = torch.tensor([0, 3], dtype=torch.int32), torch.tensor([[0, 1]], dtype=torch.int32)
    with pytest.raises(libattn.Unsupported, match="block_table"):
        at.flash_attn_varlen_func(q, pages, pages, cu, cu, 3, 3, block_table=table)
    with torch.no_grad():
        at.flash_attn_varlen_func(q, pages, pages, cu, cu, 3, 3, block_table=table)


def test_gradient_through_the_normaliser():
    torch.manual_seed(0)
    inputs = [torch.randn(1, x, 2, 4, dtype=torch.float64, requires_grad=True) for x in (3, 5, 5)]

    def results(q, k, v):
        return at.flash_attn_func(q, k, v, causal=True, softcap=3.0, return_attn_probs=True)[:2]

    assert torch.autograd.gradcheck(results, inputs)


def test_rows_that_see_nothing():
    """The documented difference: softmax_lse is -inf there, and o is 0 (bottom-right, n > m)."""
    q, k = torch.randn(1, 5, 2, 8, requires_grad=True), torch.randn(1, 2, 2, 8)
    out, lse, _ = at.flash_attn_func(q, k, k, causal=True, return_attn_probs=True)
    assert (out[:, :3] == 0).all() and (lse[:, :, :3] == -torch.inf).all()
    assert torch.isfinite(lse[:, :, 3:]).all()
    gradient = torch.autograd.grad(out.sum(), q)[0]
    assert (gradient[:, :3] == 0).all() and torch.isfinite(gradient).all()


def test_deterministic_gradients():
    torch.manual_seed(0)
    leaves = [torch.randn(2, 203, 4, 32, requires_grad=True) for _ in range(3)]
    runs = []
    for _ in range(3):
        out = at.flash_attn_func(*leaves, causal=True, deterministic=True)
        runs.append(torch.autograd.grad(out, leaves, torch.ones_like(out)))
    for other in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], other, strict=True))


def test_views_are_not_copied(monkeypatch):
    seen = []

    def spy(q, k, v, **options):
        seen.append((q, k, v))
        return at.attention(q, k, v, **options)

    monkeypatch.setattr(_flash, "attention", spy)
    qkv = torch.randn(2, 6, 3, 4, 8)
    at.flash_attn_qkvpacked_func(qkv)
    flat = qkv.flatten(0, 1)
    cu = torch.tensor([0, 6, 12], dtype=torch.int32)
    at.flash_attn_varlen_qkvpacked_func(flat, cu, 6)
    for tensors, whole in zip(seen, (qkv, flat), strict=True):
        for part, tensor in enumerate(tensors):
            view = whole.select(-3, part)
            assert tensor.data_ptr() == view.data_ptr() and tensor.stride() == view.stride()


@pytest.mark.parametrize(
    "name,shapes",
    [
        ("flash_attn_func", [(3, 2, 8)] * 3),
        ("flash_attn_qkvpacked_func", [(2, 3, 2, 8)]),
        ("flash_attn_qkvpacked_func", [(2, 5, 2, 2, 8)]),
        ("flash_attn_kvpacked_func", [(2, 3, 2, 8), (2, 3, 3, 2, 8)]),
        ("flash_attn_func", [(2, 3, 3, 8), (2, 3, 2, 8), (2, 3, 2, 8)]),
        ("flash_attn_func", [(2, 3, 2, 8), (2, 3, 2, 4), (2, 3, 2, 8)]),
        ("flash_attn_func", [(2, 3, 2, 600)] * 3),
    ],
)
def test_wrong_shapes_are_refused(name, shapes):
    with pytest.raises(ValueError):
        getattr(at, name)(*(torch.zeros(shape) for shape in shapes))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_wrong_lengths_are_refused(dtype):
    x, cu = torch.zeros(3, 2, 8), torch.tensor([0, 3], dtype=torch.int32)
    with pytest.raises(ValueError):
        at.flash_attn_varlen_func(x, x, x, cu.to(dtype), cu, 3, 3)
    with pytest.raises(ValueError):
        at.flash_attn_varlen_func(x, x, x, cu, cu[:1], 3, 3)
