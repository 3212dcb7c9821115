"""libattn.distributed against one process: a generated list of cases and processes to run it.

usage: python distributed_cases.py RANKS... [--cover] [--only CASE] [--first CASE --count N]
                                   [--device cuda]

One process imports PyTorch and forks the ranks, which talk over gloo on the CPU. Each rank computes
the unsplit call too and compares its rows: f64 to 1e-12, others as check_close of naive.py. With
--device cuda each rank has a GPU, they talk over NCCL, and all cases are bf16; the unsplit call
runs on the CPU.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import itertools
import os
import random
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "torch"))

import libattn.distributed as distributed
import libattn.torch
import torch
import torch.distributed as dist
from naive import check_close
from torch.distributed.device_mesh import init_device_mesh

CASES = 450
UNEVEN = [
    n for n in range(5, 160) if n % 2 and n % 3
]  # rows that 2, 3, 4 and 8 ranks do not divide
device = "cpu"  # of the split calls
device_dtype = torch.bfloat16  # of all cases on cuda
LAYOUTS = ("contiguous", "zigzag", "striped")
OPTIONS = (
    *("causal", "window", "softcap", "alibi", "sinks", "bias", "mask", "documents", "lengths"),
    *("dropout", "packed", "diagonal", "cross", "uneven"),
)
# Pairs that are refused, or that mean nothing together.
APART = {
    *(("packed", other) for other in ("documents", "lengths", "cross")),
    *(("lengths", other) for other in ("cross", "diagonal")),
    ("documents", "cross"),
}


@dataclass(frozen=True)
class Case:
    """A problem: sizes, type, layout and the names of its options."""

    number: int
    scheme: str
    layout: str
    dtype: str
    sizes: dict[str, int]
    options: tuple[str, ...] = field(default=())

    def __str__(self) -> str:
        sizes = " ".join(f"{name}={size}" for name, size in self.sizes.items())
        words = (str(self.number), self.scheme, self.layout, self.dtype, sizes, *self.options)
        return " ".join(words)


def case(number: int) -> Case:
    """The first cases have every option alone in every layout, the next ones random sets of
    options. Numbers past the end of the list give lengths that no number of ranks divides."""
    chance, listed = random.Random(number), number < CASES
    layout = LAYOUTS[number % 3]
    alone = 3 * (len(OPTIONS) + 1)
    scheme = ("ring", "heads", "mesh")[number // alone % 3]
    if number < 3 * alone:
        options = OPTIONS[: number % alone // 3][-1:]
    else:
        options = tuple(chance.sample(OPTIONS, chance.randint(2, 4)))
    if layout != "contiguous":
        options = tuple(o for o in options if o != "uneven")
    kept: list[str] = []
    for option in options:
        if not any((option, o) in APART or (o, option) in APART for o in kept):
            kept.append(option)
    heads_kv = chance.choice((1, 2, 3) if scheme == "ring" else (1, 2, 3, 4, 6))
    sizes = {
        "batch": 1 if "packed" in kept else chance.choice((1, 2)),
        "length": chance.choice((1, 2, 5, 7, 16, 19, 23, 33, 50, 64) if listed else UNEVEN),
        "heads_q": heads_kv * chance.choice((1, 2, 4)),
        "heads_kv": heads_kv,
        "dim_qk": chance.choice((4, 8, 11, 16)),
        "dim_vo": chance.choice((4, 8, 16)),
    }
    keys = chance.choice((3, 17, 40) if listed else UNEVEN)
    sizes["keys"] = keys if "cross" in kept else sizes["length"]
    dtype = chance.choice(("float64", "float64", "float64", "float32", "bfloat16"))
    return Case(number, scheme, layout, dtype, sizes, tuple(kept))


POSITIONAL = {"causal", "window", "alibi", "diagonal", "cross"}
# Options that count from the start of a packed sequence and use blocks of consecutive rows.
FROM_STARTS = {"packed", "dropout", "bias", "mask"}


def cover() -> list[Case]:
    """A small subset of the list that has every option in every layout and scheme. In every layout
    it also has the pairs of options within POSITIONAL and within FROM_STARTS."""
    left = [case(number) for number in range(CASES)]
    random.Random(1).shuffle(left)
    left.sort(key=lambda one: -len(one.options))  # stable: many options first
    seen: set[Any] = set()
    chosen = []
    for one in left:
        new = {(place, o) for o in one.options for place in (one.layout, one.scheme)}
        new |= {
            (one.layout, *sorted(pair))
            for kind in (POSITIONAL, FROM_STARTS)
            for pair in itertools.combinations(kind.intersection(one.options), 2)
        }
        if not new <= seen:
            seen |= new
            chosen.append(one)
    return sorted(chosen, key=lambda one: one.number)


class Inputs:
    """The unsplit tensors and options of a case, the same on all ranks, in float64."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.generator = torch.Generator().manual_seed(case.number)
        s = case.sizes
        rows = ((s["length"], s["heads_q"]), (s["keys"], s["heads_kv"]), (s["keys"], s["heads_kv"]))
        dims = (s["dim_qk"], s["dim_qk"], s["dim_vo"])
        batch = () if "packed" in case.options else (s["batch"],)
        self.leaves = [self.normal(*batch, *r, d) for r, d in zip(rows, dims, strict=True)]
        self.dout = self.normal(*batch, *rows[0], s["dim_vo"])
        self.dlse = self.normal(*batch, s["heads_q"], s["length"])
        self.options: dict[str, Any] = {}
        for name in case.options:
            getattr(self, "add_" + name)(random.Random(case.number), s)

    def normal(self, *shape: int) -> torch.Tensor:
        made = torch.randn(*shape, generator=self.generator, dtype=torch.float64)
        return made.to(torch.bfloat16).to(torch.float64)  # all types hold the same values

    def add_causal(self, chance: Any, s: Any) -> None:
        self.options["causal"] = True

    def add_window(self, chance: Any, s: Any) -> None:
        sides = ((0, 0), (3, 2), (7, None), (None, 4), (1, 12), (20, 3))
        self.options["window"] = chance.choice(sides)

    def add_softcap(self, chance: Any, s: Any) -> None:
        self.options["softcap"] = 1.5

    def add_alibi(self, chance: Any, s: Any) -> None:
        shape = chance.choice(((s["heads_q"],), (s["batch"], s["heads_q"])))
        if "packed" in self.case.options:  # whose sequences are not the batch of q
            shape = shape[-1:]
        self.options["alibi_slopes"] = self.normal(*shape).abs()

    def add_sinks(self, chance: Any, s: Any) -> None:
        self.options["sinks"] = self.normal(s["heads_q"])

    def pairs(self, chance: Any, s: Any) -> tuple[int, ...]:
        sequences = PACKED if "packed" in self.case.options else s["batch"]
        sizes = (sequences, s["heads_q"], s["length"], s["keys"])
        return tuple(chance.choice((1, size, size)) for size in sizes)

    def add_bias(self, chance: Any, s: Any) -> None:
        self.options["bias"] = self.normal(*self.pairs(chance, s))

    def add_mask(self, chance: Any, s: Any) -> None:
        self.options["mask"] = self.normal(*self.pairs(chance, s)) > -0.5

    def add_documents(self, chance: Any, s: Any) -> None:
        places = torch.arange(s["length"], dtype=torch.int32)
        size = chance.choice((1, 4, 9))
        begin = (places // size * size)[None].repeat(chance.choice((1, s["batch"])), 1)
        self.options["kv_begin"] = begin
        if chance.random() < 0.5:
            self.options["kv_end"] = begin + size - chance.choice((0, 1))

    def add_lengths(self, chance: Any, s: Any) -> None:
        lengths = [chance.randint(0, s["length"]) for _ in range(s["batch"])]
        self.options["len_q"] = self.options["len_kv"] = torch.tensor(lengths, dtype=torch.int32)

    def add_dropout(self, chance: Any, s: Any) -> None:
        self.options |= {"dropout_p": 0.25, "seed": chance.getrandbits(63), "offset": 7}

    def add_packed(self, chance: Any, s: Any) -> None:
        cuts = sorted(chance.randint(0, s["length"]) for _ in range(PACKED + 1))
        if chance.random() < 0.7:  # else some rows are in no sequence
            cuts[0], cuts[-1] = 0, s["length"]
        bounds = torch.tensor(cuts, dtype=torch.int32)
        self.options |= {"cu_len_q": bounds, "cu_len_kv": bounds, "max_len_q": s["length"]}
        self.options["max_len_kv"] = s["length"]

    def add_diagonal(self, chance: Any, s: Any) -> None:
        self.options["diagonal"] = chance.choice(("top_left", -3, 2))

    def add_cross(self, chance: Any, s: Any) -> None:
        """The numbers of keys and queries differ; `sizes` handles this."""

    def add_uneven(self, chance: Any, s: Any) -> None:
        """Ranks have parts of any size; `lengths` handles this."""

    def lengths(self, rows: int, ranks: int) -> list[int] | None:
        """The parts of a contiguous layout that differ, some of them empty."""
        if "uneven" not in self.case.options:
            return None
        chance = random.Random(rows)
        cuts = sorted(chance.randint(0, rows) for _ in range(ranks - 1))
        return [b - a for a, b in zip([0, *cuts], [*cuts, rows], strict=True)]


PACKED = 4  # sequences of a packed batch
LEARNED = ("bias", "sinks")
# Dimension of the rows of q in each option that has rows of q.
ROWS = {"bias": 2, "mask": 2, "kv_begin": 1, "kv_end": 1}


def typed(name: str, x: Any, dtype: torch.dtype) -> Any:
    """An option, converted to the type that it must have next to inputs of `dtype`."""
    if not isinstance(x, torch.Tensor) or not x.is_floating_point():
        return x
    if name in ("sinks", "alibi_slopes") and dtype != torch.float64:
        return x.to(torch.float32)
    return x.to(dtype)


def results(call: Any, inputs: list[Any], options: dict[str, Any], dout: Any, dlse: Any) -> Any:
    """{name: tensor} of o, lse and all gradients."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    options = dict(options)
    learned = [name for name in LEARNED if name in options]
    for name in learned:
        options[name] = options[name].detach().clone().requires_grad_()
    o, lse = call(*leaves, return_lse=True, **options)
    hidden = torch.isneginf(lse)  # whose dlse is ignored, and would make the sum NaN
    loss = (o * dout).sum() + (lse.masked_fill(hidden, 0) * dlse.masked_fill(hidden, 0)).sum()
    found = torch.autograd.grad(loss, [*leaves, *(options[name] for name in learned)])
    names = ("dq", "dk", "dv", *("d" + name for name in learned))
    return {"o": o, "lse": lse, **dict(zip(names, found, strict=True))}


def unsplit(inputs: Inputs, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    options = {name: typed(name, x, dtype) for name, x in inputs.options.items()}
    leaves = [x.to(dtype) for x in inputs.leaves]
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    dout, dlse = inputs.dout.to(dtype), inputs.dlse.to(wide)
    return results(libattn.torch.attention, leaves, options, dout, dlse)


@functools.cache
def mesh(ranks: int) -> Any:
    """(ring, heads), with at most 2 ranks that exchange heads."""
    return init_device_mesh(device, (ranks // 2, 2) if ranks % 2 == 0 else (ranks, 1))


class Split:
    """How a rank's part of a case is cut and computed."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs, self.layout = inputs, inputs.case.layout
        self.ranks = dist.get_world_size()
        self.group = None
        self.packed = "packed" in inputs.case.options
        self.scheme = inputs.case.scheme
        if self.scheme == "heads" and inputs.case.sizes["heads_q"] < self.ranks:
            self.scheme = "mesh"
        if self.scheme == "mesh" and inputs.case.sizes["heads_q"] < 2:
            self.scheme = "ring"
        if self.scheme == "mesh":
            self.group = mesh(self.ranks)
        if self.scheme == "heads":
            self.layout = "contiguous"

    def cut(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        lengths = None
        if self.scheme != "mesh":
            lengths = self.inputs.lengths(x.size(dim), self.ranks)
        return distributed.shard(x, dim, layout=self.layout, lengths=lengths, group=self.group)

    def attention(self, *tensors: Any, **options: Any) -> Any:
        if self.scheme == "heads":
            return distributed.all_to_all_attention(*tensors, **options)
        if self.scheme == "mesh":
            options |= {"layout": self.layout, "mesh": self.group}
            return distributed.mesh_attention(*tensors, **options)
        return distributed.ring_attention(*tensors, layout=self.layout, **options)

    def part(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """This rank's rows of a result, or its share of a gradient that the ranks sum."""
        if name in ("o", "dq", "dk", "dv"):
            return self.cut(x, 0 if self.packed else 1)
        if name == "lse":
            return self.cut(x, x.dim() - 1)
        return self.cut(x, 2) if name == "dbias" and not self.is_complete(name, x) else x

    def is_complete(self, name: str, x: torch.Tensor) -> bool:
        """Whether each rank passes an option with rows of q completely, not only its own rows."""
        return ROWS[name.removeprefix("d")] == 2 and (self.packed or x.size(2) == 1)

    def run(self, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        inputs = self.inputs
        rows = 0 if self.packed else 1
        leaves = [self.cut(x.to(dtype), rows).to(device) for x in inputs.leaves]
        options = {}
        for name, x in inputs.options.items():
            x = typed(name, x, dtype)
            if name in ROWS and not self.is_complete(name, x):
                x = self.cut(x, ROWS[name])
            options[name] = x.to(device) if isinstance(x, torch.Tensor) else x
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        dout = self.cut(inputs.dout.to(dtype), rows).to(device)
        dlse = self.cut(inputs.dlse.to(wide), inputs.dlse.dim() - 1).to(device)
        found = results(self.attention, leaves, options, dout, dlse)
        for name in ("dbias", "dsinks"):
            # Each rank has the sum over its queries.
            if name in found and (
                name == "dsinks" or self.is_complete(name, inputs.options["bias"])
            ):
                dist.all_reduce(found[name])
        return {name: x.cpu() for name, x in found.items()}


def check(case: Case) -> None:
    inputs = Inputs(case)
    dtype = getattr(torch, case.dtype) if device == "cpu" else device_dtype
    want = unsplit(inputs, torch.float64)
    rough = unsplit(inputs, dtype) if dtype != torch.float64 else want
    split = Split(inputs)
    for name, got in split.run(dtype).items():
        expected, near = (split.part(name, x[name]) for x in (want, rough))
        what = f"case {case}: {name} of rank {dist.get_rank()}"
        if dtype != torch.float64:
            check_close(got, expected, near, what, dtype)
            continue
        assert got.shape == expected.shape, f"{what}: {got.shape} instead of {expected.shape}"
        expected = expected.detach()
        error = torch.where(got == expected, 0.0, (got - expected).abs())  # equal infinities too
        size = (
            torch.where(torch.isinf(expected), 0.0, expected.abs()).amax() if error.numel() else 0
        )
        assert bool((error <= 1e-12 * (1 + size)).all()), f"{what}: off by {error.max()}"


def join(rank: int, ranks: int, store: str, seconds: float, backend: str = "gloo") -> None:
    """Makes this process, with one thread, a rank of the default group."""
    torch.set_num_threads(1)
    libattn.set_num_threads(1)
    dist.init_process_group(
        backend,
        rank=rank,
        world_size=ranks,
        init_method=f"file://{store}",
        timeout=datetime.timedelta(seconds=seconds),
    )


def leave() -> None:
    """Waits for the other ranks; the process then ends.

    The groups are not destroyed: with PyTorch 2.6 and gloo that sometimes waits forever, also in a
    program without libattn (3 of 4 processes within 12 rounds; PyTorch 2.15: none in 400 rounds).
    """
    dist.barrier()


def run_rank(rank: int, ranks: int, store: str, cases: list[Case]) -> int:
    if device == "cuda":
        torch.cuda.set_device(rank)
    join(rank, ranks, store, 20, "gloo" if device == "cpu" else "nccl")
    failed = 0
    for one in cases:
        try:
            check(one)
        except Exception:
            failed += 1
            traceback.print_exc()
            if failed > 5:
                break
    leave()
    return failed


def fork(ranks: int, target: Any) -> list[int]:
    """Exit statuses of `target(rank, store)` in forked processes; each ends with this one's.

    Forking shares the import of PyTorch, which takes longer than the cases.
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(ranks):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    status = min(target(rank, str(Path(folder) / "store")), 100)
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(status)
            children.append(child)
        return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("ranks", type=int, nargs="+")
    parser.add_argument("--cover", action="store_true", help="few cases with every option")
    parser.add_argument("--only", type=int)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16",
                        help="of all cases on cuda")  # fmt: skip
    parser.add_argument("--first", type=int, default=0, help=f"case; from {CASES} on: random ones")
    parser.add_argument("--count", type=int, default=CASES)
    options = parser.parse_args()
    global device, device_dtype
    device, device_dtype = options.device, getattr(torch, options.dtype)
    numbers = range(options.first, options.first + options.count)
    if options.only is not None:
        numbers = range(options.only, options.only + 1)
    cases = cover() if options.cover else [case(number) for number in numbers]
    failed = 0
    for ranks in options.ranks:
        began = time.perf_counter()
        statuses = fork(ranks, lambda rank, store, ranks=ranks: run_rank(rank, ranks, store, cases))
        seconds = time.perf_counter() - began
        failed += any(statuses)
        outcome = f"FAILED: exit statuses {statuses}" if any(statuses) else "passed"
        print(f"{len(cases)} cases on {ranks} ranks in {seconds:.1f} s: {outcome}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
