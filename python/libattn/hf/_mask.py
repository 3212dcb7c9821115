"""The mask that libattn's attention implementation gets from transformers: intervals of keys.

`visible_keys` is called by transformers' `create_causal_mask` and its relatives once a forward. Its
result is passed to every layer. transformers passes a tensor of four dimensions through untouched,
so the result is

    i32 [batch, 1, max(len_q, len_kv) + 1, kind]

with `kind` columns. Column 0 is kv_begin, column 1 kv_end of each query, column 2 a flag per key:

    kind 2  intervals
    kind 3  intervals, and flags of keys (0 = hidden), where padding leaves holes
    kind 4  plain causal: no more than a flag; the last query sees the last key
    kind 5  every query sees every key: likewise

Memory is linear in the lengths; kinds 4 and 5 take one number. The mask says whether attention is
causal, so that no layer's `is_causal` flag is trusted. The shape is one that fails to broadcast
with scores [batch, heads, len_q, len_kv]: a model that adds the mask to its scores fails instead of
computing nonsense. Outside of torch.compile the mask is a `GuardedMask`, which says so in words.

Two cases get transformers' boolean mask [batch, 1, len_q, len_kv]: a caller's own mask functions
that leave some query no interval, and models that forbid the shortcut because they compute with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import masking_utils

from libattn.hf import _intervals, _models
from libattn.hf._guarded import GuardedMask
from libattn.hf._intervals import Interval, MaskFunction, Queries

INTERVALS, INTERVALS_AND_KEYS, CAUSAL, EVERYTHING = 2, 3, 4, 5


@dataclass(frozen=True)
class Visible:
    """A mask taken apart.

    kind: as at the top of this file. kv_begin, kv_end: i32 [batch, len_q], None for kinds CAUSAL
    and EVERYTHING. keys: u8 [batch, 1, 1, len_kv] for INTERVALS_AND_KEYS.
    """

    kind: int
    kv_begin: Tensor | None = None
    kv_end: Tensor | None = None
    keys: Tensor | None = None


def visible_keys(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: MaskFunction | None = None,
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    config: Any = None,
    **unused: Any,
) -> Tensor | None:
    """The keys that each query sees: transformers' mask interface, see the top of this file.

    Query i of the call stands at position i + q_offset, key j at j + kv_offset. attention_mask is
    bool [batch, seen positions], True for tokens, False for padding; positions past its end are
    hidden. mask_function None is causal.

    Errors: libattn.Unsupported for the config of a model that computes attention itself, and for
    padding on the left of a model whose real tokens depend on padding tokens.
    """
    # No default in the signature: torch.compile would guard on it, which torch 2.11 fails at.
    if mask_function is None:
        mask_function = masking_utils.causal_mask_function
    if config is not None and not _compiling():
        _models.check_config(config)
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
    shortcut = allow_is_causal_skip or allow_is_bidirectional_skip
    if not shortcut and _models.computes_with_mask(config):
        return _as_transformers_makes_it(arguments)
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
        # Packed documents and a single query of a static cache forbid the shortcut too, but nobody
        # computes with their mask.
        if not shortcut and q_length > 1 and not _intervals.is_packed(mask_function):
            return _as_transformers_makes_it(arguments)
    padding = _local_padding(attention_mask, kv_length, kv_offset)
    if padding is not None and (_compiling() or not bool(padding[:, 0].all())):
        _models.check_left_padding(config)
    kind = None
    if padding is None and not isinstance(q_offset, Tensor):
        square = q_length == kv_length and q_offset == kv_offset
        if not _compiling():
            kind = _plain_kind(interval, rows, kv_length, kv_offset, square)
        elif mask_function is masking_utils.bidirectional_mask_function:
            kind = EVERYTHING
        elif square and mask_function is masking_utils.causal_mask_function:
            kind = CAUSAL
    if kind is None:
        mask = _encode(interval, padding, rows, batch_size, kv_length, kv_offset)
    else:
        length = max(q_length, kv_length) + 1
        mask = torch.zeros((), dtype=torch.int32, device=device).expand(batch_size, 1, length, kind)
    return mask if _compiling() else GuardedMask.of(mask, _models.name_of(config))


def _plain_kind(
    interval: Interval, rows: Tensor, len_kv: int, kv_offset: int, square: bool
) -> int | None:
    """CAUSAL or EVERYTHING where that says all, else None. square: as many queries as keys."""
    beyond = kv_offset + len_kv
    if interval.begin is not None and not bool((interval.begin <= kv_offset).all()):
        return None
    if interval.end is None or bool((interval.end >= beyond).all()):
        return EVERYTHING
    return CAUSAL if square and bool((interval.end == rows + 1).all()) else None


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
    kind = mask.shape[-1]
    known = mask.ndim == 4 and INTERVALS <= kind <= EVERYTHING and mask.shape[1] == 1
    # EVERYTHING holds for any number of keys: BERT as a decoder, without is_decoder, makes its mask
    # for the new token and attends to the cache's keys too.
    fits = known and (kind == EVERYTHING or mask.shape[2] == max(len_q, len_kv) + 1)
    if not fits or mask.shape[0] not in (1, batch):
        raise ValueError(
            f"libattn.hf: an attention_mask of {mask.dtype} and shape {list(mask.shape)} isn't the "
            f"one that libattn made for batch {batch}, {len_q} queries and {len_kv} keys: the "
            "model changed it on the way; use another attn_implementation for this model"
        )
    if kind in (CAUSAL, EVERYTHING):
        return Visible(kind)
    keys = None
    if kind == INTERVALS_AND_KEYS:
        keys = mask[:, :, None, :len_kv, 2].to(torch.uint8)
    begin, end = (mask[:, 0, :len_q, column].contiguous() for column in (0, 1))
    return Visible(kind, begin, end, keys)


def _as_transformers_makes_it(arguments: dict[str, Any]) -> Tensor | None:
    """transformers' boolean mask [batch, 1, len_q, len_kv], True = visible."""
    if torch.__version__.startswith("2.4."):
        # transformers would show all keys to a query that sees none, for that PyTorch's sdpa.
        arguments["allow_torch_fix"] = False
    mask: Tensor | None = masking_utils.sdpa_mask(allow_is_causal_skip=False, **arguments)
    return mask


def _compiling() -> bool:
    """Whether torch.compile traces: then no step may depend on what a tensor holds."""
    return bool(torch.compiler.is_compiling())


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
    len_q, device = rows.shape[1], rows.device
    begin = None if interval.begin is None else (interval.begin - kv_offset).clamp(0, len_kv)
    end = None if interval.end is None else (interval.end - kv_offset).clamp(0, len_kv)
    holes = False
    if padding is not None and len_kv > 0:
        as_numbers = padding.to(torch.uint8)
        count = padding.sum(-1, keepdim=True)
        first = as_numbers.argmax(-1, keepdim=True)
        last = torch.where(count > 0, len_kv - as_numbers.flip(-1).argmax(-1, keepdim=True), 0)
        begin = first if begin is None else torch.maximum(begin, first)
        end = last if end is None else torch.minimum(end, last)
        holes = _compiling() or bool(((count > 0) & (last - first != count)).any())
    kind = INTERVALS_AND_KEYS if holes else INTERVALS
    # Rows of kv_begin, kv_end and the flags are contiguous in memory. A constant is written to the
    # entire row: the C++ of torch 2.11's inductor doesn't compile for constants in a part of it.
    shape = (batch, 1, kind, max(len_q, len_kv) + 1)
    parts = torch.zeros(shape, dtype=torch.int32, device=device)
    if begin is not None:
        parts[:, 0, 0, :len_q] = begin
    if end is not None:
        parts[:, 0, 1, :len_q] = end
    else:
        parts[:, 0, 1] = len_kv
    if holes and padding is not None:
        parts[:, 0, 2, :len_kv] = padding
    return parts.transpose(-1, -2)
