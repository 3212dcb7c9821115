"""libattn.torch on tensors of 8-bit types."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import libattn.torch  # noqa: E402

F8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def draw(*shape, dtype):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


@pytest.mark.parametrize("dtype", F8)
def test_equals_the_converted_tensors(dtype):
    q, k, v = (draw(2, 33, 2, 16, dtype=dtype) for _ in "qkv")
    scales = [torch.tensor([[0.5, 2.0], [1.0, 1.5]]) * n for n in (1, 2, 3)]
    wide = [x.float() * s[:, None, :, None] for x, s in zip((q, k, v), scales, strict=True)]
    names = ("descale_q", "descale_k", "descale_v")
    options = dict(zip(names, scales, strict=True))
    o = libattn.torch.attention(q, k, v, causal=True, out_dtype=torch.float32, **options)
    expected = libattn.torch.attention(*wide, causal=True)
    torch.testing.assert_close(o, expected, atol=1e-6, rtol=1e-6)
    usual = libattn.torch.attention(q, k, v, causal=True, **options)
    assert usual.dtype == torch.bfloat16
    torch.testing.assert_close(usual, expected.bfloat16(), rtol=2**-7, atol=1e-6)
    compiled = torch.compile(libattn.torch.attention, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(q, k, v, causal=True, **options), usual, rtol=0, atol=0)
    with torch.autocast("cpu", torch.float16):
        kept = libattn.torch.attention(q, k, v, causal=True, **options)
    torch.testing.assert_close(kept, usual, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", F8)
def test_cache_beside_16_bit_queries(dtype):
    q = draw(2, 1, 4, 16, dtype=torch.bfloat16)
    k, v = draw(2, 2, 50, 2, 16, dtype=dtype)
    descale = torch.full((2, 2), 0.25)
    o = libattn.torch.decode(q, k, v, descale_k=descale, descale_v=descale, out_dtype=torch.float32)
    wide = (x.float() / 4 for x in (k, v))
    torch.testing.assert_close(o, libattn.torch.decode(q.float(), *wide), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("vmapped", [True, False])
def test_vmap(batch, vmapped):
    q, k, v = (draw(3, batch, 5, 2, 16, dtype=F8[0]) for _ in "qkv")
    descale = torch.rand(*((3,) if vmapped else ()), batch, 2) + 0.5

    def attend(q, k, v, descale):
        return libattn.torch.attention(q, k, v, descale_k=descale)

    dims = (0, 0, 0, 0 if vmapped else None)
    o = torch.vmap(attend, in_dims=dims)(q, k, v, descale)
    for at in range(3):
        one = attend(q[at], k[at], v[at], descale[at] if vmapped else descale)
        torch.testing.assert_close(o[at], one, rtol=0, atol=0)


def test_backward_is_refused():
    q, k, v = (draw(1, 4, 2, 16, dtype=F8[0]).requires_grad_() for _ in "qkv")
    with pytest.raises((ValueError, libattn.Unsupported), match="f8"):
        libattn.torch.attention(q, k, v).sum().backward()
