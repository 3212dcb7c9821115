"""Hostile calls of all public functions of libattn and libattn.torch: a good call in which one
argument is replaced by a value of hostile_values.py.

usage: python hostile_calls.py BEGIN END

Makes calls BEGIN to END - 1 and prints a JSON line before and after each, so that a crash can be
attributed to its call.

A call passes if it raises a documented exception whose text names the function and an argument,
what was found and what is accepted, or if its result is that of the float64 reference for a value
that has a meaning.
"""

from __future__ import annotations

import faulthandler
import json
import random
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import hostile_values as values
import libattn
import libattn.torch
import numpy as np
import torch
from libattn import _reference

B, N, M, H, D = 2, 5, 7, 2, 8
SECONDS_FOR_A_CALL = 60
RNG = np.random.default_rng(11)
Q, K, V, DOUT = (RNG.standard_normal((B, n, H, D)).astype(np.float32) for n in (N, M, M, N))
BIAS = RNG.standard_normal((1, 1, N, M)).astype(np.float32)
MASK = RNG.random((1, 1, N, M)) < 0.7
I32 = np.int32
TABLE = RNG.standard_normal((9, D // 2)).astype(np.float32)
BEGIN = np.array([[0, 1, 1, 2, 2]] * B, I32)
LENS = np.array([4, 6], I32)

# Options with their good values and the kinds of their hostile ones.
OPTIONS: dict[str, tuple[Any, Callable[..., Any]]] = {
    "causal": (True, values.flag),
    "diagonal": (1, values.diagonal),
    "window": ((2, 3), values.window),
    "kv_begin": (BEGIN, values.integers),
    "kv_end": (BEGIN + 4, values.integers),
    "mask": (MASK, values.pairs),
    "bias": (BIAS, values.pairs),
    "softcap": (2.0, values.real),
    "alibi_slopes": (np.array([0.5, 0.25], np.float32), values.floats),
    "sinks": (np.array([0.5, 1.5], np.float32), values.floats),
    "len_q": (np.array([5, 3], I32), values.integers),
    "len_kv": (LENS, values.integers),
    "scale": (0.5, values.real),
    "seed": (7, values.seed),
    "offset": (3, values.seed),
    "origin": (None, values.instance),
    "rope": (None, values.instance),
    "precision": ("ieee", values.text),
    "deterministic": (True, values.flag),
    "device": ("host", values.text),
    "stream": (None, lambda rng, good, maker: (rng.choice([5, "x", 1.5, True]), values.REFUSED)),
}
DROPOUT = {"dropout_p": 0.5, "seed": 7, "offset": 3}
PLAIN = {"mask", "bias", "softcap", "alibi_slopes", "sinks", "scale", "causal", "window"}
TORCH_REFUSES = {"device", "stream"}


@dataclass
class Function:
    """A public function: how to call it, and what is right.

    call: keyword arguments -> results as NumPy arrays by name. good: arguments with the kinds of
    their hostile values; REQUIRED ones always, others one at a time. right: the options of the call
    -> results. valid: forms of hostile values that this function computes with.
    """

    name: str
    call: Callable[..., dict[str, Any]]
    good: dict[str, tuple[Any, Callable[..., Any]]]
    optional: dict[str, tuple[Any, Callable[..., Any]]] = field(default_factory=dict)
    right: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    maker: str = "numpy"


def array(x):
    return x.detach().double().numpy() if isinstance(x, torch.Tensor) else np.asarray(x)


def attended(options):
    """The reference's o and lse."""
    given = {n: x for n, x in options.items() if n not in IGNORED}
    for name in ("deterministic", "precision", "device", "stream", "origin"):
        given.pop(name, None)
    result = _reference.attention(Q, K, V, **given)
    return {"o": result.o, "lse": result.lse}


IGNORED = {"out", "lse_out", "out_dtype", "workspace", "nonfinite_count", "return_lse"}
IGNORED |= {"split_keys"}
OUT = {
    "out": (np.zeros_like(Q), values.written),
    "lse_out": (np.zeros((B, H, N), np.float32), values.written),
    "out_dtype": (np.float32, values.text),
    "return_lse": (True, values.flag),
    "nonfinite_count": (np.zeros(1, I32), values.written),
    "workspace": (np.zeros(1 << 16, np.uint8)[:0], values.written),
}
INPUTS = {"q": (Q, values.floats), "k": (K, values.floats), "v": (V, values.floats)}


def _pair(result, packed=False):
    """o and lse of a call with return_lse=True, or o alone."""
    if not isinstance(result, tuple):
        return {"o": array(result)}
    return {"o": array(result[0]), "lse": array(result[1])}


def attention(**given):
    return _pair(libattn.attention(**({"return_lse": True} | given)))


def decode(q, k, v, **given):
    return _pair(libattn.decode(q, k, v, **({"return_lse": True} | given)))


def backward(dout, q, k, v, o, lse, **given):
    found = libattn.attention_backward(dout, q, k, v, o, lse, **given)._asdict()
    return {name: array(x) for name, x in found.items() if x is not None}


def backward_right(options):
    names = PLAIN | {"diagonal", "kv_begin", "kv_end", "len_q", "len_kv"} | DROPOUT.keys()
    given = {n: x for n, x in options.items() if n in names}
    return _reference.gradients(DOUT, Q, K, V, **given)


def merged(o1, lse1, o2, lse2, **given):
    return _pair(libattn.merge(o1, lse1, o2, lse2, **given))


HALF = [_reference.attention(Q, K[:, s], V[:, s]) for s in (slice(0, 3), slice(3, M))]
PARTS = [x.astype(np.float32) for half in HALF for x in (half.o, half.lse)]
MERGE = dict(zip(("o1", "lse1", "o2", "lse2"), ((x, values.floats) for x in PARTS), strict=True))


def rope(x, **given):
    return {"o": array(libattn.rope(x, **given))}


def torch_attention(**given):
    leaves = {n: given[n] for n in ("q", "k", "v") if n in given}
    leaves = {
        n: x.detach().requires_grad_()
        if isinstance(x, torch.Tensor)
        and x.is_leaf
        and x.dtype == torch.float32
        and x.layout == torch.strided
        and not x.is_nested
        else x
        for n, x in leaves.items()
    }
    return _pair(libattn.torch.attention(**({"return_lse": True} | given | leaves)))


def torch_merge(o1, lse1, o2, lse2):
    return _pair(libattn.torch.merge(o1, lse1, o2, lse2))


def torch_rope(x, **given):
    return {"o": array(libattn.torch.rope(x, **given))}


def torch_decode(q, k, v, **given):
    return _pair(libattn.torch.decode(q, k, v, **({"return_lse": True} | given)))


def sdpa(query, key, value, **given):
    attend = libattn.torch.scaled_dot_product_attention
    q, k, v = (x.transpose(1, 2) if _is_rows(x) else x for x in (query, key, value))
    return {"o": array(attend(q, k, v, **given)).swapaxes(1, 2)}


def _is_rows(x):
    return isinstance(x, torch.Tensor) and x.layout == torch.strided and x.shape[1:] in SHAPES


SHAPES = ((N, H, D), (M, H, D))


def sdpa_right(options):
    given = {n: x for n, x in options.items() if n in ("scale",)}
    if "attn_mask" in options:
        mask = options["attn_mask"]
        given["mask" if mask.dtype == bool else "bias"] = mask
    if options.get("is_causal"):
        given |= {"causal": True, "diagonal": "top_left"}
    return {"o": _reference.attention(Q, K, V, **given).o}


def flash_right(options):
    names = {"softmax_scale": "scale", "window_size": "window", "cache_seqlens": "len_kv"}
    given = {names.get(n, n): x for n, x in options.items()}
    given = {n: x for n, x in given.items() if n in PLAIN | {"len_kv"}}
    return {"o": _reference.attention(Q, K, V, **given).o}


def flash(name, pack):
    """A function of the flash-attention package; pack: q, k, v -> its positional tensors."""
    function = getattr(libattn.torch, name)

    def call(**given):
        tensors = [given.pop(n) for n in list(given) if n in pack]
        out = function(*tensors, **given)
        return {"o": array(out).reshape(B, N, H, D)}

    return call


FLASH = {
    "softmax_scale": (0.5, values.real),
    "causal": (True, values.flag),
    "window_size": ((2, 3), values.window),
    "softcap": (2.0, values.real),
    "alibi_slopes": OPTIONS["alibi_slopes"],
}
CU = {
    "cu_seqlens_q": (np.arange(B + 1, dtype=I32) * N, values.integers),
    "cu_seqlens_k": (np.arange(B + 1, dtype=I32) * M, values.integers),
    "max_seqlen_q": (N, values.integer),
    "max_seqlen_k": (M, values.integer),
}


def floats(x):
    return x, values.floats


def flat(x):
    return x.reshape(-1, *x.shape[2:]), values.floats


def text_of(function):
    def call(**given):
        return {"text": str(function(**given))}

    return call


LINE = (libattn.describe(Q, K, V, causal=True), values.text)
QUESTION = {"problem": LINE, "pass_": ("forward", values.text), "device": ("host", values.text)}


def functions():
    """All public functions that take arguments."""
    o, lse = (x.astype(np.float32) for x in attended({}).values())
    gradients = {"dout": floats(DOUT), **INPUTS, "o": floats(o), "lse": floats(lse)}
    some = {n: x for n, x in OPTIONS.items() if n != "rope"}
    more = {
        "want": (("dq", "dk", "dv"), values.names),
        "accumulate": (False, values.flag),
        "dq": (np.zeros_like(Q), values.written),
        "dk": (np.zeros_like(K), values.written),
        "grad_dtype": (np.float32, values.text),
        "workspace": OUT["workspace"],
        "nonfinite_count": OUT["nonfinite_count"],
    }
    turn = {
        "style": ("half", values.text),
        "rot_dim": (D, values.integer),
        "base": (100.0, values.real),
        "pos_offset": (3, values.integer),
        "inverse": (True, values.flag),
        "positions": (np.array([[3, 1, 4, 1, 5]], I32), values.integers),
    }
    cached = {
        "split_keys": (4, values.integer),
        "block_table": (np.array([[0], [1]], I32), values.integers),
    }
    packed = {"q": flat(Q), "k": flat(K), "v": flat(V)}
    at_torch = {n: x for n, x in OPTIONS.items() if n not in TORCH_REFUSES}
    sdpa_inputs = {"query": floats(Q), "key": floats(K), "value": floats(V)}
    sdpa_options = {
        "attn_mask": (BIAS, values.broadcast),
        "is_causal": (True, values.flag),
        "scale": (0.5, values.real),
        "enable_gqa": (True, values.flag),
        "dropout_p": (0.0, values.real),
    }
    kv = {"kv": floats(np.stack([K, V], 2))}
    flat_kv = {"kv": flat(np.stack([K, V], 2))}
    flash_calls = {
        "flash_attn_func": INPUTS,
        "flash_attn_kvpacked_func": {"q": INPUTS["q"], **kv},
        "flash_attn_varlen_func": packed | CU,
        "flash_attn_varlen_kvpacked_func": {"q": packed["q"], **flat_kv} | CU,
        "flash_attn_with_kvcache": {"q": floats(Q), "k_cache": floats(K), "v_cache": floats(V)},
    }
    cache = {"cache_seqlens": (LENS, values.integers), "num_splits": (2, values.integer)}
    made = [
        Function("attention", attention, INPUTS, OPTIONS | OUT, attended),
        Function("decode", decode, INPUTS, some | OUT | cached, decode_right),
        Function("attention_backward", backward, gradients, some | more, backward_right),
        Function("merge", merged, MERGE, {"device": OPTIONS["device"]}, lambda _: attended({})),
        Function("rope", rope, {"x": floats(Q)}, turn, rope_right),
        Function("describe", text_of(libattn.describe), INPUTS, some),
        Function("supports", text_of(libattn.supports), QUESTION),
        Function("explain", text_of(libattn.explain), QUESTION),
        Function("workspace_bytes", text_of(libattn.workspace_bytes), QUESTION),
        Function(
            "set_num_threads", text_of(libattn.set_num_threads), {"threads": (0, wrong_count)}
        ),
        Function("torch.attention", torch_attention, INPUTS, at_torch, attended, "torch"),
        Function("torch.decode", torch_decode, INPUTS, at_torch | cached, decode_right, "torch"),
        Function("torch.merge", torch_merge, MERGE, {}, lambda _: attended({}), "torch"),
        Function("torch.rope", torch_rope, {"x": floats(Q)}, turn, rope_right, "torch"),
        Function(
            "scaled_dot_product_attention", sdpa, sdpa_inputs, sdpa_options, sdpa_right, "torch"
        ),
    ]
    for name, inputs in flash_calls.items():
        options = FLASH | (cache if name.endswith("cache") else {})
        made.append(Function(name, flash(name, inputs), inputs, options, flash_right, "torch"))
    return made


def wrong_count(rng, good, maker):
    return rng.choice([-1, 1.5, "2", True, 10**9, None, [1], object()]), values.REFUSED


def decode_right(options):
    """With one page per sequence, block_table changes nothing, so the reference ignores it."""
    return attended({n: x for n, x in options.items() if n != "block_table"})


def rope_right(options):
    turned = libattn.Rope(
        options.get("style", "half"), options.get("rot_dim"), options.get("base", 10000.0)
    )
    at = options.get("positions", np.arange(N)[None] + options.get("pos_offset", 0))
    return {"o": _reference.rotate(Q, at, turned, options.get("inverse", False))}


# Forms that are no error in these functions: rope has one array, describe checks no sizes.
ALWAYS_TEXT = ("describe",)
ALIASES = ("k_cache", "v_cache", "rope", "size", "workspace", "dim_", "heads", "batch")


def made(x, maker):
    """A copy of a good value, as an array of the call's library."""
    if isinstance(x, np.ndarray):
        return torch.from_numpy(x.copy()) if maker == "torch" else x.copy()
    return {np.float32: torch.float32}.get(x, x) if maker == "torch" and isinstance(x, type) else x


def complaint(error, function, arguments, is_traced):
    """What is wrong with an exception, or None."""
    text = str(error)
    if isinstance(error, RuntimeError) and is_traced and "torch.jit.trace" in text:
        return None
    if isinstance(error, TypeError) and re.search("(unknown option|keyword argument) 'cas", text):
        return None
    if not isinstance(error, (ValueError, MemoryError, libattn.Error)):  # noqa: UP038
        return f"{type(error).__name__}: {text}"
    # Packed drop-ins are documented as the plain one with stacked tensors, whose name errors have.
    plain = function.name.split(".")[-1].replace("_kvpacked", "")
    known = (function.name.split(".")[-1], plain, "attention", "decode")
    if not any(f"{name}: " in text for name in known):
        return f"does not name the function: {text}"
    if not any(name in text for name in (*arguments, *ALIASES)):
        return f"does not name an argument: {text}"
    if isinstance(error, libattn.Unsupported):
        return None
    if "found" not in text or "accepted" not in text or len(text) > 500 or "\n" in text:
        return f"does not say what was found and is accepted: {text}"
    return None


def wrong_result(function, found, options):
    """What is wrong with a result, or None."""
    if function.right is None:
        return None
    right = {n: x for n, x in function.right(options).items() if n in found}
    if not right:
        return f"no result to compare among {sorted(found)}"
    for name, want in right.items():
        got = np.asarray(found[name], np.float64)
        if got.shape != want.shape:
            return f"{name}: shape {got.shape}, not {want.shape}"
        same = np.isneginf(got) & np.isneginf(want)
        close = np.abs(np.where(same, 0, got) - np.where(same, 0, want)) <= 1e-4
        if not close.all():
            return f"{name}: {(~close).sum()} of {close.size} elements are wrong"
    return None


def is_no_error(function, name, value):
    """Whether this function accepts a value that most functions must refuse."""
    if function.name in ALWAYS_TEXT or (name == "problem" and value == ""):
        return True
    if name == "window_size" and value == (-1, -1):  # flash-attention's unlimited
        return True
    if name == "x" and isinstance(value, np.ndarray | torch.Tensor):  # rope takes any one array
        return True
    copies = function.name.startswith(("flash", "scaled"))  # drop-ins copy strided tensors
    return copies and isinstance(value, torch.Tensor) and value.shape[-1:] == (D,)


def one(index, catalogue):
    """Makes a call; returns what it was, and a complaint or None with how it ended."""
    rng = random.Random(7919 * index)
    function = catalogue[index % len(catalogue)]
    maker = function.maker
    arguments = function.good | function.optional
    name = rng.choice(sorted(arguments))
    good, kind = arguments[name]
    options = {} if name in function.good else {name: good}
    given = {n: made(x, maker) for n, (x, _) in function.good.items()}
    value, meaning = kind(rng, made(good, maker), maker)
    if function.name == "attention_backward" and name in OPTIONS:
        results = attended(options | (DROPOUT if name in DROPOUT else {}))
        given |= {n: x.astype(np.float32) for n, x in results.items()}
    if name in ("seed", "offset"):
        options = DROPOUT | options
        given |= DROPOUT
    if rng.random() < 0.03 and "casual" not in arguments and "causal" in arguments:
        given["casual"], meaning = True, values.REFUSED
    else:
        given[name] = value
    is_traced = maker == "torch" and rng.random() < 0.05
    text = f"{function.name}({name}={values.text_of(value)}){' traced' * is_traced}"
    yield text
    try:
        if is_traced:
            first = next(iter(function.good))
            start = made(function.good[first][0], maker)
            torch.jit.trace(lambda x: function.call(**(given | {first: x})), (start,))
        found = function.call(**given)
    except Exception as error:
        yield "refused", complaint(error, function, arguments, is_traced)
        return
    if is_traced:
        yield "computed", "was traced"
    elif meaning is not values.REFUSED and name != "casual":
        yield "computed", wrong_result(function, found, options)
    else:
        yield "computed", None if is_no_error(function, name, value) else "was accepted"


def main():
    begin, end = (int(word) for word in sys.argv[1:])
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    catalogue = functions()
    for index in range(begin, end):
        faulthandler.dump_traceback_later(SECONDS_FOR_A_CALL, exit=True)
        steps = one(index, catalogue)
        print(json.dumps({"at": index, "call": next(steps)}), flush=True)
        ended, wrong = next(steps)
        print(json.dumps({"at": index, "ended": ended, "wrong": wrong}), flush=True)
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
