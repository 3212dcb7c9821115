"""Ring attention: keys and values travel, queries and results stay.

Liu, Zaharia, Abbeel 2023, Ring Attention with Blockwise Transformers, section 3. Each rank
computes its queries against each block of keys that passes by, and merges the partial results in
f32 by their lse. The next block is under way while the present one is computed. In the backward dk
and dv follow their keys in f32: each rank adds its part, the last one returns them to their owner.
The order of these sums depends on the ranks alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import libattn

from . import _transport
from ._blocks import Piece
from ._call import (
    Call,
    local_bound,
    lse_rows_of,
    options_of,
    pairs_of,
    rows_of,
    shift_of,
    unbatched,
    wide,
)
from ._layout import Segment
from ._transport import Message, Pending

# Tags of messages: what two ranks send each other at the same time must differ.
_KEYS, _GRADIENTS, _HOME = 0, 2, 4


def _tag(kind: int, direction: int) -> int:
    return kind + (direction < 0)


# Overloads and optional arguments by name: not for mypy.
_attention: Any = libattn.attention
_merge: Any = libattn.merge
_attention_backward: Any = libattn.attention_backward


def _out_type(dtype: torch.dtype) -> Any:
    return None if dtype == torch.float64 else torch.float32


def merge_into(o: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> None:
    """Adds a partial result over other keys, in place; in PyTorch where libattn does not run."""
    if o.is_cpu or o.is_cuda:
        _merge(o, lse, other, other_lse, out=o, lse_out=lse)
        return
    both = torch.logaddexp(lse, other_lse)
    nothing = torch.isneginf(both)
    one, two = (
        torch.exp(x - both).masked_fill_(nothing, 0).transpose(1, 2).unsqueeze(3)
        for x in (lse, other_lse)
    )
    o.mul_(one).addcmul_(other, two)
    lse.copy_(both)


# --- one block ----------------------------------------------------------------------------------


@dataclass
class _Results:
    """Partial results of this rank's queries: o [b, n, h, dim_vo] and lse [b, h, n], wide."""

    o: Tensor
    lse: Tensor
    begun: set[int] = field(default_factory=set)  # `at` of the segments that hold results

    def place(self, qs: Segment) -> dict[str, Tensor]:
        return {"out": rows_of(self.o, qs), "lse_out": lse_rows_of(self.lse, qs)}

    def begin(self, call: Call, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None) -> None:
        """The sinks, as the result over no keys at all."""
        if sinks is None:
            return
        for qs in call.queries():
            nothing = Segment(0, 0, 0, 1)
            options = {name: call.numbers[name] for name in ("scale",) if name in call.numbers}
            if "len_q" in call.tensors:
                options["len_q"] = local_bound(call.tensors["len_q"], qs)
            empty = (rows_of(k, nothing), rows_of(v, nothing))
            _attention(
                rows_of(q, qs), *empty, sinks=sinks, return_lse=True, **self.place(qs), **options
            )
            outside = call.outside(qs)
            if outside is not None:
                lse_rows_of(self.lse, qs).masked_fill_(outside, -torch.inf)
            self.begun.add(qs.at)

    def add(
        self, call: Call, q: Tensor, k: Tensor, v: Tensor, owner: int, bias: Tensor | None
    ) -> None:
        """The keys of a rank."""
        for qs, ks, piece in call.pieces(owner):
            options = options_of(call, piece, qs, ks, q.device)
            if bias is not None:
                options["bias"] = pairs_of(bias, piece, qs, ks)
            parts = (rows_of(q, qs), rows_of(k, ks), rows_of(v, ks))
            self._merge(piece, parts, options, qs, shift_of(call, piece))

    def _merge(
        self, piece: Piece, parts: Any, options: Any, qs: Segment, shift: Tensor | None
    ) -> None:
        kind = _out_type(parts[0].dtype)
        parts = unbatched(piece, *parts)
        out, lse_out = self.place(qs).values()
        if qs.at not in self.begun:
            place = dict(zip(("out", "lse_out"), unbatched(piece, out, lse_out), strict=True))
            _attention(*parts, return_lse=True, **place, **options)
            if shift is not None:
                lse_out += shift
            self.begun.add(qs.at)
            return
        o, lse = _attention(*parts, return_lse=True, out_dtype=kind, **options)
        if piece.packed is not None:
            o, lse = o[None], lse[None]
        if shift is not None:
            lse += shift
        merge_into(out, lse_out, o, lse)

    def finish(self, call: Call) -> None:
        """Rows that no block reached."""
        for qs in call.queries():
            if qs.at not in self.begun:
                rows_of(self.o, qs).zero_()
                lse_rows_of(self.lse, qs).fill_(-torch.inf)


@dataclass
class _Gradients:
    """Sums of gradients, wide: dq [b, n, h, dim_qk], dbias shaped like bias, dsink [h]."""

    dq: Tensor | None
    dbias: Tensor | None

    def add(
        self,
        call: Call,
        saved: Saved,
        k: Tensor,
        v: Tensor,
        owner: int,
        dkv: tuple[Tensor, Tensor] | None,
    ) -> None:
        """The keys of a rank; their gradients are added to dkv."""
        for qs, ks, piece in call.pieces(owner):
            self._piece(call, saved, (k, v), dkv, qs, ks, piece)

    def _piece(
        self,
        call: Call,
        saved: Saved,
        kv: tuple[Tensor, Tensor],
        dkv: tuple[Tensor, Tensor] | None,
        qs: Segment,
        ks: Segment,
        piece: Piece,
    ) -> None:
        options = options_of(call, piece, qs, ks, saved.q.device)
        outputs: dict[str, Tensor] = {}
        if self.dq is not None:
            (outputs["dq"],) = unbatched(piece, rows_of(self.dq, qs))
        if dkv is not None:
            outputs["dk"], outputs["dv"] = unbatched(piece, *(rows_of(x, ks) for x in dkv))
        if saved.bias is not None:
            options["bias"] = pairs_of(saved.bias, piece, qs, ks)
        if self.dbias is not None:
            part = pairs_of(self.dbias, piece, qs, ks)
            outputs["dbias"] = torch.zeros_like(part, memory_format=torch.contiguous_format)
        lse = lse_rows_of(saved.lse, qs)
        shift = shift_of(call, piece)
        _attention_backward(
            *unbatched(piece, rows_of(saved.dout, qs), rows_of(saved.q, qs)),
            *unbatched(piece, *(rows_of(x, ks) for x in kv)),
            None,
            *unbatched(piece, lse if shift is None else lse - shift),
            delta=unbatched(piece, lse_rows_of(saved.delta, qs))[0],
            want=tuple(outputs),
            accumulate=True,
            **outputs,
            **options,
        )
        if self.dbias is not None:
            part += outputs["dbias"]


# --- travel -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Arrival:
    """A block of keys at this rank: its owner, its buffer, its direction and hops so far."""

    owner: int
    buffer: Tensor
    direction: int
    hops: int


def _travel(call: Call, own: Tensor, k: Tensor, v: Tensor) -> Iterator[list[_Arrival]]:
    """The blocks of each step, this rank's own first. The next step's are under way meanwhile."""
    group, plan = call.group, call.routes
    held = {direction: _Arrival(group.rank, own, direction, 0) for direction in (1, -1)}
    present = [held[1]]
    for step in range(plan.steps + 1):
        messages, coming = [], {}
        for direction in (1, -1):
            ahead = (group.rank + direction) % group.size
            behind = (group.rank - direction) % group.size
            block = held.get(direction)
            tag = _tag(_KEYS, direction)
            if block is not None and plan.hops(direction, block.owner) > step:
                messages.append(Message(block.buffer, ahead, tag, True))
            owner = (group.rank - direction * (step + 1)) % group.size
            if plan.hops(direction, owner) > step:
                buffer = call.form(k, v, owner).empty(k.device)
                messages.append(Message(buffer, behind, tag, False))
                coming[direction] = _Arrival(owner, buffer, direction, step + 1)
        pending = _transport.start(group, "kv", messages)
        yield present
        pending.wait()
        held, present = coming, list(coming.values())


class _Homeward:
    """Sums of dk and dv that travel behind their keys."""

    def __init__(self, call: Call, k: Tensor, v: Tensor) -> None:
        self.call, self.k, self.v = call, k, v
        self.form = call.form(k, v, call.group.rank, wide(k.dtype))
        self.own = self.form.empty(k.device, zero=True)
        self.pending: Pending | None = None
        self.behind: dict[int, Tensor] = {}  # sums for this step's blocks, by direction
        self.home: list[Tensor] = []

    def of(self, owner: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """A buffer of zeros for a rank's dk and dv, and views of them."""
        if owner == self.call.group.rank:
            buffer, form = self.own, self.form
        else:
            form = self.call.form(self.k, self.v, owner, wide(self.k.dtype))
            buffer = form.empty(self.k.device, zero=True)
        dk, dv = form.tensors(buffer)
        return buffer, (dk, dv)

    def collect(self) -> None:
        """Waits for the sums of the step before; adds those of this rank's own keys."""
        if self.pending is not None:
            self.pending.wait()
        for buffer in self.home:
            self._add(self.own, buffer)
        self.home = []

    def _add(self, to: Tensor, buffer: Tensor) -> None:
        kind = wide(self.k.dtype)
        size = kind.itemsize
        whole = to.numel() // size * size
        to[:whole].view(kind).add_(buffer[:whole].view(kind))

    def send(self, step: int, made: list[tuple[_Arrival, Tensor]]) -> None:
        """After the blocks of a step: their sums go on, or home from the last rank of the route."""
        self.collect()
        group, plan = self.call.group, self.call.routes
        messages = []
        for block, buffer in made:
            if block.hops == 0:
                continue
            if block.direction in self.behind:
                self._add(buffer, self.behind[block.direction])
            last = plan.hops(block.direction, block.owner) == block.hops
            to = block.owner if last else (group.rank + block.direction) % group.size
            tag = _tag(_HOME if last else _GRADIENTS, block.direction)
            messages.append(Message(buffer, to, tag, True))
        self.behind = {}
        for direction in (1, -1):
            hops = plan.hops(direction, group.rank)
            if hops == step > 0:
                buffer = self.form.empty(self.k.device)
                last_rank = (group.rank + direction * hops) % group.size
                messages.append(Message(buffer, last_rank, _tag(_HOME, direction), False))
                self.home.append(buffer)
            owner = (group.rank - direction * (step + 1)) % group.size
            if step > 0 and plan.hops(direction, owner) > step:
                form = self.call.form(self.k, self.v, owner, wide(self.k.dtype))
                buffer = form.empty(self.k.device)
                before = (group.rank - direction) % group.size
                messages.append(Message(buffer, before, _tag(_GRADIENTS, direction), False))
                self.behind[direction] = buffer
        self.pending = _transport.start(group, "dkv", messages)


# --- the passes ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Saved:
    """What the backward reads; dout, delta and lse are those of all keys."""

    q: Tensor
    k: Tensor
    v: Tensor
    lse: Tensor
    dout: Tensor
    delta: Tensor
    bias: Tensor | None
    sinks: Tensor | None


def forward(
    call: Call, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, sinks: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(o [b, n, h, dim_vo], lse [b, h, n]), wide, of this rank's queries over all ranks' keys."""
    batch, rows, heads = q.shape[:3]
    kind = wide(q.dtype)
    made = _Results(
        q.new_empty((batch, rows, heads, v.size(3)), dtype=kind),
        q.new_empty((batch, heads, rows), dtype=kind),
    )
    made.begin(call, q, k, v, sinks)
    travels = call.routes.steps > 0
    own = call.form(k, v, call.group.rank).pack([k, v]) if travels else k.new_empty(0)
    for blocks in _travel(call, own, k, v):
        for block in blocks:
            kv = [k, v]
            if block.hops:
                kv = call.form(k, v, block.owner).tensors(block.buffer)
            made.add(call, q, kv[0], kv[1], block.owner, bias)
    made.finish(call)
    return made.o, made.lse


def backward(call: Call, saved: Saved, want: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
    """(dq, dk, dv, dbias, dsink), wide; None where `want` is False. dbias and dsink are the sums
    over this rank's queries."""
    q, k, v, bias, sinks = saved.q, saved.k, saved.v, saved.bias, saved.sinks
    kind = wide(q.dtype)
    made = _Gradients(
        torch.zeros(q.shape, dtype=kind, device=q.device) if want[0] else None,
        torch.zeros(bias.shape, dtype=kind, device=q.device)
        if want[3] and bias is not None
        else None,
    )
    home = _Homeward(call, k, v) if want[1] or want[2] else None
    travels = call.routes.steps > 0
    own = call.form(k, v, call.group.rank).pack([k, v]) if travels else k.new_empty(0)
    for step, blocks in enumerate(_travel(call, own, k, v)):
        sums = []
        for block in blocks:
            kv = [k, v]
            if block.hops:
                kv = call.form(k, v, block.owner).tensors(block.buffer)
            dkv = None
            if home is not None:
                buffer, dkv = home.of(block.owner)
                sums.append((block, buffer))
            made.add(call, saved, kv[0], kv[1], block.owner, dkv)
        if home is not None:
            home.send(step, sums)
    dk = dv = None
    if home is not None:
        home.collect()
        dk, dv = home.form.tensors(home.own)
    dsink = _sink_gradient(saved) if want[4] and sinks is not None else None
    return made.dq, dk if want[1] else None, dv if want[2] else None, made.dbias, dsink


def _sink_gradient(saved: Saved) -> Tensor:
    """-sum exp(sink_h - lse_i) * delta_i over rows that have a result: [h]."""
    assert saved.sinks is not None
    hidden = torch.isneginf(saved.lse)
    weight = torch.exp(saved.sinks[None, :, None] - saved.lse).masked_fill(hidden, 0)
    return -(weight * saved.delta.masked_fill(hidden, 0)).sum((0, 2))
