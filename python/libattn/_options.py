"""The options that every attention call takes, and what they are in the C ABI."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from . import _abi
from ._arrays import family_of, is_dlpack_of_cuda, numpy, opened
from ._calls import Arrays, Prepared, Settings, split_pointer

Array = Any
"""An array of NumPy, CuPy or PyTorch, or anything with DLPack or `__cuda_array_interface__`."""


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where this call lies in a larger problem: its first batch entry, head, query and key.

    With `diagonal="origin"` the diagonal is at `q - kv`. Dropout draws as the larger problem does,
    whose number of query heads is `heads_q` (0 = that of this call).
    """

    batch: int = 0
    head: int = 0
    q: int = 0
    kv: int = 0
    heads_q: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class Rope:
    """Rotary embedding of q and k inside attention (Su et al. 2021, RoFormer, section 3.4.2).

    style: "half" rotates the pairs (m, m + rot_dim/2), "interleaved" (2m, 2m + 1).
    rot_dim: even, at most dim_qk; None = dim_qk. The angle is position * base^(-2m/rot_dim).
    pos_offset: added to the positions j of keys and i + diag of queries.
    cos, sin: [positions, rot_dim/2] f32, tables instead of `base`.
    positions_q, positions_kv: i32 [b|1, n], [b|1, m] (packed [total]; decode: [b|1, len_new]).
    """

    style: Literal["half", "interleaved"] = "half"
    rot_dim: int | None = None
    base: float = 10000.0
    pos_offset: int = 0
    cos: Array = None
    sin: Array = None
    positions_q: Array = None
    positions_kv: Array = None


class Options(TypedDict, total=False):
    """Options of attention, attention_backward and decode; symbols: b batch, h heads of q, n and m
    lengths of q and of k. docs/semantics.md defines them.

    causal: key j is visible to query i when j <= i + diag.
    diagonal: "bottom_right" (diag = len_kv - len_q), "top_left" (0), "origin", or diag as an int.
    window: (left, right), each >= 0 or None: i + diag - left <= j <= i + diag + right.
    kv_begin, kv_end: i32 [b|1, n], packed [total_q]: kv_begin[i] <= j < kv_end[i].
    mask: u8 or bool [b|1, h|1, n|1, m|1], non-zero = may attend.
    bias: [b|1, h|1, n|1, m|1] f32, f16 or bf16 (f64 with f64), added to the score.
    softcap: > 0: score = softcap * tanh(score / softcap) (Gemma 2, section 2); 0 or None: off.
    alibi_slopes: f32 [h] or [b, h]: score - slope * |i + diag - j| (Press et al. 2021, section 3).
    sinks: f32 [h]: a score that takes part in the softmax and has no value.
    len_q, len_kv: i32 [b], how much of each entry is used; the rest is as if it were not there.
    cu_len_q, cu_len_kv: i32 [b + 1], with packed tensors [total, heads, dim].
    max_len_q, max_len_kv: the largest length of a packed batch; None = the total.
    dropout_p: 0, or [1/512, 1) in steps of 1/256; seed, offset: ints, or int64 or uint64 arrays of
        one element on the device of q; the same ones give the same draws in forward and backward.
    origin: Origin.
    scale: None = 1/sqrt(dim_qk).
    rope: Rope.
    precision: of f32 products on CUDA: "tf32x3", "tf32", "ieee".
    deterministic: the same bits from run to run.
    nonfinite_count: i32 [1]: non-finite elements of outputs are written as 0 and counted here.
    workspace: u8 array, aligned to 64 bytes, of workspace_bytes() or more; None = made or pooled.
    stream: address of a CUDA stream; None = the current one of the maker of q (PyTorch, CuPy, the
        stream of __cuda_array_interface__), else the default stream. With one that is not the
        maker's current one, waiting for the inputs and for memory of outputs is the caller's.
    device: where arrays in host memory are computed: None or "host" for the CPU, "webgpu" for the
        GPU that WebGPU finds, to which they are copied and back (docs/webgpu.md).
    """

    causal: bool
    diagonal: int | str
    window: tuple[int | None, int | None] | None
    kv_begin: Array
    kv_end: Array
    mask: Array
    bias: Array
    softcap: float | None
    alibi_slopes: Array
    sinks: Array
    len_q: Array
    len_kv: Array
    cu_len_q: Array
    cu_len_kv: Array
    max_len_q: int | None
    max_len_kv: int | None
    dropout_p: float
    seed: Any
    offset: Any
    origin: Origin | None
    scale: float | None
    rope: Rope | None
    precision: str
    deterministic: bool
    nonfinite_count: Array
    workspace: Array
    stream: int | None
    device: str | None


ARRAYS = (
    "kv_begin",
    "kv_end",
    "mask",
    "bias",
    "alibi_slopes",
    "sinks",
    "len_q",
    "len_kv",
    "cu_len_q",
    "cu_len_kv",
    "nonfinite_count",
)
VALUES_CHECKED = frozenset(("len_q", "len_kv", "cu_len_q", "cu_len_kv", "alibi_slopes"))
NAMES = frozenset(Options.__annotations__)

PRECISIONS = {"tf32x3": _abi.ATTN_TF32X3, "tf32": _abi.ATTN_TF32, "ieee": _abi.ATTN_IEEE}
DIAGONALS = {
    "bottom_right": _abi.ATTN_BOTTOM_RIGHT,
    "top_left": _abi.ATTN_TOP_LEFT,
    "origin": _abi.ATTN_EXPLICIT,
}
BACKENDS = {"host": None, "webgpu": "webgpu"}
STYLES = {"half": _abi.ATTN_ROPE_HALF, "interleaved": _abi.ATTN_ROPE_INTERLEAVED}


def choice(name: str, value: Any, accepted: Mapping[str, int]) -> int:
    if not isinstance(value, str) or value not in accepted:
        raise ValueError(f"{name}: found {value!r}; accepted {', '.join(map(repr, accepted))}")
    return accepted[value]


def device_of(value: Any) -> Settings:
    """The option `device` as what `run` takes: the backend that is asked for by name."""
    if not isinstance(value, str) or value not in BACKENDS:
        raise ValueError(f"device: found {value!r}; accepted {', '.join(map(repr, BACKENDS))}")
    backend = BACKENDS[value]
    return {} if backend is None else {"device": backend}


def integer(name: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name}: found {value!r}; accepted a whole number") from None
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"{name}: found {number}; accepted what 64 bits hold")
    return number


def real(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name}: found {value!r}; accepted a number") from None


def split(function: str, options: Mapping[str, Any]) -> tuple[Arrays, Settings, Settings]:
    """Options as arrays by C field, settings of the problem, and fields that change by call."""
    arrays: Arrays = {}
    settings: Settings = {}
    changing: Settings = {}
    for name, value in options.items():
        if name not in NAMES:
            raise TypeError(
                f"{function}: unknown option '{name}'; accepted {', '.join(sorted(NAMES))}"
            )
        if value is None:
            continue
        if name in ARRAYS:
            arrays[name] = value
        elif name in ("seed", "offset"):
            number, pointer = split_pointer(name, value)
            changing[name] = number
            changing[name + "_pointer"] = pointer
        elif name == "rope":
            rope_parts(value, arrays, settings, changing)
        elif name == "workspace":
            changing["workspace"] = value  # until run knows the stream
        elif name == "stream":
            changing["stream"] = integer(name, value)
        elif name == "device":
            changing.update(device_of(value))
        elif name == "window":
            settings[name] = window_of(value)
        else:
            settings[name] = value
    check_values(arrays)
    return arrays, settings, changing


def rope_parts(rope: Any, arrays: Arrays, settings: Settings, changing: Settings) -> None:
    if not isinstance(rope, Rope):
        raise ValueError(f"rope: found {type(rope).__name__}; accepted libattn.Rope")
    settings["rope"] = (rope.style, rope.rot_dim, rope.base)
    changing["rope_pos_offset"] = integer("rope.pos_offset", rope.pos_offset)
    fields = {
        "rope_cos": rope.cos,
        "rope_sin": rope.sin,
        "rope_pos_q": rope.positions_q,
        "rope_pos_k": rope.positions_kv,
    }
    arrays.update({name: x for name, x in fields.items() if x is not None})


def window_of(value: Any) -> tuple[int | None, int | None]:
    try:
        left, right = value
    except (TypeError, ValueError):
        raise ValueError(f"window: found {value!r}; accepted (left, right)") from None
    sides = [None if side is None else integer("window", side) for side in (left, right)]
    return sides[0], sides[1]


def check_values(arrays: Arrays) -> None:
    """Lengths and slopes in host memory are looked at; on a device they are clamped instead, since
    reading them would wait for it."""
    for name, x in arrays.items():
        if name not in VALUES_CHECKED:
            continue
        family = family_of(name, x)
        if family is None and is_dlpack_of_cuda(x):
            continue
        arrays[name], family = opened(name, x)
        values = family.values(arrays[name])
        if values is None or not 0 < values.size <= 1 << 24:  # bigger ones have a wrong shape
            continue
        if name == "alibi_slopes":
            if values.dtype.kind == "f" and not numpy().isfinite(values).all():
                raise ValueError("alibi_slopes: found NaN or infinity; accepted finite numbers")
        elif values.dtype.kind == "i":
            if values.min() < 0:
                raise ValueError(f"{name}: found {values.min()}; accepted 0 or more")
            if name.startswith("cu_") and values.ndim == 1 and (values[1:] < values[:-1]).any():
                raise ValueError(f"{name}: found a sum that falls; accepted sums of lengths >= 0")


def apply(settings: Settings, prepared: Prepared) -> None:
    """Writes settings into the problem that the arrays described."""
    problem, arguments = prepared.problem, prepared.arguments
    for name, value in settings.items():
        if name in ("causal", "deterministic", "accumulate"):
            setattr(problem, name, int(bool(value)))
        elif name == "diagonal":
            if isinstance(value, str):
                problem.diagonal = choice(name, value, DIAGONALS)
            else:
                arguments.diag = integer(name, value)
                arguments.has_diag = 1
                problem.diagonal = _abi.ATTN_EXPLICIT
        elif name == "window":
            for side, limit in zip(("window_left", "window_right"), value, strict=True):
                if limit is not None:
                    setattr(problem, side, limit)
                    setattr(problem, "has_" + side, 1)
        elif name == "scale":
            arguments.scale = real(name, value)
            arguments.has_scale = 1
        elif name in ("softcap", "dropout_p"):
            number = real(name, value)
            setattr(arguments, name, number)
            setattr(problem, name.removesuffix("_p"), int(number != 0))
        elif name == "origin":
            if not isinstance(value, Origin):
                raise ValueError(f"origin: found {value!r}; accepted libattn.Origin")
            for field in dataclasses.fields(value):
                number = integer("origin." + field.name, getattr(value, field.name))
                setattr(arguments, "origin_" + field.name, number)
        elif name == "rope":
            style, rot_dim, base = value
            problem.rope = choice("rope.style", style, STYLES)
            problem.rot_dim = 0 if rot_dim is None else integer("rope.rot_dim", rot_dim)
            arguments.rope_base = real("rope.base", base)
        elif name in ("max_len_q", "max_len_kv"):
            setattr(problem, name.removeprefix("max_"), integer(name, value))
        elif name == "precision":
            problem.precision = choice(name, value, PRECISIONS)
        elif name == "split_keys":
            problem.split_keys = integer(name, value)
        else:
            raise AssertionError(name)


if TYPE_CHECKING:
    from typing_extensions import Unpack as Unpack
