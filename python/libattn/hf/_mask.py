"""The mask that libattn's attention implementation gets from transformers: intervals of keys.

`visible_keys` is called by transformers' `create_causal_mask` and its relatives once a forward, and
its result is handed to every layer. The result must be a tensor of four dimensions (transformers
passes such a mask through untouched, wherever it meets it again), so intervals travel as

    i32 [batch, 2, 1, len_q]                     [:, 0] kv_begin, [:, 1] kv_end of each query
    i32 [batch, 3, 1, max(len_q, len_kv)]        and [:, 2] one flag a key: 0 = hidden (holes)

Memory is linear in the lengths. What is no interval (a caller's own mask functions) and what a
model insists on seeing as a mask (it goes on computing with it) is transformers' boolean mask
[batch, 1, len_q, len_kv].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import masking_utils

from libattn.hf import _intervals
from libattn.hf._intervals import Interval, MaskFunction, Queries


@dataclass(frozen=True)
class Visible:
    """A mask taken apart: kv_begin, kv_end i32 [batch, len_q]; keys u8 [batch, 1, 1, len_kv]."""

    kv_begin: Tensor
    kv_end: Tensor
    keys: Tensor | None


def visible_keys(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: MaskFunction = masking_utils.causal_mask_function,
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **unused: Any,
) -> Tensor | None:
    """The keys that each query sees: transformers' mask interface, see the top of this file.

    Query i of the call stands at position i + q_offset, key j at j + kv_offset. attention_mask is
    bool [batch, seen positions], True for tokens, False for padding; positions past its end are
    hidden. None is returned where module.is_causal alone says all.
    """
    arguments = {
        "batch_size": batch_size,
        "q_length": q_length,
        "kv_length": kv_length,
        "q_offset": q_offset,
        "kv_offset": kv_offset,
        "mask_function": mask_function,
        "attention_mask": attention_mask,
        "use_vmap": use_vmap,
        "device": device,
    }
    rows = torch.arange(q_length, device=device)[None] + q_offset
    try:
        interval = _intervals.recognise(mask_function, Queries(rows, rows))
    except _intervals.NotKnown:
        keys = torch.arange(kv_length, device=device) + kv_offset
        found = None
        if not _compiling():
            found = _intervals.evaluate(mask_function, batch_size, rows[0], keys, use_vmap)
        if found is None:
            return _as_transformers_makes_it(arguments)
        interval = found
    else:
        # A model that allows no shortcut goes on computing with the mask; packed documents and a
        # single query of a static cache forbid it too, and are meant for the attention alone.
        shortcut = allow_is_causal_skip or allow_is_bidirectional_skip
        if not shortcut and q_length > 1 and not _intervals.is_packed(mask_function):
            return _as_transformers_makes_it(arguments)
    padding = _local_padding(attention_mask, kv_length, kv_offset)
    if padding is None and not isinstance(q_offset, Tensor) and not _compiling():
        first, beyond = kv_offset, kv_offset + kv_length
        all_before = interval.begin is None or bool((interval.begin <= first).all())
        all_after = interval.end is None or bool((interval.end >= beyond).all())
        sees_all = all_before and all_after
        if sees_all and (allow_is_bidirectional_skip or (allow_is_causal_skip and q_length == 1)):
            return None
        square = allow_is_causal_skip and q_length == kv_length and q_offset == kv_offset
        causal = interval.end is not None and bool((interval.end == rows + 1).all())
        if square and causal and all_before:
            return None
    return _encode(interval, padding, rows, batch_size, kv_length, kv_offset)


def of_padding(
    padding: Tensor, len_q: int, len_kv: int, causal: bool, window: int | None
) -> Tensor | None:
    """The mask for a layer that was handed a 2-D padding mask [batch, seen positions] itself.

    The queries are the last len_q positions, the keys the last len_kv; with fewer positions than
    keys (a static cache) the first ones. Otherwise as `visible_keys`.
    """
    seen = padding.shape[1]
    function = masking_utils.causal_mask_function
    if not causal:
        function = masking_utils.bidirectional_mask_function
    if window is not None and causal:
        function = masking_utils.sliding_window_causal_mask_function(window)
    elif window is not None:
        function = masking_utils.sliding_window_bidirectional_mask_function(window - 1)
    return visible_keys(
        padding.shape[0],
        len_q,
        len_kv,
        q_offset=seen - len_q,
        kv_offset=max(seen - len_kv, 0),
        mask_function=function,
        attention_mask=padding.to(torch.bool),
        allow_is_causal_skip=causal,
        allow_is_bidirectional_skip=not causal,
        device=padding.device,
    )


def take_apart(mask: Tensor, batch: int, len_q: int, len_kv: int) -> Visible:
    """The inverse of what `visible_keys` put together. Raises ValueError for anything else."""
    flags = mask.ndim == 4 and mask.shape[1] == 3
    expected = (mask.shape[0], 3, 1, max(len_q, len_kv)) if flags else (mask.shape[0], 2, 1, len_q)
    if mask.shape != expected or mask.shape[0] not in (1, batch):
        raise ValueError(
            f"libattn.hf: an attention_mask of {mask.dtype} and shape {list(mask.shape)} isn't the "
            f"one that libattn made for batch {batch}, {len_q} queries and {len_kv} keys: the "
            "model changed it on the way; use another attn_implementation for this model"
        )
    keys = mask[:, 2:3, :, :len_kv].to(torch.uint8) if flags else None
    return Visible(mask[:, 0, 0, :len_q], mask[:, 1, 0, :len_q], keys)


def _as_transformers_makes_it(arguments: dict[str, Any]) -> Tensor | None:
    """transformers' boolean mask [batch, 1, len_q, len_kv], True = visible."""
    mask: Tensor | None = masking_utils.sdpa_mask(allow_is_causal_skip=False, **arguments)
    return mask


def _compiling() -> bool:
    """Whether torch.compile traces: then no step may depend on what a tensor holds."""
    return torch.compiler.is_compiling()


def _local_padding(mask: Tensor | None, kv_length: int, kv_offset: int) -> Tensor | None:
    """bool [batch, kv_length] of the keys at hand; None when all of them are tokens."""
    if mask is None:
        return None
    local = mask[:, kv_offset : kv_offset + kv_length].to(torch.bool)
    missing = kv_length - local.shape[1]
    if missing > 0:
        local = torch.nn.functional.pad(local, (0, missing))
    return None if not _compiling() and bool(local.all()) else local


def _encode(
    interval: Interval,
    padding: Tensor | None,
    rows: Tensor,
    batch: int,
    len_kv: int,
    kv_offset: int,
) -> Tensor:
    """The tensor described at the top of this file. rows: i64 [1, len_q], positions."""
    begin = torch.zeros_like(rows) if interval.begin is None else interval.begin - kv_offset
    end = torch.full_like(rows, len_kv) if interval.end is None else interval.end - kv_offset
    begin, end = begin.clamp(0, len_kv), end.clamp(0, len_kv)
    holes = False
    if padding is not None and len_kv > 0:
        as_numbers = padding.to(torch.uint8)
        count = padding.sum(-1, keepdim=True)
        first = as_numbers.argmax(-1, keepdim=True)
        last = torch.where(count > 0, len_kv - as_numbers.flip(-1).argmax(-1, keepdim=True), 0)
        begin, end = torch.maximum(begin, first), torch.minimum(end, last)
        holes = _compiling() or bool(((count > 0) & (last - first != count)).any())
    len_q = rows.shape[1]
    length = max(len_q, len_kv) if holes else len_q
    shape = (batch, 3 if holes else 2, 1, length)
    mask = torch.zeros(shape, dtype=torch.int32, device=rows.device)
    mask[:, 0, 0, :len_q] = begin
    mask[:, 1, 0, :len_q] = end
    if holes and padding is not None:
        mask[:, 2, 0, :len_kv] = padding
    return mask
