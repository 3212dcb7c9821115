"""The batching rule of a pass under jax.vmap.

vmap must give what a loop over the mapped axis gives. Where the library can, the axis becomes a
part of the batch, and there is one call. Otherwise there is a call for each index, in order:
  - packed tensors: `cu_len_q` and `cu_len_kv` say where their sequences begin
  - dropout: an element's draw depends on its place in the batch
  - sinks and rope tables that differ along the mapped axis: a call has one of each
  - the gradient of sinks: a call adds it up over the batch
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .._facts import dtype_code
from ._ffi import SEEDS, Arrays, Call, launch

# Arrays by their first axis: [b, ...], or [b|1, ...]. Slopes are [h] or [b, h].
_ROWS = ("q", "k", "v", "o", "lse", "dout", "dlse", "dq", "dk", "dv")
_BY_BATCH = (*_ROWS, "len_q", "len_kv", "descale_q", "descale_k", "descale_v")
_BROADCAST = ("bias", "mask", "kv_begin", "kv_end", "rope_pos_q", "rope_pos_k")
_PAIRS = ("bias", "mask")
_ONE_EACH = ("sinks", "rope_cos", "rope_sin")


def run(call: Call, arrays: Arrays) -> Arrays:
    """launch() with a batching rule, and an error for derivatives of it."""
    return _differentiable(call)(arrays)


@functools.cache
def _differentiable(call: Call) -> Callable[[Arrays], Arrays]:
    @jax.custom_jvp
    def function(arrays: Arrays) -> Arrays:
        return _batchable(call)(arrays)

    @function.defjvp
    def refuse(primals: Any, tangents: Any) -> Any:
        raise NotImplementedError(
            f"{call.function}: found a second derivative; accepted: first derivatives"
        )

    made: Callable[[Arrays], Arrays] = function
    return made


@functools.cache
def _batchable(call: Call) -> Callable[[Arrays], Arrays]:
    @jax.custom_batching.custom_vmap
    def function(arrays: Arrays) -> Arrays:
        return launch(call, arrays)

    @function.def_vmap
    def rule(size: int, mapped: Any, arrays: Arrays) -> Any:
        (is_mapped,) = mapped if isinstance(mapped, list | tuple) else (mapped,)
        method = _fold if _can_fold(call, arrays, is_mapped) else _loop
        outputs = method(call, size, arrays, is_mapped)
        return outputs, dict.fromkeys(outputs, True)

    made: Callable[[Arrays], Arrays] = function
    return made


def _can_fold(call: Call, arrays: Arrays, is_mapped: dict[str, bool]) -> bool:
    rank = arrays["q"].ndim - is_mapped["q"]
    return (
        rank == 4
        and arrays["k"].ndim - is_mapped["k"] == 4
        and not any(name in arrays for name in SEEDS)
        and not any(is_mapped.get(name, False) for name in _ONE_EACH)
        and "dsink" not in dict(call.wanted)
    )


def _loop(call: Call, size: int, arrays: Arrays, is_mapped: dict[str, bool]) -> Arrays:
    """A call for each index of the mapped axis, which is the first one."""
    shared = {name: x for name, x in arrays.items() if not is_mapped[name]}
    mapped = {name: x for name, x in arrays.items() if is_mapped[name]}

    def one(part: Arrays) -> Arrays:
        both = shared | part
        return run(call, {name: both[name] for name in arrays})

    made: Arrays = jax.lax.map(one, mapped)
    return made


def _fold(call: Call, size: int, arrays: Arrays, is_mapped: dict[str, bool]) -> Arrays:
    """One call: the mapped axis becomes part of the batch."""
    batch = arrays["q"].shape[int(is_mapped["q"])]
    wanted = dict(call.wanted)
    whole_bias = "dbias" in wanted  # a gradient for each index
    folded = {
        name: _folded(name, x, size, batch, is_mapped[name], whole_bias)
        for name, x in arrays.items()
    }
    entries = arrays["bias"].shape[int(is_mapped["bias"])] if whole_bias else batch
    narrow = entries != batch
    if narrow and jnp.dtype(arrays["bias"].dtype).itemsize < 4:
        wanted["dbias"] = dtype_code("dbias", "float32")
    outputs = run(call._replace(wanted=tuple(wanted.items())), folded)
    made = {name: x.reshape(size, batch, *x.shape[1:]) for name, x in outputs.items()}
    if narrow:
        each = made["dbias"]
        total = each.reshape(size, entries, batch // entries, *each.shape[2:]).sum(2)
        made["dbias"] = total.astype(arrays["bias"].dtype)
    return made


def _folded(name: str, x: Any, size: int, batch: int, mapped: bool, whole_bias: bool) -> Any:
    """An array with the mapped axis in its batch axis."""
    shape = x.shape[1:] if mapped else x.shape
    if name == "alibi_slopes":
        if not mapped and len(shape) == 1:
            return x
        shape = shape if len(shape) == 2 else (1, *shape)
    elif name in _BROADCAST:
        if not mapped and shape[0] == 1 and not (name == "bias" and whole_bias):
            return x
    elif name not in _BY_BATCH:
        return x
    x = x.reshape(size if mapped else 1, *shape)
    if name in _PAIRS and 1 < shape[0] < batch:  # sequences share its entries
        x = jnp.repeat(x, batch // shape[0], axis=1)
    x = jnp.broadcast_to(x, (size, batch, *shape[1:]))
    return x.reshape(size * batch, *shape[1:])
