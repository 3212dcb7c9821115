"""The operators libattn::decode, decode_append, merge, merge_backward and rope."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

import libattn

from ._schema import (
    FLAT,
    RESULTS,
    Flat,
    complete,
    define,
    empty_results,
    keywords,
    last_contiguous,
    no_second_derivative,
    same_device,
    same_device_options,
)


def decode_kernel(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor | None = None,
    split_keys: int | None = None,
    out_dtype: torch.dtype | None = None,
    *flat: Any,
) -> tuple[Tensor, Tensor]:
    o, lse = libattn.decode(
        q,
        k_cache,
        v_cache,
        block_table=block_table,
        split_keys=split_keys,
        out_dtype=out_dtype,
        return_lse=True,
        **keywords(complete(flat)),
    )
    return o, lse


def decode_append_kernel(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k_new: Tensor,
    v_new: Tensor,
    block_table: Tensor | None = None,
    split_keys: int | None = None,
    out_dtype: torch.dtype | None = None,
    *flat: Any,
) -> tuple[Tensor, Tensor]:
    o, lse = libattn.decode(
        q,
        k_cache,
        v_cache,
        k_new=k_new,
        v_new=v_new,
        block_table=block_table,
        split_keys=split_keys,
        out_dtype=out_dtype,
        return_lse=True,
        **keywords(complete(flat)),
    )
    return o, lse


def _decode_fake(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor | None = None,
    split_keys: int | None = None,
    out_dtype: torch.dtype | None = None,
    *flat: Any,
) -> tuple[Tensor, Tensor]:
    same_device("decode", "q", q, k_cache=k_cache, v_cache=v_cache, block_table=block_table)
    same_device_options("decode", q, flat)
    return empty_results(q, v_cache, out_dtype)


def _decode_append_fake(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k_new: Tensor,
    v_new: Tensor,
    block_table: Tensor | None = None,
    split_keys: int | None = None,
    out_dtype: torch.dtype | None = None,
    *flat: Any,
) -> tuple[Tensor, Tensor]:
    same_device("decode", "q", q, k_cache=k_cache, v_cache=v_cache, block_table=block_table)
    same_device("decode", "q", q, k_new=k_new, v_new=v_new)
    same_device_options("decode", q, flat)
    return empty_results(q, v_cache, out_dtype)


# --- merge --------------------------------------------------------------------------------------


def _merge(o1: Tensor, lse1: Tensor, o2: Tensor | None, lse2: Tensor) -> tuple[Tensor, Tensor]:
    o, lse = libattn.merge(o1, lse1, o2, lse2)
    return o, lse


def _merge_fake(o1: Tensor, lse1: Tensor, o2: Tensor | None, lse2: Tensor) -> tuple[Tensor, Tensor]:
    same_device("merge", "o1", o1, lse1=lse1, o2=o2, lse2=lse2)
    return o1.new_empty(o1.shape), lse1.new_empty(lse1.shape)


def _merge_backward(
    dout: Tensor,
    dlse: Tensor | None,
    o1: Tensor,
    lse1: Tensor,
    o2: Tensor | None,
    lse2: Tensor,
    o: Tensor,
    lse: Tensor,
) -> tuple[Tensor, ...]:
    found = libattn.merge_backward(
        last_contiguous(dout),
        o1,
        lse1,
        o2,
        lse2,
        o,
        lse,
        dlse=None if dlse is None else last_contiguous(dlse),
    )
    return tuple(o1.new_empty(0) if x is None else x for x in found)


def _merge_backward_fake(
    dout: Tensor,
    dlse: Tensor | None,
    o1: Tensor,
    lse1: Tensor,
    o2: Tensor | None,
    lse2: Tensor,
    o: Tensor,
    lse: Tensor,
) -> tuple[Tensor, ...]:
    more = {"dout": dout, "dlse": dlse, "lse1": lse1, "o2": o2, "lse2": lse2, "o": o, "lse": lse}
    same_device("merge_backward", "o1", o1, **more)
    return tuple(
        o1.new_empty(0) if x is None else x.new_empty(x.shape) for x in (o1, lse1, o2, lse2)
    )


def _save_merge(ctx: Any, inputs: Flat, output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)
    ctx.set_materialize_grads(False)


def _differentiate_merge(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> Flat:
    o1, lse1, o2, lse2, o, lse = ctx.saved_tensors
    if dout is None:
        if dlse is None:
            return (None,) * 4
        dout = torch.zeros_like(o)
    found = torch.ops.libattn.merge_backward(dout, dlse, o1, lse1, o2, lse2, o, lse)
    return tuple(x if n else None for x, n in zip(found, ctx.needs_input_grad, strict=True))


# --- rope ---------------------------------------------------------------------------------------


def _rope(
    x: Tensor,
    positions: Tensor | None = None,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    cu_len: Tensor | None = None,
    style: str = "half",
    rot_dim: int | None = None,
    base: float = 10000.0,
    pos_offset: int = 0,
    inverse: bool = False,
) -> Tensor:
    out: Tensor = libattn.rope(
        x,
        positions=positions,
        cos=cos,
        sin=sin,
        cu_len=cu_len,
        style=cast(Any, style),  # checked by the caller; a schema has no literals
        rot_dim=rot_dim,
        base=base,
        pos_offset=pos_offset,
        inverse=inverse,
    )
    return out


def _rope_fake(x: Tensor, *rest: Any) -> Tensor:
    names = ("positions", "cos", "sin", "cu_len")
    same_device("rope", "x", x, **dict(zip(names, rest, strict=False)))
    return x.new_empty(x.shape)


def _save_rope(ctx: Any, inputs: Flat, output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:5])
    ctx.numbers = inputs[5:]


def _differentiate_rope(ctx: Any, dout: Tensor) -> Flat:
    *numbers, inverse = ctx.numbers
    dout = last_contiguous(dout)
    dx = torch.ops.libattn.rope(dout, *ctx.saved_tensors, *numbers, not inverse)
    return (dx, *(None,) * 9)


_CACHED = f"Tensor? block_table=None, SymInt? split_keys=None, ScalarType? out_dtype=None, {FLAT}"
_PARTS = "Tensor o1, Tensor lse1, Tensor? o2, Tensor lse2"

define(
    "decode",
    f"Tensor q, Tensor k_cache, Tensor v_cache, {_CACHED}",
    RESULTS,
    decode_kernel,
    _decode_fake,
)
define(
    "decode_append",
    "Tensor q, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor k_new, Tensor v_new, " + _CACHED,
    RESULTS,
    decode_append_kernel,
    _decode_append_fake,
)
define("merge", _PARTS, RESULTS, _merge, _merge_fake, _save_merge, _differentiate_merge)
define(
    "merge_backward",
    f"Tensor dout, Tensor? dlse, {_PARTS}, Tensor o, Tensor lse",
    "(Tensor, Tensor, Tensor, Tensor)",
    _merge_backward,
    _merge_backward_fake,
    differentiate=no_second_derivative("merge"),
)
define(
    "rope",
    "Tensor x, Tensor? positions=None, Tensor? cos=None, Tensor? sin=None, Tensor? cu_len=None, "
    'str style="half", SymInt? rot_dim=None, float base=10000.0, SymInt pos_offset=0, '
    "bool inverse=False",
    "Tensor",
    _rope,
    _rope_fake,
    _save_rope,
    _differentiate_rope,
)
