"""JAX's arrays as arguments of the functions of libattn, which read them through DLPack."""

from __future__ import annotations

import libattn
import numpy as np
import pytest

jax = pytest.importorskip("jax", minversion="0.6")

import jax.numpy as jnp  # noqa: E402

RNG = np.random.default_rng(0)
Q, K, V = (RNG.standard_normal((2, 4, 2, 8)).astype(np.float32) for _ in range(3))


def test_lists_of_lengths():
    o = libattn.attention(jnp.asarray(Q), jnp.asarray(K), jnp.asarray(V), len_kv=[1, 3])
    assert (np.asarray(o) == libattn.attention(Q, K, V, len_kv=[1, 3])).all()


def test_8_bit_keys():
    q = Q.astype(np.float16)
    for name in ("float8_e4m3fn", "float8_e5m2"):
        k, v = (jnp.asarray(x).astype(name) for x in (K, V))
        o = libattn.attention(jnp.asarray(q), k, v)
        assert (np.asarray(o) == libattn.attention(q, np.asarray(k), np.asarray(v))).all()


def test_nothing_is_written_into_them():
    q, k, v = map(jnp.asarray, (Q, K, V))
    o, lse = libattn.attention(Q, K, V, return_lse=True)
    new = {"k_new": Q[:, :1], "v_new": Q[:, :1], "len_kv": [1, 2]}
    bias = np.zeros((1, 1, 4, 4), np.float32)
    with pytest.raises(ValueError, match="^attention: out: found a read-only array; accepted"):
        libattn.attention(q, k, v, out=q + 0)
    with pytest.raises(ValueError, match="^attention: lse_out: found a read-only array"):
        libattn.attention(q, k, v, lse_out=jnp.asarray(lse))
    with pytest.raises(ValueError, match="^decode: k_cache: found a read-only array"):
        libattn.decode(q[:, :1], k, V.copy(), **new)
    with pytest.raises(ValueError, match="^decode: v_cache: found a read-only array"):
        libattn.decode(q[:, :1], K.copy(), v, **new)
    with pytest.raises(ValueError, match="dbias: found a read-only array"):
        libattn.attention_backward(o, Q, K, V, o, lse, bias=bias, dbias=jnp.asarray(bias[0, 0]))
    with pytest.raises(ValueError, match="^rope: out: found a read-only array"):
        libattn.rope(q, out=q + 0)
    assert (np.asarray(k) == K).all() and (np.asarray(v) == V).all()
    libattn.decode(q[:, :1], k, v, len_kv=[1, 2])  # reads them
