"""One block: the queries of a segment against the keys of another, as calls of the library.

With local rows a and b, query i = qs.start + qs.step * a and key j = ks.start + ks.step * b. Both
steps are P (striped) or 1. With d = diag + qs.start - ks.start, the distance i + diag - j is
P * (a - b) + d, so that visibility by causal and window is a band of b - a:

    lo = ceil((d - left) / P) <= b - a <= hi = floor((d + right) / P)
"""

from __future__ import annotations

from collections.abc import Iterator
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
class Piece:
    """One call for a block: its options, and what is added to its lse for each unit of slope.

    `slopes`: factor of the ALiBi slopes.
    """

    options: dict[str, Any]
    shift: int = 0
    slopes: int = 1


def pieces(band: Band, qs: Segment, ks: Segment) -> Iterator[Piece]:
    """The calls that together compute a block; none where nothing is visible."""
    if not band.sees(qs, ks):
        return
    lo, hi = band.bounds(qs, ks)
    if not band.alibi:
        yield Piece(_of_band(lo, hi))
        return
    d = band.diag + qs.start - ks.start
    if qs.step == 1:
        options: dict[str, Any] = {"diagonal": d}
        if band.left is not None or band.right is not None:
            options["window"] = (band.left, band.right)
        yield Piece(options)
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


def _of_band(lo: int | None, hi: int | None) -> dict[str, Any]:
    if hi is not None:
        return {"diagonal": hi, "window": (None if lo is None else hi - lo, 0)}
    if lo is not None:
        return {"diagonal": lo, "window": (0, None)}
    return {}
