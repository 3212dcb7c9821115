"""Arguments that are converted before the call, each by a small copy or a view.

- Integers (lengths, ranges of keys, pages, positions): int64 arrays and lists become int32. Values
  in host memory are checked. Values on a device are clamped to int32, since reading them would wait
  for the device; the library clamps them again to what they index.
- Masks and biases: [n, m] becomes the view [1, 1, n, m]. One with a strided last dimension is
  copied; dimensions of stride 0 (expanded) stay expanded.

With stream= the copies are made on that stream. A copy on the maker's current stream could be
unfinished when the kernel reads it, and its memory could be used again too early.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ._arrays import family_of, opened
from ._dlpack import is_dlpack_of_cuda
from ._facts import INTEGERS, PUBLIC, numpy, wrong_type
from ._values import shown

PAIRS = ("mask", "bias")
LISTS = (list, tuple, range)
_NESTED = (list, tuple)
_I32 = (-(1 << 31), (1 << 31) - 1)
_VALUES = frozenset(("len_q", "len_kv", "cu_len_q", "cu_len_kv", "cu_len", "alibi_slopes"))
_LARGEST_COPIED = 1 << 28  # elements
_LARGEST_READ = 1 << 24  # elements; larger arrays of these arguments have a wrong shape


def convert(arrays: dict[str, Any], like: Any, stream: int | None) -> None:
    """Converts the arrays that need it, in place. like: the array that decides device and maker.
    stream: the one that the caller gave for the call."""
    for name, x in arrays.items():
        if name in INTEGERS:
            with _on(stream, name, like if isinstance(x, LISTS) else x):
                arrays[name] = _integers(name, x, like)
        elif name in PAIRS:
            with _on(stream, name, x):
                arrays[name] = pairs(name, x)
        if name in _VALUES:  # saves the call
            arrays[name] = checked_values(name, arrays[name])


_CURRENT: AbstractContextManager[object] = nullcontext()


def _on(stream: int | None, name: str, x: Any) -> AbstractContextManager[object]:
    """A context in which the maker of x computes and allocates on `stream`."""
    if stream is None:
        return _CURRENT
    family = family_of(name, x)
    return _CURRENT if family is None else family.on_stream(x, stream)


def _integers(name: str, x: Any, like: Any) -> Any:
    public = PUBLIC.get(name, name)
    if isinstance(x, LISTS):
        maker, owner = opened("q", like)
        return owner.integers(public, maker, whole_numbers(public, x))
    kind = str(getattr(x, "dtype", "")).removeprefix("torch.")
    if kind == "int32":
        return x
    if kind == "bool":  # C has no such type: it would be called uint8
        raise wrong_type(name, kind)
    family = family_of(name, x)
    if family is None:
        if is_dlpack_of_cuda(x):
            return x
        capsule, family = opened(name, x)
        values = family.values(capsule)
        return capsule if values is None or values.dtype.name != "int64" else _int32(public, values)
    if kind not in ("int64", ">i8", "<i8"):
        return x
    values = family.values(x)
    if values is not None:
        return family.integers(public, x, _int32(public, values))
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return x.clamp(*_I32).to(torch.int32)
    if hasattr(x, "clip") and hasattr(x, "astype"):  # CuPy
        return x.clip(*_I32).astype("int32")
    raise wrong_type(name, "int64, which is not converted for this maker")


def whole_numbers(
    name: str, x: Any, accepted: str = "a list of whole numbers, or an int32 or int64 array"
) -> Any:
    """A list, range or NumPy array of whole numbers as a checked int32 array of NumPy."""
    try:
        values = None if isinstance(x, numpy().ma.MaskedArray) else numpy().asarray(x)
    except (ValueError, TypeError, OverflowError, RuntimeError):
        values = None
    if values is None or (values.size and values.dtype.kind not in "iu") or has_booleans(x):
        raise ValueError(f"{name}: found {shown(x)}; accepted {accepted}")
    return _int32(name, values)


def has_booleans(x: Any) -> bool:
    """Whether a list has True or False in it, which NumPy and PyTorch would take as 1 and 0."""
    if not isinstance(x, _NESTED):
        return False
    others = [one for one in x if type(one) is not int]
    return any(
        isinstance(one, bool)
        or str(getattr(one, "dtype", "")).endswith("bool")
        or has_booleans(one)
        for one in others
    )


def _int32(name: str, values: Any) -> Any:
    """A checked copy as int32."""
    if values.size > _LARGEST_COPIED:  # an expanded array, for example
        found = f"int64 {list(values.shape)}"
        raise ValueError(f"{name}: found {found}; accepted int32, or at most 2^28 elements")
    if values.size:
        least, most = values.min(), values.max()
        if least < _I32[0] or most > _I32[1]:
            found = least if least < _I32[0] else most
            raise ValueError(f"{name}: found {found}; accepted -2^31 to 2^31 - 1")
    return values.astype(numpy().int32)


def checked_values(name: str, x: Any) -> Any:
    """x after a check of the values in host memory, if it is an array of lengths or slopes. On a
    device lengths are clamped instead."""
    if name not in _VALUES:
        return x
    family = family_of(name, x)
    if family is None and is_dlpack_of_cuda(x):
        return x
    x, family = opened(name, x)
    if name.startswith("cu_") and list(getattr(x, "shape", ())) == [0]:
        raise ValueError(f"{name}: found shape [0]; accepted [b + 1], which starts with 0")
    values = family.values(x)
    if values is None or not 0 < values.size <= _LARGEST_READ:
        return x
    if name == "alibi_slopes":
        if values.dtype.kind == "f" and not numpy().isfinite(values).all():
            raise ValueError("alibi_slopes: found NaN or infinity; accepted finite numbers")
    elif values.dtype.kind == "i":
        if values.min() < 0:
            raise ValueError(f"{name}: found {values.min()}; accepted 0 or more")
        if name.startswith("cu_") and values.ndim == 1 and (values[1:] < values[:-1]).any():
            raise ValueError(f"{name}: found a sum that falls; accepted sums of lengths >= 0")
    return x


def pairs(name: str, x: Any) -> Any:
    """A mask or bias as [b|b/s|1, h|1, n|1, m|1] whose last dimension has stride 1 or 0."""
    x = four_axes(name, x)
    if family_of(name, x) is None or not hasattr(x, "ndim"):
        return x
    strides = x.stride() if hasattr(x, "stride") else x.strides
    unit = 1 if hasattr(x, "stride") else x.dtype.itemsize
    if (x.shape[-1] <= 1 or strides[-1] in (0, unit)) and all(step >= 0 for step in strides):
        return x
    return compact(x, strides)


def four_axes(name: str, x: Any) -> Any:
    """A view of a mask, a bias or its gradient with 4 axes, never a copy. Device arrays that show
    their shape through DLPack or __cuda_array_interface__ alone are returned as they are."""
    family = family_of(name, x)
    if family is None:
        if is_dlpack_of_cuda(x):
            return x
        capsule, family = opened(name, x)
        x = family.values(capsule)
        if x is None:
            found = capsule.facts.strides
            raise ValueError(f"{name}: strides: found {found}; accepted 0 or more")
        x.flags.writeable = not capsule.read_only
    elif not hasattr(x, "ndim"):  # __cuda_array_interface__ alone
        return x
    if x.ndim not in (2, 4):
        raise ValueError(
            f"{name}: found shape {list(x.shape)}; accepted [b|b/s|1, h|1, n|1, m|1], or "
            "[n|1, m|1] for all b and h"
        )
    return x[None, None] if x.ndim == 2 else x


def compact(x: Any, strides: Any) -> Any:
    """A copy whose last dimension has stride 1. Expanded dimensions are copied once."""
    once = without_expansion(x, strides)
    if hasattr(x, "stride"):
        return once.contiguous().expand(x.shape)
    made = once.copy()
    return numpy().broadcast_to(made, x.shape) if type(x) is numpy().ndarray else made


def without_expansion(x: Any, strides: Any) -> Any:
    """A view in which expanded dimensions (stride 0) have size 1."""
    expanded = [step == 0 and size > 1 for size, step in zip(x.shape, strides, strict=True)]
    return x[tuple(slice(0, 1) if one else slice(None) for one in expanded)]


def gradient_like(bias: Any, gradient: Any) -> Any:
    """The gradient of a bias [n, m] without the two dimensions that `pairs` put before it."""
    return gradient[0, 0] if is_matrix("bias", bias) else gradient


def is_matrix(name: str, x: Any) -> bool:
    """Whether x has two dimensions. False if only opening an array on a device would tell."""
    rank = getattr(x, "ndim", None)
    if rank is None and family_of(name, x) is None and not is_dlpack_of_cuda(x):
        rank = len(opened(name, x)[0].facts.shape)
    return bool(rank == 2)


def has_no_rows(x: Any) -> bool:
    """Whether x is [b, 0, heads, dim]: no new keys or values."""
    shape: Any = getattr(x, "shape", ())
    return len(shape) == 4 and shape[1] == 0
