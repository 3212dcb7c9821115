"""CUDA arrays of other libraries: arrays that offer only DLPack or only `__cuda_array_interface__`,
CuPy, JAX, and calls that mix them, including calls in which one stream must wait for another."""

import os

import libattn
import pytest
import torch
from against_float64 import compare, expected, inputs

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take most of the memory
DTYPE = torch.float16  # __cuda_array_interface__ cannot describe bf16
DELAY_CYCLES = 200_000_000


class OnlyDlpack:
    """A tensor that offers DLPack only."""

    def __init__(self, tensor):
        self._tensor = tensor

    def __dlpack_device__(self):
        return (2, self._tensor.device.index)

    def __dlpack__(self, stream=None):
        return self._tensor.__dlpack__(stream=stream)


class OnlyInterface:
    """A tensor that offers __cuda_array_interface__ only."""

    def __init__(self, tensor, stream=None):
        self._tensor = tensor
        self._stream = stream

    @property
    def __cuda_array_interface__(self):
        return dict(self._tensor.__cuda_array_interface__, version=3, stream=self._stream)


@pytest.fixture
def x():
    return inputs("causal", "cuda", DTYPE)


def _results(x):
    o = torch.full_like(x.dout, torch.nan)
    return o, torch.full(x.dlse.shape, torch.nan, device=o.device)


@pytest.mark.parametrize(
    "wrap",
    (OnlyDlpack, OnlyInterface, lambda t: OnlyInterface(t, 1)),
    ids=("dlpack", "cai", "cai1"),
)
def test_forward_and_backward_through_one_protocol(x, wrap):
    want = expected(x)
    o, lse = _results(x)
    q, k, v, dout, dlse = (wrap(t) for t in (x.q, x.k, x.v, x.dout, x.dlse))
    torch.cuda.synchronize()
    libattn.attention(q, k, v, causal=True, out=wrap(o), lse_out=wrap(lse))
    made = {n: torch.full_like(t, torch.nan) for n, t in (("dq", x.q), ("dk", x.k), ("dv", x.v))}
    libattn.attention_backward(
        *(dout, q, k, v, wrap(o), wrap(lse)),
        dlse=dlse,
        causal=True,
        want=("dq",),
        **{n: wrap(t) for n, t in made.items()},
    )
    compare({"o": o, "lse": lse, **made}, want, DTYPE)


def test_a_mixed_call(x):
    want = expected(x)
    o, lse = libattn.attention(
        x.q, OnlyDlpack(x.k), OnlyInterface(x.v), causal=True, return_lse=True
    )
    assert isinstance(o, torch.Tensor)
    compare({"o": o, "lse": lse}, {n: want[n] for n in ("o", "lse")}, DTYPE)


def test_dlpack_makes_the_call_wait_for_the_maker(x):
    """The inputs are written on another stream after a delay: a call that did not wait would read
    the old values."""
    want = expected(x)
    o, lse = _results(x)
    good = [t.clone() for t in (x.q, x.k, x.v)]
    libattn.attention(x.q, x.k, x.v, causal=True, out=o, lse_out=lse)  # compiles the kernels
    for t in (x.q, x.k, x.v):
        t.zero_()
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(DELAY_CYCLES)
        for t, values in zip((x.q, x.k, x.v), good, strict=True):
            t.copy_(values)
        q, k, v, out, stats = (OnlyDlpack(t) for t in (x.q, x.k, x.v, o, lse))
        libattn.attention(q, k, v, causal=True, out=out, lse_out=stats)  # on the default stream
    torch.cuda.default_stream().synchronize()
    compare({"o": o, "lse": lse}, {n: want[n] for n in ("o", "lse")}, DTYPE)


def test_an_array_without_memory_to_make_others_asks_for_out(x):
    q = OnlyDlpack(x.q)
    with pytest.raises(ValueError, match="out: found none.*OnlyDlpack"):
        libattn.attention(q, q, q)


def test_cupy(x):
    cupy = pytest.importorskip("cupy")
    want = expected(x)
    q, k, v, dout, dlse = (cupy.from_dlpack(t) for t in (x.q, x.k, x.v, x.dout, x.dlse))
    side = cupy.cuda.Stream(non_blocking=True)
    torch.cuda.synchronize()
    with side:
        q = q * 1  # computed on that stream
        o, lse = libattn.attention(q, k, v, causal=True, return_lse=True)
        found = libattn.attention_backward(dout, q, k, v, o, lse, dlse=dlse, causal=True)
        side.synchronize()
    assert isinstance(o, cupy.ndarray) and isinstance(found.dq, cupy.ndarray)
    got = dict(zip(("o", "lse", "dq", "dk", "dv"), (o, lse, *found[:3]), strict=True))
    compare({n: torch.from_dlpack(t) for n, t in got.items()}, want, DTYPE)


def test_jax(x):
    jax = pytest.importorskip("jax")
    try:
        jax.devices("cuda")
    except RuntimeError as error:
        pytest.skip(f"JAX has no CUDA device: {error}")
    torch.cuda.set_device(x.q.device)  # with several devices, JAX leaves the last one current
    want = expected(x)
    o, lse = _results(x)
    # JAX makes contiguous copies in its own memory, on its own streams.
    q, k, v = (jax.device_put(jax.dlpack.from_dlpack(t)) * 1 for t in (x.q, x.k, x.v))
    torch.cuda.synchronize()
    libattn.attention(q, k, v, causal=True, out=OnlyDlpack(o), lse_out=OnlyDlpack(lse))
    compare({"o": o, "lse": lse}, {n: want[n] for n in ("o", "lse")}, DTYPE)
