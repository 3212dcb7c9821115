"""The operators of namespace "libattn": schemas, kernels, shapes for tracing, gradients.

torch.ops.libattn.forward, backward, decode, decode_append, merge, merge_backward and rope are what
torch.compile, torch.export and dispatch modes see; libattn.torch.attention and its siblings are
what to call. The options of an attention call travel as a flat tuple (`Flat`) in the order of
OPTIONS: the arguments of the operators after their tensors, and the inputs of the autograd.Function
of eager calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

import libattn
from libattn import Origin, Rope

Flat: TypeAlias = "tuple[Any, ...]"


class Option(NamedTuple):
    """An argument of the operators: its name, the type in the schema, its default there."""

    name: str
    kind: str
    default: Any = None


# Tensors come first: autograd saves that part. bias and sinks, which have gradients, lead.
_TENSORS = tuple(
    Option(name, "Tensor?")
    for name in (
        "bias",
        "sinks",
        "mask",
        "alibi_slopes",
        "kv_begin",
        "kv_end",
        "len_q",
        "len_kv",
        "cu_len_q",
        "cu_len_kv",
        "seed",
        "offset",
        "rope_cos",
        "rope_sin",
        "rope_positions_q",
        "rope_positions_kv",
    )
)
_NUMBERS = (
    Option("max_len_q", "SymInt?"),
    Option("max_len_kv", "SymInt?"),
    Option("causal", "bool", False),
    Option("diagonal", "str", "bottom_right"),
    Option("diag", "SymInt?"),  # comes before diagonal
    Option("window_left", "SymInt?"),
    Option("window_right", "SymInt?"),
    Option("softcap", "float?"),
    Option("dropout_p", "float", 0.0),
    Option("origin", "SymInt[]?"),  # the fields of libattn.Origin
    Option("scale", "float?"),
    Option("rope_style", "str?"),  # None: no rotation
    Option("rope_rot_dim", "SymInt?"),
    Option("rope_base", "float", 10000.0),
    Option("rope_pos_offset", "SymInt", 0),
    Option("precision", "str", "tf32x3"),
    Option("deterministic", "bool", False),
)
OPTIONS = _TENSORS + _NUMBERS
DEFAULTS: Flat = tuple(option.default for option in OPTIONS)
INDEX = {option.name: at for at, option in enumerate(OPTIONS)}
TENSORS = len(_TENSORS)
BIAS = INDEX["bias"]
_ROPE = INDEX["rope_style"]
_NAMES = tuple(option.name for option in OPTIONS)
_DIRECT = frozenset(_NAMES) & frozenset(libattn.Options.__annotations__) - {"origin"}


def _schema_of(options: Sequence[Option]) -> str:
    def default(value: Any) -> str:
        return f'"{value}"' if isinstance(value, str) else str(value)

    return ", ".join(f"{o.kind} {o.name}={default(o.default)}" for o in options)


def _complete(flat: Flat) -> Flat:
    """The dispatcher leaves out trailing arguments that are equal to their defaults."""
    return flat + DEFAULTS[len(flat) :]


def _keywords(flat: Flat) -> dict[str, Any]:
    """Flat options as the keyword arguments of libattn.attention; defaults are left out."""
    options: dict[str, Any] = {}
    special = False
    for name, value, default in zip(_NAMES, flat, DEFAULTS, strict=True):
        if value is default:
            continue
        if name in _DIRECT:
            options[name] = value
        else:
            special = True
    if special:
        given = dict(zip(_NAMES, flat, strict=True))
        if given["diag"] is not None:
            options["diagonal"] = given["diag"]
        if given["window_left"] is not None or given["window_right"] is not None:
            options["window"] = (given["window_left"], given["window_right"])
        if given["origin"] is not None:
            options["origin"] = Origin(*given["origin"])
        if given["rope_style"] is not None:
            options["rope"] = Rope(
                given["rope_style"],
                given["rope_rot_dim"],
                given["rope_base"],
                given["rope_pos_offset"],
                given["rope_cos"],
                given["rope_sin"],
                given["rope_positions_q"],
                given["rope_positions_kv"],
            )
    return options


def _last_contiguous(x: Tensor) -> Tensor:
    """An incoming gradient as the kernels read it. autograd may hand out expanded scalars (sum()):
    that is the one place where libattn.torch copies."""
    return x if x.size(-1) <= 1 or x.stride(-1) == 1 else x.contiguous()


# --- attention ----------------------------------------------------------------------------------


def forward_kernel(
    q: Tensor, k: Tensor, v: Tensor, out_dtype: torch.dtype | None = None, *flat: Any
) -> tuple[Tensor, Tensor]:
    options = _keywords(_complete(flat))
    o, lse = libattn.attention(q, k, v, return_lse=True, out_dtype=out_dtype, **options)
    return o, lse


def _statistics_type(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _empty_results(q: Tensor, v: Tensor, out_dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
    o = q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=out_dtype or q.dtype)
    return o, _empty_statistics(q)


def _empty_statistics(rows: Tensor) -> Tensor:
    """lse [b, h, n] of rows [b, n, h, dim], or [h, total] of packed rows."""
    shape = (*rows.shape[:-3], rows.shape[-2], rows.shape[-3])
    return rows.new_empty(shape, dtype=_statistics_type(rows))


def _forward_fake(
    q: Tensor, k: Tensor, v: Tensor, out_dtype: torch.dtype | None = None, *flat: Any
) -> tuple[Tensor, Tensor]:
    return _empty_results(q, v, out_dtype)


_GRADIENTS = ("dq", "dk", "dv", "dbias", "dsink")


def _broadcast_sizes(bias: Tensor) -> list[int]:
    """Sizes of the gradient of a bias: 1 where it is broadcast, also by a stride of 0."""
    return [1 if step == 0 else size for size, step in zip(bias.shape, bias.stride(), strict=True)]


def backward_kernel(
    dout: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    want: Sequence[bool],
    dbias_sizes: Sequence[int] | None,
    *flat: Any,
) -> tuple[Tensor, ...]:
    options = _keywords(_complete(flat))
    if dbias_sizes is not None:
        # Compilers may have written out an expanded bias; the traced sizes decide.
        bias = options["bias"]
        for dim, size in enumerate(dbias_sizes):
            bias = bias.narrow(dim, 0, size)
        options["bias"] = bias
    found = libattn.attention_backward(
        _last_contiguous(dout),
        q,
        k,
        v,
        o,
        lse,
        dlse=None if dlse is None else _last_contiguous(dlse),
        want=tuple(name for name, wanted in zip(_GRADIENTS, want, strict=True) if wanted),
        **options,
    )
    return tuple(q.new_empty(0) if x is None else x for x in found)


def _backward_fake(
    dout: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    want: Sequence[bool],
    dbias_sizes: Sequence[int] | None,
    *flat: Any,
) -> tuple[Tensor, ...]:
    bias, sinks = _complete(flat)[:2]
    shapes: list[tuple[Tensor, Any]] = [(x, x.shape) for x in (q, k, v)]
    shapes += [(bias, dbias_sizes), (sinks, () if sinks is None else sinks.shape)]
    return tuple(
        like.new_empty(shape) if wanted else q.new_empty(0)
        for (like, shape), wanted in zip(shapes, want, strict=True)
    )


def _save(ctx: Any, inputs: Flat, output: tuple[Tensor, Tensor]) -> None:
    """Keeps for the backward what forward read and gave; _differentiate takes it from there."""
    q, k, v, _, *flat = inputs
    ctx.save_for_backward(q, k, v, *output, *flat[:TENSORS])
    ctx.numbers = tuple(flat[TENSORS:])
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> Flat:
    q, k, v, o, lse, *tensors = ctx.saved_tensors
    need = ctx.needs_input_grad
    unknown = (None,) * (len(OPTIONS) - 2)
    if dout is None:
        if dlse is None:
            return (None,) * 6 + unknown
        dout = torch.zeros_like(o)
    bias = tensors[BIAS]
    want = [*need[:3], *need[4:6]]
    sizes = _broadcast_sizes(bias) if want[3] else None
    # With create_graph the operator is called: it refuses a second derivative when one is asked
    # for, and not before.
    direct = not torch.is_grad_enabled() and runs_directly(dout, q, k, v)
    run = backward_kernel if direct else torch.ops.libattn.backward.default
    found = run(dout, dlse, q, k, v, o, lse, want, sizes, *tensors, *ctx.numbers)
    dq, dk, dv, dbias, dsink = (x if w else None for x, w in zip(found, want, strict=True))
    if dbias is not None and dbias.shape != bias.shape:
        # autograd adds up an expanded tensor's gradient over its copies: each gets its share.
        dbias = (dbias * (dbias.numel() / bias.numel())).expand(bias.shape)
    return (dq, dk, dv, None, dbias, dsink, *unknown)


def _no_second_derivative(function: str) -> Callable[..., Any]:
    def refuse(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(
            f"libattn: {function} has no second derivative (double backward); accepted: first "
            "derivatives only, without create_graph through it"
        )

    return refuse


class DirectAttention(torch.autograd.Function):
    """What eager calls use in place of the operator, with the same kernel and gradient.

    The way through the dispatcher costs a call on small tensors more than all the rest
    (bench/python_overhead.py prints both).
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        output = forward_kernel(*inputs)
        _save(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Flat:
        return _differentiate(ctx, *gradients)


_PLAIN = (Tensor, torch.nn.Parameter)


def runs_directly(*tensors: Any) -> bool:
    """Whether nobody watches operators: no tracing, no dispatch mode, no functorch transform, and
    plain tensors of a device that kernels know."""
    if (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._are_functorch_transforms_active()
    ):
        return False
    for x in tensors:
        if x is not None and (type(x) not in _PLAIN or not (x.is_cpu or x.is_cuda)):
            return False
    return True


# --- decode -------------------------------------------------------------------------------------


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
        **_keywords(_complete(flat)),
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
        **_keywords(_complete(flat)),
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
    return _empty_results(q, v_cache, out_dtype)


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
    return _empty_results(q, v_cache, out_dtype)


# --- merge --------------------------------------------------------------------------------------


def _merge(o1: Tensor, lse1: Tensor, o2: Tensor | None, lse2: Tensor) -> tuple[Tensor, Tensor]:
    o, lse = libattn.merge(o1, lse1, o2, lse2)
    return o, lse


def _merge_fake(o1: Tensor, lse1: Tensor, o2: Tensor | None, lse2: Tensor) -> tuple[Tensor, Tensor]:
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
        _last_contiguous(dout),
        o1,
        lse1,
        o2,
        lse2,
        o,
        lse,
        dlse=None if dlse is None else _last_contiguous(dlse),
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
        style=style,
        rot_dim=rot_dim,
        base=base,
        pos_offset=pos_offset,
        inverse=inverse,
    )
    return out


def _rope_fake(x: Tensor, *rest: Any) -> Tensor:
    return x.new_empty(x.shape)


def _save_rope(ctx: Any, inputs: Flat, output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:5])
    ctx.numbers = inputs[5:]


def _differentiate_rope(ctx: Any, dout: Tensor) -> Flat:
    *numbers, inverse = ctx.numbers
    dout = _last_contiguous(dout)
    dx = torch.ops.libattn.rope(dout, *ctx.saved_tensors, *numbers, not inverse)
    return (dx, *(None,) * 9)


# --- registration -------------------------------------------------------------------------------

_LIBRARY: Any = torch.library.Library("libattn", "DEF")  # type: ignore[no-untyped-call]
_RESULTS = "(Tensor, Tensor)"


def _define(
    name: str,
    arguments: str,
    returns: str,
    kernel: Callable[..., Any],
    fake: Callable[..., Any],
    save: Callable[..., None] | None = None,
    differentiate: Callable[..., Any] | None = None,
) -> None:
    # Traced strides are those of the eager call, and compilers must keep them: the last
    # dimension's is to be 1.
    tag = torch.Tag.needs_fixed_stride_order
    _LIBRARY.define(f"{name}({arguments}) -> {returns}", tags=(tag,))
    for device in ("CPU", "CUDA"):
        _LIBRARY.impl(name, kernel, device)
    torch.library.register_fake(f"libattn::{name}", fake, lib=_LIBRARY)
    if differentiate is not None:
        torch.library.register_autograd(
            f"libattn::{name}", differentiate, setup_context=save, lib=_LIBRARY
        )


_FLAT = _schema_of(OPTIONS)
_CACHED = f"Tensor? block_table=None, SymInt? split_keys=None, ScalarType? out_dtype=None, {_FLAT}"
_PARTS = "Tensor o1, Tensor lse1, Tensor? o2, Tensor lse2"

_define(
    "forward",
    f"Tensor q, Tensor k, Tensor v, ScalarType? out_dtype=None, {_FLAT}",
    _RESULTS,
    forward_kernel,
    _forward_fake,
    _save,
    _differentiate,
)
_define(
    "backward",
    "Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, bool[] want, "
    f"SymInt[]? dbias_sizes, {_FLAT}",
    "(Tensor, Tensor, Tensor, Tensor, Tensor)",
    backward_kernel,
    _backward_fake,
    differentiate=_no_second_derivative("attention"),
)
_define(
    "decode",
    f"Tensor q, Tensor k_cache, Tensor v_cache, {_CACHED}",
    _RESULTS,
    decode_kernel,
    _decode_fake,
)
_define(
    "decode_append",
    "Tensor q, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor k_new, Tensor v_new, " + _CACHED,
    _RESULTS,
    decode_append_kernel,
    _decode_append_fake,
)
_define("merge", _PARTS, _RESULTS, _merge, _merge_fake, _save_merge, _differentiate_merge)
_define(
    "merge_backward",
    f"Tensor dout, Tensor? dlse, {_PARTS}, Tensor o, Tensor lse",
    "(Tensor, Tensor, Tensor, Tensor)",
    _merge_backward,
    _merge_backward_fake,
    differentiate=_no_second_derivative("merge"),
)
_define(
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
