"""Attention and gradients in f32 against float64 NumPy, option by option: what doctor runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import libattn

from . import _reference

# What is compared: one option at a time and all together, on small odd sizes.
_OPTIONS: dict[str, Callable[[Any, dict[str, int]], dict[str, Any]]] = {
    "plain": lambda rng, s: {},
    "causal": lambda rng, s: {"causal": True},
    "top_left": lambda rng, s: {"causal": True, "diagonal": "top_left"},
    "window": lambda rng, s: {"window": (7, 3)},
    "kv_begin": lambda rng, s: {
        "kv_begin": rng.integers(0, s["m"], (s["b"], s["n"]), dtype=np.int32)
    },
    "mask": lambda rng, s: {"mask": rng.random((s["b"], 1, s["n"], s["m"])) < 0.7},
    "bias": lambda rng, s: {
        "bias": rng.standard_normal((1, s["h"], s["n"], s["m"])).astype(np.float32)
    },
    "softcap": lambda rng, s: {"softcap": 2.0},
    "alibi": lambda rng, s: {"alibi_slopes": np.geomspace(0.5, 0.01, s["h"]).astype(np.float32)},
    "sinks": lambda rng, s: {"sinks": rng.standard_normal(s["h"]).astype(np.float32)},
    "lengths": lambda rng, s: {
        "len_q": rng.integers(0, s["n"] + 1, s["b"], dtype=np.int32),
        "len_kv": rng.integers(0, s["m"] + 1, s["b"], dtype=np.int32),
    },
    "dropout": lambda rng, s: {"dropout_p": 0.25, "seed": int(rng.integers(2**62))},
}


def _error(found: Any, right: Any) -> float:
    """The largest difference relative to the largest value; infinity where -inf do not agree."""
    hidden = np.isneginf(right)
    if not np.array_equal(np.isneginf(found), hidden):
        return float("inf")
    right = np.where(hidden, 0.0, right)
    difference = np.abs(np.where(hidden, 0.0, found) - right)
    return float(difference.max() / max(np.abs(right).max(), 1e-30))


def compare(seed: int = 0) -> Iterator[tuple[str, dict[str, float]]]:
    """For each option, then for all together: its name and the error of each output.

    An error is relative to the largest value of the output; MOST is the largest that is right.
    """
    rng = np.random.default_rng(seed)
    for name in [*_OPTIONS, "all together"]:
        s = {"b": 2, "n": 67, "m": 131, "h": 4}
        q, k, v, dout = (
            rng.standard_normal((s["b"], length, heads, dim), np.float32)
            for length, heads, dim in ((67, 4, 24), (131, 2, 24), (131, 2, 40), (67, 4, 40))
        )
        options: dict[str, Any] = {}
        for one in _OPTIONS if name == "all together" else [name]:
            options |= _OPTIONS[one](rng, s)
        expected = _reference.attention(q, k, v, **options)
        wanted = {"o": expected.o, "lse": expected.lse}
        wanted |= _reference.gradients(dout, q, k, v, **options)
        o, lse = libattn.attention(q, k, v, return_lse=True, **options)
        grads = libattn.attention_backward(dout, q, k, v, o, lse, **options)
        found = {"o": o, "lse": lse} | grads._asdict()
        yield name, {output: _error(found[output], right) for output, right in wanted.items()}


# f32 sums of at most some hundred terms: a few dozen units of rounding of the largest.
MOST = 64 * 2.0**-24
