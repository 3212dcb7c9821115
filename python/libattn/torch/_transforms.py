"""Batching rules of attention for torch.vmap and torch.func.

A vmapped dimension of size V becomes part of the batch, sequence `v * b + i` for entry v, so that V
calls are one. Where options can't follow (see `_LOOPED`), each entry is a call of its own. Both
rules take arguments with `in_dims`, the vmapped dimension of each or None, and return outputs whose
vmapped dimension is the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ._schema import BIAS, DESCALES, INDEX, SINKS, TENSORS, Flat, empty_results, last_contiguous

MASK = INDEX["mask"]
_SLOPES = INDEX["alibi_slopes"]
# Which options make a loop where they are given, and where they have the vmapped dimension. Dropout
# draws by the number of a sequence, which is another one in a larger batch; packed sequences would
# have to be cut at the totals.
_LOOPED = tuple(INDEX[name] for name in ("cu_len_q", "cu_len_kv", "seed", "offset"))
_LOOPED_IF_BATCHED = (SINKS, INDEX["rope_cos"], INDEX["rope_sin"])


def refuse_functionalize() -> None:
    """Refuses torch.func.functionalize, which PyTorch can't apply to functions with rules of their
    own."""
    stack = torch._C._functorch.get_interpreter_stack() or ()
    if any(one.key() == torch._C._functorch.TransformType.Functionalize for one in stack):
        raise RuntimeError(
            "libattn: attention can't be transformed by torch.func.functionalize; accepted: "
            "torch.export, torch.compile"
        )


def _first(x: Tensor, dim: int | None, size: int) -> Tensor:
    """x with the vmapped dimension in front; expanded along it if x has none."""
    return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)


def _merged(x: Tensor, dim: int | None, size: int) -> Tensor:
    """[V, b, ...] as [V * b, ...]: a view where the strides allow it."""
    x = _first(x, dim, size)
    return x.reshape(size * x.size(1), *x.shape[2:])


def _merged_pairs(x: Tensor, dim: int | None, size: int, batch: int) -> Tensor | None:
    """A mask or bias of the merged batch, None where that would take copies for each sequence."""
    if dim is None:
        return x if x.size(0) == 1 else None
    entries = x.size(1 if dim == 0 else 0)
    if batch == 0 or entries == 0 or batch % entries != 0:
        return None
    x = _merged(x, dim, size)
    return x if x.size(-1) <= 1 or x.stride(-1) in (0, 1) else x.contiguous()


def _merged_options(
    tensors: Flat, dims: Flat, size: int, batch: int, heads: int
) -> list[Tensor | None] | None:
    """The tensors among the options for the merged batch, or None: only a loop can serve them."""
    if any(tensors[at] is not None for at in _LOOPED):
        return None
    if any(dims[at] is not None for at in _LOOPED_IF_BATCHED):
        return None
    merged: list[Tensor | None] = []
    for at, (x, dim) in enumerate(zip(tensors, dims, strict=True)):
        if x is None or at in _LOOPED_IF_BATCHED:
            merged.append(x)
        elif at in (BIAS, MASK):
            pairs = _merged_pairs(x, dim, size, batch)
            if pairs is None:
                return None
            merged.append(pairs)
        elif at == _SLOPES:
            merged.append(_merged_slopes(x, dim, size, batch, heads))
        elif x.dim() == 2 and dim is None and x.size(0) == 1 and at not in DESCALES:
            merged.append(x)  # [1, n]: rows for all sequences
        elif x.dim() - (dim is not None) == 2:
            rows = _first(x, dim, size)
            rows = rows.expand(size, batch, rows.size(2))
            merged.append(rows.reshape(size * batch, rows.size(2)))
        else:
            merged.append(last_contiguous(_merged(x, dim, size)))  # lengths [b]
    return merged


def _merged_slopes(x: Tensor, dim: int | None, size: int, batch: int, heads: int) -> Tensor:
    """ALiBi's slopes [h] or [b, h] for the merged batch."""
    if dim is None and x.dim() == 1:
        return x
    rows = _first(x, dim, size)
    if rows.dim() == 2:
        rows = rows[:, None]
    return rows.expand(size, batch, heads).reshape(size * batch, heads)


def _entry(x: Any, dim: int | None, at: int) -> Any:
    return x if x is None or dim is None else x.select(dim, at)


def _contiguous_entry(x: Any, dim: int | None, at: int) -> Any:
    one = _entry(x, dim, at)
    return None if one is None else last_contiguous(one)


def _logical(x: Tensor, dim: int | None) -> list[int]:
    """The shape without the vmapped dimension."""
    shape = list(x.shape)
    if dim is not None:
        del shape[dim]
    return shape


def forward_rule(
    attend: Callable[..., Any], size: int, in_dims: Sequence[Any], arguments: Sequence[Any]
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    """libattn::forward over V entries: attend is _ops.attend."""
    q, k, v, out_dtype, *flat = arguments
    tensors, numbers = tuple(flat[:TENSORS]), tuple(flat[TENSORS:])
    dims = tuple(in_dims[4 : 4 + TENSORS])
    shape = _logical(q, in_dims[0])
    options = _merged_options(tensors, dims, size, shape[0], shape[2]) if len(shape) == 4 else None
    if options is not None:
        merged = [
            last_contiguous(_merged(x, dim, size))
            for x, dim in zip((q, k, v), in_dims[:3], strict=True)
        ]
        o, lse = attend(*merged, out_dtype, tuple(options), numbers, True)
        return (_split(o, size), _split(lse, size)), (0, 0)
    if size == 0:
        values = _logical(v, in_dims[2])
        o, lse = empty_results(q.new_empty(shape), v.new_empty(values), out_dtype)
        return (o.new_empty((0, *o.shape)), lse.new_empty((0, *lse.shape))), (0, 0)
    results = []
    for at in range(size):
        one = [_contiguous_entry(x, d, at) for x, d in zip((q, k, v), in_dims[:3], strict=True)]
        given = tuple(_entry(x, dim, at) for x, dim in zip(tensors, dims, strict=True))
        results.append(attend(*one, out_dtype, given, numbers, True))
    o, lse = (torch.stack(list(parts)) for parts in zip(*results, strict=True))
    return (o, lse), (0, 0)


def _split(x: Tensor, size: int) -> Tensor:
    """[V * b, ...] as [V, b, ...]; also with V = 0."""
    return x.view(size, x.size(0) // size if size else 1, *x.shape[1:])


def backward_rule(
    differentiate: Callable[..., Any],
    size: int,
    in_dims: Sequence[Any],
    arguments: Sequence[Any],
) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
    """libattn::backward over V entries; each entry gets gradients of its own, also for arguments
    without the vmapped dimension. differentiate takes the operator's arguments."""
    dout, dlse, q, k, v, o, lse, want, *flat = arguments
    tensors, numbers = list(flat[:TENSORS]), tuple(flat[TENSORS:])
    dims = list(in_dims[8 : 8 + TENSORS])
    shape = _logical(q, in_dims[2])
    rows = (dout, dlse, q, k, v, o, lse)
    if size and want[3]:  # one entry of the bias for each entry of its gradient
        tensors[BIAS], dims[BIAS] = _first(tensors[BIAS], dims[BIAS], size).contiguous(), 0
    looped = len(shape) != 4 or size == 0 or (want[4] and tensors[SINKS] is not None)
    options = None if looped else _merged_options(tuple(tensors), tuple(dims), size, *shape[:3:2])
    out_dims = tuple(0 if wanted else None for wanted in want)
    if options is not None:
        merged = [
            None if x is None else last_contiguous(_merged(x, dim, size))
            for x, dim in zip(rows, in_dims[:7], strict=True)
        ]
        found = differentiate(*merged, want, *options, *numbers)
        results = [_split(x, size) if w else x for x, w in zip(found, want, strict=True)]
        return tuple(results), out_dims
    if size == 0:
        return _no_gradients(arguments, in_dims), out_dims
    each = []
    for at in range(size):
        one = [_contiguous_entry(x, d, at) for x, d in zip(rows, in_dims[:7], strict=True)]
        given = [_entry(x, dim, at) for x, dim in zip(tensors, dims, strict=True)]
        each.append(differentiate(*one, want, *given, *numbers))
    stacked = [
        torch.stack([one[i] for one in each]) if w else each[0][i] for i, w in enumerate(want)
    ]
    return tuple(stacked), out_dims


def _no_gradients(arguments: Sequence[Any], in_dims: Sequence[Any]) -> tuple[Tensor, ...]:
    """Gradients of no entries."""
    want, q = arguments[7], arguments[2]
    inputs = (2, 3, 4, 8, 9)  # q, k, v, bias, sinks
    return tuple(
        arguments[i].new_empty((0, *_logical(arguments[i], in_dims[i]))) if w else q.new_empty(0)
        for i, w in zip(inputs, want, strict=True)
    )
