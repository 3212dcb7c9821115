"""One block: the queries of a segment against the keys of another, as calls of the library.

With local rows a and b, query i = qs.start + qs.step * a and key j = ks.start + ks.step * b. Both
steps are P (striped) or 1. With d = diag + qs.start - ks.start, the distance i + diag - j is
P * (a - b) + d, so that visibility by causal and window is a band of b - a:

    lo = ceil((d - left) / P) <= b - a <= hi = floor((d + right) / P)

Packed sequences with dropout, bias or mask count positions from the start of their sequence. One
sequence at most lies in both segments and began before one of them: it is a call of its own, with
an origin. All others that lie in both began in both: they are one packed call.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ._layout import Segment


@dataclass(frozen=True)
class Band:
    """Which keys a query sees by causal and window: diag - left <= j - i <= diag + right."""

    diag: int
    left: int | None
    right: int | None
    alibi: bool

    def bounds(self, qs: Segment, ks: Segment) -> tuple[int | None, int | None]:
        """(lo, hi) of the opening comment; None where nothing bounds."""
        d = self.diag + qs.start - ks.start
        lo = None if self.left is None else -((self.left - d) // qs.step)
        hi = None if self.right is None else (d + self.right) // qs.step
        return lo, hi

    def sees(self, qs: Segment, ks: Segment) -> bool:
        """Whether any query of qs sees any key of ks."""
        lo, hi = self.bounds(qs, ks)
        if lo is not None and hi is not None and lo > hi:
            return False
        if hi is not None and hi < 1 - qs.size:
            return False
        return lo is None or lo <= ks.size - 1


@dataclass(frozen=True)
class Packed:
    """Sequences [first, last) in a block: their bounds in the rows of the two segments, and how
    many rows of the first one lie before the segments."""

    first: int
    last: int
    bounds_q: tuple[int, ...]
    bounds_kv: tuple[int, ...]
    skip_q: int = 0
    skip_kv: int = 0

    @property
    def longest(self) -> tuple[int, int]:
        """Rows of q and of k of the longest sequence."""
        found = (
            max(end - begin for begin, end in itertools.pairwise(bounds))
            for bounds in (self.bounds_q, self.bounds_kv)
        )
        return next(found), next(found)


@dataclass(frozen=True)
class Piece:
    """One call for a block: its options, and what is added to its lse for each unit of slope.

    `slopes`: factor of the ALiBi slopes. `packed`: the sequences of a packed call.
    """

    options: dict[str, Any]
    shift: int = 0
    slopes: int = 1
    packed: Packed | None = None


def pieces(band: Band, qs: Segment, ks: Segment, cu_len: Sequence[int] = ()) -> Iterator[Piece]:
    """The calls that together compute a block; none where nothing is visible."""
    if not band.sees(qs, ks):
        return
    if cu_len:
        for packed in _packed(qs, ks, cu_len):
            yield Piece(_of_distance(band, packed.skip_q - packed.skip_kv), packed=packed)
        return
    lo, hi = band.bounds(qs, ks)
    if not band.alibi:
        yield Piece(_of_band(lo, hi))
        return
    d = band.diag + qs.start - ks.start
    if qs.step == 1:
        yield Piece(_of_distance(band, qs.start - ks.start))
        return
    # ALiBi on stripes. Keys at or before the query are at the distance P * (a + c - b) + d - P * c
    # with c = floor(d / P). The library computes the first term, by slopes times P. The second is
    # the same for all keys: it changes lse and nothing else. Keys after the query mirror that.
    step = qs.step
    c = d // step
    if c >= 1 - qs.size and (lo is None or lo <= c):
        window: tuple[int | None, int | None] = (None if lo is None else c - lo, 0)
        yield Piece({"diagonal": c, "window": window}, step * c - d, step)
    if c + 1 <= ks.size - 1 and (hi is None or hi >= c + 1):
        window = (0, None if hi is None else hi - c - 1)
        yield Piece({"diagonal": c + 1, "window": window}, d - step * (c + 1), step)


def _of_distance(band: Band, distance: int) -> dict[str, Any]:
    """The band where query 0 is `distance` rows after key 0."""
    options: dict[str, Any] = {"diagonal": band.diag + distance}
    if band.left is not None or band.right is not None:
        options["window"] = (band.left, band.right)
    return options


def _packed(qs: Segment, ks: Segment, cu_len: Sequence[int]) -> Iterator[Packed]:
    """The calls for the sequences of two segments of consecutive rows. cu_len does not fall."""
    later = max(qs.start, ks.start)
    end = min(qs.start + qs.size, ks.start + ks.size)
    first = bisect.bisect_left(cu_len, later)
    last = min(bisect.bisect_left(cu_len, end), len(cu_len) - 1)
    if 0 < first < len(cu_len):
        skips = (max(0, part.start - cu_len[first - 1]) for part in (qs, ks))
        yield from _cut(first - 1, first, qs, ks, cu_len, *skips)
    if first < last:
        yield from _cut(first, last, qs, ks, cu_len)


def _cut(
    first: int, last: int, qs: Segment, ks: Segment, cu_len: Sequence[int], *skips: int
) -> Iterator[Packed]:
    """Sequences [first, last) in two segments; none where a segment has no row of them."""
    of_q, of_kv = (
        tuple(min(max(x - part.start, 0), part.size) for x in cu_len[first : last + 1])
        for part in (qs, ks)
    )
    found = Packed(first, last, of_q, of_kv, *skips)
    if min(found.longest):
        yield found


def _of_band(lo: int | None, hi: int | None) -> dict[str, Any]:
    if hi is not None:
        return {"diagonal": hi, "window": (None if lo is None else hi - lo, 0)}
    if lo is not None:
        return {"diagonal": lo, "window": (0, None)}
    return {}
