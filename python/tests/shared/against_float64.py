"""Compares attention on 16-bit PyTorch tensors of any device with float64 (libattn._reference): the
options by name, a call with its gradients, and the comparison row by row.

The tolerance is that of docs/semantics.md for products of 16-bit operands, derived as in
harness/compare.hpp, without a naive evaluation. It allows six standard deviations of these errors:

- A result is rounded once.
- Each of its terms has an operand (P, dS) that was rounded to 16 bits. This changes the term by a
  factor 1 + e, where e is uniform in [-u, u] and has the variance u^2 / 3.
- o comes from the same call, so the gradients also have the errors of o (of its terms, and of its
  own rounding) through delta = do . o. These are the same for all keys of a row.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import libattn.torch
import numpy as np
import torch
from libattn import _reference

B, N, M, H, G = 2, 200, 333, 4, 2  # with tiles of up to 128: some full, the last ones not
UNIT = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}  # half the distance of neighbours at 1
DIFFERENTIABLE = ("bias", "sinks")


@dataclasses.dataclass
class Inputs:
    """q, k, v, the gradients of o and lse, and the options of a call."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    dout: torch.Tensor
    dlse: torch.Tensor
    options: dict

    def leaves(self):
        """The tensors that get a gradient, by name."""
        named = {"q": self.q, "k": self.k, "v": self.v}
        return named | {n: self.options[n] for n in DIFFERENTIABLE if n in self.options}


def _integers(device, rows):
    return torch.tensor(rows, dtype=torch.int32, device=device)


def _documents(device):
    begin = [0 if i < 70 else 70 if i < 130 else 203 for i in range(N)]
    return {"kv_begin": _integers(device, [begin]), "causal": True}


def _ranges(device):
    begin = [(7 * i) % 90 for i in range(N)]
    end = [b + (i * 13) % 250 for i, b in enumerate(begin)]  # some are empty, some end past m
    return {
        "kv_begin": _integers(device, [begin, begin[::-1]]),
        "kv_end": _integers(device, [end, end[::-1]]),
    }


# Options by name: device, type, generator -> keyword arguments.
OPTIONS = {
    "plain": lambda d, t, g: {},
    "causal": lambda d, t, g: {"causal": True},
    "causal top left": lambda d, t, g: {"causal": True, "diagonal": "top_left"},
    "window": lambda d, t, g: {"window": (40, 9), "diagonal": 20},
    "softcap": lambda d, t, g: {"softcap": 1.5},
    "alibi": lambda d, t, g: {"alibi_slopes": torch.rand(H, generator=g).to(d), "causal": True},
    "bias": lambda d, t, g: {"bias": torch.randn(1, H, N, M, generator=g).to(d, t)},
    "bias of rows": lambda d, t, g: {"bias": torch.randn(B, 1, 1, M, generator=g).to(d)},
    "mask": lambda d, t, g: {"mask": (torch.rand(B, 1, N, M, generator=g) < 0.7).to(d)},
    "sinks": lambda d, t, g: {"sinks": torch.randn(H, generator=g).to(d), "causal": True},
    "dropout": lambda d, t, g: {"dropout_p": 0.25, "seed": 2**40 + 77, "offset": 5},
    "documents": lambda d, t, g: _documents(d),
    "ranges": lambda d, t, g: _ranges(d),
    "lengths": lambda d, t, g: {
        "len_q": _integers(d, [N, 61]),
        "len_kv": _integers(d, [150, 0]),
        "causal": True,
    },
    "deterministic": lambda d, t, g: {"deterministic": True, "causal": True},
    "many": lambda d, t, g: {
        "causal": True,
        "softcap": 2.0,
        "alibi_slopes": torch.rand(H, generator=g).to(d),
        "bias": torch.randn(1, H, N, M, generator=g).to(d, t),
        "dropout_p": 0.1,
        "seed": 3,
        "sinks": torch.randn(H, generator=g).to(d),
    },
}


def inputs(name, device, dtype, dims=(64, 64), heads=(H, G), lengths=(N, M)):
    """Normal numbers; lse's gradient is of float32."""
    generator = torch.Generator().manual_seed(len(name) + dims[0])

    def normal(*shape, kind=dtype):
        return torch.randn(*shape, generator=generator).to(device, kind)

    (n, m), (h, g) = lengths, heads
    return Inputs(
        normal(B, n, h, dims[0]),
        normal(B, m, g, dims[0]),
        normal(B, m, g, dims[1]),
        normal(B, n, h, dims[1]),
        normal(B, h, n, kind=torch.float32),
        OPTIONS[name](device, dtype, generator),
    )


def found(x, attention=libattn.torch.attention):
    """o, lse and the gradients by name, through autograd."""
    leaves = {name: t.detach().requires_grad_() for name, t in x.leaves().items()}
    options = x.options | {n: t for n, t in leaves.items() if n in DIFFERENTIABLE}
    o, lse = attention(leaves["q"], leaves["k"], leaves["v"], return_lse=True, **options)
    gradients = torch.autograd.grad((o, lse), list(leaves.values()), (x.dout, x.dlse))
    named = {"d" + n.rstrip("s"): t for n, t in zip(leaves, gradients, strict=True)}
    return {"o": o, "lse": lse} | {{"dbia": "dbias"}.get(n, n): t for n, t in named.items()}


def _array(x):
    return x.detach().double().cpu().numpy() if isinstance(x, torch.Tensor) else x


class Expected(NamedTuple):
    """A result in float64, and the error of each element that 16-bit operands may cause."""

    value: Any
    error: Any


def expected(x: Inputs) -> dict[str, Expected]:
    """The expected results of found(), by name."""
    arrays = {name: _array(t) for name, t in x.options.items()}
    for name in ("kv_begin", "kv_end", "len_q", "len_kv"):
        if name in arrays:
            arrays[name] = arrays[name].astype(np.int64)
    deterministic = arrays.pop("deterministic", None)
    assert deterministic in (None, True)
    q, k, v, dout, dlse = (_array(t) for t in (x.q, x.k, x.v, x.dout, x.dlse))
    result = _reference.attention(q, k, v, **arrays)
    values = _reference.gradients(dout, q, k, v, dlse=dlse, **arrays)
    values |= {"o": result.o, "lse": result.lse}
    errors = _errors(result, (q, k, v, dout, dlse), arrays, x.q.dtype)
    return {name: Expected(value, errors[name]) for name, value in values.items()}


def _errors(result: Any, tensors: Any, options: Any, dtype: torch.dtype) -> dict[str, Any]:
    """The allowed errors by name: six standard deviations of the effect of rounding P, dS and o to
    `dtype`; plus, for operands below its normal range, an absolute rounding error."""
    q, k, v, dout, dlse = tensors
    (b, _, h, dim), (m, g) = q.shape, k.shape[1:3]
    scale = abs(options.get("scale", dim**-0.5))
    variance = UNIT[dtype] ** 2 / 3
    least = torch.finfo(dtype).smallest_normal
    p, used = result.p, result.p * result.kept
    wide_k, wide_v = np.repeat(k, h // g, 2), np.repeat(v, h // g, 2)
    dp = np.einsum("bihd,bjhd->bhij", dout, wide_v)
    delta = np.einsum("bihd,bihd->bhi", dout, result.o) - np.where(np.isneginf(result.lse), 0, dlse)
    draw = p * (result.kept * dp - delta[..., None]) * result.slope
    of_delta = ((used * dp) ** 2).sum(-1) + np.einsum("bihd->bhi", (dout * result.o) ** 2)

    def over(pairs: Any, x: Any) -> Any:  # a sum over keys: rows of queries
        return np.einsum("bhij,bjhd->bihd", pairs, x)

    def under(pairs: Any, x: Any) -> Any:  # a sum over queries and the heads of a group
        rows = np.einsum("bhij,bihd->bjhd", pairs, x)
        return rows.reshape(b, m, g, h // g, x.shape[-1]).sum(3)

    def error(squares: Any, flushed: Any = 0) -> Any:
        return 6 * np.sqrt(variance * squares) + UNIT[dtype] * least * flushed

    def small(operand: Any) -> Any:
        return (operand != 0) & (np.abs(operand) < least)

    steep = p * result.slope  # times the error of delta: that of dS
    of_q = over(draw**2, wide_k**2) + np.einsum("bhi->bih", of_delta)[..., None] * (
        over(steep, wide_k) ** 2
    )
    of_k = under(draw**2, q**2) + under(steep**2 * of_delta[..., None], q**2)
    found = {
        "o": error(over(used**2, wide_v**2), over(small(p), np.abs(wide_v))),
        "lse": np.zeros_like(result.lse),
        "dq": scale * error(of_q, over(small(draw), np.abs(wide_k))),
        "dk": scale * error(of_k, under(small(draw), np.abs(q))),
        "dv": error(under(used**2, dout**2), under(small(p), np.abs(dout))),
    }
    if "bias" in options:
        shape = options["bias"].shape
        whole = tuple(
            a for a in (0, 1) if shape[a] == 1
        )  # broadcast dimensions other than rows and keys
        along = p if shape[3] != 1 else p.sum(3, keepdims=True)
        rows = (along**2 * of_delta[..., None]).sum(whole, keepdims=True)
        found["dbias"] = error(rows if shape[2] != 1 else rows.sum(2, keepdims=True))
    if "sinks" in options:
        weight = np.exp(options["sinks"][None, :, None] - result.lse)
        weight = np.where(np.isneginf(result.lse), 0, weight)
        found["dsink"] = error((weight**2 * of_delta).sum((0, 2)))
    return found


def compare(got: dict[str, Any], want: dict[str, Expected], dtype: torch.dtype) -> float:
    """Compares by name: the error of each row must be within that of its operands plus a few
    roundings. Returns the largest error as a share of its limit."""
    assert sorted(got) == sorted(want)
    worst = 0.0
    for name, (exact, error) in want.items():
        one = got[name].detach().double().cpu().numpy()
        assert one.shape == exact.shape, f"{name}: shape {one.shape}, not {exact.shape}"
        hidden = np.isneginf(exact)
        assert (np.isneginf(one) == hidden).all(), f"{name}: -inf at other positions than expected"
        one, exact = np.where(hidden, 0, one), np.where(hidden, 0, exact)
        # lse and dsink are f32; the other results may have 16 bits and are rounded once.
        unit = 0.0 if name in ("lse", "dsink") else 2 * UNIT[dtype]
        size = np.abs(exact)
        limit = error.max(-1, keepdims=True) + unit * size.max(-1, keepdims=True, initial=0)
        limit = limit + 2.0**-18 * np.maximum(size, max(1, size.mean()))
        ratio = np.abs(one - exact) / limit
        bad = ~(ratio <= 1)
        assert not bad.any(), (
            f"{name}: {bad.sum()} of {bad.size} are off; first {np.argwhere(bad)[0]}: "
            f"{one[bad][0]} for {exact[bad][0]} within {np.broadcast_to(limit, bad.shape)[bad][0]}"
        )
        worst = max(worst, float(ratio.max(initial=0)))
    return worst
