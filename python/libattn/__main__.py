"""`python -m libattn info | check | bench`: this installation, right or not, its speed."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import libattn

from . import _reference

# What check draws from: one option at a time and all together, on small odd sizes.
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


def _check(arguments: argparse.Namespace) -> int:
    """Attention and gradients in f32 against float64 NumPy, option by option."""
    rng = np.random.default_rng(arguments.seed)
    failed = 0
    cases = [*_OPTIONS, "all together"]
    for at, name in enumerate(cases):
        s = {"b": 2, "n": 67, "m": 131, "h": 4}
        q, k, v, dout = (
            rng.standard_normal((s["b"], length, heads, dim), np.float32)
            for length, heads, dim in ((67, 4, 24), (131, 2, 24), (131, 2, 40), (67, 4, 40))
        )
        names = list(_OPTIONS) if name == "all together" else [name]
        options: dict[str, Any] = {}
        for one in names:
            options |= _OPTIONS[one](rng, s)
        expected = _reference.attention(q, k, v, **options)
        wanted = {"o": expected.o, "lse": expected.lse}
        wanted |= _reference.gradients(dout, q, k, v, **options)
        o, lse = libattn.attention(q, k, v, return_lse=True, **options)
        grads = libattn.attention_backward(dout, q, k, v, o, lse, **options)
        found = {"o": o, "lse": lse} | grads._asdict()
        errors = {output: _error(found[output], right) for output, right in wanted.items()}
        # f32 sums of at most some hundred terms: a few dozen units of rounding of the largest.
        ok = all(error <= 64 * 2.0**-24 for error in errors.values())
        failed += not ok
        text = " ".join(f"{output} {error:.1e}" for output, error in errors.items())
        print(f"[{at + 1}/{len(cases)}] {name}: {'ok' if ok else 'FAILED'} ({text})", flush=True)
    print(f"{len(cases) - failed} passed, {failed} failed")
    return int(failed > 0)


def _time(call: Callable[[], Any], seconds: float) -> float:
    """The least of repeated times of a call, in seconds."""
    call()
    best = float("inf")
    end = time.perf_counter() + seconds
    while True:
        begin = time.perf_counter()
        call()
        now = time.perf_counter()
        best = min(best, now - begin)
        if now > end:
            return best


def _bench(arguments: argparse.Namespace) -> int:
    """Times forward and backward on NumPy arrays, next to PyTorch's SDPA where torch is there."""
    b, n, h, d = arguments.batch, arguments.len, arguments.heads, arguments.dim
    rng = np.random.default_rng(0)
    q, k, v, dout = (rng.standard_normal((b, n, h, d), np.float32) for _ in range(4))
    causal = arguments.causal
    o, lse = libattn.attention(q, k, v, causal=causal, return_lse=True)
    flops = 4.0 * b * h * d * n * (n + 1) / 2 if causal else 4.0 * b * h * d * n * n
    rows = []
    calls: dict[str, tuple[Callable[[], Any], float]] = {
        "libattn forward": (lambda: libattn.attention(q, k, v, causal=causal), 1.0),
        "libattn backward": (
            lambda: libattn.attention_backward(dout, q, k, v, o, lse, causal=causal),
            2.5,
        ),
    }
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed: no peer", file=sys.stderr)
    else:
        attend = torch.nn.functional.scaled_dot_product_attention
        tq, tk, tv = (torch.from_numpy(x).transpose(1, 2) for x in (q, k, v))
        with torch.no_grad():
            calls["torch forward"] = (lambda: attend(tq, tk, tv, is_causal=causal), 1.0)
    for name, (call, factor) in calls.items():
        seconds = _time(call, arguments.seconds)
        row = {
            "call": name,
            "ms": 1e3 * seconds,
            "gflops": factor * flops / seconds / 1e9,
            "batch": b,
            "len": n,
            "heads": h,
            "dim": d,
            "causal": causal,
            "threads": libattn.get_num_threads(),
        }
        rows.append(row)
        if arguments.json:
            print(json.dumps(row), flush=True)
        else:
            print(f"{name:18} {row['ms']:10.3f} ms {row['gflops']:9.1f} GFLOP/s", flush=True)
    return 0


def _info(arguments: argparse.Namespace) -> int:
    facts = libattn.info()
    if arguments.json:
        print(json.dumps(facts))
        return 0
    print(f"libattn {facts['version']}, {facts['threads']} threads, {facts['library']}")
    for backend in facts["backends"]:
        state = "usable" if backend["usable"] else "not usable"
        print(f"  {backend['name']:10} {state:11} {backend['detail']}")
    return 0


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m libattn", description=__doc__)
    parser.add_argument("--threads", type=int, default=0, help="0: all that may be used")
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("info", help="version, library file, backends")
    one.add_argument("--json", action="store_true")
    one.set_defaults(run=_info)
    one = commands.add_parser("check", help="compares with float64 NumPy; exit code 1 on failure")
    one.add_argument("--seed", type=int, default=0)
    one.set_defaults(run=_check)
    one = commands.add_parser("bench", help="times forward and backward")
    for name, value in (("batch", 1), ("len", 2048), ("heads", 8), ("dim", 64)):
        one.add_argument(f"--{name}", type=int, default=value, help=f"default {value}")
    one.add_argument("--causal", action="store_true")
    one.add_argument("--seconds", type=float, default=1.0, help="spent on each call")
    one.add_argument("--json", action="store_true", help="one JSON line a call")
    one.set_defaults(run=_bench)
    arguments = parser.parse_args(words)
    try:
        libattn.set_num_threads(arguments.threads)
        code: int = arguments.run(arguments)
    except (ValueError, MemoryError, libattn.Error) as error:
        print(f"libattn: {error}", file=sys.stderr)
        return 2
    return code


if __name__ == "__main__":
    sys.exit(main())
