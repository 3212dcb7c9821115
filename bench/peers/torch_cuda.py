#!/usr/bin/env python3
"""Measures libattn and PyTorch's attentions on one GPU, in one process and one run.

usage: bench/peers/torch_cuda.py --out ROWS.jsonl
           [--suite plain|lengths|options|pair|memory|latency|errors|all] [--pass fwd,bwd]
           [--filter TEXT,TEXT] [--seconds 0.25] [--peers cudnn,fa2] [--no-peers]

libattn is called through its Python package (PYTHONPATH, ATTN_LIBRARY). The peers are cuDNN,
flash-attention 2 and the memory-efficient kernel through scaled_dot_product_attention, and compiled
FlexAttention; in the suite pair also trifast, if it is installed. All read the same tensors, in
bf16; the suite lengths has bf16 and f16.

libattn's results for each cell are first compared with float64 (torch_oracle.py). A cell with a
wrong result is not timed. Then all contenders alternate. Times are between CUDA events around every
call, over rotating sets of inputs so that L2 does not hold them; the median is used. Each row is
appended to --out at once (fields: bench/README.md), and a table is printed at the end.
`error.ratio_to_fa2` is the largest error divided by flash-attention 2's on the same inputs.

"all" is every suite except pair (n sequences of length n share a bias) and lengths (batch 4, 32
heads, lengths 1024 to 16384).

Suites without times of kernels:
memory   no peers: one long sequence, forward and backward through autograd; peak bytes that are not
         inputs, outputs or gradients
latency  host time of a call on small tensors, without waiting for the device: `host_us`, and
         `peers_host_us` for PyTorch's functions
errors   errors of all heads over several draws, compared with flash-attention 2's

Exit status 1 if a result is wrong or libattn could not be measured on a cell.
--device cpu --divide 32 tries everything without a GPU, on lengths divided by 32.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import gc
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from typing import Any

import libattn
import libattn.torch
import torch
import torch_cells
from torch_cells import Cell, Inputs
from torch_clock import Clock, measure
from torch_contenders import PEERS, Call, Contender, Libattn, peers_of
from torch_errors import Errors, error_of, errors_over_draws
from torch_oracle import Oracle

SUITES = ("plain", "options", "memory", "latency", "errors")
MOST_ERROR = 1.1  # limit of error.ratio_to_fa2 over several draws
HOST_CALLS = 200  # less than the capacity of a stream's queue


def machine(device: str) -> dict[str, Any]:
    commit = os.environ.get("ATTN_BENCH_COMMIT") or output_of(
        "git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude", "*"
    )
    query = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0")
    cuda = device == "cuda"
    return {
        "backend": "cuda" if cuda else "cpu",
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "driver": output_of(*query) if cuda else "",
        "threads": 1 if cuda else torch.get_num_threads(),
        "commit": commit,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version() if cuda else None,
    }


def output_of(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=pathlib.Path(__file__).parent
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def described(cell: Cell, pass_: str) -> dict[str, Any]:
    """The problem's fields of a row."""
    s = cell.shape
    return {
        "cell": cell.name(pass_),
        "pass": pass_,
        "dtype": cell.dtype,
        "batch": s.batch,
        "heads_q": s.heads_q,
        "heads_kv": s.heads_kv,
        "len_q": s.length,
        "len_kv": s.length,
        "dim_qk": s.dim,
        "dim_vo": s.dim,
        "causal": s.causal,
        "options": cell.row_options(pass_),
    }


def extra_bytes(clock: Clock, call: Call) -> int | None:
    """Bytes that a call allocates from PyTorch while it runs: its workspace."""
    if not clock.cuda:
        call()
        return None
    clock.wait()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    clock.wait()
    return torch.cuda.max_memory_allocated() - before


class Run:
    """The cells measured so far, and the failures."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.clock = Clock(args.device)
        self.machine = machine(args.device)
        self.rows: list[dict[str, Any]] = []
        self.compared: list[dict[str, Any]] = []  # rows of the suite errors
        self.failures: list[str] = []
        self.notes: dict[str, None] = {}

    def append(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self.store(row)
        print(line_of(row), flush=True)

    def store(self, row: dict[str, Any]) -> None:
        with open(self.args.out, "a") as file:
            file.write(json.dumps(row) + "\n")

    def fail(self, text: str) -> None:
        self.failures.append(text)
        print("FAILED:", text, flush=True)

    def cell(self, cell: Cell) -> None:
        """Both passes of a cell on the same inputs."""
        passes = [p for p in self.args.passes if p in cell.passes]
        passes = [p for p in passes if self.args.wanted(cell.name(p))]
        if not passes:
            return
        x = torch_cells.inputs_of(cell, self.args.device)
        ours = Libattn(cell, x)
        try:
            calls = {p: ours.calls(p) for p in ("fwd", *(p for p in passes if p == "bwd"))}
            for p in calls:
                calls[p][0]()
            self.clock.wait()
        except (libattn.Error, ValueError) as error:
            self.fail(f"{cell.base()}: {error}")
            return
        oracle = Oracle(cell, x, backward="bwd" in passes)
        wrong = [
            complaint
            for p in calls
            for name, result in ours.results(p).items()
            if (complaint := oracle.complaint(name, result))
        ]
        if wrong:
            self.fail(f"{cell.base()}: {'; '.join(wrong)}")
            return
        peers = [Peer(self, made, cell, x, oracle) for made in peers_of(cell, self.args.peers)]
        for pass_ in passes:
            self.measure(cell, pass_, ours, calls[pass_], peers, oracle)

    def measure(
        self,
        cell: Cell,
        pass_: str,
        ours: Libattn,
        calls: list[Call],
        peers: list[Peer],
        oracle: Oracle,
    ) -> None:
        contenders: dict[str, tuple[Contender, list[Call]]] = {"libattn": (ours, calls)}
        errors = {}
        for peer in peers:
            theirs = peer.calls(pass_)
            errors[peer.name] = peer.errors(pass_)
            if theirs and peer.contender is not None:
                contenders[peer.name] = (peer.contender, theirs)
        times, clocks = measure(self.clock, contenders, self.args.seconds)
        flop = cell.flop(pass_)
        s = cell.shape
        row = {
            **self.machine,
            **described(cell, pass_),
            **ours.plan(pass_),
            "us": round(times["libattn"] * 1e6, 2),
            "tflops": flop / times["libattn"] * 1e-12,
            "gbps": round(4 * s.batch * s.length * s.heads_kv * s.dim / times["libattn"] * 1e-9, 3),
            "extra_bytes": extra_bytes(self.clock, calls[0]),
            "error": error_of(oracle, ours.results(pass_), errors.get("fa2")),
            "peers": {n: flop / t * 1e-12 for n, t in times.items() if n != "libattn"},
            **({"clock_mhz": clocks} if clocks else {}),
        }
        plain = next(
            (r for r in self.rows if r["cell"] == f"{cell.against}/{cell.dtype}/{pass_}"), None
        )
        if plain is not None:
            ratio = row["tflops"] / plain["tflops"]
            row["against"] = {"cell": plain["cell"], "tflops": plain["tflops"], "ratio": ratio}
        self.append(row)

    def latency(self) -> None:
        """Host microseconds per call: the minimum over the means of several batches."""
        cell = torch_cells.latency_cell()
        x = torch_cells.inputs_of(cell, self.args.device)
        for pass_ in self.args.passes:
            times = {}
            for made in (Libattn, *peers_of(cell, self.args.peers)):
                try:
                    peer = made(cell, x)
                    with peer.turn():
                        times[made.name] = self.host_time(peer.calls(pass_)[0])
                except Exception as error:  # a peer's exception is reported, ours is a failure
                    said = f"latency: {made.name} {pass_}: {error}"
                    self.fail(said) if made is Libattn else self.notes.update({said: None})
                    continue
                print(f"host time of a call: {made.name:14s} {pass_} {times[made.name]:8.2f} us")
            if "libattn" not in times:
                continue
            row = {**self.machine, **described(cell, pass_), "host_us": times.pop("libattn")}
            self.store(row | {"peers_host_us": times})

    def host_time(self, call: Call) -> float:
        best = float("inf")
        for _ in range(10):
            self.clock.wait()
            start = time.perf_counter()
            for _ in range(HOST_CALLS):
                call()
            best = min(best, (time.perf_counter() - start) / HOST_CALLS)
        self.clock.wait()
        return round(best * 1e6, 3)

    def errors(self, cell: Cell) -> None:
        """Errors over several draws, compared with a peer's."""
        if not self.args.wanted(cell.base()):
            return
        peers = peers_of(cell, self.args.peers)
        for pass_, row in errors_over_draws(cell, self.args.device, [Libattn, *peers]).items():
            self.store({**self.machine, **described(cell, pass_), **row})
            self.compared.append(row["error"])
            of, error = f"{row['draws']} draws of {cell.name(pass_)}", row["error"]
            for name, largest in error["of"].items():
                fa2 = error.get("fa2", {}).get(name)
                peer = f", fa2 {fa2:.3e}, ratio {largest / fa2:.3f}" if fa2 else ""
                print(f"{of}: {name} at most {largest:.3e}{peer}", flush=True)
            print(f"{of}: root mean squares at most {error.get('rms_ratio_to_fa2', 0):.3f} x fa2's")
            if (ratio := error.get("ratio_to_fa2", 0)) > MOST_ERROR:
                self.fail(f"{of}: {ratio:.3f} x fa2's; {MOST_ERROR} x is accepted")

    def memory(self, cell: Cell) -> None:
        """Forward and backward through autograd: peak bytes in addition to inputs and results."""
        if not self.args.wanted(cell.base()):
            return
        x = torch_cells.inputs_of(cell, self.args.device)
        del x.q[1:], x.k[1:], x.v[1:], x.dout[1:]
        leaves = [t[0].requires_grad_() for t in (x.q, x.k, x.v)]
        o = None

        def forget() -> None:
            nonlocal o
            o = leaves[0].grad = leaves[1].grad = leaves[2].grad = None

        def call() -> None:
            nonlocal o
            forget()
            o = libattn.torch.attention(*leaves, causal=True)
            o.backward(x.dout[0])

        call()  # compiles
        seconds = statistics.median(self.clock.sample([call], 3))
        forget()
        gc.collect()
        peak = extra_bytes(self.clock, call)
        found = {"o": o.detach(), "dq": leaves[0].grad, "dk": leaves[1].grad, "dv": leaves[2].grad}
        for leaf in leaves:
            leaf.requires_grad_(False)
        oracle = Oracle(cell, x, backward=True)
        wrong = [said for name, t in found.items() if (said := oracle.complaint(name, t))]
        if wrong:
            self.fail(f"{cell.base()}: {'; '.join(wrong)}")
            return
        self.append(
            {
                **self.machine,
                **described(cell, "fwd+bwd"),
                "us": round(seconds * 1e6, 2),
                "tflops": (cell.flop("fwd") + cell.flop("bwd")) / seconds * 1e-12,
                "extra_bytes": peak and peak - sum(t.nbytes for t in found.values()),
                "error": error_of(oracle, found, None),
                "peers": {},
            }
        )


class Peer:
    """A peer on a cell; one that fails is reported once and left out."""

    def __init__(self, run: Run, made: type[Any], cell: Cell, x: Inputs, oracle: Any) -> None:
        self.run, self.cell, self.oracle = run, cell, oracle
        self.name: str = made.name
        self.contender: Any = None
        with self._may_fail("set-up"):
            self.contender = made(cell, x)

    @contextlib.contextmanager
    def _may_fail(self, what: str):  # type: ignore[no-untyped-def]
        try:
            yield
        except Exception as error:  # a peer's exception is reported, not counted as our failure
            self.contender = None
            reason = str(error).strip().split("\n")[0][:160]
            note = f"{self.name}: {self.cell.base()}: {what}: {type(error).__name__}: {reason}"
            self.run.notes[note] = None

    def calls(self, pass_: str) -> list[Call]:
        found: list[Call] = []
        if self.contender is None:
            return found
        with self._may_fail(pass_), self.contender.turn():
            made = self.contender.calls(pass_)
            made[0]()
            self.run.clock.wait()
            found = made
        return found

    def errors(self, pass_: str) -> Errors:
        """The peer's errors; none for dropout, because a peer draws another mask."""
        if self.cell.option == "dropout" or self.contender is None:
            return {}
        found: Errors = {}
        with self._may_fail(f"{pass_}: results"), self.contender.turn():
            found = self.oracle.errors(self.contender.results(pass_))
        return found


def line_of(row: dict[str, Any]) -> str:
    def ratio(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f}"

    peers = row["peers"]
    best = max(peers.values(), default=None)
    fa2 = peers.get("fa2")
    error = row["error"] or {}
    extra = row["extra_bytes"]
    columns = [
        f"{row['cell']:46s}{row['us']:11.1f}{row['tflops']:9.1f}",
        *(f"{peers[name]:8.1f}" if name in peers else f"{'-':>8s}" for name in PEERS),
        f"{ratio(fa2 and row['tflops'] / fa2):>7s}",
        f"{ratio(best and row['tflops'] / best):>7s}",
        f"{ratio(row['against']['ratio'] if 'against' in row else None):>7s}",
        f"{ratio(error.get('ratio_to_naive')):>7s}",
        f"{ratio(error.get('ratio_to_fa2')):>8s}",
        f"{ratio(error.get('rms_ratio_to_fa2')):>8s}",
        f"{'-' if extra is None else format(extra / 2**20, '.1f'):>9s}",
    ]
    return "".join(columns)


def head() -> str:
    peers = "".join(f"{name[:7]:>8s}" for name in PEERS)
    return (
        f"{'cell':46s}{'us':>11s}{'TFLOP/s':>9s}{peers}{'/fa2':>7s}{'/best':>7s}{'/plain':>7s}"
        f"{'err/nv':>7s}{'err/fa2':>8s}{'rms/fa2':>8s}{'MiB':>9s}"
    )


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--suite", default="all", choices=(*SUITES, "lengths", "pair", "all"))
    parser.add_argument("--pass", dest="passes", default="fwd,bwd", type=lambda t: t.split(","))
    parser.add_argument("--filter", default="", help="cells whose name has one of these texts")
    parser.add_argument("--seconds", type=float, default=0.25, help="of each contender and pass")
    parser.add_argument("--peers", type=lambda t: tuple(t.split(",")), help=", ".join(PEERS))
    parser.add_argument("--no-peers", dest="peers", action="store_const", const=())
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--error-dtype", default="bf16", choices=torch_cells.DTYPES)
    parser.add_argument("--divide", type=int, default=1, help="all lengths by so much")
    args = parser.parse_args(words)
    for name in args.passes:
        if name not in ("fwd", "bwd"):
            parser.error(f"--pass: found {name}; accepted fwd, bwd")
    for name in args.peers or ():
        if name not in PEERS:
            parser.error(f"--peers: found {name}; accepted {', '.join(PEERS)}")
    texts = args.filter.split(",")
    args.wanted = lambda name: any(text in name for text in texts)
    return args


def main() -> int:
    args = parsed()
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch_cuda.py: PyTorch finds no CUDA device")
    run = Run(args)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    print(json.dumps(run.machine))
    print(head(), flush=True)
    began = time.monotonic()
    for suite in SUITES if args.suite == "all" else (args.suite,):
        if suite == "latency":
            run.latency()
            continue
        for cell in torch_cells.cells_of(suite, args.divide, args.error_dtype):
            {"memory": run.memory, "errors": run.errors}.get(suite, run.cell)(cell)
            if run.clock.cuda:
                torch.cuda.empty_cache()
    print(f"\n{head()}")
    for row in run.rows:
        print(line_of(row))
    for note in run.notes:
        print("note:", note)
    for failure in run.failures:
        print("FAILED:", failure)
    errors = [*(row["error"] for row in run.rows), *run.compared]
    worst, worst_rms = (
        max((error.get(name, 0) for error in errors if error), default=0)
        for name in ("ratio_to_fa2", "rms_ratio_to_fa2")
    )
    print(
        f"{len(run.rows) + len(run.compared)} cells, {len(run.failures)} failed, "
        f"error at most {worst:.2f} x that of fa2, root mean square {worst_rms:.2f} x, "
        f"{time.monotonic() - began:.0f} s"
    )
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
