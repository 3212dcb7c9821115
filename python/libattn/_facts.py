"""What libattn knows about arrays of any maker: element types, devices, facts of one array.

A `Family` knows the arrays of one maker (NumPy, PyTorch, ...): the facts of an array (type, device,
shape, strides), a key that is equal exactly when the facts are equal, the address, and how to make
a new array.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from . import _abi

# No types of the C ABI: indices are converted to int32 before the call, seeds are read.
I64, U64 = -1, -2
DTYPES = {
    "float32": _abi.ATTN_F32,
    "float16": _abi.ATTN_F16,
    "bfloat16": _abi.ATTN_BF16,
    "float64": _abi.ATTN_F64,
    "float8_e4m3fn": _abi.ATTN_F8E4M3,
    "float8_e5m2": _abi.ATTN_F8E5M2,
    "int32": _abi.ATTN_I32,
    "uint8": _abi.ATTN_U8,
    "int8": _abi.ATTN_I8,
    "bool": _abi.ATTN_U8,
    "int64": I64,
    "uint64": U64,
}
NAMES = {code: name for name, code in reversed(DTYPES.items()) if name != "bool"}
DEVICES = {_abi.ATTN_HOST: "host", _abi.ATTN_CUDA: "cuda", _abi.ATTN_WEBGPU: "webgpu"}
MAX_RANK = 4
LEGACY_STREAM = 1  # handle of CUDA's default stream in DLPack and __cuda_array_interface__

FLOATS = ("float32", "float16", "bfloat16", "float64")
_INPUTS = (*FLOATS, "float8_e4m3fn", "float8_e5m2")
_KEYS = (*_INPUTS, "int8")
_STATISTICS = ("float32", "float64")
INTEGERS = frozenset(
    (
        "kv_begin",
        "kv_end",
        "len_q",
        "len_kv",
        "cu_len_q",
        "cu_len_kv",
        "block_table",
        "rope_pos_q",
        "rope_pos_k",
        "positions",
        "cu_len",
    )
)
# Types that an argument can have, by field of the C ABI; _INPUTS where it is not listed.
_ACCEPTED = {
    **dict.fromkeys(INTEGERS, ("int32", "int64")),
    **dict.fromkeys(("k", "v", "k_new", "v_new"), _KEYS),
    "mask": ("bool", "uint8"),
    "bias": FLOATS,
    "nonfinite_count": ("int32",),
    **dict.fromkeys(("descale_q", "descale_k", "descale_v"), ("float32",)),
    "workspace": ("uint8",),
    **dict.fromkeys(("alibi_slopes", "sinks", "dsink", "rope_cos", "rope_sin"), _STATISTICS),
    **dict.fromkeys(("cos", "sin", "lse", "lse1", "lse2", "dlse", "delta"), _STATISTICS),
    **dict.fromkeys(("o", "dout", "dq", "dk", "dv", "dbias", "o1", "o2", "x", "out"), FLOATS),
}
# Fields of the C ABI under the names that Python's arguments have.
PUBLIC = {
    "rope_cos": "rope.cos",
    "rope_sin": "rope.sin",
    "rope_pos_q": "rope.positions_q",
    "rope_pos_k": "rope.positions_kv",
}
_HINTS = {
    "mask": "; a float mask that is added to the scores is bias=",
    **dict.fromkeys(INTEGERS, ", or a list of whole numbers"),
}


class Facts(NamedTuple):
    """The fields of an attn_tensor besides the address. Strides are in elements."""

    dtype: int
    device: int
    ordinal: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def numpy() -> Any:
    """NumPy, imported when the first array comes: usually its maker has imported it."""
    import numpy

    return numpy


def numpy_dtype(code: int) -> Any:
    name = NAMES[code]
    if name.startswith(("bfloat16", "float8")):
        import ml_dtypes

        return numpy().dtype(getattr(ml_dtypes, name))
    return numpy().dtype(name)


def accepted_types(name: str) -> str:
    """The element types that argument `name` can have, as text."""
    return ", ".join(_ACCEPTED.get(name, _INPUTS)) + _HINTS.get(name, "")


def check_type(name: str, code: int) -> None:
    """Raises where an argument can't have this element type, whatever the others have."""
    if code not in {DTYPES[accepted] for accepted in _ACCEPTED.get(name, _INPUTS)}:
        raise wrong_type(name, NAMES[code])


def wrong_type(name: str, found: object) -> ValueError:
    return ValueError(
        f"{PUBLIC.get(name, name)}: dtype: found {found}; accepted {accepted_types(name)}"
    )


def dtype_code(name: str, dtype: Any) -> int:
    """The code of the type of a result (argument `name`): a NumPy or PyTorch type, or its name."""
    if isinstance(dtype, str):
        text = dtype
    elif type(dtype).__module__ == "torch":
        text = str(dtype)
    else:
        try:
            text = numpy().dtype(dtype).name
        except TypeError:
            text = repr(dtype)[:80]
    text = text.removeprefix("torch.")
    if text not in FLOATS:
        raise ValueError(
            f"{name}: found {text!r}; accepted {', '.join(map(repr, FLOATS))}, or such a type of "
            "NumPy, ml_dtypes or PyTorch"
        )
    return DTYPES[text]


def dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a contiguous array. None is 0, because a stride of 0 would mean 'expanded'."""
    sizes = [max(size, 1) for size in shape]
    return tuple(math.prod(sizes[axis + 1 :]) for axis in range(len(shape)))


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
        """The array as a NumPy array if its memory is on the host, else None."""
        return None

    def integers(self, name: str, like: Any, values: Any) -> Any:
        """NumPy's int32 `values` as an array on the device of `like`."""
        raise ValueError(
            f"{name}: found a list; accepted an int32 array on the device of q, of the maker of q"
        )

    def check_output(self, name: str, x: Any) -> None:
        """Raises where x can't be written to."""

    def wrote(self, x: Any) -> None:
        """Tells the maker that a call has written to x, which the caller gave."""

    def threads(self) -> int:
        """How many threads the maker computes on; 0 = no opinion."""
        return 0

    def stream(self, x: Any) -> int | None:
        """The maker's current stream on the device of x; None on the host, or where it has none."""
        return None

    def on_stream(self, x: Any, stream: int) -> AbstractContextManager[object]:
        """A context in which the maker computes and allocates on `stream`, on the device of x.
        Memory that it allocates there is used again only in the order of that stream."""
        return nullcontext()

    def scratch(self, like: Any, size: int) -> Any:
        """Bytes on the device of `like`. They can be freed once the work that uses them is on the
        maker's current stream. None: the library allocates its own."""
        return None
