"""The options that every attention call takes, and what they are in the C ABI."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from . import _abi
from ._calls import Arrays, Prepared, Settings, split_pointer
from ._convert import convert
from ._types import Array, Integers
from ._values import boolean, choice, chosen, integer, named, real, shown


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
    """Rotary embedding of q and k inside attention (Su et al. 2021, RoFormer, section 3.2.2).

    style: "half" rotates the pairs (m, m + rot_dim/2), "interleaved" (2m, 2m + 1).
    rot_dim: even, 2 to dim_qk; None = dim_qk. The angle is position * base^(-2m/rot_dim).
    pos_offset: added to the positions j of keys and i + diag of queries.
    cos, sin: [positions, rot_dim/2] f32, tables instead of `base`.
    positions_q, positions_kv: i32 [b|1, n], [b|1, m] (packed [total]; decode: [b|1, len_new]).
    """

    style: Literal["half", "interleaved"] = "half"
    rot_dim: int | None = None
    base: float = 10000.0
    pos_offset: int = 0
    cos: Array | None = None
    sin: Array | None = None
    positions_q: Integers | None = None
    positions_kv: Integers | None = None


class Options(TypedDict, total=False):
    """Options of attention, attention_backward and decode, defined in docs/semantics.md.

    Symbols: b batch, h heads of q, n and m lengths of q and of k. "i32" arrays can also be int64
    arrays or lists of ints; they are copied to i32. Values that i32 does not hold are an error in
    host memory and clamped on a device. Numbers are Python's or NumPy's, or arrays without
    dimensions; flags are True or False.

    causal: key j is visible to query i when j <= i + diag.
    diagonal: "bottom_right" (diag = len_kv - len_q), "top_left" (0), "origin", or diag as an int.
    window: (left, right), each >= 0 or None = unlimited: i + diag - left <= j <= i + diag + right.
    kv_begin, kv_end: i32 [b|1, n], packed [total_q]: kv_begin[i] <= j < kv_end[i].
    mask: u8 or bool [b|b/s|1, h|1, n|1, m|1], or [n|1, m|1] for all b and h; non-zero = may attend.
        With b/s entries, s sequences that follow each other share one.
        Copied if the last dimension is strided.
    bias: f32, f16 or bf16 (f64 with f64), shaped like mask: is added to the score. Copied if the
        last dimension is strided.
    descale_q, descale_k, descale_v: f32 [b, g]: q, k and v of 8-bit types are multiplied with them
        (g key heads; a query head takes its key head's). descale_k and descale_v can also have a
        factor for each row or page: [b, m|1, g], with pages [pages, page_size|1, g]. None = 1.
    softcap: > 0: score = softcap * tanh(score / softcap) (Gemma 2, section 2); 0 or None: off.
    alibi_slopes: f32 [h] or [b, h]: score - slope * |i + diag - j| (Press et al. 2021, section 3).
    sinks: f32 [h]: a score that takes part in the softmax and has no value.
    len_q, len_kv: i32 [b]: how much of each sequence is used; the rest is ignored.
    cu_len_q, cu_len_kv: i32 [b + 1], with packed tensors [total, heads, dim].
    max_len_q, max_len_kv: the largest length of a packed batch; None = the total.
    dropout_p: 0, or [1/512, 1) in steps of 1/256.
    seed, offset: of dropout: 0 to 2**64 - 1, or int64 or uint64 arrays of one element on the
        device of q. Equal ones draw equal masks in forward and backward. Dropout
        needs a seed (libattn.torch draws one from PyTorch's generator).
    origin: Origin.
    scale: None = 1/sqrt(dim_qk).
    rope: Rope.
    precision: of f32 products on CUDA: "tf32x3", "tf32", "ieee".
    deterministic: the same bits from run to run.
    nonfinite_count: i32 [1]: non-finite elements of outputs are written as 0 and counted here.
    workspace: u8 array, aligned to 64 bytes, of workspace_bytes() or more; None = made or pooled.
    stream: address of a CUDA stream; None = the current one of the maker of q (PyTorch, CuPy, the
        stream of __cuda_array_interface__), else the default stream. With a stream that is not the
        maker's current one, the caller waits for the inputs and for memory of outputs.
    device: where arrays in host memory are computed: None or "host" for the CPU, "webgpu" for the
        GPU that WebGPU finds; they are copied there and back (docs/webgpu.md).
    """

    causal: bool
    diagonal: int | Literal["bottom_right", "top_left", "origin"]
    window: tuple[int | None, int | None] | None
    kv_begin: Integers | None
    kv_end: Integers | None
    mask: Array | None
    bias: Array | None
    descale_q: Array | None
    descale_k: Array | None
    descale_v: Array | None
    softcap: float | None
    alibi_slopes: Array | None
    sinks: Array | None
    len_q: Integers | None
    len_kv: Integers | None
    cu_len_q: Integers | None
    cu_len_kv: Integers | None
    max_len_q: int | None
    max_len_kv: int | None
    dropout_p: float
    seed: int | Array | None
    offset: int | Array | None
    origin: Origin | None
    scale: float | None
    rope: Rope | None
    precision: Literal["tf32x3", "tf32", "ieee"]
    deterministic: bool
    nonfinite_count: Array | None
    workspace: Array | None
    stream: int | None
    device: Literal["host", "webgpu"] | None


ARRAYS = frozenset(
    (
        "kv_begin",
        "kv_end",
        "mask",
        "bias",
        "descale_q",
        "descale_k",
        "descale_v",
        "alibi_slopes",
        "sinks",
        "len_q",
        "len_kv",
        "cu_len_q",
        "cu_len_kv",
        "nonfinite_count",
    )
)
NAMES = frozenset(Options.__annotations__)

PRECISIONS = {"tf32x3": _abi.ATTN_TF32X3, "tf32": _abi.ATTN_TF32, "ieee": _abi.ATTN_IEEE}
DIAGONALS = {
    "bottom_right": _abi.ATTN_BOTTOM_RIGHT,
    "top_left": _abi.ATTN_TOP_LEFT,
    "origin": _abi.ATTN_EXPLICIT,
}
BACKENDS = {"host": None, "webgpu": "webgpu"}
_PAIR = (tuple, list)
STYLES = {"half": _abi.ATTN_ROPE_HALF, "interleaved": _abi.ATTN_ROPE_INTERLEAVED}


def device_of(value: Any) -> Settings:
    """The option `device` as a field for `run`: the backend that is requested by name."""
    choice("device", value, dict.fromkeys(BACKENDS, 0))
    backend = BACKENDS[value]
    return {} if backend is None else {"device": backend}


def diagonal_of(name: str, value: Any) -> int | str:
    if isinstance(value, str):
        choice(name, value, DIAGONALS)
        return value
    try:
        return integer(name, value)
    except ValueError:
        accepted = ", ".join(map(repr, DIAGONALS))
        raise ValueError(
            f"{name}: found {shown(value)}; accepted {accepted}, or diag as a whole number"
        ) from None


def window_of(name: str, value: Any) -> tuple[int | None, int | None]:
    accepted = "(left, right), each 0 or more, or None = unlimited"
    if not isinstance(value, _PAIR) or len(value) != 2:
        raise ValueError(f"{name}: found {shown(value)}; accepted {accepted}")
    left, right = (None if side is None else integer(name, side) for side in value)
    if min(left or 0, right or 0) < 0:
        raise ValueError(f"{name}: found {shown(value)}; accepted {accepted}")
    return left, right


def origin_of(name: str, value: Any) -> Origin:
    if not isinstance(value, Origin):
        raise ValueError(f"{name}: found {shown(value)}; accepted libattn.Origin")
    fields = dataclasses.fields(value)
    return Origin(*(integer(f"{name}.{f.name}", getattr(value, f.name)) for f in fields))


def largest_length(name: str, value: Any) -> int:
    number = integer(name, value)
    if not 0 <= number < 1 << 31:
        raise ValueError(f"{name}: found {number}; accepted 0 to 2^31 - 1")
    return number


# Options that are single values: checks that return them as plain numbers, texts and tuples.
VALUES: dict[str, Callable[[str, Any], Any]] = {
    "causal": boolean,
    "deterministic": boolean,
    "diagonal": diagonal_of,
    "window": window_of,
    "softcap": real,
    "scale": real,
    "dropout_p": real,
    "origin": origin_of,
    "max_len_q": largest_length,
    "max_len_kv": largest_length,
    "precision": chosen(PRECISIONS),
}


def unknown(function: str, name: str, accepted: Iterable[str]) -> TypeError:
    return TypeError(f"{function}: unknown option '{name}'; accepted {', '.join(sorted(accepted))}")


def split(
    function: str, options: Mapping[str, Any], q: Any, more: Arrays | None = None
) -> tuple[Arrays, Settings, Settings]:
    """Options as arrays by C field, settings of the problem, and fields that change by call.

    q: the array that decides the device. more: arrays that are no options, such as block_table.
    """
    arrays: Arrays = {} if more is None else dict(more)
    settings: Settings = {}
    changing: Settings = {}
    try:
        for name, value in options.items():
            if name not in NAMES:
                raise unknown(function, name, NAMES)
            if value is None:
                continue
            if name in VALUES:
                settings[name] = VALUES[name](name, value)
            elif name in ARRAYS:
                arrays[name] = value
            elif name in ("seed", "offset"):
                changing[name], changing[name + "_pointer"] = split_pointer(name, value, q)
            elif name == "rope":
                rope_parts(value, arrays, settings, changing)
            elif name == "workspace":
                changing["workspace"] = value  # until run knows the stream
            elif name == "stream":
                changing["stream"] = integer(name, value)
            else:
                changing.update(device_of(value))
        if arrays:
            convert(arrays, q, changing.get("stream"))
    except ValueError as error:
        raise named(function, error) from None
    return arrays, settings, changing


def need_seed(function: str, settings: Settings, changing: Settings) -> None:
    """Refuses dropout without a seed: the backward must draw the same mask, and a fixed seed would
    draw the same mask in every call."""
    if settings.get("dropout_p") and "seed" not in changing:
        raise ValueError(
            f"{function}: seed: found none with dropout_p={settings['dropout_p']}; accepted "
            "an int, a new one for each step and the same one in attention_backward "
            "(libattn.torch.attention draws one itself)"
        )


def rotary_dim(name: str, value: Any) -> int:
    """rot_dim for the C ABI, where 0 means every dimension: here that is None. A model without
    rotary dimensions that passes 0 must not be rotated."""
    if value is None:
        return 0
    number = integer(name, value)
    if number == 0:
        raise ValueError(
            f"{name}: found 0; accepted even numbers from 2, or None = every dimension (leave the "
            "rotation out where none is rotated)"
        )
    return number


def rope_parts(rope: Any, arrays: Arrays, settings: Settings, changing: Settings) -> None:
    if not isinstance(rope, Rope):
        raise ValueError(f"rope: found {shown(rope)}; accepted libattn.Rope")
    settings["rope"] = (
        choice("rope.style", rope.style, STYLES),
        rotary_dim("rope.rot_dim", rope.rot_dim),
        real("rope.base", rope.base),
    )
    changing["rope_pos_offset"] = integer("rope.pos_offset", rope.pos_offset)
    fields = {
        "rope_cos": rope.cos,
        "rope_sin": rope.sin,
        "rope_pos_q": rope.positions_q,
        "rope_pos_k": rope.positions_kv,
    }
    arrays.update({name: x for name, x in fields.items() if x is not None})


def apply(settings: Settings, prepared: Prepared) -> None:
    """Writes settings, which `split` has checked, into the problem that the arrays described."""
    problem, arguments = prepared.problem, prepared.arguments
    for name, value in settings.items():
        if name in ("causal", "deterministic", "accumulate"):
            setattr(problem, name, int(value))
        elif name == "diagonal":
            if isinstance(value, str):
                problem.diagonal = DIAGONALS[value]
            else:
                arguments.diag = value
                arguments.has_diag = 1
                problem.diagonal = _abi.ATTN_EXPLICIT
        elif name == "window":
            for side, limit in zip(("window_left", "window_right"), value, strict=True):
                if limit is not None:
                    setattr(problem, side, limit)
                    setattr(problem, "has_" + side, 1)
        elif name == "scale":
            arguments.scale = value
            arguments.has_scale = 1
        elif name in ("softcap", "dropout_p"):
            setattr(arguments, name, value)
            setattr(problem, name.removesuffix("_p"), int(value != 0))
        elif name == "origin":
            for field in dataclasses.fields(value):
                setattr(arguments, "origin_" + field.name, getattr(value, field.name))
        elif name == "rope":
            problem.rope, problem.rot_dim, arguments.rope_base = value
        elif name in ("max_len_q", "max_len_kv"):
            setattr(problem, name.removeprefix("max_"), value)
        elif name in ("precision", "split_keys"):
            setattr(problem, name, value)
        else:
            raise AssertionError(name)


if TYPE_CHECKING:
    from typing_extensions import Unpack as Unpack
