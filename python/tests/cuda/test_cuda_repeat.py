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


def _differing_backwards(x, options, runs):
    """The number of elements of all gradients that differ from those of the first run."""
    o, lse = libattn.attention(x.q, x.k, x.v, return_lse=True, **options)

    def run():
        found = libattn.attention_backward(
            x.dout, x.q, x.k, x.v, o, lse, deterministic=True, **options
        )
        return [t.view(torch.bfloat16) for t in found if t is not None]

    first = run()
    count = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(runs):
        count += _differences(first, run())
    return int(count)


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
    assert _differing_backwards(x, options, RUNS // (1 + grouped)) == 0


def _options_by_name(name):
    if name == "documents":  # of 137 rows
        begin = torch.arange(1100, dtype=torch.int32, device="cuda") // 137 * 137
        return {"causal": True, "kv_begin": begin[None]}
    return {"dropout": {"causal": True, "dropout_p": 0.1, "seed": 7}, "plain": {}}[name]


@pytest.mark.parametrize("dim", (64, 128, 256, 512))
@pytest.mark.parametrize("name", ("plain", "documents", "dropout"))
def test_deterministic_backwards_are_bit_identical_by_dim(name, dim):
    x = inputs("plain", "cuda", torch.bfloat16, (dim, dim), heads=(8, 8), lengths=(1100, 1100))
    assert _differing_backwards(x, _options_by_name(name), RUNS) == 0
