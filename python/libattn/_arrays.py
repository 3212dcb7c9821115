"""Arrays of any maker as views: NumPy, PyTorch, CuPy, `__cuda_array_interface__` and DLPack,
uncopied.

A family knows the arrays of one maker: the facts of an array (type, device, shape, strides), a key
that is equal exactly when the facts are, its address, and how to make an array like another.

NumPy is imported when the first array comes: by whoever made it, mostly.
"""

from __future__ import annotations

import ctypes
import math
import sys
from typing import Any, NamedTuple

from . import _abi

DTYPES = {
    "float32": _abi.ATTN_F32,
    "float16": _abi.ATTN_F16,
    "bfloat16": _abi.ATTN_BF16,
    "float64": _abi.ATTN_F64,
    "float8_e4m3fn": _abi.ATTN_F8E4M3,
    "float8_e5m2": _abi.ATTN_F8E5M2,
    "int32": _abi.ATTN_I32,
    "uint8": _abi.ATTN_U8,
    "bool": _abi.ATTN_U8,
}
NAMES = {code: name for name, code in reversed(DTYPES.items()) if name != "bool"}
DEVICES = {_abi.ATTN_HOST: "host", _abi.ATTN_CUDA: "cuda", _abi.ATTN_WEBGPU: "webgpu"}
MAX_RANK = 4
LEGACY_STREAM = 1  # CUDA's default stream by its handle, as DLPack and the CUDA interface say it


class Facts(NamedTuple):
    """What a view of the C ABI holds beside the address. Strides are in elements."""

    dtype: int
    device: int
    ordinal: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def numpy() -> Any:
    import numpy

    return numpy


def dtype_code(dtype: Any) -> int:
    """The code of a type given as a NumPy or PyTorch type or as its name."""
    if isinstance(dtype, str):
        name = dtype
    elif type(dtype).__module__ == "torch":
        name = str(dtype)
    else:
        name = numpy().dtype(dtype).name
    name = name.removeprefix("torch.")
    if name not in DTYPES:
        raise ValueError(f"dtype: found {name}; accepted {', '.join(DTYPES)}")
    return DTYPES[name]


class Family:
    """The arrays of one maker."""

    def facts(self, name: str, x: Any) -> Facts:
        raise NotImplementedError

    def key(self, x: Any) -> object:
        raise NotImplementedError

    def pointer(self, name: str, x: Any) -> int:
        raise NotImplementedError

    def empty(self, like: Any, shape: tuple[int, ...], dtype: int) -> Any:
        """An array without values on the device of `like`."""
        raise ValueError(
            f"out: found none, and arrays of {type(like).__module__}.{type(like).__qualname__} "
            "can't be made here; accepted: the output arrays as arguments (out=, dq=, ...)"
        )

    def values(self, x: Any) -> Any:
        """The array as NumPy where its memory is the host's."""
        return None

    def check_output(self, name: str, x: Any) -> None:
        """Raises where x can't be written to."""

    def threads(self) -> int:
        """How many threads its maker computes on; 0 = no opinion."""
        return 0

    def stream(self, x: Any) -> int | None:
        """The maker's current stream on the device of x; None on the host, or where it has none."""
        return None

    def scratch(self, like: Any, size: int) -> Any:
        """Bytes on the device of `like` that may be let go of as soon as work that uses them is on
        the maker's current stream; None where the library is to take its own."""
        return None


class NumpyFamily(Family):
    def __init__(self) -> None:
        self.make = make = numpy().empty
        # NumPy's C ABI has the address right after the object's header (PyArrayObject_fields of
        # ndarraytypes.h). Reading it there takes a fifth of the time of __array_interface__, which
        # makes a dict: with four arrays, a fifth of a call on small ones.
        self.header = object.__basicsize__
        self.read = ctypes.c_void_p.from_address
        probe = make(1)
        if sys.implementation.name != "cpython" or self.pointer("", probe) != interface(probe):
            self.pointer = lambda name, x: interface(x)  # type: ignore[method-assign]
        self.dtypes: dict[int, Any] = {}

    def facts(self, name: str, x: Any) -> Facts:
        return facts_of_ndarray(name, x, _abi.ATTN_HOST, 0)

    def key(self, x: Any) -> object:
        return (x.dtype, x.shape, x.strides)

    def pointer(self, name: str, x: Any) -> int:
        return self.read(id(x) + self.header).value or 0

    def empty(self, like: Any, shape: tuple[int, ...], dtype: int) -> Any:
        kind = self.dtypes.get(dtype)
        if kind is None:
            kind = self.dtypes[dtype] = numpy_dtype(dtype)
        return self.make(shape, kind)

    def values(self, x: Any) -> Any:
        return x

    def check_output(self, name: str, x: Any) -> None:
        if not x.flags.writeable:
            raise ValueError(f"{name}: found a read-only array; accepted one that can be written")


def facts_of_ndarray(name: str, x: Any, device: int, ordinal: int) -> Facts:
    """Of an array with NumPy's attributes."""
    dtype = x.dtype
    code = DTYPES.get(dtype.name)
    if code is None or not dtype.isnative:
        found = dtype.name if dtype.isnative else f"{dtype.name} of the other byte order"
        raise ValueError(f"{name}: dtype: found {found}; accepted {', '.join(DTYPES)}")
    size = dtype.itemsize
    if any(stride % size for stride in x.strides):
        raise ValueError(f"{name}: strides: found {x.strides} bytes; accepted multiples of {size}")
    strides = tuple(stride // size for stride in x.strides)
    return Facts(code, device, ordinal, x.shape, strides)


def interface(x: Any) -> int:
    """The address of a NumPy array, by the documented way."""
    return x.__array_interface__["data"][0]  # type: ignore[no-any-return]


def numpy_dtype(code: int) -> Any:
    name = NAMES[code]
    if name.startswith(("bfloat16", "float8")):
        import ml_dtypes

        return numpy().dtype(getattr(ml_dtypes, name))
    return numpy().dtype(name)


class TorchFamily(Family):
    def __init__(self) -> None:
        self.torch = torch = sys.modules["torch"]
        names = [name for name in DTYPES if hasattr(torch, name)]
        self.codes = {getattr(torch, name): DTYPES[name] for name in names}
        self.dtypes = {code: dtype for dtype, code in self.codes.items() if dtype != torch.bool}

    def facts(self, name: str, x: Any) -> Facts:
        torch = self.torch
        if x.layout != torch.strided or x.is_quantized or x.is_conj() or x.is_neg():
            raise ValueError(
                f"{name}: found a tensor of layout {x.layout}; accepted plain strided tensors"
            )
        code = self.codes.get(x.dtype)
        if code is None:
            accepted = ", ".join(str(dtype) for dtype in self.codes)
            raise ValueError(f"{name}: dtype: found {x.dtype}; accepted {accepted}")
        device = {"cpu": _abi.ATTN_HOST, "cuda": _abi.ATTN_CUDA}.get(x.device.type)
        if device is None:
            raise ValueError(f"{name}: device: found {x.device}; accepted cpu or cuda")
        return Facts(code, device, x.device.index or 0, tuple(x.shape), x.stride())

    def key(self, x: Any) -> object:
        return (x.dtype, x.shape, x.stride(), x.device)

    def pointer(self, name: str, x: Any) -> int:
        address: int = x.data_ptr()
        if address == 0 or x.untyped_storage().nbytes() == 0:
            self.check_storage(name, x)
        return address

    def check_storage(self, name: str, x: Any) -> None:
        if x.numel():
            raise ValueError(
                f"{name}: found a tensor of shape {tuple(x.shape)} whose storage is empty (freed "
                "or not yet made); accepted tensors that hold their memory"
            )

    def empty(self, like: Any, shape: tuple[int, ...], dtype: int) -> Any:
        return self.torch.empty(shape, dtype=self.dtypes[dtype], device=like.device)

    def values(self, x: Any) -> Any:
        return x.detach().numpy() if x.device.type == "cpu" else None

    def threads(self) -> int:
        return self.torch.get_num_threads()  # type: ignore[no-any-return]

    def stream(self, x: Any) -> int | None:
        if x.device.type != "cuda":
            return None
        return self.torch.cuda.current_stream(x.device).cuda_stream  # type: ignore[no-any-return]

    def scratch(self, like: Any, size: int) -> Any:
        return self.torch.empty(size, dtype=self.torch.uint8, device=like.device)


class CupyFamily(Family):
    """CuPy: arrays like NumPy's on a CUDA device, with a current stream and an allocator."""

    def __init__(self) -> None:
        self.cupy = sys.modules["cupy"]

    def facts(self, name: str, x: Any) -> Facts:
        return facts_of_ndarray(name, x, _abi.ATTN_CUDA, x.device.id)

    def key(self, x: Any) -> object:
        return (x.dtype, x.shape, x.strides, x.device.id)

    def pointer(self, name: str, x: Any) -> int:
        return x.data.ptr  # type: ignore[no-any-return]

    def empty(self, like: Any, shape: tuple[int, ...], dtype: int) -> Any:
        with like.device:
            return self.cupy.empty(shape, numpy_dtype(dtype))

    def stream(self, x: Any) -> int | None:
        with x.device:
            return self.cupy.cuda.get_current_stream().ptr  # type: ignore[no-any-return]

    def scratch(self, like: Any, size: int) -> Any:
        return self.empty(like, (size,), _abi.ATTN_U8)


class CudaInterfaceFamily(Family):
    """`__cuda_array_interface__`, version 2 and later (Numba's documentation defines it)."""

    KINDS = {"<f4": "float32", "<f2": "float16", "<f8": "float64", "<i4": "int32"}
    BYTES = {"|u1": "uint8", "|b1": "bool", "|i1": "uint8"}

    def facts(self, name: str, x: Any) -> Facts:
        interface = x.__cuda_array_interface__
        kind = (self.KINDS | self.BYTES).get(interface["typestr"])
        if kind is None:
            raise ValueError(
                f"{name}: typestr: found {interface['typestr']}; accepted "
                f"{', '.join(self.KINDS | self.BYTES)}"
            )
        shape = tuple(interface["shape"])
        size = int(interface["typestr"][2:])
        strides = interface.get("strides")
        steps = dense(shape) if strides is None else tuple(s // size for s in strides)
        return Facts(DTYPES[kind], _abi.ATTN_CUDA, 0, shape, steps)

    def key(self, x: Any) -> object:
        interface = x.__cuda_array_interface__
        strides = interface.get("strides")
        return (interface["typestr"], tuple(interface["shape"]), strides and tuple(strides))

    def pointer(self, name: str, x: Any) -> int:
        return x.__cuda_array_interface__["data"][0]  # type: ignore[no-any-return]

    def check_output(self, name: str, x: Any) -> None:
        if x.__cuda_array_interface__["data"][1]:
            raise ValueError(f"{name}: found a read-only array; accepted one that can be written")

    def stream(self, x: Any) -> int | None:
        """Where its values are made: version 3 says so, None = nothing is to be waited for."""
        return x.__cuda_array_interface__.get("stream")  # type: ignore[no-any-return]

    def check_stream(self, name: str, x: Any, stream: int | None) -> None:
        """Raises where x is made on another stream than the call's: nobody would wait for it."""
        own = self.stream(x)
        if own is not None and own != (stream or LEGACY_STREAM):
            raise ValueError(
                f"{name}: stream: found an array that is made on stream {own:#x}, and the call's "
                f"is {stream or LEGACY_STREAM:#x}; accepted arrays of one stream, or stream=, for "
                "which the caller has waited"
            )


def dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a contiguous array, none of them 0: a stride of 0 would say 'expanded'."""
    sizes = [max(size, 1) for size in shape]
    return tuple(math.prod(sizes[axis + 1 :]) for axis in range(len(shape)))


class _DLTensor(ctypes.Structure):
    """struct DLTensor of dlpack.h (version 0.x, and the same inside 1.x)."""

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


class Capsule:
    """A DLPack capsule that was opened: facts and address; the memory lives as long as this.

    stream: of the call that will read it. The maker makes that stream wait for what it has queued
    (the stream argument of __dlpack__ in the Python array API standard).
    """

    TYPES = {
        (2, 32): "float32",
        (2, 16): "float16",
        (2, 64): "float64",
        (4, 16): "bfloat16",
        (0, 32): "int32",
        (1, 8): "uint8",
        (6, 8): "bool",
    }
    PLACES = {1: _abi.ATTN_HOST, 2: _abi.ATTN_CUDA, 3: _abi.ATTN_HOST, 13: _abi.ATTN_CUDA}

    def __init__(self, name: str, source: Any, stream: int | None = None) -> None:
        if is_dlpack_of_cuda(source):
            capsule = source.__dlpack__(stream=stream or LEGACY_STREAM)
        else:
            capsule = source.__dlpack__()
        open_capsule = ctypes.pythonapi.PyCapsule_GetPointer
        open_capsule.restype = ctypes.c_void_p
        open_capsule.argtypes = [ctypes.py_object, ctypes.c_char_p]
        tensor = _DLTensor.from_address(open_capsule(capsule, b"dltensor"))
        dtype = self.TYPES.get((tensor.code, tensor.bits))
        if dtype is None or tensor.lanes != 1:
            raise ValueError(
                f"{name}: DLPack type: found code {tensor.code}, {tensor.bits} bits, "
                f"{tensor.lanes} lanes; accepted {', '.join(self.TYPES.values())}"
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
        self.source = source
        self.capsule = capsule
        self.facts = Facts(DTYPES[dtype], place, ordinal, shape, strides)
        self.address = (tensor.data or 0) + tensor.byte_offset


def is_dlpack_of_cuda(x: Any) -> bool:
    """Whether DLPack says so, without opening: for that the stream of the call must be known."""
    ask = getattr(x, "__dlpack_device__", None)
    return ask is not None and Capsule.PLACES.get(ask()[0]) == _abi.ATTN_CUDA


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
        if facts.device != _abi.ATTN_HOST or 0 in facts.shape:
            return None
        dtype = numpy_dtype(facts.dtype)
        reach = sum((n - 1) * s for n, s in zip(facts.shape, facts.strides, strict=True))
        memory = (ctypes.c_char * ((reach + 1) * dtype.itemsize)).from_address(x.address)
        steps = tuple(stride * dtype.itemsize for stride in facts.strides)
        return numpy().ndarray(facts.shape, dtype, memory, 0, steps)


CUDA_INTERFACE = CudaInterfaceFamily()
CAPSULES = CapsuleFamily()
_numpy: NumpyFamily | None = None
_torch: TorchFamily | None = None
_cupy: CupyFamily | None = None
_by_type: dict[type, Family] = {Capsule: CAPSULES}


def family_of(name: str, x: Any) -> Family | None:
    """The family of an array; None where it must be opened through DLPack first."""
    found = _by_type.get(type(x))
    if found is None:
        found = _ask(name, x)
        if found is not None:
            _by_type[type(x)] = found
    return found


def opened(name: str, x: Any, stream: int | None = None) -> tuple[Any, Family]:
    """An array and its family; what only speaks DLPack becomes a Capsule, for use on a stream."""
    family = family_of(name, x)
    if family is None:
        return Capsule(name, x, stream), CAPSULES
    return x, family


def _ask(name: str, x: Any) -> Family | None:
    global _numpy, _torch, _cupy
    masked = False
    if "numpy" in sys.modules:
        masked = isinstance(x, numpy().ma.MaskedArray)
        if isinstance(x, numpy().ndarray) and not masked:
            _numpy = _numpy or NumpyFamily()
            return _numpy
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        _torch = _torch or TorchFamily()
        return _torch
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(x, cupy.ndarray):
        _cupy = _cupy or CupyFamily()
        return _cupy
    # DLPack first: JAX's arrays have both names and refuse the other one in host memory.
    if hasattr(type(x), "__dlpack__") and not masked:
        return None
    if hasattr(type(x), "__cuda_array_interface__"):
        return CUDA_INTERFACE
    raise ValueError(
        f"{name}: found {type(x).__module__}.{type(x).__qualname__}; accepted a NumPy or CuPy "
        "array, a PyTorch tensor, or anything with __dlpack__ or __cuda_array_interface__"
    )
