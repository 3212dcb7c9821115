"""attention, attention_backward and decode on arrays of any maker."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, overload

from . import _abi, _library
from ._arrays import family_of, opened
from ._calls import (
    LIBRARY,
    Arrays,
    Prepared,
    Settings,
    device_name,
    init,
    refuse_recording,
    run,
    settle,
)
from ._convert import four_axes, gradient_like, has_no_rows, is_matrix
from ._facts import Facts, Family, dtype_code
from ._options import Options, apply, need_seed, split
from ._types import Array, ArrayT, ElementType, Integers
from ._values import boolean, integer, named, shown

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


if TYPE_CHECKING:  # at run time a named tuple is generic from Python 3.11 on

    class Gradients(NamedTuple, Generic[ArrayT]):
        dq: ArrayT | None
        dk: ArrayT | None
        dv: ArrayT | None
        dbias: ArrayT | None
        dsink: ArrayT | None

else:

    class Gradients(NamedTuple):
        """The result of attention_backward: arrays of q's maker, None where not requested."""

        dq: ArrayT | None
        dk: ArrayT | None
        dv: ArrayT | None
        dbias: ArrayT | None
        dsink: ArrayT | None


class Kind:
    """What the structures of an attention call are made from: pass, settings, outputs."""

    def __init__(
        self, function: str, pass_: str, settings: Settings, wanted: dict[str, int]
    ) -> None:
        self.function = function  # for messages
        self.pass_ = pass_
        self.settings = settings
        self.wanted = wanted  # output -> type, 0 = the usual one

    def build(self, arrays: Arrays, families: dict[str, Family]) -> Prepared:
        prepared = Prepared(
            f"attn_{self.pass_}", _abi.attn_arguments, families, arrays, tuple(self.wanted)
        )
        problem = init(_abi.attn_problem, size_only=True)
        arguments = prepared.arguments
        code = LIBRARY.attn_describe(ctypes.byref(arguments), ctypes.byref(problem))
        _library.check(code, self.function)
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
            context = _library.context()
            _library.check(
                LIBRARY.attn_workspace_bytes(
                    context.handle,
                    PASSES[self.pass_],
                    ctypes.byref(problem),
                    like.device,
                    ctypes.byref(needed),
                ),
                self.function,
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
            ),
            self.function,
        )
        for name in missing:
            shape = getattr(outputs, name)
            prepared.make(name, tuple(shape.shape[: shape.rank]), shape.dtype, like)


def _attend(
    function: str,
    pass_: str,
    arrays: Arrays,
    settings: Settings,
    changing: Settings,
    wanted: dict[str, int],
) -> Arrays:
    """Runs a pass; returns the outputs that were made."""
    need_seed(function, settings, changing)
    kind = (function, tuple(settings.items()), tuple(wanted.items()), tuple(changing))
    build = Kind(function, pass_, settings, wanted).build
    return run(function, build, kind, arrays, changing, "q")


def _code(name: str, dtype: Any) -> int:
    return 0 if dtype is None else dtype_code(name, dtype)


def _code_of(name: str, x: Any) -> int:
    """The type of an output that the caller gave."""
    x, family = opened(name, x)
    return family.facts(name, x).dtype


def _forward(
    function: str,
    pass_: str,
    arrays: Arrays,
    settings: Settings,
    changing: Settings,
    out: Any,
    lse_out: Any,
    out_dtype: Any,
    return_lse: bool,
) -> Any:
    try:
        return_lse = boolean("return_lse", return_lse)
        wanted = {"o": _code("out_dtype", out_dtype)}
        if lse_out is not None:
            arrays["lse"] = lse_out
        if out is not None:
            arrays["o"] = out
            if family_of("out", out) is None:
                settle(arrays, changing, "q")
            wanted["o"] = _code_of("o", arrays["o"])
        if return_lse or lse_out is not None:
            wanted["lse"] = 0
    except ValueError as error:
        raise named(function, error) from None
    refuse_recording(function, arrays)
    made = _attend(function, pass_, arrays, settings, changing, wanted)
    o = made.get("o", out)
    return (o, made.get("lse", lse_out)) if return_lse else o


@overload
def attention(
    q: ArrayT,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[False] = False,
    out: Array | None = None,
    lse_out: Array | None = None,
    out_dtype: ElementType | None = None,
    **options: Unpack[Options],
) -> ArrayT: ...


@overload
def attention(
    q: ArrayT,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[True],
    out: Array | None = None,
    lse_out: Array | None = None,
    out_dtype: ElementType | None = None,
    **options: Unpack[Options],
) -> tuple[ArrayT, ArrayT]: ...


@overload
def attention(
    q: ArrayT,
    k: Array,
    v: Array,
    *,
    return_lse: bool,
    out: Array | None = None,
    lse_out: Array | None = None,
    out_dtype: ElementType | None = None,
    **options: Unpack[Options],
) -> ArrayT | tuple[ArrayT, ArrayT]: ...


def attention(
    q: ArrayT,
    k: Array,
    v: Array,
    *,
    return_lse: bool = False,
    out: Array | None = None,
    lse_out: Array | None = None,
    out_dtype: ElementType | None = None,
    **options: Unpack[Options],
) -> ArrayT | tuple[ArrayT, ArrayT]:
    """o = softmax(scale * q k^T + ...) v, exactly and in linear memory.

    FlashAttention-2 (Dao 2023), section 3.1; every option is defined in docs/semantics.md.

    q: [b, n, h, dim_qk], or packed [total_q, h, dim_qk] with cu_len_q. f32, f16, bf16 or f64,
        or, with k and v, f8 (e4m3fn, e5m2; see descale_q). Any strides but that of the last axis,
        which is 1; this holds for k and v too.
    k: [b, m, g, dim_qk], or packed with cu_len_kv. h is a multiple of g (GQA, MQA).
    v: [b, m, g, dim_vo], or packed. k and v can be f8 with an f16 or bf16 q,
        or int8 with an f16, bf16 or f32 q.
    return_lse: return (o, lse). lse [b, h, n] (packed [h, total_q]) is the natural logarithm of
        each row's sum of exponentials, f32 (f64 with f64).
    out, lse_out: arrays to write into.
    out_dtype: the type of o: q's (None) or "float32"; of f8 q "bfloat16" (None), "float16" or
        "float32".
    options: causal, window, mask, bias, softcap, dropout_p and others: see libattn.Options.

    Returns o [b, n, h, dim_vo] (packed [total_q, h, dim_vo]), of the maker of q: NumPy, PyTorch.
    Raises ValueError for a broken rule (TypeError for an unknown option), Unsupported if no backend
    supports the call, MemoryError, Error for failures of a device.
    """
    arrays, settings, changing = split("attention", options, q)
    arrays.update(q=q, k=k, v=v)
    result: ArrayT | tuple[ArrayT, ArrayT] = _forward(
        "attention",
        "forward",
        arrays,
        settings,
        changing,
        out,
        lse_out,
        out_dtype,
        return_lse,
    )
    return result


@overload
def decode(
    q: ArrayT,
    k_cache: Array,
    v_cache: Array,
    *,
    block_table: Integers | None = None,
    k_new: Array | None = None,
    v_new: Array | None = None,
    split_keys: int | None = None,
    return_lse: Literal[False] = False,
    out: Array | None = None,
    lse_out: Array | None = None,
    out_dtype: ElementType | None = None,
    **options: Unpack[Options],
) -> ArrayT: ...


@overload
def decode(
    q: ArrayT,
    k_cache: Array,
    v_cache: Array,
    *,
    block_table: Integers | None = None,
    k_new: Array | None = None,
    v_new: Array | None = None,
    split_keys: int | None = None,
    return_lse: Literal[True],
    out: Array | None = None,
    lse_out: Array | None = None,
    out_dtype: ElementType | None = None,
    **options: Unpack[Options],
) -> tuple[ArrayT, ArrayT]: ...


@overload
def decode(
    q: ArrayT,
    k_cache: Array,
    v_cache: Array,
    *,
    block_table: Integers | None = None,
    k_new: Array | None = None,
    v_new: Array | None = None,
    split_keys: int | None = None,
    return_lse: bool,
    out: Array | None = None,
    lse_out: Array | None = None,
    out_dtype: ElementType | None = None,
    **options: Unpack[Options],
) -> ArrayT | tuple[ArrayT, ArrayT]: ...


def decode(
    q: ArrayT,
    k_cache: Array,
    v_cache: Array,
    *,
    block_table: Integers | None = None,
    k_new: Array | None = None,
    v_new: Array | None = None,
    split_keys: int | None = None,
    return_lse: bool = False,
    out: Array | None = None,
    lse_out: Array | None = None,
    out_dtype: ElementType | None = None,
    **options: Unpack[Options],
) -> ArrayT | tuple[ArrayT, ArrayT]:
    """Attention of few queries over a cache of keys and values, split over keys.

    Flash-Decoding (Dao, Haziza, Massa, Sizov 2023).

    q: [b, n, h, dim_qk].
    k_cache, v_cache: [b, m, g, dim] with len_kv (i32 [b]: rows in use), or paged
        [pages, page_size, g, dim] with block_table.
    block_table: i32 [b, pages per sequence]: key j of sequence b is row j % page_size of page
        block_table[b, j // page_size].
    k_new, v_new: [b, len_new, g, dim]: first written into the caches in place, at row len_kv[b] and
        after it (keys rotated with rope=), then attended to.
    split_keys: keys in each chunk, so that a row's bits do not depend on the batch around it.
        None = the library chooses; -1 = one chunk.

    Other arguments, result and errors: see attention.
    """
    if has_no_rows(k_new) and has_no_rows(v_new):
        k_new = v_new = None
    extra = {"block_table": block_table, "k_new": k_new, "v_new": v_new}
    given = {name: x for name, x in extra.items() if x is not None}
    arrays, settings, changing = split("decode", options, q, given)
    arrays.update(q=q, k=k_cache, v=v_cache)
    if split_keys is not None:
        settings["split_keys"] = _named_integer("decode", "split_keys", split_keys)
    result: ArrayT | tuple[ArrayT, ArrayT] = _forward(
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
    return result


def attention_backward(
    dout: Array,
    q: ArrayT,
    k: Array,
    v: Array,
    o: Array | None,
    lse: Array,
    *,
    dlse: Array | None = None,
    delta: Array | None = None,
    want: Iterable[str] | None = None,
    dq: Array | None = None,
    dk: Array | None = None,
    dv: Array | None = None,
    dbias: Array | None = None,
    dsink: Array | None = None,
    grad_dtype: ElementType | None = None,
    dbias_dtype: ElementType | None = None,
    accumulate: bool = False,
    **options: Unpack[Options],
) -> Gradients[ArrayT]:
    """The gradients of attention: FlashAttention-2 (Dao 2023), section 3.1.2.

    dout: the gradient of o, shaped like o.
    q, k, v: as in attention.
    o, lse: the results of attention with return_lse=True and the same options, the seed of dropout
        among them.
    dlse: the gradient of lse, shaped like lse.
    delta: dot(dout, o) - dlse if the caller has it, shaped like lse; o can then be None.
    want: which of "dq", "dk", "dv", "dbias", "dsink"; None = dq, dk, dv, and those of the bias and
        the sinks that are given.
    dq, dk, dv, dbias, dsink: arrays to write into.
    grad_dtype: the type of dq, dk, dv: q's (None) or "float32".
    dbias_dtype: the type of dbias: the bias's (None) or "float32".
    accumulate: add to the arrays that are given: read, add in f32, round once.
    options: those of the forward: see libattn.Options.

    Returns Gradients: dq, dk, dv shaped like q, k, v; dbias like the bias (1 where it is expanded);
    dsink [h]. Raises what attention raises.
    """
    function = "attention_backward"
    bias = options.get("bias")
    arrays, settings, changing = split(function, options, q)
    given = {"dq": dq, "dk": dk, "dv": dv, "dbias": dbias, "dsink": dsink}
    try:
        if boolean("accumulate", accumulate):
            settings["accumulate"] = True
        types = {"dbias": _code("dbias_dtype", dbias_dtype)}
        of_inputs = _code("grad_dtype", grad_dtype)
        names = _wanted(want, arrays, given)
        wanted = {name: types.get(name, of_inputs) for name in names}
        arrays.update({name: given[name] for name in names if given[name] is not None})
        if accumulate and not arrays.keys() >= set(names):
            missing = next(name for name in names if name not in arrays)
            raise ValueError(f"accumulate: found no array {missing}=; accepted one to add to")
        if dbias is not None and is_matrix("dbias", dbias):
            arrays["dbias"] = four_axes("dbias", dbias)
        arrays.update(q=q, k=k, v=v, lse=lse, dout=dout)
        optional = {"o": o, "dlse": dlse, "delta": delta}
        arrays.update({name: x for name, x in optional.items() if x is not None})
        refuse_recording(function, arrays)
        if any(name in arrays and family_of(name, arrays[name]) is None for name in given):
            settle(arrays, changing, "q")
        wanted |= {name: _code_of(name, arrays[name]) for name in wanted if name in arrays}
    except ValueError as error:
        raise named(function, error) from None
    made = _attend(function, "backward", arrays, settings, changing, wanted)
    if "dbias" in made:
        made["dbias"] = gradient_like(bias, made["dbias"])
    return Gradients(*(made.get(name, x) for name, x in given.items()))


def _wanted(want: Any, arrays: Arrays, given: Arrays) -> list[str]:
    """The gradients to compute: those that are named, and those that have an array."""
    if want is None:
        want = ("dq", "dk", "dv")
        want += ("dbias",) if "bias" in arrays else ()
        want += ("dsink",) if "sinks" in arrays else ()
    accepted = f"a tuple of {', '.join(map(repr, given))}"
    if isinstance(want, str) or not isinstance(want, Iterable):
        raise ValueError(f"want: found {shown(want)}; accepted {accepted}")
    names = list(dict.fromkeys((*want, *(name for name, x in given.items() if x is not None))))
    for name in names:
        if not isinstance(name, str) or name not in given:
            raise ValueError(f"want: found {shown(name)}; accepted {accepted}")
    return names


def _named_integer(function: str, name: str, value: Any) -> int:
    try:
        return integer(name, value)
    except ValueError as error:
        raise named(function, error) from None


def described(function: str, pass_: str, arrays: Arrays, options: Options) -> tuple[str, str]:
    """The problem of a call as text, and its device."""
    more, settings, _ = split(function, options, arrays["q"])
    more.update(arrays)
    families = {}
    try:
        for name, x in more.items():
            more[name], families[name] = opened(name, x)
        prepared = Kind(function, pass_, settings, {"o": 0, "lse": 0}).build(more, families)
    except ValueError as error:
        raise named(function, error) from None
    problem = prepared.problem

    def fill(buffer: Any, size: int, needed: Any) -> Any:
        return LIBRARY.attn_problem_print(ctypes.byref(problem), buffer, size, needed)

    device = families["q"].facts("q", more["q"])
    return _library.text_of(fill), device_name(device)
