"""From transformers' mask functions to one interval of visible keys per query.

transformers describes a mask by a function (batch, head, q, kv) -> bool, put together from few
parts: causal, sliding window, chunks, packed documents. In each of them the keys that a query sees
lie side by side, so two numbers a query say all: kv_begin and kv_end. A part is known by the code
of the function that transformers made it with; a function that isn't known is evaluated, a block
of rows at a time, so that its mask never exists as a whole.

Positions q and kv are those of the sequence; transformers adds the cache's offsets before.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor
from transformers import masking_utils

MaskFunction = Callable[..., Any]

# Elements of the largest piece of a mask that `evaluate` makes at a time.
_EVALUATED_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class Interval:
    """Visible keys are begin <= kv < end. Tensors i64 [batch | 1, len_q]; None = no bound."""

    begin: Tensor | None = None
    end: Tensor | None = None

    def __and__(self, other: Interval) -> Interval:
        return Interval(
            _both(torch.maximum, self.begin, other.begin), _both(torch.minimum, self.end, other.end)
        )


@dataclass(frozen=True)
class Queries:
    """The queries that a mask covers.

    positions: i64 [batch | 1, len_q] in the sequence. rows: the same where packed documents have
    not restarted the count.
    """

    positions: Tensor
    rows: Tensor


Rule = Callable[[dict[str, Any], Queries], Interval]


class NotKnown(Exception):
    """The mask function isn't one of transformers' own interval patterns."""


def recognise(function: MaskFunction, queries: Queries) -> Interval:
    """The interval of each query under `function`. Raises NotKnown."""
    if function is masking_utils.causal_mask_function:
        return Interval(end=queries.positions + 1)
    if function is masking_utils.bidirectional_mask_function:
        return Interval()
    rule = _rule_of(function)
    if rule is None or not isinstance(function, FunctionType):
        raise NotKnown
    try:
        return rule(_captured(function), queries)
    except KeyError as error:
        raise NotKnown from error


def _rule_of(function: MaskFunction) -> Rule | None:
    code = getattr(function, "__code__", None)
    for known, rule in _RULES:
        if known is code:
            return rule
    return None


def is_packed(function: MaskFunction) -> bool:
    """Whether `function` keeps packed documents apart."""
    if not _is_made_by(function, "and_masks") or not isinstance(function, FunctionType):
        return False
    parts = _captured(function).get("mask_functions", ())
    return any(_is_made_by(part, "packed_sequence_mask_function") for part in parts)


def evaluate(
    function: MaskFunction, batch: int, rows: Tensor, keys: Tensor, use_vmap: bool
) -> Interval | None:
    """The interval of each query by asking for every pair; None if some query sees no interval.

    rows i64 [len_q], keys i64 [len_kv]: positions. The interval is in positions.
    """
    len_q, len_kv = rows.numel(), keys.numel()
    step = max(1, _EVALUATED_AT_ONCE // max(1, batch * len_kv))
    begins, ends = [], []
    for start in range(0, len_q, step):
        visible = _pairs(function, batch, rows[start : start + step], keys, use_vmap)
        count = visible.sum(-1)
        as_numbers = visible.to(torch.uint8)
        first = as_numbers.argmax(-1)
        last = len_kv - as_numbers.flip(-1).argmax(-1)
        if bool(((count > 0) & (last - first != count)).any()):
            return None
        begins.append(keys[0] + first)
        ends.append(keys[0] + first + count)
    return Interval(torch.cat(begins, -1), torch.cat(ends, -1))


def _pairs(
    function: MaskFunction, batch: int, rows: Tensor, keys: Tensor, use_vmap: bool
) -> Tensor:
    """bool [batch, len_q, len_kv]: transformers' own two ways of calling a mask function."""
    batches = torch.arange(batch, device=rows.device)
    heads = torch.zeros(1, dtype=torch.int64, device=rows.device)
    if use_vmap:
        from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

        with TransformGetItemToIndex():
            visible = masking_utils._vmap_expansion_sdpa(function)(batches, heads, rows, keys)
    else:
        visible = function(
            batches[:, None, None, None],
            heads[None, :, None, None],
            rows[None, None, :, None],
            keys[None, None, None, :],
        )
    full: Tensor = visible.expand(batch, 1, rows.numel(), keys.numel())[:, 0]
    return full


def _both(pick: Callable[[Tensor, Tensor], Tensor], a: Tensor | None, b: Tensor | None) -> Any:
    if a is None or b is None:
        return b if a is None else a
    return pick(a, b)


def _captured(function: FunctionType) -> dict[str, Any]:
    """The variables that a mask function closes over."""
    cells = function.__closure__ or ()
    names = function.__code__.co_freevars
    return {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)}


def _causal_window(captured: dict[str, Any], queries: Queries) -> Interval:
    return Interval(begin=queries.positions - captured["sliding_window"] + 1)


def _two_sided_window(captured: dict[str, Any], queries: Queries) -> Interval:
    window = captured["sliding_window"]
    return Interval(queries.positions - window, queries.positions + window + 1)


def _chunk(captured: dict[str, Any], queries: Queries) -> Interval:
    size = captured["chunk_size"]
    padding = captured["left_padding"].to(queries.positions.device)[:, None]
    begin = queries.positions - torch.remainder(queries.positions - padding, size)
    return Interval(begin, begin + size)


def _intersection(captured: dict[str, Any], queries: Queries) -> Interval:
    parts = captured["mask_functions"]
    packed = any(_is_made_by(part, "packed_sequence_mask_function") for part in parts)
    interval = Interval()
    for part in parts:
        if _is_made_by(part, "remap_positions_for_packed_sequence"):
            # Counted from each document's start: right inside documents only.
            if not packed:
                raise NotKnown
            interval = interval & _restarted(_captured(part), queries)
        else:
            interval = interval & recognise(part, queries)
    return interval


def _document(captured: dict[str, Any], queries: Queries) -> Interval:
    """Rows of the same number lie side by side: the numbers are a running count."""
    numbers = captured["packed_sequence_mask"].contiguous()
    return Interval(
        torch.searchsorted(numbers, numbers), torch.searchsorted(numbers, numbers, right=True)
    )


def _restarted(captured: dict[str, Any], queries: Queries) -> Interval:
    """A pattern in positions that restart with each document, back in rows.

    Inside a document row and position differ by a constant.
    """
    positions = captured["position_ids"].to(torch.int64)
    inner = recognise(captured["mask_function"], Queries(positions, queries.rows))
    shift = queries.rows - positions
    return Interval(
        None if inner.begin is None else inner.begin + shift,
        None if inner.end is None else inner.end + shift,
    )


def _inner_code(factory: str) -> CodeType | None:
    """The code of the function that transformers' `factory` returns."""
    code = getattr(inspect.unwrap(getattr(masking_utils, factory, len)), "__code__", None)
    # Other code objects: generator expressions ("<genexpr>") and, from Python 3.14 on, annotations.
    inner = [
        part
        for part in getattr(code, "co_consts", ())
        if isinstance(part, CodeType) and not part.co_name.startswith(("<", "__"))
    ]
    return inner[0] if len(inner) == 1 else None


def _is_made_by(function: MaskFunction, factory: str) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and code is _inner_code(factory)


# No dict by code: torch.compile guards on each element that it reads, and torch 2.11's guard on an
# element with such a key is no valid Python.
_RULES: tuple[tuple[CodeType, Rule], ...] = tuple(
    (code, rule)
    for factory, rule in (
        ("and_masks", _intersection),
        ("sliding_window_overlay", _causal_window),
        ("sliding_window_bidirectional_overlay", _two_sided_window),
        ("chunked_overlay", _chunk),
        ("packed_sequence_mask_function", _document),
    )
    if (code := _inner_code(factory)) is not None
)
