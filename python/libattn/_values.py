"""Checks of single values: booleans, whole and real numbers, choices, and how errors show values.

Every error is a ValueError "name: found ...; accepted ..."; `named` puts the function before it.
"""

from __future__ import annotations

import numbers
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

# Fields of the C ABI whose arguments in Python have other names, by function.
_RESULTS = {"o": "out", "lse": "lse_out"}
_RENAMED: dict[str, dict[str, str]] = {
    "attention": _RESULTS,
    "decode": {"k": "k_cache", "v": "v_cache", **_RESULTS},
    "merge": _RESULTS,
    "dot_product_attention": {
        "q": "query",
        "k": "key",
        "v": "value",
        "len_q": "query_seq_lengths",
        "len_kv": "key_value_seq_lengths",
    },
}
_FIELD = "(?:q|k|v|o|lse|len_q|len_kv)"
_ARGUMENT = re.compile(
    rf"(?<= of ){_FIELD}\b|(?<= of k and )v\b|(?<=: ){_FIELD}(?=:| is | goes )"
    rf"|(?<=: found ){_FIELD}(?=, which is written)"
)


def renamed(function: str, message: str) -> str:
    """A message with the names of the function's arguments in place of the C ABI's."""
    names = _RENAMED.get(function)
    if names is None:
        return message
    return _ARGUMENT.sub(lambda found: names.get(found[0], found[0]), message)


def _raised_here(error: BaseException) -> bool:
    """Whether every function between the `except` clause and the raise is this package's."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] != "libattn":
            return False
        trace = trace.tb_next
    return True


def named(function: str, error: ValueError) -> ValueError:
    """The error with the name of the public function that was called.

    An error from a signal handler or from an object of the caller stays unchanged: its
    traceback has a frame outside this package.
    """
    text = str(error)
    if text.startswith(function + ":") or not _raised_here(error):
        return error
    return ValueError(renamed(function, f"{function}: {text}"))


def shown(value: Any) -> str:
    """A value in an error's text: at most 80 characters; arrays by type and shape."""
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is not None and isinstance(shape, tuple):
        return f"{type(value).__qualname__} of {dtype} {list(shape)}"
    try:
        text = repr(value)
    except Exception:  # a class of the caller with a broken __repr__
        text = type(value).__qualname__
    return text if len(text) <= 80 else text[:77] + "..."


def _refuse(name: str, value: Any, accepted: str) -> ValueError:
    return ValueError(f"{name}: found {shown(value)}; accepted {accepted}")


def boolean(name: str, value: Any) -> bool:
    """True or False, Python's or NumPy's."""
    if value is True or value is False:
        return bool(value)
    kind = type(value)
    if kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_"):
        return bool(value)
    raise _refuse(name, value, "True or False")


def integer(name: str, value: Any) -> int:
    """A whole number that 64 bits hold; also an integer array of one element."""
    if type(value) is not int:
        if isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool"):
            raise _refuse(name, value, "a whole number")
        try:
            value = operator.index(value)
        except TypeError:
            raise _refuse(name, value, "a whole number") from None
    number: int = value
    if not -(1 << 63) <= number < 1 << 63:
        raise _refuse(name, value, "a whole number that 64 bits hold")
    return number


def real(name: str, value: Any) -> float:
    """A number; also an array of one element that needs no gradient."""
    if type(value) is float:
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return _one_element(name, value)
    try:
        return float(value)
    except OverflowError:
        raise _refuse(name, value, "a number that float64 holds") from None


def _one_element(name: str, value: Any) -> float:
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        if getattr(value, "requires_grad", False) and _grad_enabled():
            raise ValueError(
                f"{name}: found a tensor that requires a gradient, and there is none for it; "
                "accepted a number (for a gradient of scale: multiply q by it and pass scale=1.0)"
            )
        try:
            value = value.item()
        except RuntimeError as error:  # a tensor without memory
            raise ValueError(
                f"{name}: found a tensor without a value ({error}); accepted a number"
            ) from None
        if isinstance(value, numbers.Real) and not isinstance(value, bool):
            return float(value)
    raise _refuse(name, value, "a number")


def _grad_enabled() -> bool:
    import torch

    return bool(torch.is_grad_enabled())


def choice(name: str, value: Any, accepted: Mapping[str, int]) -> int:
    if not isinstance(value, str) or value not in accepted:
        raise _refuse(name, value, ", ".join(map(repr, accepted)))
    return accepted[value]


def chosen(accepted: Mapping[str, int]) -> Callable[[str, Any], int]:
    """choice() among `accepted`, as a check of a value."""
    return lambda name, value: choice(name, value, accepted)
