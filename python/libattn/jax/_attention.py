"""attention on JAX arrays: differentiable, and right under jit, vmap, checkpoint and shard_map."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal, overload

import jax
import jax.numpy as jnp
import numpy as np

from .. import Options
from .._convert import LISTS, PAIRS, checked_values, whole_numbers
from .._facts import INTEGERS, PUBLIC, dtype_code
from .._options import NAMES, VALUES, rope_parts, unknown
from .._values import boolean, named, shown
from ._ffi import SEEDS, Arrays, Call, vary_together
from ._vmap import run

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._types import ElementType

# Options of libattn.attention that have no meaning here, and why.
_REFUSED = {
    "workspace": "scratch memory comes from XLA or libattn's pool",
    "stream": "the work goes to XLA's stream",
    "device": "XLA decides where the work runs",
    "nonfinite_count": "JAX has no arrays that a call writes into",
}
_DIFFERENTIABLE = ("q", "k", "v", "bias", "sinks")
_GRADIENTS = {"q": "dq", "k": "dk", "v": "dv", "bias": "dbias", "sinks": "dsink"}
_WORD = 1 << 32


def _refuse(rule: str, found: object, accepted: str) -> ValueError:
    return ValueError(f"{rule}: found {found}; accepted {accepted}")


def array(name: str, x: Any) -> Any:
    """x, if it is an array of JAX or NumPy."""
    if isinstance(x, jax.Array):
        return x
    if isinstance(x, np.ndarray):
        return jnp.asarray(checked_values(name, x))
    raise _refuse(PUBLIC.get(name, name), shown(x), "an array of JAX or NumPy")


def _integers(name: str, x: Any) -> Any:
    """An argument of whole numbers as int32. NumPy arrays and lists are checked; JAX's int64 are
    clamped, since their values may not be known yet."""
    public = PUBLIC.get(name, name)
    if isinstance(x, jax.Array):
        if x.dtype == np.int64:
            limits = np.iinfo(np.int32)
            return x.clip(limits.min, limits.max).astype(np.int32)
        return x
    if not isinstance(x, (*LISTS, np.ndarray)):
        raise _refuse(public, shown(x), "a list of whole numbers, or an int32 or int64 array")
    return jnp.asarray(checked_values(name, whole_numbers(public, x)))


def _pairs(name: str, x: Any) -> Any:
    """A mask or bias as [b|b/s|1, h|1, n|1, m|1]."""
    x = array(name, x)
    if x.ndim not in (2, 4):
        accepted = "[b|b/s|1, h|1, n|1, m|1], or [n|1, m|1] for all b and h"
        raise _refuse(f"shape of {name}", list(x.shape), accepted)
    return x[None, None] if x.ndim == 2 else x


def _seed(name: str, value: Any) -> Any:
    """A seed or offset as two words of 32 bits, the lower one first. A number is an array in the
    traced program, so that another one does not compile it again."""
    accepted = "0 to 2**64 - 1, an array of one whole number, a key of jax.random, or uint32 [2]"
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        if not 0 <= int(value) < _WORD * _WORD:
            raise _refuse(name, value, accepted)
        return jnp.asarray(np.array([int(value) % _WORD, int(value) // _WORD], np.uint32))
    if not isinstance(value, jax.Array | np.ndarray):
        raise _refuse(name, shown(value), accepted)
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        if value.shape != ():
            raise _refuse(name, f"keys of shape {list(value.shape)}", accepted)
        return jax.random.key_data(value).reshape(-1)[:2]
    if value.dtype == np.uint32 and value.shape == (2,):
        return jnp.asarray(value)
    if value.shape not in ((), (1,)) or value.dtype.kind not in "iu":
        raise _refuse(name, shown(value), accepted)
    if isinstance(value, np.ndarray):
        return _seed(name, int(value.reshape(())) % (_WORD * _WORD))
    value = value.reshape(())
    if value.dtype.itemsize == 8:
        return jax.lax.bitcast_convert_type(value, np.uint32)
    low = value.astype(np.int32 if value.dtype.kind == "i" else np.uint32)
    high = jnp.where(low < 0, np.uint32(_WORD - 1), np.uint32(0))
    return jnp.stack([jax.lax.bitcast_convert_type(low, np.uint32), high])


def _split(function: str, options: Options) -> tuple[Arrays, dict[str, Any], dict[str, Any]]:
    """Options as arrays by field of the C ABI, settings of the problem, and other fields."""
    arrays: Arrays = {}
    settings: dict[str, Any] = {}
    numbers: dict[str, Any] = {}
    for name, value in options.items():
        if name in _REFUSED:
            if value is not None:
                raise _refuse(name, "one", f"none: {_REFUSED[name]}")
        elif name not in NAMES:
            raise unknown(function, name, NAMES - set(_REFUSED))
        elif value is None:
            continue
        elif name in VALUES:
            if isinstance(value, jax.core.Tracer):
                raise _refuse(
                    name,
                    "a value that jax traces",
                    "a number that is known when the function is traced (for a scale that is "
                    "computed: multiply q by it and pass scale=1.0)",
                )
            settings[name] = VALUES[name](name, value)
        elif name in SEEDS:
            arrays[name] = _seed(name, value)
        elif name == "rope":
            rope_parts(value, arrays, settings, numbers)
        else:
            arrays[name] = value
    for name, x in arrays.items():
        if name in INTEGERS:
            arrays[name] = _integers(name, x)
        elif name in PAIRS:
            arrays[name] = _pairs(name, x)
        elif name not in SEEDS:
            arrays[name] = array(name, x)
    if not settings.get("dropout_p"):
        for name in SEEDS:
            arrays.pop(name, None)
    elif "seed" not in arrays:
        found = f"none with dropout_p={settings['dropout_p']}"
        raise _refuse("seed", found, "a key of jax.random or a whole number, a new one each step")
    return arrays, settings, numbers


def _without_symbols(gradient: Any) -> Any:
    """None for a gradient that is zero everywhere by what JAX knows."""
    return None if isinstance(gradient, jax.custom_derivatives.SymbolicZero) else gradient


def _sharded_like(gradient: Any, x: Any) -> Any:
    """A gradient with the sharding of its array, which is part of the array's type where the axes
    of the mesh are explicit."""
    wanted: Any = jax.typeof(x).sharding
    if jax.typeof(gradient).sharding.spec == wanted.spec or not hasattr(jax, "reshard"):
        return gradient
    return jax.reshard(gradient, wanted)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(call: Call, leaves: Arrays, fixed: Arrays) -> Arrays:
    return run(call, leaves | fixed)


def _forward(call: Call, leaves: Any, fixed: Any) -> Any:
    """The forward that keeps lse. leaves and fixed: CustomVJPPrimal, which say whether JAX
    differentiates by them."""
    for name, x in fixed.items():
        if x.perturbed and jnp.issubdtype(x.value.dtype, np.floating):
            public = PUBLIC.get(name, name)
            raise ValueError(
                f"{call.function}: {public}: found an array that jax differentiates by, and there "
                f"is no gradient for it; accepted jax.lax.stop_gradient({public})"
            )
    wanted = {_GRADIENTS[name]: None for name, x in leaves.items() if x.perturbed}
    leaves = {name: x.value for name, x in leaves.items()}
    fixed = {name: x.value for name, x in fixed.items()}
    outputs = dict(call.wanted) | {"lse": 0}
    made = run(call._replace(wanted=tuple(outputs.items())), leaves | fixed)
    kept = {name: made[name] for name in dict(call.wanted)}
    return kept, (leaves, fixed, made, wanted)


def _backward(call: Call, kept: Any, gradients: Any) -> Any:
    leaves, fixed, made, wanted = kept
    dout = _without_symbols(gradients["o"])
    dlse = _without_symbols(gradients["lse"]) if "lse" in gradients else None
    found: Arrays = {}
    if wanted and not (dout is None and dlse is None):
        dout = jnp.zeros_like(made["o"]) if dout is None else dout
        arrays = {"dout": dout, **made, **leaves, **fixed}
        if dlse is not None:
            arrays["dlse"] = dlse
        backward = call._replace(pass_="backward", wanted=tuple((name, 0) for name in wanted))
        found = run(backward, arrays)
    # All are returned, and XLA removes those that nothing reads. JAX 0.6 takes the paths of one
    # call's results for those of another that wants other gradients.
    gradients = {
        name: _sharded_like(found[_GRADIENTS[name]], x)
        if _GRADIENTS[name] in found
        else jnp.zeros_like(x)
        for name, x in leaves.items()
    }
    return gradients, None


_attend.defvjp(_forward, _backward, symbolic_zeros=True)
# Calls outside of jit: traced and compiled once for each call and shape.
_attend_compiled = jax.jit(_attend, static_argnums=0, inline=True)


def attend(
    function: str, q: Any, k: Any, v: Any, return_lse: bool, out_dtype: Any, options: Options
) -> Any:
    """attention() under the name of the function that was called."""
    try:
        arrays: Arrays = {"q": array("q", q), "k": array("k", k), "v": array("v", v)}
        more, settings, numbers = _split(function, options)
        arrays |= more
        wanted: tuple[tuple[str, int], ...] = (
            ("o", 0 if out_dtype is None else dtype_code("out_dtype", out_dtype)),
        )
        if boolean("return_lse", return_lse):
            wanted = (*wanted, ("lse", 0))
    except ValueError as error:
        raise named(function, error) from None
    call = Call(function, "forward", tuple(settings.items()), tuple(numbers.items()), wanted)
    arrays = vary_together(arrays)
    leaves = {name: arrays.pop(name) for name in _DIFFERENTIABLE if name in arrays}
    made = _attend_compiled(call, leaves, arrays)
    return (made["o"], made["lse"]) if return_lse else made["o"]


@overload
def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    return_lse: Literal[False] = False,
    out_dtype: ElementType | None = None,
    **options: Unpack[Options],
) -> jax.Array: ...


@overload
def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    return_lse: Literal[True],
    out_dtype: ElementType | None = None,
    **options: Unpack[Options],
) -> tuple[jax.Array, jax.Array]: ...


@overload
def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    return_lse: bool,
    out_dtype: ElementType | None = None,
    **options: Unpack[Options],
) -> jax.Array | tuple[jax.Array, jax.Array]: ...


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    return_lse: bool = False,
    out_dtype: ElementType | None = None,
    **options: Unpack[Options],
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """o = softmax(scale * q k^T + ...) v, exactly and in linear memory, with gradients.

    FlashAttention-2 (Dao 2023), section 3.1; every option is defined in docs/semantics.md.

    q: [b, n, h, dim_qk], or packed [total_q, h, dim_qk] with cu_len_q. f32, f16, bf16, f64 (with
        x64), or, with k and v, f8 (e4m3fn, e5m2; see descale_q; no gradients).
    k: [b, m, g, dim_qk], or packed with cu_len_kv. h is a multiple of g (GQA, MQA).
    v: [b, m, g, dim_vo], or packed. k and v can be f8 with an f16 or bf16 q, or int8 with an f16,
        bf16 or f32 q; no gradients.
    return_lse: return (o, lse). lse [b, h, n] (packed [h, total_q]) is the natural logarithm of
        each row's sum of exponentials, f32 (f64 with f64); it is differentiable.
    out_dtype: the type of o: q's (None) or "float32".
    options: causal, window, mask, bias, softcap, dropout_p and others: see libattn.Options.
        Numbers must be known when the function is traced, except seed and offset. These can also
        be keys of jax.random; dropout needs a seed. workspace, stream, device and nonfinite_count
        are refused.

    Gradients flow to q, k, v, bias and sinks, from o and lse; only those that JAX asks for are
    computed. vmap gives what a loop over the mapped axis gives: with dropout, equal seeds draw
    equal masks for each index.

    Returns o [b, n, h, dim_vo] (packed [total_q, h, dim_vo]).
    Raises, when it is traced, ValueError for a broken rule, and for an array that is differentiated
    by and has no gradient (alibi_slopes, tables); TypeError for an unknown option, and for forward
    mode; NotImplementedError for a second derivative. A failure at run time is an error of XLA with
    the library's text.
    """
    made: jax.Array | tuple[jax.Array, jax.Array]
    made = attend("attention", q, k, v, return_lse, out_dtype, options)
    return made
