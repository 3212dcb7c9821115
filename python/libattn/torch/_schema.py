"""Shared parts of the operators of namespace "libattn": options, registration, small rules.

The options of an attention call are passed as a flat tuple (`Flat`) in the order of OPTIONS: the
arguments of the operators after their tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.autograd import forward_ad

import libattn
from libattn import Origin, Rope

F8 = (torch.float8_e4m3fn, torch.float8_e5m2)  # 8-bit types of q, k and v
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
        "descale_q",
        "descale_k",
        "descale_v",
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
BIAS, SINKS = 0, 1  # in _TENSORS
DESCALE_NAMES = ("descale_q", "descale_k", "descale_v")
DESCALES = tuple(INDEX[name] for name in DESCALE_NAMES)
DEFAULT_NUMBERS = DEFAULTS[TENSORS:]
NO_TENSORS: Flat = (None,) * TENSORS  # calls without such tensors pass this very object
_NAMES = tuple(option.name for option in OPTIONS)
_DIRECT = frozenset(_NAMES) & frozenset(libattn.Options.__annotations__) - {"origin"}


def schema_of(options: Sequence[Option]) -> str:
    def default(value: Any) -> str:
        return f'"{value}"' if isinstance(value, str) else str(value)

    return ", ".join(f"{o.kind} {o.name}={default(o.default)}" for o in options)


def complete(flat: Flat) -> Flat:
    """The dispatcher leaves out trailing arguments that are equal to their defaults."""
    return flat + DEFAULTS[len(flat) :]


def keywords(flat: Flat) -> dict[str, Any]:
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


def same_device(function: str, lead: str, first: Tensor, **tensors: Any) -> None:
    """Refuses tensors on another kind of device than the first, in the operators' shape functions.

    Without this an operator with one argument on "meta" among CPU tensors would run its shape
    function alone and return uninitialized memory of the CPU.
    """
    for name, x in tensors.items():
        if x is not None and x.device.type != first.device.type:
            raise ValueError(
                f"{function}: {name}: device: found {x.device}; accepted {first.device}, where "
                f"{lead} is"
            )


def same_device_options(function: str, first: Tensor, flat: Flat) -> None:
    named = zip(_NAMES[:TENSORS], flat[:TENSORS], strict=False)
    same_device(function, "q", first, **dict(named))


def last_contiguous(x: Tensor) -> Tensor:
    """An incoming gradient with a contiguous last dimension. autograd can pass expanded scalars
    (the gradient of sum())."""
    return x if x.size(-1) <= 1 or x.stride(-1) == 1 else x.contiguous()


def _statistics_type(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def empty_results(q: Tensor, v: Tensor, out_dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
    usual = torch.bfloat16 if q.dtype in F8 else q.dtype
    o = q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=out_dtype or usual)
    return o, _empty_statistics(q)


def _empty_statistics(rows: Tensor) -> Tensor:
    """lse [b, h, n] of rows [b, n, h, dim], or [h, total] of packed rows."""
    shape = (*rows.shape[:-3], rows.shape[-2], rows.shape[-3])
    return rows.new_empty(shape, dtype=_statistics_type(rows))


def no_second_derivative(function: str) -> Callable[..., Any]:
    def refuse(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(
            f"libattn: {function} has no second derivative (double backward); accepted: first "
            "derivatives only, without create_graph through it"
        )

    return refuse


def refuse_tracing(function: str) -> None:
    """Refuses torch.jit.trace, which would record results as constants: it sees neither the
    operators' Python kernels nor the eager calls that go around the dispatcher."""
    if torch._C._is_tracing():
        raise RuntimeError(
            f"libattn: {function} can't be recorded by torch.jit.trace; accepted: torch.export, "
            "torch.compile"
        )


def no_forward_mode(function: str) -> RuntimeError:
    return RuntimeError(
        f"libattn: {function} has no forward-mode derivative (jvp, jacfwd, hessian); accepted: "
        "torch.autograd.grad, torch.func.grad, vjp, jacrev"
    )


def refuse_transforms(function: str, *tensors: Tensor | None, transformable: bool = False) -> None:
    """Refuses torch.jit.trace, transforms of torch.func unless there are rules for them
    (`transformable`), and forward mode, where PyTorch would silently drop the tangents of tensors
    that need no other gradient."""
    if torch.compiler.is_compiling():
        return
    refuse_tracing(function)
    if any(x is not None and x.is_nested for x in tensors):
        raise ValueError(
            f"{function}: found a nested tensor; accepted packed [total, heads, dim] with cu_len_q "
            "and cu_len_kv"
        )
    if torch._C._are_functorch_transforms_active() and not transformable:
        raise RuntimeError(
            f"libattn: {function} can't be transformed by torch.func (vmap, grad, jvp, ...); "
            "accepted: a batch dimension, torch.autograd"
        )
    if forward_ad._current_level < 0:
        return
    unpack: Any = forward_ad.unpack_dual
    if any(x is not None and unpack(x).tangent is not None for x in tensors):
        raise no_forward_mode(function)


_PLAIN = (Tensor, torch.nn.Parameter)


def runs_directly(*tensors: Any) -> bool:
    """Whether a call can go around the dispatcher: no tracing, dispatch mode, transform or forward
    mode is active, and the tensors are plain ones on a device that has kernels. The dispatcher
    resolves tensors with a pending negation (is_neg)."""
    if (
        torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    ):
        return False
    for x in tensors:
        if x is not None and (
            type(x) not in _PLAIN or not (x.is_cpu or x.is_cuda) or x.is_neg() or x.is_nested
        ):
            return False
    return True


_LIBRARY: Any = torch.library.Library("libattn", "DEF")  # type: ignore[no-untyped-call]
RESULTS = "(Tensor, Tensor)"


def define(
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


FLAT = schema_of(OPTIONS)
