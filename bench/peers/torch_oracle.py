"""The reference of torch_cuda.py: attention in float64 on PyTorch, one head at a time.

Plain formulas of docs/semantics.md on blocks of rows; it shares no code with the library. The naive
evaluation uses the same formulas in float32 with the roundings of a kernel with 16-bit products (P,
dS and the results). Its error is the cost of the precision itself.

The naive error is one random draw of the operands' rounding errors. A kernel scales its operands
differently, so its error is another draw; the tolerance adds six standard deviations (derived in
harness/compare.hpp). A rounded operand (P, dS) has a relative error e, uniform in [-u, u],
of variance u^2 / 3. The variance of a sum is u^2 / 3 times the sum of the squares of its terms. All
results come from one call: gradients also contain the errors of o (of its terms and of its
rounding), through delta = do . o, which all keys of a row share.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch_cells import DTYPES, Cell, Inputs

SOFTCAP = 30.0
DROPOUT = 0.1
SEED = 0x1234_5678_9ABC
OFFSET = 7
BLOCK_ELEMENTS = 1 << 26  # elements of one matrix of scores
UNIT = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 2.0**-24}  # unit roundoffs


def philox(key: tuple[int, int], counter: tuple[Any, Any, int, int]) -> list[torch.Tensor]:
    """Philox4x32-10 (Salmon et al. 2011, section 3.3): four words of 32 bits, as int64."""
    low = 0xFFFFFFFF
    like = counter[0] + counter[1]
    c = [torch.zeros_like(like) + part for part in counter]
    k = list(key)
    for _ in range(10):
        # Products wrap around at 64 bits; both halves are still correct.
        one, two = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(two >> 32 & low) ^ c[1] ^ k[0], two & low, (one >> 32 & low) ^ c[3] ^ k[1], one & low]
        k = [(k[0] + 0x9E3779B9) & low, (k[1] + 0xBB67AE85) & low]
    return c


def kept(i: torch.Tensor, j: torch.Tensor, entry: int) -> torch.Tensor:
    """Dropout factors [rows, keys] of one (batch, head)."""
    t = max(1, math.floor(256 * (1 - DROPOUT) + 0.5))
    i, j = i[:, None].long(), j[None, :].long()
    key = (SEED & 0xFFFFFFFF, (SEED >> 32) ^ (OFFSET >> 32))
    words = philox(key, (i & ~9, j & ~9, entry, OFFSET & 0xFFFFFFFF))
    byte = ((i >> 3 & 1) << 3) | ((i & 1) << 2) | ((j >> 3 & 1) << 1) | (j & 1)
    word = torch.stack(words).gather(0, (byte >> 2)[None])[0]
    drawn = word >> (8 * (byte & 3)) & 255
    return torch.where(drawn < t, 256.0 / t, 0.0)


@dataclasses.dataclass
class Part:
    """Results of one sequence and key head, for the query heads that share it."""

    o: torch.Tensor  # [n, group, d]
    lse: torch.Tensor  # [group, n]
    dq: torch.Tensor
    dk: torch.Tensor  # [m, d]
    dv: torch.Tensor
    dbias: torch.Tensor | None  # [group, n, m]: of this sequence alone
    dsink: torch.Tensor | None  # [group]
    squares: dict[str, torch.Tensor]  # variance * 3 / unit roundoff^2; empty for naive results


def scores_of(
    cell: Cell, x: Inputs, heads: slice, s: torch.Tensor, rows: torch.Tensor, keys: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Scores of scaled products s [r, rows, keys], and their derivative by s; None if it is 1."""
    slope = None
    if cell.option == "softcap":
        bent = torch.tanh(s / SOFTCAP)
        s, slope = SOFTCAP * bent, 1 - bent * bent
    if x.slopes is not None:
        distance = (rows[:, None] - keys).abs().to(s.dtype)
        s = s - x.slopes[heads].to(s.dtype)[:, None, None] * distance
    if x.bias is not None:
        s = s + x.bias[0, heads, int(rows[0]) : int(rows[-1]) + 1].to(s.dtype)
    seen = visible(cell, x, rows, keys)
    if seen is not None:
        s = s.masked_fill(~seen, -torch.inf)
    return s, slope


def part_of(cell: Cell, x: Inputs, at: int, b: int, g: int, *, naive: bool, backward: bool) -> Part:
    """Results for set `at` of the inputs, sequence b, key head g."""
    work = torch.float32 if naive else torch.float64
    group = cell.shape.heads_q // cell.shape.heads_kv
    heads = slice(g * group, (g + 1) * group)

    def rounded(t: torch.Tensor) -> torch.Tensor:
        return t.to(DTYPES[cell.dtype]).to(work) if naive else t

    q, dout = (t[at][b, :, heads].transpose(0, 1).to(work) for t in (x.q, x.dout))  # [r, n, d]
    k, v = (t[at][b, :, g].to(work) for t in (x.k, x.v))
    (r, n, d), m = q.shape, k.shape[0]
    scale = d**-0.5
    keys = torch.arange(m, device=k.device)
    o, dq = torch.empty_like(q), torch.zeros_like(q)
    dk, dv = torch.zeros_like(k), torch.zeros_like(v)
    lse = q.new_empty(r, n)
    dbias = q.new_zeros(r, n, m) if cell.option == "bias-gradient" and backward else None
    sink = None if x.sinks is None else x.sinks[heads].to(work)[:, None, None]
    dsink = None if sink is None else q.new_zeros(r)
    named = {"o": o, "dq": dq, "dk": dk, "dv": dv, "dbias": dbias, "dsink": dsink}
    squares = {n: torch.zeros_like(t) for n, t in named.items() if t is not None and not naive}
    step = max(1, BLOCK_ELEMENTS // (m * r))
    for begin in range(0, n, step):
        rows = torch.arange(begin, min(n, begin + step), device=k.device)
        part = slice(begin, begin + len(rows))
        s, slope = scores_of(cell, x, heads, scale * (q[:, part] @ k.T), rows, keys)
        all_scores = s if sink is None else torch.cat((s, sink.expand(r, len(rows), 1)), -1)
        lse[:, part] = row_lse = torch.logsumexp(all_scores, -1)
        p = torch.exp(s - row_lse[..., None])
        factor = None
        if cell.option == "dropout":
            entry = b * cell.shape.heads_q + g * group
            factor = torch.stack([kept(rows, keys, entry + h) for h in range(r)]).to(work)
        used = rounded(p if factor is None else p * factor)
        o[:, part] = part_o = rounded(used @ v)
        if not naive:
            squares["o"][:, part] = used.square() @ v.square()
        if not backward:
            continue
        part_do = dout[:, part]
        delta = (part_do * part_o).sum(-1, keepdim=True)
        dp = part_do @ v.T
        ds = p * ((dp if factor is None else dp * factor) - delta)
        if dbias is not None:
            dbias[:, part] = ds
        if dsink is not None:
            dsink -= (torch.exp(sink - row_lse[..., None]) * delta).sum((1, 2))
        draw = rounded(ds if slope is None else ds * slope)
        dq[:, part] = scale * (draw @ k)
        dk += scale * torch.einsum("rnm,rnd->md", draw, q[:, part])
        dv += torch.einsum("rnm,rnd->md", used, part_do)
        if naive:
            continue
        of_delta = (used * dp).square().sum(-1, keepdim=True)
        of_delta += (part_do * part_o).square().sum(-1, keepdim=True)
        steep = p if slope is None else p * slope  # error of dS per error of delta
        squares["dq"][:, part] = scale**2 * (
            draw.square() @ k.square() + of_delta * (steep @ k).square()
        )
        both = draw.square() + steep.square() * of_delta
        squares["dk"] += scale**2 * torch.einsum("rnm,rnd->md", both, q[:, part].square())
        squares["dv"] += torch.einsum("rnm,rnd->md", used.square(), part_do.square())
        if dbias is not None:
            squares["dbias"][:, part] = p.square() * of_delta
        if dsink is not None:
            weight = torch.exp(sink - row_lse[..., None])
            squares["dsink"] += (weight.square() * of_delta).sum((1, 2))
    dq, dk, dv = (rounded(t) for t in (dq.transpose(0, 1), dk, dv))
    for name in squares.keys() & {"o", "dq"}:
        squares[name] = squares[name].transpose(0, 1)
    return Part(o.transpose(0, 1), lse, dq, dk, dv, dbias, dsink, squares)


def visible(cell: Cell, x: Inputs, rows: torch.Tensor, keys: torch.Tensor) -> torch.Tensor | None:
    if not cell.shape.causal:
        return None
    seen = keys <= rows[:, None]
    if cell.option.startswith("window"):
        seen &= keys >= rows[:, None] - cell.window()
    if x.kv_begin is not None:
        seen &= keys >= x.kv_begin[0, rows].long()[:, None]
    return seen


class Oracle:
    """Exact and naive results of the sampled heads for set 0 of the inputs."""

    def __init__(self, cell: Cell, x: Inputs, *, backward: bool, all_heads: bool = False) -> None:
        s = cell.shape
        self.unit = UNIT[cell.dtype]
        # The gradients of a bias and of sinks are sums over the batch.
        if all_heads:
            self.places = [(b, g) for b in range(s.batch) for g in range(s.heads_kv)]
        elif cell.option in ("bias-gradient", "sinks"):
            self.places = [(b, 0) for b in range(s.batch)]
        else:
            self.places = sorted({(0, 0), (s.batch - 1, s.heads_kv - 1)})
        self.group = s.heads_q // s.heads_kv
        self.deviation: dict[str, torch.Tensor] = {}  # caused by rounded operands
        self.exact = self._results(cell, x, False, backward)
        self.naive = self._results(cell, x, True, backward)

    def _results(
        self, cell: Cell, x: Inputs, naive: bool, backward: bool
    ) -> dict[str, torch.Tensor]:
        parts = [part_of(cell, x, 0, b, g, naive=naive, backward=backward) for b, g in self.places]
        for name in parts[0].squares:
            squares = [p.squares[name] for p in parts]
            square = sum(squares) if name in ("dbias", "dsink") else torch.stack(squares)
            self.deviation[name] = self.unit / math.sqrt(3) * square.sqrt()
        found = {name: torch.stack([getattr(p, name) for p in parts]) for name in ("o", "lse")}
        if backward:
            for name in ("dq", "dk", "dv"):
                found[name] = torch.stack([getattr(p, name) for p in parts])
            for name in ("dbias", "dsink"):
                if getattr(parts[0], name) is not None:
                    found[name] = sum(getattr(p, name) for p in parts)
            if naive and "dbias" in found:
                found["dbias"] = found["dbias"].to(DTYPES[cell.dtype])
        return found

    def chosen(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """The sampled heads, in the order and shape of `exact`."""
        if name == "dbias":  # [1, h, n, m]
            return x[0, : self.group]
        if name == "dsink":  # [h]
            return x[: self.group]
        parts = []
        for b, g in self.places:
            heads = slice(g * self.group, (g + 1) * self.group)
            if name == "lse":  # [b, h, n]
                parts.append(x[b, heads])
            else:  # [b, n, h, d]
                parts.append(x[b, :, g] if name in ("dk", "dv") else x[b, :, heads])
        return torch.stack(parts)

    def errors(self, results: dict[str, torch.Tensor]) -> dict[str, tuple[float, float]]:
        """Largest and root mean square error of each result; NaN if the result contains one."""
        found = {}
        for name, x in results.items():
            error = self.chosen(name, x).double() - self.exact[name].double()
            found[name] = float(error.abs().max()), float(error.square().mean().sqrt())
        return found

    def complaint(self, name: str, x: torch.Tensor) -> str:
        """Why a result is wrong, or "". The limit of a row is twice the row's naive error, plus six
        standard deviations of its operands' rounding, plus two roundings of its largest value."""
        exact = self.exact[name].double()
        error = (self.chosen(name, x).double() - exact).abs()
        naive = (self.naive[name].double() - exact).abs()
        size = exact.abs()
        if name == "lse":
            limit = 2 * naive.amax() + 2.0**-17 * (1 + size)
        elif name == "dsink":
            limit = 2 * naive + 6 * self.deviation[name] + 2.0**-17 * (1 + size)
        else:
            terms = 2 * naive, 6 * self.deviation[name], 2 * self.unit * size
            limit = 2.0**-20 * exact.square().mean().sqrt()  # error of f32 sums
            limit = limit + sum(t.amax(-1, keepdim=True) for t in terms)
        bad = ~(error <= limit)
        if not bad.any():
            return ""
        where = tuple(int(i) for i in bad.nonzero()[0])
        return (
            f"{name}: {int(bad.sum())} of {bad.numel()} elements are off, first {where}: error "
            f"{float(error[where]):.3g} at {float(exact[where]):.3g}, at most "
            f"{float(limit.expand_as(error)[where]):.3g} accepted"
        )
