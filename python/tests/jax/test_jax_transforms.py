"""libattn.jax.attention under vmap (equal to a loop), checkpoint, scan and partial gradients."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax", minversion="0.6")

import jax.numpy as jnp  # noqa: E402
from jax_cases import GRADIENTS, OPTIONS, case  # noqa: E402
from libattn.jax import attention  # noqa: E402

SIZE = 3


def weighed(o, lse, weights):
    """A weighted sum of o and lse in which all elements have different weights."""
    return (o * weights[0]).sum() + (jnp.where(jnp.isinf(lse), 0, lse) * weights[1]).sum()


def stacked(name):
    """Cases with different random values, stacked along a new first axis: (leaves, array options,
    other options, weights)."""
    cases = [case(name, seed) for seed in range(SIZE)]
    first = cases[0]
    leaves = {k: np.stack([c.leaves[k] for c in cases]) for k in first.leaves}
    are_arrays = [k for k, x in first.options.items() if isinstance(x, np.ndarray)]
    arrays = {k: np.stack([c.options[k] for c in cases]) for k in are_arrays}
    others = {k: x for k, x in first.options.items() if k not in arrays}
    weights = np.stack([c.dout for c in cases]), np.stack([c.dlse for c in cases])
    return leaves, arrays, others, weights


def compare(fast, slow, limit=1e-12):
    for one, two in zip(jax.tree.leaves(fast), jax.tree.leaves(slow), strict=True):
        assert one.shape == two.shape and one.dtype == two.dtype
        hidden = jnp.isneginf(one)
        assert (hidden == jnp.isneginf(two)).all()
        off = jnp.where(hidden, 0, one) - jnp.where(hidden, 0, two)
        assert jnp.abs(off).max(initial=0) <= limit


# (option, arrays without the axis of vmap: all indices share them).
SHARED = [(name, ()) for name in OPTIONS]
SHARED += [(name, ("k",)) for name in ("plain", "lengths", "dropout", "rope")]
SHARED += [(name, ("bias",)) for name in ("bias", "bias by batch", "bias of all")]
SHARED += [("sinks", ("sinks",)), ("many", ("bias", "sinks"))]


@pytest.mark.parametrize("name, shared", SHARED)
def test_vmap_is_a_loop(name, shared, x64):
    leaves, arrays, others, weights = stacked(name)
    axes = {k: None if k in shared else 0 for k in leaves}
    leaves = {k: jnp.asarray(x[0] if k in shared else x) for k, x in leaves.items()}

    def run(leaves, arrays, weights):
        def loss(leaves):
            o, lse = attention(**leaves, **arrays, **others, return_lse=True)
            return weighed(o, lse, weights), (o, lse)

        gradients, results = jax.grad(loss, has_aux=True)(leaves)
        return gradients, results

    fast = jax.jit(jax.vmap(run, (axes, 0, 0)))(leaves, arrays, weights)
    one_by_one = []
    for at in range(SIZE):
        part = {k: x if k in shared else x[at] for k, x in leaves.items()}
        rest = jax.tree.map(lambda x, at=at: x[at], (arrays, weights))
        one_by_one.append(run(part, *rest))
    compare(fast, jax.tree.map(lambda *x: jnp.stack(x), *one_by_one))

    def total(leaves):  # gradients of what is shared are sums
        run = lambda leaves, arrays, weights: weighed(  # noqa: E731
            *attention(**leaves, **arrays, **others, return_lse=True), weights
        )
        return jax.vmap(run, (axes, 0, 0))(leaves, arrays, weights).sum()

    sums = {k: x.sum(0) if k in shared else x for k, x in fast[0].items()}
    compare(jax.grad(total)(leaves), sums)


def test_vmap_over_seeds_and_keys():
    x = jnp.asarray(case("plain").leaves["q"], jnp.float32)
    draw = lambda seed: attention(x, x, x, dropout_p=0.4, seed=seed)  # noqa: E731
    for seeds in (jnp.arange(3), jax.random.split(jax.random.key(1), 3)):
        compare(jax.vmap(draw)(seeds), jnp.stack([draw(seed) for seed in seeds]), 0)
    same = jax.vmap(lambda _: draw(7))(jnp.arange(2))
    assert jnp.array_equal(same[0], same[1])


def test_vmap_over_packed(x64):
    rng = np.random.default_rng(3)
    q, k = rng.standard_normal((3, 9, 4, 8)), rng.standard_normal((3, 9, 2, 8))
    cu = np.array([[0, 4, 9], [0, 0, 7], [0, 8, 9]], np.int32)

    def loss(q, k, cu):
        return (attention(q, k, k, cu_len_q=cu, cu_len_kv=cu, causal=True) ** 2).sum()

    fast = jax.vmap(jax.grad(loss, (0, 1)))(q, k, cu)
    slow = [jax.grad(loss, (0, 1))(*x) for x in zip(q, k, cu, strict=True)]
    compare(fast, jax.tree.map(lambda *x: jnp.stack(x), *slow))


def test_vmap_over_descales():
    rng = np.random.default_rng(3)
    x = jnp.asarray(rng.standard_normal((3, 2, 5, 2, 16))).astype(jnp.float8_e4m3fn)
    scales = jnp.asarray(rng.random((3, 2, 2)), jnp.float32)
    run = lambda x, s: attention(x, x, x, descale_k=s, out_dtype="float32")  # noqa: E731
    compare(
        jax.vmap(run)(x, scales), jnp.stack([run(*one) for one in zip(x, scales, strict=True)]), 0
    )


def test_nested_vmap_and_axes(x64):
    q = jnp.asarray(np.random.default_rng(4).standard_normal((5, 2, 3, 6, 2, 4)))
    run = lambda x: attention(x, x, x, causal=True)  # noqa: E731
    both = jax.vmap(jax.vmap(run, 1, 1), 0)(q)
    compare(both, _loops(q))
    assert jax.vmap(run)(q[:0, :, 0]).shape == (0, 2, 6, 2, 4)


def _loops(q):
    rows = [jnp.stack([attention(*[x[:, j]] * 3, causal=True) for j in range(3)], 1) for x in q]
    return jnp.stack(rows)


def test_16_bit_gradient_of_a_bias_is_rounded_once():
    one = case("bias")
    q, k, v = (jnp.asarray(one.leaves[x], jnp.bfloat16)[None] for x in "qkv")
    bias = jnp.asarray(one.leaves["bias"], jnp.bfloat16)
    loss = lambda bias, q, k, v: attention(q, k, v, bias=bias).astype(jnp.float32).sum()  # noqa: E731
    got = jax.vmap(jax.grad(loss), (None, 0, 0, 0))(bias, q, k, v)[0]
    want = jax.grad(loss)(bias, q[0], k[0], v[0])
    assert got.dtype == jnp.bfloat16
    compare(got.astype(jnp.float32), want.astype(jnp.float32), 2.0**-8 * float(jnp.abs(want).max()))


def test_checkpoint_and_scan(x64):
    x = jnp.asarray(case("plain").leaves["q"])

    def layer(x, _):
        return x + attention(x, x, x, causal=True), None

    def loss(x, wrap):
        return (jax.lax.scan(wrap(layer), x, None, length=3)[0] ** 2).sum()

    plain = jax.grad(loss)(x, lambda f: f)
    compare(jax.jit(jax.grad(loss), static_argnums=1)(x, jax.checkpoint), plain)


@pytest.mark.parametrize("wanted", ["q", "k", "v", "bias", "sinks"])
def test_gradients_that_are_not_wanted_are_not_computed(wanted):
    one = case("many")
    leaves = {name: jnp.asarray(x, jnp.float32) for name, x in one.leaves.items()}
    options = {k: x for k, x in one.options.items() if k != "alibi_slopes"}

    def loss(x):
        return attention(**(leaves | {wanted: x}), **options).sum()

    text = jax.jit(jax.grad(loss)).lower(leaves[wanted]).as_text()
    assert f'outputs = "{GRADIENTS[wanted]}"' in text


def test_lse_is_computed_only_for_gradients_or_if_asked_for():
    x = jnp.ones((1, 4, 2, 8))
    text = jax.jit(lambda x: attention(x, x, x)).lower(x).as_text()
    assert 'outputs = "o"' in text and "lse=off" in text


def test_gradient_of_lse_alone(x64):
    one = case("causal")
    leaves = {name: jnp.asarray(x) for name, x in one.leaves.items()}
    got = jax.grad(lambda x: attention(**x, causal=True, return_lse=True)[1].sum())(leaves)
    one.dout, one.dlse = np.zeros_like(one.dout), np.ones_like(one.dlse)
    want = one.expected()
    for name, x in got.items():
        assert np.abs(x - want[GRADIENTS[name]]).max() <= 1e-12


def test_a_new_seed_does_not_compile_again():
    x = jnp.ones((1, 4, 2, 8))
    with jax.log_compiles():
        step = jax.jit(lambda seed: attention(x, x, x, dropout_p=0.5, seed=seed))
        for seed in range(3):
            step(seed)
        assert step._cache_size() == 1
