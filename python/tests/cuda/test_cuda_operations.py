"""merge and its gradient on CUDA tensors: against float64, in place, captured in a graph, and on
the partial results of attention over parts of the keys."""

import libattn
import libattn.torch
import pytest
import torch

UNIT = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
SHAPES = ((2, 37, 3, 64), (70, 2, 20), (1, 5, 4, 256), (3, 1, 8, 7))


def _partials(shape, dtype, device, seed=0):
    """o1, lse1, o2, lse2. Some rows of each have no keys; o is NaN there, because merge must not
    read it."""
    generator = torch.Generator().manual_seed(seed + shape[-1])
    made = []
    for first in (0, 1):
        o = torch.randn(shape, generator=generator)
        lse = torch.randn(shape[:-1], generator=generator)
        empty = torch.zeros(lse.shape, dtype=torch.bool).flatten()
        empty[first::3] = True
        empty[4::12] = True
        empty = empty.view(lse.shape)
        o[empty] = torch.nan
        lse[empty] = -torch.inf
        lse = lse.transpose(-1, -2).contiguous()
        made += [o.to(device, dtype), lse.to(device)]
    return made


def _rows(lse):
    """[b, h, n] as [b, n, h, 1], or [h, total] as [total, h, 1], to multiply rows of o."""
    return lse.transpose(-1, -2).unsqueeze(-1)


def _merged(o1, lse1, o2, lse2):
    """In float64 on the host."""
    o1, lse1, o2, lse2 = (t.detach().double().cpu() for t in (o1, lse1, o2, lse2))
    lse = torch.logaddexp(lse1, lse2)
    o = torch.zeros_like(o1)
    for one, stat in ((o1, lse1), (o2, lse2)):
        weight = torch.where(stat.isneginf(), 0.0, torch.exp(stat - lse))
        o += torch.where(_rows(stat).isneginf(), 0.0, _rows(weight) * one)
    return o, lse


def _close(got, want, tolerance=None):
    tolerance = 4 * UNIT[got.dtype] if tolerance is None else tolerance
    got = got.detach().double().cpu()
    assert torch.equal(got.isfinite(), want.isfinite())
    got, want = (torch.where(t.isfinite(), t, 0.0) for t in (got, want))
    error = (got - want).abs().max().item()
    assert error <= tolerance * max(1.0, want.abs().max().item()), error


@pytest.mark.parametrize("dtype", UNIT)
@pytest.mark.parametrize("shape", SHAPES)
def test_merge(device, shape, dtype):
    parts = _partials(shape, dtype, device)
    want_o, want_lse = _merged(*parts)
    for function in (libattn.merge, libattn.torch.merge):
        o, lse = function(*parts)
        assert o.device == parts[0].device and o.dtype == dtype
        _close(o, want_o)
        _close(lse, want_lse)
    o1, lse1, o2, lse2 = parts
    libattn.merge(o1, lse1, o2, lse2, out=o1, lse_out=lse1)
    assert torch.equal(o1, o) and torch.equal(lse1, lse)


def test_a_sink_is_merged_last(device):
    o, lse, _, sink = _partials((2, 37, 3, 64), torch.bfloat16, device)
    zeros = torch.zeros_like(o)
    for got, want in zip(
        libattn.merge(o, lse, None, sink), _merged(o, lse, zeros, sink), strict=True
    ):
        _close(got, want)


@pytest.mark.parametrize("dtype", UNIT)
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients(device, shape, dtype):
    """Against autograd in float64."""
    o1, lse1, o2, lse2 = _partials(shape, dtype, device)
    for o, lse in ((o1, lse1), (o2, lse2)):
        o[_rows(lse).expand_as(o).isneginf()] = 0.0  # autograd reads o even if its weight is 0
    both = (lse1.isneginf() & lse2.isneginf()).cpu()
    generator = torch.Generator().manual_seed(1)
    dout = torch.randn(shape, generator=generator).to(device, dtype)
    dlse = torch.randn(lse1.shape, generator=generator).to(device)
    leaves = [t.detach().requires_grad_() for t in (o1, lse1, o2, lse2)]
    merged = libattn.torch.merge(*leaves)
    got = torch.autograd.grad(merged, leaves, (dout, dlse))
    exact = [t.detach().double().cpu() for t in (o1, lse1, o2, lse2)]
    exact = [torch.where(t.isneginf(), -1e4, t).requires_grad_() for t in exact]
    lse = torch.logaddexp(exact[1], exact[3])
    o = sum(_rows(torch.exp(exact[n + 1] - lse)) * exact[n] for n in (0, 2))
    keep = torch.where(both, 0.0, 1.0)
    want = torch.autograd.grad(
        (o * _rows(keep), lse * keep), exact, (dout.double().cpu(), dlse.double().cpu())
    )
    for one, other in zip(got, want, strict=True):
        # dlse is a sum over o, which was rounded: hence the wider tolerance.
        _close(one, other, 4 * UNIT[dtype] * (shape[-1] ** 0.5 if one.shape == lse1.shape else 1))


def test_parts_of_the_keys_give_the_result_of_all(device):
    generator = torch.Generator().manual_seed(4)
    q, k, v = (
        torch.randn(2, n, h, 64, generator=generator).to(device, torch.bfloat16)
        for n, h in ((130, 4), (300, 2), (300, 2))
    )
    want = libattn.torch.attention(q, k, v, causal=True, diagonal=170, return_lse=True)
    parts = [
        libattn.torch.attention(
            q, k[:, at], v[:, at], causal=True, diagonal=170 - at.start, return_lse=True
        )
        for at in (slice(0, 190), slice(190, 300))
    ]
    o, lse = libattn.torch.merge(*parts[0], *parts[1])
    assert (o - want[0]).abs().max() < 0.03
    assert (lse - want[1]).abs().max() < 1e-4


def test_merge_replays_with_changed_inputs():
    parts = _partials((2, 37, 3, 64), torch.bfloat16, "cuda")
    libattn.merge(*parts)  # compiles and loads the kernel
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, lse = libattn.merge(*parts)
    for seed in (1, 2):
        for t, other in zip(
            parts, _partials((2, 37, 3, 64), torch.bfloat16, "cuda", seed), strict=True
        ):
            t.copy_(other)
        graph.replay()
        for got, want in zip((o, lse), _merged(*parts), strict=True):
            _close(got, want)


def test_float64_is_refused_with_a_reason():
    parts = [t.double() for t in _partials((2, 5, 3, 64), torch.float32, "cuda")]
    with pytest.raises(libattn.Unsupported, match="cuda: merge: no kernel for f64"):
        libattn.merge(*parts)
