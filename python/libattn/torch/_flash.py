"""The functions of the flash-attention package on libattn: same names, parameters and meanings.
flash_attn_with_kvcache is in _kvcache.py.

Layouts are flash-attention's: q [b, n, h, d], k [b, m, g, d], v [b, m, g, dv] with g dividing h;
packed ("varlen") [total, h, d] with i32 cumulative lengths [b + 1]. flash_attn_func describes the
common parameters and errors; docs/coming_from.md lists every difference. Source:
github.com/Dao-AILab/flash-attention, the documented interface of version 2; T. Dao,
"FlashAttention-2" (2023), https://arxiv.org/abs/2307.08691.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .. import Unsupported
from .._values import boolean, integer, real, shown
from ._attention import attention, decode
from ._checks import checked, integers, tensor

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
]

_SEQUENCES = (tuple, list, torch.Size, Tensor)
Window: TypeAlias = "Sequence[int] | Tensor"
# out alone, or (out, softmax_lse, None) with return_attn_probs: probabilities are never formed.
Result: TypeAlias = "Tensor | tuple[Tensor, Tensor, None]"


def _window(function: str, window_size: Window) -> tuple[int | None, int | None] | None:
    if not isinstance(window_size, _SEQUENCES) or len(window_size) != 2:
        raise ValueError(
            f"{function}: window_size: found {shown(window_size)}; accepted (left, right), whole "
            "numbers, negative = unlimited"
        )
    left, right = (
        None if side < 0 else side
        for side in (checked(function, integer, "window_size", x) for x in window_size)
    )
    return None if left is None and right is None else (left, right)


def scores_of(
    function: str,
    softmax_scale: float | None,
    causal: bool,
    window_size: Window,
    softcap: float,
    alibi_slopes: Tensor | None,
) -> dict[str, Any]:
    """The options of libattn.torch.attention that shape the scores."""
    softcap = 0.0 if softcap is None else checked(function, real, "softcap", softcap)
    if softcap != softcap:
        raise ValueError(f"{function}: softcap: found nan; accepted a finite number")
    if softmax_scale is not None:
        softmax_scale = checked(function, real, "softmax_scale", softmax_scale)
    return {
        "scale": softmax_scale,
        "causal": checked(function, boolean, "causal", causal),
        "diagonal": "bottom_right",
        "window": _window(function, window_size),
        "softcap": softcap if softcap > 0.0 else None,
        "alibi_slopes": alibi_slopes,
    }


def rows_of(x: Tensor) -> Tensor:
    return x if x.size(-1) <= 1 or x.stride(-1) == 1 else x.contiguous()


def _parts(function: str, name: str, packed: Tensor, rank: int, parts: int) -> tuple[Tensor, ...]:
    """The tensors that are stacked before the heads of [..., parts, h, d], as views."""
    tensor(function, name, packed)
    if packed.dim() != rank or packed.size(-3) != parts:
        layout = f"[total, {parts}, heads, dim]" if rank == 4 else f"[b, n, {parts}, heads, dim]"
        raise ValueError(
            f"{function}: shape of {name}: found {tuple(packed.shape)}; accepted {layout}"
        )
    return packed.unbind(-3)


def need_rank(function: str, name: str, x: Any, rank: int, layout: str) -> None:
    if tensor(function, name, x).dim() != rank:
        raise ValueError(f"{function}: shape of {name}: found {tuple(x.shape)}; accepted {layout}")


def _longest(name: str, value: Any) -> Any:
    """The largest length of a packed batch; None where none is given."""
    if value is None:
        return None
    function = "flash_attn_varlen_func"
    longest = checked(function, integer, name, value)
    if longest < 0:
        raise ValueError(f"{function}: {name}: found {longest}; accepted 0 or more")
    return longest


def _attend(q: Tensor, k: Tensor, v: Tensor, probs: bool, options: dict[str, Any]) -> Result:
    if not probs:
        out = attention(rows_of(q), rows_of(k), rows_of(v), **options)
        assert isinstance(out, Tensor)
        return out
    out, lse = attention(rows_of(q), rows_of(k), rows_of(v), return_lse=True, **options)
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

    dropout_p: 0, or 1/512 to less than 1, in steps of 1/256, drawn from torch's generator.
    softmax_scale: None = 1 / sqrt(d).
    causal: query i sees keys j <= i + m - n: aligned bottom-right.
    window_size: (left, right): i + m - n - left <= j <= i + m - n + right; negative = unlimited.
    softcap: score = softcap * tanh(score / softcap); 0 and less = off.
    alibi_slopes: f32 [h] or [b, h]: -slope * |i + m - n - j| is added to the score.
    deterministic: the backward gives the same bits from run to run.
    return_attn_probs: return (out, softmax_lse f32 [b, h, n], None); the gradient also flows
        through softmax_lse.

    A query that sees no key gives 0, and softmax_lse = -inf. Copies are made only of tensors with a
    strided last dimension and of int64 indices. Raises ValueError for a broken rule,
    libattn.Unsupported if no backend supports the call. docs/coming_from.md lists every difference
    from the flash-attention package.
    """
    name = "flash_attn_func"
    for what, x in (("q", q), ("k", k), ("v", v)):
        need_rank(name, what, x, 4, "[batch, length, heads, dim]")
    options = scores_of(name, softmax_scale, causal, window_size, softcap, alibi_slopes)
    options["dropout_p"] = dropout_p
    options["deterministic"] = checked(name, boolean, "deterministic", deterministic)
    return_attn_probs = checked(name, boolean, "return_attn_probs", return_attn_probs)
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
    """flash_attn_func with k and v stacked in kv [b, m, 2, g, d]; its gradient is too.

    Other parameters and errors: flash_attn_func.
    """
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
    """flash_attn_func with q, k and v stacked in qkv [b, n, 3, h, d]; its gradient is too.

    Other parameters and errors: flash_attn_func.
    """
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

    cu_seqlens_q, cu_seqlens_k: i32 [b + 1]: where each sequence begins, and the end.
    max_seqlen_q, max_seqlen_k: the largest lengths.
    block_table: i32 [b, pages per sequence]: k and v are then pages [pages, page_size, g, d] of any
        page size, and the lengths are the differences of cu_seqlens_k. That form has no gradient:
        it raises Unsupported where one is required.
    return_attn_probs: return (out, softmax_lse f32 [h, total_q], None).

    Other parameters and errors: flash_attn_func.
    """
    name = "flash_attn_varlen_func"
    options = scores_of(name, softmax_scale, causal, window_size, softcap, alibi_slopes)
    options["cu_len_q"] = cu_seqlens_q
    options["max_len_q"] = _longest("max_seqlen_q", max_seqlen_q)
    longest = _longest("max_seqlen_k", max_seqlen_k)
    options["dropout_p"] = dropout_p
    deterministic = checked(name, boolean, "deterministic", deterministic)
    return_attn_probs = checked(name, boolean, "return_attn_probs", return_attn_probs)
    need_rank(name, "q", q, 3, "[total_q, heads, dim]")
    if block_table is not None:
        lengths = _lengths_in_pages(q, cu_seqlens_k, longest)
        return _attend_pages(q, k, v, lengths, block_table, return_attn_probs, options)
    for what, x in (("k", k), ("v", v)):
        need_rank(name, what, x, 3, "[total_k, heads, dim], or pages with a block_table")
    options["cu_len_kv"] = cu_seqlens_k
    options["max_len_kv"] = longest
    options["deterministic"] = deterministic
    return _attend(q, k, v, return_attn_probs, options)


def _lengths_in_pages(q: Tensor, cu_seqlens_k: Any, longest: int | None) -> Tensor:
    """The keys of each sequence. As with packed keys those past the largest length are hidden."""
    lengths = torch.diff(integers("flash_attn_varlen_func", "cu_seqlens_k", cu_seqlens_k, q))
    return lengths if longest is None else lengths.clamp(max=longest)


def _attend_pages(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor,
    block_table: Tensor,
    probs: bool,
    options: dict[str, Any],
) -> Result:
    for name, x in (("k", k), ("v", v)):
        need_rank("flash_attn_varlen_func", name, x, 4, "[pages, page_size, heads, dim]")
        if x.size(-1) > 1 and x.stride(-1) != 1:
            raise ValueError(
                f"flash_attn_varlen_func: {name}: found a strided last dimension; accepted stride 1"
            )
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        raise Unsupported(
            "flash_attn_varlen_func: a gradient with block_table: there is no backward over pages; "
            "use torch.no_grad(), or packed k and v"
        )
    out, lse = decode(
        rows_of(q), k, v, len_kv=lengths, block_table=block_table, return_lse=True, **options
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
    """flash_attn_varlen_func with k and v stacked in kv [total_k, 2, g, d].

    Other parameters and errors: flash_attn_varlen_func, flash_attn_func.
    """
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
    """flash_attn_varlen_func with q, k and v stacked in qkv [total, 3, h, d].

    cu_seqlens: i32 [b + 1], of queries and keys; max_seqlen is the largest length. Other parameters
    and errors: flash_attn_varlen_func, flash_attn_func.
    """
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
