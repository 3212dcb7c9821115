"""Attention as docs/semantics.md spells it, in float64 NumPy: naive, one score matrix a head.

It shares no code with the library: `attn doctor` and the tests hold the library to it.
Padded tensors only; packed ones are cut into their entries by who calls.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Floats = Any


class Result(NamedTuple):
    """o [b, n, h, dim_vo], lse [b, h, n], and what the gradients need."""

    o: Floats
    lse: Floats
    p: Floats  # [b, h, n, m]
    kept: Floats  # [b, h, n, m]: keep * 256 / t
    slope: Floats  # [b, h, n, m]: d capped / d raw


def philox(key: tuple[int, int], counter: tuple[Any, Any, Any, Any]) -> Any:
    """Philox4x32-10 (Salmon et al. 2011, section 3.3): [..., 4] words of 32 bits."""
    low = np.uint64(0xFFFFFFFF)
    c = [np.asarray(x, np.uint64) & low for x in np.broadcast_arrays(*counter)]
    k = [np.uint64(key[0] & 0xFFFFFFFF), np.uint64(key[1] & 0xFFFFFFFF)]
    for _ in range(10):
        one = c[0] * np.uint64(0xD2511F53)
        two = c[2] * np.uint64(0xCD9E8D57)
        high = np.uint64(32)
        c = [(two >> high) ^ c[1] ^ k[0], two & low, (one >> high) ^ c[3] ^ k[1], one & low]
        k = [(k[0] + np.uint64(0x9E3779B9)) & low, (k[1] + np.uint64(0xBB67AE85)) & low]
    return np.stack(c, -1)


def drop(
    shape: tuple[int, ...], p: float, seed: int, offset: int, origin: Any, heads_q: int
) -> Floats:
    """The factors drop_ij [b, h, n, m]: 256/t where kept, else 0."""
    if p == 0:
        return np.ones(shape)
    t = max(1, int(np.floor(256 * (1 - p) + 0.5)))
    b, h, n, m = (np.arange(size) for size in shape)
    if origin is not None:
        b, h, n, m = b + origin.batch, h + origin.head, n + origin.q, m + origin.kv
        heads_q = origin.heads_q or heads_q
    i, j = n[:, None], m[None, :]
    entry = (b[:, None] * heads_q + h[None, :])[:, :, None, None]
    key = (seed & 0xFFFFFFFF, (seed >> 32) ^ (offset >> 32))
    words = philox(key, (i & ~9, j & ~9, entry, offset & 0xFFFFFFFF))
    byte = ((i >> 3 & 1) << 3) | ((i & 1) << 2) | ((j >> 3 & 1) << 1) | (j & 1)
    byte = np.broadcast_to(byte, words.shape[:-1])
    word = np.take_along_axis(words, (byte >> 2)[..., None], -1)[..., 0]
    kept = (word >> (8 * (byte & 3)).astype(np.uint64)) & np.uint64(255)
    return np.where(kept < t, 256.0 / t, 0.0)


def rotate(x: Floats, position: Floats, rope: Any, inverse: bool = False) -> Floats:
    """x [b, n, h, dim] turned by the angles of position [b|1, n]."""
    dim = rope.rot_dim or x.shape[-1]
    m = np.arange(dim // 2)
    if rope.cos is None:
        angle = np.asarray(position, np.float64)[..., None] * rope.base ** (-2.0 * m / dim)
        cos, sin = np.cos(angle), np.sin(angle)
    else:
        rows = np.clip(position, 0, len(rope.cos) - 1).astype(np.int64)
        cos = np.asarray(rope.cos, np.float64)[rows]
        sin = np.asarray(rope.sin, np.float64)[rows]
    cos, sin = cos[:, :, None], (-1 if inverse else 1) * sin[:, :, None]
    one, two = (2 * m, 2 * m + 1) if rope.style == "interleaved" else (m, m + dim // 2)
    out = np.array(x, np.float64)
    out[..., one] = x[..., one] * cos - x[..., two] * sin
    out[..., two] = x[..., one] * sin + x[..., two] * cos
    return out


def visible(
    shape: tuple[int, ...],
    lens: tuple[Any, Any],
    diag: Any,
    *,
    causal: bool,
    window: Any,
    kv_begin: Any,
    kv_end: Any,
    mask: Any,
) -> Any:
    """[b, h, n, m]: whether key j is visible to query i; diag and lens are [b]."""
    b, _, n, m = shape
    i, j = np.arange(n)[:, None], np.arange(m)[None, :]
    at = i + diag.reshape(b, 1, 1, 1)
    seen = np.broadcast_to(i < lens[0].reshape(b, 1, 1, 1), shape)
    seen = seen & (j < lens[1].reshape(b, 1, 1, 1))
    if causal:
        seen = seen & (j <= at)
    left, right = window or (None, None)
    if left is not None:
        seen = seen & (j >= at - left)
    if right is not None:
        seen = seen & (j <= at + right)
    if kv_begin is not None:
        seen = seen & (j >= np.asarray(kv_begin, np.int64)[:, None, :, None])
    if kv_end is not None:
        seen = seen & (j < np.asarray(kv_end, np.int64)[:, None, :, None])
    if mask is not None:
        seen = seen & (np.asarray(mask) != 0)
    return seen


def attention(q: Any, k: Any, v: Any, **options: Any) -> Result:
    """The forward; options as in libattn.Options, without packed lengths, workspace and stream."""
    take: Any = options.get
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    b, n, h, dim = q.shape
    m, g = k.shape[1], k.shape[2]
    lens = (
        np.asarray(np.full(b, n) if take("len_q") is None else take("len_q"), np.int64),
        np.asarray(np.full(b, m) if take("len_kv") is None else take("len_kv"), np.int64),
    )
    diagonal = take("diagonal", "bottom_right")
    origin = take("origin")
    if diagonal == "bottom_right":
        diag = lens[1] - lens[0]
    elif diagonal == "origin":
        diag = np.full(b, origin.q - origin.kv)
    else:
        diag = np.full(b, 0 if diagonal == "top_left" else diagonal)
    rope = take("rope")
    if rope is not None:
        of_q = np.arange(n)[None] + diag[:, None] + rope.pos_offset
        of_k = np.arange(m)[None] + rope.pos_offset
        q = rotate(q, of_q if rope.positions_q is None else rope.positions_q, rope)
        k = rotate(k, of_k if rope.positions_kv is None else rope.positions_kv, rope)
    k, v = np.repeat(k, h // g, 2), np.repeat(v, h // g, 2)
    scale = dim**-0.5 if take("scale") is None else take("scale")
    raw = scale * np.einsum("bihd,bjhd->bhij", q, k)
    slope = np.ones_like(raw)
    if take("softcap"):
        bent = np.tanh(raw / options["softcap"])
        raw, slope = options["softcap"] * bent, 1 - bent * bent
    if take("alibi_slopes") is not None:
        slopes = np.asarray(options["alibi_slopes"], np.float64)
        slopes = np.broadcast_to(slopes, (b, h))[:, :, None, None]
        apart = np.arange(n)[:, None] + diag.reshape(b, 1, 1, 1) - np.arange(m)[None]
        raw = raw - slopes * np.abs(apart)
    if take("bias") is not None:
        raw = raw + _each(options["bias"], b)
    names = ("window", "kv_begin", "kv_end", "mask")
    rules = {name: take(name) for name in names}
    if rules["mask"] is not None:
        rules["mask"] = _each(rules["mask"], b).astype(bool)
    seen = visible(raw.shape, lens, diag, causal=bool(take("causal", False)), **rules)
    score = np.where(seen, raw, -np.inf)
    if take("sinks") is not None:
        sinks = np.asarray(options["sinks"], np.float64)[None, :, None, None]
        score = np.concatenate([score, np.broadcast_to(sinks, (b, h, n, 1))], -1)
    top = np.max(score, -1, keepdims=True, initial=-np.inf)
    top = np.where(np.isneginf(top), 0.0, top)
    total = np.exp(score - top).sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (top + np.log(total))[..., 0]
    used = np.arange(n)[None, None] < lens[0].reshape(b, 1, 1)
    lse = np.where(used, lse, -np.inf)
    p = np.exp(score[..., :m] - np.where(np.isneginf(lse), 0.0, lse)[..., None])
    p = np.where(used[..., None], p, 0.0)
    kept = drop(
        raw.shape,
        take("dropout_p", 0.0),
        take("seed", 0),
        take("offset", 0),
        origin,
        h,
    )
    return Result(np.einsum("bhij,bjhd->bihd", p * kept, v), lse, p, kept, slope)


def _each(pairs: Any, batch: int) -> Floats:
    """A bias or mask [b|b/s|1, ...] with the entry of each sequence, or one for all."""
    pairs = np.asarray(pairs, np.float64)
    entries = pairs.shape[0]
    return pairs if entries <= 1 else np.repeat(pairs, batch // entries, 0)


def gradients(
    dout: Any, q: Any, k: Any, v: Any, *, dlse: Any = None, **options: Any
) -> dict[str, Floats]:
    """dq, dk, dv, and dbias, dsink where there is a bias, there are sinks."""
    take: Any = options.get
    result = attention(q, k, v, **options)
    dout, q, k, v = (np.asarray(x, np.float64) for x in (dout, q, k, v))
    b, n, h, dim = q.shape
    m, g = k.shape[1], k.shape[2]
    rope = take("rope")
    if rope is not None:
        raise ValueError("rope: rotate q and k, and turn their gradients back")
    scale = dim**-0.5 if take("scale") is None else take("scale")
    wide_k, wide_v = np.repeat(k, h // g, 2), np.repeat(v, h // g, 2)
    delta = np.einsum("bihd,bihd->bhi", dout, result.o)
    if dlse is not None:
        delta = delta - np.where(np.isneginf(result.lse), 0.0, np.asarray(dlse, np.float64))
    dp = np.einsum("bihd,bjhd->bhij", dout, wide_v)
    ds = result.p * (result.kept * dp - delta[..., None])
    draw = scale * ds * result.slope
    dk = np.einsum("bhij,bihd->bjhd", draw, q).reshape(b, m, g, h // g, dim).sum(3)
    dv = np.einsum("bhij,bihd->bjhd", result.p * result.kept, dout)
    found = {
        "dq": np.einsum("bhij,bjhd->bihd", draw, wide_k),
        "dk": dk,
        "dv": dv.reshape(b, m, g, h // g, v.shape[-1]).sum(3),
    }
    if take("bias") is not None:
        shape = np.shape(options["bias"])
        axes = tuple(a for a, size in enumerate(shape) if size == 1)
        found["dbias"] = ds.sum(axes, keepdims=True)
        if shape[0] > 1:  # of groups of sequences
            groups = (shape[0], b // shape[0])
            found["dbias"] = found["dbias"].reshape(*groups, *shape[1:]).sum(1)
    if take("sinks") is not None:
        sinks = np.asarray(options["sinks"], np.float64)[None, :, None]
        weight = np.exp(sinks - np.where(np.isneginf(result.lse), np.inf, result.lse))
        found["dsink"] = -(weight * delta).sum((0, 2))
    return found
