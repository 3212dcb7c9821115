"""Checks the tolerances of the GPU tests and of bench/peers with an emulation of a kernel on tensor
cores: right results must pass, wrong ones must fail.

The emulation takes float64 scores and rounds what such a kernel rounds: P relative to the maximum
so far, P and dS before they are multiplied, and results.
"""

import dataclasses
import pathlib
import sys

import against_float64
import numpy as np
import pytest
import torch
from against_float64 import OPTIONS, compare, expected, inputs
from libattn import _reference

sys.path.append(str(pathlib.Path(__file__).parents[3] / "bench" / "peers"))
torch_oracle = pytest.importorskip("torch_oracle", reason="bench/peers needs a newer PyTorch")
torch_cells = pytest.importorskip("torch_cells")
torch_contenders = pytest.importorskip("torch_contenders")

TILE = 64
BUGS = ("a key dropped", "diagonal off by one", "dk without a query head", "a row's sum off")


def emulated(x, bug=""):
    """The results of such a kernel by name. `bug` names one defect to add."""
    dtype = x.q.dtype

    def rounded(a):
        return torch.as_tensor(a).to(dtype).double().numpy()

    q, k, v, dout, dlse = (t.double().numpy() for t in (x.q, x.k, x.v, x.dout, x.dlse))
    options = {n: t.double().numpy() if torch.is_tensor(t) else t for n, t in x.options.items()}
    options.pop("deterministic", None)
    (b, n, h, dim), (m, g) = q.shape, k.shape[1:3]
    if bug == "diagonal off by one":
        options["diagonal"] = {"top_left": 0}.get(options.get("diagonal"), m - n) + 1
    exact = _reference.attention(q, k, v, **options)
    p, lse = exact.p, exact.lse
    if bug == "a key dropped":
        left = 1 - p[..., m // 3 : m // 3 + 1]
        p = np.where(np.arange(m) == m // 3, 0, p) / np.where(left > 0, left, 1)
        with np.errstate(divide="ignore"):
            lse = lse + np.log(left[..., 0])
    if bug == "a row's sum off":
        p = p * (1 + 0.03 * (np.arange(n) == n // 2)[:, None])
    with np.errstate(divide="ignore"):
        log = np.log(p)
    # The maximum of the tiles so far.
    tops = np.stack([log[..., at : at + TILE].max(-1) for at in range(0, m, TILE)], -1)
    top = np.repeat(np.maximum.accumulate(tops, -1), TILE, -1)[..., :m]
    top = np.where(np.isneginf(top), 0, top)
    weight = rounded(np.exp(log - top)) * np.exp(top)
    wide_k, wide_v = np.repeat(k, h // g, 2), np.repeat(v, h // g, 2)
    o = rounded(np.einsum("bhij,bjhd->bihd", weight * exact.kept, wide_v))
    delta = np.einsum("bihd,bihd->bhi", dout, o) - np.where(np.isneginf(lse), 0, dlse)
    dp = np.einsum("bihd,bjhd->bhij", dout, wide_v)
    ds = p * (exact.kept * dp - delta[..., None])
    draw = rounded(ds * exact.slope)
    heads = np.ones(h)
    if bug == "dk without a query head":
        heads[:: h // g] = 0
    scale = dim**-0.5

    def under(pairs, rows):
        return np.einsum("bhij,bihd->bjhd", pairs, rows).reshape(b, m, g, h // g, -1).sum(3)

    found = {
        "o": o,
        "lse": lse,
        "dq": rounded(scale * np.einsum("bhij,bjhd->bihd", draw, wide_k)),
        "dk": rounded(scale * under(draw * heads[:, None, None], q)),
        "dv": rounded(under(rounded(p) * exact.kept, dout)),
    }
    if "bias" in options:
        sums = tuple(a for a, size in enumerate(options["bias"].shape) if size == 1)
        total = torch.as_tensor(ds.sum(sums, keepdims=True))
        found["dbias"] = total.to(x.options["bias"].dtype).double()
    if "sinks" in options:
        share = np.exp(options["sinks"][:, None] - lse)
        found["dsink"] = -(np.where(np.isneginf(lse), 0, share) * delta).sum((0, 2))
    return {n: torch.as_tensor(a) for n, a in found.items()}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, torch.bfloat16) for name in OPTIONS] + [(n, torch.float16) for n in ("causal", "many")],
)
def test_options_pass(name, dtype):
    x = inputs(name, "cpu", dtype)
    assert compare(emulated(x), expected(x), dtype) < 0.9


@pytest.mark.parametrize("heads", ((4, 4), (4, 1)))
@pytest.mark.parametrize("dims", ((16, 16), (128, 128), (33, 65), (1, 3)))
def test_dims_and_groups_pass(dims, heads):
    x = inputs("causal", "cpu", torch.bfloat16, dims, heads)
    assert compare(emulated(x), expected(x), torch.bfloat16) < 0.9


@pytest.mark.parametrize("bug", BUGS)
@pytest.mark.parametrize("dims", ((64, 64), (128, 128), (1, 3)))
def test_wrong_results_do_not_pass(dims, bug):
    x = inputs("causal", "cpu", torch.bfloat16, dims)
    with pytest.raises(AssertionError, match="are off|elsewhere"):
        compare(emulated(x, bug), expected(x), torch.bfloat16)


def _cells():
    """Few entries and heads of the benchmark's."""
    found = {}
    for suite, divisor in (("plain", 64), ("options", 32)):
        for cell in torch_cells.cells_of(suite, divisor):
            s = cell.shape
            small = {
                "batch": min(s.batch, 2),
                "heads_q": 4,
                "heads_kv": 4 * s.heads_kv // s.heads_q,
            }
            found[cell.base()] = dataclasses.replace(cell, shape=dataclasses.replace(s, **small))
    return {n: c for n, c in found.items() if c.shape.length in (32, 128) and c.shape.dim < 256}


CELLS = _cells()


def _complaints(cell, bug=""):
    x = torch_cells.inputs_of(cell, "cpu")
    oracle = torch_oracle.Oracle(cell, x, backward=True)
    options = torch_contenders.Libattn(cell, x).options
    lse = torch.zeros(x.q[0].shape[0], cell.shape.heads_q, cell.shape.length)
    one = against_float64.Inputs(x.q[0], x.k[0], x.v[0], x.dout[0], lse, options)
    found = emulated(one, bug)
    if cell.option != "bias-gradient":
        found.pop("dbias", None)
    said = {name: oracle.complaint(name, t) for name, t in found.items()}
    return {name: text for name, text in said.items() if text}


@pytest.mark.parametrize("name", CELLS)
def test_cells_of_the_benchmark_pass(name):
    assert not _complaints(CELLS[name])


@pytest.mark.parametrize("bug", BUGS)
@pytest.mark.parametrize("name", [n for n in CELLS if "n128" in n and "causal" in n])
def test_wrong_cells_do_not_pass(name, bug):
    assert _complaints(CELLS[name], bug)


def test_inputs_are_compared_with_their_own_operands():
    """Another type's tolerance does not cover bf16."""
    x = inputs("causal", "cpu", torch.bfloat16)
    halves = {f.name: getattr(x, f.name) for f in dataclasses.fields(x)}
    halves |= {n: halves[n].half() for n in ("q", "k", "v", "dout")}
    want = expected(against_float64.Inputs(**halves))
    with pytest.raises(AssertionError, match="are off"):
        compare(emulated(x), want, torch.float16)
