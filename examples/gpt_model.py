"""A small GPT with a choice of attention: libattn, PyTorch's SDPA, or written out in PyTorch.

Pre-norm transformer with rotary positions (Su et al. 2021, "RoFormer", section 3.4), grouped
key/value heads (Ainslie et al. 2023, "GQA"), SwiGLU (Shazeer 2020) and tied embeddings. Letters in
shapes: b rows of a batch, n tokens of a row, h query heads, g key/value heads, d head width,
c = h * d channels.

Several documents share a row. Token i sees token j when kv_begin[i] <= j <= i, where kv_begin
[b, n] is the index in the row of the first token of i's document. libattn reads that vector; the
other two need it expanded to a mask [b, 1, n, n].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""q [b, n, h, d], k and v [b, n, g, d] -> [b, n, h, d]."""


def libattn_attention(kv_begin: Tensor, dropout: float) -> Attend:
    """Needs no preparation: libattn reads kv_begin as it is."""
    import libattn.torch

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return libattn.torch.attention(q, k, v, causal=True, kv_begin=kv_begin, dropout_p=dropout)

    return attend


def sdpa_attention(kv_begin: Tensor, dropout: float) -> Attend:
    """torch.nn.functional.scaled_dot_product_attention: heads first, documents as a mask."""
    mask = visible(kv_begin)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        group = q.shape[2] // k.shape[2]
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # [b, h or g, n, d]
        grouped = {"enable_gqa": True}
        if torch.__version__ < (2, 5):  # which has no such argument
            grouped, k, v = {}, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, **grouped)
        return o.transpose(1, 2)

    return attend


def eager_attention(kv_begin: Tensor, dropout: float) -> Attend:
    """Textbook attention: all scores [b, h, n, n] are written to memory."""
    mask = visible(kv_begin)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        group = q.shape[2] // k.shape[2]
        k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(q.shape[3])
        weights = scores.masked_fill(~mask, -math.inf).softmax(-1)
        return torch.einsum("bhij,bjhd->bihd", F.dropout(weights, dropout), v)

    return attend


ATTENTION: dict[str, Callable[[Tensor, float], Attend]] = {
    "libattn": libattn_attention,
    "sdpa": sdpa_attention,
    "eager": eager_attention,
}
"""Maps kv_begin (i32 [b, n]) and the dropout probability to the function that all layers call."""


def visible(kv_begin: Tensor) -> Tensor:
    """The mask [b, 1, n, n] of kv_begin [b, n]: true where row i sees column j."""
    place = torch.arange(kv_begin.shape[1], device=kv_begin.device)
    causal = place[None, :] <= place[:, None]  # [n, n]
    same_document = place[None, None, :] >= kv_begin[:, :, None]  # [b, n, n]
    return (causal & same_document)[:, None]


@dataclass(frozen=True)
class Shape:
    """Sizes of the model. The defaults have 10.0 million parameters."""

    vocabulary: int = 256
    context: int = 1024
    layers: int = 6
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 64
    hidden: int = 1088

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1; it is {value}")
        if self.heads % self.kv_heads:
            raise ValueError(
                f"heads must be a multiple of kv_heads; they are {self.heads} and {self.kv_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even to be rotated; it is {self.head_dim}")

    @property
    def channels(self) -> int:
        return self.heads * self.head_dim


def rotary_table(context: int, head_dim: int, base: float = 10000.0) -> Tensor:
    """cos and sin of position * base^(-2t/d): [2, n, 1, d/2].

    Positions count from the start of the row, not of the document: only differences matter.
    """
    frequency = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = torch.arange(context)[:, None] * frequency  # [n, d/2]
    return torch.stack((angle.cos(), angle.sin())).float()[:, :, None]


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Rotates each pair (x[t], x[t + d/2]) of x [b, n, heads, d] by the angle of its position."""
    cos, sin = table[:, : x.shape[1]]  # each [n, 1, d/2]
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), -1).to(x.dtype)


class Block(nn.Module):
    """One layer: x + attention(norm(x)), then x + swiglu(norm(x))."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        c, kv = shape.channels, shape.kv_heads * shape.head_dim
        self.head_dim = shape.head_dim
        self.widths = (c, kv, kv)
        self.attention_norm = nn.RMSNorm(c)
        self.qkv = nn.Linear(c, c + 2 * kv, bias=False)
        self.attention_out = nn.Linear(c, c, bias=False)
        self.mlp_norm = nn.RMSNorm(c)
        self.gate_up = nn.Linear(c, 2 * shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, c, bias=False)

    def forward(self, x: Tensor, attend: Attend, table: Tensor) -> Tensor:  # x [b, n, c]
        q, k, v = (
            y.unflatten(-1, (-1, self.head_dim))  # [b, n, h or g, d]
            for y in self.qkv(self.attention_norm(x)).split(self.widths, -1)
        )
        o = attend(rotate(q, table), rotate(k, table), v)
        x = x + self.attention_out(o.flatten(2))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, -1)  # [b, n, hidden] each
        return x + self.down(F.silu(gate) * up)


class GPT(nn.Module):
    """Tokens [b, n] and kv_begin [b, n] in, scores of the next token [b, n, vocabulary] out."""

    def __init__(self, shape: Shape, attention: str, dropout: float = 0.0) -> None:
        super().__init__()
        self.shape, self.dropout, self.attention = shape, dropout, ATTENTION[attention]
        self.embedding = nn.Embedding(shape.vocabulary, shape.channels)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.channels)
        self.register_buffer("table", rotary_table(shape.context, shape.head_dim), persistent=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:  # what adds to the residual stream starts smaller (GPT-2)
                adds = name.endswith(("attention_out.weight", "down.weight"))
                nn.init.normal_(weight, std=0.02 / (math.sqrt(2 * shape.layers) if adds else 1))

    def forward(self, tokens: Tensor, kv_begin: Tensor, place: Tensor | None = None) -> Tensor:
        """place [n]: the positions of the tokens in their row, if they are not all of it."""
        attend = self.attention(kv_begin, self.dropout if self.training else 0.0)
        table = self.table if place is None else self.table[:, place]
        x = self.embedding(tokens)  # [b, n, c]
        for block in self.blocks:
            x = block(x, attend, table)
        return F.linear(self.norm(x), self.embedding.weight)


@torch.no_grad()
def generate(model: GPT, prompt: list[int], rows: int, count: int, seed: int) -> list[list[int]]:
    """`rows` continuations of the prompt by up to `count` tokens; token 0 ends a document.

    Each new token runs the complete row again, so no cache is needed.
    """
    model.eval()
    random = torch.Generator().manual_seed(seed)
    device = model.table.device
    tokens = torch.tensor([prompt] * rows, device=device)  # [rows, n]
    for _ in range(count):
        seen = tokens[:, -model.shape.context :]
        scores = model(seen, torch.zeros(seen.shape, dtype=torch.int32, device=device))[:, -1]
        weights = (scores / 0.8).softmax(-1).cpu()  # a temperature below 1 prefers the likely
        chosen = torch.multinomial(weights, 1, generator=random).to(device)
        tokens = torch.cat((tokens, chosen), 1)
    made = tokens[:, len(prompt) :].tolist()
    return [row[: row.index(0)] if 0 in row else row for row in made]
