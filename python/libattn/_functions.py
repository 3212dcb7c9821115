"""attention, attention_backward, decode, merge, merge_backward and rope on arrays of any maker."""

from __future__ import annotations

import ctypes
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _abi, _library
from ._arrays import Facts, Family, dtype_code, family_of, opened
from ._calls import LIBRARY, Arrays, Prepared, Settings, device_name, init, run, settle
from ._options import STYLES, Array, Options, apply, choice, device_of, integer, real, split

if TYPE_CHECKING:
    from ._options import Unpack

PASSES = {
    "forward": _abi.ATTN_FORWARD,
    "backward": _abi.ATTN_BACKWARD,
    "decode": _abi.ATTN_DECODE,
}
_TYPE_OF_OUTPUT = {
    "o": "dtype_out",
    "dq": "dtype_grad",
    "dk": "dtype_grad",
    "dv": "dtype_grad",
    "dbias": "dtype_dbias",
}


class Gradients(NamedTuple):
    """What attention_backward gives; None where it was not asked for."""

    dq: Array
    dk: Array
    dv: Array
    dbias: Array
    dsink: Array


class _Kind:
    """How the structures of an attention call are made: the pass, its settings, its outputs."""

    def __init__(self, pass_: str, settings: Settings, wanted: dict[str, int]) -> None:
        self.pass_ = pass_
        self.settings = settings
        self.wanted = wanted  # output -> type, 0 = the usual one

    def build(self, arrays: Arrays, families: dict[str, Family]) -> Prepared:
        prepared = Prepared(
            f"attn_{self.pass_}", _abi.attn_arguments, families, arrays, tuple(self.wanted)
        )
        problem = init(_abi.attn_problem, size_only=True)
        arguments = prepared.arguments
        _library.check(LIBRARY.attn_describe(ctypes.byref(arguments), ctypes.byref(problem)))
        prepared.problem = problem
        if self.pass_ == "backward":
            for name in ("dq", "dk", "dv", "dbias", "dsink"):
                setattr(problem, name, int(name in self.wanted))
        else:
            problem.lse = int("lse" in self.wanted)
        for name, code in self.wanted.items():
            if code and name in _TYPE_OF_OUTPUT:
                setattr(problem, _TYPE_OF_OUTPUT[name], code)
        apply(self.settings, prepared)
        like = families["q"].facts("q", arrays["q"])
        self.plan_outputs(prepared, like)
        if like.device != _abi.ATTN_HOST:
            needed = ctypes.c_int64()
            _library.check(
                LIBRARY.attn_workspace_bytes(
                    _library.context().handle,
                    PASSES[self.pass_],
                    ctypes.byref(problem),
                    like.device,
                    ctypes.byref(needed),
                )
            )
            prepared.workspace_bytes = needed.value
        prepared.refer()
        return prepared

    def plan_outputs(self, prepared: Prepared, like: Facts) -> None:
        missing = [name for name in self.wanted if name not in prepared.tensors]
        if not missing:
            return
        outputs = init(_abi.attn_outputs, size_only=True)
        _library.check(
            LIBRARY.attn_output_shapes(
                PASSES[self.pass_], ctypes.byref(prepared.problem), ctypes.byref(outputs)
            )
        )
        for name in missing:
            shape = getattr(outputs, name)
            prepared.make(name, tuple(shape.shape[: shape.rank]), shape.dtype, like)


def _attend(
    pass_: str,
    arrays: Arrays,
    settings: Settings,
    changing: Settings,
    wanted: dict[str, int],
) -> Arrays:
    """Runs a pass; returns the outputs that were made."""
    kind = (pass_, tuple(settings.items()), tuple(wanted.items()), tuple(changing))
    try:
        hash(kind)
    except TypeError:
        found = {name: value for name, value in settings.items() if not _hashable(value)}
        raise ValueError(f"{pass_}: options: found {found}; accepted plain numbers") from None
    return run(_Kind(pass_, settings, wanted).build, kind, arrays, changing, "q")


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _code(dtype: Any) -> int:
    return 0 if dtype is None else dtype_code(dtype)


def _code_of(name: str, x: Array) -> int:
    """The type of an output that the caller gave."""
    x, family = opened(name, x)
    return family.facts(name, x).dtype


def _refuse_gradients(function: str, arrays: Arrays) -> None:
    if "torch" not in sys.modules:
        return
    for name, x in arrays.items():
        if getattr(x, "requires_grad", False) and _grad_enabled():
            raise ValueError(
                f"{function}: {name}: found a tensor that requires a gradient; accepted: use "
                f"libattn.torch.{function}, which has one, or torch.no_grad()"
            )


def _grad_enabled() -> bool:
    import torch

    return torch.is_grad_enabled()


def _forward(
    pass_: str,
    name: str,
    arrays: Arrays,
    settings: Settings,
    changing: Settings,
    out: Array,
    lse_out: Array,
    out_dtype: Any,
    return_lse: bool,
) -> Any:
    wanted = {"o": _code(out_dtype)}
    if lse_out is not None:
        arrays["lse"] = lse_out
    if out is not None:
        arrays["o"] = out
        if family_of("out", out) is None:
            settle(arrays, changing, "q")
        wanted["o"] = _code_of("out", arrays["o"])
    if return_lse or lse_out is not None:
        wanted["lse"] = 0
    _refuse_gradients(name, arrays)
    made = _attend(pass_, arrays, settings, changing, wanted)
    o = made.get("o", out)
    return (o, made.get("lse", lse_out)) if return_lse else o


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    return_lse: bool = False,
    out: Array = None,
    lse_out: Array = None,
    out_dtype: Any = None,
    **options: Unpack[Options],
) -> Any:
    """o = softmax(scale * q k^T + ...) v, exactly and in linear memory.

    FlashAttention-2 (Dao 2023), section 3.1; every option is defined in docs/semantics.md.

    q: [b, n, h, dim_qk]; k: [b, m, g, dim_qk]; v: [b, m, g, dim_vo]; h is a multiple of g (GQA,
    MQA). Packed: [total, heads, dim] with cu_len_q, cu_len_kv. Any strides but that of the last
    axis, which is 1. Types f32, f16, bf16, f64.
    return_lse: give (o, lse), lse [b, h, n] or packed [h, total]: the natural logarithm of each
    row's sum of exponentials, f32 (f64 with f64).
    out, lse_out: arrays to write into; out_dtype: the type of o: q's, or f32.
    options: see libattn.Options.

    Returns o [b, n, h, dim_vo] (packed [total, h, dim_vo]), made as q was: NumPy, PyTorch.
    Raises ValueError where a rule is broken, Unsupported where no backend can do it.
    """
    arrays, settings, changing = split("attention", options)
    arrays.update(q=q, k=k, v=v)
    return _forward(
        "forward",
        "attention",
        arrays,
        settings,
        changing,
        out,
        lse_out,
        out_dtype,
        return_lse,
    )


def decode(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    *,
    block_table: Array = None,
    k_new: Array = None,
    v_new: Array = None,
    split_keys: int | None = None,
    return_lse: bool = False,
    out: Array = None,
    lse_out: Array = None,
    out_dtype: Any = None,
    **options: Unpack[Options],
) -> Any:
    """attention of few queries against a cache of keys and values, split over keys.

    Flash-Decoding (Dao, Haziza, Massa, Sizov 2023).

    q: [b, n, h, dim_qk]. Caches: [b, m, g, dim] with len_kv (i32 [b]: rows in use), or paged
    [pages, page_size, g, dim] with block_table (i32 [b, pages per entry]): key j of entry b is row
    j % page_size of page block_table[b, j // page_size].
    k_new, v_new: [b, len_new, g, dim]: written into the caches at len_kv[b]... first (keys rotated
    with rope=), and attended to; the caches are then written in place.
    split_keys: cut every so many keys, so that a row's bits do not depend on the batch around it;
    None = the library decides; -1 = never cut.
    The rest as in attention.
    """
    arrays, settings, changing = split("decode", options)
    arrays.update(q=q, k=k_cache, v=v_cache)
    extra = {"block_table": block_table, "k_new": k_new, "v_new": v_new}
    arrays.update({name: x for name, x in extra.items() if x is not None})
    if split_keys is not None:
        settings["split_keys"] = split_keys
    if k_new is not None:
        for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
            family = family_of(name, cache)
            if family is not None:
                family.check_output(name, cache)
    return _forward(
        "decode",
        "decode",
        arrays,
        settings,
        changing,
        out,
        lse_out,
        out_dtype,
        return_lse,
    )


def attention_backward(
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    o: Array,
    lse: Array,
    *,
    dlse: Array = None,
    delta: Array = None,
    want: tuple[str, ...] | None = None,
    dq: Array = None,
    dk: Array = None,
    dv: Array = None,
    dbias: Array = None,
    dsink: Array = None,
    grad_dtype: Any = None,
    dbias_dtype: Any = None,
    accumulate: bool = False,
    **options: Unpack[Options],
) -> Gradients:
    """The gradients of attention: FlashAttention-2 (Dao 2023), section 3.1.2.

    dout: the gradient of o, shaped like o; o, lse: what attention gave with return_lse=True and the
    same options. dlse: the gradient of lse, shaped like lse. delta: dot(dout, o) - dlse where the
    caller has it, shaped like lse; o may then be None.
    want: which of "dq", "dk", "dv", "dbias", "dsink"; None = dq, dk, dv, and those of the bias and
    the sinks that are given.
    dq ... dsink: arrays to write into; accumulate=True adds to them.
    grad_dtype: the type of dq, dk, dv: q's or f32. dbias_dtype: the bias's or f32.
    options: see libattn.Options.

    Returns Gradients: shapes of q, k, v, of the bias as it is broadcast, and [h].
    """
    arrays, settings, changing = split("attention_backward", options)
    if want is None:
        want = ("dq", "dk", "dv")
        want += ("dbias",) if "bias" in arrays else ()
        want += ("dsink",) if "sinks" in arrays else ()
    given = {"dq": dq, "dk": dk, "dv": dv, "dbias": dbias, "dsink": dsink}
    wanted = {}
    for name in dict.fromkeys((*want, *(name for name, x in given.items() if x is not None))):
        if name not in given:
            raise ValueError(f"want: found '{name}'; accepted {', '.join(given)}")
        wanted[name] = _code(dbias_dtype if name == "dbias" else grad_dtype)
        if given[name] is not None:
            arrays[name] = given[name]
        elif accumulate:
            raise ValueError(f"accumulate: found no array {name}=; accepted one to add to")
    if accumulate:
        settings["accumulate"] = True
    arrays.update(q=q, k=k, v=v, lse=lse, dout=dout)
    optional = {"o": o, "dlse": dlse, "delta": delta}
    arrays.update({name: x for name, x in optional.items() if x is not None})
    _refuse_gradients("attention", arrays)
    if any(name in arrays and family_of(name, arrays[name]) is None for name in given):
        settle(arrays, changing, "q")
    wanted |= {name: _code_of(name, arrays[name]) for name in wanted if name in arrays}
    made = _attend("backward", arrays, settings, changing, wanted)
    return Gradients(*(made.get(name, x) for name, x in given.items()))


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
    for name in wanted.values():
        if name not in arrays:
            raise ValueError(f"{function}: {name}: found None; accepted an array")
    _refuse_gradients(function.removesuffix("_backward"), arrays)

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

    changing: Settings = {} if device is None else device_of(device)
    if stream is not None:
        changing["stream"] = integer("stream", stream)
    kind = (function, tuple(settings.items()), tuple(wanted.items()), tuple(changing))
    return run(build, kind, arrays, changing, lead)


def merge(
    o1: Array,
    lse1: Array,
    o2: Array,
    lse2: Array,
    *,
    out: Array = None,
    lse_out: Array = None,
    stream: int | None = None,
    device: str | None = None,
) -> tuple[Array, Array]:
    """Two attentions of the same queries over disjoint keys as one: (o, lse).

    lse = logaddexp(lse1, lse2), o = exp(lse1 - lse) o1 + exp(lse2 - lse) o2 (docs/semantics.md,
    Merge). o1, o2: [b, n, h, dim] or [total, h, dim]; lse1, lse2: [b, h, n] or [h, total]. o2 may
    be None: zeros, as for a sink merged last. out may be o1, and lse_out lse1. stream, device: as
    in libattn.Options.
    """
    given = {"o1": o1, "lse1": lse1, "o2": o2, "lse2": lse2, "o": out, "lse": lse_out}
    arrays = {name: x for name, x in given.items() if x is not None}
    wanted = {"o": "o1", "lse": "lse1"}
    struct = _abi.attn_merge_arguments
    made = _shaped_like("merge", struct, arrays, wanted, {}, stream, device, "o1")
    return made.get("o", out), made.get("lse", lse_out)


def merge_backward(
    dout: Array,
    o1: Array,
    lse1: Array,
    o2: Array,
    lse2: Array,
    o: Array,
    lse: Array,
    *,
    dlse: Array = None,
    stream: int | None = None,
    device: str | None = None,
) -> tuple[Array, Array, Array, Array]:
    """The gradients of merge: (do1, dlse1, do2, dlse2); do2 is None where o2 is.

    do_n = w_n dout and dlse_n = w_n (dlse + dot(dout, o_n - o)), w_n = exp(lse_n - lse)
    (docs/semantics.md, Merge).
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
    x: Array,
    *,
    style: str = "half",
    rot_dim: int | None = None,
    base: float = 10000.0,
    pos_offset: int = 0,
    positions: Array = None,
    cos: Array = None,
    sin: Array = None,
    cu_len: Array = None,
    inverse: bool = False,
    out: Array = None,
    stream: int | None = None,
    device: str | None = None,
) -> Array:
    """Rotary embedding (Su et al. 2021, RoFormer, section 3.4.2); `inverse` is also its gradient.

    x: [b, n, h, dim] or [total, h, dim]; out may be x. style, rot_dim, base, cos, sin: as in
    libattn.Rope. Positions: row + pos_offset (with cu_len, i32 [b + 1], the row in its entry), or
    positions, i32 [b|1, n] or [total].
    """
    given = {"x": x, "out": out, "positions": positions, "cu_len": cu_len, "cos": cos, "sin": sin}
    arrays = {name: array for name, array in given.items() if array is not None}
    settings = {
        "style": choice("style", style, STYLES),
        "rot_dim": 0 if rot_dim is None else integer("rot_dim", rot_dim),
        "base": real("base", base),
        "pos_offset": integer("pos_offset", pos_offset),
        "inverse": int(bool(inverse)),
    }
    struct = _abi.attn_rope_arguments
    made = _shaped_like("rope", struct, arrays, {"out": "x"}, settings, stream, device, "x")
    return made.get("out", out)


def described(pass_: str, arrays: Arrays, options: Options) -> tuple[str, str]:
    """The problem of a call as text, and its device: what supports and explain take."""
    more, settings, _ = split(pass_, options)
    more.update(arrays)
    families = {}
    for name, x in more.items():
        more[name], families[name] = opened(name, x)
    kind = _Kind(pass_, settings, {"o": 0, "lse": 0})
    prepared = kind.build(more, families)
    problem = prepared.problem

    def fill(buffer: Any, size: int, needed: Any) -> Any:
        return LIBRARY.attn_problem_print(ctypes.byref(problem), buffer, size, needed)

    device = families["q"].facts("q", more["q"])
    return _library.text_of(fill), device_name(device)
