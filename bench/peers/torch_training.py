#!/usr/bin/env python3
"""Training steps of GPT-2 small in bf16 on one GPU, by kind of attention: tokens/s, memory, losses.

usage: bench/peers/torch_training.py [--out ROWS.jsonl] [--attention libattn,cudnn,flash,eager]
           [--shapes 32x1024,8x4096] [--compile] [--steps 10] [--loss-steps 200]

The model is GPT-2 small (Radford et al. 2019: 12 layers, 12 heads of 64, learned positions, tied
embeddings; vocabulary rounded up to 50304) under autocast, with AdamW. A row has the median time of
a step, after three that are not timed, and the peak of allocated memory. libattn reads q, k and v
as the projection wrote them, [b, n, h, d]; PyTorch's kernels read them as views [b, h, n, d].

--loss-steps trains with each kind from the same initial weights on the same text (this repository's
sources, as bytes), at batch 4 and length 1024, and stores the losses.
--device cpu --tiny tries everything without a GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import statistics
import sys
import time
from collections.abc import Callable

import libattn.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch_cuda import machine

ROOT = pathlib.Path(__file__).resolve().parents[2]
UNTIMED = 3
LOSS_SHAPE = (4, 1024)

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def sdpa(backend: SDPBackend) -> Attend:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    return attend


def eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Plain attention, which stores all scores."""
    rows = q.shape[1]
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(q.shape[3])
    hidden = torch.ones(rows, rows, dtype=torch.bool, device=q.device).triu(1)
    weights = scores.masked_fill(hidden, -math.inf).softmax(-1).to(v.dtype)
    return torch.einsum("bhij,bjhd->bihd", weights, v)


ATTENTION: dict[str, Attend] = {
    "libattn": lambda q, k, v: libattn.torch.attention(q, k, v, causal=True),
    "cudnn": sdpa(SDPBackend.CUDNN_ATTENTION),
    "flash": sdpa(SDPBackend.FLASH_ATTENTION),
    "eager": eager,
}


class Block(nn.Module):
    def __init__(self, channels: int, heads: int, attend: Attend) -> None:
        super().__init__()
        self.heads, self.attend = heads, attend
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.qkv, self.out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, c // self.heads).unbind(2)
        x = x + self.out(self.attend(q, k, v).reshape(b, n, c))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, context: int, attend: Attend, tiny: bool) -> None:
        super().__init__()
        layers, channels, vocabulary = (2, 128, 256) if tiny else (12, 768, 50304)
        self.tokens, self.places = (
            nn.Embedding(vocabulary, channels),
            nn.Embedding(context, channels),
        )
        self.blocks = nn.ModuleList(Block(channels, channels // 64, attend) for _ in range(layers))
        self.norm = nn.LayerNorm(channels)
        self.vocabulary = vocabulary
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """The mean loss of the next token; tokens [b, n + 1]."""
        x = self.tokens(tokens[:, :-1]) + self.places.weight[: tokens.shape[1] - 1]
        for block in self.blocks:
            x = block(x)
        scores = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())


class Trainer:
    def __init__(self, name: str, context: int, args: argparse.Namespace) -> None:
        torch.manual_seed(1)
        self.device = args.device
        self.model = Gpt2(context, ATTENTION[name], args.tiny).to(args.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=True)
        self.loss = torch.compile(self.model, dynamic=False) if args.compile else self.model

    def step(self, tokens: Tensor) -> Tensor:
        with torch.autocast(self.device, torch.bfloat16):
            loss = self.loss(tokens)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def time_steps(name: str, batch: int, length: int, args: argparse.Namespace) -> dict[str, object]:
    trainer = Trainer(name, length, args)
    vocabulary = trainer.model.vocabulary
    tokens = torch.randint(vocabulary, (batch, length + 1), device=args.device)
    if args.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times = []
    for at in range(UNTIMED + args.steps):
        trainer.wait()
        start = time.perf_counter()
        trainer.step(tokens)
        trainer.wait()
        if at >= UNTIMED:
            times.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated() if args.device == "cuda" else None
    seconds = statistics.median(times)
    return {
        "cell": f"training/gpt2-b{batch}-n{length}/{'compiled' if args.compile else 'eager'}",
        "attention": name,
        "seconds": round(seconds, 6),
        "tokens_per_second": round(batch * length / seconds),
        "peak_bytes": peak,
    }


def train(name: str, args: argparse.Namespace) -> dict[str, object]:
    batch, length = LOSS_SHAPE if not args.tiny else (2, 32)
    files = sorted((ROOT / "src").rglob("*.[ch]pp"))
    text = torch.frombuffer(bytearray(b"".join(f.read_bytes() for f in files)), dtype=torch.uint8)
    trainer = Trainer(name, length, args)
    generator = torch.Generator().manual_seed(2)
    losses = []
    for _ in range(args.loss_steps):
        starts = torch.randint(len(text) - length - 1, (batch,), generator=generator).tolist()
        rows = torch.stack([text[at : at + length + 1].long() for at in starts])
        losses.append(trainer.step(rows.to(args.device)))
    values = [round(value, 4) for value in torch.stack(losses).tolist()]
    return {"cell": f"training/losses-b{batch}-n{length}", "attention": name, "losses": values}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--attention", default=",".join(ATTENTION))
    parser.add_argument("--shapes", default="32x1024,8x4096")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--loss-steps", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    about = machine(args.device)
    shapes = [tuple(map(int, text.split("x"))) for text in args.shapes.split(",") if text]
    runs: list[Callable[[], dict[str, object]]] = []
    for name in args.attention.split(","):
        for batch, length in shapes:
            runs.append(lambda n=name, b=batch, m=length: time_steps(n, b, m, args))
        if args.loss_steps:
            runs.append(lambda n=name: train(n, args))
    for run in runs:
        try:
            row = about | run()
        except torch.OutOfMemoryError as error:
            print(f"out of memory: {str(error).splitlines()[0]}", flush=True)
            continue
        finally:
            torch._dynamo.reset()
            if args.device == "cuda":
                torch.cuda.empty_cache()
        shown = {k: row[k] for k in row if k not in about and k != "losses"}
        print(shown, row.get("losses", [])[-3:], flush=True)  # type: ignore[index]
        if args.out:
            with args.out.open("a") as out:
                out.write(json.dumps(row) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
