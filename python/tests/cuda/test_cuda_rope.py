"""Rotary embedding on CUDA tensors: the operation against float64, and attention with the option
`rope` against attention on rotated tensors: with gradients, on a cache, and captured in a graph."""

import libattn
import libattn.torch
import pytest
import torch

UNIT = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
STYLES = ("half", "interleaved")


def _normal(*shape, device, dtype=torch.bfloat16, seed=0):
    generator = torch.Generator().manual_seed(seed + shape[-1])
    return torch.randn(shape, generator=generator).to(device, dtype)


def _rotated(x, positions, style, rot_dim, base=10000.0):
    """In float64 on the host; positions [b|1, n]."""
    x = x.detach().double().cpu().clone()
    m = torch.arange(rot_dim // 2, dtype=torch.float64)
    angle = positions.double()[..., None, None] * base ** (-2 * m / rot_dim)
    pairs = (2 * m, 2 * m + 1) if style == "interleaved" else (m, m + rot_dim // 2)
    one, two = (index.long() for index in pairs)
    first, second = x[..., one].clone(), x[..., two].clone()
    x[..., one] = first * angle.cos() - second * angle.sin()
    x[..., two] = first * angle.sin() + second * angle.cos()
    return x


@pytest.mark.parametrize("dtype", UNIT)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(("dim", "rot_dim"), ((64, 64), (128, 32), (20, 14), (256, 256)))
def test_rope(device, dim, rot_dim, style, dtype):
    x = _normal(2, 37, 3, dim, device=device, dtype=dtype)
    offset = 2**20 - 40
    want = _rotated(x, torch.arange(37)[None] + offset, style, rot_dim)
    options = {"style": style, "rot_dim": rot_dim, "pos_offset": offset}
    tolerance = max(4 * UNIT[dtype], 2e-6) * want.abs().max().item()
    for function in (libattn.rope, libattn.torch.rope):
        got = function(x, **options)
        assert got.dtype == dtype and got.device == x.device
        assert (got.double().cpu() - want).abs().max().item() <= tolerance
    back = libattn.rope(got, inverse=True, **options)
    assert (back.double() - x.double()).abs().max().item() <= 2 * tolerance
    heads_first = x.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(libattn.rope(heads_first, **options), got)
    libattn.rope(x, out=x, **options)
    assert torch.equal(x, got)


def test_packed_rows_count_from_their_sequence(device):
    x = _normal(70, 3, 64, device=device)
    cu = torch.tensor([0, 1, 30, 30, 70], dtype=torch.int32, device=device)
    got = libattn.rope(x, cu_len=cu)
    for begin, end in ((0, 1), (1, 30), (30, 70)):
        assert torch.equal(got[begin:end], libattn.rope(x[begin:end]))


def _rope(device, kind):
    """Rotation for 150 queries and 150 keys: as an option of attention, and as the arguments with
    which `rope` rotates q and k separately."""
    if kind == "tables":
        angle = torch.rand(400, 32, generator=torch.Generator().manual_seed(3)) * 6
        tables = {"cos": angle.cos().to(device), "sin": angle.sin().to(device)}
        return libattn.Rope(**tables), tables, tables
    if kind == "positions":
        rows = torch.arange(150, dtype=torch.int32, device=device)[None]
        of_q, of_k = rows * 7 % 300, rows * 3
        return (
            libattn.Rope(positions_q=of_q, positions_kv=of_k),
            {"positions": of_q},
            {"positions": of_k},
        )
    options = {"style": kind, "rot_dim": 48, "base": 500.0, "pos_offset": 5}
    return libattn.Rope(**options), options, options


@pytest.mark.parametrize("kind", (*STYLES, "tables", "positions"))
def test_attention_rotates_as_the_operation_does(device, kind):
    """With gradients. A separate rotation rounds dq and dk once more, within the tolerance."""
    q = _normal(2, 150, 4, 64, device=device, seed=1).requires_grad_()
    k = _normal(2, 150, 2, 64, device=device, seed=2).requires_grad_()
    v = _normal(2, 150, 2, 64, device=device, seed=3).requires_grad_()
    dout = _normal(2, 150, 4, 64, device=device, seed=4)
    inside, of_q, of_k = _rope(device, kind)
    got = libattn.torch.attention(q, k, v, causal=True, rope=inside)
    rotated = (libattn.torch.rope(q, **of_q), libattn.torch.rope(k, **of_k))
    want = libattn.torch.attention(*rotated, v, causal=True)
    if device == "cuda":
        assert torch.equal(got, want), "the same kernels must give the same bits"
    assert (got - want).abs().max() < 0.05
    found = torch.autograd.grad(got, (q, k, v), dout)
    for one, other in zip(found, torch.autograd.grad(want, (q, k, v), dout), strict=True):
        scale = other.abs().max().item()
        assert (one.double() - other.double()).abs().max().item() < 0.03 * scale


@pytest.mark.parametrize("paged", (False, True))
def test_new_keys_are_rotated_as_they_are_appended(device, paged):
    """Only the new keys are rotated: cached keys were rotated when they were appended."""
    rope = {"style": "half", "pos_offset": 2}
    cache_k, cache_v = (_normal(2, 128, 2, 64, device=device, seed=n) for n in (5, 6))
    k_new, v_new = (_normal(2, 3, 2, 64, device=device, seed=n) for n in (7, 8))
    q = _normal(2, 3, 4, 64, device=device, seed=9)
    lens = torch.tensor([100, 17], dtype=torch.int32, device=device)
    want_k, want_v = cache_k.clone(), cache_v.clone()
    turned = q.clone()
    for b, length in enumerate(lens.tolist()):
        at = {**rope, "pos_offset": 2 + length}
        want_k[b, length : length + 3] = libattn.rope(k_new[b : b + 1], **at)[0]
        want_v[b, length : length + 3] = v_new[b]
        turned[b] = libattn.rope(q[b : b + 1], **at)[0]
    want = libattn.decode(turned, want_k, want_v, len_kv=lens + 3, causal=True)
    options = {"k_new": k_new, "v_new": v_new, "len_kv": lens, "causal": True}
    k, v = cache_k, cache_v
    if paged:
        k, v = (t.reshape(8, 32, 2, 64) for t in (cache_k, cache_v))
        options["block_table"] = torch.arange(8, dtype=torch.int32, device=device).view(2, 4)
    got = libattn.decode(q, k, v, rope=libattn.Rope(**rope), **options)
    assert torch.equal(k.reshape(want_k.shape), want_k)
    assert torch.equal(v.reshape(want_v.shape), want_v)
    assert (got - want).abs().max() < 0.03


@pytest.mark.parametrize("kv_type", (torch.int8, torch.float8_e4m3fn, torch.float8_e5m2))
@pytest.mark.parametrize("style", ("half", "interleaved"))
def test_new_keys_of_8_bits_are_rounded_once(device, kv_type, style):
    """The codes are rotated without their descale and rounded once. A value that is too large
    becomes what the type's conversion gives for it."""
    rope = {"style": style, "pos_offset": 2}
    unit = 60.0 if kv_type == torch.int8 else 100.0
    draws = [
        _normal(2, m, 2, 50, device="cpu", seed=n).float() * unit for n, m in enumerate((40, 3))
    ]
    if kv_type == torch.int8:
        draws = [x.round().clamp(-128, 127) for x in draws]
    cache, new = (x.to(kv_type).to(device) for x in draws)
    q = _normal(2, 1, 4, 50, device=device, seed=9)
    lens = torch.tensor([30, 0], dtype=torch.int32, device=device)
    want = cache.clone().cpu()
    for b, length in enumerate(lens.tolist()):
        at = {**rope, "pos_offset": 2 + length}
        turned = libattn.rope(new[b : b + 1].cpu().float(), **at)[0]
        if kv_type == torch.int8:
            turned = turned.round().clamp(-128, 127)
        want[b, length : length + 3] = turned.to(kv_type)
    k, v = cache.clone(), cache.clone()
    libattn.decode(q, k, v, rope=libattn.Rope(**rope), k_new=new, v_new=new, len_kv=lens)
    got, want = (t.cpu().view(torch.uint8).int() for t in (k, want))
    assert (got - want).abs().remainder(255).max() <= 1, "only ties may round to the next code"
    assert (got != want).float().mean() < 0.01
    values = v.cpu().view(torch.uint8)
    assert torch.equal(values[0, 30:33], new[0].cpu().view(torch.uint8))


def test_forward_and_backward_replay_with_changed_inputs():
    leaves = [_normal(2, 150, 2, 64, device="cuda", seed=n).requires_grad_() for n in range(3)]
    dout = _normal(2, 150, 2, 64, device="cuda", seed=4)

    def call():
        o = libattn.torch.attention(*leaves, causal=True, rope=libattn.Rope(), deterministic=True)
        return (o, *torch.autograd.grad(o, leaves, dout))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()  # compiles and loads the kernels
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = call()
    for seed in (11, 22):
        with torch.no_grad():
            for n, t in enumerate(leaves):
                t.copy_(_normal(2, 150, 2, 64, device="cuda", seed=seed + n))
        graph.replay()
        for one, other in zip(got, call(), strict=True):
            assert torch.equal(one, other)
