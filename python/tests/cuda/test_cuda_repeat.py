"""Many runs of a forward and of a deterministic backward give the same bits, also while other work
runs on the device."""

import libattn
import pytest
import torch
from against_float64 import inputs

RUNS = 1000
OPTIONS = {"causal": True, "softcap": 20.0}


def _large(dtype=torch.bfloat16):
    """Inputs of enough tiles that several share a multiprocessor and finish in any order."""
    return inputs("causal", "cuda", dtype, dims=(128, 128), heads=(8, 2), lengths=(1100, 1100))


def _differences(first, again):
    """The number of elements that differ in bits (NaN included), counted on the device."""
    return sum(
        (a.view(torch.int16) != b.view(torch.int16)).sum()
        for a, b in zip(first, again, strict=True)
    )


def test_forwards_are_bit_identical():
    x = _large()

    def run():
        o, lse = libattn.attention(x.q, x.k, x.v, return_lse=True, **OPTIONS)
        return o, lse.view(torch.bfloat16)

    first = run()
    count = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(RUNS):
        count += _differences(first, run())
    assert int(count) == 0


@pytest.mark.parametrize("grouped", (False, True))
def test_deterministic_backwards_are_bit_identical(grouped):
    heads = (8, 2) if grouped else (8, 8)
    x = inputs("causal", "cuda", torch.bfloat16, dims=(64, 64), heads=heads, lengths=(1100, 1100))
    bias = torch.randn(1, 8, 1100, 1100, device="cuda", dtype=torch.bfloat16)
    sinks = torch.randn(8, device="cuda")
    options = OPTIONS | {"bias": bias, "sinks": sinks}
    o, lse = libattn.attention(x.q, x.k, x.v, return_lse=True, **options)

    def run():
        found = libattn.attention_backward(
            x.dout, x.q, x.k, x.v, o, lse, deterministic=True, **options
        )
        return [t.view(torch.int16).view(torch.bfloat16) for t in found]

    first = run()
    count = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(RUNS // (1 + grouped)):
        count += _differences(first, run())
    assert int(count) == 0
