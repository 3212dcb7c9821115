"""torch.nn.functional.scaled_dot_product_attention on libattn, and the context manager that swaps
it in.

The documentation page of PyTorch's function defines every rule here. docs/coming_from.md lists
where the two differ.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .. import Unsupported
from .._values import boolean, real, shown
from ._attention import attention
from ._schema import refuse_tracing

__all__ = ["replace_sdpa", "scaled_dot_product_attention"]

Shape: TypeAlias = "tuple[int, ...]"
_PLAIN = (Tensor, torch.nn.Parameter)


class InvalidInput(ValueError, RuntimeError):
    """A broken rule: ValueError as everywhere in libattn, RuntimeError as PyTorch raises it."""


def _refuse(rule: str, found: object, accepted: str) -> InvalidInput:
    return InvalidInput(f"scaled_dot_product_attention: {rule}: found {found}; accepted {accepted}")


def _broadcast(what: str, *shapes: Shape) -> Shape:
    if all(shape == shapes[0] for shape in shapes[1:]):
        return shapes[0]
    broadcast: Any = torch.broadcast_shapes
    try:
        return tuple(broadcast(*shapes))
    except RuntimeError:
        found = " and ".join(str(tuple(shape)) for shape in shapes)
        raise _refuse(what, found, "sizes that broadcast") from None


def _check(query: Tensor, key: Tensor, value: Tensor, dropout_p: float) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor):
            raise _refuse(f"type of {name}", shown(tensor), "a torch.Tensor")
        if tensor.is_quantized or (tensor.layout != torch.strided and not tensor.is_nested):
            raise _refuse(f"layout of {name}", tensor.layout, "strided tensors, not quantized")
        if tensor.dim() == 4 and not tensor.is_nested:
            continue
        if tensor.is_nested:
            raise Unsupported(
                f"scaled_dot_product_attention: {name} is a nested tensor; libattn.torch.attention "
                "takes packed [total, h, d] with cu_len_q and cu_len_kv"
            )
        if tensor.dim() < 2:
            raise _refuse(f"rank of {name}", tensor.dim(), "[..., length, dim], 2 or more")
    if not query.dtype == key.dtype == value.dtype and not _autocasts(query):
        found = f"{query.dtype}, {key.dtype}, {value.dtype}"
        raise _refuse("types of query, key and value", found, "one type for all")
    if not 0.0 <= dropout_p <= 1.0:
        raise _refuse("dropout_p", dropout_p, "0 to less than 1")


def _checked(check: Callable[[str, Any], Any], name: str, value: Any) -> Any:
    if isinstance(value, (torch.SymFloat, torch.SymBool)):  # noqa: UP038
        return value
    try:
        return check(name, value)
    except ValueError as error:
        raise InvalidInput(f"scaled_dot_product_attention: {error}") from None


def _autocasts(tensor: Tensor) -> bool:
    return torch.is_autocast_enabled(tensor.device.type)


def _with_heads(tensor: Tensor, rank: int) -> Tensor:
    """[..., n, d] as [..., h, n, d] of the given rank: missing dimensions have size 1."""
    missing = rank - tensor.dim()
    return tensor[(None,) * missing] if missing else tensor


def _grouped(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Key and value with one number of heads that divides the query's (enable_gqa)."""
    heads_q, heads_k, heads_v = (x.size(-3) for x in (query, key, value))
    if heads_k == 0 or heads_v == 0 or heads_q % heads_k != 0 or heads_q % heads_v != 0:
        found = f"{heads_q}, {heads_k}, {heads_v}"
        raise _refuse("heads of query, key and value", found, "heads that divide the query's")
    if heads_k == heads_v:
        return key, value
    heads = math.lcm(heads_k, heads_v)
    return (
        key.repeat_interleave(heads // heads_k, -3),
        value.repeat_interleave(heads // heads_v, -3),
    )


def _aligned(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value with heads as PyTorch broadcasts them: equal, or one head of k and v."""
    heads = query.size(-3), key.size(-3), value.size(-3)
    if heads[0] == heads[1] == heads[2]:
        return query, key, value
    (full,) = _broadcast("heads of query, key and value", *((h,) for h in heads))
    if heads[0] != full:
        query = query.expand(*query.shape[:-3], full, *query.shape[-2:])
    if heads[1] != heads[2]:
        key, value = (x.expand(*x.shape[:-3], full, *x.shape[-2:]) for x in (key, value))
    return query, key, value


def _rows(tensor: Tensor, batch: Shape) -> Tensor:
    """[..., h, n, d] as [b, n, h, d] with a contiguous last dimension.

    A view, except where batch dimensions don't merge or the last dimension is strided.
    """
    if tensor.shape[:-3] != batch:
        tensor = tensor.expand(*batch, *tensor.shape[-3:])
    if len(batch) == 0:
        tensor = tensor.unsqueeze(0)
    elif len(batch) > 1:
        tensor = tensor.flatten(0, -4)
    return _merged(tensor)


def _merged(tensor: Tensor) -> Tensor:
    """[b, h, n, d] as [b, n, h, d] with a contiguous last dimension."""
    tensor = tensor.transpose(1, 2)
    return tensor if tensor.stride(-1) == 1 or tensor.size(-1) <= 1 else tensor.contiguous()


def _pairs(mask: Tensor, batch: Shape, scores: Shape) -> Tensor:
    """A mask that broadcasts to [*batch, h, n, m] as [b|1, h|1, n|1, m|1]."""
    if mask.dim() < 2:
        raise _refuse("rank of attn_mask", mask.dim(), "2 or more: [..., n, m]")
    full = (*batch, *scores)
    missing = len(full) - mask.dim()
    sizes = zip(mask.shape, full[max(missing, 0) :], strict=True) if missing >= 0 else ()
    if missing < 0 or not all(size in (1, whole) for size, whole in sizes):
        raise _refuse("attn_mask", tuple(mask.shape), f"sizes that broadcast to {full}")
    mask = _with_heads(mask, len(full))
    if len(batch) == 0:
        mask = mask.unsqueeze(0)
    elif len(batch) > 1:
        if any(size != 1 for size in mask.shape[:-3]):
            mask = mask.expand(*batch, *mask.shape[-3:])
        mask = mask.flatten(0, -4)
    if mask.size(-1) > 1 and mask.stride(-1) not in (0, 1):
        mask = mask.contiguous()
    return mask


def _mask_options(query: Tensor, mask: Tensor, batch: Shape, scores: Shape) -> dict[str, Any]:
    if mask.dtype == torch.bool:
        return {"mask": _pairs(mask, batch, scores)}
    accepted = mask.dtype in (query.dtype, torch.float32) or _autocasts(query)
    if not mask.is_floating_point() or not accepted:
        raise _refuse("type of attn_mask", mask.dtype, f"bool, float32 or {query.dtype}")
    if query.dtype == torch.float64:
        mask = mask.to(torch.float64)
    return {"bias": _pairs(mask, batch, scores)}


def _is_causal_bias(mask: Any) -> bool:
    """Whether a mask is a CausalBias. Its module is not imported here: it loads torch._dynamo and
    sympy, 1.3 s, and no mask can be one before somebody has imported it."""
    if mask is None or type(mask) in _PLAIN:
        return False
    module: Any = sys.modules.get("torch.nn.attention.bias")
    return module is not None and isinstance(mask, module.CausalBias)


def _causal_options(bias: Any, len_q: int, len_kv: int) -> dict[str, Any]:
    """The options of a torch.nn.attention.bias.CausalBias; nothing of size n x m is made."""
    if bias.variant.name == "UPPER_LEFT":
        return {"causal": True, "diagonal": "top_left"}
    if (bias.seq_len_q, bias.seq_len_kv) != (len_q, len_kv):
        found = f"{bias.seq_len_q} x {bias.seq_len_kv}"
        raise _refuse("sizes of the CausalBias", found, f"{len_q} x {len_kv}")
    return {"causal": True, "diagonal": "bottom_right"}


def _arranged(
    query: Tensor, key: Tensor, value: Tensor, rank: int, enable_gqa: bool
) -> tuple[Tensor, Tensor, Tensor, Shape]:
    """q, k, v as [b, n, h, d] and the batch dimensions that became b."""
    if query.dim() == key.dim() == value.dim() == 4:
        if query.shape[:2] == key.shape[:2] == value.shape[:2]:
            return _merged(query), _merged(key), _merged(value), query.shape[:1]
    elif enable_gqa and min(query.dim(), key.dim(), value.dim()) < 3:
        raise _refuse("rank with enable_gqa", rank, "[..., heads, length, dim], 3 or more")
    else:
        query, key, value = (_with_heads(x, max(rank, 3)) for x in (query, key, value))
    if enable_gqa:
        key, value = _grouped(query, key, value)
    else:
        query, key, value = _aligned(query, key, value)
    batch = _broadcast("batch dimensions", query.shape[:-3], key.shape[:-3], value.shape[:-3])
    return _rows(query, batch), _rows(key, batch), _rows(value, batch), batch


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention with the signature and the meaning of PyTorch's function of this name.

    query: [..., h, n, d]; two or more dimensions, those before the last two broadcast.
    key, value: [..., g, m, d] and [..., g, m, dv].
    attn_mask: broadcasts to [..., h, n, m]: bool (True = attend) or float (added; its gradient is
        computed when it requires one), or a CausalBias of torch.nn.attention.bias.
    dropout_p: drawn from torch's generator, in steps of 1/256.
    is_causal: aligned top-left: query i sees keys 0 to i.
    scale: of the scores; None = 1 / sqrt(d).
    enable_gqa: lets g divide h.

    Returns [..., h, n, dv], a view of [..., n, h, dv] memory. Rows that see no key are 0. Copies
    are made only of tensors with a strided last dimension, if several batch dimensions don't merge
    into one, and if key and value have different numbers of heads.

    Raises ValueError (also a RuntimeError where PyTorch raises one) for a broken rule, RuntimeError
    inside torch.jit.trace, libattn.Unsupported if no backend supports the call.
    Source: the documentation of torch.nn.functional.scaled_dot_product_attention.
    """
    if not torch.compiler.is_compiling():
        refuse_tracing("scaled_dot_product_attention")
    dropout_p = _checked(real, "dropout_p", dropout_p)
    is_causal = _checked(boolean, "is_causal", is_causal)
    enable_gqa = _checked(boolean, "enable_gqa", enable_gqa)
    scale = None if scale is None else _checked(real, "scale", scale)
    _check(query, key, value, dropout_p)
    if not (attn_mask is None or isinstance(attn_mask, Tensor)):
        raise _refuse(
            "type of attn_mask", shown(attn_mask), "a torch.Tensor, a CausalBias, or None"
        )
    if is_causal and attn_mask is not None:
        raise _refuse("attn_mask with is_causal", "both", "one of them")
    rank = max(query.dim(), key.dim(), value.dim())
    q, k, v, batch = _arranged(query, key, value, rank, enable_gqa)
    options: dict[str, Any] = {}
    if _is_causal_bias(attn_mask):
        options = _causal_options(attn_mask, q.size(1), k.size(1))
    elif attn_mask is not None:
        options = _mask_options(query, attn_mask, batch, (q.size(2), q.size(1), k.size(1)))
    elif is_causal:
        options = {"causal": True, "diagonal": "top_left"}
    # Without options the call takes a shorter way.
    if dropout_p != 0.0:
        options["dropout_p"] = dropout_p
    if scale is not None:
        options["scale"] = scale
    out = attention(q, k, v, **options)
    assert isinstance(out, Tensor)
    out = out.transpose(1, 2)
    if len(batch) > 1:
        return out.view(*batch, *out.shape[1:])
    if len(batch) == 0:
        return out.squeeze(0) if rank > 2 else out.squeeze(0).squeeze(0)
    return out


# Functions that were replaced, oldest first: one cell for each replace_sdpa() that is entered.
_replaced: list[list[Any]] = []
_replacing = threading.Lock()


@contextmanager
def replace_sdpa() -> Iterator[None]:
    """Inside it, torch.nn.functional.scaled_dot_product_attention is libattn's function.

    Whatever looks the function up when it runs goes through libattn: nn.MultiheadAttention (its
    fused inference path aside: torch.backends.mha.set_fastpath_enabled(False)), transformers' sdpa.
    A name that was imported before ("from torch.nn.functional import ...") keeps its function.
    Compile inside it what is to run inside it.

    Nestable, also as a decorator. The replacement is seen by all threads of the process; entering
    and leaving from several threads in any order is safe: the original is back when all have left.
    """
    functional: Any = torch.nn.functional
    with _replacing:
        cell = [functional.scaled_dot_product_attention]
        _replaced.append(cell)
        functional.scaled_dot_product_attention = scaled_dot_product_attention
    try:
        yield
    finally:
        with _replacing:
            at = next(i for i, entered in enumerate(_replaced) if entered is cell)
            if at + 1 < len(_replaced):
                _replaced[at + 1][0] = cell[0]
            else:
                functional.scaled_dot_product_attention = cell[0]
            del _replaced[at]
