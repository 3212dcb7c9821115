"""Arrays of any maker as views, without a copy: NumPy, PyTorch, CuPy, `__cuda_array_interface__`
and DLPack."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from . import _abi
from ._dlpack import CAPSULES, Capsule
from ._facts import (
    DTYPES,
    LEGACY_STREAM,
    PUBLIC,
    Facts,
    Family,
    dense,
    numpy,
    numpy_dtype,
    wrong_type,
)


class NumpyFamily(Family):
    def __init__(self) -> None:
        self.make = make = numpy().empty
        # In NumPy's C ABI the address follows the object's header (PyArrayObject_fields of
        # ndarraytypes.h). Reading it there takes a fifth of the time of __array_interface__, which
        # builds a dict. With four small arrays that was a fifth of a call.
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

    def integers(self, name: str, like: Any, values: Any) -> Any:
        return values

    def check_output(self, name: str, x: Any) -> None:
        if not x.flags.writeable:
            raise ValueError(f"{name}: found a read-only array; accepted one that can be written")


def facts_of_ndarray(name: str, x: Any, device: int, ordinal: int) -> Facts:
    """The facts of an array with NumPy's attributes."""
    dtype = x.dtype
    code = DTYPES.get(dtype.name)
    if code is None or not dtype.isnative:
        raise wrong_type(
            name, dtype.name if dtype.isnative else f"{dtype.name} of the other byte order"
        )
    size = dtype.itemsize
    if any(stride % size for stride in x.strides):
        raise ValueError(f"{name}: strides: found {x.strides} bytes; accepted multiples of {size}")
    strides = tuple(stride // size for stride in x.strides)
    return Facts(code, device, ordinal, x.shape, strides)


def interface(x: Any) -> int:
    """The address of a NumPy array by the documented interface."""
    return x.__array_interface__["data"][0]  # type: ignore[no-any-return]


class TorchFamily(Family):
    def __init__(self) -> None:
        self.torch = torch = sys.modules["torch"]
        self.raise_version = torch.autograd.graph.increment_version
        names = [name for name in DTYPES if hasattr(torch, name)]
        self.codes = {getattr(torch, name): DTYPES[name] for name in names}
        self.dtypes = {code: dtype for dtype, code in self.codes.items() if dtype != torch.bool}

    def facts(self, name: str, x: Any) -> Facts:
        self.check_layout(name, x)
        code = self.codes.get(x.dtype)
        if code is None:
            raise wrong_type(name, x.dtype)
        device = {"cpu": _abi.ATTN_HOST, "cuda": _abi.ATTN_CUDA}.get(x.device.type)
        if device is None:
            raise ValueError(f"{name}: device: found {x.device}; accepted cpu or cuda")
        return Facts(code, device, x.device.index or 0, tuple(x.shape), x.stride())

    def check_layout(self, name: str, x: Any) -> None:
        """Raises where the memory of x is not what its shape, strides and type say."""
        if x.is_nested:
            found, accepted = "a nested tensor", "packed [total, heads, dim] with cu_len_q"
        elif x.layout != self.torch.strided:
            found, accepted = f"a tensor of layout {x.layout}", "strided tensors: to_dense()"
        elif x.is_quantized:
            found, accepted = "a quantized tensor", "float tensors: dequantize()"
        elif x.is_conj():
            found, accepted = "a tensor with a pending conjugation", "it after resolve_conj()"
        elif x.is_neg():
            found, accepted = "a tensor with a pending negation", "it after resolve_neg()"
        else:
            return
        raise ValueError(f"{name}: found {found}; accepted {accepted}")

    def key(self, x: Any) -> object:
        return (x.dtype, x.shape, x.stride(), x.device, x.is_neg())

    def pointer(self, name: str, x: Any) -> int:
        try:
            address: int = x.data_ptr()
        except RuntimeError as error:  # of torch.func's transforms, FakeTensor
            raise ValueError(
                f"{name}: found a {type(x).__name__} without memory of its own ({error}); accepted "
                "plain tensors"
            ) from None
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
        plain = x.device.type == "cpu" and x.layout == self.torch.strided and not x.is_neg()
        try:
            return x.detach().numpy() if plain else None
        except (RuntimeError, TypeError):  # bfloat16; a subclass without memory of its own
            return None

    def integers(self, name: str, like: Any, values: Any) -> Any:
        return self.torch.from_numpy(values).to(like.device)

    def wrote(self, x: Any) -> None:
        # PyTorch counts the writes to a tensor. With the count it refuses a backward that has saved
        # values from before a write. Inference tensors have no count: no backward saves them.
        if not x.is_inference():
            self.raise_version(x)

    def threads(self) -> int:
        return self.torch.get_num_threads()  # type: ignore[no-any-return]

    def stream(self, x: Any) -> int | None:
        if x.device.type != "cuda":
            return None
        return self.torch.cuda.current_stream(x.device).cuda_stream  # type: ignore[no-any-return]

    def on_stream(self, x: Any, stream: int) -> AbstractContextManager[object]:
        if x.device.type != "cuda":
            return super().on_stream(x, stream)
        cuda = self.torch.cuda
        if stream in (0, LEGACY_STREAM):  # ExternalStream(0) would be a new stream
            given = cuda.default_stream(x.device)
        else:
            given = cuda.ExternalStream(stream, device=x.device)
        return cuda.stream(given)  # type: ignore[no-any-return]

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

    def integers(self, name: str, like: Any, values: Any) -> Any:
        with like.device:
            return self.cupy.asarray(values)

    def stream(self, x: Any) -> int | None:
        with x.device:
            return self.cupy.cuda.get_current_stream().ptr  # type: ignore[no-any-return]

    @contextmanager
    def on_stream(self, x: Any, stream: int) -> Iterator[None]:
        with x.device, self.cupy.cuda.ExternalStream(stream):
            yield

    def scratch(self, like: Any, size: int) -> Any:
        return self.empty(like, (size,), _abi.ATTN_U8)


class CudaInterfaceFamily(Family):
    """`__cuda_array_interface__`, version 2 and later (Numba's documentation defines it)."""

    KINDS = {"<f4": "float32", "<f2": "float16", "<f8": "float64", "<i4": "int32"}
    BYTES = {"|u1": "uint8", "|b1": "bool", "|i1": "int8"}

    def interface(self, name: str, x: Any) -> Any:
        """The dictionary of an array, with the entries that are read here."""
        found = x.__cuda_array_interface__
        try:
            address, read_only = found["data"]
            tuple(map(int, found["shape"])), str(found["typestr"]), int(address), bool(read_only)
            map(int, found.get("strides") or ())
        except (TypeError, ValueError, KeyError, AttributeError):
            raise ValueError(
                f"{name}: __cuda_array_interface__: found {found!r:.80}; accepted a dictionary "
                "with shape, typestr and data (address, read_only)"
            ) from None
        return found

    def facts(self, name: str, x: Any) -> Facts:
        interface = self.interface(name, x)
        kind = (self.KINDS | self.BYTES).get(interface["typestr"])
        if kind is None:
            raise wrong_type(name, f"typestr {interface['typestr']}")
        shape = tuple(interface["shape"])
        size = int(interface["typestr"][2:])
        strides = interface.get("strides")
        steps = dense(shape) if strides is None else tuple(s // size for s in strides)
        return Facts(DTYPES[kind], _abi.ATTN_CUDA, 0, shape, steps)

    def key(self, x: Any) -> object:
        interface = self.interface("array", x)
        strides = interface.get("strides")
        return (interface["typestr"], tuple(interface["shape"]), strides and tuple(strides))

    def pointer(self, name: str, x: Any) -> int:
        return self.interface(name, x)["data"][0]  # type: ignore[no-any-return]

    def check_output(self, name: str, x: Any) -> None:
        if self.interface(name, x)["data"][1]:
            raise ValueError(f"{name}: found a read-only array; accepted one that can be written")

    def stream(self, x: Any) -> int | None:
        """The stream on which its values are computed (version 3); None = no wait is needed."""
        return self.interface("array", x).get("stream")  # type: ignore[no-any-return]

    def check_stream(self, name: str, x: Any, stream: int | None) -> None:
        """Raises where x is computed on another stream, for which the call would not wait."""
        own = self.stream(x)
        if own is not None and own != (stream or LEGACY_STREAM):
            raise ValueError(
                f"{name}: stream: found an array of stream {own:#x}, and the call's is "
                f"{stream or LEGACY_STREAM:#x}; accepted arrays of one stream, or stream= after "
                "the caller has waited for them"
            )


CUDA_INTERFACE = CudaInterfaceFamily()
_numpy: NumpyFamily | None = None
_torch: TorchFamily | None = None
_cupy: CupyFamily | None = None
_by_type: dict[type, Family] = {Capsule: CAPSULES}


def family_of(name: str, x: Any) -> Family | None:
    """The family of an array; None where it must first be opened through DLPack."""
    found = _by_type.get(type(x))
    if found is None:
        found = _ask(name, x)
        if found is not None:
            _by_type[type(x)] = found
    return found


def opened(name: str, x: Any, stream: int | None = None) -> tuple[Any, Family]:
    """An array and its family. An array of DLPack alone becomes a Capsule for use on `stream`."""
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
        f"{PUBLIC.get(name, name)}: found {type(x).__module__}.{type(x).__qualname__}; accepted a "
        "NumPy or CuPy array, a PyTorch tensor, or anything with __dlpack__ or "
        "__cuda_array_interface__"
    )
