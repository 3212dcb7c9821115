"""Calls of libattn.jax.attention by option: arrays, options, and float64 results and gradients."""

from __future__ import annotations

import dataclasses
from typing import Any

import libattn
import numpy as np
from libattn import _reference

B, N, M, H, G, DIM, DIM_VO = 2, 9, 12, 4, 2, 8, 6


def i32(*values):
    return np.array(values, np.int32)


def _pairs(rng, *shape):
    return rng.standard_normal(shape)


def _positions(rng):
    return {"positions_q": i32(range(3, 3 + N)), "positions_kv": i32(range(M))}


# Options by name: a generator of random numbers -> keyword arguments, arrays in NumPy's float64.
OPTIONS = {
    "plain": lambda rng: {},
    "causal": lambda rng: {"causal": True},
    "top left": lambda rng: {"causal": True, "diagonal": "top_left"},
    "diagonal": lambda rng: {"causal": True, "diagonal": 1},
    "window": lambda rng: {"window": (2, 1)},
    "left window": lambda rng: {"causal": True, "window": (2, None)},
    "softcap": lambda rng: {"softcap": 1.5},
    "scale": lambda rng: {"scale": 0.7},
    "alibi": lambda rng: {"alibi_slopes": rng.random(H)},
    "alibi by batch": lambda rng: {"alibi_slopes": rng.random((B, H)), "causal": True},
    "mask": lambda rng: {"mask": rng.random((B, 1, N, M)) < 0.7},
    "mask of keys": lambda rng: {"mask": rng.random((1, M)) < 0.7},
    "bias": lambda rng: {"bias": _pairs(rng, 1, H, N, M), "causal": True},
    "bias by batch": lambda rng: {"bias": _pairs(rng, B, 1, 1, M), "softcap": 2.0},
    "bias of all": lambda rng: {"bias": _pairs(rng, N, M)},
    "bounds": lambda rng: {
        "kv_begin": rng.integers(0, 6, (1, N), np.int32),
        "kv_end": rng.integers(4, M + 1, (B, N), np.int32),
    },
    "lengths": lambda rng: {"len_q": i32(N, 3), "len_kv": i32(7, 0), "causal": True},
    "sinks": lambda rng: {"sinks": rng.standard_normal(H), "len_kv": i32(M, 0)},
    "dropout": lambda rng: {"dropout_p": 0.3, "seed": 2**40 + 11, "offset": 5},
    "origin": lambda rng: {
        "causal": True,
        "diagonal": "origin",
        "origin": libattn.Origin(batch=1, head=2, q=9, kv=6, heads_q=8),
        "dropout_p": 0.2,
        "seed": 3,
    },
    "rope": lambda rng: {"rope": libattn.Rope(pos_offset=2), "causal": True},
    "rope positions": lambda rng: {"rope": libattn.Rope("interleaved", 4, **_positions(rng))},
    "deterministic": lambda rng: {"causal": True, "deterministic": True},
    "precision": lambda rng: {"precision": "ieee"},
    "many": lambda rng: {
        "causal": True,
        "softcap": 2.0,
        "window": (8, None),
        "alibi_slopes": rng.random(H),
        "bias": _pairs(rng, 1, H, N, M),
        "sinks": rng.standard_normal(H),
        "mask": rng.random((B, H, 1, M)) < 0.8,
        "len_kv": i32(M, 10),
        "dropout_p": 0.1,
        "seed": 3,
    },
}


def _partly_hidden(rng):
    """A bias that is -inf for half of the pairs."""
    bias = _pairs(rng, 1, 1, N, M)
    bias[rng.random(bias.shape) < 0.5] = -np.inf
    return {"bias": bias}


# More values, shapes and sizes of these options. "sizes" is not an option: it has the sizes that
# differ from those above, and a factor for q.
MORE = {
    "right window": lambda rng: {"window": (None, 1)},
    "bounds out of range": lambda rng: {
        "kv_begin": rng.integers(-5, M + 5, (1, N), np.int32),
        "kv_end": rng.integers(-5, M + 5, (B, N), np.int32),
    },
    "bounds of no key": lambda rng: {"kv_begin": i32(0, M)[np.arange(N) % 2][None]},
    "mask of queries": lambda rng: {"mask": rng.random((1, H, N, 1)) < 0.6},
    "mask of few": lambda rng: {"mask": rng.random((1, 1, N, M)) < 0.2},
    "mask of bytes": lambda rng: {"mask": rng.integers(0, 3, (B, 1, N, M), np.uint8)},
    "bias of queries": lambda rng: {"bias": _pairs(rng, 1, H, N, 1)},
    "bias of one number": lambda rng: {"bias": _pairs(rng, 1, 1, 1, 1)},
    "bias of batch and heads": lambda rng: {"bias": _pairs(rng, B, H, N, M)},
    "bias that hides": _partly_hidden,
    "sinks of some heads": lambda rng: {
        "sinks": np.where(np.arange(H) % 2, rng.standard_normal(H), -np.inf)
    },
    "negative scale": lambda rng: {"scale": -0.25},
    "scale 0": lambda rng: {"scale": 0.0},
    "lengths of queries": lambda rng: {"len_q": i32(5, 0)},
    "lengths of keys": lambda rng: {"len_kv": i32(0, 5), "causal": True},
    "large scores": lambda rng: {"sizes": {"factor": 30.0}},
    "one key head": lambda rng: {"sizes": {"g": 1}, "causal": True},
    "a key head for each": lambda rng: {"sizes": {"g": H}},
    "odd dims": lambda rng: {"sizes": {"dim": 7, "dim_vo": 5}},
    "large dims": lambda rng: {"sizes": {"dim": 130, "dim_vo": 256}},
    "one query": lambda rng: {"sizes": {"n": 1}, "causal": True},
}
GRADIENTS = {"q": "dq", "k": "dk", "v": "dv", "bias": "dbias", "sinks": "dsink"}


@dataclasses.dataclass
class Case:
    """Inputs in float64; `leaves` are what gets a gradient."""

    leaves: dict[str, Any]
    options: dict[str, Any]
    dout: Any
    dlse: Any

    def expected(self) -> dict[str, Any]:
        """o, lse and the gradients by name, in float64."""
        options = dict(self.options)
        rope = options.pop("rope", None)
        q, k, v = (self.leaves[name] for name in ("q", "k", "v"))
        more = {name: self.leaves[name] for name in ("bias", "sinks") if name in self.leaves}
        options |= more
        if "bias" in more:
            options["bias"] = more["bias"].reshape(
                (1,) * (4 - more["bias"].ndim) + more["bias"].shape
            )
        turned_q, turned_k = self._turned(rope, q, k)
        result = _reference.attention(turned_q, turned_k, v, **options)
        found = _reference.gradients(self.dout, turned_q, turned_k, v, dlse=self.dlse, **options)
        found["dq"], found["dk"] = self._turned(rope, found["dq"], found["dk"], inverse=True)
        if "bias" in more:
            found["dbias"] = found["dbias"].reshape(more["bias"].shape)
        return {"o": result.o, "lse": result.lse, **found}

    def _turned(self, rope: Any, q: Any, k: Any, *, inverse: bool = False) -> Any:
        if rope is None:
            return q, k
        of_q = np.arange(q.shape[1])[None] + k.shape[1] - q.shape[1] + rope.pos_offset
        of_k = np.arange(k.shape[1])[None] + rope.pos_offset
        of_q = of_q if rope.positions_q is None else rope.positions_q
        of_k = of_k if rope.positions_kv is None else rope.positions_kv
        return (
            _reference.rotate(q, of_q, rope, inverse=inverse),
            _reference.rotate(k, of_k, rope, inverse=inverse),
        )


def case(name: str, seed: int = 7) -> Case:
    rng = np.random.default_rng(seed)
    make = rng.standard_normal
    options = (OPTIONS | MORE)[name](rng)
    sizes = {"n": N, "g": G, "dim": DIM, "dim_vo": DIM_VO, "factor": 1} | options.pop("sizes", {})
    n, g, dim, dim_vo, factor = sizes.values()
    leaves = {
        "q": factor * make((B, n, H, dim)),
        "k": make((B, M, g, dim)),
        "v": make((B, M, g, dim_vo)),
    }
    leaves |= {key: options.pop(key) for key in ("bias", "sinks") if key in options}
    return Case(leaves, options, make((B, n, H, dim_vo)), make((B, H, n)))
