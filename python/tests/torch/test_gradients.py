"""Gradients of libattn.torch: finite differences in float64, and float64 math over options."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.4")

import libattn  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from libattn import _reference  # noqa: E402
from libattn.torch import attention, merge, rope  # noqa: E402

F64 = torch.float64


def leaf(*shape, dtype=F64):
    return torch.randn(*shape, dtype=dtype).requires_grad_()


def qkv(b=2, n=5, m=7, h=4, g=2, dim=3, dim_vo=2):
    torch.manual_seed(3)
    return leaf(b, n, h, dim), leaf(b, m, g, dim), leaf(b, m, g, dim_vo)


def i32(*values):
    return torch.tensor(values, dtype=torch.int32)


def finite(o, lse):
    """Rows that see nothing have no finite lse, and no gradient."""
    return o, lse.masked_fill(lse.isneginf(), 0.0)


OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "top left": {"causal": True, "diagonal": "top_left"},
    "diagonal": {"causal": True, "diagonal": 1},
    "window": {"window": (2, 1)},
    "left window": {"causal": True, "window": (2, None)},
    "softcap": {"softcap": 1.5},
    "scale": {"scale": 0.7},
    "alibi": {"alibi_slopes": torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=F64)},
    "mask": {"mask": torch.arange(35).reshape(1, 1, 5, 7) % 3 != 0},
    "bounds": {"kv_begin": i32(0, 0, 2, 2, 9)[None], "kv_end": i32(3, 3, 7, 1, 9)[None]},
    "lengths": {"len_q": i32(5, 3), "len_kv": i32(7, 0)},
    "dropout": {"dropout_p": 0.3, "seed": 11, "offset": 5},
    "seed tensor": {"dropout_p": 0.3, "seed": torch.tensor([2**40 + 1])},
    "origin": {"causal": True, "diagonal": "origin", "origin": libattn.Origin(q=9, kv=6)},
    "deterministic": {"causal": True, "deterministic": True},
}


@pytest.mark.parametrize("lse", [False, True], ids=["o", "o and lse"])
@pytest.mark.parametrize("name", OPTIONS)
def test_finite_differences(name, lse):
    def run(q, k, v):
        results = finite(*attention(q, k, v, return_lse=True, **OPTIONS[name]))
        return results if lse else results[0]

    assert torch.autograd.gradcheck(run, qkv())


@pytest.mark.parametrize("shape", [(2, 4, 5, 7), (1, 4, 5, 7), (2, 1, 5, 1), (1, 1, 1, 7)])
def test_finite_differences_of_bias(shape):
    bias = leaf(*shape)
    both = lambda q, k, v, bias: attention(  # noqa: E731
        q, k, v, bias=bias, causal=True, softcap=2.0, return_lse=True
    )
    assert torch.autograd.gradcheck(both, (*qkv(), bias))


def test_finite_differences_of_an_expanded_bias():
    bias = leaf(1, 4, 1, 7)
    run = lambda bias: attention(*qkv(), bias=bias.expand(2, 4, 5, 7))  # noqa: E731
    assert torch.autograd.gradcheck(run, (bias,))


def by_sdpa(q, k, v, bias):
    heads_first = (x.transpose(1, 2) for x in (q, k, v))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        out = torch.nn.functional.scaled_dot_product_attention(*heads_first, attn_mask=bias)
    return out.transpose(1, 2)


@pytest.mark.parametrize(
    "expand",
    [
        lambda base: base.expand(2, 4, 5, 7),
        lambda base: base[:, :1].expand(2, 4, 5, 7),
        lambda base: base[0, 0].expand(5, 7),
        lambda base: base.repeat(1, 1, 7, 2)[..., ::2].expand(2, 4, 7, 7)[:, :, :5],
    ],
    ids=["rows", "heads", "two dimensions", "strided"],
)
def test_each_element_of_an_expanded_bias_has_its_own_gradient(expand):
    q, k, v = qkv(g=4)
    base = leaf(1, 4, 1, 7)
    expanded = expand(base)
    weights = torch.randn(2, 5, 4, 2, dtype=F64)
    found, want = (
        torch.autograd.grad((out * weights).sum(), (expanded, base))
        for out in (attention(q, k, v, bias=expanded), by_sdpa(q, k, v, expanded))
    )
    for x, y in zip(found, want, strict=True):
        torch.testing.assert_close(x, y)


def test_f16_gradient_of_a_bias_that_is_expanded_to_many():
    """Gradients of both signs cancel. Their sum is in the range of f16, but their mean is below it,
    so the sum must not be computed from a rounded mean."""
    torch.manual_seed(5)
    q, k, v = (torch.randn(8, 64, 8, 8).half() for _ in range(3))
    weights = torch.randn(8, 64, 8, 8, dtype=F64) * 1e-4
    base = torch.randn(1, 1, 1, 64).half()

    def gradient(function, dtype):
        bias = base.to(dtype).requires_grad_()
        out = function(*(x.to(dtype) for x in (q, k, v)), bias.expand(8, 8, 64, 64))
        return torch.autograd.grad((out * weights).sum(), bias)[0].double()

    found = gradient(lambda q, k, v, bias: attention(q, k, v, bias=bias), torch.float16)
    want = gradient(by_sdpa, F64)
    assert ((found - want).abs().max() < 0.01 * want.abs().max()).item()


@pytest.mark.parametrize("b, n, m", [(0, 5, 7), (2, 0, 7), (2, 5, 0)])
@pytest.mark.parametrize("each_key", [False, True])
def test_gradient_of_an_expanded_bias_without_elements(b, n, m, each_key):
    q, k, v = leaf(b, n, 4, 3), leaf(b, m, 4, 3), leaf(b, m, 4, 2)
    base = leaf(1, 4, 1, m if each_key else 1)
    expanded = base.expand(b, 4, n, m)
    gradients = torch.autograd.grad(attention(q, k, v, bias=expanded).sum(), (expanded, base))
    assert gradients[0].shape == expanded.shape and torch.equal(gradients[1], base * 0)


def test_finite_differences_of_sinks():
    run = lambda q, k, v, sinks: attention(  # noqa: E731
        q, k, v, sinks=sinks, window=(1, 0), return_lse=True
    )
    assert torch.autograd.gradcheck(run, (*qkv(), leaf(4)))


def test_finite_differences_with_lse_alone():
    q, k, v = qkv()
    run = lambda q, k: attention(q, k, v, return_lse=True)[1]  # noqa: E731
    assert torch.autograd.gradcheck(run, (q, k))


def test_finite_differences_of_packed_sequences():
    torch.manual_seed(4)
    inputs = leaf(9, 4, 3), leaf(11, 2, 3), leaf(11, 2, 2)
    lengths = {
        "cu_len_q": i32(0, 4, 4, 9),
        "cu_len_kv": i32(0, 5, 7, 11),
        "max_len_q": 5,
        "max_len_kv": 5,
    }
    run = lambda q, k, v: finite(  # noqa: E731
        *attention(q, k, v, causal=True, return_lse=True, **lengths)
    )
    assert torch.autograd.gradcheck(run, inputs)


@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_finite_differences_with_rope(style):
    torch.manual_seed(5)
    inputs = leaf(2, 5, 4, 6), leaf(2, 7, 2, 6), leaf(2, 7, 2, 3)
    turned = libattn.Rope(style, rot_dim=4, base=100.0, pos_offset=3)
    run = lambda q, k, v: attention(q, k, v, rope=turned, causal=True)  # noqa: E731
    try:
        run(*inputs)
    except libattn.Unsupported as refusal:
        pytest.skip(str(refusal))
    assert torch.autograd.gradcheck(run, inputs)


@pytest.mark.parametrize("packed", [False, True])
def test_finite_differences_of_merge(packed):
    torch.manual_seed(6)
    rows = (6, 3, 2) if packed else (2, 4, 3, 2)
    stats = (3, 6) if packed else (2, 3, 4)
    inputs = leaf(*rows), leaf(*stats), leaf(*rows), leaf(*stats)
    assert torch.autograd.gradcheck(merge, inputs)
    assert torch.autograd.gradcheck(lambda *x: merge(*x)[0], inputs)
    o1, lse1, _, lse2 = inputs
    run = lambda o1, lse1, lse2: merge(o1, lse1, None, lse2)  # noqa: E731
    assert torch.autograd.gradcheck(run, (o1, lse1, lse2))


@pytest.mark.parametrize("style", ["half", "interleaved"])
@pytest.mark.parametrize("inverse", [False, True])
def test_finite_differences_of_rope(style, inverse):
    torch.manual_seed(7)
    x = leaf(2, 4, 3, 6)
    turn = lambda x: rope(x, style=style, rot_dim=4, pos_offset=2, inverse=inverse)  # noqa: E731
    assert torch.autograd.gradcheck(turn, (x,))
    assert torch.autograd.gradgradcheck(turn, (x,))
    back = rope(turn(x), style=style, rot_dim=4, pos_offset=2, inverse=not inverse)
    assert (back - x).abs().max() <= 1e-12


def test_rope_with_positions_and_tables():
    torch.manual_seed(8)
    x = leaf(5, 2, 4)
    positions = i32(3, 0, 1, 7, 2)
    angle = torch.arange(8, dtype=F64)[:, None] * torch.tensor([1.0, 0.01], dtype=F64)
    tables = {"cos": angle.cos(), "sin": angle.sin()}
    by_base = rope(x, positions=positions)
    by_table = rope(x, positions=positions, **tables)
    assert (by_base - by_table).abs().max() <= 1e-6
    assert torch.autograd.gradcheck(lambda x: rope(x, positions=positions, **tables), (x,))


def test_split_and_merged_is_whole():
    q, k, v = qkv(m=9)
    whole, whole_lse = attention(q, k, v, return_lse=True)
    one = attention(q, k[:, :4], v[:, :4], return_lse=True)
    two = attention(q, k[:, 4:], v[:, 4:], return_lse=True)
    o, lse = merge(*one, *two)
    upstream, upstream_lse = torch.randn_like(o), torch.randn_like(lse)
    want = torch.autograd.grad((whole, whole_lse), (q, k, v), (upstream, upstream_lse))
    got = torch.autograd.grad((o, lse), (q, k, v), (upstream, upstream_lse))
    for a, b in zip((o, lse, *got), (whole, whole_lse, *want), strict=True):
        assert (a - b).abs().max() <= 1e-12


def test_gradients_that_are_not_wanted_are_not_made():
    q, k, v = qkv()
    k = k.detach()
    o = attention(q, k, v)
    o.sum().backward()
    assert q.grad is not None and v.grad is not None and k.grad is None


def test_views_are_read_where_they_lie():
    torch.manual_seed(9)
    packed = leaf(2, 6, 3, 4, 5)  # [b, n, (q, k, v), h, d]
    of_views = attention(*packed.unbind(2), causal=True)
    of_copies = attention(*(x.contiguous() for x in packed.unbind(2)), causal=True)
    assert torch.equal(of_views, of_copies)
    heads_first = leaf(2, 4, 6, 5)
    x = heads_first.transpose(1, 2)
    upstream = torch.randn(2, 4, 6, 5, dtype=F64).transpose(1, 2)
    (got,) = torch.autograd.grad(attention(x, x, x), heads_first, upstream)
    y = x.detach().contiguous().requires_grad_()
    (want,) = torch.autograd.grad(attention(y, y, y), y, upstream.contiguous())
    assert (got.transpose(1, 2) - want).abs().max() <= 1e-13


sizes = st.integers(1, 9)


@st.composite
def problems(draw):
    b, n, m, g = draw(st.integers(1, 2)), draw(sizes), draw(sizes), draw(st.integers(1, 2))
    h = g * draw(st.integers(1, 2))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    make = rng.standard_normal
    arrays = {
        "q": make((b, n, h, 4)),
        "k": make((b, m, g, 4)),
        "v": make((b, m, g, draw(st.integers(1, 5)))),
    }
    options = {"causal": draw(st.booleans()), "diagonal": draw(st.sampled_from(DIAGONALS))}
    if draw(st.booleans()):
        side = st.none() | st.integers(0, 4)
        options["window"] = (draw(side), draw(side))
    if draw(st.booleans()):
        options["softcap"] = draw(st.floats(0.5, 5.0))
    if draw(st.booleans()):
        options["dropout_p"] = draw(st.floats(0.01, 0.9))
        options["seed"] = draw(st.integers(0, 2**64 - 1))
        options["offset"] = draw(st.integers(0, 2**64 - 1))
    if draw(st.booleans()):
        options["alibi_slopes"] = rng.uniform(0, 1, (h,))
    if draw(st.booleans()):
        options["mask"] = rng.random((1, h, n, m)) < 0.7
    if draw(st.booleans()):
        options["kv_begin"] = rng.integers(0, m + 1, (1, n), dtype=np.int32)
        options["kv_begin"] = np.repeat(options["kv_begin"], b, 0)
    if draw(st.booleans()):
        options["len_kv"] = rng.integers(0, m + 1, (b,), dtype=np.int32)
    if draw(st.booleans()):
        arrays["bias"] = make((draw(st.sampled_from([1, b])), h, draw(st.sampled_from([1, n])), m))
    if draw(st.booleans()):
        arrays["sinks"] = make((h,))
    return arrays, options, make((b, n, h, arrays["v"].shape[-1])), make((b, h, n))


DIAGONALS = ["bottom_right", "top_left", -2, 3]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(problems())
def test_float64_math(problem):
    arrays, options, dout, dlse = problem
    leaves = {name: torch.from_numpy(x).requires_grad_() for name, x in arrays.items()}
    given_options = {
        name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in options.items()
    }
    o, lse = attention(**leaves, **given_options, return_lse=True)
    q, k, v = (arrays[name] for name in ("q", "k", "v"))
    everything = options | {name: arrays[name] for name in ("bias", "sinks") if name in arrays}
    want = _reference.attention(q, k, v, **everything)
    np.testing.assert_allclose(o.detach().numpy(), want.o, rtol=0, atol=1e-12)
    np.testing.assert_allclose(lse.detach().numpy(), want.lse, rtol=1e-12, atol=1e-12)
    found = torch.autograd.grad(
        (o, lse), list(leaves.values()), (torch.from_numpy(dout), torch.from_numpy(dlse))
    )
    expected = _reference.gradients(dout, q, k, v, dlse=dlse, **everything)
    named = {"q": "dq", "k": "dk", "v": "dv", "bias": "dbias", "sinks": "dsink"}
    for name, gradient in zip(leaves, found, strict=True):
        np.testing.assert_allclose(gradient.numpy(), expected[named[name]], rtol=0, atol=1e-11)
