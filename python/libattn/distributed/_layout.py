"""Which rows of a sequence each rank holds, and how tensors are cut and joined accordingly.

Layouts of N rows over P ranks:

    contiguous  rank r holds one range; the sizes may be any
    zigzag      2P chunks; rank r holds chunks r and 2P - 1 - r, so that causal work is balanced
    striped     rank r holds rows r, r + P, r + 2P, ... (Brandon et al. 2023, Striped Attention)
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

LayoutName = Literal["contiguous", "zigzag", "striped"]
LAYOUTS = ("contiguous", "zigzag", "striped")


@dataclass(frozen=True)
class Segment:
    """Rows [at, at + size) of a rank's part are the global rows start, start + step, ..."""

    at: int
    size: int
    start: int
    step: int


@functools.lru_cache(maxsize=4096)
def even_lengths(length: int, parts: int) -> tuple[int, ...]:
    """Sizes of `parts` chunks of `length` rows: the first length % parts have one row more."""
    each, more = divmod(length, parts)
    return tuple(each + (part < more) for part in range(parts))


@functools.lru_cache(maxsize=4096)
def rank_lengths(layout: str, length: int, ranks: int) -> tuple[int, ...]:
    """How many of `length` rows each rank holds, unless a contiguous layout says otherwise."""
    if layout != "zigzag":
        return even_lengths(length, ranks)
    chunks = even_lengths(length, 2 * ranks)
    return tuple(chunks[rank] + chunks[-1 - rank] for rank in range(ranks))


@functools.lru_cache(maxsize=4096)
def segments(layout: str, lengths: tuple[int, ...], rank: int) -> tuple[Segment, ...]:
    """The rows of a rank, where `lengths` are the rows that each rank holds. Without empty ones."""
    ranks = len(lengths)
    if layout == "contiguous":
        found = [Segment(0, lengths[rank], sum(lengths[:rank]), 1)]
    elif layout == "striped":
        found = [Segment(0, lengths[rank], rank, ranks)]
    else:
        chunks = even_lengths(sum(lengths), 2 * ranks)
        last = 2 * ranks - 1 - rank
        found = [
            Segment(0, chunks[rank], sum(chunks[:rank]), 1),
            Segment(chunks[rank], chunks[last], sum(chunks[:last]), 1),
        ]
    return tuple(segment for segment in found if segment.size)


@functools.lru_cache(maxsize=1024)
def indices(layout: str, lengths: tuple[int, ...], rank: int) -> Tensor:
    """Global rows that a rank holds, int64 [rows of the rank], in the order of its part."""
    rows = [
        torch.arange(s.start, s.start + s.size * s.step, s.step)
        for s in segments(layout, lengths, rank)
    ]
    return torch.cat(rows) if rows else torch.empty(0, dtype=torch.int64)


def owners(layout: str, lengths: tuple[int, ...], rows: Tensor) -> Tensor:
    """The rank that holds each of the given global rows, int64."""
    ranks = len(lengths)
    if layout == "striped":
        return rows % ranks
    sizes = lengths if layout == "contiguous" else even_lengths(sum(lengths), 2 * ranks)
    chunks = torch.bucketize(rows, torch.tensor(sizes).cumsum(0), right=True)
    return torch.minimum(chunks, 2 * ranks - 1 - chunks) if layout == "zigzag" else chunks


def check_layout(function: str, layout: Any) -> None:
    if layout not in LAYOUTS:
        accepted = ", ".join(map(repr, LAYOUTS))
        raise ValueError(f"{function}: layout: found {layout!r}; accepted {accepted}")


def lengths_of(
    function: str, layout: str, length: int, ranks: int, lengths: Sequence[int] | None
) -> tuple[int, ...]:
    """The rows of each rank: the layout's, or the caller's if they add up and the layout allows."""
    check_layout(function, layout)
    usual = rank_lengths(layout, length, ranks)
    if lengths is None:
        return usual
    given = tuple(int(x) for x in lengths)
    if len(given) != ranks or sum(given) != length or min(given) < 0:
        raise ValueError(
            f"{function}: lengths: found {given}; accepted {ranks} numbers of rows that add up to "
            f"{length}"
        )
    if layout != "contiguous" and given != usual:
        raise ValueError(f"{function}: lengths: found {given}; accepted with {layout!r}: {usual}")
    return given


def rows_of(
    length: int, ranks: int, rank: int, layout: str, lengths: Sequence[int] | None, function: str
) -> Tensor:
    """Global rows that a rank holds, int64 [rows of the rank], in the order of its part."""
    return indices(layout, lengths_of(function, layout, length, ranks, lengths), rank)


def cut(x: Tensor, dim: int, rows: Tensor) -> Tensor:
    """The given rows of a tensor: a view where they are one range, else a copy."""
    if rows.numel() == 0:
        return x.narrow(dim, 0, 0)
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == rows.numel():
        return x.narrow(dim, first, rows.numel())
    return x.index_select(dim, rows.to(x.device))


def join(parts: Sequence[Tensor], dim: int, layout: str, lengths: tuple[int, ...]) -> Tensor:
    """The complete tensor of all ranks' parts, in global order."""
    whole = torch.cat(list(parts), dim)
    if layout == "contiguous":
        return whole
    rows = torch.cat([indices(layout, lengths, rank) for rank in range(len(lengths))])
    made = torch.empty_like(whole)
    return made.index_copy_(dim % whole.dim(), rows.to(whole.device), whole)
