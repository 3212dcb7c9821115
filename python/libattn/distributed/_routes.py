"""How far each rank's keys travel along the ring, in both directions.

A block of keys goes from rank to rank. It stops at the last rank that sees any of it, so that
windows and causal contiguous layouts send less. Where both directions are equally long, half of the
hops goes each way: the number of steps halves.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from ._blocks import Band
from ._layout import segments


@dataclass(frozen=True)
class Routes:
    """How many ranks each owner's block visits in direction +1 (ahead) and -1 (behind)."""

    ranks: int
    ahead: tuple[int, ...]
    behind: tuple[int, ...]

    def hops(self, direction: int, owner: int) -> int:
        return (self.ahead if direction > 0 else self.behind)[owner]

    @property
    def steps(self) -> int:
        return max((*self.ahead, *self.behind))


def _route(needs: list[bool], ranks: int) -> tuple[int, int]:
    """(ahead, behind) with the fewest hops; needs[d]: whether the rank at distance d sees any."""
    best = (ranks, ranks)
    nearest = 0  # hops behind, for the needing ranks at more than `ahead` hops
    for ahead in range(ranks - 1, -1, -1):
        if ahead == 0 or needs[ahead]:
            pair = (ahead, nearest)
            if (sum(pair), max(pair)) < (sum(best), max(best)):
                best = pair
        if needs[ahead]:
            nearest = max(nearest, ranks - ahead)
    return best


@functools.lru_cache(maxsize=256)
def routes(
    layout: str, lengths_q: tuple[int, ...], lengths_kv: tuple[int, ...], band: Band
) -> Routes:
    ranks = len(lengths_q)
    found = []
    for owner in range(ranks):
        keys = segments(layout, lengths_kv, owner)
        needs = []
        for distance in range(ranks):
            queries = segments(layout, lengths_q, (owner + distance) % ranks)
            needs.append(any(band.sees(qs, ks) for qs in queries for ks in keys))
        found.append(_route(needs, ranks))
    return Routes(ranks, tuple(x[0] for x in found), tuple(x[1] for x in found))
