"""Calls of the C ABI: its structures are filled once for each kind of call, then reused.

A kind of call is a function, the facts of its arrays and its settings. A repeated kind writes only
addresses and the numbers that change (seed, offset, ...) into its structures, which keeps a call on
small arrays at a few microseconds. No other file calls the attn_* functions that compute.
"""

from __future__ import annotations

import ctypes
import numbers
import sys
from collections.abc import Callable
from typing import Any

from . import _abi, _interrupt, _library
from ._arrays import CUDA_INTERFACE, family_of, opened
from ._facts import (
    DEVICES,
    I64,
    MAX_RANK,
    PUBLIC,
    Facts,
    Family,
    check_type,
    dense,
)
from ._values import named, shown

LIBRARY = _library.LIBRARY
Arrays = dict[str, Any]
Settings = dict[str, Any]

_CACHE_KINDS = 512
_WRITES_NOTHING = (_abi.ATTN_INVALID_ARGUMENT, _abi.ATTN_UNSUPPORTED)


def init(struct: Any, size_only: bool = False) -> Any:
    """A structure with its defaults and size."""
    value = struct()
    value.struct_size = ctypes.sizeof(value)
    if not size_only:
        function = getattr(LIBRARY, f"{struct.__name__}_init")
        _library.check(function(ctypes.byref(value), ctypes.sizeof(value)))
    return value


def tensor_of(name: str, facts: Facts) -> _abi.attn_tensor:
    """A view without an address."""
    rank = len(facts.shape)
    check_type(name, facts.dtype)
    name = PUBLIC.get(name, name)
    if facts.dtype == I64:
        raise ValueError(
            f"{name}: dtype: found int64 in an array that can't be converted here; accepted int32"
        )
    if not 1 <= rank <= MAX_RANK:
        raise ValueError(f"{name}: rank: found shape {facts.shape}; accepted 1 to {MAX_RANK} axes")
    tensor = _abi.attn_tensor()
    tensor.struct_size = ctypes.sizeof(tensor)
    tensor.dtype = facts.dtype
    tensor.device = facts.device
    tensor.ordinal = facts.ordinal
    tensor.rank = rank
    tensor.shape[:rank] = list(facts.shape)
    # An axis of one element can have any stride. The library checks that of the last axis: write 1.
    strides: list[Any] = list(dense(facts.shape) if 0 in facts.shape else facts.strides)
    tensor.strides[:rank] = strides[:-1] + [1 if facts.shape[-1] == 1 else strides[-1]]
    return tensor


class Prepared:
    """The C structures of one kind of call."""

    __slots__ = (
        "arguments",
        "function",
        "inputs",
        "outputs",
        "problem",
        "references",
        "tensors",
        "watch",
        "workspace_bytes",
        "written",
    )

    def __init__(
        self,
        function: str,
        struct: Any,
        families: dict[str, Family],
        arrays: Arrays,
        outputs: tuple[str, ...],
    ) -> None:
        self.function = getattr(LIBRARY, function)
        self.arguments = init(struct)
        self.watch: _interrupt.Watch | None = None
        if struct is _abi.attn_arguments and _interrupt.runs_handlers():
            self.watch = _interrupt.Watch()
            self.arguments.should_stop = self.watch.should_stop
        self.problem: Any = None
        self.tensors: dict[str, _abi.attn_tensor] = {}
        # Outputs to allocate: (name, shape, dtype, view).
        self.outputs: list[tuple[str, tuple[int, ...], int, _abi.attn_tensor]] = []
        self.workspace_bytes = 0
        # Arrays of the caller that are written. Each call checks that they are writable, because
        # the read-only flag is not part of the kind.
        written = {*outputs, "nonfinite_count", *(("k", "v") if "k_new" in arrays else ())}
        self.written = [name for name in arrays if name in written]
        for name, x in arrays.items():
            self.add(name, families[name].facts(name, x))
        self.inputs = list(self.tensors.items())

    def add(self, name: str, facts: Facts) -> None:
        tensor = tensor_of(name, facts)
        self.tensors[name] = tensor
        setattr(self.arguments, name, ctypes.addressof(tensor))

    def make(self, name: str, shape: tuple[int, ...], dtype: int, like: Facts) -> None:
        """Plans an output that the caller did not give."""
        self.add(name, Facts(dtype, like.device, like.ordinal, shape, dense(shape)))
        self.outputs.append((name, shape, dtype, self.tensors[name]))

    def refer(self) -> None:
        """Sets the addresses that the C function takes after the context."""
        structures = (self.arguments,) if self.problem is None else (self.problem, self.arguments)
        self.references = tuple(ctypes.addressof(structure) for structure in structures)


# Structures that no call is using now, by kind. A list's pop and append are atomic: if several
# threads call the same kind at once, the second one makes structures of its own.
_idle: dict[object, list[Prepared]] = {}


def settle(arrays: Arrays, changing: Settings, lead: str) -> tuple[list[Family], int | None]:
    """The families of a call's arrays, and its stream: the one that was given, or the current one
    of the maker of `lead`. Arrays of DLPack alone are opened for that stream."""
    stream = changing.get("stream")
    if stream is None:
        first = family_of(lead, arrays[lead])
        stream = None if first is None else first.stream(arrays[lead])
    families: list[Family] = []
    for name, x in arrays.items():
        family = family_of(name, x)
        if family is None:
            arrays[name], family = opened(name, x, stream)
        elif family is CUDA_INTERFACE and "stream" not in changing:
            CUDA_INTERFACE.check_stream(name, x, stream)
        families.append(family)
    return families, stream


def _workspace(value: Any, stream: int | None, device: tuple[int, int]) -> Settings:
    """A workspace that the caller gave, as fields of the arguments."""
    x, family = opened("workspace", value, stream)
    facts = family.facts("workspace", x)
    if facts.dtype != _abi.ATTN_U8 or len(facts.shape) != 1 or facts.strides != (1,):
        raise ValueError(f"workspace: found {shown(value)}; accepted contiguous uint8 [bytes]")
    if (facts.device, facts.ordinal) != device:
        raise ValueError(
            f"workspace: found memory of {device_name(facts)}:{facts.ordinal}; accepted that of "
            "the device of q"
        )
    family.check_output("workspace", x)
    return {"workspace": family.pointer("workspace", x) or None, "workspace_size": facts.shape[0]}


def run(
    function: str,
    build: Callable[[Arrays, dict[str, Family]], Prepared],
    kind: tuple[object, ...],
    arrays: Arrays,
    changing: Settings,
    lead: str,
) -> Arrays:
    """Calls a pass or operation; returns the outputs that were made. Errors name `function`.

    build makes the structures of this kind, if no call has left any. arrays: by field of the
    arguments structure, none of them None. lead names the array that decides device, stream and
    maker. changing: fields that are written in every call.
    """
    try:
        return _run(function, build, kind, arrays, changing, lead)
    except ValueError as error:
        raise named(function, error) from None
    except _interrupt.Raised as carrier:
        raised = carrier.error
    raise raised


def _key(kind: tuple[object, ...], arrays: Arrays, families: list[Family]) -> object:
    parts: list[object] = [kind, _interrupt.runs_handlers()]
    try:
        for (name, x), family in zip(arrays.items(), families, strict=True):
            parts += name, family.key(x)
    except (RuntimeError, TypeError):  # PyTorch's for tensors without strides or sizes
        for (name, x), family in zip(arrays.items(), families, strict=True):
            family.facts(name, x)
        raise
    return tuple(parts)


def _new(
    function: str, name: str, maker: Any, like: Any, shape: tuple[int, ...], dtype: int
) -> Any:
    """An output; MemoryError if the host has no memory for it (PyTorch raises RuntimeError)."""
    try:
        return maker.empty(like, shape, dtype)
    except (MemoryError, RuntimeError) as error:
        if maker.facts(name, like).device != _abi.ATTN_HOST:
            raise
        raise MemoryError(
            f"{function}: {name}: found no memory for shape {list(shape)}; accepted smaller arrays"
        ) from error


def _run(
    function: str,
    build: Callable[[Arrays, dict[str, Family]], Prepared],
    kind: tuple[object, ...],
    arrays: Arrays,
    changing: Settings,
    lead: str,
) -> Arrays:
    families, stream = settle(arrays, changing, lead)
    key = _key(kind, arrays, families)
    like = arrays[lead]
    first: Any = family_of(lead, like)
    idle = _idle.get(key)
    try:
        prepared = idle.pop() if idle else None
    except IndexError:  # another thread took the last one
        prepared = None
    if prepared is None:
        prepared = build(arrays, dict(zip(arrays, families, strict=True)))

    for (name, tensor), family, x in zip(prepared.inputs, families, arrays.values(), strict=True):
        tensor.data = family.pointer(name, x)
    for name in prepared.written:
        maker: Any = family_of(name, arrays[name])
        maker.check_output(name, arrays[name])
    made: Arrays = {}
    for name, shape, dtype, tensor in prepared.outputs:
        made[name] = x = _new(function, name, first, like, shape, dtype)
        maker = family_of(name, x)
        tensor.data = maker.pointer(name, x)
    backend = changing.pop("device", None)
    arguments = prepared.arguments
    arguments.stream = stream
    arguments.has_stream = int(stream is not None)
    if "workspace" in changing:
        first_tensor = prepared.tensors[lead]
        device = first_tensor.device, first_tensor.ordinal
        changing |= _workspace(changing["workspace"], stream, device)
    elif prepared.workspace_bytes and "stream" not in changing:
        scratch = first.scratch(like, prepared.workspace_bytes)
        if scratch is not None:
            arguments.workspace = first.pointer("workspace", scratch)
            arguments.workspace_size = prepared.workspace_bytes
    for name, value in changing.items():
        setattr(arguments, name, value)
    context = _library.context(first.threads(), backend)
    code = prepared.function(context.handle, *prepared.references)
    if code not in _WRITES_NOTHING:
        for name in prepared.written:
            maker = family_of(name, arrays[name])
            maker.wrote(arrays[name])
    if prepared.watch is not None and prepared.watch.raised:
        raise _interrupt.Raised(prepared.watch.raised.pop())
    if code != _abi.ATTN_OK:
        raise _library.exception_of(code, function)
    if idle is None:
        if len(_idle) >= _CACHE_KINDS:
            _idle.clear()
        idle = _idle.setdefault(key, [])
    if len(idle) < 8:
        idle.append(prepared)
    return made


def refuse_recording(function: str, arrays: Arrays) -> None:
    """Refuses PyTorch tensors where PyTorch records what is computed from them, which it can't see
    here: for autograd, or for torch.jit.trace."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    differentiable = function.removesuffix("_backward")
    for name, x in arrays.items():
        if not isinstance(x, torch.Tensor):
            continue
        if torch._C._is_tracing():
            raise ValueError(
                f"{function}: {name}: found a tensor while torch.jit.trace records; accepted: "
                "torch.export or torch.compile with the functions of libattn.torch"
            )
        if x.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                f"{function}: {name}: found a tensor that requires a gradient; accepted: use "
                f"libattn.torch.{differentiable}, which has one, or torch.no_grad()"
            )


def device_name(facts: Facts) -> str:
    return DEVICES[facts.device]


def split_pointer(name: str, value: Any, q: Any) -> tuple[int, int | None]:
    """A seed or offset: (number, None), or (0, address) of an array on the device of q."""
    accepted = "an int, or an int64 or uint64 array of one element on the device of q"
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        if not 0 <= int(value) < 1 << 64:
            raise ValueError(f"{name}: found {value}; accepted 0 to 2**64 - 1")
        return int(value), None
    dtype = str(getattr(value, "dtype", "")).removeprefix("torch.")
    shape = getattr(value, "shape", None)
    if shape is None or dtype not in ("int64", "uint64") or list(shape) not in ([], [1]):
        raise ValueError(f"{name}: found {shown(value)}; accepted {accepted}")
    like, maker = opened("q", q)
    value, family = opened(name, value)
    place = maker.facts("q", like)[1:3]
    if family.facts(name, value)[1:3] != place:
        raise ValueError(
            f"{name}: found {shown(value)} on another device than q; accepted {accepted}"
        )
    if place[0] == _abi.ATTN_HOST:
        return int(family.values(value).reshape(())[()]) % (1 << 64), None
    return 0, family.pointer(name, value)
