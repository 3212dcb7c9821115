"""The operators of libattn.torch: opcheck, refusals, seeds, autocast, checkpoints, memory."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch", minversion="2.4")

import libattn  # noqa: E402
from libattn.torch import attention, decode, merge, rope  # noqa: E402
from torch.library import opcheck  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

OPS = torch.ops.libattn


def qkv(b=2, n=6, m=8, h=4, g=2, dim=8, dtype=torch.float32, grad=True):
    torch.manual_seed(0)
    shapes = (b, n, h, dim), (b, m, g, dim), (b, m, g, dim)
    return tuple(torch.randn(s).to(dtype).requires_grad_(grad) for s in shapes)


def i32(*values):
    return torch.tensor(values, dtype=torch.int32)


ONE = torch.tensor([123456789])
OPTIONS = {
    "plain": {},
    "causal": {"causal": True, "window_left": 3, "softcap": 2.0, "scale": 0.3},
    "bias and sinks": {
        "bias": torch.zeros(1, 4, 6, 8, requires_grad=True),
        "sinks": torch.zeros(4, requires_grad=True),
    },
    "dropout": {"dropout_p": 0.25, "seed": ONE},
    "lengths": {"len_q": i32(6, 2), "len_kv": i32(8, 3)},
    "f32 out": {"out_dtype": torch.float32},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_opcheck_forward(name):
    dtype = torch.bfloat16 if name == "f32 out" else torch.float32
    opcheck(OPS.forward.default, qkv(dtype=dtype), OPTIONS[name])


def test_opcheck_packed():
    torch.manual_seed(0)
    q, k = torch.randn(7, 4, 8, requires_grad=True), torch.randn(9, 2, 8, requires_grad=True)
    lengths = {"cu_len_q": i32(0, 3, 7), "cu_len_kv": i32(0, 5, 9)}
    opcheck(OPS.forward.default, (q, k, k), {**lengths, "max_len_q": 4, "max_len_kv": 5})


def test_opcheck_the_others():
    q, k, v = qkv(grad=False)
    o, lse = OPS.forward(q, k, v)
    want = [True, True, False, False, False]
    opcheck(OPS.backward.default, (torch.ones_like(o), None, q, k, v, o, lse, want, None))
    leaves = [x.clone().requires_grad_() for x in (o, lse, o, lse)]
    opcheck(OPS.merge.default, leaves)
    opcheck(OPS.merge.default, (leaves[0], leaves[1], None, leaves[3]))
    opcheck(OPS.merge_backward.default, (o, lse, o, lse, o, lse, o, lse))
    opcheck(OPS.rope.default, (q.clone().requires_grad_(),), {"pos_offset": 3})
    lengths = {"len_kv": i32(5, 3)}
    opcheck(OPS.decode.default, (q, k, v), lengths)
    new = torch.randn(2, 1, 2, 8)
    opcheck(OPS.decode_append.default, (q, k.clone(), v.clone(), new, new), lengths)


def test_the_eager_way_and_the_operator_are_one():
    inputs = qkv()
    index = OPTIONS["causal"]
    o, lse = attention(
        *inputs, causal=True, window=(3, None), softcap=2.0, scale=0.3, return_lse=True
    )
    of_op, lse_of_op = OPS.forward(*inputs, **index)
    assert torch.equal(o, of_op) and torch.equal(lse, lse_of_op)
    upstream = torch.randn_like(o), torch.randn_like(lse)
    found = torch.autograd.grad((o, lse), inputs, upstream)
    expected = torch.autograd.grad((of_op, lse_of_op), inputs, upstream)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_second_derivatives_are_refused():
    q, k, v = qkv()
    for o in (attention(q, k, v), OPS.forward(q, k, v)[0]):
        (dq,) = torch.autograd.grad(o.square().sum(), q, create_graph=True)
        with pytest.raises(RuntimeError, match="attention has no second derivative"):
            torch.autograd.grad(dq.sum(), k)
    o, lse = (x.detach().requires_grad_() for x in attention(q, k, v, return_lse=True))
    merged, _ = merge(o, lse, o, lse)
    (do,) = torch.autograd.grad(merged.square().sum(), o, create_graph=True)
    with pytest.raises(RuntimeError, match="merge has no second derivative"):
        do.sum().backward()


def test_transforms_are_refused():
    q, k, v = qkv(g=4, m=6, grad=False)
    lse = torch.zeros(2, 4, 6)
    functions = {
        "decode": lambda q: decode(q, k, v),
        "merge": lambda q: merge(q, lse, k, lse)[0],
        "rope": rope,
    }
    for name, function in functions.items():
        for transform in (
            lambda f: torch.func.jvp(f, (q,), (q,)),
            lambda f: torch.func.grad(lambda q: f(q).sum())(q),
            lambda f: torch.vmap(f)(q[None]),
        ):
            with pytest.raises(RuntimeError, match=f"libattn: {name} can't be transformed"):
                transform(function)
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(q, q)
            with pytest.raises(RuntimeError, match=f"libattn: {name} has no forward-mode"):
                function(dual)
            function(q)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, q)
        with pytest.raises(RuntimeError, match="libattn: attention has no forward-mode"):
            attention(dual, k, v)


def bad_calls():
    q, k, v = qkv()
    table = torch.zeros(8, 4)
    slopes = torch.ones(4, requires_grad=True)
    yield "alibi_slopes", lambda: attention(q, k, v, alibi_slopes=slopes)
    turned = libattn.Rope(cos=table.clone().requires_grad_(), sin=table)
    yield "rope_cos", lambda: attention(q, k, v, rope=turned)
    yield "sin", lambda: rope(q, cos=table, sin=table.clone().requires_grad_())
    yield "decode: q", lambda: decode(q, k.detach(), v.detach())
    yield "last dimension", lambda: attention(q.transpose(1, 3), k.transpose(1, 3), v)
    yield "type of k and v: found f64 with a q of f32", lambda: attention(q, k.double(), v)
    yield "q: found ndarray", lambda: attention(q.detach().numpy(), k, v)
    yield "len_kv", lambda: attention(q, k, v, len_kv=i32(3, -1))
    yield "workspace", lambda: attention(q, k, v, workspace=torch.empty(1, dtype=torch.uint8))
    yield "seed", lambda: attention(q, k, v, dropout_p=0.5, seed=-1)
    yield "seed", lambda: attention(q, k, v, dropout_p=0.5, seed=torch.zeros(1))
    yield "dropout_p", lambda: attention(q, k, v, dropout_p=1.5)
    yield "window", lambda: attention(q, k, v, window=3)
    yield "diagonal", lambda: attention(q, k, v, diagonal="left")
    yield "rope", lambda: attention(q, k, v, rope="half")
    yield "origin", lambda: attention(q, k, v, origin=(1, 2))
    yield "mask", lambda: attention(q, k, v, mask=[1])
    freed = torch.randn(2, 6, 4, 8)
    freed.untyped_storage().resize_(0)
    yield "q: found a tensor of shape", lambda: attention(freed, k, v)
    rest = torch.randn(3, 6, 4, 8)[1:]
    rest.untyped_storage().resize_(0)
    yield "q: found a tensor of shape", lambda: attention(rest, k, v)


@pytest.mark.parametrize("at", range(len(list(bad_calls()))))
def test_bad_input(at):
    message, call = list(bad_calls())[at]
    with pytest.raises(ValueError) as found:
        call()
    assert message in str(found.value)


def test_unknown_option_and_device():
    q, k, v = qkv()
    with pytest.raises(TypeError, match="unknown option 'casual'"):
        attention(q, k, v, casual=True)
    o = attention(*(x.to("meta") for x in (q, k, v)))
    assert o.is_meta and o.shape == q.shape


def test_slopes_may_require_a_gradient_where_none_is_recorded():
    q, k, v = qkv()
    with torch.no_grad():
        attention(q, k, v, alibi_slopes=torch.ones(4, requires_grad=True))
        decode(q, k, v)
    with torch.inference_mode():
        attention(q, k, v)


def test_inputs_that_changed_are_not_differentiated():
    q, k, v = qkv()
    mask = torch.ones(1, 1, 6, 8, dtype=torch.bool)
    o = attention(q, k, v, mask=mask)
    mask[..., 0] = False
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()


def test_dropout_draws_from_the_generator():
    q, k, v = qkv()

    def draw(seed):
        torch.manual_seed(seed)
        return attention(q, k, v, dropout_p=0.5)

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))
    torch.manual_seed(1)
    one, two = (attention(q, k, v, dropout_p=0.5) for _ in range(2))
    assert not torch.equal(one, two)
    by_int = attention(q, k, v, dropout_p=0.5, seed=2**63 + 5, offset=7)
    by_array = libattn.attention(
        *(x.detach() for x in (q, k, v)), dropout_p=0.5, seed=2**63 + 5, offset=7
    )
    assert torch.equal(by_int, by_array)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_checkpoint(reentrant, dropout):
    inputs = qkv()
    bias = torch.randn(1, 4, 6, 8, requires_grad=True)
    leaves = (*inputs, bias)

    def block(q, k, v, bias):
        return attention(q * 2, k, v, bias=bias, dropout_p=dropout).square()

    results = []
    for run in (block, lambda *x: checkpoint(block, *x, use_reentrant=reentrant)):
        torch.manual_seed(5)
        for x in leaves:
            x.grad = None
        o = run(*leaves)
        o.sum().backward()
        results.append([o, *(x.grad for x in leaves)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_casts_as_sdpa(dtype):
    q, k, v = qkv(n=8, g=4)
    bias = torch.randn(1, 4, 8, 8, requires_grad=True)
    with torch.autocast("cpu", dtype):
        o = attention(q, k, v, bias=bias)
        theirs = torch.nn.functional.scaled_dot_product_attention(
            *(x.transpose(1, 2) for x in (q, k, v)), attn_mask=bias
        )
        of_f64 = attention(q.double(), k.double(), v.double())
    assert o.dtype == theirs.dtype == dtype and of_f64.dtype == torch.float64
    o.sum().backward()
    assert all(x.grad.dtype == torch.float32 for x in (q, k, v, bias))
    cast = [x.detach().to(dtype) for x in (q, k, v)]
    assert torch.equal(o, attention(*cast, bias=bias.detach().to(dtype)))


def test_deterministic_algorithms(monkeypatch):
    seen = []
    forward = libattn.attention

    def record(*args, **options):
        seen.append(options.get("deterministic", False))
        return forward(*args, **options)

    monkeypatch.setattr(libattn, "attention", record)
    q, k, v = qkv()
    bias = torch.zeros(1, 1, 6, 8)
    attention(q, k, v, bias=bias)
    torch.use_deterministic_algorithms(True)
    try:
        attention(q, k, v, bias=bias)
    finally:
        torch.use_deterministic_algorithms(False)
    assert seen == [False, True]


class Sizes(TorchDispatchMode):
    """The largest number of elements that any operator returned."""

    largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple) else (out,):
            if isinstance(x, torch.Tensor):
                self.largest = max(self.largest, x.numel())
        return out


def test_nothing_of_length_squared_is_made():
    n = 1024
    q, k, v = qkv(b=1, n=n, m=n, h=2, g=1, dim=8)
    with Sizes() as sizes:
        o, lse = attention(q, k, v, causal=True, return_lse=True)
        (o.sum() + lse.sum()).backward()
    assert 0 < sizes.largest <= q.numel() < n * n // 32


def test_memory_of_a_long_sequence():
    """16384 x 16384 scores would take 1 GiB in f32."""
    resource = pytest.importorskip("resource")
    n = 16384
    q, k, v = qkv(b=1, n=n, m=n, h=1, g=1, dim=8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    attention(q, k, v, causal=True, window=(256, 0)).sum().backward()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 200 * 1024, f"{grown} KiB"


def test_decode_appends():
    q, k, v = qkv(n=1, grad=False)
    new_k, new_v = torch.randn(2, 2, 1, 2, 8).unbind(0)
    caches = k.clone(), v.clone()
    o, lse = decode(
        q, *caches, k_new=new_k, v_new=new_v, len_kv=i32(5, 2), return_lse=True, causal=True
    )
    for entry, length in enumerate((5, 2)):
        k[entry, length], v[entry, length] = new_k[entry, 0], new_v[entry, 0]
    assert torch.equal(caches[0], k) and torch.equal(caches[1], v)
    want, want_lse = attention(q, k, v, len_kv=i32(6, 3), return_lse=True)
    assert (o - want).abs().max() <= 1e-6 and (lse - want_lse).abs().max() <= 1e-6


def test_threads_share_the_module():
    inputs = qkv()
    want = torch.autograd.grad(attention(*inputs, causal=True).sum(), inputs)
    wrong = []

    def work():
        for _ in range(50):
            got = torch.autograd.grad(attention(*inputs, causal=True).sum(), inputs)
            if not all(torch.equal(a, b) for a, b in zip(got, want, strict=True)):
                wrong.append(got)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_empty_sizes():
    q, k, v = qkv()
    o, lse = attention(q, k[:, :0], v[:, :0], return_lse=True)
    assert (o == 0).all() and lse.isneginf().all()
    o.sum().backward()
    assert (q.grad == 0).all()
    assert attention(q[:, :0], k, v).shape == (2, 0, 4, 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mask_that_hides_tiles_of_keys(dtype):
    """A mask that is causal hides many tiles completely and must give the result of causal=True.
    Rows without a key are 0."""
    n, empty = 300, slice(64, 160)
    mask = torch.ones(n, n, dtype=torch.bool).tril()
    leaves = qkv(n=n, m=n, dim=64, dtype=dtype)
    dout = torch.randn(2, n, 4, 64).to(dtype)
    results = []
    for options in ({"mask": mask}, {"causal": True}):
        o = attention(*leaves, **options)
        results.append((o, *torch.autograd.grad(o, leaves, dout)))
    for masked, causal in zip(*results, strict=True):
        torch.testing.assert_close(
            masked, causal, rtol=0, atol=1e-5 if dtype.itemsize == 4 else 2e-2
        )
    mask[empty] = False
    o = attention(*leaves, mask=mask)
    dq, _, dv = torch.autograd.grad(o, leaves, dout)
    assert not o[:, empty].any() and not dq[:, empty].any()
    assert o.isfinite().all() and dv.isfinite().all() and o[:, 160:].any()
