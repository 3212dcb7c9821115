"""All-to-all attention: before it, rows are exchanged for heads; after it, heads for rows.

Jacobs et al. 2023, DeepSpeed Ulysses, section 3.1. Rank r of P gets all rows of its query heads and
of the key heads that these read. With fewer key heads than ranks, several ranks get the same key
head; their gradients of it are summed in f32 where the rows are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .. import Origin
from . import _transport
from ._call import Call
from ._groups import Group
from ._layout import even_lengths

Ranges = tuple[tuple[int, int], ...]


def _u8(x: Tensor) -> Tensor:
    return x.contiguous().view(-1).view(torch.uint8)


def to_heads(
    group: Group, rows: tuple[int, ...], tensors: Sequence[Tensor], ranges: Sequence[Ranges]
) -> list[Tensor]:
    """[b, rows of this rank, heads, dim] of one type -> [b, all rows, this rank's heads, dim].

    ranges: for each tensor the heads [begin, end) that each rank gets.
    """
    size = tensors[0].element_size()
    parts = [
        [x[:, :, slice(*bounds[rank])] for x, bounds in zip(tensors, ranges, strict=True)]
        for rank in range(group.size)
    ]
    sent = [sum(x.numel() for x in part) * size for part in parts]
    mine = [bounds[group.rank] for bounds in ranges]
    elements = sum(
        x.size(0) * (end - begin) * x.size(3) for x, (begin, end) in zip(tensors, mine, strict=True)
    )
    received = [count * elements * size for count in rows]
    outgoing = torch.cat([_u8(x) for part in parts for x in part])
    incoming = _transport.exchange(group, outgoing, sent, received)
    made = [
        x.new_empty((x.size(0), sum(rows), end - begin, x.size(3)))
        for x, (begin, end) in zip(tensors, mine, strict=True)
    ]
    at = row = 0
    for count in rows:
        for x in made:
            place = x[:, row : row + count]
            bytes_ = place.numel() * size
            place.copy_(incoming[at : at + bytes_].view(x.dtype).view(place.shape))
            at += bytes_
        row += count
    return made


def to_rows(
    group: Group,
    rows: tuple[int, ...],
    tensors: Sequence[Tensor],
    ranges: Sequence[Ranges],
    heads: Sequence[int],
) -> list[Tensor]:
    """The inverse of to_heads. Heads that several ranks have are summed, in the order of ranks."""
    size = tensors[0].element_size()
    starts = [sum(rows[:rank]) for rank in range(group.size)]
    parts = [
        [x[:, start : start + count] for x in tensors]
        for start, count in zip(starts, rows, strict=True)
    ]
    sent = [sum(x.numel() for x in part) * size for part in parts]
    mine = rows[group.rank]
    received = [
        sum(
            x.size(0) * mine * (bounds[rank][1] - bounds[rank][0]) * x.size(3) * size
            for x, bounds in zip(tensors, ranges, strict=True)
        )
        for rank in range(group.size)
    ]
    outgoing = torch.cat([_u8(x) for part in parts for x in part])
    incoming = _transport.exchange(group, outgoing, sent, received)
    made = [
        x.new_zeros((x.size(0), mine, count, x.size(3)))
        for x, count in zip(tensors, heads, strict=True)
    ]
    at = 0
    for rank in range(group.size):
        for x, bounds in zip(made, ranges, strict=True):
            place = x[:, :, slice(*bounds[rank])]
            bytes_ = place.numel() * size
            place += incoming[at : at + bytes_].view(x.dtype).view(place.shape)
            at += bytes_
    return made


@dataclass(frozen=True)
class Heads:
    """Which rows each rank of the group gives, and which heads it gets."""

    group: Group
    rows_q: tuple[int, ...]
    rows_kv: tuple[int, ...]
    heads_q: int
    heads_kv: int
    one_row: frozenset[str] = frozenset()  # the pairs ("bias", "mask") with one row for all queries

    @property
    def of_q(self) -> Ranges:
        counts = even_lengths(self.heads_q, self.group.size)
        return tuple((sum(counts[:r]), sum(counts[: r + 1])) for r in range(len(counts)))

    @property
    def of_kv(self) -> Ranges:
        each = self.heads_q // self.heads_kv
        return tuple((begin // each, -(-end // each)) for begin, end in self.of_q)

    @property
    def shared(self) -> bool:
        """Whether some key head is on several ranks."""
        return sum(end - begin for begin, end in self.of_kv) > self.heads_kv

    @property
    def same_head(self) -> Ranges:
        """The ranges of a tensor with one head for all."""
        return ((0, 1),) * self.group.size

    def origin(self, origin: Origin) -> Origin:
        first = self.of_q[self.group.rank][0]
        return replace(origin, head=origin.head + first, heads_q=origin.heads_q or self.heads_q)

    def key_heads(self) -> list[int] | None:
        """The received key head of each query head, where groups of heads are not equally large."""
        each = self.heads_q // self.heads_kv
        begin, end = self.of_q[self.group.rank]
        first, last = self.of_kv[self.group.rank]
        if last - first == 1 or (begin % each == 0 and end % each == 0):
            return None
        return [head // each - first for head in range(begin, end)]

    def expand(self, x: Tensor) -> Tensor:
        heads = self.key_heads()
        return x if heads is None else x[:, :, heads]

    def reduce(self, x: Tensor) -> Tensor:
        """The gradient of expand."""
        heads = self.key_heads()
        if heads is None:
            return x
        first, last = self.of_kv[self.group.rank]
        made = x.new_zeros((*x.shape[:2], last - first, x.size(3)))
        return made.index_add_(2, torch.tensor(heads, device=x.device), x)

    def qkv(self, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
        if self.rows_q == self.rows_kv:
            ranges = (self.of_q, self.of_kv, self.of_kv)
            return to_heads(self.group, self.rows_q, (q, k, v), ranges)
        (q,) = to_heads(self.group, self.rows_q, (q,), (self.of_q,))
        return [q, *to_heads(self.group, self.rows_kv, (k, v), (self.of_kv, self.of_kv))]

    def queries(self, x: Tensor) -> Tensor:
        """[b, rows, heads, dim] of this rank's rows -> of its heads."""
        return to_heads(self.group, self.rows_q, (x,), (self.of_q,))[0]

    def results(self, x: Tensor) -> Tensor:
        """[b, all rows, heads of this rank, dim] -> of its rows."""
        return to_rows(self.group, self.rows_q, (x,), (self.of_q,), (self.heads_q,))[0]

    def statistics(self, x: Tensor) -> Tensor:
        """queries for [b, heads, rows]."""
        return self.queries(x.transpose(1, 2)[..., None])[..., 0].transpose(1, 2).contiguous()

    def statistics_of_rows(self, x: Tensor) -> Tensor:
        """results for [b, heads, rows]."""
        return self.results(x.transpose(1, 2)[..., None])[..., 0].transpose(1, 2).contiguous()

    def key_gradients(self, dk: Tensor, dv: Tensor, dtype: torch.dtype) -> list[Tensor]:
        """dk and dv of this rank's rows. Rounded before they are sent if no head is shared."""
        dk, dv = self.reduce(dk), self.reduce(dv)
        if not self.shared:
            dk, dv = dk.to(dtype), dv.to(dtype)
        heads = (self.heads_kv, self.heads_kv)
        return to_rows(self.group, self.rows_kv, (dk, dv), (self.of_kv, self.of_kv), heads)

    def pairs(self, name: str, x: Tensor) -> Tensor:
        """A mask or bias [b|1, heads|1, rows|1, keys|1] for all rows of this rank's heads."""
        ranges = self.of_q if x.size(1) > 1 else self.same_head
        if name in self.one_row:
            return x[:, slice(*ranges[self.group.rank])]
        (made,) = to_heads(self.group, self.rows_q, (x.transpose(1, 2),), (ranges,))
        return made.transpose(1, 2)

    def pairs_gradient(self, dbias: Tensor, shape: torch.Size) -> Tensor:
        """The gradient of a bias as given; one with one row for all has this rank's share."""
        ranges = self.of_q if shape[1] > 1 else self.same_head
        if "bias" in self.one_row:
            made = dbias.new_zeros(shape)
            made[:, slice(*ranges[self.group.rank])] = dbias
            return made
        rows = dbias.transpose(1, 2)
        (found,) = to_rows(self.group, self.rows_q, (rows,), (ranges,), (shape[1],))
        return found.transpose(1, 2)

    def head_part(self, x: Tensor) -> Tensor:
        """Sinks or slopes [..., heads] of this rank's heads."""
        return x[..., slice(*self.of_q[self.group.rank])].contiguous()

    def options(self, call: Call, bounds: Sequence[str]) -> Call:
        """The call with the options of this rank's heads and all rows.

        bounds: which of kv_begin and kv_end the caller gave, for this rank's rows.
        """
        made = {}
        for name, x in call.tensors.items():
            if name == "mask":
                made[name] = self.pairs(name, x)
            elif name == "alibi_slopes":
                made[name] = self.head_part(x)
            elif name in bounds:
                made[name] = self._bounds(x)
        return replace(call.with_options(**made), origin=self.origin(call.origin))

    def _bounds(self, x: Tensor) -> Tensor:
        rows = x[:, :, None, None]
        return to_heads(self.group, self.rows_q, (rows,), (self.same_head,))[0][:, :, 0, 0]
