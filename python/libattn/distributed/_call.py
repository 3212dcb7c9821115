"""A call as the ranks have agreed on it, and what a piece of one of its blocks takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from .. import Origin
from ._blocks import Band, Piece, pieces
from ._groups import Group
from ._layout import Segment, indices, segments
from ._routes import Routes, routes
from ._transport import Form


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type of partial results and of sums of gradients."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@dataclass(frozen=True)
class Call:
    """What a call computes, the same on all ranks but for `tensors`, which are this rank's rows."""

    group: Group
    layout: str
    lengths_q: tuple[int, ...]
    lengths_kv: tuple[int, ...]
    band: Band
    numbers: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    origin: Origin = field(default_factory=Origin)
    cu_len: tuple[int, ...] = ()  # of packed sequences whose positions are their own

    @property
    def routes(self) -> Routes:
        return routes(self.layout, self.lengths_q, self.lengths_kv, self.band)

    def queries(self) -> tuple[Segment, ...]:
        return segments(self.layout, self.lengths_q, self.group.rank)

    def keys(self, owner: int) -> tuple[Segment, ...]:
        return segments(self.layout, self.lengths_kv, owner)

    def pieces(self, owner: int) -> Iterator[tuple[Segment, Segment, Piece]]:
        """The calls of this rank's queries over the keys of a rank."""
        for qs in self.queries():
            for ks in self.keys(owner):
                for piece in pieces(self.band, qs, ks, self.cu_len):
                    yield qs, ks, piece

    def form(self, k: Tensor, v: Tensor, owner: int, dtype: torch.dtype | None = None) -> Form:
        """The buffer of a rank's keys and values, or of their gradients."""
        rows = self.lengths_kv[owner]
        shapes = tuple((x.size(0), rows, *x.shape[2:]) for x in (k, v))
        return Form(shapes, (dtype or k.dtype, dtype or v.dtype))

    def outside(self, qs: Segment) -> Tensor | None:
        """The rows of a segment that are in no packed sequence, bool [rows]; None: all are."""
        if "span" not in self.tensors:
            return None
        begin, end = self.tensors["span"]
        rows = indices(self.layout, self.lengths_q, self.group.rank)[qs.at : qs.at + qs.size]
        rows = rows.to(begin.device)
        found: Tensor = (rows < begin) | (rows >= end)
        return found

    def with_options(self, **tensors: Tensor) -> Call:
        return replace(self, tensors={**self.tensors, **tensors})


def pairs_of(x: Tensor, piece: Piece, qs: Segment, ks: Segment) -> Tensor:
    """The part of a mask, bias or dbias for a piece of a block.

    x: [b|1, h|1, rows of the rank|1, all keys|1], or [sequences|1, h|1, rows|1, keys|1], both of a
        sequence.
    """
    packed = piece.packed
    if packed is not None:
        if x.size(0) > 1:
            x = x[packed.first : packed.last]
        skips = (packed.skip_q, packed.skip_kv)
        for dim, skip, size in zip((2, 3), skips, packed.longest, strict=True):
            if x.size(dim) > 1:
                x = x.narrow(dim, skip, size)
        return x
    if x.size(2) > 1:
        x = x[:, :, qs.at : qs.at + qs.size]
    if x.size(3) > 1:
        x = x[:, :, :, ks.start : ks.start + ks.size * ks.step : ks.step]
    return x


def local_bound(bound: Tensor, part: Segment) -> Tensor:
    """A global bound of keys (or a length) counted in the rows of a segment: i32."""
    found = torch.div(bound.long() - part.start + part.step - 1, part.step, rounding_mode="floor")
    return found.clamp(0, part.size).to(torch.int32)


def options_of(
    call: Call, piece: Piece, qs: Segment, ks: Segment, device: torch.device
) -> dict[str, Any]:
    """The options of libattn.attention for a piece of a block, without bias and sinks."""
    options = {**call.numbers, **piece.options}
    given = call.tensors
    for name in ("descale_q", "descale_k", "descale_v"):
        if name in given:
            options[name] = given[name]
    for name in ("kv_begin", "kv_end"):
        if name in given:
            options[name] = local_bound(given[name][:, qs.at : qs.at + qs.size], ks)
    for name, part in (("len_q", qs), ("len_kv", ks)):
        if name in given:
            options[name] = local_bound(given[name], part)
    if "mask" in given:
        options["mask"] = pairs_of(given["mask"], piece, qs, ks)
    if "alibi_slopes" in given:
        slopes = given["alibi_slopes"]
        options["alibi_slopes"] = slopes if piece.slopes == 1 else slopes * piece.slopes
    at, packed = call.origin, piece.packed
    if packed is not None:
        bounds = (("cu_len_q", packed.bounds_q), ("cu_len_kv", packed.bounds_kv))
        options |= {name: torch.tensor(x, dtype=torch.int32, device=device) for name, x in bounds}
        options["max_len_q"], options["max_len_kv"] = packed.longest
    if options.get("dropout_p") and packed is not None:
        options["origin"] = replace(
            at, batch=at.batch + packed.first, q=at.q + packed.skip_q, kv=at.kv + packed.skip_kv
        )
    elif options.get("dropout_p"):
        options["origin"] = replace(at, q=at.q + qs.start, kv=at.kv + ks.start)
    return options


def unbatched(piece: Piece, *tensors: Tensor) -> list[Tensor]:
    """Tensors [b, ...] as a piece's call takes them: those of packed sequences without batch."""
    return [x if piece.packed is None else x[0] for x in tensors]


def shift_of(call: Call, piece: Piece) -> Tensor | None:
    """What a piece's lse lacks, [b|1, h, 1]."""
    if piece.shift == 0:
        return None
    slopes = call.tensors["alibi_slopes"]
    return (slopes if slopes.dim() == 2 else slopes[None])[:, :, None] * piece.shift


def rows_of(x: Tensor, segment: Segment) -> Tensor:
    return x[:, segment.at : segment.at + segment.size]


def lse_rows_of(x: Tensor, segment: Segment) -> Tensor:
    return x[:, :, segment.at : segment.at + segment.size]
