"""merge, merge_backward and rope on arrays of any maker."""

from __future__ import annotations

from typing import Any, Literal, cast

from . import _abi
from ._calls import Arrays, Prepared, Settings, refuse_recording, run
from ._convert import convert
from ._facts import Family
from ._options import STYLES, device_of, rotary_dim
from ._types import Array, ArrayT, Integers
from ._values import boolean, choice, integer, named, real


def _shaped_like(
    function: str,
    struct: Any,
    arrays: Arrays,
    wanted: dict[str, str],
    settings: Settings,
    stream: int | None,
    device: str | None,
    lead: str,
) -> Arrays:
    """A call whose outputs have the shape and type of an input: `wanted` maps output -> input."""
    changing: Settings = {}
    try:
        for name in wanted.values():
            if name not in arrays:
                raise ValueError(f"{name}: found None; accepted an array")
        if device is not None:
            changing |= device_of(device)
        if stream is not None:
            changing["stream"] = integer("stream", stream)
        convert(arrays, arrays[lead], changing.get("stream"))
    except ValueError as error:
        raise named(function, error) from None
    refuse_recording(function, arrays)

    def build(arrays: Arrays, families: dict[str, Family]) -> Prepared:
        prepared = Prepared(f"attn_{function}", struct, families, arrays, tuple(wanted))
        for name, value in settings.items():
            setattr(prepared.arguments, name, value)
        for name, source in wanted.items():
            if name not in prepared.tensors:
                facts = families[source].facts(source, arrays[source])
                prepared.make(name, facts.shape, facts.dtype, facts)
        prepared.refer()
        return prepared

    kind = (function, tuple(settings.items()), tuple(wanted.items()), tuple(changing))
    return run(function, build, kind, arrays, changing, lead)


def merge(
    o1: ArrayT,
    lse1: Array,
    o2: Array | None,
    lse2: Array,
    *,
    out: Array | None = None,
    lse_out: Array | None = None,
    stream: int | None = None,
    device: Literal["host", "webgpu"] | None = None,
) -> tuple[ArrayT, ArrayT]:
    """Two attentions of the same queries over disjoint keys as one: (o, lse).

    lse = logaddexp(lse1, lse2), o = exp(lse1 - lse) o1 + exp(lse2 - lse) o2: docs/semantics.md,
    Merge; FlashAttention (Dao et al. 2022), section 3.1.

    o1, o2: [b, n, h, dim] or [total, h, dim]. o2 may be None: zeros, as for a sink merged last.
    lse1, lse2: [b, h, n] or [h, total], f32 (f64 with f64).
    out, lse_out: arrays to write into; out may be o1, and lse_out lse1.
    stream, device: as in libattn.Options.

    Returns (o, lse), shaped like o1 and lse1. A partial result with lse = -inf is not read.
    Raises what attention raises.
    """
    given = {"o1": o1, "lse1": lse1, "o2": o2, "lse2": lse2, "o": out, "lse": lse_out}
    arrays = {name: x for name, x in given.items() if x is not None}
    wanted = {"o": "o1", "lse": "lse1"}
    struct = _abi.attn_merge_arguments
    try:
        made = _shaped_like("merge", struct, arrays, wanted, {}, stream, device, "o1")
    except (ValueError, MemoryError) as error:  # about an output that was made like an input
        text = str(error).replace("merge: lse:", "merge: lse_out:")
        text = text if lse_out is not None else text.replace("lse_out", "lse1")
        text = text if out is not None else text.replace(" of out:", " of o1:")
        raise type(error)(text) from None
    return cast("tuple[ArrayT, ArrayT]", (made.get("o", out), made.get("lse", lse_out)))


def merge_backward(
    dout: Array,
    o1: ArrayT,
    lse1: Array,
    o2: Array | None,
    lse2: Array,
    o: Array,
    lse: Array,
    *,
    dlse: Array | None = None,
    stream: int | None = None,
    device: Literal["host", "webgpu"] | None = None,
) -> tuple[ArrayT, ArrayT, ArrayT | None, ArrayT]:
    """The gradients of merge: (do1, dlse1, do2, dlse2); do2 is None where o2 is.

    do_n = w_n dout and dlse_n = w_n (dlse + dot(dout, o_n - o)), w_n = exp(lse_n - lse):
    docs/semantics.md, Merge.

    dout: the gradient of o, shaped like o.
    o1, lse1, o2, lse2: the inputs of merge.
    o, lse: its results.
    dlse: the gradient of lse, shaped like lse; None = zeros.
    stream, device: as in libattn.Options.

    Returns four arrays, shaped like o1, lse1, o2 and lse2. Raises what attention raises.
    """
    given = {"o1": o1, "lse1": lse1, "o2": o2, "lse2": lse2, "o": o, "lse": lse}
    given |= {"dout": dout, "dlse": dlse}
    arrays = {name: x for name, x in given.items() if x is not None}
    wanted = {"dout1": "o1", "dlse1": "lse1", "dout2": "o2", "dlse2": "lse2"}
    if o2 is None:
        del wanted["dout2"]
    struct = _abi.attn_merge_backward_arguments
    made = _shaped_like("merge_backward", struct, arrays, wanted, {}, stream, device, "o1")
    return made["dout1"], made["dlse1"], made.get("dout2"), made["dlse2"]


def rope(
    x: ArrayT,
    *,
    style: Literal["half", "interleaved"] = "half",
    rot_dim: int | None = None,
    base: float = 10000.0,
    pos_offset: int = 0,
    positions: Integers | None = None,
    cos: Array | None = None,
    sin: Array | None = None,
    cu_len: Integers | None = None,
    inverse: bool = False,
    out: Array | None = None,
    stream: int | None = None,
    device: Literal["host", "webgpu"] | None = None,
) -> ArrayT:
    """Rotary embedding (Su et al. 2021, RoFormer, section 3.2.2).

    Pair m of a row turns by the angle position * base^(-2m/rot_dim).

    x: [b, n, h, dim] or packed [total, h, dim]; f32, f16, bf16 or f64.
    style: "half" rotates the pairs (m, m + rot_dim/2), "interleaved" (2m, 2m + 1).
    rot_dim: even, 2 to dim; None = dim. The rest of a row is copied.
    base: of the angles, above 0.
    pos_offset: the position of a row is row + pos_offset, unless positions are given.
    positions: i32 [b|1, n] or [total].
    cos, sin: f32 [positions, rot_dim/2], tables instead of base.
    cu_len: i32 [b + 1], with a packed x: rows count from the start of their sequence, those of no
        sequence from the start of x.
    inverse: rotate by the negative angle, which is also the gradient.
    out: an array to write into; may be x.
    stream, device: as in libattn.Options.

    Returns an array shaped like x. Raises what attention raises.
    """
    given = {"x": x, "out": out, "positions": positions, "cu_len": cu_len, "cos": cos, "sin": sin}
    arrays = {name: array for name, array in given.items() if array is not None}
    try:
        settings = {
            "style": choice("style", style, STYLES),
            "rot_dim": rotary_dim("rot_dim", rot_dim),
            "base": real("base", base),
            "pos_offset": integer("pos_offset", pos_offset),
            "inverse": int(boolean("inverse", inverse)),
        }
    except ValueError as error:
        raise named("rope", error) from None
    struct = _abi.attn_rope_arguments
    made = _shaped_like("rope", struct, arrays, {"out": "x"}, settings, stream, device, "x")
    return cast("ArrayT", made.get("out", out))
