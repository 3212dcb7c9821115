"""Attention on 16-bit PyTorch tensors of any device held against float64 (libattn._reference): the
options by name, a call with its gradients, and the comparison row by row."""

from __future__ import annotations

import dataclasses

import libattn.torch
import numpy as np
import torch
from libattn import _reference

B, N, M, H, G = 2, 200, 333, 4, 2  # with tiles of up to 128: some full, the last ones not
UNIT = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
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
        """What gets a gradient, by name."""
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


def expected(x):
    """The same in float64 NumPy."""
    arrays = {name: _array(t) for name, t in x.options.items()}
    for name in ("kv_begin", "kv_end", "len_q", "len_kv"):
        if name in arrays:
            arrays[name] = arrays[name].astype(np.int64)
    deterministic = arrays.pop("deterministic", None)
    assert deterministic in (None, True)
    q, k, v, dout, dlse = (_array(t) for t in (x.q, x.k, x.v, x.dout, x.dlse))
    result = _reference.attention(q, k, v, **arrays)
    gradients = _reference.gradients(dout, q, k, v, dlse=dlse, **arrays)
    return {"o": result.o, "lse": result.lse} | gradients


def compare(got, want, dtype):
    """By name. Each row is within a few roundings of its largest and of the usual value."""
    assert sorted(got) == sorted(want)
    for name, exact in want.items():
        one = got[name].detach().double().cpu().numpy()
        assert one.shape == exact.shape, f"{name}: shape {one.shape}, not {exact.shape}"
        hidden = np.isneginf(exact)
        assert (np.isneginf(one) == hidden).all(), f"{name}: -inf elsewhere"
        one, exact = np.where(hidden, 0, one), np.where(hidden, 0, exact)
        unit = UNIT[dtype] if name not in ("lse", "dsink") else 2.0**-17
        if name == "dsink":  # a sum over all rows of terms that carry the rounding of o
            unit = 4 * UNIT[dtype]
        usual = np.sqrt(np.mean(exact**2))
        if name == "dbias":  # few are large, and each carries the rounding of its row of o
            usual = np.abs(exact).max()
        limit = unit * (2 * np.abs(exact).max(-1, keepdims=True) + 4 * max(usual, 2.0**-10))
        bad = ~(np.abs(one - exact) <= limit)
        assert not bad.any(), (
            f"{name}: {bad.sum()} of {bad.size} are off; first {np.argwhere(bad)[0]}: "
            f"{one[bad][0]} for {exact[bad][0]}"
        )
