"""The contenders of torch_cuda.py: libattn through its Python package, and PyTorch's kernels.

A contender provides, for a cell and its inputs, one call per set and pass. All read the same memory
[b, n, h, d]; PyTorch's functions read it as views [b, h, n, d], so no contender pays for a copy.
The backward is timed alone: libattn's reads existing outputs, PyTorch's runs on a retained graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import libattn
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch_cells import DOCUMENTS, Cell, Inputs
from torch_oracle import DROPOUT, OFFSET, SEED, SOFTCAP

Call = Callable[[], object]


class Contender:
    """Calls by pass, one per set, and the results of set 0."""

    name = ""

    def __init__(self, cell: Cell, x: Inputs) -> None:
        self.cell = cell
        self.x = x

    def calls(self, pass_: str) -> list[Call]:
        raise NotImplementedError

    def results(self, pass_: str) -> dict[str, torch.Tensor]:
        """The results of set 0: tensors [b, n, h, d] (lse [b, h, n]) by name."""
        raise NotImplementedError

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """A context for its calls. Entering and leaving it is not timed."""
        yield


class Libattn(Contender):
    name = "libattn"

    def __init__(self, cell: Cell, x: Inputs) -> None:
        super().__init__(cell, x)
        self.device = "cuda" if x.q[0].is_cuda else "host"
        given = {
            "bias": x.bias,
            "alibi_slopes": x.slopes,
            "sinks": x.sinks,
            "kv_begin": x.kv_begin,
        }
        self.options: dict[str, Any] = {n: t for n, t in given.items() if t is not None}
        if cell.shape.causal:
            self.options["causal"] = True
        if cell.option.startswith("window"):
            self.options["window"] = (cell.window(), None)
        if cell.option == "softcap":
            self.options["softcap"] = SOFTCAP
        if cell.option == "dropout":
            self.options.update(dropout_p=DROPOUT, seed=SEED, offset=OFFSET)
        if cell.option == "deterministic":
            self.options["deterministic"] = True
        self.forwards = [
            {
                "out": torch.empty_like(q),
                "lse_out": q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32),
            }
            for q in x.q
        ]
        self.gradients: list[dict[str, torch.Tensor]] = []

    def _forward(self, at: int) -> object:
        x = self.x
        return libattn.attention(x.q[at], x.k[at], x.v[at], **self.forwards[at], **self.options)

    def _backward(self, at: int) -> object:
        x, out = self.x, self.forwards[at]
        return libattn.attention_backward(
            x.dout[at],
            x.q[at],
            x.k[at],
            x.v[at],
            out["out"],
            out["lse_out"],
            want=("dq",),  # in addition to the given ones
            **self.gradients[at],
            **self.options,
        )

    def calls(self, pass_: str) -> list[Call]:
        sets = range(self.x.sets())
        if pass_ == "fwd":
            return [lambda at=at: self._forward(at) for at in sets]
        for at in sets:
            self._forward(at)
            made = {"dq": self.x.q[at], "dk": self.x.k[at], "dv": self.x.v[at]}
            if self.cell.option == "bias-gradient":
                made["dbias"] = self.x.bias
            if self.x.sinks is not None:
                made["dsink"] = self.x.sinks
            self.gradients.append({n: torch.empty_like(t) for n, t in made.items()})
        return [lambda at=at: self._backward(at) for at in sets]

    def results(self, pass_: str) -> dict[str, torch.Tensor]:
        if pass_ == "fwd":
            return {"o": self.forwards[0]["out"], "lse": self.forwards[0]["lse_out"]}
        return self.gradients[0]

    def problem(self) -> str:
        """The problem as text, for explain."""
        return libattn.describe(self.x.q[0], self.x.k[0], self.x.v[0], **self.options)

    def plan(self, pass_: str) -> dict[str, str]:
        """The kernel and its configuration, parsed from the output of explain."""
        long = {"fwd": "forward", "bwd": "backward"}[pass_]
        text = libattn.explain(self.problem(), long, self.device)
        lines = {key: value for key, _, value in (one.partition(": ") for one in text.split("\n"))}
        words = lines.get("plan", "").split()
        kernel = next((w.removeprefix("kernel=") for w in words if w.startswith("kernel=")), "")
        return {"kernel": kernel, "config": lines.get("config", "")}


class Peer(Contender):
    """A function o = attend(q, k, v) of PyTorch on [b, h, n, d], and its retained graphs."""

    def __init__(self, cell: Cell, x: Inputs) -> None:
        super().__init__(cell, x)
        self.leaves = [
            [t[at].transpose(1, 2).detach().requires_grad_() for t in (x.q, x.k, x.v)]
            for at in range(x.sets())
        ]
        self.bias = None
        if x.bias is not None:
            self.bias = x.bias.detach().requires_grad_(cell.option == "bias-gradient")
        self.graphs: list[torch.Tensor] = []

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def _forward(self, at: int) -> torch.Tensor:
        with torch.no_grad():
            return self.attend(*self.leaves[at])

    def _backward(self, at: int) -> Any:
        inputs = [*self.leaves[at], *([self.bias] if self.cell.option == "bias-gradient" else [])]
        dout = self.x.dout[at].transpose(1, 2)
        return torch.autograd.grad(self.graphs[at], inputs, dout, retain_graph=True)

    def calls(self, pass_: str) -> list[Call]:
        sets = range(self.x.sets())
        if pass_ == "fwd":
            return [lambda at=at: self._forward(at) for at in sets]
        self.graphs = [self.attend(*leaves) for leaves in self.leaves]
        return [lambda at=at: self._backward(at) for at in sets]

    def results(self, pass_: str) -> dict[str, torch.Tensor]:
        if pass_ == "fwd":
            return {"o": self._forward(0).transpose(1, 2)}
        found = self._backward(0)
        named = {n: t.transpose(1, 2) for n, t in zip(("dq", "dk", "dv"), found, strict=False)}
        heads = self.cell.shape.heads_kv
        for name in ("dk", "dv"):
            if named[name].shape[2] != heads:  # a gradient of expanded heads
                named[name] = named[name].unflatten(2, (heads, -1)).float().sum(3)
        return named | ({"dbias": found[3]} if len(found) > 3 else {})


class Sdpa(Peer):
    """scaled_dot_product_attention, restricted to one backend."""

    backend = SDPBackend.MATH
    options: frozenset[str] = frozenset()

    def __init__(self, cell: Cell, x: Inputs) -> None:
        super().__init__(cell, x)
        self.grouped = cell.shape.heads_q != cell.shape.heads_kv
        if not self.grouped:
            return
        # If a backend does not support grouped heads, the expansion is not timed.
        try:
            with self.turn():
                self._forward(0)
        except RuntimeError:
            self.grouped = False
            group = cell.shape.heads_q // cell.shape.heads_kv
            self.leaves = [
                [q, *(t.detach().repeat_interleave(group, 1).requires_grad_() for t in others)]
                for q, *others in self.leaves
            ]

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=self.bias,
            dropout_p=DROPOUT if self.cell.option == "dropout" else 0.0,
            is_causal=self.cell.shape.causal,
            **({"enable_gqa": True} if self.grouped else {}),
        )

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        with sdpa_kernel(self.backend):
            yield


class Cudnn(Sdpa):
    name = "cudnn"
    backend = SDPBackend.CUDNN_ATTENTION
    options = frozenset(("", "bias", "dropout"))


class FlashAttention2(Sdpa):
    name = "fa2"
    backend = SDPBackend.FLASH_ATTENTION
    options = frozenset(("", "dropout", "deterministic"))

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        torch.use_deterministic_algorithms(self.cell.option == "deterministic")
        torch.utils.deterministic.fill_uninitialized_memory = False  # filling would be timed
        try:
            with super().turn():
                yield
        finally:
            torch.use_deterministic_algorithms(False)


class MemoryEfficient(Sdpa):
    name = "mem_efficient"
    backend = SDPBackend.EFFICIENT_ATTENTION
    options = frozenset(("", "bias", "bias-gradient", "dropout"))


class Flex(Peer):
    """flex_attention, compiled; creating the block mask is not timed."""

    name = "flex"
    options = frozenset(
        (
            *("", "window256", "window1024", "softcap", "alibi", "documents16"),
            *("bias", "bias-gradient"),
        )
    )

    def __init__(self, cell: Cell, x: Inputs) -> None:
        super().__init__(cell, x)
        import torch._dynamo
        import torch._functorch.config as functorch
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        functorch.donated_buffer = False  # graphs are retained
        torch._dynamo.reset()
        n = cell.shape.length
        mask = self._mask()
        self.block_mask = (
            None
            if mask is None
            else create_block_mask(mask, None, None, n, n, device=str(x.q[0].device))
        )
        self.score = self._score()
        self.compiled = torch.compile(flex_attention, dynamic=False)

    def _mask(self) -> Callable[..., torch.Tensor] | None:
        if not self.cell.shape.causal:
            return None
        if self.cell.option.startswith("window"):
            left = self.cell.window()
            return lambda b, h, i, j: (j <= i) & (i - j <= left)
        if self.cell.option == "documents16":
            row = torch.arange(self.cell.shape.length, device=self.x.q[0].device)
            document = row // (self.cell.shape.length // DOCUMENTS)
            return lambda b, h, i, j: (j <= i) & (document[i] == document[j])
        return lambda b, h, i, j: j <= i

    def _score(self) -> Callable[..., torch.Tensor] | None:
        option, slopes, bias = self.cell.option, self.x.slopes, self.bias
        if option == "softcap":
            return lambda s, b, h, i, j: SOFTCAP * torch.tanh(s / SOFTCAP)
        if slopes is not None:
            return lambda s, b, h, i, j: s - slopes[h] * (i - j).abs()
        if bias is not None:
            return lambda s, b, h, i, j: s + bias[0, h, i, j]
        return None

    def _forward(self, at: int) -> torch.Tensor:
        # Records a graph, as the backward needs one, so that one compilation serves both passes.
        return self.attend(*self.leaves[at]).detach()

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        o: torch.Tensor = self.compiled(
            q,
            k,
            v,
            score_mod=self.score,
            block_mask=self.block_mask,
            enable_gqa=self.cell.shape.heads_q != self.cell.shape.heads_kv,
        )
        return o


class Trifast(Peer):
    """trifast's triangle attention (Triton), if it is installed. Its kernels read contiguous
    tensors [1, h, sequence, row, d]. It receives those, because otherwise its copies would be
    timed."""

    name = "trifast"
    options = frozenset(("bias", "bias-gradient"))

    def __init__(self, cell: Cell, x: Inputs) -> None:
        super().__init__(cell, x)
        import trifast

        self.attention = trifast.triangle_attention
        self.leaves = [
            [self._own(t[at]).requires_grad_() for t in (x.q, x.k, x.v)] for at in range(x.sets())
        ]
        self.dout = [self._own(t) for t in x.dout]
        n = cell.shape.length
        self.hidden = torch.zeros((1, n, n), dtype=torch.bool, device=x.q[0].device)

    @staticmethod
    def _own(t: torch.Tensor) -> torch.Tensor:
        return t.permute(2, 0, 1, 3)[None].contiguous()

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        o: torch.Tensor = self.attention(q, k, v, self.bias, self.hidden)
        return o

    def _backward(self, at: int) -> Any:
        inputs = [*self.leaves[at], *([self.bias] if self.cell.option == "bias-gradient" else [])]
        return torch.autograd.grad(self.graphs[at], inputs, self.dout[at], retain_graph=True)

    def results(self, pass_: str) -> dict[str, torch.Tensor]:
        found = [self._forward(0)] if pass_ == "fwd" else self._backward(0)
        names = ("o",) if pass_ == "fwd" else ("dq", "dk", "dv", "dbias")
        return {
            name: t if name == "dbias" else t[0].permute(1, 2, 0, 3)
            for name, t in zip(names, found, strict=False)
        }


PEERS: dict[str, type[Any]] = {
    peer.name: peer for peer in (Cudnn, FlashAttention2, Flex, MemoryEfficient, Trifast)
}
# FlexAttention and the memory-efficient kernel are much slower where the others support the cell.
USUAL = {
    "plain": ("cudnn", "fa2"),
    "lengths": ("cudnn", "fa2"),
    "options": ("cudnn", "fa2", "flex", "mem_efficient"),
    "pair": ("mem_efficient", "trifast"),
    "memory": (),
    "latency": ("fa2",),
    "errors": ("fa2", "cudnn"),
}


def peers_of(cell: Cell, wanted: tuple[str, ...] | None) -> list[type[Any]]:
    """Peers that support the cell's option: the requested ones, or the default ones."""
    names = USUAL[cell.suite] if wanted is None else wanted
    if wanted is None and cell.suite == "options" and not cell.option:
        names = USUAL["plain"]
    return [PEERS[name] for name in names if cell.option in PEERS[name].options]
