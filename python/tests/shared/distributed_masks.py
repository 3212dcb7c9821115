"""Calls that are split over ranks drop the same (query, key) pairs as one device.

usage: python distributed_masks.py RANKS... [--few]     --few: the slice of CI

With q = 0 all visible keys have the same weight. Values are unit vectors, by the key's number in
its sequence, so that element j of a result is 0 exactly where key j is hidden or was dropped.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

import libattn.distributed as distributed
import libattn.torch
import torch
from distributed_cases import fork, join, leave, mesh

LENGTHS = (7, 61, 128)
BOUNDS = (0.0, 0.1, 0.1, 0.55, 0.9, 1.0)  # of packed sequences, in parts of the length
DROPOUT = {"dropout_p": 0.375, "seed": 2**40 + 17, "offset": 2**33 + 5}
PLACED = {**DROPOUT, "origin": libattn.Origin(batch=3, head=1, q=5, kv=9, heads_q=11)}


def calls(ranks: int) -> Any:
    """(name, how the rows are cut, the call)."""
    for layout in ("contiguous", "zigzag", "striped"):
        yield f"ring {layout}", {"layout": layout}, distributed.ring_attention
        if ranks % 2 == 0:
            how = {"layout": layout, "group": mesh(ranks)}
            yield f"mesh {layout}", how, distributed.mesh_attention
    yield "all-to-all", {}, distributed.all_to_all_attention


def check(ranks: int, few: bool) -> int:
    """Compares the masks; returns how many."""
    checked = 0
    lengths, drawn = (LENGTHS[1:2], (PLACED,)) if few else (LENGTHS, (DROPOUT, PLACED))
    grid = itertools.product(lengths, (False, True), (False, True), drawn)
    for length, packed, causal, dropout in grid:
        shape = (length,) if packed else (2, length)
        options: dict[str, Any] = {**dropout, "causal": causal, "diagonal": "top_left"}
        rows = torch.arange(length)
        if packed:
            bounds = (torch.tensor(BOUNDS) * length).to(torch.int32)
            rows = rows - bounds[torch.bucketize(rows, bounds, right=True) - 1]
            options |= {"cu_len_q": bounds, "cu_len_kv": bounds}
        q = torch.zeros(*shape, 8, 4, dtype=torch.float32)
        units = torch.eye(length)[rows][..., None, :].expand(*shape, 8, length)
        want = libattn.torch.attention(q, q, units.contiguous(), **options)
        for name, how, call in calls(ranks):
            cut = {"dim": q.dim() - 3, **how}
            parts = [distributed.shard(x, **cut) for x in (q, q, units)]
            where = {"mesh" if k == "group" else k: x for k, x in how.items()}
            got = call(*parts, **where, **options)
            expected = distributed.shard(want, **cut)
            what = f"{name}, {length} rows, packed {packed}, causal {causal}, {ranks} ranks"
            assert torch.equal(got == 0, expected == 0), what
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-7, msg=what)
            checked += 1
    return checked


def run_rank(rank: int, ranks: int, store: str, few: bool) -> int:
    join(rank, ranks, store, 60)
    checked = check(ranks, few)
    leave()
    if rank == 0:
        print(f"{checked} masks of calls on {ranks} ranks equal those of one process", flush=True)
    return 0


def main() -> int:
    found = []
    few = "--few" in sys.argv
    for ranks in (int(word) for word in sys.argv[1:] if word != "--few"):
        found += fork(ranks, lambda rank, store, ranks=ranks: run_rank(rank, ranks, store, few))
    return int(any(found))


if __name__ == "__main__":
    sys.exit(main())
