"""Microseconds per call from JAX on arrays so small that arithmetic is negligible.

One process measures these functions alternately, each under jax.jit: a sum of three arrays (what
JAX itself takes for a call with three inputs), jax.nn.dot_product_attention, libattn.jax.attention,
and the gradients of the last two. A call ends when its result is ready. Each figure is the minimum
over the means of many short batches, which removes most of the effect of other processes. Results
are compared before anything is timed.

    python bench/jax_overhead.py [--shape 1,8,4,16] [--rounds 300] [--json]

Limit: libattn takes at most 20 us more than the sum of three arrays. The exit status is 1 if it is
exceeded.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import libattn
import libattn.jax
from alternating import best_of
from provenance import provenance

LIMIT_US = 20.0


def cases(shape: tuple[int, ...]) -> dict[str, Callable[[], object]]:
    q, k, v = (jax.random.normal(key, shape) for key in jax.random.split(jax.random.key(0), 3))

    def gradients(attention: Callable[..., jax.Array]) -> Callable[..., object]:
        return jax.grad(lambda q, k, v: attention(q, k, v).sum(), argnums=(0, 1, 2))

    functions = {
        "sum of three arrays": jax.jit(lambda q, k, v: q + k + v),
        "jax.nn forward": jax.jit(jax.nn.dot_product_attention),
        "libattn forward": jax.jit(libattn.jax.attention),
        "jax.nn gradients": jax.jit(gradients(jax.nn.dot_product_attention)),
        "libattn gradients": jax.jit(gradients(libattn.jax.attention)),
    }
    for kind in ("forward", "gradients"):
        found, expected = (functions[f"{who} {kind}"](q, k, v) for who in ("libattn", "jax.nn"))
        for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            if not jnp.abs(x - y).max() <= 1e-5:
                raise SystemExit("jax_overhead: the functions disagree")

    def call(function: Callable[..., object]) -> Callable[[], object]:
        return lambda: jax.block_until_ready(function(q, k, v))

    return {name: call(function) for name, function in functions.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--shape", default="1,8,4,16", help="b,n,h,d")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--json", action="store_true", help="one JSON line")
    options = parser.parse_args()
    libattn.set_num_threads(1)
    shape = tuple(int(size) for size in options.shape.split(","))
    found = best_of(cases(shape), options.rounds)
    limit = found["sum of three arrays"] + LIMIT_US
    if options.json:
        row = {
            "bench": "jax_overhead",
            **provenance(),
            "shape": shape,
            "device": next(x["detail"] for x in libattn.info()["backends"] if x["name"] == "cpu"),
            "python": platform.python_version(),
            "jax": jax.__version__,
            "libattn": libattn.__version__,
            "us": {name: round(us, 2) for name, us in found.items()},
            "limit_us": {"libattn forward": round(limit, 2)},
        }
        print(json.dumps(row))
    else:
        for name, us in found.items():
            at_most = f"  (limit {limit:.1f})" if name == "libattn forward" else ""
            print(f"{name:28s}{us:8.1f} us{at_most}")
    return int(found["libattn forward"] > limit)


if __name__ == "__main__":
    sys.exit(main())
