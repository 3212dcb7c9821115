"""Attention with a pair bias: cuEquivariance's triangle_attention and DeepSpeed's
DS4Sci_EvoformerAttention on libattn.

Sequences of a batch are grouped: the N sequences of batch entry b share entry b of the bias, and
the gradient of the bias is summed over them. docs/coming_from.md lists what differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._values import boolean, real, shown
from ._attention import _autocast_type, _cast, attention
from ._checks import checked
from ._schema import refuse_tracing

__all__ = ["evoformer_attention", "triangle_attention"]

_HIDES = -1e4  # additive masks hide keys with -1e9, with -6e4 in f16; no score reaches this
_CHUNK_BYTES = 1 << 28  # limit for the scores that _maxima holds at once


def _refuse(function: str, rule: str, found: object, accepted: str) -> ValueError:
    return ValueError(f"{function}: {rule}: found {found}; accepted {accepted}")


def _tensors(function: str, ranks: tuple[int, ...], **tensors: Any) -> None:
    for name, x in tensors.items():
        if not isinstance(x, Tensor):
            raise _refuse(function, f"type of {name}", shown(x), "a torch.Tensor")
        if x.dim() not in ranks:
            accepted = " or ".join(map(str, ranks))
            raise _refuse(function, f"rank of {name}", f"shape {tuple(x.shape)}", accepted)


def _same_batch(function: str, **tensors: Tensor) -> None:
    (first, q), *others = tensors.items()
    for name, x in others:
        if x.shape[:2] != q.shape[:2]:
            found = f"{tuple(x.shape[:2])} next to {tuple(q.shape[:2])} of {first}"
            raise _refuse(function, f"batch dimensions of {name}", found, "the same")


def _dense(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 or x.size(-1) <= 1 else x.contiguous()


def _once(x: Tensor) -> Tensor:
    """The first of the leading entries, where they are expanded from one."""
    return x[:1] if x.size(0) > 1 and x.stride(0) == 0 else x


def _pair_bias(function: str, name: str, bias: Any, q: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A bias [B, 1, H, Q, K] as [B, H, Q, K]; a group of sequences shares each entry. Without
    sequences (N = 0) there are no entries."""
    _tensors(function, (5,), **{name: bias})
    if not bias.is_floating_point():
        raise _refuse(function, f"type of {name}", bias.dtype, "a floating-point type")
    if bias.shape != shape:
        raise _refuse(function, f"shape of {name}", tuple(bias.shape), str(shape))
    bias = bias.squeeze(1)
    if q.dtype == torch.float64 or bias.dtype == torch.float64:
        bias = bias.to(q.dtype)
    return _once(_dense(bias)) if q.size(1) else bias[:0]


def _key_mask(function: str, mask: Tensor, batch: tuple[int, int], keys: int) -> Tensor:
    """A mask [B|1, N|1, 1, 1, K] as bool [B * N|B|1, 1, 1, K]."""
    sizes = (*batch, 1, 1, keys)
    fits = all(size in (1, full) for size, full in zip(mask.shape, sizes, strict=True))
    if not fits or mask.size(-1) != keys:
        raise _refuse(function, "shape of mask", tuple(mask.shape), str(sizes))
    mask = mask if mask.dtype == torch.bool else mask != 0
    if batch[1] == 0:
        return mask[:, :0].expand(batch[0], 0, *mask.shape[2:]).flatten(0, 1)
    if mask.size(1) == 1:  # the sequences of an entry share it
        return _dense(mask[:, 0])
    return _dense(mask.expand(batch[0], *mask.shape[1:]).flatten(0, 1))


def _lengths(function: str, lengths: Any, batch: tuple[int, int]) -> Tensor:
    if not isinstance(lengths, Tensor) or lengths.dtype not in (torch.int32, torch.int64):
        raise _refuse(function, "type of kv_lengths", shown(lengths), "an int32 or int64 tensor")
    if tuple(lengths.shape) not in ((*batch, 1, 1, 1), batch):
        raise _refuse(function, "shape of kv_lengths", tuple(lengths.shape), f"{(*batch, 1, 1, 1)}")
    return lengths.reshape(-1)


def _precision(q: Tensor) -> dict[str, Any]:
    """PyTorch's global switch for f32 products decides, as in cuEquivariance."""
    if q.dtype != torch.float32 or q.device.type != "cuda":
        return {}
    return {"precision": "tf32"} if torch.backends.cuda.matmul.allow_tf32 else {}


@torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
def _maxima(q: Tensor, k: Tensor, scale: float | None, options: dict[str, Any]) -> Tensor:
    """The largest visible score of each row, [b, h, n], by matrix products of some sequences."""
    scale = q.size(-1) ** -0.5 if scale is None else scale
    bias, mask, lengths = (options.get(name) for name in ("bias", "mask", "len_kv"))
    dtype = _autocast_type(q)
    if dtype is not None:
        # Autocast rounds the inputs as for attention, so that the maximum belongs to its lse. The
        # product stays in f32.
        q, k = _cast(q, dtype), _cast(k, dtype)
        bias = None if bias is None else _cast(bias, dtype)
    with torch.autocast(q.device.type, enabled=False):
        return _largest(q, k, scale, bias, mask, lengths)


def _largest(
    q: Tensor,
    k: Tensor,
    scale: float,
    bias: Tensor | None,
    mask: Tensor | None,
    lengths: Tensor | None,
) -> Tensor:
    batch, n, heads = q.shape[:3]
    found = q.new_empty((batch, heads, n), dtype=torch.promote_types(q.dtype, torch.float32))
    step = max(1, _CHUNK_BYTES // max(1, heads * n * k.size(1) * found.element_size()))

    def of(x: Tensor, first: int, last: int) -> Tensor:
        at = torch.arange(first, last, device=x.device) * x.size(0) // batch
        return x[at]

    for first in range(0, batch, step):
        last = min(first + step, batch)
        rows, keys = (x[first:last].to(found.dtype).transpose(1, 2) for x in (q, k))
        scores = scale * (rows @ keys.transpose(-1, -2))
        if bias is not None:
            scores += of(bias, first, last)
        if mask is not None:
            scores.masked_fill_(~of(mask, first, last), -torch.inf)
        if lengths is not None:
            past = torch.arange(k.size(1), device=k.device) >= lengths[first:last, None]
            scores.masked_fill_(past[:, None, None], -torch.inf)
        empty = scores.new_full((*scores.shape[:-1], 1), -torch.inf)
        found[first:last] = torch.cat((scores, empty), -1).amax(-1)
    return found


def triangle_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor,
    mask: Tensor | None = None,
    scale: float | None = None,
    return_aux: bool = False,
    *,
    kv_lengths: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor, Tensor]:
    """Attention with the signature of cuequivariance_torch.triangle_attention.

    Jumper et al. 2021 (AlphaFold 2), supplementary algorithms 13 and 14.

    q: [B, N, H, Q, D]; k, v: [B, N, H, K, D]. f32, f16, bf16 or f64, any strides.
    bias: [B, 1, H, Q, K], added to the scores of all N sequences of an entry; its gradient has its
        type and is summed over N. The type is free (f64 goes with f64).
    mask: [B, N, 1, 1, K] bool, True = may attend; other types are compared with 0. B, N can be 1.
    scale: None = 1 / sqrt(D).
    return_aux: return (o, lse, max): the natural logarithm of each row's sum of exponentials, and
        its largest score, [B, N, H, Q, 1] f32. The maximum has no gradient and costs a second
        product of q and k: request it only for comparisons.
    kv_lengths: integers [B, N, 1, 1, 1] or [B, N]: the keys of each sequence that are in use.

    All tensors can lack B if it is 1; the results then do too.

    Returns o [B, N, H, Q, D], a view of [B, N, Q, H, D] memory. A row without a key is 0 (in
    cuEquivariance the mean of v), its lse and maximum -inf. Gradients flow to q, k, v and bias.
    f32 products on CUDA are as exact as f32's unless torch.backends.cuda.matmul.allow_tf32 is on.
    Raises ValueError for a broken rule, libattn.Unsupported if no backend supports the call.
    Source: the documentation of cuequivariance_torch.triangle_attention.
    """
    name = "triangle_attention"
    if not torch.compiler.is_compiling():
        refuse_tracing(name)
    return_aux = checked(name, boolean, "return_aux", return_aux)
    scale = None if scale is None else checked(name, real, "scale", scale)
    _tensors(name, (4, 5), q=q, k=k, v=v)
    without_batch = q.dim() == 4
    given = {"k": k, "v": v, "bias": bias, "mask": mask}
    for other, x in given.items():
        if isinstance(x, Tensor) and x.dim() != q.dim():
            found = f"shape {tuple(x.shape)}"
            raise _refuse(name, f"rank of {other}", found, f"{q.dim()}, as of q")
    if without_batch:
        q, k, v = q[None], k[None], v[None]
        bias = bias[None] if isinstance(bias, Tensor) else bias
        mask = mask[None] if isinstance(mask, Tensor) else mask
        if isinstance(kv_lengths, Tensor):
            kv_lengths = kv_lengths[None]
    _same_batch(name, q=q, k=k, v=v)
    batch = (q.size(0), q.size(1))
    shape = (batch[0], 1, q.size(2), q.size(3), k.size(3))
    options: dict[str, Any] = {"bias": _pair_bias(name, "bias", bias, q, shape), **_precision(q)}
    if mask is not None:
        _tensors(name, (5,), mask=mask)
        options["mask"] = _key_mask(name, mask, batch, k.size(3))
    if kv_lengths is not None:
        options["len_kv"] = _lengths(name, kv_lengths, batch)
    rows = [_dense(x.flatten(0, 1).transpose(1, 2)) for x in (q, k, v)]
    found, lse = attention(*rows, scale=scale, return_lse=True, **options)
    found = found.transpose(1, 2).unflatten(0, batch)
    o: Tensor = found[0] if without_batch else found
    if not return_aux:
        return o
    most = _maxima(rows[0], rows[1], scale, options)
    lse, most = (x.unflatten(0, batch)[..., None] for x in (lse, most))
    return (o, lse[0], most[0]) if without_batch else (o, lse, most)


def _hides_only(mask: Tensor) -> bool:
    """Whether an additive mask only leaves keys (0) or hides them. Waits for the device."""
    return bool(((mask == 0) | (mask <= _HIDES)).all())


def _evoformer_options(
    q: Tensor, k: Tensor, res_mask: Any, pair_bias: Any, batch: tuple[int, int]
) -> dict[str, Any]:
    name = "evoformer_attention"
    heads, keys = q.size(3), k.size(2)
    options: dict[str, Any] = {}
    if pair_bias is not None:
        shape = (batch[0], 1, heads, q.size(2), keys)
        options["bias"] = _pair_bias(name, "pair_bias", pair_bias, q, shape)
    if res_mask is None:
        return options
    _tensors(name, (5,), res_mask=res_mask)
    if res_mask.shape != (*batch, 1, 1, keys):
        accepted = str((*batch, 1, 1, keys))
        raise _refuse(name, "shape of res_mask", tuple(res_mask.shape), accepted)
    if res_mask.dtype == torch.bool:
        return {**options, "mask": _key_mask(name, res_mask, batch, keys)}
    learned = torch.is_grad_enabled() and res_mask.requires_grad
    if not learned and _hides_only(res_mask):
        return {**options, "mask": _key_mask(name, res_mask > _HIDES, batch, keys)}
    # Both biases have a gradient, or the mask is a bias: their sum is made.
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    added = res_mask.to(wide).flatten(0, 1)
    if pair_bias is not None:
        added = added.unflatten(0, batch) + pair_bias.to(wide)
        added = added.flatten(0, 1)
    return {"bias": added}


def evoformer_attention(Q: Tensor, K: Tensor, V: Tensor, biases: Sequence[Tensor | None]) -> Tensor:
    """Attention with the signature of deepspeed.ops.deepspeed4science.DS4Sci_EvoformerAttention.

    Jumper et al. 2021 (AlphaFold 2), supplementary algorithms 7, 13 and 14.

    Q, K, V: [B, N, S, H, D]; f32, f16, bf16 or f64, any strides. K and V can have another length.
    biases: up to two, each may be None: res_mask [B, N, 1, 1, S], pair_bias [B, 1, H, S, S].
        res_mask: bool (True = may attend), or numbers that are added to the scores. Numbers that
        need no gradient and are 0, or at most -1e4 to hide a key, are a mask; finding that out
        waits for the device, which bool does not. Any other res_mask is added to the pair bias in
        f32 [B * N, H|1, S|1, S], which is the memory that libattn else saves.
        pair_bias: added to the scores of all N sequences of an entry; its gradient is their sum.

    Returns o [B, N, S, H, D]. A row with every key hidden is 0 (in DeepSpeed the mean of V).
    Gradients flow to Q, K, V and to the biases that require one.
    Raises ValueError for a broken rule, libattn.Unsupported if no backend supports the call.
    Source: the documentation of DeepSpeed4Science, "EvoformerAttention".
    """
    name = "evoformer_attention"
    if not torch.compiler.is_compiling():
        refuse_tracing(name)
    _tensors(name, (5,), Q=Q, K=K, V=V)
    _same_batch(name, Q=Q, K=K, V=V)
    if not isinstance(biases, (list, tuple)) or len(biases) > 2:  # noqa: UP038
        found = f"{len(biases)} of them" if isinstance(biases, list) else shown(biases)
        raise _refuse(name, "biases", found, "a list of up to two: res_mask, pair_bias")
    res_mask, pair_bias = (*biases, None, None)[:2]
    batch = (Q.size(0), Q.size(1))
    options = _evoformer_options(Q, K, res_mask, pair_bias, batch)
    rows = [_dense(x.flatten(0, 1)) for x in (Q, K, V)]
    o = attention(*rows, **options)
    assert isinstance(o, Tensor)
    return o.view(*batch, *o.shape[1:])
