"""Models on split sequences: what their layers call inside of `libattn.hf.sequence_parallel`.

The mask that a model prepares describes the rows of one rank as if they were a sequence. In its
place the layers get a tensor with the attribute `band`: whether attention is causal, and a window.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import masking_utils

import libattn.distributed
from libattn import Unsupported
from libattn.hf import _attention, _intervals, _models

NAME = "libattn_sequence_parallel"
_WHERE = "libattn.hf.sequence_parallel"


@dataclass(frozen=True)
class Band:
    """causal, and window: (left, right), None = unlimited."""

    causal: bool = False
    left: int | None = None
    right: int | None = None

    def __and__(self, other: Band) -> Band:
        def least(a: int | None, b: int | None) -> int | None:
            return b if a is None else a if b is None else min(a, b)

        causal = self.causal or other.causal
        return Band(causal, least(self.left, other.left), least(self.right, other.right))


_active: list[Callable[..., Any]] = []


def _band_of(function: Any) -> Band:
    """What transformers' mask function says; raises Unsupported for what is no band."""
    if function is None or function is masking_utils.causal_mask_function:
        return Band(causal=True)
    if function is masking_utils.bidirectional_mask_function:
        return Band()
    if isinstance(function, FunctionType):
        captured = _intervals._captured(function)
        if _intervals._is_made_by(function, "and_masks"):
            found = Band()
            for part in captured["mask_functions"]:
                found &= _band_of(part)
            return found
        if _intervals._is_made_by(function, "sliding_window_overlay"):
            return Band(left=captured["sliding_window"] - 1)
        if _intervals._is_made_by(function, "sliding_window_bidirectional_overlay"):
            return Band(left=captured["sliding_window"], right=captured["sliding_window"])
        # Rows that do not follow each other look like packed documents to transformers. Real ones
        # are refused by _check_positions.
        if _intervals._is_made_by(function, "packed_sequence_mask_function"):
            return Band()
        if _intervals._is_made_by(function, "remap_positions_for_packed_sequence"):
            return _band_of(captured["mask_function"])
    raise Unsupported(
        f"{_WHERE}: the model has a mask that is neither causal nor a window, which is not known "
        "for rows of other ranks"
    )


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    *unused: Any,
    mask_function: Any = None,
    attention_mask: Tensor | None = None,
    device: Any = "cpu",
    **others: Any,
) -> Tensor:
    """transformers' mask interface: a tensor with `band`, which fails to broadcast with scores."""
    if attention_mask is not None and not bool(attention_mask.all()):
        raise Unsupported(
            f"{_WHERE}: attention_mask: found padding; accepted rows without padding, documents by "
            "kv_begin="
        )
    length = max(q_length, kv_length) + 1
    made = torch.zeros((), dtype=torch.int32, device=device).expand(batch_size, 1, length, 2)
    made.band = _band_of(mask_function)  # type: ignore[attr-defined]
    return made


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
    **others: Any,
) -> tuple[Tensor, None]:
    """One layer's attention over all ranks: as libattn.hf's, see there for the arguments."""
    if not _active:
        raise ValueError(f"{_WHERE}: the layer was called outside of the context manager")
    for name in ("position_bias", "cu_seq_lens_q"):
        if others.pop(name, None) is not None:
            raise Unsupported(f"{_WHERE}: {type(module).__name__} passes {name}; accepted: none")
    _attention._refuse(module, others, max(query.shape[3], value.shape[3]))
    if query.shape[2] != key.shape[2]:
        raise Unsupported(
            f"{_WHERE}: found {key.shape[2]} keys for {query.shape[2]} queries of a rank; accepted "
            "calls without a cache (libattn.distributed.decode has one)"
        )
    if attention_mask is None:
        causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
        band = Band(causal)
        if sliding_window is not None:
            band = Band(causal, sliding_window - 1, None if causal else sliding_window - 1)
    else:
        found = getattr(attention_mask, "band", None)
        if found is None:
            raise Unsupported(
                f"{_WHERE}: {type(module).__name__} got a mask of the model's or the caller's own; "
                "accepted: what transformers' mask functions make"
            )
        band = found
    options: dict[str, Any] = {"scale": scaling, "softcap": softcap or None}
    options |= {"causal": band.causal, "window": (band.left, band.right), "dropout_p": dropout}
    if s_aux is not None:
        options["sinks"] = _attention._sinks(s_aux, query.shape[1], query.dtype)
    q, k, v = (_attention._rows(x.transpose(1, 2)) for x in (query, key, value))
    return _active[-1](q, k, v, **options), None


def _check_positions(model: nn.Module, words: Any, options: dict[str, Any]) -> None:
    places = options.get("position_ids")
    if places is None:
        raise ValueError(
            f"{_WHERE}: position_ids: found none; accepted those of this rank's rows, "
            "libattn.distributed.positions(length, ...)[None]"
        )
    if bool((places[..., 1:] <= places[..., :-1]).any()):
        raise ValueError(
            f"{_WHERE}: position_ids: found some that restart; accepted increasing ones, and "
            "documents by kv_begin="
        )


@contextlib.contextmanager
def running(model: Any, attention: Callable[..., Any]) -> Iterator[None]:
    """Inside, the layers of a model call `attention(q, k, v, **options)`."""
    if not hasattr(model, "set_attn_implementation"):
        raise ValueError(f"{_WHERE}: model: found {type(model)}; accepted a PreTrainedModel")
    _models.check_class(type(model))
    _models.check_config(model.config)
    transformers.AttentionInterface.register(NAME, attention_forward)
    transformers.AttentionMaskInterface.register(NAME, mask)
    before = model.config._attn_implementation
    hook = model.register_forward_pre_hook(_check_positions, with_kwargs=True)
    _active.append(attention)
    try:
        model.set_attn_implementation(NAME)
        yield
    finally:
        _active.pop()
        hook.remove()
        model.set_attn_implementation(before)


def scheme(name: str, group: Any, mesh: Any, layout: Any, kv_begin: Any) -> Callable[..., Any]:
    """The attention of a scheme by its name, with these arguments."""
    fixed: dict[str, Any] = {} if kv_begin is None else {"kv_begin": kv_begin}
    if mesh is not None:
        call: Callable[..., Any] = libattn.distributed.mesh_attention
        fixed |= {"mesh": mesh, "layout": layout}
    elif name == "ring":
        call = libattn.distributed.ring_attention
        fixed |= {"group": group, "layout": layout}
    elif name == "all_to_all":
        if layout != "contiguous":
            raise ValueError(f"{_WHERE}: layout: found {layout!r}; accepted 'contiguous'")
        call = libattn.distributed.all_to_all_attention
        fixed |= {"group": group}
    else:
        raise ValueError(f"{_WHERE}: scheme: found {name!r}; accepted 'ring', 'all_to_all'")
    return lambda q, k, v, **options: call(q, k, v, **fixed, **options)
