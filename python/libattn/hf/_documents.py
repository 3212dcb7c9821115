"""Documents packed one after the other in a row of the batch: the keys of each query's document.

Two of transformers' ways to tell them apart reach a layer directly: cu_seq_lens, the bounds, and
position_ids that restart at 0. (Restarting position_ids also shape the mask of models that hand
them to transformers' mask functions without a cache; not all do.)
"""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

Interval = tuple[Tensor, Tensor]  # kv_begin, kv_end: i32 [batch | 1, len_q]


def of_bounds(
    cu_q: Tensor,
    cu_k: Tensor | None,
    batch: int,
    len_q: int,
    len_kv: int,
    causal: bool,
    window: int | None,
) -> Interval:
    """The keys that each query sees of its document, causality and window counted inside it.

    cu_q, cu_k: [documents + 1] running lengths; cu_k None = cu_q. The last query of a document
    is aligned with its last key; queries past cu_q's last entry see nothing. Raises ValueError for
    a batch of more than one row.
    """
    if batch != 1:
        raise ValueError(
            f"libattn.hf: cu_seq_lens_q describes documents packed in one row, the batch has "
            f"{batch}; give the documents of several rows by position_ids"
        )
    device = cu_q.device
    cu_q = cu_q.to(torch.int64)
    cu_k = cu_q if cu_k is None else cu_k.to(device, torch.int64)
    rows = torch.arange(len_q, device=device)
    after = torch.searchsorted(cu_q, rows, right=True).clamp(1, cu_q.numel() - 1)
    begin, end = cu_k[after - 1], cu_k[after]
    beside = rows + end - cu_q[after]
    if causal:
        end = torch.minimum(end, beside + 1)
    if window is not None:
        begin = torch.maximum(begin, beside - window + 1)
        end = torch.minimum(end, beside + window)
    end = torch.where(rows < cu_q[-1], end, 0).clamp(0, len_kv)
    return begin[None].to(torch.int32), end[None].to(torch.int32)


# The last position_ids asked about, its version and the answer: a model asks once a layer.
_last: tuple[weakref.ref[Tensor], int, Interval | None] | None = None


def of_positions(position_ids: Tensor, batch: int, length: int) -> Interval | None:
    """The document of each query by position_ids [batch | 1, length] that restart at 0.

    None where they don't restart, or go otherwise than up by one or back to 0 (several axes,
    padding counted in other ways): then they say nothing about documents.
    """
    global _last
    if position_ids.ndim != 2 or position_ids.shape[1] != length:
        return None
    if position_ids.shape[0] not in (1, batch):
        return None
    if torch.compiler.is_compiling() or position_ids.is_inference():
        return _by_restarts(position_ids)
    version = position_ids._version
    known = _last
    if known is not None and known[0]() is position_ids and known[1] == version:
        return known[2]
    found = _by_restarts(position_ids)
    _last = (weakref.ref(position_ids), version, found)
    return found


def _by_restarts(positions: Tensor) -> Interval | None:
    restarts = positions[:, 1:] == 0
    usual = restarts | (positions[:, 1:] == positions[:, :-1] + 1)
    packed = usual.all() & restarts.any()
    compiling = torch.compiler.is_compiling()
    if not compiling and not bool(packed):
        return None
    length = positions.shape[1]
    rows = torch.arange(length, device=positions.device)
    # Each restart, and the row's start and end, at its place; else the neutral element.
    starts = torch.nn.functional.pad(torch.where(restarts, rows[1:], 0), (1, 0))
    ends = torch.nn.functional.pad(torch.where(restarts, rows[1:], length), (0, 1), value=length)
    begin = starts.cummax(-1).values
    end = ends.flip(-1).cummin(-1).values.flip(-1)
    if compiling:
        begin, end = torch.where(packed, begin, 0), torch.where(packed, end, length)
    return begin.to(torch.int32), end.to(torch.int32)
