"""One pass of attention as a call through XLA's foreign function interface (FFI).

The handlers lie in the shared library: src/api/xla.cpp lists the attributes that they read. A call
is described and checked by the library when it is traced, from shapes and types alone.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import jax
import numpy as np

from .. import _abi, _library
from .._calls import LIBRARY, Prepared
from .._facts import DTYPES, Facts, Family, dense, numpy_dtype, wrong_type
from .._functions import PASSES, Kind
from .._values import named

Arrays = dict[str, Any]
Items = tuple[tuple[str, Any], ...]

SEEDS = ("seed", "offset")  # uint32 [2]: words of 64 bits, the lower one first
_ALIGNMENT = 64
_FIRST_ADDRESS = 1 << 40  # of stand-ins for memory, which nothing reads


class Call(NamedTuple):
    """What is known of a call besides its arrays. It is hashable: a static argument of jit."""

    function: str  # for messages
    pass_: str
    settings: Items  # as libattn._options.apply takes them
    numbers: Items  # fields of attn_arguments
    wanted: Items  # outputs and their types, 0 = the usual one


class _Shapes(Family):
    """Arrays that have a shape and a type, traced or not. The memory is described as the host's:
    no rule depends on the device."""

    def facts(self, name: str, x: Any) -> Facts:
        dtype = DTYPES.get(np.dtype(x.dtype).name)
        if dtype is None:
            raise wrong_type(name, x.dtype)
        shape = tuple(x.shape)
        return Facts(dtype, _abi.ATTN_HOST, 0, shape, dense(shape))


_SHAPES = _Shapes()


def target(pass_: str) -> str:
    """The name under which XLA knows a pass."""
    return f"libattn_{pass_}"


def _register() -> None:
    """Registers the handlers with XLA, which starts no platform and ignores one that it lacks."""
    for platform, name in (("cpu", "host"), ("CUDA", "cuda")):
        for pass_ in ("forward", "backward"):
            handler = getattr(LIBRARY, f"attn_xla_{pass_}_{name}")
            jax.ffi.register_ffi_target(
                target(pass_), jax.ffi.pycapsule(handler), platform=platform
            )


_register()


def _validate(call: Call, prepared: Prepared) -> None:
    """Applies the rules on tensors and numbers, with addresses that stand in for memory."""
    address = _FIRST_ADDRESS
    for tensor in prepared.tensors.values():
        tensor.data = address
        elements = int(np.prod(tensor.shape[: tensor.rank], dtype=object))
        step = elements * 8 + _ALIGNMENT
        address += step + -step % _ALIGNMENT
    code = LIBRARY.attn_validate(PASSES[call.pass_], *prepared.references)
    _library.check(code, call.function)


def _text(problem: Any) -> str:
    def fill(buffer: Any, size: int, needed: Any) -> Any:
        return LIBRARY.attn_problem_print(ctypes.byref(problem), buffer, size, needed)

    return _library.text_of(fill)


def _attributes(prepared: Prepared) -> dict[str, Any]:
    """The call's numbers, without those that the problem switches off."""
    problem, arguments = prepared.problem, prepared.arguments
    found: dict[str, Any] = {}
    if arguments.has_scale:
        found["scale"] = np.float64(arguments.scale)
    if arguments.has_diag:
        found["diag"] = np.int64(arguments.diag)
    for name in ("softcap", "dropout_p"):
        if getattr(arguments, name):
            found[name] = np.float64(getattr(arguments, name))
    for name in ("batch", "head", "q", "kv", "heads_q"):
        value = getattr(arguments, f"origin_{name}")
        if value:
            found[f"origin_{name}"] = np.int64(value)
    if problem.rope:
        found["rope_base"] = np.float64(arguments.rope_base)
        found["rope_pos_offset"] = np.int64(arguments.rope_pos_offset)
    return found


def _axes_of(x: Any) -> frozenset[str]:
    """The mesh axes of shard_map along which x varies. Its type tells, in each JAX differently."""
    kind = jax.typeof(x)
    if hasattr(kind, "manual_axis_type"):
        return frozenset(kind.manual_axis_type.varying)
    return frozenset(getattr(kind, "vma", ()))


def _result(shape: tuple[int, ...], dtype: int, axes: frozenset[str]) -> jax.ShapeDtypeStruct:
    """The type of an output that varies along these mesh axes."""
    varying: dict[str, Any] = {}
    if axes:
        mesh = jax.sharding.get_abstract_mesh()
        varying["sharding"] = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        if hasattr(jax.sharding, "ManualAxisType"):
            varying["manual_axis_type"] = jax.sharding.ManualAxisType(varying=axes)
        else:
            varying["vma"] = axes
    return jax.ShapeDtypeStruct(shape, numpy_dtype(dtype), **varying)


def _all_axes(arrays: Arrays) -> frozenset[str]:
    none: frozenset[str] = frozenset()
    return none.union(*map(_axes_of, arrays.values()))


def vary_together(arrays: Arrays) -> Arrays:
    """The arrays, all varying along the same mesh axes of shard_map. The transposed operation adds
    up a gradient over the axes along which its array does not vary."""
    axes = _all_axes(arrays)
    if not axes:
        return arrays
    lax: Any = jax.lax  # which of the functions there are depends on the version
    made = {}
    for name, x in arrays.items():
        missing = tuple(sorted(axes - _axes_of(x)))
        if missing and hasattr(lax, "pcast"):
            x = lax.pcast(x, missing, to="varying")
        elif missing:
            x = lax.pvary(x, missing)
        made[name] = x
    return made


def _prepare(call: Call, arrays: Arrays) -> Prepared:
    """The C structures of a call, which the library has accepted."""
    tensors = {name: x for name, x in arrays.items() if name not in SEEDS}
    kind = Kind(call.function, call.pass_, dict(call.settings), dict(call.wanted))
    try:
        prepared = kind.build(tensors, dict.fromkeys(tensors, _SHAPES))
        for name, value in call.numbers:
            setattr(prepared.arguments, name, value)
        _validate(call, prepared)
    except ValueError as error:
        raise named(call.function, error) from None
    return prepared


def launch(call: Call, arrays: Arrays) -> Arrays:
    """The outputs of a pass, by name. Raises what libattn.attention raises, when it is traced."""
    prepared = _prepare(call, arrays)
    arrays = vary_together(arrays)
    axes = _all_axes(arrays)
    results = [_result(shape, dtype, axes) for _, shape, dtype, _ in prepared.outputs]
    names = [name for name, *_ in prepared.outputs]
    outputs = jax.ffi.ffi_call(target(call.pass_), results)(
        *arrays.values(),
        problem=_text(prepared.problem),
        inputs=" ".join(arrays),
        outputs=" ".join(names),
        **_attributes(prepared),
    )
    return dict(zip(names, outputs, strict=True))
