"""libattn.jax.attention under shard_map, on 8 virtual CPU devices."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax", minversion="0.6")

import jax.numpy as jnp  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402
from jax_cases import case  # noqa: E402
from libattn.jax import attention  # noqa: E402

pytestmark = pytest.mark.skipif(
    jax.device_count() < 8, reason="another XLA_FLAGS is set: fewer than 8 CPU devices"
)
# Batch over "data", heads over "heads".
ROWS = P("data", None, "heads", None)
SPECS = {
    "q": ROWS,
    "k": ROWS,
    "v": ROWS,
    "sinks": P("heads"),
    "alibi_slopes": P("heads"),
    "bias": P(None, "heads"),
    "mask": P("data"),
    "kv_begin": P(),
    "kv_end": P("data"),
    "len_q": P("data"),
    "len_kv": P("data"),
}


def mesh(data=2, heads=2):
    return Mesh(np.array(jax.devices()[: data * heads]).reshape(data, heads), ("data", "heads"))


@pytest.mark.parametrize("checked", [True, False], ids=["check_vma", "unchecked"])
@pytest.mark.parametrize(
    "name", ["plain", "causal", "alibi", "mask", "bias", "bounds", "lengths", "sinks", "rope"]
)
def test_results_and_gradients(name, checked, x64):
    one = case(name)
    leaves = {k: jnp.asarray(x) for k, x in one.leaves.items()}
    arrays = {k: jnp.asarray(x) for k, x in one.options.items() if isinstance(x, np.ndarray)}
    others = {k: x for k, x in one.options.items() if k not in arrays}
    specs = lambda named: {k: SPECS[k] for k in named}  # noqa: E731

    def run(leaves, arrays):
        return attention(**leaves, **arrays, **others, return_lse=True)

    sharded = jax.shard_map(
        run,
        mesh=mesh(),
        in_specs=(specs(leaves), specs(arrays)),
        out_specs=(ROWS, P("data", "heads")),
        check_vma=checked,
    )

    def both(function):
        results, pull = jax.vjp(lambda x: function(x, arrays), leaves)
        return results, pull((jnp.asarray(one.dout), jnp.asarray(one.dlse)))[0]

    got, want = jax.jit(lambda: both(sharded))(), both(run)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        hidden = jnp.isneginf(b)
        off = jnp.where(hidden, 0, a) - jnp.where(hidden, 0, b)
        assert jnp.abs(off).max() <= 1e-12


def test_vmap_of_shards():
    x = jnp.asarray(np.random.default_rng(0).standard_normal((3, 4, 6, 2, 8)), jnp.float32)
    spec = P("data", None, "heads")
    run = jax.shard_map(
        lambda x: attention(x, x, x, causal=True), mesh=mesh(), in_specs=spec, out_specs=spec
    )
    got = jax.jit(jax.vmap(run))(x)
    assert jnp.array_equal(got, jnp.stack([attention(one, one, one, causal=True) for one in x]))


def test_sharded_arrays_without_shard_map():
    """XLA gathers the operands. The result is right, but every device does the same work."""
    x = jnp.asarray(np.random.default_rng(0).standard_normal((4, 6, 2, 8)), jnp.float32)
    there = jax.device_put(x, NamedSharding(mesh(), ROWS))
    got = jax.jit(lambda x: attention(x, x, x, causal=True))(there)
    assert jnp.array_equal(got, attention(x, x, x, causal=True))


@pytest.mark.skipif(not hasattr(jax, "reshard"), reason="this JAX has no jax.reshard")
def test_explicit_axes():
    """With explicit axes, sharding is part of the type: a gradient must have that of its array."""
    kinds = (jax.sharding.AxisType.Explicit,) * 2
    x = jnp.asarray(np.random.default_rng(0).standard_normal((4, 6, 2, 8)), jnp.float32)
    gradient = jax.jit(jax.grad(lambda x: (attention(x, x, x, causal=True) ** 2).sum()))
    want = gradient(x)
    with jax.set_mesh(jax.make_mesh((2, 2), ("data", "heads"), axis_types=kinds)) as there:
        x = jax.device_put(x, NamedSharding(there or jax.sharding.get_mesh(), ROWS))
        got = gradient(x)
    assert got.sharding.spec == ROWS
    assert jnp.abs(np.asarray(got) - np.asarray(want)).max() <= 1e-5
