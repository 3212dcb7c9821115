"""libattn.jax.dot_product_attention compared with jax.nn.dot_product_attention."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

jax = pytest.importorskip("jax", minversion="0.6")

import jax.numpy as jnp  # noqa: E402
from libattn.jax import dot_product_attention  # noqa: E402

RNG = np.random.default_rng(0)
B, N, M, H, G, DIM = 2, 10, 12, 4, 2, 8
BIAS = RNG.standard_normal((B, H, N, M))
CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "window": {"local_window_size": 3},
    "sides": {"local_window_size": (2, 1)},
    "causal window": {"local_window_size": (3, 5), "is_causal": True},
    "bias": {"bias": BIAS},
    "bias of heads": {"bias": BIAS[0]},
    "bias of keys": {"bias": BIAS[:, :1, :1]},
    "bias of one row": {"bias": BIAS[:1, :1, :1, :]},
    "mask": {"mask": RNG.random((B, 1, N, M)) < 0.7},
    "mask of all": {"mask": RNG.random((1, N, M)) < 0.7, "is_causal": False},
    "lengths": {
        "query_seq_lengths": np.array([4, 10], np.int32),
        "key_value_seq_lengths": np.array([12, 3], np.int32),
    },
    "scale": {"scale": 0.3},
    "several": {"bias": BIAS, "mask": BIAS[:, :1] < 1, "is_causal": True, "scale": 0.2},
}


def inputs(dtype=jnp.float64, dim_vo=DIM):
    rng = np.random.default_rng(1)
    shapes = (B, N, H, DIM), (B, M, G, DIM), (B, M, G, dim_vo)
    return [jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes]


# jax.nn's function ignores a window if no other option hides keys.
IGNORES_WINDOW = jax.__version_info__ < (0, 7)


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_those_of_jax(name, x64):
    if IGNORES_WINDOW and list(CASES[name]) == ["local_window_size"]:
        pytest.skip(f"JAX {jax.__version__} ignores a local_window_size alone")

    def run(function):
        def loss(arrays, options):
            o = function(*arrays, **(CASES[name] | options))
            return (o * jnp.cos(jnp.arange(o.size).reshape(o.shape))).sum(), o

        options = {"bias": jnp.asarray(CASES[name]["bias"])} if "bias" in CASES[name] else {}
        return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(inputs(), options)

    got, want = run(dot_product_attention), run(jax.nn.dot_product_attention)
    if name == "lengths" and any(jnp.isnan(x).any() for x in jax.tree.leaves(want)):
        pytest.skip(f"JAX {jax.__version__} gives NaN for gradients with query_seq_lengths")
    for one, two in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        # jax.nn's function computes its softmax in float32.
        assert one.shape == two.shape
        assert jnp.abs(one - two).max() <= 2e-5


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.bfloat16])
def test_types(dtype):
    got = dot_product_attention(*inputs(dtype), is_causal=True)
    want = jax.nn.dot_product_attention(*inputs(dtype), is_causal=True)
    assert got.dtype == want.dtype == dtype
    off = jnp.abs(got.astype(jnp.float32) - want.astype(jnp.float32)).max()
    assert off <= 16 * float(jnp.finfo(dtype).eps)


def test_one_sequence_and_residual():
    q, k, v = (x[0] for x in inputs(jnp.float32))
    o, lse = dot_product_attention(q, k, v, return_residual=True)
    assert o.shape == (N, H, DIM) and lse.shape == (N, H) and lse.dtype == jnp.float32
    if "return_residual" in inspect.signature(jax.nn.dot_product_attention).parameters:
        want = jax.nn.dot_product_attention(q, k, v, return_residual=True)
        assert jnp.abs(o - want[0]).max() <= 1e-5 and jnp.abs(lse - want[1]).max() <= 1e-5


def test_what_differs_from_jax():
    q, k, v = inputs(jnp.float32, dim_vo=3)
    assert dot_product_attention(q, k, v).shape == (B, N, H, 3)
    hidden = np.zeros((B, 1, N, M), bool)
    assert (dot_product_attention(q, k, v, mask=hidden) == 0).all()


def test_signature_is_that_of_jax():
    mine = inspect.signature(dot_product_attention).parameters
    theirs = inspect.signature(jax.nn.dot_product_attention).parameters
    assert list(theirs) == [name for name in mine if name in theirs]
    for name, one in theirs.items():
        assert (mine[name].kind, mine[name].default) == (one.kind, one.default)


ERRORS = {
    "implementation: found 'cudnn'; accepted None": {"implementation": "cudnn"},
    "shape of bias: found f32": {"bias": np.ones((3, N, M), np.float32)},
    "type of mask: found float32; accepted bool": {"mask": np.ones((N, M), np.float32)},
    "type of bias: found bool": {"bias": np.ones((N, M), bool)},
    "local_window_size: found -1": {"local_window_size": -1},
    "local_window_size: found (1, 2, 3)": {"local_window_size": (1, 2, 3)},
    "is_causal: found 1; accepted True or False": {"is_causal": 1},
    "shape of query_seq_lengths: found i32[3]": {"query_seq_lengths": [1, 2, 3]},
    "scale: found 'x'; accepted a number": {"scale": "x"},
    "shape of query: found [8]; accepted [b, n, h, d]": {"query": np.ones(8)},
    "shape of key: found f32": {"key": np.ones((1, M, G, DIM), np.float32)},
    "type of value: found bf16; accepted f32": {"value": jnp.ones((B, M, G, DIM), jnp.bfloat16)},
    "query: dtype: found int32": {"query": np.ones((B, N, H, DIM), np.int32)},
}


@pytest.mark.parametrize("text", ERRORS)
def test_errors(text):
    arrays = dict(zip(("query", "key", "value"), inputs(jnp.float32), strict=True))
    with pytest.raises(ValueError) as raised:
        jax.eval_shape(lambda: dot_product_attention(**(arrays | ERRORS[text])))
    assert str(raised.value).startswith("dot_product_attention: " + text)
