"""Attention on CUDA tensors of 8-bit types. Only Hopper has kernels for them."""

import libattn
import libattn.torch
import pytest
import torch

F8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def _draw(device, *shape, dtype):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype).to(device)


def _exact(q, k, v, *, causal):
    """Attention in float64 on [b, n, h, d]."""
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
    if causal:
        n, m = scores.shape[-2:]
        hidden = torch.ones(n, m, dtype=torch.bool, device=q.device).triu(m - n + 1)
        scores = scores.masked_fill(hidden, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2)


@pytest.fixture
def hopper(device):
    """The device on which a test creates its f8 tensors."""
    if device != "cpu" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("only Hopper has kernels for f8")
    return device


@pytest.mark.parametrize("dtype", F8)
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_is_close_to_float64(hopper, dtype, dim, causal):
    """With descales and grouped heads."""
    q = _draw(hopper, 2, 300, 4, dim, dtype=dtype)
    k, v = _draw(hopper, 2, 2, 400, 2, dim, dtype=dtype)
    scales = [torch.tensor([[0.5, 2.0], [1.0, 1.5]], device=hopper) * n for n in (1, 0.5, 3)]
    names = ("descale_q", "descale_k", "descale_v")
    options = dict(zip(names, scales, strict=True))
    o = libattn.torch.attention(q, k, v, causal=causal, **options)
    assert o.dtype == torch.bfloat16
    wide = [q.double() * scales[0].repeat_interleave(2, 1)[:, None, :, None]]
    wide += [
        (x.double() * s[:, None, :, None]).repeat_interleave(2, 2)
        for x, s in zip((k, v), scales[1:], strict=True)
    ]
    expected = _exact(*wide, causal=causal)
    # P has 4 significant bits: the rms error is 2.6 % of each term. It is the same share of the
    # sum, because the terms have both signs.
    assert (o.double() - expected).norm() / expected.norm() < 0.05


@pytest.mark.parametrize("dim", (64, 128, 256))
@pytest.mark.parametrize("keys", (4096, 20000))
def test_long_rows(hopper, keys, dim):
    """All terms have the same sign: such sums lose most if the accumulator has few bits."""
    q, k = (_draw(hopper, 1, n, 1, dim, dtype=F8[0]) for n in (128, keys))
    generator = torch.Generator().manual_seed(1)
    v = (torch.rand(1, keys, 1, dim, generator=generator) + 0.5).to(F8[0]).to(hopper)
    o = libattn.torch.attention(q, k, v, out_dtype=torch.float32)
    expected = _exact(q, k, v, causal=False)
    assert ((o.double() - expected).abs() / expected).max() < 0.01


def test_other_calls_run_on_a_copy(hopper):
    """sm90 has no f8 kernel for rows of 40 bytes: q is converted to 16 bits."""
    q, k, v = (_draw(hopper, 1, 80, 2, 40, dtype=F8[0]) for _ in "qkv")
    o = libattn.torch.attention(q, k, v)
    expected = _exact(q, k, v, causal=False)
    assert (o.double() - expected).norm() / expected.norm() < 0.05
