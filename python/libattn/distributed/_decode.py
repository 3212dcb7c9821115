"""decode over a cache that is split by keys: one partial result a rank, merged by lse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

import libattn

from .. import Options
from .._convert import convert
from .._facts import wrong_type
from ..torch import _attention as _torch
from ..torch import _checks
from . import _transport
from ._arguments import refuse
from ._call import wide
from ._eager import eager
from ._groups import Fact, Group, agree, failed, group_of
from ._ring import merge_into
from ._transport import Form

if TYPE_CHECKING:
    from typing_extensions import Unpack

_LOCAL: Any = libattn.decode
_REFUSED = {
    "dropout_p": "decode has no dropout",
    "kv_begin": "each rank has other keys",
    "kv_end": "each rank has other keys",
    "rope": "rotate q and the new keys before the call",
    "origin": "positions follow from the lengths of all ranks",
    "cu_len_q": "sequences are [b, ...]",
    "cu_len_kv": "sequences are [b, ...]",
    "diagonal": "the last query sees the last key",
    "len_q": "all sequences have the same queries",
    "workspace": "scratch memory comes from PyTorch's allocator or libattn's pool",
    "stream": "the work goes to the current stream of the tensors' device",
    "device": "the tensors' device decides",
    "nonfinite_count": "there is no count over all ranks",
}


def _check(q: Any, k: Any, v: Any, block_table: Any, options: dict[str, Any]) -> dict[str, Any]:
    _torch._check_tensors("decode", q, k, v)
    given = {name: x for name, x in options.items() if x is not None}
    for name in given:
        if name in _REFUSED:
            raise refuse("decode", name, "one", f"none: {_REFUSED[name]}")
        if name not in Options.__annotations__:
            raise refuse("decode", "option", repr(name), "those of libattn.decode")
    for name, x in (("q", q), ("k_cache", k), ("v_cache", v)):
        if x.dim() != 4:
            raise refuse("decode", f"shape of {name}", list(x.shape), "4 dimensions")
        if x.requires_grad and torch.is_grad_enabled():
            raise refuse("decode", name, "a tensor that requires a gradient", "torch.no_grad()")
    if q.size(3) != k.size(3) or k.size(2) != v.size(2) or q.size(2) % max(1, k.size(2)):
        found = f"q {list(q.shape)}, k_cache {list(k.shape)}, v_cache {list(v.shape)}"
        raise refuse("decode", "shapes", found, "heads of q in multiples of the caches', one dim")
    lengths = given.pop("len_kv", None)
    if lengths is None:
        if block_table is not None:
            raise refuse("decode", "len_kv", "none with block_table", "i32 [b]")
        lengths = torch.full((q.size(0),), k.size(1), dtype=torch.int32, device=q.device)
    lengths = _checks.integers("decode", "len_kv", lengths, q)
    lengths = _checks.checked("decode", _as_int32, "len_kv", lengths)
    if tuple(lengths.shape) != (q.size(0),):
        raise refuse("decode", "shape of len_kv", list(lengths.shape), f"[{q.size(0)}]")
    return {**given, "len_kv": lengths}


def _as_int32(name: str, x: Tensor) -> Tensor:
    arrays: dict[str, Tensor] = {name: x}
    convert(arrays, x, None)
    if arrays[name].dtype != torch.int32:
        raise wrong_type(name, x.dtype)
    return arrays[name]


def _gather(group: Group, mine: Tensor, kind: str) -> list[Tensor]:
    if group.size == 1:
        return [mine]
    parts = [torch.empty_like(mine) for _ in range(group.size)]
    try:
        dist.all_gather(parts, mine, group=group.handle)
    except RuntimeError as error:
        raise failed(group, "the merge of decode's results", error) from error
    bytes_ = mine.numel() * mine.element_size() * (group.size - 1)
    _transport.count(kind, bytes_, bytes_)
    return parts


def _visible(
    group: Group, q: Tensor, keys: int, given: dict[str, Any], options: dict[str, Any]
) -> None:
    """Turns causal, window and ALiBi into ranges of this rank's keys, and a bias."""
    causal = given.pop("causal", False)
    left, right = given.pop("window", None) or (None, None)
    slopes = given.pop("alibi_slopes", None)
    if not causal and left is None and right is None and slopes is None:
        return
    parts = _gather(group, given["len_kv"].contiguous(), "merge")
    before = sum((x.long() for x in parts[: group.rank]), torch.zeros_like(parts[0]).long())
    total = sum((x.long() for x in parts), torch.zeros_like(parts[0]).long())
    # The place of query i among this rank's keys, [b, n]; it may lie before or after all of them.
    at = (total - before - q.size(1))[:, None] + torch.arange(q.size(1), device=q.device)
    last = at if causal else None
    if right is not None:
        last = at + (0 if causal else right)
    if last is not None:
        options["kv_end"] = (last + 1).clamp(0, 2**31 - 1).to(torch.int32)
    if left is not None:
        options["kv_begin"] = (at - left).clamp(0, 2**31 - 1).to(torch.int32)
    if slopes is not None:
        slopes = slopes if slopes.dim() == 2 else slopes[None]
        apart = (at[:, None, :, None] - torch.arange(keys, device=q.device)).abs()
        alibi = -slopes[:, :, None, None] * apart.to(slopes.dtype)  # [b, h, n, keys]
        bias = given.get("bias")
        given["bias"] = alibi if bias is None else alibi + bias


@eager
def decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    group: Any = None,
    block_table: Tensor | None = None,
    split_keys: int | None = None,
    return_lse: bool = False,
    **options: Unpack[Options],
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of few queries over a cache that is split over ranks by keys. Without gradient.

    Every rank computes the queries over its own keys; then one all-gather moves the results, f32,
    and each rank merges them by their lse in the same order: all ranks get the same bits.

    q: [b, n, h, dim_qk], the same on all ranks.
    k_cache, v_cache: this rank's keys, [b, m, g, dim], or paged [pages, page_size, g, dim]; m may
        differ. The keys of a rank come after those of the ranks before it.
    group: a ProcessGroup, a DeviceMesh of one dimension, or None for all processes.
    block_table: i32 [b, pages per sequence] with paged caches, then with len_kv.
    split_keys: as in libattn.decode.
    return_lse: return (o, lse).
    options: causal, window, alibi_slopes, softcap, sinks (counted once), scale, precision,
        deterministic; len_kv i32 [b]: rows in use of this rank's cache; mask and bias
        [b|1, h|1, n|1, m|1] of this rank's keys. The last query is at the last key of all ranks.
        With causal, window or alibi_slopes the ranks also exchange len_kv. Others are refused.

    Returns o [b, n, h, dim_vo], and lse [b, h, n], on every rank. Raises ValueError for a broken
    rule, on all ranks; TransportError where another rank ended.
    """
    ranks = group_of("decode", group)
    given: dict[str, Any] = {}
    error: Exception | None = None
    facts: list[Fact] = []
    try:
        given = _check(q, k_cache, v_cache, block_table, dict(options))
        facts = _facts(q, k_cache, v_cache, given)
    except Exception as found:
        error = found
    like = q if isinstance(q, Tensor) else torch.empty(0)
    agree("decode", ranks, facts, like, error)
    sinks = given.pop("sinks", None)
    local: dict[str, Any] = {}
    pages = 1 if block_table is None else block_table.size(1)
    keys = k_cache.size(1) * pages
    _visible(ranks, q, keys, given, local)
    if ranks.rank == 0 and sinks is not None:
        local["sinks"] = sinks.detach()
    kind = wide(q.dtype)
    o, lse = _LOCAL(
        *(x.detach() for x in (q, k_cache, v_cache)),
        block_table=block_table,
        split_keys=split_keys,
        return_lse=True,
        out_dtype=None if kind == q.dtype else kind,
        **given,
        **local,
    )
    form = Form((tuple(o.shape), tuple(lse.shape)), (o.dtype, lse.dtype))
    if form.bytes:
        parts = _gather(ranks, form.pack([o, lse]), "merge")
        o, lse = form.tensors(parts[0])
        for part in parts[1:]:
            merge_into(o, lse, *form.tensors(part))
    o = o.to(q.dtype)
    return (o, lse) if return_lse else o


def _facts(q: Tensor, k: Tensor, v: Tensor, given: dict[str, Any]) -> list[Fact]:
    window = given.get("window") or (None, None)
    names = ("alibi_slopes", "sinks", "bias", "mask")
    return [
        *(
            Fact(f"{name} of q", q.size(at))
            for at, name in enumerate(("batch", "rows", "heads", "dim"))
        ),
        Fact("heads of the caches", k.size(2)),
        Fact("dim of v_cache", v.size(3)),
        Fact("causal", int(bool(given.get("causal")))),
        Fact("window", window[0]),
        Fact("window", window[1]),
        Fact("softcap", float(given.get("softcap") or 0.0)),
        Fact("scale", None if given.get("scale") is None else float(given["scale"])),
        Fact(
            "options given", sum(1 << at for at, n in enumerate(names) if n in given), names=names
        ),
    ]
