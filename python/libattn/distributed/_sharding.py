"""shard, unshard and positions: the public functions that cut and join sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from . import _layout
from ._groups import Group, failed, gather, group_of, mesh_of
from ._layout import LayoutName


def _is_mesh(group: Any) -> bool:
    return isinstance(group, tuple | list) or getattr(group, "ndim", 1) == 2


def _rows(function: str, length: int, group: Any, layout: str, lengths: Any) -> Tensor:
    """The global rows of this rank, int64."""
    if not _is_mesh(group):
        ranks = group_of(function, group)
        return _layout.rows_of(length, ranks.size, ranks.rank, layout, lengths, function)
    ring, heads = mesh_of(function, group)
    if lengths is not None:
        raise ValueError(f"{function}: lengths: found some with a mesh; accepted None")
    rows = _layout.rows_of(length, ring.size, ring.rank, layout, None, function)
    sizes = _layout.even_lengths(rows.numel(), heads.size)
    return rows.narrow(0, sum(sizes[: heads.rank]), sizes[heads.rank])


def positions(
    length: int,
    *,
    group: Any = None,
    layout: LayoutName = "contiguous",
    lengths: Sequence[int] | None = None,
) -> Tensor:
    """The positions in the complete sequence of the rows that this rank holds: int64 [rows].

    For position embeddings, and for libattn.torch.rope(x, positions=...).

    length: rows of the complete sequence.
    group, layout, lengths: as for shard.

    Raises ValueError for a broken rule.
    """
    return _rows("positions", length, group, layout, lengths).clone()


def shard(
    x: Tensor,
    dim: int = 1,
    *,
    group: Any = None,
    layout: LayoutName = "contiguous",
    lengths: Sequence[int] | None = None,
) -> Tensor:
    """This rank's rows of a tensor that every rank has; without communication, with a gradient.

    Inputs, labels, kv_begin and kv_end [b|1, n] (dim=1) and rows of a mask or bias (dim=2) are all
    cut this way. The values of kv_begin and kv_end stay: they are global keys.

    x: the complete tensor.
    dim: the dimension of the sequence.
    group: a ProcessGroup, a DeviceMesh of one dimension, or None for all processes. For
        mesh_attention its mesh: a part of the ring is cut into consecutive ones.
    layout: "contiguous": one range for each rank; "zigzag": of 2P chunks, rank r holds chunks r and
        2P - 1 - r, which balances causal work; "striped": rank r holds rows r, r + P, r + 2P, ...
    lengths: rows of each rank, for "contiguous". None: the first length % P ranks hold one more.

    Returns a view for "contiguous", else a copy. Raises ValueError for a broken rule.
    """
    return _layout.cut(x, dim, _rows("shard", x.size(dim), group, layout, lengths))


def unshard(
    x: Tensor,
    dim: int = 1,
    *,
    group: Any = None,
    layout: LayoutName = "contiguous",
) -> Tensor:
    """The complete tensor of all ranks' parts, on every rank: undoes shard. Without gradient.

    x: this rank's part; the parts have any numbers of rows with "contiguous".
    dim, group, layout: as for shard.

    Raises ValueError for a broken rule, TransportError where another rank ended.
    """
    function = "unshard"
    _layout.check_layout(function, layout)
    x = x.detach()
    if _is_mesh(group):
        ring, heads = mesh_of(function, group)
        return _join(function, ring, _join(function, heads, x, dim, "contiguous"), dim, layout)
    return _join(function, group_of(function, group), x, dim, layout)


def _join(function: str, ranks: Group, x: Tensor, dim: int, layout: str) -> Tensor:
    lengths = tuple(row[0] for row in gather(ranks, [x.size(dim)], x))
    _layout.lengths_of(function, layout, sum(lengths), ranks.size, lengths)
    shape = list(x.shape)
    shape[dim] = max(lengths)
    mine = x.new_zeros(shape)
    mine.narrow(dim, 0, x.size(dim)).copy_(x)
    parts = [torch.empty_like(mine) for _ in lengths]
    try:
        dist.all_gather(parts, mine, group=ranks.handle)
    except RuntimeError as error:
        raise failed(ranks, "joining the parts", error) from error
    cut = [part.narrow(dim, 0, rows) for part, rows in zip(parts, lengths, strict=True)]
    return _layout.join(cut, dim, layout, lengths)
