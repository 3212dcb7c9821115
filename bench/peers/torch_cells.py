"""Cells of torch_cuda.py: shapes, options, counted pairs, and inputs.

Plain cells have 16384 tokens in total: dims 64, 128 and 256 with heads x dim = 2048, and GQA 32/8.
The suite lengths has batch 4 and 32 heads at every length, in bf16 and f16, so the number of tokens
grows with the length.
Options are measured at batch 4, 16 heads, length 4096, each with the plain cell of the same work.
Pair biases: n sequences of length n share a bias; its gradient is the sum over the sequences.
The suite errors uses several draws of small cells, of three kinds of numbers: normal; heavy-tailed,
Student's t with 3 degrees of freedom, where single elements are a hundred times the usual one; and
large, q times 16, where one key has most of a row's weight.
"""

from __future__ import annotations

import dataclasses
import zlib
from typing import Any

import torch

TOKENS = 16384
PLAIN_HEADS = ((64, 32, 32), (128, 16, 16), (128, 32, 8), (256, 8, 8))
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
GROWING_LENGTHS = (1024, 2048, 4096, 8192, 16384)
OPTION_DIMS = (64, 128)
DOCUMENTS = 16
PAIR_LENGTHS = (256, 512, 1024)
PAIR_DIMS = (32, 16)
# Bytes of q, k, v, o and do in all sets. An L2 of 50 MB has evicted a set before it is reused.
SETS_BYTES = 200 << 20
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


@dataclasses.dataclass(frozen=True)
class Shape:
    batch: int
    heads_q: int
    heads_kv: int
    length: int
    dim: int
    causal: bool

    def name(self) -> str:
        groups = "" if self.heads_q == self.heads_kv else f".{self.heads_kv}"
        heads = f"h{self.heads_q}{groups}"
        kind = "causal" if self.causal else "full"
        return f"b{self.batch}-{heads}-n{self.length}-d{self.dim}-{kind}"

    def scaled(self, divisor: int) -> Shape:
        return dataclasses.replace(self, length=max(16, self.length // divisor))


@dataclasses.dataclass(frozen=True)
class Cell:
    """One shape with at most one option; both passes are measured on the same inputs."""

    suite: str
    shape: Shape
    option: str = ""
    against: str = ""  # base name of the plain cell of the same work
    passes: tuple[str, ...] = ("fwd", "bwd")
    dtype: str = "bf16"
    numbers: str = "normal"  # or heavy, large

    def base(self) -> str:
        if self.suite in ("lengths", "memory", "latency", "errors"):
            kind = "" if self.numbers == "normal" else f"-{self.numbers}"
            return f"{self.suite}/{self.shape.name()}{kind}"
        if self.suite == "pair":  # as `attn bench --suite pair` names them
            return f"pair/bias-n{self.shape.length}-d{self.shape.dim}"
        if not self.option:
            return f"plain/{self.shape.name()}"
        return f"option/{self.option}-d{self.shape.dim}"

    def name(self, pass_: str) -> str:
        return f"{self.base()}/{self.dtype}/{pass_}"

    def window(self) -> int:
        return min(int(self.option.removeprefix("window")), self.shape.length - 1)

    def row_options(self, pass_: str) -> dict[str, Any]:
        """The options that are on, in the format of rows."""
        backward = {"dbias": True} if self.option == "bias-gradient" and pass_ == "bwd" else {}
        if self.option.startswith("window"):
            return {"window_left": self.window()}
        return {
            "": {},
            "softcap": {"softcap": 30.0},
            "alibi": {"alibi": True},
            "documents16": {"documents": DOCUMENTS, "kv_begin": True},
            "bias": {"bias": "hqk", "bias_type": "bf16"},
            "bias-gradient": {"bias": "hqk", "bias_type": "bf16", **backward},
            "dropout": {"dropout": 0.1},
            "sinks": {"sink": True, **({"dsink": True} if pass_ == "bwd" else {})},
            "deterministic": {"deterministic": True},
        }[self.option]

    def pairs(self) -> float:
        """Visible pairs of the batch: half of the square for plain causal, else the exact count."""
        s = self.shape
        n = s.length
        if self.option.startswith("window"):
            reach = self.window() + 1
            return s.batch * (n * reach - reach * (reach - 1) // 2)
        if self.option == "documents16":
            each = n // DOCUMENTS
            return s.batch * DOCUMENTS * (each * (each + 1) // 2)
        if not s.causal:
            return s.batch * n * n
        if not self.option or self.option == "deterministic":
            return s.batch * n * n / 2
        return s.batch * n * (n + 1) // 2

    def flop(self, pass_: str) -> float:
        per_pair = 4 * self.shape.dim if pass_ == "fwd" else 10 * self.shape.dim
        return self.pairs() * self.shape.heads_q * per_pair


def plain_cells() -> list[Cell]:
    cells = []
    for dim, heads_q, heads_kv in PLAIN_HEADS:
        for causal in (True, False):
            for length in LENGTHS:
                shape = Shape(TOKENS // length, heads_q, heads_kv, length, dim, causal)
                cells.append(Cell("plain", shape))
    return cells


def length_cells() -> list[Cell]:
    return [
        Cell("lengths", Shape(4, 32, 32, length, dim, causal), dtype=dtype)
        for dtype in ("bf16", "f16")
        for dim in (64, 128)
        for causal in (True, False)
        for length in GROWING_LENGTHS
    ]


def option_cells(divisor: int = 1) -> list[Cell]:
    cells = []
    for dim in OPTION_DIMS:
        causal, full = (Shape(4, 16, 16, 4096, dim, kind) for kind in (True, False))
        # The plain cells of the same work: documents as sequences, the same number of pairs.
        documents = Shape(4 * DOCUMENTS, 16, 16, 4096 // DOCUMENTS, dim, True)
        near = Shape(32, 16, 16, 512, dim, True)
        far = Shape(8, 16, 16, 2048, dim, True)
        plain = [Cell("options", shape) for shape in (causal, full, documents, near, far)]
        cells += plain
        for option, shape, against, passes in (
            ("window256", causal, near, ("fwd", "bwd")),
            ("window1024", causal, far, ("fwd", "bwd")),
            ("softcap", causal, causal, ("fwd", "bwd")),
            ("alibi", causal, causal, ("fwd", "bwd")),
            ("documents16", causal, documents, ("fwd", "bwd")),
            ("bias", full, full, ("fwd", "bwd")),
            ("bias-gradient", full, full, ("bwd",)),
            ("dropout", full, full, ("fwd", "bwd")),
            ("sinks", causal, causal, ("fwd", "bwd")),
            ("deterministic", causal, causal, ("bwd",)),
        ):
            base = Cell("options", against.scaled(divisor)).base()
            cells.append(Cell("options", shape, option, base, passes))
    return cells


def pair_cells(divisor: int = 1) -> list[Cell]:
    cells = []
    for dim in PAIR_DIMS:
        for n in PAIR_LENGTHS:
            shape = Shape(max(2, n // divisor), 4, 4, n, dim, False)
            cells.append(Cell("pair", shape, "bias", passes=("fwd",)))
            cells.append(Cell("pair", shape, "bias-gradient", passes=("bwd",)))
    return cells


def memory_cells() -> list[Cell]:
    return [Cell("memory", Shape(1, 8, 8, n, 64, True)) for n in (32768, 65536, 131072)]


def error_cells(dtype: str) -> list[Cell]:
    shapes = [Shape(2, 8, 8, 1024, dim, kind) for dim in (64, 128, 256) for kind in (True, False)]
    return [
        Cell("errors", shape, dtype=dtype, numbers=numbers)
        for numbers in ("normal", "heavy", "large")
        for shape in shapes
    ]


def latency_cell() -> Cell:
    """The cell whose host time `attn bench --latency` measures."""
    return Cell("latency", Shape(1, 1, 1, 64, 64, True))


def cells_of(suite: str, divisor: int, error_dtype: str = "bf16") -> list[Cell]:
    """The cells of a suite. `divisor` divides all lengths, for a trial without a GPU. The suite
    errors has cells of `error_dtype`."""
    cells = {
        "plain": plain_cells,
        "lengths": length_cells,
        "options": lambda: option_cells(divisor),
        "pair": lambda: pair_cells(divisor),
        "memory": memory_cells,
        "errors": lambda: error_cells(error_dtype),
    }[suite]()
    return [dataclasses.replace(cell, shape=cell.shape.scaled(divisor)) for cell in cells]


@dataclasses.dataclass
class Inputs:
    """Sets of q, k, v, do [b, n, h, d], used in rotation, and the tensors of the option."""

    q: list[torch.Tensor]
    k: list[torch.Tensor]
    v: list[torch.Tensor]
    dout: list[torch.Tensor]
    bias: torch.Tensor | None = None  # [1, h, n, n]
    slopes: torch.Tensor | None = None  # [h] f32
    sinks: torch.Tensor | None = None  # [h] f32
    kv_begin: torch.Tensor | None = None  # [1, n] i32

    def sets(self) -> int:
        return len(self.q)


def inputs_of(cell: Cell, device: str, draw: int = 0) -> Inputs:
    """Numbers of the cell's kind, seeded by its name and `draw`."""
    s = cell.shape
    generator = torch.Generator(device).manual_seed(zlib.crc32(cell.base().encode()) + draw)

    def normal(*shape: int, dtype: torch.dtype = DTYPES[cell.dtype]) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device, dtype=dtype)

    def drawn(*shape: int) -> torch.Tensor:
        if cell.numbers != "heavy":
            return normal(*shape)
        squares = normal(3, *shape, dtype=torch.float32).square().sum(0)
        return (normal(*shape, dtype=torch.float32) * (3 / squares).sqrt()).to(DTYPES[cell.dtype])

    set_bytes = 2 * s.batch * s.length * s.dim * (3 * s.heads_q + 2 * s.heads_kv)
    rotates = device != "cpu" and cell.suite not in ("latency", "errors")
    sets = max(2, -(-SETS_BYTES // set_bytes)) if rotates else 2
    inputs = Inputs([], [], [], [])
    for _ in range(sets):
        for list_, heads in (
            (inputs.q, s.heads_q),
            (inputs.k, s.heads_kv),
            (inputs.v, s.heads_kv),
            (inputs.dout, s.heads_q),
        ):
            list_.append(drawn(s.batch, s.length, heads, s.dim))
        if cell.numbers == "large":
            inputs.q[-1] *= 16  # exact
    if cell.option.startswith("bias"):
        inputs.bias = normal(1, s.heads_q, s.length, s.length)
    if cell.option == "alibi":
        head = torch.arange(1, s.heads_q + 1, device=device, dtype=torch.float32)
        inputs.slopes = torch.exp2(-8 * head / s.heads_q)
    if cell.option == "sinks":
        inputs.sinks = normal(s.heads_q, dtype=torch.float32)
    if cell.option == "documents16":
        each = s.length // DOCUMENTS
        row = torch.arange(s.length, device=device, dtype=torch.int32)
        inputs.kv_begin = (row // each * each)[None].contiguous()
    return inputs
