"""8-bit types: q, k and v of a forward, and caches of a 16-bit q."""

from __future__ import annotations

import libattn
import numpy as np
import pytest

ml_dtypes = pytest.importorskip("ml_dtypes")

TYPES = (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
EVERY_CODE = np.arange(256, dtype=np.uint8)


def draw(shape, dtype, seed):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def softmax_attention(q, k, v):
    """[b, n, h, d] with as many key heads, in float64."""
    score = np.einsum("bnhd,bmhd->bhnm", q, k) / np.sqrt(q.shape[-1])
    p = np.exp(score - score.max(-1, keepdims=True))
    return np.einsum("bhnm,bmhd->bnhd", p / p.sum(-1, keepdims=True), v)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("len_q", [3, 40])  # dot products, products of tiles
def test_forward_equals_that_of_the_converted_inputs(dtype, len_q):
    q = draw((2, len_q, 2, 24), dtype, 0)
    k, v = draw((2, 2, 70, 2, 24), dtype, 1)
    descales = [np.float32(draw((2, 2), np.float32, 2 + n) ** 2 + 0.5) for n in range(3)]
    names = ("descale_q", "descale_k", "descale_v")
    options = dict(zip(names, descales, strict=True))
    wide = [
        x.astype(np.float64) * factor[:, None, :, None]
        for x, factor in zip((q, k, v), descales, strict=True)
    ]
    o = libattn.attention(q, k, v, out_dtype="float32", **options)
    assert o.dtype == np.float32
    np.testing.assert_allclose(o, softmax_attention(*wide), atol=2e-5)
    usual = libattn.attention(q, k, v, **options)
    assert usual.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(usual.astype(np.float32), o, rtol=2**-8)
    half = libattn.attention(q, k, v, out_dtype=np.float16, **options)
    np.testing.assert_allclose(half.astype(np.float32), o, rtol=2**-11, atol=1e-7)


@pytest.mark.parametrize("dtype", TYPES)
def test_every_code_is_read(dtype):
    """One key has all the weight, so that o is v: NaN, infinities and subnormals included."""
    v = EVERY_CODE.view(dtype).reshape(1, 1, 1, 256)
    q = np.ones((1, 1, 1, 8), np.float32).astype(dtype)
    o = libattn.attention(q, q, v, out_dtype="float32")
    np.testing.assert_array_equal(o.ravel(), v.astype(np.float32).ravel())


@pytest.mark.parametrize("dtype", TYPES)
def test_appended_rows_are_stored_as_they_are(dtype):
    q = draw((1, 1, 2, 16), np.float16, 0)
    cache = [np.zeros((1, 8, 2, 16), dtype) for _ in range(2)]
    new = [draw((1, 1, 2, 16), dtype, 1 + n) for n in range(2)]
    o = libattn.decode(
        q, *cache, k_new=new[0], v_new=new[1], len_kv=np.zeros(1, np.int32), out_dtype="float32"
    )
    for rows, one in zip(cache, new, strict=True):
        np.testing.assert_array_equal(rows[:, :1].view(np.uint8), one.view(np.uint8))
    np.testing.assert_array_equal(o, new[1].astype(np.float32))


def test_refusals():
    q, k, v = draw((3, 1, 4, 2, 16), TYPES[0], 0)
    wide = q.astype(np.float32)
    with pytest.raises(
        ValueError, match=r"shape of descale_q: found f32\[2, 2\].*accepted \[1, 2\]"
    ):
        libattn.attention(q, k, v, descale_q=np.ones((2, 2), np.float32))
    with pytest.raises(ValueError, match="descale_k: dtype: found float64; accepted float32"):
        libattn.attention(q, k, v, descale_k=np.ones((1, 2)))
    with pytest.raises(ValueError, match="descale_q"):
        libattn.attention(wide, wide, wide, descale_q=np.ones((1, 2), np.float32))
    with pytest.raises(ValueError, match="type of k and v: found f8e4m3 with a q of f32"):
        libattn.attention(wide, k, v)
    with pytest.raises(libattn.Unsupported, match="f8"):
        o, lse = libattn.attention(q, k, v, return_lse=True)
        libattn.attention_backward(np.ones_like(o), q, k, v, o, lse)


@pytest.mark.parametrize("kv_type", [*TYPES, np.int8])
@pytest.mark.parametrize("each", [True, False])
@pytest.mark.parametrize("page", [0, 4])
def test_factors_of_rows_and_pages(kv_type, each, page):
    """Equal to k and v multiplied by their descales first; descales without a key are not used."""
    b, m, g, d = 2, 20, 2, 16
    q = draw((b, 3, 2 * g, d), np.float16, 0)
    k, v = ((draw((b, m, g, d), np.float32, n) * 20).astype(kv_type) for n in (1, 2))
    rows = (m if each else 1) if page == 0 else (page if each else 1)
    first = b if page == 0 else b * m // page
    factors = [
        (np.random.default_rng(n).uniform(0.01, 0.1, (first, rows, g))).astype(np.float32)
        for n in (3, 4)
    ]
    lens = np.array([m, 12], np.int32)
    wide = []
    for x, factor in zip((k, v), factors, strict=True):
        every = np.repeat(factor, (m if page == 0 else page) // rows, 1).reshape(b, m, g)
        wide.append(x.astype(np.float32) * every[..., None])
    want = libattn.decode(q.astype(np.float32), *wide, len_kv=lens)
    for factor in factors:
        factor.reshape(b, -1, g)[1, -1] = np.nan if each or page else factor[1, 0]
    cache = [k, v]
    options = {"descale_k": factors[0], "descale_v": factors[1], "len_kv": lens}
    if page:
        cache = [x.reshape(-1, page, g, d) for x in cache]
        options["block_table"] = np.arange(b * m // page, dtype=np.int32).reshape(b, -1)
    o = libattn.decode(q, *cache, out_dtype="float32", **options)
    np.testing.assert_allclose(o, want, atol=2e-5)


def test_refusals_of_int8_and_of_factors():
    k = np.ones((1, 8, 2, 16), np.int8)
    q = np.ones((1, 1, 2, 16), np.float16)
    factors = np.ones((1, 8, 2), np.float32)
    o = libattn.decode(q, k, k, descale_k=factors, descale_v=factors)
    np.testing.assert_array_equal(o, 1)
    with pytest.raises(ValueError, match="q"):
        libattn.decode(k, k, k)
    with pytest.raises(ValueError, match="descale_k"):
        libattn.decode(q, k, k, descale_k=factors[:, :7])
    with pytest.raises(ValueError, match="descale_v"):
        libattn.decode(q, k, k, descale_k=factors, descale_v=factors[:, 0])
    table = np.zeros((1, 2), np.int32)
    pages = k.reshape(2, 4, 2, 16)
    with pytest.raises(ValueError, match="pages of v_cache: found 1; accepted 2, as k has"):
        libattn.decode(q, pages, pages[:1], block_table=table)
    with pytest.raises(ValueError, match="pages of descale_k"):
        libattn.decode(q, pages, pages, block_table=table, descale_k=np.ones((1, 1, 2), np.float32))
