"""Attention, its gradient, decode, merge and rope on NumPy arrays against float64 math."""

from __future__ import annotations

import libattn
import ml_dtypes
import numpy as np
import pytest
from comparing import UNIT, assert_close
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from libattn import _reference as reference

TYPES = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}
WORK = {"float64": "float64", "float32": "float32", "float16": "float32", "bfloat16": "float32"}


@st.composite
def problems(draw):
    """(q, k, v, dout, dlse, options) with any set of options that do not exclude each other."""
    size = lambda low, high: draw(st.integers(low, high))  # noqa: E731
    flip = lambda: draw(st.booleans())  # noqa: E731
    dtype = TYPES[draw(st.sampled_from(sorted(TYPES)))]
    side = np.float64 if dtype is np.float64 else np.float32
    b, g, group, n, m = size(1, 2), size(1, 2), size(1, 3), size(0, 70), size(0, 90)
    h, dim, dim_vo = g * group, 2 * size(1, 20), size(1, 40)
    rng = np.random.default_rng(size(0, 2**32 - 1))

    def array(*shape, dtype=dtype):
        x = rng.standard_normal(shape).astype(dtype)
        if len(shape) == 4 and flip():  # [b, h, n, d] in memory
            x = np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2)
        return x

    options = {"causal": flip()}
    diagonals = st.sampled_from(["bottom_right", "top_left", -3, 5])
    options["diagonal"] = draw(diagonals)
    sides = st.one_of(st.none(), st.integers(0, 40))
    if flip():
        options["window"] = (draw(sides), draw(sides))
    if flip():
        options["kv_begin"] = rng.integers(-2, m + 2, (draw(st.sampled_from([1, b])), n), np.int32)
    if flip():
        options["kv_end"] = rng.integers(-2, m + 2, (b, n), np.int32)
    extent = lambda: tuple(  # noqa: E731
        draw(st.sampled_from([1, full])) for full in (b, h, n, m)
    )
    if flip():
        options["mask"] = rng.random(extent()) < 0.8
    if flip():
        options["bias"] = rng.standard_normal(extent()).astype(side)
    if flip():
        options["softcap"] = 3.0
    if flip():
        shape = draw(st.sampled_from([(h,), (b, h)]))
        options["alibi_slopes"] = (rng.random(shape) / 8).astype(side)
    if flip():
        options["sinks"] = rng.standard_normal(h).astype(side)
    if flip():
        options["len_q"] = rng.integers(0, n + 1, b, np.int32)
        options["len_kv"] = rng.integers(0, m + 1, b, np.int32)
    if flip():
        options |= {"dropout_p": 0.25, "seed": 2**40 + 7, "offset": 2**33 + 1}
    if flip():
        options["scale"] = 0.3
    q, k, v = array(b, n, h, dim), array(b, m, g, dim), array(b, m, g, dim_vo)
    dlse = rng.standard_normal((b, h, n)).astype(side) if flip() else None
    return q, k, v, array(b, n, h, dim_vo), dlse, options


quick = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))


@quick
@given(problems())
def test_attention_and_gradients(problem):
    q, k, v, dout, dlse, options = problem
    work = WORK[q.dtype.name]
    expected = reference.attention(q, k, v, **options)
    o, lse = libattn.attention(q, k, v, return_lse=True, **options)
    biggest = max(1.0, *(float(np.abs(x.astype(float)).max(initial=0)) for x in (q, k, v, dout)))
    # CPU engines for bf16 round P (and dS in the backward), with the same effect as the rounded o
    # below.
    rounding = (UNIT[q.dtype.name] if q.dtype.name == "bfloat16" else 0) / UNIT[work]
    assert_close(o, expected.o, work, biggest**3, steps=64 + rounding)
    assert_close(lse, expected.lse, work, biggest**2 * q.shape[-1])
    assert o.dtype == q.dtype

    # Both compute gradients; the library uses the o and lse of the forward above.
    grads = libattn.attention_backward(dout, q, k, v, o, lse, dlse=dlse, **options)
    found = {name: x for name, x in grads._asdict().items() if x is not None}
    wanted = reference.gradients(dout, q, k, v, dlse=dlse, **options)
    assert found.keys() == wanted.keys()
    u_o = 2.0**-8 if q.dtype.name == "bfloat16" else 2.0**-11 if q.dtype.itemsize == 2 else 0
    rounding += u_o / (2.0**-24)  # o was rounded to its type before delta
    terms = biggest**4 * max(q.shape[1], 1) ** 0.5 * (q.shape[-1] + v.shape[-1])
    for name, x in found.items():
        assert_close(x, wanted[name], work, terms, steps=64 + rounding)


@pytest.mark.parametrize("dtype", sorted(TYPES))
def test_out_arrays_strides_and_workspace(rng, dtype):
    q = rng.standard_normal((2, 5, 3, 4, 16)).astype(TYPES[dtype])[:, :, 0]
    k, v = (rng.standard_normal((2, 4, 9, 16)).astype(TYPES[dtype]).swapaxes(1, 2) for _ in "kv")
    whole = np.full((2, 5, 4, 40), 7, TYPES[dtype])
    out = whole[..., 3:19]
    lse_out = np.zeros((2, 4, 5), np.float64 if dtype == "float64" else np.float32)
    bytes_ = libattn.workspace_bytes(libattn.describe(q, k, v))
    memory = np.zeros(bytes_ + 64, np.uint8)
    workspace = memory[-memory.ctypes.data % 64 :][:bytes_]
    o, lse = libattn.attention(
        q, k, v, out=out, lse_out=lse_out, return_lse=True, workspace=workspace
    )
    assert o is out and lse is lse_out
    expected = reference.attention(q, k, v)
    # The engines for bf16 round P: at most a unit of rounding of the largest v.
    rounding = UNIT["bfloat16"] / UNIT["float32"] if dtype == "bfloat16" else 0
    assert_close(
        out, expected.o, WORK[dtype], float(np.abs(v.astype(float)).max()), steps=64 + rounding
    )
    assert (whole[..., :3] == 7).all() and (whole[..., 19:] == 7).all()


def test_out_dtype(rng):
    q = rng.standard_normal((1, 5, 2, 8)).astype(np.float16)
    assert libattn.attention(q, q, q, out_dtype=np.float32).dtype == np.float32
    assert libattn.attention(q, q, q, out_dtype="float32").dtype == np.float32
    o, lse = libattn.attention(q, q, q, return_lse=True)
    grads = libattn.attention_backward(o, q, q, q, o, lse, grad_dtype="float32")
    assert grads.dq.dtype == np.float32


def test_accumulate_and_want(rng):
    q, k, v = (rng.standard_normal((1, 6, 2, 8)).astype(np.float32) for _ in "qkv")
    o, lse = libattn.attention(q, k, v, return_lse=True)
    one = libattn.attention_backward(o, q, k, v, o, lse)
    dk = one.dk.copy()
    two = libattn.attention_backward(o, q, k, v, o, lse, want=("dk",), dk=dk, accumulate=True)
    assert two.dk is dk and two.dq is None
    np.testing.assert_allclose(dk, 2 * one.dk, rtol=1e-5)


def test_packed_is_its_entries(rng):
    lengths = [3, 0, 7, 5]
    cu = np.cumsum([0, *lengths]).astype(np.int32)
    q, k, v, dout = (rng.standard_normal((15, 2, 8)).astype(np.float32) for _ in range(4))
    packed = {"cu_len_q": cu, "cu_len_kv": cu, "max_len_q": 7, "max_len_kv": 7, "causal": True}
    o, lse = libattn.attention(q, k, v, return_lse=True, **packed)
    grads = libattn.attention_backward(dout, q, k, v, o, lse, **packed)
    for begin, end in zip(cu, cu[1:], strict=False):
        part = [x[None, begin:end] for x in (dout, q, k, v)]
        expected = reference.attention(*part[1:], causal=True)
        assert_close(o[begin:end], expected.o[0], "float32", 8)
        assert_close(lse[:, begin:end], expected.lse[0], "float32", 8)
        wanted = reference.gradients(*part, causal=True)
        for name in ("dq", "dk", "dv"):
            assert_close(getattr(grads, name)[begin:end], wanted[name][0], "float32", 64)


def test_decode_appends_to_pages(rng):
    pages, page = 6, 4
    k_cache, v_cache = (rng.standard_normal((pages, page, 1, 8)).astype(np.float32) for _ in "kv")
    table = np.array([[5, 0, 2], [1, 4, 3]], np.int32)
    length = np.array([6, 9], np.int32)
    q = rng.standard_normal((2, 2, 2, 8)).astype(np.float32)
    k_new, v_new = (rng.standard_normal((2, 2, 1, 8)).astype(np.float32) for _ in "kv")
    o, lse = libattn.decode(
        q,
        k_cache,
        v_cache,
        block_table=table,
        len_kv=length,
        k_new=k_new,
        v_new=v_new,
        causal=True,
        return_lse=True,
    )
    k, v = (x[table].reshape(2, 12, 1, 8) for x in (k_cache, v_cache))
    for entry in range(2):
        assert (k[entry, length[entry] : length[entry] + 2] == k_new[entry]).all()
    expected = reference.attention(q, k, v, causal=True, len_kv=length + 2)
    assert_close(o, expected.o, "float32", 8)
    assert_close(lse, expected.lse, "float32", 8)


def test_decode_appends_no_rows(rng):
    q, k, v = (rng.standard_normal((2, n, 2, 8)).astype(np.float32) for n in (1, 6, 6))
    new = {"k_new": k[:, :0], "v_new": v[:, :0], "len_kv": [3, 5]}
    wanted = libattn.decode(q, k, v, len_kv=[3, 5], causal=True)
    caches = k.copy(), v.copy()
    assert (libattn.decode(q, *caches, **new, causal=True) == wanted).all()
    assert (caches[0] == k).all() and (caches[1] == v).all()
    at = np.array([[4], [2]], np.int32)
    rope = libattn.Rope(positions_q=at, positions_kv=at[:, :0])
    turned = libattn.Rope(positions_q=at)
    o = libattn.decode(q, *caches, **new, rope=rope)
    assert (o == libattn.decode(q, k, v, len_kv=[3, 5], rope=turned)).all()


@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_rope_alone_and_inside(rng, style):
    q, k, v = (rng.standard_normal((2, 5, 2, 16)).astype(np.float32) for _ in "qkv")
    rope = libattn.Rope(style=style, rot_dim=12, base=500.0, pos_offset=3)
    turned = libattn.rope(q, style=style, rot_dim=12, base=500.0, pos_offset=3)
    assert_close(turned, reference.rotate(q, np.arange(5)[None] + 3, rope), "float32", 4)
    back = libattn.rope(turned, style=style, rot_dim=12, base=500.0, pos_offset=3, inverse=True)
    assert_close(back, q.astype(np.float64), "float32", 4)
    expected = reference.attention(q, k, v, rope=rope, causal=True)
    assert_close(libattn.attention(q, k, v, rope=rope, causal=True), expected.o, "float32", 8)
    positions = np.array([[4, 1, 0, 9, 2]], np.int32)
    placed = libattn.rope(q, style=style, positions=positions)
    plain = libattn.Rope(style=style)
    assert_close(placed, reference.rotate(q, positions, plain), "float32", 4)


def test_merge_of_halves_is_the_whole(rng):
    q, k, v = (rng.standard_normal((2, 8, 2, 16)).astype(np.float32) for _ in "qkv")
    parts = [
        libattn.attention(q, k[:, s], v[:, s], return_lse=True) for s in (slice(5), slice(5, 8))
    ]
    o, lse = libattn.merge(*parts[0], *parts[1])
    expected = reference.attention(q, k, v)
    assert_close(o, expected.o, "float32", 8)
    assert_close(lse, expected.lse, "float32", 8)
    sinks = rng.standard_normal(2).astype(np.float32)
    sink = np.broadcast_to(sinks[None, :, None], lse.shape).copy()
    with_sink, _ = libattn.merge(o, lse, None, sink)
    assert_close(with_sink, reference.attention(q, k, v, sinks=sinks).o, "float32", 8)


def test_merge_gradients_are_those_of_the_formula(rng):
    o1, o2, dout = (rng.standard_normal((1, 3, 2, 4)) for _ in range(3))
    lse1, lse2, dlse = (rng.standard_normal((1, 2, 3)) for _ in range(3))
    o, lse = libattn.merge(o1, lse1, o2, lse2)
    grads = libattn.merge_backward(dout, o1, lse1, o2, lse2, o, lse, dlse=dlse)

    def loss(*inputs):
        merged, total = libattn.merge(*inputs)
        return (merged * dout).sum() + (total * dlse).sum()

    inputs = [o1, lse1, o2, lse2]
    for at, grad in enumerate(grads):
        for index in np.ndindex(*inputs[at].shape):
            steps = []
            for sign in (1, -1):
                moved = [x.copy() for x in inputs]
                moved[at][index] += sign * 1e-5
                steps.append(loss(*moved))
            assert abs((steps[0] - steps[1]) / 2e-5 - grad[index]) < 1e-8


def test_seed_as_array(rng):
    q = rng.standard_normal((1, 9, 2, 8)).astype(np.float32)
    number = libattn.attention(q, q, q, dropout_p=0.5, seed=41, offset=3)
    array = libattn.attention(
        q, q, q, dropout_p=0.5, seed=np.array([41]), offset=np.array(3, np.uint64)
    )
    assert (number == array).all()
    assert (number != libattn.attention(q, q, q, dropout_p=0.5, seed=42, offset=3)).any()


def test_nonfinite_count(rng):
    q = rng.standard_normal((1, 4, 1, 8)).astype(np.float32)
    v = q.copy()
    v[0, 1] = np.nan
    count = np.zeros(1, np.int32)
    o = libattn.attention(q, q, v, nonfinite_count=count)
    assert count[0] == o.size and (o == 0).all()


def test_threads_and_determinism(rng):
    q, k, v = (rng.standard_normal((1, 300, 4, 32)).astype(np.float32) for _ in "qkv")
    results = []
    try:
        for threads in (1, 2, 4):
            libattn.set_num_threads(threads)
            assert libattn.get_num_threads() == threads
            o, lse = libattn.attention(q, k, v, return_lse=True, deterministic=True)
            results.append(
                [o, *libattn.attention_backward(o, q, k, v, o, lse, deterministic=True)[:3]]
            )
    finally:
        libattn.set_num_threads(0)
    for other in results[1:]:
        assert all((a == b).all() for a, b in zip(results[0], other, strict=True))
