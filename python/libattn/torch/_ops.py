"""The operators libattn::forward and libattn::backward, and the eager way past the dispatcher.

torch.compile, torch.export and dispatch modes see the operators; libattn.torch.attention is what to
call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import libattn

from . import _counting, _plain, _sharding, _transforms
from ._counting import profiling, recorded
from ._schema import (
    FLAT,
    NO_TENSORS,
    OPTIONS,
    RESULTS,
    TENSORS,
    Flat,
    complete,
    define,
    empty_results,
    keywords,
    last_contiguous,
    no_forward_mode,
    no_second_derivative,
    refuse_transforms,
    runs_directly,
    same_device,
    same_device_options,
)


def forward_kernel(
    q: Tensor, k: Tensor, v: Tensor, out_dtype: torch.dtype | None = None, *flat: Any
) -> tuple[Tensor, Tensor]:
    if profiling():
        with recorded("forward", q, flat):
            return _forward_kernel(q, k, v, out_dtype, *flat)
    return _forward_kernel(q, k, v, out_dtype, *flat)


def _forward_kernel(
    q: Tensor, k: Tensor, v: Tensor, out_dtype: torch.dtype | None, *flat: Any
) -> tuple[Tensor, Tensor]:
    options = keywords(complete(flat))
    o, lse = libattn.attention(q, k, v, return_lse=True, out_dtype=out_dtype, **options)
    return o, lse


def _forward_fake(
    q: Tensor, k: Tensor, v: Tensor, out_dtype: torch.dtype | None = None, *flat: Any
) -> tuple[Tensor, Tensor]:
    same_device("attention", "q", q, k=k, v=v)
    same_device_options("attention", q, flat)
    return empty_results(q, v, out_dtype)


_GRADIENTS = ("dq", "dk", "dv", "dbias", "dsink")


def _without_sharing(bias: Tensor) -> Tensor:
    """A bias whose elements share no memory. The library sums dbias over dimensions of stride 0,
    but autograd needs a gradient for each element of an expanded tensor."""
    sizes_and_steps = zip(bias.shape, bias.stride(), strict=True)
    if any(step == 0 and size != 1 for size, step in sizes_and_steps):
        # Not contiguous(), which keeps strides of 0 where a size is 0.
        return bias.clone(memory_format=torch.contiguous_format)
    return bias


def backward_kernel(
    dout: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    want: Sequence[bool],
    *flat: Any,
) -> tuple[Tensor, ...]:
    arguments = (dout, dlse, q, k, v, o, lse, want, *flat)
    if profiling():
        with recorded("backward", q, flat):
            return _backward_kernel(*arguments)
    return _backward_kernel(*arguments)


def _backward_kernel(
    dout: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    want: Sequence[bool],
    *flat: Any,
) -> tuple[Tensor, ...]:
    options = keywords(complete(flat))
    if want[3]:
        options["bias"] = _without_sharing(options["bias"])
    found = libattn.attention_backward(
        last_contiguous(dout),
        q,
        k,
        v,
        o,
        lse,
        dlse=None if dlse is None else last_contiguous(dlse),
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
    *flat: Any,
) -> tuple[Tensor, ...]:
    same_device("attention_backward", "q", q, dout=dout, dlse=dlse, k=k, v=v, o=o, lse=lse)
    same_device_options("attention_backward", q, flat)
    inputs = (q, k, v, *complete(flat)[:2])
    return tuple(
        x.new_empty(x.shape) if wanted else q.new_empty(0)
        for x, wanted in zip(inputs, want, strict=True)
    )


def _save(ctx: Any, inputs: Flat, output: tuple[Tensor, Tensor]) -> None:
    q, k, v, _, *flat = inputs
    _keep(ctx, q, k, v, output, tuple(flat[:TENSORS]), tuple(flat[TENSORS:]))


def _keep(
    ctx: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: tuple[Tensor, Tensor],
    tensors: Flat,
    numbers: Flat,
) -> None:
    """Saves the inputs and results of the forward for _gradients."""
    ctx.save_for_backward(q, k, v, *output, *(() if tensors is NO_TENSORS else tensors))
    ctx.numbers = numbers
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> Flat:
    """Gradients of q, k, v, out_dtype (none), bias and sinks."""
    q, k, v, o, lse, *rest = ctx.saved_tensors
    need = ctx.needs_input_grad
    if dout is None:
        if dlse is None:
            return _NO_GRADIENTS
        dout = torch.zeros_like(o)
    # With create_graph the operator is called: it refuses a second derivative when one is
    # requested, and not before.
    direct = not torch.is_grad_enabled() and runs_directly(dout, dlse, q, k, v, *rest)
    direct = direct and not any(map(_is_batched, (dout, dlse)))
    if direct and not rest and q.is_cpu and not profiling():
        inputs: tuple[Tensor, ...] = (last_contiguous(dout), q, k, v, o, lse)
        if dlse is not None:
            inputs = (*inputs, last_contiguous(dlse))
        made: list[Any] = _plain.backward(inputs, need[:3], ctx.numbers, _plain_keywords)
        if len(made) < 3:
            found = iter(made)
            made = [next(found) if needed else None for needed in need[:3]]
        return (*made, None, None, None)
    tensors = rest or NO_TENSORS
    # The dispatcher leaves out trailing arguments that are at their defaults.
    want = [*need[:3], *(*need[4:6], False, False)[:2]]
    run = backward_kernel if direct else _backward
    results = run(dout, dlse, q, k, v, o, lse, want, *tensors, *ctx.numbers)
    dq, dk, dv, dbias, dsink = (x if w else None for x, w in zip(results, want, strict=True))
    return (dq, dk, dv, None, dbias, dsink)


_NO_GRADIENTS: Flat = (None,) * 6


def _plain_keywords(numbers: Flat) -> dict[str, Any]:
    return keywords((*NO_TENSORS, *numbers))


def _differentiate(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> Flat:
    return _gradients(ctx, dout, dlse) + (None,) * (len(OPTIONS) - 2)


class _Attention(torch.autograd.Function):
    """What eager calls use in place of the operator, with the same kernels and gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out_dtype: torch.dtype | None,
        bias: Tensor | None,
        sinks: Tensor | None,
        tensors: Flat,
        numbers: Flat,
        return_lse: bool,
    ) -> Any:
        output: Any = _forward(q, k, v, out_dtype, tensors, numbers, True)
        _keep(ctx, q, k, v, output, tensors, numbers)
        return output if return_lse else output[0]

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None = None) -> Flat:
        return (*_gradients(ctx, dout, dlse), None, None, None)


# torch.autograd.Function.apply first looks for transforms of torch.func, which attend has done: 1
# to 4 us less.
_apply: Any = super(torch.autograd.Function, _Attention).apply


def _transforming() -> bool:
    """Whether a transform of torch.func is active, outside of torch.compile."""
    if torch.compiler.is_compiling():
        return False
    active: bool = torch._C._are_functorch_transforms_active()
    return active


def _is_batched(gradient: Tensor | None) -> bool:
    """Whether autograd's own vmap is active: is_grads_batched, jacobian(vectorize=True)."""
    return gradient is not None and torch._C._functorch.is_legacy_batchedtensor(gradient)


def _backward(*arguments: Any) -> Any:
    if _transforming():
        return _TransformedBackward.apply(*arguments)
    return torch.ops.libattn.backward.default(*arguments)


class _Transformed(torch.autograd.Function):
    """libattn::forward under transforms of torch.func, which hand it from one to the next."""

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return torch.ops.libattn.forward.default(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: Flat, output: tuple[Tensor, Tensor]) -> None:
        _save(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> Flat:
        return _differentiate(ctx, dout, dlse)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise no_forward_mode("attention")

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return _transforms.forward_rule(attend, info.batch_size, in_dims, arguments)


class _TransformedBackward(torch.autograd.Function):
    """libattn::backward under transforms of torch.func."""

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return torch.ops.libattn.backward.default(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: Flat, output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return no_second_derivative("attention")(ctx, *gradients)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise no_forward_mode("attention")

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return _transforms.backward_rule(_backward, info.batch_size, in_dims, arguments)


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out_dtype: torch.dtype | None,
    tensors: Flat,
    numbers: Flat,
    want_lse: bool,
) -> tuple[Tensor, Tensor | None]:
    """(o, lse); lse may be None unless it is wanted."""
    if tensors is NO_TENSORS and q.is_cpu and k.is_cpu and v.is_cpu and not profiling():
        made = _plain.forward(q, k, v, out_dtype, numbers, _plain_keywords, want_lse)
        return made[0], made[1] if want_lse else None
    return forward_kernel(q, k, v, out_dtype, *tensors, *numbers)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out_dtype: torch.dtype | None,
    tensors: Flat,
    numbers: Flat,
    return_lse: bool,
) -> Any:
    """libattn::forward, (o, lse); lse may be None with return_lse=False.

    Eager calls go past the dispatcher, for small tensors' sake: forward and backward, a
    call of the operator takes 560 us, one of _Attention 100, and scaled_dot_product_attention 62
    (bench/python_overhead.py: [1, 8, 4, 16] f32, one thread of a Xeon with AVX-512, torch 2.15).
    Nearly all of it is the autograd that torch.library puts around an operator, whose time grows
    with the number of arguments.
    """
    if torch.compiler.is_compiling() or not runs_directly(
        q, k, v, *(() if tensors is NO_TENSORS else tensors)
    ):
        if _sharding.is_sharded(q, k, v, *tensors):
            return _sharding.attend(attend, q, k, v, out_dtype, tensors, numbers, return_lse)
        refuse_transforms("attention", q, k, v, *tensors[:2], transformable=True)
        if not torch.compiler.is_compiling() and torch._C._len_torch_dispatch_stack():
            _counting.register()
        if _transforming():
            _transforms.refuse_functionalize()
            o, lse = _Transformed.apply(q, k, v, out_dtype, *tensors, *numbers)
            return o, lse
        o, lse = torch.ops.libattn.forward(q, k, v, out_dtype, *tensors, *numbers)
        return o, lse
    bias, sinks = tensors[:2]
    if torch.is_grad_enabled() and (
        q.requires_grad
        or k.requires_grad
        or v.requires_grad
        or (bias is not None and bias.requires_grad)
        or (sinks is not None and sinks.requires_grad)
    ):
        out = _apply(q, k, v, out_dtype, bias, sinks, tensors, numbers, return_lse)
        return out if return_lse else (out, None)
    return _forward(q, k, v, out_dtype, tensors, numbers, return_lse)


define(
    "forward",
    f"Tensor q, Tensor k, Tensor v, ScalarType? out_dtype=None, {FLAT}",
    RESULTS,
    forward_kernel,
    _forward_fake,
    _save,
    _differentiate,
)
define(
    "backward",
    "Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, bool[] want, "
    f"{FLAT}",
    "(Tensor, Tensor, Tensor, Tensor, Tensor)",
    backward_kernel,
    _backward_fake,
    differentiate=no_second_derivative("attention"),
)
