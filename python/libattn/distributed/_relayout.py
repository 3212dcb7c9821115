"""Striped parts whose call takes consecutive rows: they are exchanged for zigzag ones and back.

One random number of dropout is for neighbouring queries and keys (docs/semantics.md), and packed
sequences with dropout, bias or mask count from their starts: `origin` places consecutive rows
alone. A rank holds as many rows as before.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from . import _layout, _ring, _transport
from ._call import Call
from ._groups import Group, gather
from ._ring import Saved

Parts = tuple[str, tuple[int, ...]]  # a layout and the rows of each rank


def _takes_consecutive_rows(call: Call) -> bool:
    return bool("dropout_p" in call.numbers or call.cu_len)


@functools.lru_cache(maxsize=256)
def _order(source: Parts, target: Parts, rank: int) -> tuple[Tensor, list[int]]:
    """A rank's rows of `source` in the order of the ranks that hold them in `target`, int64, and
    how many each of these holds."""
    owners = _layout.owners(*target, _layout.indices(*source, rank))
    counts: list[int] = torch.bincount(owners, minlength=len(target[1])).tolist()
    return torch.argsort(owners, stable=True), counts


def _exchange(group: Group, source: Parts, target: Parts, x: Tensor, dim: int) -> Tensor:
    """This rank's rows of `source` in dimension dim -> those of `target`, contiguous."""
    order, sent = _order(source, target, group.rank)
    place, received = _order(target, source, group.rank)
    rows = x.movedim(dim, 0)
    size = math.prod(rows.shape[1:]) * x.element_size()
    outgoing = rows.index_select(0, order.to(x.device)).contiguous().view(-1).view(torch.uint8)
    incoming = _transport.exchange(
        group, outgoing, [size * n for n in sent], [size * n for n in received]
    )
    made = rows.new_empty((sum(received), *rows.shape[1:]))
    made[place.to(x.device)] = incoming.view(x.dtype).view(made.shape)
    return made.movedim(0, dim).contiguous()


@dataclass(frozen=True)
class _Relayout:
    """The exchange of a call's rows. `each`: the pairs (bias, mask) with rows for each query."""

    call: Call
    each: frozenset[str]

    @property
    def group(self) -> Group:
        return self.call.group

    def _parts(self, of_keys: bool) -> tuple[Parts, Parts]:
        lengths = self.call.lengths_kv if of_keys else self.call.lengths_q
        zigzag = _layout.rank_lengths("zigzag", sum(lengths), len(lengths))
        return (self.call.layout, lengths), ("zigzag", zigzag)

    def there(self, x: Tensor, dim: int = 1, of_keys: bool = False) -> Tensor:
        return _exchange(self.group, *self._parts(of_keys), x, dim)

    def back(self, x: Tensor, dim: int = 1, of_keys: bool = False) -> Tensor:
        source, target = self._parts(of_keys)
        return _exchange(self.group, target, source, x, dim)

    def pairs(self, name: str, x: Tensor) -> Tensor:
        """A bias or mask for the rows that this rank gets."""
        if name not in self.each:
            return x
        return self.there(x.expand(-1, -1, self.call.lengths_q[self.group.rank], -1), 2)

    def pairs_gradient(self, dbias: Tensor, bias: Tensor) -> Tensor:
        """The gradient of a bias as given."""
        if "bias" not in self.each:
            return dbias
        found = self.back(dbias, 2)
        return found.sum(2, keepdim=True) if bias.size(2) == 1 else found

    def inner(self) -> Call:
        """The call over zigzag parts."""
        tensors = dict(self.call.tensors)
        for name in ("kv_begin", "kv_end"):
            if name in tensors:
                tensors[name] = self.there(tensors[name])
        if "mask" in tensors:
            tensors["mask"] = self.pairs("mask", tensors["mask"])
        of_q, of_kv = (self._parts(of_keys)[1] for of_keys in (False, True))
        return replace(
            self.call, layout=of_q[0], lengths_q=of_q[1], lengths_kv=of_kv[1], tensors=tensors
        )


def _relayout(call: Call, q: Tensor, bias: Tensor | None) -> _Relayout | None:
    """None where the rows may stay."""
    if call.layout != "striped" or call.group.size == 1 or not _takes_consecutive_rows(call):
        return None
    given = {"bias": bias, "mask": call.tensors.get("mask")}
    each = frozenset[str]()
    if not call.cu_len and any(x is not None for x in given.values()):
        # A rank with one row can't know whether a pair with one row is for all queries.
        flags = [int(x is not None and x.size(2) > 1) for x in given.values()]
        known = [max(column) for column in zip(*gather(call.group, flags, q), strict=True)]
        each = frozenset(name for name, found in zip(given, known, strict=True) if found)
    return _Relayout(call, each)


def forward(
    call: Call, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, sinks: Tensor | None
) -> tuple[Tensor, Tensor]:
    """_ring.forward, for parts of any layout."""
    rows = _relayout(call, q, bias)
    if rows is None:
        return _ring.forward(call, q, k, v, bias, sinks)
    q, k, v = rows.there(q), rows.there(k, of_keys=True), rows.there(v, of_keys=True)
    bias = None if bias is None else rows.pairs("bias", bias)
    o, lse = _ring.forward(rows.inner(), q, k, v, bias, sinks)
    return rows.back(o), rows.back(lse, 2)


def backward(call: Call, saved: Saved, want: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
    """_ring.backward, for parts of any layout."""
    bias = saved.bias
    rows = _relayout(call, saved.q, bias)
    if rows is None:
        return _ring.backward(call, saved, want)
    moved = Saved(
        rows.there(saved.q),
        rows.there(saved.k, of_keys=True),
        rows.there(saved.v, of_keys=True),
        rows.there(saved.lse, 2),
        rows.there(saved.dout),
        rows.there(saved.delta, 2),
        None if bias is None else rows.pairs("bias", bias),
        saved.sinks,
    )
    *found, dbias, dsink = _ring.backward(rows.inner(), moved, want)
    dq, dk, dv = (
        None if x is None else rows.back(x, of_keys=of_keys)
        for x, of_keys in zip(found, (False, True, True), strict=True)
    )
    if dbias is not None and bias is not None:
        dbias = rows.pairs_gradient(dbias, bias)
    return dq, dk, dv, dbias, dsink
