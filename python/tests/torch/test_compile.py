"""libattn.torch under torch.compile and torch.export: one graph, no recompiling, same numbers."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", minversion="2.4")

import libattn  # noqa: E402
from libattn.torch import attention, decode, merge, rope  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def qkv(b=2, n=6, m=8, h=4, g=2, dim=8, dtype=torch.float32):
    shapes = (b, n, h, dim), (b, m, g, dim), (b, m, g, dim)
    return [torch.randn(s, dtype=dtype, requires_grad=True) for s in shapes]


def i32(*values):
    return torch.tensor(values, dtype=torch.int32)


def with_gradients(function, inputs, upstream=None):
    out = function(*inputs)
    outs = out if isinstance(out, tuple) else (out,)
    leaves = [x for x in inputs if x.requires_grad]
    return [*outs, *torch.autograd.grad([x.float().sum() for x in outs], leaves)]


def check_same(function, inputs, backend="aot_eager", tolerance=0.0):
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    want = with_gradients(function, inputs)
    got = with_gradients(compiled, inputs)
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape and (a - b).abs().max() <= tolerance


SEED = torch.tensor([99])
OPTIONS = {
    "plain": {},
    "numbers": {"causal": True, "window": (3, None), "softcap": 2.0, "scale": 0.5},
    "explicit diagonal": {"causal": True, "diagonal": 1, "deterministic": True},
    "origin": {"causal": True, "diagonal": "origin", "origin": libattn.Origin(q=4, kv=1)},
    "dropout": {"dropout_p": 0.25, "seed": SEED, "offset": 3},
    "lengths": {"len_q": i32(6, 2), "len_kv": i32(8, 3)},
    "bounds": {"kv_begin": i32(0, 1, 2, 3, 4, 5)[None], "mask": torch.ones(1, 1, 6, 8).bool()},
    "slopes": {"alibi_slopes": torch.rand(4), "precision": "ieee"},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_one_graph(name):
    check_same(lambda q, k, v: attention(q, k, v, **OPTIONS[name]), qkv())


def test_one_graph_with_bias_sinks_and_lse():
    bias = torch.randn(1, 4, 1, 8, requires_grad=True)
    sinks = torch.randn(4, requires_grad=True)

    def run(q, k, v, bias, sinks):
        o, lse = attention(q, k, v, bias=bias, sinks=sinks, return_lse=True)
        return o, lse.square()

    check_same(run, [*qkv(), bias, sinks], tolerance=1e-6)
    expanded = lambda q, k, v, bias, sinks: run(  # noqa: E731
        q, k, v, bias.expand(2, 4, 6, 8), sinks
    )
    check_same(expanded, [*qkv(), bias, sinks], tolerance=1e-6)


def test_one_graph_with_the_compiler():
    def block(x, w, bias):
        q, k, v = (x @ w).unflatten(-1, (3, 4, 8)).unbind(2)
        q, k = rope(q), rope(k)
        return attention(q, k, v, bias=bias, causal=True).flatten(2).relu()

    leaves = [torch.randn(*s, requires_grad=True) for s in ((2, 6, 16), (16, 96), (1, 4, 6, 6))]
    check_same(block, leaves, backend="inductor", tolerance=1e-4)


def test_one_graph_of_merge_and_rope():
    def run(q, k, v):
        q, k = rope(q, style="interleaved", rot_dim=4), rope(k, style="interleaved", rot_dim=4)
        one = attention(q, k[:, :3], v[:, :3], return_lse=True)
        two = attention(q, k[:, 3:], v[:, 3:], return_lse=True)
        return merge(*one, *two)

    check_same(run, qkv(), tolerance=1e-6)


def test_one_graph_under_autocast():
    def run(q, k, v):
        with torch.autocast("cpu", torch.bfloat16):
            return attention(q, k, v)

    check_same(run, qkv())
    assert torch.compile(run, fullgraph=True, backend="aot_eager")(*qkv()).dtype == torch.bfloat16


def test_one_graph_of_decode():
    q, k, v = (x.detach() for x in qkv(n=1))
    new = torch.randn(2, 1, 2, 8)

    def run(q, k, v, lengths):
        return decode(q, k, v, k_new=new, v_new=new, len_kv=lengths, return_lse=True)

    lengths = i32(5, 3)
    caches = [k.clone(), v.clone()], [k.clone(), v.clone()]
    want = run(q, *caches[0], lengths)
    got = torch.compile(run, fullgraph=True, backend="aot_eager")(q, *caches[1], lengths)
    for a, b in zip((*want, *caches[0]), (*got, *caches[1]), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(caches[0][0], k)


def test_drawn_seed_under_compile():
    run = torch.compile(
        lambda q, k, v: attention(q, k, v, dropout_p=0.5), fullgraph=True, backend="aot_eager"
    )
    inputs = qkv()
    one, two = run(*inputs), run(*inputs)
    assert not torch.equal(one, two)


@pytest.mark.parametrize("packed", [False, True])
def test_dynamic_shapes_do_not_recompile(packed):
    counter = CompileCounterWithBackend("aot_eager")

    def run(q, k, v, cu_len, longest):
        if cu_len is None:
            lengths = {}
        else:
            lengths = {
                "cu_len_q": cu_len,
                "cu_len_kv": cu_len,
                "max_len_q": longest,
                "max_len_kv": longest,
            }
        o, lse = attention(q, k, v, causal=True, return_lse=True, **lengths)
        return o.sum() + lse.sum()

    compiled = torch.compile(run, fullgraph=True, backend=counter, dynamic=True)
    # torch.compile treats sizes that are equal in the first call as one symbol: here, all differ.
    counts = []
    for b, n in ((5, 7), (3, 9), (6, 4), (4, 17)):
        q, k, v = qkv(b=b, n=n, m=n)
        cu_len = longest = None
        if packed:
            q, k, v = (x.detach().flatten(0, 1).requires_grad_() for x in (q, k, v))
            cu_len, longest = torch.arange(b + 1, dtype=torch.int32) * n, n
        found = torch.autograd.grad(compiled(q, k, v, cu_len, longest), (q, k, v))
        want = torch.autograd.grad(run(q, k, v, cu_len, longest), (q, k, v))
        assert all(torch.equal(x, y) for x, y in zip(found, want, strict=True))
        counts.append(counter.frame_count)
    assert counts == counts[:1] * 4


def test_marked_dynamic_sizes_stay_dynamic():
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda q, k, v: attention(q, k, v), fullgraph=True, backend=counter)
    counts = []
    for b, n, m in ((2, 6, 8), (3, 9, 5), (4, 7, 7)):
        inputs = qkv(b=b, n=n, m=m)
        for x in inputs:
            torch._dynamo.mark_dynamic(x, 0)
            torch._dynamo.mark_dynamic(x, 1)
        compiled(*inputs).sum().backward()
        counts.append(counter.frame_count)
    assert counts == counts[:1] * 3


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(16, 96)

    def forward(self, x):
        q, k, v = self.project(x).unflatten(-1, (3, 4, 8)).unbind(2)
        return attention(q, k, v, causal=True, window=(4, 0)).flatten(2)


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict):
    model, x = Model(), torch.randn(2, 6, 16)
    sizes = {0: torch.export.Dim("b"), 1: torch.export.Dim("n", min=2, max=512)}
    program = torch.export.export(model, (x,), dynamic_shapes=(sizes,), strict=strict)
    assert "libattn.forward" in str(program.graph)
    other = torch.randn(3, 11, 16)
    assert torch.equal(program.module()(other), model(other))


def test_converted_arguments_compile():
    """int64, lists, masks and biases of two dimensions: converted inside of the graph."""
    q, k, v = qkv(n=5, m=7)
    mask, lengths = torch.rand(5, 7) < 0.6, torch.tensor([3, 6])
    bias = torch.randn(7, 5).t().detach().requires_grad_()

    def converting(q, k, v, mask, bias, lengths):
        begin = [[0, 1, 1, 2, 2]] * 2
        options = {"len_kv": lengths, "kv_begin": begin, "softcap": 2.0, "window": (4, None)}
        return attention(q, k, v, mask=mask, bias=bias, diagonal=1, **options)

    check_same(converting, (q, k, v, mask, bias, lengths))
    check_same(lambda q: rope(q, positions=[[3, 1, 4, 1, 5]], inverse=True), (q,))
