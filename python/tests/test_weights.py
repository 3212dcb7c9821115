"""attention_weights against the float64 reference, for every option, and its errors."""

from __future__ import annotations

import libattn
import numpy as np
import pytest
from libattn import Rope, _reference

B, N, M, H, G, D = 2, 7, 11, 4, 2, 6
ROWS, HEADS = [5, 0, 2], [3, 1]


def normal(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


BEGIN = np.arange(N, dtype=np.int32) // 2
TABLES = {"cos": np.cos(normal(12, 2)), "sin": np.sin(normal(12, 2))}
POSITIONS = {
    "positions_q": np.array([[3, 1, 4, 1, 5, 9, 2]], np.int32),
    "positions_kv": np.arange(M, dtype=np.int32)[None].repeat(B, 0),
}
OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "top left": {"causal": True, "diagonal": "top_left"},
    "diagonal": {"causal": True, "diagonal": -2},
    "origin": {"causal": True, "diagonal": "origin", "origin": libattn.Origin(q=3, kv=1)},
    "window": {"window": (3, 1)},
    "documents": {"kv_begin": BEGIN[None].repeat(B, 0), "kv_end": np.stack([BEGIN + 3, BEGIN])},
    "mask": {"mask": normal(B, 1, N, M) > 0},
    "mask of keys": {"mask": normal(1, H, 1, M) > 0},
    "plain mask": {"mask": normal(N, M) > 0},
    "bias": {"bias": normal(1, H, N, M)},
    "bias of rows": {"bias": normal(B, 1, N, 1), "causal": True},
    "infinite bias": {"bias": np.where(normal(1, 1, N, M) > 0, 0, -np.inf).astype(np.float32)},
    "softcap": {"softcap": 0.7},
    "alibi": {"alibi_slopes": np.abs(normal(H))},
    "alibi of sequences": {"alibi_slopes": np.abs(normal(B, H)), "causal": True},
    "sinks": {"sinks": normal(H), "window": (1, 0)},
    "lengths": {"len_q": np.array([7, 2], np.int32), "len_kv": np.array([0, 8], np.int32)},
    "list of lengths": {"len_kv": [3, 11], "causal": True},
    "scale": {"scale": -0.9},
    "rope": {"rope": Rope("interleaved", 4, 50.0, 3)},
    "rope with tables": {"rope": Rope("half", 4, **TABLES)},
    "rope with positions": {"rope": Rope("half", **POSITIONS), "causal": True},
}


def qk(dtype=np.float32):
    return normal(B, N, H, D).astype(dtype), normal(B, M, G, D).astype(dtype)


@pytest.mark.parametrize("name", OPTIONS)
def test_weights_are_those_of_the_reference(name):
    q, k = qk()
    options = OPTIONS[name]
    exact = {n: x[None, None] if n == "mask" and x.ndim == 2 else x for n, x in options.items()}
    expected = _reference.attention(q, k, k, **exact).p
    found = libattn.attention_weights(q, k, rows=ROWS, heads=HEADS, batch=1, **options)
    assert found.shape == (1, 2, 3, M) and found.dtype == np.float32
    np.testing.assert_allclose(found, expected[[1]][:, HEADS][:, :, ROWS], rtol=0, atol=1e-7)
    everything = libattn.attention_weights(*qk(np.float64), rows=slice(None), **options)
    assert everything.dtype == np.float64
    np.testing.assert_allclose(everything, expected, rtol=0, atol=1e-12)
    o = libattn.attention(q, k, k, **options)
    wide = np.repeat(k, H // G, 2)
    np.testing.assert_allclose(np.einsum("bhij,bjhd->bihd", everything, wide), o, atol=1e-5)


def test_packed_sequences():
    q, k = normal(9, H, D), normal(12, G, D)
    lengths = {"cu_len_q": [0, 4, 4, 9], "cu_len_kv": [0, 5, 7, 12], "causal": True}
    ranges = {"kv_begin": np.array([0, 1, 1, 2, 0, 0, 1, 3, 9], np.int32)}
    turned = Rope(positions_q=list(range(9)), positions_kv=list(range(12)))
    for options in ({}, ranges, {"rope": turned}):
        found = libattn.attention_weights(q, k, rows=slice(0, 5), **lengths, **options)
        assert found.shape == (3, H, 5, 5) and not found[1].any()
        for at, (i, j) in {0: ((0, 4), (0, 5)), 2: ((4, 9), (7, 12))}.items():
            cut = {n: x[None, slice(*i)] for n, x in options.items() if n != "rope"}
            if options.get("rope"):
                cut["rope"] = Rope(
                    positions_q=np.arange(*i)[None], positions_kv=np.arange(*j)[None]
                )
            one = q[None, slice(*i)], k[None, slice(*j)]
            expected = _reference.attention(*one, one[1], causal=True, **cut).p
            np.testing.assert_allclose(found[[at], :, : i[1] - i[0]], expected, atol=1e-7)
            assert not found[at, :, i[1] - i[0] :].any()


def test_few_rows_of_a_long_sequence():
    n = 1 << 16
    q, k = normal(1, n, 2, 4), normal(1, n, 1, 4)
    found = libattn.attention_weights(q, k, rows=n - 1, heads=0, causal=True)
    assert found.shape == (1, 1, 1, n) and abs(found.sum() - 1) < 1e-4


def test_visible_scores_that_are_not_finite():
    q, k = qk()
    q[0, 0] = np.nan
    found = libattn.attention_weights(q, k, rows=[0, 1], causal=True)
    assert np.isnan(found[0, :, 0, :3]).all() and not found[0, :, 0, 5:].any()
    assert np.isfinite(found[0, :, 1]).all() and np.isfinite(found[1]).all()


def test_pytorch_tensors():
    torch = pytest.importorskip("torch")
    q, k = (torch.from_numpy(x).bfloat16().requires_grad_() for x in qk())
    bias = torch.from_numpy(normal(1, H, N, M))
    found = libattn.attention_weights(q, k, rows=1, bias=bias, causal=True)
    assert found.dtype == torch.float32 and not found.requires_grad
    arrays = (x.detach().float().numpy() for x in (q, k))
    expected = libattn.attention_weights(*arrays, rows=1, bias=bias.numpy(), causal=True)
    np.testing.assert_array_equal(found.numpy(), expected)


def test_errors():
    q, k = qk()
    weights = libattn.attention_weights
    with pytest.raises(TypeError, match="rows"):
        weights(q, k)
    for message, options in {
        "rows: found 7; accepted whole numbers from 0 to 6": {"rows": 7},
        "rows: found": {"rows": 1.5},
        "heads: found -1": {"rows": 0, "heads": -1},
        "batch: found 2": {"rows": 0, "batch": [0, 2]},
        "weights: found 2 x 4 x 7 x 11; accepted at most limit=100": {
            "rows": slice(None),
            "limit": 100,
        },
        "dropout_p: found 0.5": {"rows": 0, "dropout_p": 0.5, "seed": 1},
        "window": {"rows": 0, "window": 3},
        "softcap": {"rows": 0, "softcap": -1.0},
        "bias": {"rows": 0, "bias": normal(1, H, N, M + 1)},
        "len_kv": {"rows": 0, "len_kv": [1, 2, 3]},
        "sinks": {"rows": 0, "sinks": normal(H + 1)},
    }.items():
        with pytest.raises(ValueError, match="attention_weights: (shape of )?" + message):
            weights(q, k, **options)
    with pytest.raises(TypeError, match="unknown option 'casual'"):
        weights(q, k, rows=0, casual=True)
    with pytest.raises(ValueError, match="heads"):
        weights(q, normal(B, M, 3, D), rows=0)
