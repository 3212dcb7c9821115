"""libattn.jax.attention: results and gradients of every option against float64."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax", minversion="0.6")

import jax.numpy as jnp  # noqa: E402
import libattn  # noqa: E402
import ml_dtypes  # noqa: E402
from comparing import assert_close  # noqa: E402
from jax_cases import GRADIENTS, MORE, OPTIONS, case, i32  # noqa: E402
from libattn import _reference  # noqa: E402
from libattn.jax import attention  # noqa: E402
from libattn.jax._attention import _REFUSED  # noqa: E402


def in_type(options, dtype):
    """The options, with floating-point arrays in the type of lse: f64 for f64 inputs, else f32."""
    wide = np.float64 if dtype == np.float64 else np.float32
    return {
        name: x.astype(wide) if getattr(x, "dtype", None) == np.float64 else x
        for name, x in options.items()
    }


def found(one, dtype, *, compiled=True):
    """o, lse and the gradients of a case, by name."""
    leaves = {
        name: jnp.asarray(
            x.astype(np.float32 if name == "sinks" and dtype != np.float64 else dtype)
        )
        for name, x in one.leaves.items()
    }
    options = in_type(one.options, dtype)

    def run(leaves):
        return attention(**leaves, **options, return_lse=True)

    def both(leaves, dout, dlse):
        (o, lse), pull = jax.vjp(run, leaves)
        return o, lse, pull((dout, dlse))[0]

    both = jax.jit(both) if compiled else both
    o, lse, gradients = both(
        leaves,
        jnp.asarray(one.dout.astype(dtype)),
        jnp.asarray(one.dlse.astype(np.float64 if dtype == np.float64 else np.float32)),
    )
    return {"o": o, "lse": lse} | {GRADIENTS[name]: x for name, x in gradients.items()}


def test_every_option_is_tested():
    """Every option occurs in a case, or in the tests of packed sequences and 8-bit types below."""
    elsewhere = {"cu_len_q", "cu_len_kv", "max_len_q", "max_len_kv"}
    elsewhere |= {"descale_q", "descale_k", "descale_v"}
    cases = [case(name) for name in (OPTIONS | MORE)]
    found = set().union(*(one.options.keys() | one.leaves.keys() for one in cases))
    assert found - {"q", "k", "v"} == libattn.Options.__annotations__.keys() - elsewhere - set(
        _REFUSED
    )


@pytest.mark.parametrize("name", [*OPTIONS, *MORE])
def test_float64(name, x64):
    one = case(name)
    got = found(one, np.float64)
    limit = 1e-5 if "rope" in name else 1e-12  # angles of rope are right to 1e-6
    for key, want in one.expected().items():
        assert got[key].dtype == np.float64
        hidden = np.isneginf(want)
        assert (np.isneginf(got[key]) == hidden).all(), key
        error = np.abs(np.where(hidden, 0, got[key]) - np.where(hidden, 0, want)).max()
        assert error <= limit, f"{key}: {error}"


@pytest.mark.parametrize("compiled", [True, False], ids=["jit", "eager"])
@pytest.mark.parametrize("name", OPTIONS)
def test_float32(name, compiled):
    one = case(name)
    for key, x in one.leaves.items():  # expected() must see the rounded values
        one.leaves[key] = x.astype(np.float32).astype(np.float64)
    one.dout = one.dout.astype(np.float32).astype(np.float64)
    got = found(one, np.float32, compiled=compiled)
    for key, want in one.expected().items():
        assert got[key].dtype == np.float32
        assert_close(got[key], want, "float32", scale=8.0)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16], ids=["bf16", "f16"])
@pytest.mark.parametrize("name", ["plain", "causal", "bias", "sinks", "window"])
def test_16_bits(name, dtype):
    one = case(name)
    for key, x in one.leaves.items():
        one.leaves[key] = x.astype(dtype).astype(np.float64)
    one.dout = one.dout.astype(dtype).astype(np.float64)
    got = found(one, dtype)
    for key, want in one.expected().items():
        wide = key in ("lse", "dsink")
        assert got[key].dtype == (np.float32 if wide else dtype)
        # An engine may round operands of products (P, dS) to the type of q.
        work = "float32" if key == "lse" else np.dtype(dtype).name
        assert_close(got[key], want, work, scale=8.0, steps=2)


def test_lists_and_int64_indices_are_accepted():
    one = case("lengths")
    arrays = {name: x.astype(np.float32) for name, x in one.leaves.items()}
    lists = attention(**arrays, len_q=[9, 3], len_kv=np.array([7, 0]), causal=True)
    assert jnp.array_equal(lists, attention(**arrays, **one.options))


def test_lengths_out_of_range_are_clamped():
    one = case("plain")
    arrays = {name: x.astype(np.float32) for name, x in one.leaves.items()}
    wanted = attention(**arrays, len_q=[9, 0], len_kv=[0, 12], causal=True)
    # Values of JAX's arrays are not read.
    len_q, len_kv = jnp.array([99, -1]), jnp.array([-(2**31), 2**31 - 1])
    assert jnp.array_equal(attention(**arrays, len_q=len_q, len_kv=len_kv, causal=True), wanted)
    wild = attention(**arrays, len_q=[99, 0], len_kv=[0, 2**31 - 1], causal=True)
    assert jnp.array_equal(wild, wanted)


def test_16_bit_bias_of_wider_inputs():
    one = case("bias")
    bias = jnp.asarray(one.leaves.pop("bias"), jnp.bfloat16)
    arrays = {name: x.astype(np.float32) for name, x in one.leaves.items()}
    loss = lambda bias: (attention(**arrays, bias=bias) ** 2).sum()  # noqa: E731
    got, want = jax.grad(loss)(bias), jax.grad(loss)(bias.astype(jnp.float32))
    assert got.dtype == jnp.bfloat16
    assert jnp.array_equal(got, want.astype(jnp.bfloat16))


@pytest.mark.parametrize("packed", ["q", "kv"])
def test_one_side_packed(packed, x64):
    """Either q or k and v are packed; the others are padded, [b, len, heads, dim] with lengths."""
    rng = np.random.default_rng(5)
    lengths_q, lengths_kv = i32(3, 0, 6), i32(4, 2, 7)
    q, k, v, dout = (
        rng.standard_normal((3, *shape)) for shape in ((6, 4, 8), (7, 2, 8), (7, 2, 8), (6, 4, 8))
    )
    together = lambda x, lengths: np.concatenate([x[s, :n] for s, n in enumerate(lengths)])  # noqa: E731
    lengths = {"len_q": lengths_q, "len_kv": lengths_kv}
    if packed == "q":
        q, dout = together(q, lengths_q), together(dout, lengths_q)
        lengths["cu_len_q"] = np.cumsum([0, *lengths.pop("len_q")]).astype(np.int32)
    else:
        k, v = together(k, lengths_kv), together(v, lengths_kv)
        lengths["cu_len_kv"] = np.cumsum([0, *lengths.pop("len_kv")]).astype(np.int32)

    def both(module):
        if module is libattn:
            o, lse = libattn.attention(q, k, v, causal=True, return_lse=True, **lengths)
            return o, *libattn.attention_backward(dout, q, k, v, o, lse, causal=True, **lengths)[:3]
        o, pull = jax.vjp(lambda *a: attention(*a, causal=True, **lengths), q, k, v)
        return o, *pull(jnp.asarray(dout))

    for got, want in zip(both(jax), both(libattn), strict=True):
        assert np.abs(got - want).max() <= 1e-12


def test_packed_sequences(x64):
    rng = np.random.default_rng(5)
    lengths_q, lengths_kv = [3, 0, 6], [4, 2, 7]
    q = rng.standard_normal((9, 4, 8))
    k, v = rng.standard_normal((2, 13, 2, 8))
    dout = rng.standard_normal((9, 4, 8))
    cu_q, cu_kv = (np.cumsum([0, *x]).astype(np.int32) for x in (lengths_q, lengths_kv))
    options = {"cu_len_q": cu_q, "cu_len_kv": cu_kv, "causal": True, "max_len_q": 6}
    (o, lse), pull = jax.vjp(lambda *a: attention(*a, **options, return_lse=True), q, k, v)
    dq, dk, dv = pull((jnp.asarray(dout), jnp.zeros_like(lse)))
    for s in range(3):
        rows, keys = slice(cu_q[s], cu_q[s + 1]), slice(cu_kv[s], cu_kv[s + 1])
        parts = q[rows][None], k[keys][None], v[keys][None]
        want = _reference.attention(*parts, causal=True)
        gradients = _reference.gradients(dout[rows][None], *parts, causal=True)
        assert np.abs(o[rows] - want.o[0]).max(initial=0) <= 1e-12
        assert np.abs(lse[:, rows] - want.lse[0]).max(initial=0) <= 1e-12
        for got, name in ((dq[rows], "dq"), (dk[keys], "dk"), (dv[keys], "dv")):
            assert np.abs(got - gradients[name][0]).max(initial=0) <= 1e-12


def test_rope_tables(x64):
    one = case("plain")
    angle = np.arange(20)[:, None] * np.array([1.0, 0.1, 0.01, 0.001])
    rope = libattn.Rope(cos=np.cos(angle), sin=np.sin(angle))
    one.options["rope"] = rope
    got = found(one, np.float64)
    for key, want in one.expected().items():
        assert np.abs(got[key] - want).max() <= 1e-12, key


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_8_bits(dtype):
    rng = np.random.default_rng(6)
    dtype = getattr(ml_dtypes, dtype)
    q = rng.standard_normal((2, 5, 4, 16)).astype(dtype)
    k, v = rng.standard_normal((2, 2, 7, 2, 16)).astype(dtype)
    descales = {f"descale_{x}": rng.random((2, 2)).astype(np.float32) for x in "qkv"}
    got = attention(q, k, v, out_dtype="float32", **descales)
    want = libattn.attention(q, k, v, out_dtype="float32", **descales)
    assert np.array_equal(got, want)
    assert attention(q, k, v).dtype == ml_dtypes.bfloat16


def test_types_of_results():
    x = np.ones((1, 3, 2, 4), ml_dtypes.bfloat16)
    o, lse = attention(x, x, x, out_dtype="float32", return_lse=True)
    assert (o.dtype, lse.dtype) == (np.float32, np.float32)
    gradient = jax.grad(lambda x: attention(x, x, x, out_dtype="float32").sum())(jnp.asarray(x))
    assert gradient.dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("n, m", [(0, 5), (5, 0), (0, 0)])
def test_empty(n, m):
    q, k = jnp.ones((2, n, 4, 8)), jnp.ones((2, m, 2, 8))
    (o, lse), pull = jax.vjp(lambda q, k: attention(q, k, k, return_lse=True), q, k)
    assert o.shape == q.shape and (o == 0).all() and (lse == -np.inf).all()
    assert all((x == 0).all() for x in pull((jnp.ones_like(o), jnp.ones_like(lse))))


SEEDS = {
    "int": (2**63 + 9, 2**63 + 9),
    "negative": (jnp.array([-5], jnp.int32), 2**64 - 5),
    "uint32": (jnp.uint32(2**32 - 5), 2**32 - 5),
    "words": (jnp.array([7, 2], jnp.uint32), 2**33 + 7),
    "numpy": (np.array([2**40 + 1]), 2**40 + 1),
}


@pytest.mark.parametrize("name", SEEDS)
def test_seeds_draw_the_same_everywhere(name):
    seed, number = SEEDS[name]
    x = np.random.default_rng(1).standard_normal((2, 9, 4, 8), np.float32)
    got = attention(x, x, x, dropout_p=0.4, seed=seed)
    assert np.array_equal(got, libattn.attention(x, x, x, dropout_p=0.4, seed=number))


def test_int64_seed(x64):
    x = np.random.default_rng(1).standard_normal((2, 9, 4, 8), np.float32)
    got = jax.jit(lambda s: attention(x, x, x, dropout_p=0.4, seed=s))(jnp.int64(2**40 + 1))
    assert np.array_equal(got, libattn.attention(x, x, x, dropout_p=0.4, seed=2**40 + 1))


@pytest.mark.parametrize("kind", ["threefry2x32", "rbg"])
def test_keys_are_seeds(kind):
    x = jnp.ones((2, 9, 4, 8))
    one, two = jax.random.split(jax.random.key(3, impl=kind))
    draw = jax.jit(lambda key: attention(x, x, x, dropout_p=0.4, seed=key))
    assert jnp.array_equal(draw(one), draw(one))
    assert not jnp.array_equal(draw(one), draw(two))
