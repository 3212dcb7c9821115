"""jax.nn.dot_product_attention on libattn: its signature, and its meaning but for rows that see no
key. docs/jax.md lists where the two differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from .._values import boolean, integer, named, shown
from ._attention import attend

if TYPE_CHECKING:
    from jax.typing import ArrayLike

FUNCTION = "dot_product_attention"
_PAIR = (tuple, list)


def _refuse(rule: str, found: object, accepted: str) -> ValueError:
    return ValueError(f"{FUNCTION}: {rule}: found {found}; accepted {accepted}")


def _array(name: str, x: Any) -> Any:
    try:
        return jnp.asarray(x)
    except (TypeError, ValueError):
        raise _refuse(name, shown(x), "an array") from None


def _rows(name: str, x: Any) -> Any:
    """query, key or value as [b, n, h, d]."""
    made = _array(name, x)
    if made.ndim not in (3, 4):
        accepted = "[b, n, h, d], or [n, h, d] for one sequence"
        raise _refuse(f"shape of {name}", list(made.shape), accepted)
    return made[None] if made.ndim == 3 else made


def _pairs(name: str, x: Any) -> Any:
    """A bias or mask as [b|1, h|1, n|1, m|1]."""
    made = _array(name, x)
    if not 2 <= made.ndim <= 4:
        accepted = "[b|1, h|1, n|1, m|1]; dimensions in front can be missing"
        raise _refuse(f"shape of {name}", list(made.shape), accepted)
    return made[(None,) * (4 - made.ndim)]


def _bias(x: Any, dtype: Any) -> Any:
    """A bias in a type that goes with a query of this type."""
    bias = _pairs("bias", x)
    if bias.dtype == bool or jnp.issubdtype(bias.dtype, np.complexfloating):
        accepted = "real numbers; True where a pair may attend is mask="
        raise _refuse("type of bias", bias.dtype, accepted)
    if dtype == np.float64:
        return bias.astype(np.float64)
    return bias if bias.dtype in (np.float32, np.float16, jnp.bfloat16) else bias.astype(np.float32)


def _window(value: Any) -> tuple[int, int]:
    accepted = "(left, right), each 0 or more, or one number for both"
    sides = value if isinstance(value, _PAIR) else (value, value)
    if len(sides) != 2:
        raise _refuse("local_window_size", shown(value), accepted)
    try:
        left, right = (integer("local_window_size", side) for side in sides)
    except ValueError as error:
        raise named(FUNCTION, error) from None
    if min(left, right) < 0:
        raise _refuse("local_window_size", shown(value), accepted)
    return left, right


def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
) -> Any:
    """Attention with the signature of jax.nn.dot_product_attention, in linear memory.

    query: [b, n, h, d], or [n, h, d] for one sequence. f32, f16, bf16, f64 (with x64).
    key: [b, m, g, d] or [m, g, d], of query's type. h is a multiple of g (GQA, MQA).
    value: [b, m, g, dv] or [m, g, dv], of query's type. Here dv can differ from d.
    bias: [b|1, h|1, n|1, m|1], added to the scores; dimensions in front can be missing.
    mask: bool, shaped like bias: True = may attend.
    scale: None = 1/sqrt(d); else a number that is known when the function is traced.
    is_causal: query i sees keys 0 to i.
    query_seq_lengths: int32 [b]; rows past it are 0.
    key_value_seq_lengths: int32 [b]; keys past it are hidden.
    local_window_size: (left, right), or one number for both: query i sees keys i - left to
        i + right.
    implementation: None. "xla" and "cudnn" are refused: they name implementations of jax.
    return_residual: return (o, lse), lse [b, n, h] or [n, h] of query's type, without a gradient.

    Returns o [b, n, h, dv] or [n, h, dv]. Rows that see no key are 0; jax.nn's function gives the
    mean of all values there.
    Raises ValueError for a broken rule when it is traced. Gradients and transformations: see
    libattn.jax.attention.
    Source: the documentation of jax.nn.dot_product_attention.
    """
    if implementation is not None:
        accepted = "None; jax.nn.dot_product_attention has 'xla' and 'cudnn'"
        raise _refuse("implementation", shown(implementation), accepted)
    q, k, v = _rows("query", query), _rows("key", key), _rows("value", value)
    try:
        options: dict[str, Any] = {"causal": boolean("is_causal", is_causal)}
        return_residual = boolean("return_residual", return_residual)
    except ValueError as error:
        raise named(FUNCTION, error) from None
    options["diagonal"] = "top_left"
    if bias is not None:
        options["bias"] = _bias(bias, q.dtype)
    if mask is not None:
        options["mask"] = _pairs("mask", mask)
        if options["mask"].dtype != bool:
            accepted = "bool; numbers that are added to the scores are bias="
            raise _refuse("type of mask", options["mask"].dtype, accepted)
    if local_window_size is not None:
        options["window"] = _window(local_window_size)
    for name, lengths in (("len_q", query_seq_lengths), ("len_kv", key_value_seq_lengths)):
        if lengths is not None:
            options[name] = lengths
    found: Any = {**options, "scale": scale}
    one = jnp.ndim(query) == 3
    made = attend(FUNCTION, q, k, v, return_residual, None, found)
    if not return_residual:
        return made[0] if one else made
    o, lse = made
    lse = jax.lax.stop_gradient(lse.swapaxes(1, 2).astype(k.dtype))
    return (o[0], lse[0]) if one else (o, lse)
