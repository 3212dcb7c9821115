"""Forward and backward on CUDA tensors against float64: options, dims, strides, packed batches; and
what CUDA does not support is refused."""

import math

import against_float64
import libattn
import libattn.torch
import pytest
import torch
from against_float64 import B, G, H, M, N, compare, expected, found, inputs

TYPES = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", against_float64.OPTIONS)
def test_options(device, name, dtype):
    x = inputs(name, device, dtype)
    compare(found(x), expected(x), dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("rise", "every"), ((5, 1), (9, 1), (9, 64), (20, 64), (200, 1)))
@pytest.mark.parametrize("name", ("causal", "softcap", "dropout", "bias", "mask"))
@pytest.mark.parametrize("dim", (64, 128))
def test_scores_that_rise(device, dim, name, rise, every, dtype):
    """For every third query, all or a few of the keys from 200 on are 2^rise times as probable as
    the earlier ones. With 5, lazy rescaling keeps the old row maximum; 9 is about its threshold and
    above. 2^20 is beyond the range of float16, 2^200 beyond that of float32."""
    x = inputs(name, device, dtype, (dim, dim))
    if name == "softcap":
        x.options["softcap"] = 300.0
    x.q[..., 0] = 0
    x.q[:, ::3, :, 0] = 8
    x.k[:, 200::every, :, 0] = rise * math.log(2) * math.sqrt(dim) / 8
    got, want = found(x), expected(x)
    first = ("o", "lse")
    compare({n: got[n] for n in first}, {n: want[n] for n in first}, dtype)


@pytest.mark.parametrize("heads", ((4, 4), (4, 1), (6, 2)))
@pytest.mark.parametrize("dims", ((16, 16), (128, 128), (256, 256), (72, 40), (33, 65), (1, 3)))
def test_dims_and_groups(device, dims, heads):
    x = inputs("causal", device, torch.bfloat16, dims, heads)
    compare(found(x), expected(x), torch.bfloat16)


@pytest.mark.parametrize("lengths", ((1, 1), (1, 500), (129, 1), (64, 128), (257, 129)))
def test_lengths(device, lengths):
    x = inputs("causal top left", device, torch.bfloat16, lengths=lengths)
    compare(found(x), expected(x), torch.bfloat16)


def _embedded(x, offset):
    """A view with the same values that begins `offset` elements into a larger tensor."""
    b, n, h, d = x.shape
    whole = torch.full((b, h, n + 3, d + 7), torch.nan, dtype=x.dtype, device=x.device).flatten()
    whole = torch.cat((whole.new_full((offset,), torch.nan), whole))
    view = whole[offset:].unflatten(0, (b, h, n + 3, d + 7))[:, :, 1 : n + 1, 2 : d + 2]
    view = view.transpose(1, 2)
    view.copy_(x)
    return view


@pytest.mark.parametrize("offset", (0, 1, 3, 8))
def test_strides_and_odd_offsets(device, offset):
    """Rows may begin at any address: offsets are not multiples of 8 elements. The padding between
    rows is NaN, so that a read of it shows in the result."""
    x = inputs("causal", device, torch.bfloat16)
    want = expected(x)
    x.q, x.k, x.v, x.dout = (_embedded(t, offset) for t in (x.q, x.k, x.v, x.dout))
    compare(found(x), want, torch.bfloat16)


def test_packed_equals_padded(device):
    """Packed sequences give the same results as separate calls."""
    x = inputs("causal", device, torch.bfloat16)
    lens = ((N, M), (61, 150))

    def packed(t, side):
        return torch.cat([t[b, : lens[b][side]] for b in range(B)])

    cu = [
        torch.tensor([0, a, a + b], dtype=torch.int32, device=device)
        for a, b in zip(*lens, strict=True)
    ]
    q, k, v = packed(x.q, 0), packed(x.k, 1), packed(x.v, 1)
    leaves = [t.requires_grad_() for t in (q, k, v)]
    o, lse = libattn.torch.attention(
        *leaves, cu_len_q=cu[0], cu_len_kv=cu[1], causal=True, return_lse=True
    )
    gradients = torch.autograd.grad(o, leaves, packed(x.dout, 0))
    whole = dict(zip(("o", "dq", "dk", "dv"), (o, *gradients), strict=True))
    at = [0, 0]
    for b, (n, m) in enumerate(lens):
        alone = against_float64.Inputs(
            *(t[b : b + 1, :length] for t, length in ((x.q, n), (x.k, m), (x.v, m), (x.dout, n))),
            torch.zeros(1, H, n, device=device),
            {"causal": True},
        )
        part = {
            name: t[at[side] : at[side] + (n, m)[side]][None]
            for name, t, side in ((name, whole[name], name in ("dk", "dv")) for name in whole)
        }
        part["lse"] = lse[None, :, at[0] : at[0] + n]
        compare(part, expected(alone), torch.bfloat16)
        at = [at[0] + n, at[1] + m]


def test_a_gradient_of_lse_alone_and_of_some_inputs(device):
    x = inputs("causal", device, torch.bfloat16)
    want = expected(dataclass_without_dout(x))
    k = x.k.detach().requires_grad_()
    _, lse = libattn.torch.attention(x.q, k, x.v, causal=True, return_lse=True)
    (dk,) = torch.autograd.grad(lse, k, x.dlse)
    compare({"dk": dk}, {"dk": want["dk"]}, torch.bfloat16)


def dataclass_without_dout(x):
    return against_float64.Inputs(x.q, x.k, x.v, torch.zeros_like(x.dout), x.dlse, x.options)


def test_gradients_are_added_to(device):
    x = inputs("causal", device, torch.bfloat16)
    want = expected(x)
    o, lse = libattn.attention(x.q, x.k, x.v, causal=True, return_lse=True)
    made = {
        n: torch.full_like(t, 2.0, dtype=torch.float32)
        for n, t in (("dq", x.q), ("dk", x.k), ("dv", x.v))
    }
    libattn.attention_backward(
        x.dout, x.q, x.k, x.v, o, lse, dlse=x.dlse, accumulate=True, causal=True, **made
    )
    got = {n: t - 2 for n, t in made.items()}
    compare(got, {n: want[n] for n in made}, torch.bfloat16)


@pytest.mark.parametrize("attend", (libattn.torch.attention, libattn.torch.decode))
def test_few_queries_of_a_cache(device, attend):
    """A contiguous cache (no block_table), without new keys to append."""
    x = inputs("causal", device, torch.bfloat16, lengths=(3, 400))
    lens = torch.tensor([400, 129], dtype=torch.int32, device=device)
    x.options = {"len_kv": lens, "causal": True}
    want = expected(x)
    o, lse = attend(x.q, x.k, x.v, return_lse=True, **x.options)
    compare({"o": o, "lse": lse}, {n: want[n] for n in ("o", "lse")}, torch.bfloat16)


def test_what_is_not_there_is_refused_with_a_reason():
    """CUDA must refuse, with a reason, rather than copy to the host or compute something else."""
    q = torch.randn(B, 16, G, 32, device="cuda")
    x = q.double()
    heads_first = x.transpose(1, 2)
    calls = (
        lambda: libattn.attention(x, x, x),
        lambda: libattn.torch.attention(x, x, x),
        lambda: libattn.torch.flash_attn_func(x, x, x),
        lambda: libattn.torch.scaled_dot_product_attention(heads_first, heads_first, heads_first),
    )
    for call in calls:
        with pytest.raises(libattn.Unsupported, match="cuda: .*f64"):
            call()
    with pytest.raises(libattn.Unsupported, match="cuda: rope: no kernel for f64"):
        libattn.rope(q.double())


def test_lse_of_long_rows(device):
    """If the row maximum does not change, the running sum must be rescaled by exactly 1. An error
    in this factor would accumulate over the many tiles of a long row. lse is 8 to 10 here and must
    be right to a few units of rounding of f32."""
    n = 32768
    generator = torch.Generator(device=device).manual_seed(5)
    draw = dict(dtype=torch.bfloat16, device=device, generator=generator)
    q = torch.randn(1, 256, 4, 64, **draw)
    k, v = (torch.randn(1, n, 4, 64, **draw) for _ in range(2))
    _, lse = libattn.attention(q, k, v, return_lse=True)
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double()) / 8
    error = (lse.double() - torch.logsumexp(scores, -1)).abs().max().item()
    assert error < 6e-6, error
