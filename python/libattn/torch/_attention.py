"""attention, decode, merge and rope on PyTorch tensors: differentiable, compilable, exportable.

Names, options and layouts are those of libattn.attention and its siblings. These tensors
are copied: those that autocast casts, incoming gradients with a strided last dimension (that of
sum(), for example), and those that libattn.Options names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor

from .. import Options, Rope
from .._convert import PAIRS, without_expansion
from .._facts import FLOATS, INTEGERS
from .._options import STYLES, VALUES, rotary_dim, unknown
from .._values import boolean, chosen, integer, real, shown
from . import _counting, _ops, _schema, _sharding
from . import _decode_merge_rope as _decode_merge_rope  # registers its operators
from ._checks import checked, counter, fixed, integers, optional, refuse, tensor

if TYPE_CHECKING:
    from typing_extensions import Unpack

_counting.register()  # after all operators are defined

# Options of libattn.attention that have no meaning here, and why.
_REFUSED = {
    "workspace": "scratch memory comes from PyTorch's allocator or libattn's pool",
    "stream": "the work goes to the current stream of the tensors' device",
    "device": "the tensors' device decides",
    "nonfinite_count": "no operator here writes to an input that it also differentiates",
}
_AUTOCAST_KEEPS = (torch.float64, torch.int8, *_schema.F8)
_OUT_DTYPES = tuple(getattr(torch, name) for name in FLOATS)


def _pairs(function: str, name: str, x: Any) -> Tensor:
    """A mask or bias as the operators take it; its gradient has the caller's shape."""
    given = tensor(function, name, x)
    if given.dim() == 2:
        given = given[None, None]
    elif given.dim() != 4:
        accepted = "[b|b/s|1, h|1, n|1, m|1], or [n|1, m|1] for all b and h"
        raise refuse(function, f"shape of {name}", tuple(given.shape), accepted)
    if given.size(-1) <= 1 or given.stride(-1) in (0, 1):
        return given
    if torch.is_grad_enabled() and given.requires_grad:
        return given.contiguous()  # each element of an expanded bias gets its own gradient
    made: Tensor = without_expansion(given, given.stride())
    return made.contiguous().expand(given.shape)


def _out_dtype(function: str, dtype: Any) -> torch.dtype | None:
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype in _OUT_DTYPES):
        accepted = ", ".join(map(str, _OUT_DTYPES))
        raise refuse(function, "out_dtype", shown(dtype), accepted)
    return dtype


def _check_tensors(function: str, q: Any, k: Any, v: Any) -> None:
    if not (isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)):
        for name, x in (("q", q), ("k", k), ("v", v)):
            tensor(function, name, x)


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype) if x.is_floating_point() and x.dtype not in _AUTOCAST_KEEPS else x


def _cast_bias(tensors: _schema.Flat, dtype: torch.dtype) -> _schema.Flat:
    bias = tensors[_schema.BIAS]
    return tensors if bias is None else (_cast(bias, dtype), *tensors[1:])


# Whether autocast is on for any device: a tenth of the time of asking for a tensor's. PyTorch's own
# compiler asks it; a release without it answers "maybe".
_any_autocast: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)


def _autocast_type(q: Tensor) -> torch.dtype | None:
    if not _any_autocast():
        return None
    device = q.device.type
    if device not in ("cpu", "cuda") or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)


def _flatten(function: str, q: Tensor, options: Options) -> tuple[_schema.Flat, _schema.Flat]:
    """Options in the operators' order, with no classes of our own: (tensors, numbers)."""
    if not options and not torch.are_deterministic_algorithms_enabled():
        return _schema.NO_TENSORS, _schema.DEFAULT_NUMBERS
    flat = list(_schema.DEFAULTS)
    index = _schema.INDEX
    for name, value in options.items():
        if value is None:
            continue
        if name in _REFUSED:
            raise refuse(function, name, "one", f"none: {_REFUSED[name]}")
        if name not in Options.__annotations__:
            raise unknown(function, name, set(Options.__annotations__) - set(_REFUSED))
        if name == "window":
            window = checked(function, VALUES[name], name, value)
            flat[index["window_left"]], flat[index["window_right"]] = window
        elif name == "diagonal" and not isinstance(value, str):
            flat[index["diag"]] = checked(function, VALUES[name], name, value)
        elif name == "precision":
            checked(function, VALUES[name], name, value)
            flat[index[name]] = value
        elif name == "origin":
            origin = checked(function, VALUES[name], name, value)
            flat[index[name]] = (origin.batch, origin.head, origin.q, origin.kv, origin.heads_q)
        elif name == "rope":
            _flatten_rope(function, value, q, flat)
        elif name in ("seed", "offset"):
            flat[index[name]] = counter(function, name, value, q)
        elif name in INTEGERS:
            flat[index[name]] = integers(function, name, value, q)
        elif name in PAIRS:
            flat[index[name]] = _pairs(function, name, value)
        elif name in VALUES:
            flat[index[name]] = checked(function, VALUES[name], name, value)
        else:
            flat[index[name]] = tensor(function, name, value)
    if flat[index["dropout_p"]] == 0.0:
        flat[index["seed"]] = flat[index["offset"]] = None
    elif flat[index["seed"]] is None:
        if _sharding.is_sharded(q):
            raise refuse(function, "seed", "none for a DTensor", "the same one on all ranks")
        flat[index["seed"]] = torch.randint(2**63 - 1, (1,), dtype=torch.int64, device=q.device)
    if torch.are_deterministic_algorithms_enabled():
        flat[index["deterministic"]] = True
    numbers = tuple(flat[_schema.TENSORS :])
    tensors = tuple(flat[: _schema.TENSORS])
    if all(x is None for x in tensors):
        return _schema.NO_TENSORS, numbers
    for name in ("alibi_slopes", "mask", "rope_cos", "rope_sin", *_schema.DESCALE_NAMES):
        fixed(function, name, flat[index[name]])
    return tensors, numbers


def _flatten_rope(function: str, rope: Any, q: Tensor, flat: list[Any]) -> None:
    if not isinstance(rope, Rope):
        raise refuse(function, "rope", shown(rope), "libattn.Rope")
    index = _schema.INDEX
    checked(function, chosen(STYLES), "rope.style", rope.style)
    flat[index["rope_style"]] = rope.style
    if rope.rot_dim is not None:
        flat[index["rope_rot_dim"]] = checked(function, rotary_dim, "rope.rot_dim", rope.rot_dim)
    flat[index["rope_base"]] = checked(function, real, "rope.base", rope.base)
    flat[index["rope_pos_offset"]] = checked(function, integer, "rope.pos_offset", rope.pos_offset)
    for name in ("cos", "sin"):
        flat[index["rope_" + name]] = optional(function, "rope." + name, getattr(rope, name))
    for name in ("positions_q", "positions_kv"):
        x = getattr(rope, name)
        if x is not None:
            flat[index["rope_" + name]] = integers(function, "rope." + name, x, q)


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    return_lse: Literal[False] = False,
    out_dtype: torch.dtype | None = None,
    **options: Unpack[Options],
) -> Tensor: ...


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    return_lse: Literal[True],
    out_dtype: torch.dtype | None = None,
    **options: Unpack[Options],
) -> tuple[Tensor, Tensor]: ...


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    return_lse: bool,
    out_dtype: torch.dtype | None = None,
    **options: Unpack[Options],
) -> Tensor | tuple[Tensor, Tensor]: ...


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    return_lse: bool = False,
    out_dtype: torch.dtype | None = None,
    **options: Unpack[Options],
) -> Tensor | tuple[Tensor, Tensor]:
    """o = softmax(scale * q k^T + ...) v, exactly and in linear memory, with gradients.

    FlashAttention-2 (Dao 2023), section 3.1; every option is defined in docs/semantics.md.

    q: [b, n, h, dim_qk], or packed [total_q, h, dim_qk] with cu_len_q. f32, f16, bf16 or f64. Any
        strides but that of the last axis, which is 1; this holds for k and v too.
    k: [b, m, g, dim_qk], or packed with cu_len_kv. h is a multiple of g (GQA, MQA).
    v: [b, m, g, dim_vo], or packed.
    return_lse: return (o, lse). lse [b, h, n] (packed [h, total_q]) is the natural logarithm of
        each row's sum of exponentials, f32 (f64 with f64); it is differentiable.
    out_dtype: the type of o: q's (None), or torch.float32.
    options: causal, window, mask, bias, softcap, dropout_p and others: see libattn.Options.
        workspace, stream, device and nonfinite_count are refused.

    DTensors that are split over sequences or heads stay so; dropout then needs a seed
    (docs/torch.md).

    Gradients flow to q, k, v, bias and sinks, from o and lse, also by torch.func.grad, vjp and
    jacrev, and under torch.vmap (docs/torch.md). A second derivative, forward mode (jvp) and
    torch.jit.trace raise RuntimeError. Dropout without a seed draws one from
    PyTorch's generator of the device. torch.use_deterministic_algorithms turns on
    deterministic=True. Autocast casts q, k, v and bias (not f64) to its type, as for
    scaled_dot_product_attention.

    Returns o [b, n, h, dim_vo] (packed [total, h, dim_vo]), contiguous.
    Raises ValueError for a broken rule, and for a tensor that requires a gradient and has none
    (mask, alibi_slopes, tables, a scale or softcap that is a tensor); TypeError for an unknown
    option; libattn.Unsupported if no backend supports the call.
    """
    _check_tensors("attention", q, k, v)
    tensors, numbers = _flatten("attention", q, options)
    if out_dtype is not None:
        out_dtype = _out_dtype("attention", out_dtype)
    if return_lse is not True and return_lse is not False:
        return_lse = checked("attention", boolean, "return_lse", return_lse)
    dtype = _autocast_type(q)
    if dtype is not None:
        q, k, v = _cast(q, dtype), _cast(k, dtype), _cast(v, dtype)
        tensors = _cast_bias(tensors, dtype)
    o, lse = _ops.attend(q, k, v, out_dtype, tensors, numbers, return_lse)
    return (o, lse) if return_lse else o


@overload
def decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    block_table: Tensor | None = None,
    k_new: Tensor | None = None,
    v_new: Tensor | None = None,
    split_keys: int | None = None,
    return_lse: Literal[False] = False,
    out_dtype: torch.dtype | None = None,
    **options: Unpack[Options],
) -> Tensor: ...


@overload
def decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    block_table: Tensor | None = None,
    k_new: Tensor | None = None,
    v_new: Tensor | None = None,
    split_keys: int | None = None,
    return_lse: bool,
    out_dtype: torch.dtype | None = None,
    **options: Unpack[Options],
) -> Tensor | tuple[Tensor, Tensor]: ...


def decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    block_table: Tensor | None = None,
    k_new: Tensor | None = None,
    v_new: Tensor | None = None,
    split_keys: int | None = None,
    return_lse: bool = False,
    out_dtype: torch.dtype | None = None,
    **options: Unpack[Options],
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of few queries over a cache of keys and values, split over keys. No gradient.

    Flash-Decoding (Dao, Haziza, Massa, Sizov 2023).

    q: [b, n, h, dim_qk].
    k_cache, v_cache: [b, m, g, dim] with len_kv (i32 [b]: rows in use), or paged
        [pages, page_size, g, dim] with block_table.
    block_table: i32 [b, pages per sequence]: key j of sequence b is row j % page_size of page
        block_table[b, j // page_size].
    k_new, v_new: [b, len_new, g, dim]: first written into the caches in place, at row len_kv[b] and
        after it (keys rotated with rope=), then attended to.
    split_keys: keys in each chunk, so that a row's bits do not depend on the batch around it.
        None = the library chooses; -1 = one chunk.

    Other arguments: see attention. Autocast casts q, k_new, v_new and bias, not the caches.

    Returns o, or (o, lse) with return_lse=True. Errors are those of attention, and ValueError if an
    input requires a gradient while gradients are recorded.
    """
    for name, x in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache)):
        tensor("decode", name, x)
    k_new, v_new = optional("decode", "k_new", k_new), optional("decode", "v_new", v_new)
    tensors, numbers = _flatten("decode", q, options)
    return_lse = checked("decode", boolean, "return_lse", return_lse)
    out_dtype = _out_dtype("decode", out_dtype)
    if block_table is not None:
        block_table = integers("decode", "block_table", block_table, q)
    if split_keys is not None:
        split_keys = checked("decode", integer, "split_keys", split_keys)
    if (k_new is None) != (v_new is None):
        found = "k_new without v_new" if v_new is None else "v_new without k_new"
        raise refuse("decode", "k_new goes with v_new", found, "both or neither")
    dtype = _autocast_type(q)
    if dtype is not None:
        q = _cast(q, dtype)
        k_new = None if k_new is None else _cast(k_new, dtype)
        v_new = None if v_new is None else _cast(v_new, dtype)
        tensors = _cast_bias(tensors, dtype)
    inputs = {
        "q": q,
        "k_cache": k_cache,
        "v_cache": v_cache,
        "k_new": k_new,
        "v_new": v_new,
        "bias": tensors[_schema.BIAS],
        "sinks": tensors[_schema.SINKS],
    }
    _schema.refuse_transforms("decode", *inputs.values())
    if not torch.compiler.is_compiling() and torch._C._len_torch_dispatch_stack():
        _counting.register()
    for name, x in inputs.items():
        fixed("decode", name, x)
    rest = (block_table, split_keys, out_dtype, *tensors, *numbers)
    if k_new is None:
        o, lse = torch.ops.libattn.decode(q, k_cache, v_cache, *rest)
    else:
        o, lse = torch.ops.libattn.decode_append(q, k_cache, v_cache, k_new, v_new, *rest)
    return (o, lse) if return_lse else o


def merge(o1: Tensor, lse1: Tensor, o2: Tensor | None, lse2: Tensor) -> tuple[Tensor, Tensor]:
    """Two attentions of the same queries over disjoint keys as one: (o, lse), differentiable.

    lse = logaddexp(lse1, lse2), o = exp(lse1 - lse) o1 + exp(lse2 - lse) o2: docs/semantics.md,
    Merge; FlashAttention (Dao et al. 2022), section 3.1.

    o1, o2: [b, n, h, dim] or [total, h, dim]. o2 may be None: zeros, as for a sink merged last.
    lse1, lse2: [b, h, n] or [h, total], f32 (f64 with f64).

    Gradients flow to all four, from o and lse; there is no second derivative. Errors are those of
    attention.
    """
    for name, x in (("o1", o1), ("lse1", lse1), ("lse2", lse2)):
        tensor("merge", name, x)
    o2 = optional("merge", "o2", o2)
    _schema.refuse_transforms("merge", o1, lse1, o2, lse2)
    o, lse = torch.ops.libattn.merge(o1, lse1, o2, lse2)
    return o, lse


def rope(
    x: Tensor,
    *,
    style: Literal["half", "interleaved"] = "half",
    rot_dim: int | None = None,
    base: float = 10000.0,
    pos_offset: int = 0,
    positions: Tensor | None = None,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    cu_len: Tensor | None = None,
    inverse: bool = False,
) -> Tensor:
    """Rotary embedding (Su et al. 2021, RoFormer, section 3.2.2), with gradients of any order.

    Pair m of a row turns by the angle position * base^(-2m/rot_dim).

    x: [b, n, h, dim] or packed [total, h, dim]; f32, f16, bf16 or f64.
    style: "half" rotates the pairs (m, m + rot_dim/2), "interleaved" (2m, 2m + 1).
    rot_dim: even, 2 to dim; None = dim. The rest of a row is copied.
    base: of the angles, above 0.
    pos_offset: the position of a row is row + pos_offset, unless positions are given.
    positions: i32 [b|1, n] or [total]; int64 tensors and lists are copied.
    cos, sin: f32 [positions, rot_dim/2], tables instead of base.
    cu_len: i32 [b + 1], with a packed x: rows count from the start of their sequence, those of no
        sequence from the start of x.
    inverse: rotate by the negative angle.

    Returns a new contiguous tensor. Raises ValueError for a broken rule, and if cos or sin require
    a gradient.
    """
    x = tensor("rope", "x", x)
    checked("rope", chosen(STYLES), "style", style)
    rot_dim = None if rot_dim is None else checked("rope", rotary_dim, "rot_dim", rot_dim)
    base = checked("rope", real, "base", base)
    pos_offset = checked("rope", integer, "pos_offset", pos_offset)
    inverse = checked("rope", boolean, "inverse", inverse)
    positions = None if positions is None else integers("rope", "positions", positions, x)
    cu_len = None if cu_len is None else integers("rope", "cu_len", cu_len, x)
    cos, sin = optional("rope", "cos", cos), optional("rope", "sin", sin)
    fixed("rope", "cos", cos)
    fixed("rope", "sin", sin)
    _schema.refuse_transforms("rope", x)
    out: Tensor = torch.ops.libattn.rope(
        x, positions, cos, sin, cu_len, style, rot_dim, base, pos_offset, inverse
    )
    return out
