"""Errors of libattn.jax: those raised while tracing, and those of the handlers at run time."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax", minversion="0.6")

import jax.numpy as jnp  # noqa: E402
import libattn  # noqa: E402
from libattn.jax import attention  # noqa: E402
from libattn.jax._ffi import target  # noqa: E402

Q = jnp.ones((2, 5, 4, 8))
K = jnp.ones((2, 7, 2, 8))
ERRORS = {
    "heads_q is a multiple of heads_kv: found heads_q=4 heads_kv=3": {"k": jnp.ones((2, 7, 3, 8))},
    "shape of v: found f32[1, 7, 2, 8]": {"v": jnp.ones((1, 7, 2, 8))},
    "type of v: found bf16; accepted f32": {"v": K.astype(jnp.bfloat16)},
    "q: found 1.0; accepted an array of JAX or NumPy": {"q": 1.0},
    "q: dtype: found int32; accepted float32": {"q": Q.astype(jnp.int32)},
    "shape of q: found f32[5]": {"q": jnp.ones(5)},
    "shape of bias: found f32[3, 1, 5, 7]": {"bias": jnp.ones((3, 1, 5, 7))},
    "shape of bias: found [7]; accepted [b|b/s|1, h|1, n|1, m|1]": {"bias": jnp.ones(7)},
    "mask: dtype: found float32; accepted bool": {"mask": jnp.ones((5, 7))},
    "sinks: dtype: found bfloat16": {"sinks": jnp.ones(4, jnp.bfloat16)},
    "shape of sinks: found f32[3]": {"sinks": jnp.ones(3)},
    "len_kv: found [1.5, 2]; accepted a list of whole numbers": {"len_kv": [1.5, 2]},
    "len_kv: found 4294967296; accepted -2^31": {"len_kv": [2**32, 1]},
    "len_kv: found [True, 2]; accepted a list": {"len_kv": [True, 2]},
    "len_kv: found ndarray of bool [2]; accepted a list": {"len_kv": np.ones(2, bool)},
    "len_kv: found -1; accepted 0 or more": {"len_kv": [-1, 2]},
    "len_q: found -3; accepted 0 or more": {"len_q": np.array([1, -3])},
    "cu_len_q: found a sum that falls": {"q": Q[0], "cu_len_q": [0, 4, 2]},
    "cu_len_kv: found shape [0]": {"cu_len_kv": np.zeros(0, np.int32)},
    "alibi_slopes: found NaN or infinity": {"alibi_slopes": np.array([1, np.nan, 1, 1])},
    "shape of len_kv: found i32[3]": {"len_kv": [1, 2, 3]},
    "kv_begin: dtype: found int16": {"kv_begin": jnp.zeros((1, 5), jnp.int16)},
    "causal: found 1; accepted True or False": {"causal": 1},
    "softcap: found -1.0": {"softcap": -1.0},
    "scale: found nan": {"scale": float("nan")},
    "window: found 3; accepted (left, right)": {"window": 3},
    "diagonal: found 'middle'": {"diagonal": "middle"},
    "dropout_p: found 1.5": {"dropout_p": 1.5, "seed": 1},
    "seed: found none with dropout_p=0.5; accepted a key of jax.random": {"dropout_p": 0.5},
    "seed: found -1; accepted 0 to 2**64 - 1": {"dropout_p": 0.5, "seed": -1},
    "seed: found ArrayImpl of float32 [2]": {"dropout_p": 0.5, "seed": jnp.ones(2)},
    "rope: found 1; accepted libattn.Rope": {"rope": 1},
    "rope.rot_dim: found 0; accepted even numbers from 2": {"rope": libattn.Rope(rot_dim=0)},
    "out_dtype: found 'int8'": {"out_dtype": "int8"},
    "workspace: found one; accepted none": {"workspace": jnp.ones(3)},
    "device: found one; accepted none: XLA decides": {"device": "host"},
    "nonfinite_count: found one": {"nonfinite_count": jnp.zeros(1, jnp.int32)},
    "cu_len_q: found": {"q": jnp.ones((5, 4, 8))},
}


@pytest.mark.parametrize("text", ERRORS)
def test_found_when_traced(text):
    arrays = {"q": Q, "k": K, "v": K} | ERRORS[text]
    with pytest.raises(ValueError) as raised:
        jax.eval_shape(lambda: attention(**arrays))
    message = str(raised.value)
    assert message.startswith("attention: ") and text in message and "accepted" in message


def test_unknown_option():
    with pytest.raises(
        TypeError, match="attention: unknown option 'windows'; accepted alibi_slopes"
    ):
        attention(Q, K, K, windows=(1, 1))


def test_traced_numbers():
    with pytest.raises(ValueError, match="attention: scale: found a value that jax traces; acc"):
        jax.jit(lambda s: attention(Q, K, K, scale=s))(0.5)


@pytest.mark.parametrize("name", ["alibi_slopes", "rope.cos"])
def test_arrays_without_a_gradient(name):
    def loss(x):
        if name == "alibi_slopes":
            return attention(Q, K, K, alibi_slopes=x).sum()
        rope = libattn.Rope(cos=x, sin=jax.lax.stop_gradient(x))
        return attention(Q, K, K, rope=rope).sum()

    x = jnp.ones(4 if name == "alibi_slopes" else (9, 4))
    with pytest.raises(ValueError, match=f"attention: {name}: found an array that jax diff"):
        jax.grad(loss)(x)
    assert (jax.grad(lambda x: loss(jax.lax.stop_gradient(x)))(x) == 0).all()


def test_derivatives_that_do_not_exist():
    first = jax.grad(lambda q: attention(q, K, K).sum())
    with pytest.raises(NotImplementedError, match="attention: found a second derivative; accepte"):
        jax.grad(lambda q: first(q).sum())(Q)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda q: attention(q, K, K), (Q,), (Q,))


GOOD = {
    "problem": "batch=2 heads_q=4 heads_kv=2 len_q=5 len_kv=7 dim_qk=8 dim_vo=8 lse=off",
    "inputs": "q k v",
    "outputs": "o",
}
# Attributes that only a program traced by another version of libattn can have -> the error's text.
BAD_ATTRIBUTES = {
    "parse_problem: word 'colour=red'": {"problem": "colour=red"},
    "xla: tensor: found 'w'": {"inputs": "q k w"},
    "xla: buffers: found 3 for 'q k'": {"inputs": "q k"},
    "xla: buffers: found 3 for 'q k v bias'": {"inputs": "q k v bias"},
    "xla: attribute: found 'softness'": {"softness": np.float64(1)},
    "xla: attribute: found 'depth'": {"depth": np.int64(1)},
    "xla: attribute: found 'mood'": {"mood": "good"},
    "xla: type of attribute scale: found type 11": {"scale": np.float32(1)},
    "xla: attribute scale: found an array": {"scale": np.ones(2)},
    "forward: shape of q": {"problem": GOOD["problem"].replace("len_q=5", "len_q=6")},
    "forward: scale: found nan": {"scale": np.float64("nan")},
}


@pytest.mark.parametrize("text", BAD_ATTRIBUTES)
def test_found_by_the_handler(text):
    result = jax.ShapeDtypeStruct(Q.shape, Q.dtype)
    call = jax.ffi.ffi_call(target("forward"), [result])
    assert jnp.array_equal(call(Q, K, K, **GOOD)[0], attention(Q, K, K))
    with pytest.raises(jax.errors.JaxRuntimeError) as raised:
        jax.block_until_ready(call(Q, K, K, **(GOOD | BAD_ATTRIBUTES[text])))
    assert "INVALID_ARGUMENT" in str(raised.value) and text in str(raised.value)


def test_a_type_that_the_library_lacks():
    result = jax.ShapeDtypeStruct(Q.shape, Q.dtype)
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla: type of q: found type"):
        x = Q.astype(jnp.int16)
        jax.block_until_ready(jax.ffi.ffi_call(target("forward"), [result])(x, K, K, **GOOD))


def test_8_bit_gradients():
    q, k = Q.astype(jnp.float8_e4m3fn), K.astype(jnp.float8_e4m3fn)
    with pytest.raises(
        libattn.Unsupported, match="attention: 8-bit inputs: found .*; accepted f32"
    ):
        jax.grad(lambda q: attention(q, k, k, out_dtype="float32").sum())(q)


@pytest.mark.parametrize("pass_", ["forward", "backward"])
def test_cuda_handlers_say_what_they_lack(pass_):
    """The CUDA handlers are registered for the CPU here, so XLA passes them host memory. They must
    return an error."""
    from libattn import _library

    handler = jax.ffi.pycapsule(getattr(_library.LIBRARY, f"attn_xla_{pass_}_cuda"))
    jax.ffi.register_ffi_target(f"libattn_test_{pass_}", handler, platform="cpu")
    result = jax.ShapeDtypeStruct(Q.shape, Q.dtype)
    with pytest.raises(jax.errors.JaxRuntimeError) as raised:
        call = jax.ffi.ffi_call(f"libattn_test_{pass_}", [result])
        jax.block_until_ready(call(Q, K, K, **GOOD))
    assert str(raised.value)
