"""Ring attention: keys and values travel, queries and results stay.

Liu, Zaharia, Abbeel 2023, Ring Attention with Blockwise Transformers, section 3. Each rank
computes its queries against each block of keys that passes by, and merges the partial results in
f32 by their lse. The next block is under way while the present one is computed. In the backward dk
and dv follow their keys in f32: each rank adds its part, the last one returns them to their owner.
The order of these sums depends on the ranks alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

import libattn

from .. import Origin
from . import _transport
from ._blocks import Band, Piece, pieces
from ._groups import Group
from ._layout import Segment, segments
from ._routes import Routes, routes
from ._transport import Form, Message, Pending

# Tags of messages: what two ranks send each other at the same time must differ.
_KEYS, _GRADIENTS, _HOME = 0, 2, 4


def _tag(kind: int, direction: int) -> int:
    return kind + (direction < 0)


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

    @property
    def routes(self) -> Routes:
        return routes(self.layout, self.lengths_q, self.lengths_kv, self.band)

    def queries(self) -> tuple[Segment, ...]:
        return segments(self.layout, self.lengths_q, self.group.rank)

    def keys(self, owner: int) -> tuple[Segment, ...]:
        return segments(self.layout, self.lengths_kv, owner)

    def form(self, k: Tensor, v: Tensor, owner: int, dtype: torch.dtype | None = None) -> Form:
        """The buffer of a rank's keys and values, or of their gradients."""
        rows = self.lengths_kv[owner]
        shapes = tuple((x.size(0), rows, *x.shape[2:]) for x in (k, v))
        return Form(shapes, (dtype or k.dtype, dtype or v.dtype))

    def with_options(self, **tensors: Tensor) -> Call:
        return replace(self, tensors={**self.tensors, **tensors})


# Overloads and optional arguments by name: not for mypy.
_attention: Any = libattn.attention
_merge: Any = libattn.merge
_attention_backward: Any = libattn.attention_backward


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type of partial results and of sums of gradients."""
    return torch.float64 if dtype == torch.float64 else torch.float32


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


def _rows_and_columns(x: Tensor, qs: Segment, ks: Segment) -> Tensor:
    """The part of a mask, bias or dbias [b|1, h|1, rows of the rank|1, all keys|1] for a block."""
    if x.size(2) > 1:
        x = x[:, :, qs.at : qs.at + qs.size]
    if x.size(3) > 1:
        x = x[:, :, :, ks.start : ks.start + ks.size * ks.step : ks.step]
    return x


def _local(bound: Tensor, part: Segment) -> Tensor:
    """A global bound of keys (or a length) counted in the rows of a segment: i32."""
    local = torch.div(bound.long() - part.start + part.step - 1, part.step, rounding_mode="floor")
    return local.clamp(0, part.size).to(torch.int32)


def _options(call: Call, piece: Piece, qs: Segment, ks: Segment) -> dict[str, Any]:
    """The options of libattn.attention for a piece of a block, without bias and sinks."""
    options = {**call.numbers, **piece.options}
    given = call.tensors
    for name in ("descale_q", "descale_k", "descale_v"):
        if name in given:
            options[name] = given[name]
    for name in ("kv_begin", "kv_end"):
        if name in given:
            options[name] = _local(given[name][:, qs.at : qs.at + qs.size], ks)
    for name, part in (("len_q", qs), ("len_kv", ks)):
        if name in given:
            options[name] = _local(given[name], part)
    if "mask" in given:
        options["mask"] = _rows_and_columns(given["mask"], qs, ks)
    if "alibi_slopes" in given:
        slopes = given["alibi_slopes"]
        options["alibi_slopes"] = slopes if piece.slopes == 1 else slopes * piece.slopes
    if options.get("dropout_p"):
        at = call.origin
        options["origin"] = replace(at, q=at.q + qs.start, kv=at.kv + ks.start)
    return options


def _shift(call: Call, piece: Piece) -> Tensor | None:
    """What a piece's lse lacks, [b|1, h, 1]."""
    if piece.shift == 0:
        return None
    slopes = call.tensors["alibi_slopes"]
    return (slopes if slopes.dim() == 2 else slopes[None])[:, :, None] * piece.shift


def _part(x: Tensor, segment: Segment) -> Tensor:
    return x[:, segment.at : segment.at + segment.size]


def _lse_part(x: Tensor, segment: Segment) -> Tensor:
    return x[:, :, segment.at : segment.at + segment.size]


@dataclass
class _Results:
    """Partial results of this rank's queries: o [b, n, h, dim_vo] and lse [b, h, n], wide."""

    o: Tensor
    lse: Tensor
    begun: set[int] = field(default_factory=set)  # `at` of the segments that hold results

    def place(self, qs: Segment) -> dict[str, Tensor]:
        return {"out": _part(self.o, qs), "lse_out": _lse_part(self.lse, qs)}

    def begin(self, call: Call, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None) -> None:
        """The sinks, as the result over no keys at all."""
        if sinks is None:
            return
        for qs in call.queries():
            nothing = Segment(0, 0, 0, 1)
            options = {name: call.numbers[name] for name in ("scale",) if name in call.numbers}
            if "len_q" in call.tensors:
                options["len_q"] = _local(call.tensors["len_q"], qs)
            empty = (_part(k, nothing), _part(v, nothing))
            _attention(
                _part(q, qs), *empty, sinks=sinks, return_lse=True, **self.place(qs), **options
            )
            self.begun.add(qs.at)

    def add(
        self, call: Call, q: Tensor, k: Tensor, v: Tensor, owner: int, bias: Tensor | None
    ) -> None:
        """The keys of a rank."""
        for qs in call.queries():
            for ks in call.keys(owner):
                for piece in pieces(call.band, qs, ks):
                    options = _options(call, piece, qs, ks)
                    if bias is not None:
                        options["bias"] = _rows_and_columns(bias, qs, ks)
                    parts = (_part(q, qs), _part(k, ks), _part(v, ks))
                    self._merge(parts, options, qs, _shift(call, piece))

    def _merge(self, parts: Any, options: Any, qs: Segment, shift: Tensor | None) -> None:
        place = self.place(qs)
        if qs.at not in self.begun:
            _attention(*parts, return_lse=True, **place, **options)
            if shift is not None:
                place["lse_out"] += shift
            self.begun.add(qs.at)
            return
        kind = _out_type(parts[0].dtype)
        o, lse = _attention(*parts, return_lse=True, out_dtype=kind, **options)
        if shift is not None:
            lse += shift
        merge_into(place["out"], place["lse_out"], o, lse)

    def finish(self, call: Call) -> None:
        """Rows that no block reached."""
        for qs in call.queries():
            if qs.at not in self.begun:
                _part(self.o, qs).zero_()
                _lse_part(self.lse, qs).fill_(-torch.inf)


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
        for qs in call.queries():
            for ks in call.keys(owner):
                for piece in pieces(call.band, qs, ks):
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
        options = _options(call, piece, qs, ks)
        outputs: dict[str, Tensor] = {}
        if self.dq is not None:
            outputs["dq"] = _part(self.dq, qs)
        if dkv is not None:
            outputs["dk"], outputs["dv"] = (_part(x, ks) for x in dkv)
        if saved.bias is not None:
            options["bias"] = _rows_and_columns(saved.bias, qs, ks)
        if self.dbias is not None:
            part = _rows_and_columns(self.dbias, qs, ks)
            outputs["dbias"] = torch.zeros_like(part, memory_format=torch.contiguous_format)
        lse = _lse_part(saved.lse, qs)
        shift = _shift(call, piece)
        _attention_backward(
            _part(saved.dout, qs),
            _part(saved.q, qs),
            *(_part(x, ks) for x in kv),
            None,
            lse if shift is None else lse - shift,
            delta=_lse_part(saved.delta, qs),
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
