#!/usr/bin/env python3
"""Times one query on a cache as replays of CUDA graphs: libattn, cuDNN and flash-attention 2.

usage: bench/peers/torch_decode.py [--out ROWS.jsonl] [--splits] [--filter TEXT,TEXT]
           [--seconds 0.05] [--warm]

A graph has one call for each of several sets of tensors. Together they have four times the size of
L2 (at most 64 sets), so no call finds its cache in L2. The time of a call is that of a replay
divided by the number of sets, so it includes neither host time nor events. The contenders
alternate, and the median of all replays is used. Results are compared with the peers' before
anything is timed.

--warm calls with one set of tensors again and again, so that L2 holds caches that fit.

--splits also times libattn with other numbers of splits (split_keys), to check what its plan chose.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import statistics
import sys
from collections.abc import Callable

import libattn.torch
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch_cuda import machine

ROUNDS = 5
MOST_SETS = 64
WARM_CALLS = 8  # of the one set, in a graph
# Both kernels round their bf16 results once (2^-8), and their probabilities. With 1024 keys, the
# latter changes an o near 0 by up to 2^-10.
RELATIVE_ERROR, ABSOLUTE_ERROR = 1.2e-2, 1e-3
SPLITS = (1, 2, 3, 4, 6, 8, 11, 12, 16, 20, 24, 32, 33, 48, 64, 128)

# dim, heads_q, heads_kv, batch, keys
CELLS = [
    (dim, heads_q, heads_kv, batch, keys)
    for dim, heads_q, heads_kv in ((128, 32, 8), (128, 32, 32), (64, 32, 8))
    for batch, keys in (
        (1, 4096),
        (1, 32768),
        (1, 65536),
        (1, 131072),
        (16, 4096),
        (64, 4096),
        (128, 1024),
        (128, 8192),
    )
]

Sets = list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
Function = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def ours(split_keys: int | None = None) -> Function:
    return lambda q, k, v: libattn.torch.decode(q, k, v, split_keys=split_keys)


def peer(backend: SDPBackend) -> Function:
    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        heads_first = [x.transpose(1, 2) for x in (q, k, v)]
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(*heads_first, enable_gqa=True).transpose(1, 2)

    return call


class Replays:
    """A graph of one call per set."""

    def __init__(self, function: Function, sets: Sets) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())  # which fills the sets
        with torch.cuda.stream(stream):
            self.first = function(*sets[0])  # compiles, and allocates memory that it keeps
        torch.cuda.synchronize()
        self.calls = len(sets)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.results = [function(*one) for one in sets]
        self.seconds: list[float] = []
        self.graph.replay()
        torch.cuda.synchronize()

    def sample(self, seconds: float) -> None:
        """Replays for about `seconds` and stores the mean seconds of a call."""
        replays = 2
        while True:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(replays):
                self.graph.replay()
            end.record()
            torch.cuda.synchronize()
            took = start.elapsed_time(end) / 1e3
            if took > seconds or replays >= 1000:
                self.seconds.append(took / replays / self.calls)
                return
            replays = min(1000, max(2 * replays, math.ceil(replays * seconds / took)))

    def microseconds(self) -> float:
        return 1e6 * statistics.median(self.seconds)


def sets_of(cell: tuple[int, ...], warm: bool) -> Sets:
    dim, heads_q, heads_kv, batch, keys = cell
    bytes_of_set = 4 * batch * keys * heads_kv * dim
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    count = max(2, min(MOST_SETS, math.ceil(4 * l2 / bytes_of_set)))

    def random(heads: int, length: int) -> torch.Tensor:
        return torch.randn(batch, length, heads, dim, device="cuda", dtype=torch.bfloat16)

    def one_set() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return random(heads_q, 1), random(heads_kv, keys), random(heads_kv, keys)

    return [one_set()] * WARM_CALLS if warm else [one_set() for _ in range(count)]


def name_of(cell: tuple[int, ...], warm: bool) -> str:
    dim, heads_q, heads_kv, batch, keys = cell
    suite = "decode-replay-warm" if warm else "decode-replay"
    return f"{suite}/b{batch}-h{heads_q}.{heads_kv}-n{keys}-d{dim}/bf16/decode"


def measure(cell: tuple[int, ...], args: argparse.Namespace) -> dict[str, object]:
    dim, heads_q, heads_kv, batch, keys = cell
    sets = sets_of(cell, args.warm)
    functions: dict[str, Function] = {"libattn": ours()}
    functions["cudnn"] = peer(SDPBackend.CUDNN_ATTENTION)
    functions["fa2"] = peer(SDPBackend.FLASH_ATTENTION)
    if args.splits:
        for splits in SPLITS:
            if keys // splits >= 64 and splits * batch * heads_kv <= 4096:
                functions[f"splits {splits}"] = ours(-(-keys // splits))
    replays: dict[str, Replays] = {}
    for name, function in functions.items():
        try:
            replays[name] = Replays(function, sets)
        except RuntimeError as error:
            if name == "libattn":
                raise
            print(f"{name}: {str(error).splitlines()[0]}", file=sys.stderr)
    for name, made in replays.items():
        if name == "libattn" and not torch.equal(made.first, made.results[0]):
            raise SystemExit(f"{cell}: a replay of libattn differs from the call")
        # Peers may add splits in another order in a replay.
        expected = replays["libattn"].first.float()
        for result in (made.first, made.results[0]):
            if not torch.allclose(result.float(), expected, RELATIVE_ERROR, ABSOLUTE_ERROR):
                raise SystemExit(f"{cell}: libattn and {name} differ")
    for _ in range(ROUNDS):
        for made in replays.values():
            made.sample(args.seconds)
    bytes_read = 4 * batch * keys * heads_kv * dim
    times = {name: round(made.microseconds(), 3) for name, made in replays.items()}
    return {
        "cell": name_of(cell, args.warm),
        "dtype": "bf16",
        "pass": "decode",
        "batch": batch,
        "heads_q": heads_q,
        "heads_kv": heads_kv,
        "len_q": 1,
        "len_kv": keys,
        "dim_qk": dim,
        "dim_vo": dim,
        "us": times.pop("libattn"),
        "gbps": round(bytes_read / replays["libattn"].microseconds() / 1e3, 1),
        "peers": {name: us for name, us in times.items() if name in ("cudnn", "fa2")},
        "splits_us": {name.split()[1]: us for name, us in times.items() if "splits" in name},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--splits", action="store_true")
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--filter", default="")
    parser.add_argument("--seconds", type=float, default=0.05)
    args = parser.parse_args()
    about = machine("cuda")
    for cell in CELLS:
        name = name_of(cell, args.warm)
        if not any(text in name for text in args.filter.split(",")):
            continue
        with torch.no_grad():
            row = about | measure(cell, args)
        print(name, row["us"], row["gbps"], row["peers"], row["splits_us"], flush=True)
        if args.out:
            with args.out.open("a") as out:
                out.write(json.dumps(row) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
