"""Microseconds per Python call on tensors so small that arithmetic is negligible.

One process measures these functions alternately: libattn.attention on NumPy arrays,
libattn.torch.attention (forward; forward and backward), PyTorch's scaled_dot_product_attention, and
the operator that torch.compile sees. Each figure is the minimum over the means of many short
batches, which removes most of the effect of other processes. Results are compared before anything
is timed.

    python bench/python_overhead.py [--threads 1] [--shape 1,8,4,16] [--json]

Limits: NumPy 20 us; torch 1.5 times scaled_dot_product_attention's plus 15 us. The exit status is 1
if one is exceeded.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable

import libattn
import libattn.torch
import torch
from alternating import best_of
from provenance import provenance
from torch.nn.functional import scaled_dot_product_attention


def cases(shape: tuple[int, ...]) -> dict[str, Callable[[], object]]:
    torch.manual_seed(0)
    q, k, v, dout = (torch.randn(shape) for _ in range(4))
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    # PyTorch's layout, [b, h, n, d], in memory too.
    theirs = [x.transpose(1, 2).contiguous() for x in (q, k, v, dout)]
    their_leaves = [x.clone().requires_grad_() for x in theirs[:3]]
    arrays = [x.numpy() for x in (q, k, v)]
    ours = libattn.torch.attention

    def both_ways() -> list[torch.Tensor]:
        o = ours(*leaves)
        return [o, *torch.autograd.grad(o, leaves, dout)]

    def their_both_ways() -> list[torch.Tensor]:
        o = scaled_dot_product_attention(*their_leaves)
        return [o, *torch.autograd.grad(o, their_leaves, theirs[3])]

    def operator_both_ways() -> list[torch.Tensor]:
        o, _ = torch.ops.libattn.forward(*leaves)
        return [o, *torch.autograd.grad(o, leaves, dout)]

    expected = [x.transpose(1, 2) for x in their_both_ways()]
    for results in (
        both_ways(),
        operator_both_ways(),
        [torch.from_numpy(libattn.attention(*arrays))],
    ):
        for x, y in zip(results, expected, strict=False):
            if not (x - y).abs().max() <= 1e-5:
                raise SystemExit("python_overhead: the functions disagree")
    return {
        "numpy": lambda: libattn.attention(*arrays),
        "sdpa forward": lambda: scaled_dot_product_attention(*theirs[:3]),
        "torch forward": lambda: ours(q, k, v),
        "sdpa forward+backward": their_both_ways,
        "torch forward+backward": both_ways,
        "operator forward+backward": operator_both_ways,
    }


def limits(found: dict[str, float]) -> dict[str, float]:
    return {
        "numpy": 20.0,
        "torch forward": 1.5 * found["sdpa forward"] + 15,
        "torch forward+backward": 1.5 * found["sdpa forward+backward"] + 15,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--shape", default="1,8,4,16", help="b,n,h,d")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--json", action="store_true", help="one JSON line")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    libattn.set_num_threads(options.threads)
    shape = tuple(int(size) for size in options.shape.split(","))
    found = best_of(cases(shape), options.rounds)
    allowed = limits(found)
    if options.json:
        row = {
            "bench": "python_overhead",
            **provenance(),
            "shape": shape,
            "threads": options.threads,
            "device": next(x["detail"] for x in libattn.info()["backends"] if x["name"] == "cpu"),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "libattn": libattn.__version__,
            "us": {name: round(us, 2) for name, us in found.items()},
            "limit_us": {name: round(us, 2) for name, us in allowed.items()},
        }
        print(json.dumps(row))
    else:
        for name, us in found.items():
            limit = f"  (limit {allowed[name]:.1f})" if name in allowed else ""
            print(f"{name:28s}{us:8.1f} us{limit}")
    return int(any(found[name] > limit for name, limit in allowed.items()))


if __name__ == "__main__":
    sys.exit(main())
