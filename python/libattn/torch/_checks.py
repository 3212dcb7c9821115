"""Checks of the arguments of libattn.torch, for attention and its siblings and for the drop-ins."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._convert import has_booleans, whole_numbers
from .._values import named, shown

_PAIR = (tuple, list)
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def refuse(function: str, rule: str, found: object, accepted: str) -> ValueError:
    return ValueError(f"{function}: {rule}: found {found}; accepted {accepted}")


def fixed(function: str, name: str, x: Tensor | None) -> None:
    """Refuses a tensor that requires a gradient which does not exist."""
    if x is not None and x.requires_grad and torch.is_grad_enabled():
        raise refuse(
            function,
            name,
            "a tensor that requires a gradient, and there is none for it",
            "a detached one, or torch.no_grad()",
        )


def tensor(function: str, name: str, x: Any) -> Tensor:
    """x, if it is a strided tensor."""
    if not isinstance(x, Tensor):
        raise refuse(function, name, shown(x), "a torch.Tensor")
    if x.is_nested or x.is_quantized or x.layout != torch.strided:
        found = "a nested" if x.is_nested else "a quantized" if x.is_quantized else f"a {x.layout}"
        raise refuse(function, name, f"{found} tensor", "strided tensors, packed ones for nested")
    return x


def optional(function: str, name: str, x: Any) -> Tensor | None:
    """x, if it is a tensor or None."""
    return None if x is None else tensor(function, name, x)


def checked(function: str, check: Callable[[str, Any], Any], name: str, value: Any) -> Any:
    """A single value after its check in libattn._values, with errors that name the function. Sizes
    that a tracer made symbolic pass as they are."""
    if isinstance(value, _SYMBOLIC):
        return value
    try:
        return check(name, value)
    except ValueError as error:
        raise named(function, error) from None


def integers(function: str, name: str, x: Any, like: Tensor) -> Tensor:
    """An argument of whole numbers; a list or NumPy array becomes a tensor on the device of
    `like`."""
    if isinstance(x, Tensor):
        return tensor(function, name, x)
    accepted = "a list of whole numbers, or an int32 or int64 tensor or NumPy array"
    if not isinstance(x, _PAIR):
        if not isinstance(x, range) and not _is_ndarray(x):
            raise refuse(function, name, shown(x), accepted)
        numbers = checked(function, lambda n, x: whole_numbers(n, x, accepted), name, x)
        return torch.from_numpy(numbers).to(like.device)
    if has_booleans(x):
        raise refuse(function, name, shown(x), accepted)
    try:
        made = torch.tensor(x, device=like.device)
    except (TypeError, ValueError, RuntimeError):
        raise refuse(function, name, shown(x), accepted) from None
    if made.numel() and (made.is_floating_point() or made.is_complex() or made.dtype == torch.bool):
        raise refuse(function, name, shown(x), accepted)
    return made.to(torch.int64)


def _is_ndarray(x: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(x, numpy.ndarray)


def number_of(value: Any) -> Any:
    """A NumPy integer, or an array of one, as an int; other values unchanged."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.integer | numpy.ndarray):
        return value
    if value.shape not in ((), (1,)) or value.dtype.kind not in "iu":
        return value
    number = int(value.reshape(()))
    return number % (1 << 64) if isinstance(value, numpy.ndarray) else number


def counter(function: str, name: str, value: Any, like: Tensor) -> Tensor:
    """A seed or offset as an int64 tensor [1] on the device, so that CUDA graphs can update it."""
    if isinstance(value, Tensor):
        if value.shape not in ((), (1,)) or value.dtype not in (torch.int64, torch.uint64):
            found = f"{value.dtype} {tuple(value.shape)}"
            raise refuse(function, name, found, "an int, or one int64 or uint64 element")
        return value
    value = value if isinstance(value, int) else number_of(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 64:
        raise refuse(function, name, shown(value), "0 to 2**64 - 1, or an int64 tensor [1]")
    signed = value - (1 << 64) if value >= 1 << 63 else value
    return torch.full((1,), signed, dtype=torch.int64, device=like.device)
