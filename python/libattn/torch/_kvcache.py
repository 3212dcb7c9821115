"""flash_attn_with_kvcache of the flash-attention package on libattn: attention over a KV cache.

Parameters that it shares with the other functions and errors: flash_attn_func in _flash.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import Rope
from .._convert import LISTS
from .._values import boolean, integer
from ._attention import decode
from ._checks import checked, integers, tensor
from ._flash import Window, need_rank, rows_of, scores_of

__all__ = ["flash_attn_with_kvcache"]


def _need_batch(q: Tensor, name: str, x: Tensor, more: str = "") -> None:
    if tuple(x.shape) != (q.size(0),):
        raise ValueError(
            f"flash_attn_with_kvcache: shape of {name}: found {tuple(x.shape)}; accepted "
            f"[{q.size(0)}]{more}"
        )


def _cache_lengths(q: Tensor, cache_seqlens: int | Tensor, capacity: int, new: int) -> Tensor:
    """i32 [b]; a number is checked against the cache, a tensor is not read here."""
    name = "flash_attn_with_kvcache"
    if isinstance(cache_seqlens, (Tensor, *LISTS)) or getattr(cache_seqlens, "ndim", False):
        lengths = integers(name, "cache_seqlens", cache_seqlens, q)
        _need_batch(q, "cache_seqlens", lengths, ", or a number")
        return lengths
    rows: int = checked(name, integer, "cache_seqlens", cache_seqlens)
    if not 0 <= rows <= capacity - new:
        raise ValueError(
            f"{name}: cache_seqlens: found {rows} with {new} new rows; "
            f"accepted 0 to {capacity - new}: the cache holds {capacity}"
        )
    return torch.full((q.size(0),), rows, dtype=torch.int32, device=q.device)


def _rotation(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    lengths: Tensor,
    moving: bool,
    interleaved: bool,
    capacity: int,
) -> Rope:
    """Rotation by tables at the positions that flash-attention gives to queries and new keys.

    New key t of sequence b stands at lengths[b] + t; query i at lengths[b] + i when it moves along
    the keys (causal or a window), else every query at lengths[b].
    """
    name = "flash_attn_with_kvcache"
    if cos.dim() != 2 or cos.shape != sin.shape or cos.size(0) < capacity:
        raise ValueError(
            f"{name}: rotary_cos, rotary_sin: found {tuple(cos.shape)}, {tuple(sin.shape)}; "
            f"accepted equal [positions, rotary_dim / 2] of at least {capacity} positions"
        )
    start = lengths[:, None]
    steps_q = torch.arange(q.size(1), dtype=torch.int32, device=q.device)
    steps_k = torch.arange(k.size(1), dtype=torch.int32, device=q.device)
    table = torch.float64 if q.dtype == torch.float64 else torch.float32
    return Rope(
        style="interleaved" if interleaved else "half",
        rot_dim=2 * cos.size(1),
        cos=cos.to(table).contiguous(),
        sin=sin.to(table).contiguous(),
        positions_q=start + (steps_q if moving else torch.zeros_like(steps_q)),
        positions_kv=start + steps_k,
    )


def _split_keys(num_splits: int, capacity: int) -> int | None:
    """Keys of one chunk for a number of chunks: None = chosen by the library, -1 = one chunk."""
    if checked("flash_attn_with_kvcache", integer, "num_splits", num_splits) < 0:
        raise ValueError(
            f"flash_attn_with_kvcache: num_splits: found {num_splits}; accepted 0 and more"
        )
    if num_splits == 0:
        return None
    return -1 if num_splits == 1 else max(1, -(-capacity // num_splits))


def _check_cache(
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    rotary_cos: Tensor | None,
    rotary_sin: Tensor | None,
    cache_seqlens: int | Tensor | None,
    cache_batch_idx: Tensor | None,
    block_table: Tensor | None,
) -> None:
    name = "flash_attn_with_kvcache"
    for what, x in (("k", k), ("v", v)):
        if x is not None:
            need_rank(name, what, x, 4, "[b, len_new, g, d]")
    for what, x in (("rotary_cos", rotary_cos), ("rotary_sin", rotary_sin)):
        if x is not None:
            tensor(name, what, x)
    if cache_batch_idx is not None:
        need_rank(name, "cache_batch_idx", cache_batch_idx, 1, "[b]")
    if block_table is not None:
        need_rank(name, "block_table", block_table, 2, "[b, pages per sequence]")
    for what, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        need_rank(name, what, cache, 4, "[batch, capacity, heads, dim] or pages")
        if cache.size(-1) > 1 and cache.stride(-1) != 1:
            raise ValueError(
                f"{name}: {what}: found a strided last dimension; accepted stride 1: the cache is "
                "used in place"
            )
    if (k is None) != (v is None):
        raise ValueError(f"{name}: k and v: found one of them; accepted both or none")
    if k is not None and cache_seqlens is None:
        raise ValueError(f"{name}: k without cache_seqlens; accepted with where the rows go")
    if (rotary_cos is None) != (rotary_sin is None):
        raise ValueError(f"{name}: rotary_cos and rotary_sin: found one of them; accepted both")
    if rotary_cos is not None and k is None:
        raise ValueError(f"{name}: rotary_cos without k; accepted with new keys, k and v")
    if block_table is not None and cache_batch_idx is not None:
        raise ValueError(
            f"{name}: cache_batch_idx with block_table; accepted one of them: rows of block_table "
            "already choose the pages"
        )


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of q [b, n, h, d] over a KV cache, after appending k and v to it in place.

    k_cache, v_cache: [entries, capacity, g, d], or pages [pages, page_size, g, d] (any page size).
    k, v: [b, len_new, g, d]: written at cache_seqlens, then attended to.
    rotary_cos, rotary_sin: [positions, rotary_dim / 2]: rotate k at cache_seqlens + t, and q at
        cache_seqlens + i (causal or a window) or at cache_seqlens; only with k.
    rotary_interleaved: rotate the pairs (2m, 2m + 1), else (m, m + rotary_dim / 2).
    cache_seqlens: a number or i32 [b]: rows in the cache before the append; None = all.
    cache_batch_idx: i32 [b]: the cache entry of each sequence.
    cache_leftpad: i32 [b]: keys before it are hidden.
    block_table: i32 [b, pages per sequence]: the pages of each sequence.
    num_splits: chunks of keys: 0 = chosen by the library, 1 = one.
    return_softmax_lse: return (out, softmax_lse f32 [b, h, n]).

    Returns out [b, n, h, dv]. There is no gradient. Other parameters and errors: flash_attn_func.
    """
    name = "flash_attn_with_kvcache"
    need_rank(name, "q", q, 4, "[batch, length, heads, dim]")
    _check_cache(
        k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx, block_table
    )
    rotary_interleaved = checked(name, boolean, "rotary_interleaved", rotary_interleaved)
    return_softmax_lse = checked(name, boolean, "return_softmax_lse", return_softmax_lse)
    options = scores_of(name, softmax_scale, causal, window_size, softcap, alibi_slopes)
    capacity = k_cache.size(1) * (1 if block_table is None else block_table.size(1))
    if cache_batch_idx is not None:
        block_table = cache_batch_idx[:, None]
    options["split_keys"] = _split_keys(num_splits, capacity)
    if cache_leftpad is not None:
        _need_batch(q, "cache_leftpad", tensor(name, "cache_leftpad", cache_leftpad))
        options["kv_begin"] = cache_leftpad[:, None].expand(-1, q.size(1)).contiguous()
    if cache_seqlens is not None:
        lengths = _cache_lengths(q, cache_seqlens, capacity, 0 if k is None else k.size(1))
        options["len_kv"] = lengths
        if k is not None and rotary_cos is not None and rotary_sin is not None:
            moving = bool(causal) or options["window"] is not None
            options["rope"] = _rotation(
                q, k, rotary_cos, rotary_sin, lengths, moving, rotary_interleaved, capacity
            )
    with torch.no_grad():
        out, lse = decode(
            rows_of(q),
            k_cache,
            v_cache,
            k_new=None if k is None else rows_of(k),
            v_new=None if v is None else rows_of(v),
            block_table=block_table,
            return_lse=True,
            **options,
        )
    return (out, lse) if return_softmax_lse else out
