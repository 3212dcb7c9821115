"""ring_attention: the public function and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .. import Options
from . import _arguments, _relayout
from ._arguments import Arguments, Lengths
from ._call import Call, wide
from ._eager import eager
from ._exchange import Heads
from ._groups import ALONE, Group, group_of, mesh_of
from ._layout import LayoutName, check_layout
from ._ring import Saved

if TYPE_CHECKING:
    from typing_extensions import Unpack


class _Sharded(torch.autograd.Function):
    """Attention over the ranks of a call, with an exchange of rows for heads around it."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        sinks: Tensor | None,
        call: Call,
        heads: Heads | None,
        out_dtype: torch.dtype,
        return_lse: bool,
    ) -> tuple[Tensor, Tensor | None]:
        ctx.call, ctx.heads = call, heads
        ctx.types = [None if x is None else x.dtype for x in (q, k, v, bias, sinks)]
        ctx.bias_shape = None if bias is None else bias.shape
        if heads is not None:
            q, k, v = heads.qkv(q, k, v)
            bias = None if bias is None else heads.pairs("bias", bias)
            sinks = None if sinks is None else heads.head_part(sinks)
        kv = (k, v) if heads is None else (heads.expand(k), heads.expand(v))
        o, lse = _relayout.forward(call, q, *kv, bias, sinks)
        o = o.to(out_dtype)
        ctx.save_for_backward(q, k, v, bias, sinks, o, lse)
        ctx.set_materialize_grads(False)
        if heads is None:
            return o, lse
        return heads.results(o), heads.statistics_of_rows(lse) if return_lse else None

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> Any:
        q, k, v, bias, sinks, o, lse = ctx.saved_tensors
        heads = ctx.heads
        if heads is not None:
            shape = (*q.shape[:1], heads.rows_q[heads.group.rank], heads.heads_q, o.size(3))
            dout = o.new_zeros(shape) if dout is None else dout.to(o.dtype)
            dout = heads.queries(dout)
            dlse = None if dlse is None else heads.statistics(dlse)
        elif dout is None:
            dout = torch.zeros_like(o)
        delta = delta_of(dout, o, lse, dlse)
        kv = (k, v) if heads is None else (heads.expand(k), heads.expand(v))
        saved = Saved(q, *kv, lse, _rows(dout.to(o.dtype)), delta, bias, sinks)
        found = list(_relayout.backward(ctx.call, saved, ctx.needs_input_grad[:5]))
        if heads is not None:
            _to_rows(ctx, heads, found)
        cast = (
            None if x is None else x.to(dtype) for x, dtype in zip(found, ctx.types, strict=True)
        )
        return (*cast, None, None, None, None)


def _to_rows(ctx: Any, heads: Heads, found: list[Tensor | None]) -> None:
    """Gradients of this rank's heads -> of its rows, in place."""
    dq, dk, dv, dbias, dsink = found
    if dq is not None:
        found[0] = heads.results(dq.to(ctx.types[0]))
    if dk is not None or dv is not None:
        _, k, v, *_ = ctx.saved_tensors
        dk = _zero_gradient(k, dv) if dk is None else dk
        dv = _zero_gradient(v, dk) if dv is None else dv
        found[1:3] = heads.key_gradients(dk, dv, ctx.types[1])
    if dbias is not None:
        found[3] = heads.pairs_gradient(dbias, ctx.bias_shape)
    if dsink is not None:
        begin, end = heads.of_q[heads.group.rank]
        whole = dsink.new_zeros(heads.heads_q)
        whole[begin:end] = dsink
        found[4] = whole


def _zero_gradient(x: Tensor, other: Tensor | None) -> Tensor:
    """A gradient of 0 for k or v, given that of the other. It has the other's heads: where head
    groups are uneven, the kernels get a copy of a key head for each query head (Heads.expand)."""
    assert other is not None
    return x.new_zeros((*other.shape[:3], x.size(3)), dtype=wide(x.dtype))


def delta_of(dout: Tensor, o: Tensor, lse: Tensor, dlse: Tensor | None) -> Tensor:
    """dot(dout, o) - dlse, [b, h, n], wide; 0 for rows that see nothing."""
    kind = wide(o.dtype)
    delta = torch.linalg.vecdot(dout.to(kind), o.to(kind)).transpose(1, 2)
    if dlse is not None:
        delta = delta - dlse
    found: Tensor = delta.masked_fill(torch.isneginf(lse), 0).contiguous()
    return found


def _rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 or x.size(-1) == 1 else x.contiguous()


def agreed(
    function: str,
    ring: Group,
    heads: Group | None,
    layout: Any,
    lengths: Lengths | None,
    tensors: tuple[Any, Any, Any],
    out_dtype: Any,
    options: Any,
) -> tuple[Arguments, Lengths, Lengths | None]:
    """The checked arguments, and the rows of the ranks of the ring and of the group of heads."""
    arguments: Arguments | None = None
    inner: Lengths | None = None
    error: Exception | None = None
    try:
        check_layout(function, layout)
        arguments = _arguments.check(function, *tensors, out_dtype, options)
        if heads is not None and arguments.q.size(2) < heads.size:
            accepted = f"at least {heads.size}, one for each rank"
            raise _arguments.refuse(function, "heads of q", arguments.q.size(2), accepted)
    except Exception as found:
        error = found
    if lengths is not None:
        if error is not None:
            raise error
        assert arguments is not None
        return arguments, lengths, None
    like = tensors[0] if isinstance(tensors[0], Tensor) else torch.empty(0)
    if heads is not None:
        # The other ranks of the ring learn of an error of this group too.
        try:
            inner = _arguments.compare(function, heads, arguments, layout, error, like)
        except ValueError as found:
            error = found
    known = arguments if error is None else None
    outer = _arguments.compare(function, ring, known, layout, error, like, inner)
    assert arguments is not None
    return arguments, outer, inner


def run(call: Call, heads: Heads | None, a: Arguments, return_lse: bool) -> Any:
    """(o, lse) or o as the caller takes them."""
    o, lse = _Sharded.apply(
        *(a.q, a.k, a.v, a.get("bias"), a.get("sinks")), call, heads, a.out_dtype, return_lse
    )
    if a.packed:
        o, lse = o[0], None if lse is None else lse[0]
    return (o, lse) if return_lse else o


def _given_lengths(function: str, group: Group, lengths: Any, lengths_kv: Any) -> Lengths | None:
    if lengths is None:
        if lengths_kv is not None:
            raise _arguments.refuse(
                function, "lengths_kv", "it without lengths", "both, or lengths"
            )
        return None
    pair = []
    lengths_kv = lengths if lengths_kv is None else lengths_kv
    for name, value in (("lengths", lengths), ("lengths_kv", lengths_kv)):
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
        not compare their calls, which otherwise takes one all-gather of 320 bytes from each. An
        NCCL group must then have run a collective before: its first messages need all ranks.
    return_lse: return (o, lse), lse [b, h, rows] f32 (f64 with f64), differentiable.
    out_dtype: the type of o: q's (None), or torch.float32.
    options: those of libattn.attention, but rope, workspace, stream, device and nonfinite_count.
        Positions, len_q and len_kv [b], cu_len_q and cu_len_kv are those of the complete sequence.
        kv_begin, kv_end [b|1, rows] have this rank's queries and global keys.
        mask, bias [b|1, h|1, rows|1, keys of all ranks|1]: this rank's queries, all keys in order;
        of packed sequences [sequences|1, h|1, max_len_q|1, max_len_kv|1], complete on every rank.
        dropout draws the mask of one device; without a seed the first rank draws one.
        "striped" with dropout or a bias of packed sequences exchanges rows for zigzag parts first.
        causal, window and alibi_slopes with len_kv need equal len_q, or an explicit diagonal.

    Gradients of q, k, v and bias have the input's type; they are summed over ranks in f32. Those of
    sinks and of a bias with one row or of packed sequences are the sums over this rank's queries:
    add them up over the group, as those of the weights that the ranks share.

    Returns o [b, rows, h, dim_vo] (packed [rows, h, dim_vo]). Raises ValueError for a broken rule,
    on all ranks; TransportError where another rank ended or the group's timeout passed.
    """
    function = "ring_attention"
    ranks = group_of(function, group)
    given = _given_lengths(function, ranks, lengths, lengths_kv)
    a, rows, _ = agreed(function, ranks, None, layout, given, (q, k, v), out_dtype, options)
    call = _arguments.resolve(a, ranks, layout, rows)
    found: Tensor | tuple[Tensor, Tensor] = run(call, None, a, return_lse)
    return found


def _by_heads(
    function: str,
    ring: Group,
    group: Group,
    layout: LayoutName,
    tensors: tuple[Tensor, Tensor, Tensor],
    return_lse: bool,
    out_dtype: torch.dtype | None,
    options: Any,
) -> Any:
    a, outer, inner = agreed(function, ring, group, layout, None, tensors, out_dtype, options)
    assert inner is not None
    call = _arguments.resolve(a, ring, layout, outer)
    sizes = (inner.q, inner.kv, a.q.size(2), a.k.size(2))
    heads = Heads(group, *sizes, inner.one_row)
    given = [name for name in ("kv_begin", "kv_end") if name in a.options]
    return run(heads.options(call, given), heads, a, return_lse)


@eager
def all_to_all_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    group: Any = None,
    return_lse: bool = False,
    out_dtype: torch.dtype | None = None,
    **options: Unpack[Options],
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention over split sequences: rows are exchanged for heads, and back.

    Jacobs et al. 2023, DeepSpeed Ulysses, section 3.1. Each rank computes some of the heads over
    all rows. It moves less than ring_attention, but takes at least as many query heads as ranks.

    q: [b, rows of this rank, h, dim_qk], or packed [rows, h, dim_qk]; the ranks hold consecutive
        rows, any numbers of them. h need not be a multiple of the ranks.
    k, v: [b, rows of this rank, g, dim]; h is a multiple of g. With fewer key heads than ranks,
        several ranks get the same one, and its gradients are summed in f32.
    group: a ProcessGroup, a DeviceMesh of one dimension, or None for all processes.
    return_lse, out_dtype, options: as for ring_attention. Dropout without a seed: the first rank's.

    Gradients: as for ring_attention. A mask or bias [b|1, h|1, rows|1, keys|1] is exchanged too.

    Returns o [b, rows, h, dim_vo] (packed [rows, h, dim_vo]), or (o, lse). Raises what
    ring_attention raises.
    """
    name = "all_to_all_attention"
    ranks, tensors = group_of(name, group), (q, k, v)
    found: Tensor | tuple[Tensor, Tensor] = _by_heads(
        name, ALONE, ranks, "contiguous", tensors, return_lse, out_dtype, options
    )
    return found


@eager
def mesh_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mesh: Any,
    layout: LayoutName = "contiguous",
    return_lse: bool = False,
    out_dtype: torch.dtype | None = None,
    **options: Unpack[Options],
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention over split sequences on a mesh: a ring of groups that exchange rows for heads.

    Fang, Zhao 2024, USP: a Unified Sequence Parallelism Approach, section 3. For more ranks than
    heads, or where some ranks are closer to each other than others: the second dimension of the
    mesh exchanges more often.

    q, k, v: this rank's rows, as `shard` cuts them with group=mesh: as for ring_attention.
    mesh: a DeviceMesh of two dimensions, (ring, heads), or a tuple of two process groups. h is at
        least the size of the second.
    layout: that of the ring: see shard.
    return_lse, out_dtype, options: as for ring_attention.

    Gradients: as for ring_attention. Returns o [b, rows, h, dim_vo] (packed [rows, h, dim_vo]), or
    (o, lse). Raises what ring_attention raises.
    """
    name = "mesh_attention"
    ring, heads = mesh_of(name, mesh)
    found: Tensor | tuple[Tensor, Tensor] = _by_heads(
        name, ring, heads, layout, (q, k, v), return_lse, out_dtype, options
    )
    return found
