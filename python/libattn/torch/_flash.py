"""The functions of the flash-attention package on libattn: same names, parameters and meanings.

Layouts are flash-attention's: q [b, n, h, d], k [b, m, g, d], v [b, m, g, dv] with g dividing h;
packed ("varlen") [total, h, d] with i32 cumulative lengths [b + 1]. Parameters that all share:

dropout_p      0, or 1/512 to less than 1, in steps of 1/256, drawn from torch's generator
softmax_scale  default 1 / sqrt(d)
causal         query i sees keys j <= i + m - n: aligned bottom-right
window_size    (left, right): i + m - n - left <= j <= i + m - n + right; negative = unlimited
softcap        score = softcap * tanh(score / softcap); 0 and less = off
alibi_slopes   f32 [h] or [b, h]: -slope * |i + m - n - j| is added to the score
deterministic  the backward gives the same bits from run to run

A query that sees no key gives o = 0 and softmax_lse = -inf. Copies are made only of tensors whose
last dimension is strided. Errors: ValueError for a broken rule, libattn.Unsupported where no
backend does it. docs/coming_from.md lists every difference.
Source: github.com/Dao-AILab/flash-attention, the documented interface of version 2; T. Dao,
"FlashAttention-2" (2023), https://arxiv.org/abs/2307.08691.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .. import Rope, Unsupported
from ._attention import attention, decode

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]

Window: TypeAlias = "Sequence[int] | Tensor"
# out alone, or (out, softmax_lse, None) with return_attn_probs: probabilities are never formed.
Result: TypeAlias = "Tensor | tuple[Tensor, Tensor, None]"


def _window(function: str, window_size: Window) -> tuple[int | None, int | None] | None:
    if len(window_size) != 2:
        raise ValueError(f"{function}: window_size: found {window_size}; accepted (left, right)")
    left, right = (
        None if side < 0 else side
        for side in (int(x) if isinstance(x, Tensor) else x for x in window_size)
    )
    return None if left is None and right is None else (left, right)


def _scores(
    function: str,
    softmax_scale: float | None,
    causal: bool,
    window_size: Window,
    softcap: float,
    alibi_slopes: Tensor | None,
) -> dict[str, Any]:
    """The options of libattn.torch.attention that shape the scores."""
    return {
        "scale": softmax_scale,
        "causal": bool(causal),
        "diagonal": "bottom_right",
        "window": _window(function, window_size),
        "softcap": softcap if softcap > 0.0 else None,
        "alibi_slopes": alibi_slopes,
    }


def _rows(tensor: Tensor) -> Tensor:
    return tensor if tensor.size(-1) <= 1 or tensor.stride(-1) == 1 else tensor.contiguous()


def _parts(function: str, name: str, packed: Tensor, rank: int, parts: int) -> tuple[Tensor, ...]:
    """The tensors that are stacked before the heads of [..., parts, h, d], as views."""
    if packed.dim() != rank or packed.size(-3) != parts:
        layout = f"[total, {parts}, heads, dim]" if rank == 4 else f"[b, n, {parts}, heads, dim]"
        raise ValueError(
            f"{function}: shape of {name}: found {tuple(packed.shape)}; accepted {layout}"
        )
    return packed.unbind(-3)


def _need_rank(function: str, name: str, tensor: Tensor, rank: int, layout: str) -> None:
    if tensor.dim() != rank:
        raise ValueError(
            f"{function}: shape of {name}: found {tuple(tensor.shape)}; accepted {layout}"
        )


def _attend(q: Tensor, k: Tensor, v: Tensor, probs: bool, options: dict[str, Any]) -> Result:
    if not probs:
        out = attention(_rows(q), _rows(k), _rows(v), **options)
        assert isinstance(out, Tensor)
        return out
    out, lse = attention(_rows(q), _rows(k), _rows(v), return_lse=True, **options)
    return out, lse, None


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """Attention of q [b, n, h, d] over k [b, m, g, d] and v [b, m, g, dv]: out [b, n, h, dv].

    return_attn_probs: (out, softmax_lse f32 [b, h, n], None); the gradient also flows through
    softmax_lse. Parameters, errors and source: the head of this module.
    """
    name = "flash_attn_func"
    for what, tensor in (("q", q), ("k", k), ("v", v)):
        _need_rank(name, what, tensor, 4, "[batch, length, heads, dim]")
    options = _scores(name, softmax_scale, causal, window_size, softcap, alibi_slopes)
    options["dropout_p"] = dropout_p
    options["deterministic"] = deterministic
    return _attend(q, k, v, return_attn_probs, options)


def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """flash_attn_func with k and v stacked in kv [b, m, 2, g, d]; its gradient is too."""
    k, v = _parts("flash_attn_kvpacked_func", "kv", kv, 5, 2)
    return flash_attn_func(
        q,
        k,
        v,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """flash_attn_func with q, k and v stacked in qkv [b, n, 3, h, d]; its gradient is too."""
    q, k, v = _parts("flash_attn_qkvpacked_func", "qkv", qkv, 5, 3)
    return flash_attn_func(
        q,
        k,
        v,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Result:
    """Attention of packed q [total_q, h, d] over packed k, v [total_k, g, d]: out [total_q, h, dv].

    cu_seqlens_q, cu_seqlens_k: i32 [b + 1]; max_seqlen_q, max_seqlen_k: the largest lengths.
    With block_table i32 [b, pages per entry], k and v are pages [pages, page_size, g, d] of any
    page size, and the lengths are the differences of cu_seqlens_k; that form has no gradient
    (Unsupported where one is asked for). return_attn_probs: (out, softmax_lse f32 [h, total_q],
    None). Parameters, errors and source: the head of this module.
    """
    name = "flash_attn_varlen_func"
    options = _scores(name, softmax_scale, causal, window_size, softcap, alibi_slopes)
    options["cu_len_q"] = cu_seqlens_q
    options["max_len_q"] = int(max_seqlen_q) if isinstance(max_seqlen_q, Tensor) else max_seqlen_q
    options["dropout_p"] = dropout_p
    _need_rank(name, "q", q, 3, "[total_q, heads, dim]")
    if block_table is not None:
        return _attend_pages(q, k, v, cu_seqlens_k, block_table, return_attn_probs, options)
    for what, tensor in (("k", k), ("v", v)):
        _need_rank(name, what, tensor, 3, "[total_k, heads, dim], or pages with a block_table")
    options["cu_len_kv"] = cu_seqlens_k
    options["max_len_kv"] = int(max_seqlen_k) if isinstance(max_seqlen_k, Tensor) else max_seqlen_k
    options["deterministic"] = deterministic
    return _attend(q, k, v, return_attn_probs, options)


def _attend_pages(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_k: Tensor,
    block_table: Tensor,
    probs: bool,
    options: dict[str, Any],
) -> Result:
    for name, tensor in (("k", k), ("v", v)):
        _need_rank("flash_attn_varlen_func", name, tensor, 4, "[pages, page_size, heads, dim]")
        if tensor.size(-1) > 1 and tensor.stride(-1) != 1:
            raise ValueError(
                f"flash_attn_varlen_func: {name}: found a strided last dimension; accepted stride 1"
            )
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        raise Unsupported(
            "flash_attn_varlen_func: a gradient with block_table: there is no backward over pages; "
            "use torch.no_grad(), or packed k and v"
        )
    lengths = torch.diff(cu_seqlens_k)
    out, lse = decode(
        _rows(q), k, v, len_kv=lengths, block_table=block_table, return_lse=True, **options
    )
    return (out, lse, None) if probs else out


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """flash_attn_varlen_func with k and v stacked in kv [total_k, 2, g, d]."""
    k, v = _parts("flash_attn_varlen_kvpacked_func", "kv", kv, 4, 2)
    return flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """flash_attn_varlen_func with q, k and v stacked in qkv [total, 3, h, d]."""
    q, k, v = _parts("flash_attn_varlen_qkvpacked_func", "qkv", qkv, 4, 3)
    return flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens,
        cu_seqlens,
        max_seqlen,
        max_seqlen,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def _cache_lengths(q: Tensor, cache_seqlens: int | Tensor, capacity: int, new: int) -> Tensor:
    """i32 [b]; a number is checked against the cache, a tensor is not read here."""
    if isinstance(cache_seqlens, Tensor):
        return cache_seqlens
    if not 0 <= cache_seqlens <= capacity - new:
        raise ValueError(
            f"flash_attn_with_kvcache: cache_seqlens: found {cache_seqlens} with {new} new rows; "
            f"accepted 0 to {capacity - new}: the cache holds {capacity}"
        )
    return torch.full((q.size(0),), cache_seqlens, dtype=torch.int32, device=q.device)


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

    New key t of entry b stands at lengths[b] + t; query i at lengths[b] + i when it moves along
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
    if num_splits < 0:
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
    for what, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        _need_rank(name, what, cache, 4, "[batch, capacity, heads, dim] or pages")
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

    k_cache, v_cache  [entries, capacity, g, d], or pages [pages, page_size, g, d] (any page size)
    k, v              [b, len_new, g, d]: written at cache_seqlens, then attended to
    rotary_cos, _sin  [positions, rotary_dim / 2]: rotate k at cache_seqlens + t, and q at
                      cache_seqlens + i (causal or a window) or at cache_seqlens; only with k
    cache_seqlens     a number or i32 [b]: rows in the cache before the append; None = all
    cache_batch_idx   i32 [b]: the cache entry of each batch entry
    cache_leftpad     i32 [b]: keys before it are hidden
    block_table       i32 [b, pages per entry]: the pages of each entry
    num_splits        chunks of keys: 0 = chosen by the library, 1 = one
    Without a gradient. Returns out [b, n, h, dv], with return_softmax_lse also f32 [b, h, n].
    Other parameters, errors and source: the head of this module.
    """
    name = "flash_attn_with_kvcache"
    _need_rank(name, "q", q, 4, "[batch, length, heads, dim]")
    _check_cache(
        k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx, block_table
    )
    options = _scores(name, softmax_scale, causal, window_size, softcap, alibi_slopes)
    capacity = k_cache.size(1) * (1 if block_table is None else block_table.size(1))
    if cache_batch_idx is not None:
        block_table = cache_batch_idx[:, None]
    options["split_keys"] = _split_keys(num_splits, capacity)
    if cache_leftpad is not None:
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
            _rows(q),
            k_cache,
            v_cache,
            k_new=None if k is None else _rows(k),
            v_new=None if v is None else _rows(v),
            block_table=block_table,
            return_lse=True,
            **options,
        )
    return (out, lse) if return_softmax_lse else out
