"""Arrays that are read through DLPack: any object with __dlpack__ and __dlpack_device__."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from . import _abi
from ._facts import (
    DTYPES,
    LEGACY_STREAM,
    Facts,
    Family,
    accepted_types,
    dense,
    numpy,
    numpy_dtype,
)


class _DLTensor(ctypes.Structure):
    """struct DLTensor of dlpack.h, the same in versions 0.x and 1.x."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Versioned(ctypes.Structure):
    """struct DLManagedTensorVersioned of dlpack.h 1.x."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    ]


_READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY


def _export(name: str, source: Any, stream: int | None) -> Any:
    """The capsule of an array, versioned (which knows read-only memory) where its maker can."""
    options = {"stream": stream or LEGACY_STREAM} if is_dlpack_of_cuda(source) else {}
    try:
        try:
            return source.__dlpack__(max_version=(1, 0), **options)
        except TypeError:  # a maker of before version 1
            return source.__dlpack__(**options)
    except Exception as error:
        raise ValueError(
            f"{name}: found {type(source).__module__}.{type(source).__qualname__}, which DLPack "
            f"does not export ({error}); accepted an array with memory of its own"
        ) from error


class Capsule:
    """A DLPack capsule that was opened: facts and address. The memory lives as long as this object.

    stream: that of the call that will read it. The maker makes that stream wait for what it has
    queued (the stream argument of __dlpack__ in the Python array API standard).
    """

    TYPES = {
        (2, 32): "float32",
        (2, 16): "float16",
        (2, 64): "float64",
        (4, 16): "bfloat16",
        (10, 8): "float8_e4m3fn",
        (12, 8): "float8_e5m2",
        (0, 32): "int32",
        (0, 64): "int64",
        (0, 8): "int8",
        (1, 8): "uint8",
        (6, 8): "bool",
    }
    PLACES = {1: _abi.ATTN_HOST, 2: _abi.ATTN_CUDA, 3: _abi.ATTN_HOST, 13: _abi.ATTN_CUDA}

    def __init__(self, name: str, source: Any, stream: int | None = None) -> None:
        capsule = _export(name, source, stream)
        tensor, self.read_only = _opened(name, source, capsule)
        dtype = self.TYPES.get((tensor.code, tensor.bits))
        if dtype is None or tensor.lanes != 1:
            raise ValueError(
                f"{name}: DLPack type: found code {tensor.code}, {tensor.bits} bits, "
                f"{tensor.lanes} lanes; accepted {accepted_types(name)}"
            )
        place = self.PLACES.get(tensor.device_type)
        if place is None:
            raise ValueError(
                f"{name}: DLPack device: found {tensor.device_type}; accepted 1 (CPU), 2 (CUDA), 3 "
                "and 13 (host and managed memory of CUDA)"
            )
        shape = tuple(tensor.shape[: tensor.ndim])
        strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else dense(shape)
        ordinal = tensor.device_id if place == _abi.ATTN_CUDA else 0
        # JAX's arrays never change, but their capsules do not have the flag.
        jax_array = getattr(sys.modules.get("jax"), "Array", ())
        self.read_only |= isinstance(source, jax_array)
        self.source = source
        self.capsule = capsule
        self.facts = Facts(DTYPES[dtype], place, ordinal, shape, strides)
        self.address = (tensor.data or 0) + tensor.byte_offset


def _opened(name: str, source: Any, capsule: Any) -> tuple[_DLTensor, bool]:
    """The tensor in a capsule, and whether it is read-only."""
    open_capsule = ctypes.pythonapi.PyCapsule_GetPointer
    open_capsule.restype = ctypes.c_void_p
    open_capsule.argtypes = [ctypes.py_object, ctypes.c_char_p]
    is_valid = ctypes.pythonapi.PyCapsule_IsValid
    is_valid.restype = ctypes.c_int
    is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]
    if is_valid(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(open_capsule(capsule, b"dltensor_versioned"))
        if managed.major == 1:
            return managed.tensor, bool(managed.flags & _READ_ONLY)
    elif is_valid(capsule, b"dltensor"):
        return _DLTensor.from_address(open_capsule(capsule, b"dltensor")), False
    raise ValueError(
        f"{name}: found {type(source).__module__}.{type(source).__qualname__}, whose __dlpack__ "
        f"returns {type(capsule).__name__}; accepted a DLPack capsule of version 0 or 1"
    )


def is_dlpack_of_cuda(x: Any) -> bool:
    """Whether an array is on CUDA according to DLPack, without opening it: opening it needs the
    stream of the call."""
    ask = getattr(x, "__dlpack_device__", None)
    if ask is None:
        return False
    try:
        return Capsule.PLACES.get(ask()[0]) == _abi.ATTN_CUDA
    except Exception:  # whatever a maker raises: opening the array says why
        return False


class CapsuleFamily(Family):
    def facts(self, name: str, x: Any) -> Facts:
        return x.facts  # type: ignore[no-any-return]

    def key(self, x: Any) -> object:
        return x.facts

    def pointer(self, name: str, x: Any) -> int:
        return x.address  # type: ignore[no-any-return]

    def empty(self, like: Any, shape: tuple[int, ...], dtype: int) -> Any:
        if like.facts.device == _abi.ATTN_HOST:
            return numpy().empty(shape, numpy_dtype(dtype))
        return super().empty(like.source, shape, dtype)

    def values(self, x: Any) -> Any:
        facts: Facts = x.facts
        if facts.device != _abi.ATTN_HOST or any(step < 0 for step in facts.strides):
            return None
        dtype = numpy_dtype(facts.dtype)
        if 0 in facts.shape:
            return numpy().empty(facts.shape, dtype)
        reach = sum((n - 1) * s for n, s in zip(facts.shape, facts.strides, strict=True))
        memory = (ctypes.c_char * ((reach + 1) * dtype.itemsize)).from_address(x.address)
        memory.owner = x
        steps = tuple(stride * dtype.itemsize for stride in facts.strides)
        return numpy().ndarray(facts.shape, dtype, memory, 0, steps)

    def integers(self, name: str, like: Any, values: Any) -> Any:
        if like.facts.device == _abi.ATTN_HOST:
            return values
        return super().integers(name, like, values)

    def check_output(self, name: str, x: Any) -> None:
        if x.read_only:
            raise ValueError(f"{name}: found a read-only array; accepted one that can be written")


CAPSULES = CapsuleFamily()
