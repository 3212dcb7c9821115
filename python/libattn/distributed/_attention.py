"""ring_attention: the public function and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .. import Options
from . import _arguments, _ring
from ._arguments import Arguments, Lengths
from ._eager import eager
from ._groups import Group, group_of
from ._layout import LayoutName, check_layout
from ._ring import Call, Saved, wide

if TYPE_CHECKING:
    from typing_extensions import Unpack


class _Sharded(torch.autograd.Function):
    """Attention over the ranks of a call."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        sinks: Tensor | None,
        call: Call,
        out_dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        o, lse = _ring.forward(call, q, k, v, bias, sinks)
        o = o.to(out_dtype)
        ctx.save_for_backward(q, k, v, bias, sinks, o, lse)
        ctx.call = call
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> Any:
        q, k, v, bias, sinks, o, lse = ctx.saved_tensors
        if dout is None:
            dout = torch.zeros_like(o)
        delta = delta_of(dout, o, lse, dlse)
        saved = Saved(q, k, v, lse, _rows(dout.to(o.dtype)), delta, bias, sinks)
        found = _ring.backward(ctx.call, saved, ctx.needs_input_grad[:5])
        given = (q, k, v, bias, sinks)
        cast = (None if x is None else x.to(y.dtype) for x, y in zip(found, given, strict=True))
        return (*cast, None, None)


def delta_of(dout: Tensor, o: Tensor, lse: Tensor, dlse: Tensor | None) -> Tensor:
    """dot(dout, o) - dlse, [b, h, n], wide; 0 for rows that see nothing."""
    kind = wide(o.dtype)
    delta = torch.linalg.vecdot(dout.to(kind), o.to(kind)).transpose(1, 2)
    if dlse is not None:
        delta = delta - dlse
    return delta.masked_fill(torch.isneginf(lse), 0).contiguous()


def _rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 or x.size(-1) == 1 else x.contiguous()


def agreed(
    function: str,
    groups: Sequence[Group],
    layout: Any,
    lengths: Lengths | None,
    q: Any,
    k: Any,
    v: Any,
    out_dtype: Any,
    options: Any,
) -> tuple[Arguments, list[Lengths]]:
    """The checked arguments, and the rows of the ranks of each group."""
    arguments: Arguments | None = None
    error: Exception | None = None
    try:
        check_layout(function, layout)
        arguments = _arguments.check(function, q, k, v, out_dtype, options)
    except Exception as found:
        error = found
    like = q if isinstance(q, Tensor) else torch.empty(0)
    found_lengths = []
    for group in groups:
        if lengths is None:
            found_lengths.append(
                _arguments.compare(function, group, arguments, layout, error, like)
            )
        elif error is not None:
            raise error
    if lengths is not None:
        found_lengths.append(lengths)
    assert arguments is not None
    return arguments, found_lengths


def run(call: Call, a: Arguments) -> tuple[Tensor, Tensor]:
    """(o, lse) as the caller takes them."""
    o, lse = _Sharded.apply(a.q, a.k, a.v, a.get("bias"), a.get("sinks"), call, a.out_dtype)
    return (o[0], lse[0]) if a.packed else (o, lse)


def _given_lengths(function: str, group: Group, lengths: Any, lengths_kv: Any) -> Lengths | None:
    if lengths is None:
        return None
    pair = []
    for name, value in (("lengths", lengths), ("lengths_kv", lengths_kv or lengths)):
        rows = tuple(int(x) for x in value)
        if len(rows) != group.size or min(rows) < 0:
            raise _arguments.refuse(function, name, rows, f"the rows of {group.size} ranks")
        pair.append(rows)
    return Lengths(pair[0], pair[1])


@eager
def ring_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    group: Any = None,
    layout: LayoutName = "contiguous",
    lengths: Sequence[int] | None = None,
    lengths_kv: Sequence[int] | None = None,
    return_lse: bool = False,
    out_dtype: torch.dtype | None = None,
    **options: Unpack[Options],
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention over sequences that are split over the ranks of a group; keys and values travel.

    Liu et al. 2023, Ring Attention with Blockwise Transformers, section 3. Each rank passes the
    rows that it holds and receives the results of its queries over the keys of all ranks. Every
    rank of the group makes the call with the same options, and runs the same backwards.

    q: [b, rows of this rank, h, dim_qk], or packed [rows, h, dim_qk]. f32, f16, bf16 or f64.
    k: [b, rows of this rank, g, dim_qk]; h is a multiple of g.
    v: [b, rows of this rank, g, dim_vo]
    group: a ProcessGroup, a DeviceMesh of one dimension, or None for all processes.
    layout: which rows each rank holds: see shard. "contiguous" takes parts of any sizes.
    lengths, lengths_kv: rows of q (and of k, if they differ) of each rank. With them the ranks do
        not compare their calls, which otherwise takes one all-gather of 256 bytes from each.
    return_lse: return (o, lse), lse [b, h, rows] f32 (f64 with f64), differentiable.
    out_dtype: the type of o: q's (None), or torch.float32.
    options: those of libattn.attention, but rope, workspace, stream, device and nonfinite_count.
        Positions, len_q and len_kv [b], cu_len_q and cu_len_kv are those of the complete sequence.
        kv_begin, kv_end [b|1, rows] have this rank's queries and global keys.
        mask, bias [b|1, h|1, rows|1, keys of all ranks|1]: this rank's queries, all keys in order.
        dropout draws the mask of one device; without a seed the first rank draws one.
        causal, window and alibi_slopes with len_kv need equal len_q, or an explicit diagonal.

    Gradients of q, k, v and bias have the input's type; they are summed over ranks in f32. That of
    a bias with one row and that of sinks are the sums over this rank's queries: add them up over
    the group, as those of the weights that the ranks share.

    Returns o [b, rows, h, dim_vo] (packed [rows, h, dim_vo]). Raises ValueError for a broken rule,
    on all ranks; TransportError where another rank ended or the group's timeout passed.
    """
    function = "ring_attention"
    ranks = group_of(function, group)
    given = _given_lengths(function, ranks, lengths, lengths_kv)
    a, found = agreed(function, [ranks], layout, given, q, k, v, out_dtype, options)
    call = _arguments.resolve(a, ranks, layout, found[0])
    o, lse = run(call, a)
    return (o, lse) if return_lse else o
