"""Memory limits on CUDA: views and outputs beyond 2^31 elements, and errors when memory runs out.
These tests need most of the device's memory, so nothing else should use the device."""

import against_float64
import libattn
import libattn.torch
import pytest
import torch
from against_float64 import compare, expected, found, inputs

DTYPE = torch.bfloat16


def _room(size):
    free, _ = torch.cuda.mem_get_info()
    if free < size:
        pytest.skip(f"needs {size >> 30} GiB of free device memory, found {free >> 30}")


def test_views_beyond_2_31_elements():
    """The strides put rows, heads and sequences up to billions of elements apart."""
    _room(12 << 30)
    whole = torch.empty(5 << 30, dtype=DTYPE, device="cuda")  # 10 GiB
    x = inputs("causal", "cuda", DTYPE)
    want = expected(x)
    at = {"q": 0, "k": 1000, "v": 2000, "dout": 3000}
    n = max(against_float64.N, against_float64.M)
    strides = (2_400_000_000, 6_000_000, 1_000_000, 1)  # [b, n, h, d]
    assert strides[0] + n * strides[1] + 4 * strides[2] < whole.numel()
    for name, offset in at.items():
        values = getattr(x, name)
        view = whole.as_strided(values.shape, strides, offset)
        view.copy_(values)
        setattr(x, name, view)
    compare(found(x), want, DTYPE)


def test_outputs_beyond_2_31_elements():
    """o has more than 2^31 elements; its last rows are checked."""
    _room(20 << 30)
    n, h, d = 8_400_000, 4, 64
    q = torch.randn(1, n, h, d, dtype=DTYPE, device="cuda")
    k, v = (torch.randn(1, 64, h, d, dtype=DTYPE, device="cuda") for _ in range(2))
    o = libattn.attention(q, k, v)
    assert o.numel() > 2**31
    for part in (slice(0, 200), slice(n - 200, n)):
        want = libattn.attention(q[:, part], k, v)
        assert torch.allclose(o[:, part].float(), want.float(), rtol=1e-2, atol=1e-2)


def test_too_little_memory_for_outputs():
    q = torch.zeros(1, 1, 1, 64, dtype=DTYPE, device="cuda").expand(1, 2**30 - 1, 16, 64)
    k = torch.zeros(1, 64, 1, 64, dtype=DTYPE, device="cuda")
    with pytest.raises(RuntimeError, match="out of memory"):
        libattn.torch.attention(q, k, k)


def test_too_little_memory_for_scratch():
    """The library allocates scratch memory itself if the stream is not PyTorch's."""
    n = 1 << 20
    q, dout, o, dq = (torch.zeros(1, n, 1, 64, dtype=DTYPE, device="cuda") for _ in range(4))
    k, v, dk, dv = (torch.zeros(1, 64, 1, 64, dtype=DTYPE, device="cuda") for _ in range(4))
    lse = torch.zeros(1, 1, n, device="cuda")
    options = {"stream": torch.cuda.current_stream().cuda_stream, "want": ("dq",)}
    call = (dout, q, k, v, o, lse)
    given = {"dq": dq, "dk": dk, "dv": dv}
    needed = libattn.workspace_bytes(libattn.describe(q, k, v), "backward", "cuda")
    if needed < 64 << 20:
        pytest.skip(f"a backward of {n} rows needs {needed} bytes of scratch memory only")
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    hog = torch.empty(free - needed // 2, dtype=torch.uint8, device="cuda")
    with pytest.raises(MemoryError, match="memory"):
        libattn.attention_backward(*call, **given, **options)
    del hog
    torch.cuda.empty_cache()
    libattn.attention_backward(*call, **given, **options)
