"""libattn behind transformers' attention interface: one layer's attention.

Inputs: query, key, value [batch, heads, length, dim] after rotary embedding and cache update, and
the layer's options by name. Result: [batch, len_q, heads, dim]. Grouped heads are not
repeated and nothing is transposed in memory: libattn reads the strides as they are.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

import libattn.torch
from libattn import Unsupported
from libattn.hf import _documents, _mask
from libattn.hf._guarded import unguarded
from libattn.hf._record import Call, note, recording

# Calls without gradients go to decode up to this number of queries: it also splits along the keys.
_DECODE_QUERIES = 16

# Head dimensions that libattn computes; a test holds this against the library.
LARGEST_DIM = 512

# Arguments of single models' layers that change what is computed and have no counterpart here.
_REFUSED = {
    "cache": "continuous batching's paged cache",
    "block_indices": "block-sparse attention by indices",
    "indices": "sparse attention by indices",
    "sinks": "one sink logit per query",
    "head_mask": "a mask of heads",
    "layer_head_mask": "a mask of heads",
}


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    position_ids: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """One layer's attention: transformers' attention interface.

    query [b, h, n, dim], key [b, g, m, dim], value [b, g, m, dim_vo]; result [b, n, h, dim_vo].

    - attention_mask: None; what `libattn.hf._mask.visible_keys` made; a padding mask [b, m]; or a
      caller's own mask [b|1, h|1, n|1, m|1], boolean (True = visible) or floating (added).
      A mask says all about visibility. Without one, is_causal (else module.is_causal, else True;
      the last query sees the last key) and sliding_window (keys at a distance under it) do.
    - s_aux: the logits of the sinks [h], with gradient. position_bias: added to the scaled scores,
      [b|1, h|1, n|1, m|1], with gradient. softcap, scaling, dropout: as in libattn.attention.
    - cu_seq_lens_q, cu_seq_lens_k: i32 [documents + 1], the bounds of documents packed in the one
      row of the batch; is_causal then holds inside each document.
    - position_ids: [batch | 1, n]: where they restart at 0, a causal layer's new document begins;
      not with a caller's own mask.

    Errors: libattn.Unsupported for output_attentions=True, for head dims above LARGEST_DIM and for
    single models' arguments that change the computation (the list above); ValueError for what
    libattn.torch.attention refuses.
    """
    _refuse(module, others, max(query.shape[3], value.shape[3]))
    batch, heads, len_q = query.shape[:3]
    len_kv = key.shape[2]
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    options: dict[str, Any] = {"scale": scaling, "softcap": softcap or None}
    if s_aux is not None:
        options["sinks"] = _sinks(s_aux, heads, query.dtype)
    arrived = None if attention_mask is None else unguarded(attention_mask)
    if arrived is not None and arrived.ndim == 2:
        padding = _mask.of_padding(arrived, len_q, len_kv, causal, sliding_window)
        arrived = None if padding is None else unguarded(padding)
    kind = _set_visibility(options, arrived, batch, len_q, len_kv, causal, sliding_window)
    if kind not in ("mask", "bias"):
        packed = None
        if cu_seq_lens_q is not None:
            packed = _documents.of_bounds(
                cu_seq_lens_q, cu_seq_lens_k, batch, len_q, len_kv, causal, sliding_window
            )
        elif causal and len_q == len_kv > 1 and position_ids is not None:
            packed = _documents.of_positions(position_ids, batch, len_q)
        if packed is not None:
            _narrow(options, *packed)
            kind = "intervals" if kind == "none" else kind
    if position_bias is not None:
        given = options.get("bias")
        options["bias"] = position_bias if given is None else position_bias + given
    for name in ("mask", "bias"):
        if options.get(name) is not None:
            options[name] = _broadcast_rows(options[name])
    with_gradient = [tensor for tensor in (s_aux, position_bias) if tensor is not None]
    output, operation = _compute(query, key, value, dropout, options, with_gradient)
    if recording():
        elements = 0 if attention_mask is None else _elements(attention_mask)
        layer = getattr(module, "layer_idx", None)
        name = type(module).__name__
        note(Call(layer, name, operation, kind, elements, batch, len_q, len_kv))
    return output, None


def _compute(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout: float,
    options: dict[str, Any],
    with_gradient: list[Tensor],
) -> tuple[Tensor, str]:
    """The result [b, n, h, dim_vo] and the operation that computed it: "decode" or "attention"."""
    q, k, v = (_rows(tensor.transpose(1, 2)) for tensor in (query, key, value))
    wants_gradient = torch.is_grad_enabled() and any(
        tensor.requires_grad for tensor in (q, k, v, *with_gradient)
    )
    # Autocast casts keys and values for attention only; decode leaves a cache in its own type.
    casts = torch.is_autocast_enabled(query.device.type)
    if not (wants_gradient or casts or dropout) and query.shape[2] <= _DECODE_QUERIES:
        return libattn.torch.decode(q, k, v, **options), "decode"
    return libattn.torch.attention(q, k, v, dropout_p=dropout, **options), "attention"


def _refuse(module: nn.Module, others: dict[str, Any], dim: int) -> None:
    if dim > LARGEST_DIM:
        raise Unsupported(
            f"libattn.hf: {type(module).__name__} has head dim {dim}, libattn computes up to "
            f'{LARGEST_DIM}; use attn_implementation="sdpa" for this model'
        )
    config = getattr(module, "config", None)
    if others.get("output_attentions") or getattr(config, "output_attentions", False):
        raise Unsupported(
            "libattn.hf: output_attentions=True asks for the attention weights, "
            'which libattn never stores; use attn_implementation="eager" to see them'
        )
    for name, meaning in _REFUSED.items():
        if others.get(name) is not None:
            raise Unsupported(
                f"libattn.hf: {type(module).__name__} passes {name} ({meaning}), "
                "which libattn doesn't compute; use another attn_implementation for this model"
            )


def _set_visibility(
    options: dict[str, Any],
    mask: Tensor | None,
    batch: int,
    len_q: int,
    len_kv: int,
    causal: bool,
    window: int | None,
) -> str:
    """Adds the options that say which keys are visible; returns Call.mask."""
    if mask is None:
        options["causal"] = causal
        if window is not None:
            options["window"] = (window - 1, 0 if causal else window - 1)
        return "none"
    if mask.dtype == torch.int32:
        visible = _mask.take_apart(mask, batch, len_q, len_kv)
        if visible.kv_begin is None:
            options["causal"] = visible.kind == _mask.CAUSAL
            return "none"
        options["kv_begin"], options["kv_end"] = visible.kv_begin, visible.kv_end
        if visible.keys is None:
            return "intervals"
        options["mask"] = visible.keys
        return "intervals and keys"
    if mask.ndim == 4 and mask.dtype == torch.bool:
        options["mask"] = mask
        return "mask"
    if mask.ndim == 4 and mask.is_floating_point():
        options["bias"] = mask
        return "bias"
    raise ValueError(
        f"libattn.hf: attention_mask has type {mask.dtype} and shape {list(mask.shape)}; accepted "
        "are [batch, positions], and [batch|1, heads|1, len_q|1, len_kv|1] of bool or floating type"
    )


def _narrow(options: dict[str, Any], begin: Tensor, end: Tensor) -> None:
    """Also hides the keys outside [begin, end), i32 [batch | 1, len_q]."""
    if "kv_begin" in options:
        begin = torch.maximum(begin, options["kv_begin"])
        end = torch.minimum(end, options["kv_end"])
    options["kv_begin"], options["kv_end"] = begin, end


def _sinks(logits: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
    """[h] in f32 (f64 with f64 inputs), as libattn takes it; the cast passes the gradient on."""
    if logits.numel() != heads:
        raise ValueError(
            f"libattn.hf: s_aux has shape {list(logits.shape)}; one logit for each of {heads} "
            "heads is accepted"
        )
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return logits.reshape(heads).to(wide)


def _elements(mask: Tensor) -> int:
    """How many elements a mask has in memory: expanded dimensions count as 1."""
    lengths = zip(mask.shape, mask.stride(), strict=True)
    return math.prod(length for length, stride in lengths if stride != 0)


def _rows(tensor: Tensor) -> Tensor:
    """The tensor itself, or a copy where the elements of a row don't lie side by side."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


def _broadcast_rows(tensor: Tensor) -> Tensor:
    """As `_rows`, for what broadcasts: a row expanded from one element is that element.

    T5's position_bias is copied, because it is computed with the heads last.
    """
    return tensor[..., :1] if tensor.stride(-1) == 0 else _rows(tensor)
