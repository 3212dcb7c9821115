"""Plain eager calls: q, k, v in host memory with numbers as options, in few Python steps.

libattn.attention inspects each array by name and maker, which takes most of a call on tensors of a
few hundred elements. Here the key of a call is the facts of its tensors and its numbers, and the C
structures of the first call of a kind are reused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from .. import _abi, _library
from .._arrays import family_of
from .._calls import Prepared
from .._facts import dtype_code
from .._functions import Kind
from .._interrupt import runs_handlers
from .._options import split
from .._values import named

_TYPES = {
    _abi.ATTN_F32: torch.float32,
    _abi.ATTN_F16: torch.float16,
    _abi.ATTN_BF16: torch.bfloat16,
    _abi.ATTN_F64: torch.float64,
}
_GRADIENTS = ("dq", "dk", "dv")
_INPUTS = ("dout", "q", "k", "v", "o", "lse", "dlse")
_CACHE_KINDS = 512
_IDLE_OF_A_KIND = 8


class Call:
    """The C structures of a kind of call, and templates of its outputs."""

    __slots__ = ("inputs", "outputs", "prepared")

    def __init__(self, prepared: Prepared, tensors: dict[str, Tensor]) -> None:
        self.prepared = prepared  # owns the structures
        self.inputs = [(name, prepared.tensors[name]) for name in tensors]
        # empty_like takes half as long as empty with a shape and a type. A template has no memory.
        self.outputs = [
            (
                torch.empty((), dtype=_TYPES[dtype], device="cpu").expand(shape),
                structure,
            )
            for _, shape, dtype, structure in prepared.outputs
        ]


# Structures that no call is using now, by kind. A list's pop and append are atomic: if several
# threads call the same kind at once, the second one makes structures of its own.
_idle: dict[object, list[Call]] = {}


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out_dtype: torch.dtype | None,
    numbers: Any,
    options: Any,
    lse: bool = True,
) -> list[Tensor]:
    """[o, lse] of contiguous new tensors; [o] without lse.

    numbers: hashable, everything besides the tensors that decides the call. options(numbers)
    returns them as keyword arguments of libattn.attention, for the first call of a kind.
    """
    try:
        facts = (q.shape, q.stride(), k.shape, k.stride(), v.shape, v.stride())
    except RuntimeError:  # no strides: sparse
        for name, x in (("q", q), ("k", k), ("v", v)):
            _facts("attention", name, x)
        raise
    key = (numbers, out_dtype, lse, q.dtype, k.dtype, v.dtype, facts, runs_handlers())
    idle = _idle.get(key)
    call = _taken(idle)
    if call is None:
        wanted = {"o": 0 if out_dtype is None else dtype_code("out_dtype", out_dtype)}
        if lse:
            wanted["lse"] = 0
        call = _prepare("forward", {"q": q, "k": k, "v": v}, options(numbers), wanted)
    return _run(call, (q, k, v), key, idle)


def backward(
    tensors: tuple[Tensor, ...], want: tuple[bool, ...], numbers: Any, options: Any
) -> list[Tensor]:
    """The wanted ones of dq, dk, dv. tensors: dout, q, k, v, o, lse and maybe dlse."""
    key = (numbers, want, runs_handlers(), *[(x.shape, x.stride(), x.dtype) for x in tensors])
    idle = _idle.get(key)
    call = _taken(idle)
    if call is None:
        wanted = {name: 0 for name, needed in zip(_GRADIENTS, want, strict=True) if needed}
        named = dict(zip(_INPUTS, tensors, strict=False))
        call = _prepare("backward", named, options(numbers), wanted)
    return _run(call, tensors, key, idle)


def _taken(idle: list[Call] | None) -> Call | None:
    try:
        return idle.pop() if idle else None
    except IndexError:  # another thread took the last one
        return None


def _facts(function: str, name: str, x: Tensor) -> None:
    """Raises where x is no strided tensor, with a text that says what is accepted."""
    family: Any = family_of(name, x)
    try:
        family.facts(name, x)
    except ValueError as error:
        raise named(function, error) from None


def _prepare(
    pass_: str, tensors: dict[str, Tensor], options: dict[str, Any], wanted: dict[str, int]
) -> Call:
    arrays, settings, changing = split(pass_, options, tensors["q"])
    arrays.update(tensors)
    families: dict[str, Any] = {name: family_of(name, x) for name, x in arrays.items()}
    try:
        prepared = Kind("attention", pass_, settings, wanted).build(arrays, families)
    except ValueError as error:
        raise named("attention", error) from None
    for name, value in changing.items():
        setattr(prepared.arguments, name, value)
    return Call(prepared, tensors)


def _check_storage(name: str, x: Tensor, address: int) -> None:
    """Refuses freed memory: its address is 0, to which a view adds its offset."""
    if address == x.storage_offset() * x.element_size() and x.numel():
        raise ValueError(
            f"attention: {name}: found a tensor of shape {tuple(x.shape)} whose storage is empty "
            "(freed or not yet made); accepted tensors that hold their memory"
        )


def _run(
    call: Call, tensors: Iterable[Tensor], key: object, idle: list[Call] | None
) -> list[Tensor]:
    """Writes the addresses, calls, and keeps the structures. Returns the outputs."""
    for (name, structure), x in zip(call.inputs, tensors, strict=True):
        structure.data = address = x.data_ptr()
        if address == 0 or x.storage_offset():
            _check_storage(name, x, address)
    made = []
    for template, structure in call.outputs:
        x = torch.empty_like(template)
        structure.data = x.data_ptr()
        made.append(x)
    context = _library.context(torch.get_num_threads())
    code = call.prepared.function(context.handle, *call.prepared.references)
    watch = call.prepared.watch
    if watch is not None and watch.raised:  # by a signal handler during the call
        raise watch.raised.pop()
    if code != _abi.ATTN_OK:
        raise _library.exception_of(code, "attention")
    if idle is None:
        if len(_idle) >= _CACHE_KINDS:
            _idle.clear()
        idle = _idle.setdefault(key, [])
    if len(idle) < _IDLE_OF_A_KIND:
        idle.append(call)
    return made
