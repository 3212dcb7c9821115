"""Formulas for PyTorch's FLOP counter, and names for its profiler.

Forward: 2 * pairs * (dim_qk + dim_vo), backward: pairs * (6 dim_qk + 4 dim_vo), where pairs is the
number of (query, key) of all sequences and query heads that are visible by causality, window,
lengths and ranges of keys; half of all for the plain square causal case, as the field counts. A
mask or a bias hides nothing here, and fake or meta tensors have no lengths to read: their pairs are
those of full lengths.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ._schema import OPTIONS, Flat, complete

_MODULE = "torch.utils.flop_counter"


def _values(x: Any) -> Any:
    """The numbers of a tensor of the options, None where it has none to read."""
    if x is None or x.is_meta or type(x) is not Tensor:
        return None
    return np.asarray(x.detach().cpu().tolist(), np.int64)


def _named(flat: Flat) -> dict[str, Any]:
    return {option.name: value for option, value in zip(OPTIONS, complete(flat), strict=True)}


def _sequences(q: Tensor, len_kv: int, given: dict[str, Any]) -> Iterator[tuple[int, int, Any]]:
    """(n, m, (kv_begin, kv_end)) of each sequence; both of the last are None, or arrays [n]."""
    bounds = [_values(given[name]) for name in ("kv_begin", "kv_end")]
    if q.dim() == 3:
        offsets = [_values(given[name]) for name in ("cu_len_q", "cu_len_kv")]
        if offsets[0] is None or offsets[1] is None:
            batch = max(len(given["cu_len_q"]) - 1, 1)
            longest = int(given["max_len_kv"] or len_kv)
            for _ in range(batch):
                yield int(q.size(0)) // batch, longest, (None, None)
            return
        cuts = np.clip(offsets[0], 0, q.size(0)), np.clip(offsets[1], 0, len_kv)
        for (begin, end), of_kv in zip(
            zip(cuts[0], cuts[0][1:], strict=False), np.diff(cuts[1]), strict=True
        ):
            some = [None if x is None else x[begin:end] for x in bounds]
            yield max(int(end - begin), 0), max(int(of_kv), 0), tuple(some)
        return
    lengths = [_values(given[name]) for name in ("len_q", "len_kv")]
    for at in range(int(q.size(0))):
        n, m = (
            int(full) if x is None else min(max(int(x[at]), 0), int(full))
            for x, full in zip(lengths, (q.size(1), len_kv), strict=True)
        )
        some = [None if x is None else x[at if len(x) > 1 else 0][:n] for x in bounds]
        yield n, m, tuple(some)


def _pairs_of(n: int, m: int, bounds: Any, given: dict[str, Any]) -> float:
    """Visible pairs of one sequence and head."""
    causal, left, right = given["causal"], given["window_left"], given["window_right"]
    diag = m - n
    if given["diag"] is not None:
        diag = int(given["diag"])
    elif given["diagonal"] == "top_left":
        diag = 0
    elif given["diagonal"] == "origin" and given["origin"] is not None:
        diag = int(given["origin"][2]) - int(given["origin"][3])
    begin, end = bounds
    if causal and n == m and diag == 0 and all(x is None for x in (left, right, begin, end)):
        return n * m / 2
    at = np.arange(n, dtype=np.int64) + diag
    low, high = np.zeros(n, np.int64), np.full(n, m, np.int64)
    if causal:
        high = np.minimum(high, at + 1)
    if right is not None:
        high = np.minimum(high, at + int(right) + 1)
    if left is not None:
        low = np.maximum(low, at - int(left))
    if begin is not None:
        low = np.maximum(low, begin)
    if end is not None:
        high = np.minimum(high, end)
    return float(np.maximum(high - low, 0).sum())


def _pairs(q: Tensor, len_kv: int, given: dict[str, Any]) -> float:
    each = _sequences(q, len_kv, given)
    return int(q.size(-2)) * sum(_pairs_of(n, m, bounds, given) for n, m, bounds in each)


def forward_flop(
    q: Tensor, k: Tensor, v: Tensor, out_dtype: Any = None, *flat: Any, **_: Any
) -> int:
    pairs = _pairs(q, int(k.size(-3)), _named(flat))
    return round(2 * pairs * int(q.size(-1) + v.size(-1)))


def backward_flop(
    dout: Any, dlse: Any, q: Tensor, k: Tensor, v: Tensor, o: Any, lse: Any, want: Any,
    *flat: Any, **_: Any,
) -> int:  # fmt: skip
    pairs = _pairs(q, int(k.size(-3)), _named(flat))
    return round(pairs * int(6 * q.size(-1) + 4 * v.size(-1)))


def _decode(q: Tensor, k: Tensor, v: Tensor, table: Any, added: int, flat: Flat) -> int:
    given = _named(flat)
    length = int(k.size(1)) * (1 if table is None else int(table.size(1)))
    if given["len_kv"] is not None and added:
        given["len_kv"] = given["len_kv"] + added
    return round(2 * _pairs(q, length, given) * int(q.size(-1) + v.size(-1)))


def decode_flop(
    q: Tensor, k: Tensor, v: Tensor, block_table: Any = None, split_keys: Any = None,
    out_dtype: Any = None, *flat: Any, **_: Any,
) -> int:  # fmt: skip
    return _decode(q, k, v, block_table, 0, flat)


def decode_append_flop(
    q: Tensor, k: Tensor, v: Tensor, k_new: Tensor, v_new: Tensor, block_table: Any = None,
    split_keys: Any = None, out_dtype: Any = None, *flat: Any, **_: Any,
) -> int:  # fmt: skip
    return _decode(q, k, v, block_table, int(k_new.size(1)), flat)


_FORMULAS: dict[str, Callable[..., int]] = {
    "forward": forward_flop,
    "backward": backward_flop,
    "decode": decode_flop,
    "decode_append": decode_append_flop,
}


def register() -> None:
    """Gives PyTorch's counter, and the modes of it that are active, the formulas.

    Its module is not imported here: it loads Triton (0.4 s). So this runs with libattn.torch and
    where an operator is called or traced under a dispatch mode.
    """
    module: Any = sys.modules.get(_MODULE)
    if module is None or not hasattr(module, "flop_registry"):
        return
    operators = torch.ops.libattn
    formulas = {getattr(operators, name): formula for name, formula in _FORMULAS.items()}
    registries = [module.flop_registry]
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    for mode in _get_current_dispatch_mode_stack():
        counter = getattr(mode, "counter", mode)
        if isinstance(counter, module.FlopCounterMode):
            registries.append(counter.flop_registry)
    for registry in registries:
        for operator, formula in formulas.items():
            registry.setdefault(operator, formula)


# --- the profiler -------------------------------------------------------------------------------

profiling: Callable[[], bool] = torch._C._autograd._profiler_enabled
_GROUPS = {
    "window_left": "window",
    "window_right": "window",
    "diag": "diagonal",
    "dropout_p": "dropout",
    "alibi_slopes": "alibi",
    "kv_begin": "ranges",
    "kv_end": "ranges",
    "len_q": "lengths",
    "len_kv": "lengths",
    "cu_len_q": "packed",
    "cu_len_kv": "packed",
    "rope_style": "rope",
}
_UNNAMED = ("seed", "offset", "max_len_q", "max_len_kv", "origin", "scale", "precision")


def recorded(function: str, q: Tensor, flat: Flat) -> AbstractContextManager[Any]:
    """A profiler's range, "libattn::forward [cpu f32 causal window]"."""
    words = {q.device.type: None, str(q.dtype).removeprefix("torch."): None}
    for option, value in zip(OPTIONS, complete(flat), strict=True):
        name = option.name
        if value is None or value == option.default if not isinstance(value, Tensor) else False:
            continue
        if name not in _UNNAMED and (name == "rope_style" or not name.startswith("rope_")):
            words[_GROUPS.get(name, name)] = None
    return torch.profiler.record_function(f"libattn::{function} [{' '.join(words)}]")
