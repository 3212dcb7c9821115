"""Calls of the C ABI: its structures are filled once for each kind of call, then reused.

A kind of call is a function, the facts of its arrays and its settings. Structures of a kind that
was seen before take only addresses and the numbers that change (seed, offset, ...): that keeps a
call on small arrays at a few microseconds. This is the one place that calls attn_* to compute.
"""

from __future__ import annotations

import ctypes
import numbers
from collections.abc import Callable
from typing import Any

from . import _abi, _library
from ._arrays import (
    CUDA_INTERFACE,
    DEVICES,
    MAX_RANK,
    Facts,
    Family,
    dense,
    family_of,
    opened,
)

LIBRARY = _library.LIBRARY
Arrays = dict[str, Any]
Settings = dict[str, Any]

_CACHE_KINDS = 512


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
    if not 1 <= rank <= MAX_RANK:
        raise ValueError(f"{name}: rank: found shape {facts.shape}; accepted 1 to {MAX_RANK} axes")
    tensor = _abi.attn_tensor()
    tensor.struct_size = ctypes.sizeof(tensor)
    tensor.dtype = facts.dtype
    tensor.device = facts.device
    tensor.ordinal = facts.ordinal
    tensor.rank = rank
    tensor.shape[:rank] = list(facts.shape)
    # Makers put any stride where an axis has no second element; the library reads the last one.
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
        "workspace_bytes",
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
        self.problem: Any = None
        self.tensors: dict[str, _abi.attn_tensor] = {}
        # Outputs to be made: (name, shape, dtype, its view).
        self.outputs: list[tuple[str, tuple[int, ...], int, _abi.attn_tensor]] = []
        self.workspace_bytes = 0
        for name, x in arrays.items():
            self.add(name, families[name].facts(name, x))
            if name in outputs:
                families[name].check_output(name, x)
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
        """What the function takes after the context."""
        structures = (self.arguments,) if self.problem is None else (self.problem, self.arguments)
        self.references = tuple(ctypes.addressof(structure) for structure in structures)


# Structures that no call is using now, by kind. A list's pop and append are atomic, so a kind may
# be asked for by several threads at once: the second one makes structures of its own.
_idle: dict[object, list[Prepared]] = {}


def settle(arrays: Arrays, changing: Settings, lead: str) -> tuple[list[Family], int | None]:
    """The families of a call's arrays, and the stream that it goes to: the one that was given, or
    the current one of the maker of `lead`. What only speaks DLPack is opened for that stream."""
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


def _workspace(value: Any, stream: int | None) -> Settings:
    """A workspace that the caller gave, as fields of the arguments."""
    x, family = opened("workspace", value, stream)
    facts = family.facts("workspace", x)
    if facts.dtype != _abi.ATTN_U8 or len(facts.shape) != 1 or facts.strides != (1,):
        raise ValueError(f"workspace: found shape {facts.shape}; accepted contiguous uint8 [bytes]")
    return {"workspace": family.pointer("workspace", x) or None, "workspace_size": facts.shape[0]}


def run(
    build: Callable[[Arrays, dict[str, Family]], Prepared],
    kind: tuple[object, ...],
    arrays: Arrays,
    changing: Settings,
    lead: str,
) -> Arrays:
    """Calls with the structures of this kind, which `build` makes where there are none.

    arrays: by field of the arguments structure, none of them None; `lead` names the one whose
    device, stream and maker decide. changing: fields that are written at every call. Returns the
    outputs that were made.
    """
    families, stream = settle(arrays, changing, lead)
    parts: list[object] = [kind]
    for (name, x), family in zip(arrays.items(), families, strict=True):
        parts += name, family.key(x)
    key = tuple(parts)
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
    made: Arrays = {}
    for name, shape, dtype, tensor in prepared.outputs:
        made[name] = x = first.empty(like, shape, dtype)
        maker: Any = family_of(name, x)
        tensor.data = maker.pointer(name, x)
    backend = changing.pop("device", None)
    arguments = prepared.arguments
    arguments.stream = stream
    arguments.has_stream = int(stream is not None)
    if "workspace" in changing:
        changing |= _workspace(changing["workspace"], stream)
    elif prepared.workspace_bytes and "stream" not in changing:
        scratch = first.scratch(like, prepared.workspace_bytes)
        if scratch is not None:
            arguments.workspace = first.pointer("workspace", scratch)
            arguments.workspace_size = prepared.workspace_bytes
    for name, value in changing.items():
        setattr(arguments, name, value)
    context = _library.context(first.threads(), backend)
    code = prepared.function(context.handle, *prepared.references)
    if code != _abi.ATTN_OK:
        raise _library.exception_of(code)
    if idle is None:
        if len(_idle) >= _CACHE_KINDS:
            _idle.clear()
        idle = _idle.setdefault(key, [])
    if len(idle) < 8:
        idle.append(prepared)
    return made


def device_name(facts: Facts) -> str:
    return DEVICES[facts.device]


def split_pointer(name: str, value: Any) -> tuple[int, int | None]:
    """A number, or the address of an array that holds it: (number, None) or (0, address)."""
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        if not 0 <= int(value) < 1 << 64:
            raise ValueError(f"{name}: found {value}; accepted 0 to 2**64 - 1")
        return int(value), None
    family = family_of(name, value)
    dtype = str(getattr(value, "dtype", "")).removeprefix("torch.")
    size = getattr(value, "size", None)
    count = value.numel() if hasattr(value, "numel") else size
    if family is None or dtype not in ("int64", "uint64") or count != 1:
        raise ValueError(
            f"{name}: found {type(value).__name__} of {dtype or 'no type'}; accepted an int, or an "
            "int64 or uint64 array of one element on the device of q"
        )
    return 0, family.pointer(name, value)
