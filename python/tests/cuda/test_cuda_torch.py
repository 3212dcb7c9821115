"""PyTorch on CUDA: the drop-ins, torch.compile, autocast, deterministic algorithms."""

import libattn
import libattn.torch
import pytest
import torch
from against_float64 import Expected, Inputs, compare, expected, found, inputs

DTYPE = torch.bfloat16


def _heads_first(*tensors):
    return [t.transpose(1, 2) for t in tensors]


@pytest.mark.parametrize("masked", ("causal", "mask", "bias", "plain"))
def test_scaled_dot_product_attention(device, masked):
    """Results and gradients against PyTorch's own function in float64."""
    generator = torch.Generator().manual_seed(5)
    q, k, v, dout = (
        torch.randn(2, 4, n, 64, generator=generator).to(device, DTYPE)
        for n in (130, 130, 130, 130)
    )
    options = {"is_causal": True} if masked == "causal" else {}
    if masked == "mask":
        options["attn_mask"] = torch.rand(130, 130, generator=generator).to(device) < 0.8
    if masked == "bias":
        options["attn_mask"] = torch.randn(2, 1, 130, 130, generator=generator).to(device, DTYPE)
    got, want = [], []
    for function, dtype, out in (
        (libattn.torch.scaled_dot_product_attention, DTYPE, got),
        (torch.nn.functional.scaled_dot_product_attention, torch.float64, want),
    ):
        exact = {
            n: t.to(dtype) if torch.is_tensor(t) and t.is_floating_point() else t
            for n, t in options.items()
        }
        leaves = [t.detach().to(dtype).requires_grad_() for t in (q, k, v)]
        o = function(*leaves, **exact)
        out += [o, *torch.autograd.grad(o, leaves, dout.to(dtype))]
    names = ("o", "dq", "dk", "dv")
    compare(
        dict(zip(names, got, strict=True)),
        {
            n: Expected(t.detach().cpu().numpy(), error)
            for (n, error), t in zip(_errors(q, k, v, dout, options).items(), want, strict=True)
        },
        DTYPE,
    )


def _errors(q, k, v, dout, options):
    """The errors of o, dq, dk, dv. The tensors are [batch, heads, len, dim], as in PyTorch."""
    words = {"causal": options.get("is_causal", False), "diagonal": "top_left"}
    if "scale" in options:
        words["scale"] = options["scale"]
    mask = options.get("attn_mask")
    if mask is not None:
        name = "mask" if mask.dtype == torch.bool else "bias"
        words[name] = mask.reshape((1,) * (4 - mask.dim()) + mask.shape)
    rows = (t.transpose(1, 2) for t in (q, k, v, dout))
    lse = torch.zeros(q.shape[:3])
    found = expected(Inputs(*rows, lse, words))
    return {n: found[n].error.swapaxes(1, 2) for n in ("o", "dq", "dk", "dv")}


def test_replace_sdpa(device):
    q = torch.randn(1, 2, 70, 32, device=device, dtype=DTYPE)
    with libattn.torch.replace_sdpa():
        got = torch.nn.functional.scaled_dot_product_attention(q, q, q)
    assert torch.equal(got, libattn.torch.scaled_dot_product_attention(q, q, q))


def test_flash_attn_functions(device):
    """Each function gives the result of the equivalent call of libattn.torch.attention."""
    x = inputs("causal", device, DTYPE, heads=(4, 4), lengths=(128, 128))
    slopes = torch.rand(4, device=device)
    want = libattn.torch.attention(
        x.q, x.k, x.v, causal=True, softcap=5.0, alibi_slopes=slopes, window=(50, 0)
    )
    options = {"causal": True, "softcap": 5.0, "alibi_slopes": slopes, "window_size": (50, 0)}
    assert torch.equal(libattn.torch.flash_attn_func(x.q, x.k, x.v, **options), want)
    qkv, kv = torch.stack((x.q, x.k, x.v), 2), torch.stack((x.k, x.v), 2)
    assert torch.equal(libattn.torch.flash_attn_qkvpacked_func(qkv, **options), want)
    assert torch.equal(libattn.torch.flash_attn_kvpacked_func(x.q, kv, **options), want)
    flat = [t.flatten(0, 1) for t in (x.q, x.k, x.v)]
    cu = torch.arange(3, dtype=torch.int32, device=device) * 128
    packed = libattn.torch.flash_attn_varlen_func(*flat, cu, cu, 128, 128, **options)
    assert torch.equal(packed.unflatten(0, (2, 128)), want)


@pytest.mark.parametrize("name", ("causal", "softcap", "bias", "sinks", "documents", "dropout"))
def test_compiled_without_breaks(device, name):
    x = inputs(name, device, DTYPE)
    if name == "dropout":
        numbers = {n: torch.tensor([x.options[n]], device=device) for n in ("seed", "offset")}
        x.options = x.options | numbers
    eager = found(x)
    torch.compiler.reset()
    compiled = torch.compile(libattn.torch.attention, fullgraph=True, backend="aot_eager")
    got = found(x, compiled)
    for one, t in eager.items():
        if name in ("sinks", "bias") and one in ("dsink", "dbias"):
            continue  # the order of these sums is not fixed
        assert torch.allclose(got[one].float(), t.float(), rtol=2e-2, atol=2e-2), one


def test_compiled_by_inductor_among_other_operations():
    x = inputs("causal", "cuda", DTYPE)
    torch.compiler.reset()

    @torch.compile(fullgraph=True)
    def layer(q, k, v):
        return libattn.torch.attention(q * 2, k, v + 1, causal=True).relu()

    want = libattn.torch.attention(x.q * 2, x.k, x.v + 1, causal=True).relu()
    assert torch.allclose(layer(x.q, x.k, x.v).float(), want.float(), rtol=2e-2, atol=2e-2)


def test_operators_pass_opcheck():
    x = inputs("causal", "cuda", DTYPE, lengths=(20, 20))
    q, k, v = (t.detach().requires_grad_() for t in (x.q, x.k, x.v))
    torch.library.opcheck(torch.ops.libattn.forward.default, (q, k, v))


def test_autocast_casts_as_pytorch_does(device):
    x = torch.randn(1, 50, 2, 64, device=device)
    with torch.autocast(device, DTYPE):
        got = libattn.torch.attention(x, x, x)
    half = x.to(DTYPE)
    assert torch.equal(got, libattn.torch.attention(half, half, half))


def test_deterministic_algorithms_turn_the_option_on():
    x = inputs("causal", "cuda", DTYPE)
    torch.use_deterministic_algorithms(True)
    try:
        first = found(x)
        again = found(x)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(t, again[name]) for name, t in first.items())
