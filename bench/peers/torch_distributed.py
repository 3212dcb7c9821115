#!/usr/bin/env python3
"""Times libattn.distributed on the GPUs of one machine, compared with one GPU.

usage: torchrun --nproc-per-node N bench/peers/torch_distributed.py [--out ROWS.jsonl]
           [--length 131072] [--heads-q 32] [--heads-kv 8] [--dim 128] [--calls 3] [--profile]

A cell is a scheme, a layout, and full or causal attention, forward and backward. With 4 or more
GPUs there is also a mesh of N / 2 groups of two. The efficiency of a cell is the TFLOP/s of one of
the N GPUs divided by the TFLOP/s of one GPU that computes the complete sequence alone. Times are
those of the slowest rank: the host's clock around a call and the wait for it, median of the calls.
`peak_bytes` is the peak memory of any rank in forward and backward.
--profile adds the times of rank 0's kernels in one forward and backward (torch.profiler):
milliseconds with an NCCL kernel (`nccl_ms`), with any other kernel (`compute_ms`), and with both at
once (`both_ms`). NCCL time without compute is communication that is not overlapped.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import libattn.distributed as parallel
import libattn.torch
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch_cuda import machine

Function = Callable[[Tensor, Tensor, Tensor], Tensor]


def schemes() -> dict[str, tuple[str, bool, Function]]:
    """By name: the layout of rows, whether it is causal, and the function."""

    def ring(layout: str, causal: bool) -> Function:
        return lambda q, k, v: parallel.ring_attention(q, k, v, layout=layout, causal=causal)

    def heads(causal: bool) -> Function:
        return lambda q, k, v: parallel.all_to_all_attention(q, k, v, causal=causal)

    found = {
        "ring-contiguous": ("contiguous", False, ring("contiguous", False)),
        "ring-zigzag-causal": ("zigzag", True, ring("zigzag", True)),
        "all-to-all": ("contiguous", False, heads(False)),
        "all-to-all-causal": ("contiguous", True, heads(True)),
    }
    ranks = dist.get_world_size()
    if ranks >= 4 and ranks % 2 == 0:
        # Groups of two exchange heads; these groups form a ring.
        mesh = init_device_mesh("cuda", (ranks // 2, 2))

        def both(layout: str, causal: bool) -> Function:
            return lambda q, k, v: parallel.mesh_attention(
                q, k, v, mesh=mesh, layout=layout, causal=causal
            )

        found["mesh"] = ("contiguous", False, both("contiguous", False))
        found["mesh-zigzag-causal"] = ("zigzag", True, both("zigzag", True))
    return found


def leaves(args: argparse.Namespace, rows: int) -> list[Tensor]:
    """q, k, v and the gradient of o."""
    heads = (args.heads_q, args.heads_kv, args.heads_kv, args.heads_q)
    made = [
        torch.randn(1, rows, h, args.dim, device="cuda", dtype=torch.bfloat16, requires_grad=n < 3)
        for n, h in enumerate(heads)
    ]
    return made


def seconds_of(function: Function, x: list[Tensor], calls: int, alone: bool) -> tuple[float, float]:
    """Forward and backward: medians of the slowest rank's times."""
    found: list[list[float]] = []
    for _ in range(calls + 1):  # the first one compiles and allocates
        times = []
        for step in ("fwd", "bwd"):
            torch.cuda.synchronize()
            if not alone:
                dist.barrier()
            start = time.perf_counter()
            if step == "fwd":
                o = function(*x[:3])
            else:
                torch.autograd.grad(o, x[:3], x[3])
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        found.append(times)
    slowest = torch.tensor(found[1:], device="cuda", dtype=torch.float64)
    if not alone:
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
    forward, backward = (statistics.median(column) for column in slowest.t().tolist())
    return forward, backward


def length_of(spans: list[tuple[float, float]]) -> float:
    """The length of the union of intervals."""
    total, end = 0.0, -math.inf
    for first, last in sorted(spans):
        total += max(0.0, last - max(first, end))
        end = max(end, last)
    return total


def profile(function: Function, x: list[Tensor]) -> dict[str, dict[str, float]]:
    """By step: milliseconds with NCCL kernels, with other kernels, and with both at once."""
    found = {}
    o = None
    for step in ("fwd", "bwd"):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            dist.barrier()  # profilers start at different times
            torch.cuda.synchronize()
            if o is None:
                o = function(*x[:3])
            else:
                torch.autograd.grad(o, x[:3], x[3])
            torch.cuda.synchronize()
        spans: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        for event in seen.events():
            if event.device_type == torch.autograd.DeviceType.CUDA:
                span = (event.time_range.start, event.time_range.end)  # microseconds
                spans["nccl" in event.name].append(span)
        spans[True] = sorted(spans[True])[1:]  # leaves out the barrier's kernel
        nccl, compute = length_of(spans[True]), length_of(spans[False])
        both = nccl + compute - length_of(spans[True] + spans[False])
        times = {"nccl_ms": nccl, "compute_ms": compute, "both_ms": both}
        found[step] = {name: round(us / 1e3, 3) for name, us in times.items()}
    return found


def flop(args: argparse.Namespace, causal: bool, step: str) -> float:
    """As in bench/README.md: two products forward, five backward, half of that if causal."""
    pairs = args.length**2 * (0.5 if causal else 1.0)
    return 4.0 * pairs * args.dim * args.heads_q * (1.0 if step == "fwd" else 2.5)


def rows_of(args: argparse.Namespace, about: dict[str, Any]) -> None:
    ranks, rank = dist.get_world_size(), dist.get_rank()
    alone: dict[bool, tuple[float, float]] = {}
    if rank == 0:
        x = leaves(args, args.length)
        for causal in (False, True):
            alone[causal] = seconds_of(
                lambda q, k, v, causal=causal: libattn.torch.attention(q, k, v, causal=causal),
                x,
                args.calls,
                alone=True,
            )
        del x
        torch.cuda.empty_cache()
    dist.barrier()
    x = leaves(args, args.length // ranks)
    sizes = f"n{args.length}-h{args.heads_q}.{args.heads_kv}-d{args.dim}"
    for name, (_, causal, function) in schemes().items():
        torch.cuda.reset_peak_memory_stats()
        times = seconds_of(function, x, args.calls, alone=False)
        kernels = profile(function, x) if args.profile else {}
        peak = torch.tensor(torch.cuda.max_memory_allocated(), device="cuda")
        dist.all_reduce(peak, dist.ReduceOp.MAX)
        if rank != 0:
            continue
        for step, seconds, one in zip(("fwd", "bwd"), times, alone[causal], strict=True):
            tflops = flop(args, causal, step) / seconds / ranks / 1e12
            row = (
                about
                | {
                    "cell": f"{name}/{sizes}/{step}",
                    "ranks": ranks,
                    "seconds": round(seconds, 6),
                    "tflops_per_gpu": round(tflops, 1),
                    "tflops_alone": round(flop(args, causal, step) / one / 1e12, 1),
                    "efficiency": round(one / seconds / ranks, 3),
                    "peak_bytes": int(peak),
                }
                | kernels.get(step, {})
            )
            shown = ("cell", "tflops_per_gpu", "tflops_alone", "efficiency", *kernels.get(step, ()))
            print(*(row[name] for name in shown), flush=True)
            if args.out:
                with args.out.open("a") as out:
                    out.write(json.dumps(row) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--length", type=int, default=131072)
    parser.add_argument("--heads-q", type=int, default=32)
    parser.add_argument("--heads-kv", type=int, default=8)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--calls", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    rows_of(args, machine("cuda"))
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
