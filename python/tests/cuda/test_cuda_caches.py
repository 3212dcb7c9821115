"""8-bit caches: decode against float64 on the decoded values of the codes, and bad input."""

import libattn
import pytest
import torch

B, H, G, M = 3, 8, 2, 300
TYPES = (torch.float8_e4m3fn, torch.float8_e5m2)
PAGE = 16


def draw(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def cast(x, kv_type):
    return x.round().clamp(-128, 127).to(kv_type) if kv_type == torch.int8 else x.to(kv_type)


def make(device, kv_type, q_type, dim, len_q=1):
    """q, k, v, their descales, and k and v in float64."""
    q = draw(B, len_q, H, dim, seed=1).to(device, q_type)
    unit = 32.0 if kv_type == torch.int8 else 1.0
    k, v = (cast(draw(B, M, G, dim, seed=n) * unit, kv_type).to(device) for n in (2, 3))
    descales = [draw(B, G, seed=n).abs().add(0.5).div(unit).to(device) for n in (4, 5)]
    wide = [
        x.cpu().float().double() * d.cpu().double()[:, None, :, None]
        for x, d in zip((k, v), descales, strict=True)
    ]
    return q, k, v, dict(zip(("descale_k", "descale_v"), descales, strict=True)), *wide


def attention64(q, k, v, lengths):
    """Causal from the bottom right, in float64; rows of empty sequences are 0."""
    q, rows = q.cpu().double(), []
    for b, length in enumerate(lengths):
        keys = k[b, :length].repeat_interleave(H // G, 1)
        values = v[b, :length].repeat_interleave(H // G, 1)
        score = torch.einsum("nhd,mhd->hnm", q[b], keys) / q.shape[-1] ** 0.5
        n = q.shape[1]
        hidden = torch.ones(n, length, dtype=torch.bool).triu(length - n + 1)
        p = score.masked_fill(hidden, -torch.inf).softmax(-1).nan_to_num(0.0)
        rows.append(torch.einsum("hnm,mhd->nhd", p, values))
    return torch.stack(rows)


def paged(x, order):
    """[pages, PAGE, G, dim]: pages in the order of the block table; NaN past the last key."""
    pages = -(-M // PAGE)
    whole = torch.zeros(B, pages * PAGE, *x.shape[2:], dtype=torch.uint8, device=x.device)
    whole.fill_(0x7F)
    whole[:, :M] = x.view(torch.uint8)
    flat = whole.view(B * pages, PAGE, *x.shape[2:])
    out = torch.empty_like(flat)
    out[order] = flat
    return out.view(x.dtype)


def near(o, want, q_type):
    tolerance = {torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9, torch.float32: 2.0**-16}[q_type]
    torch.testing.assert_close(o.cpu().double(), want, rtol=tolerance, atol=tolerance / 2)


@pytest.mark.parametrize("kv_type", (*TYPES, torch.int8))
@pytest.mark.parametrize("q_type", (torch.bfloat16, torch.float16, torch.float32))
@pytest.mark.parametrize("dim", (40, 64, 128, 256))
@pytest.mark.parametrize("len_q", (1, 20))
def test_decode_of_a_cache(device, kv_type, q_type, dim, len_q):
    if q_type == torch.float32 and kv_type != torch.int8:
        pytest.skip("f8 keys have a 16-bit q")
    q, k, v, descales, k64, v64 = make(device, kv_type, q_type, dim, len_q)
    lengths = [M, 123, 40]
    lens = torch.tensor(lengths, dtype=torch.int32, device=device)
    want = attention64(q, k64, v64, lengths)
    o = libattn.decode(q, k, v, len_kv=lens, causal=True, **descales)
    near(o, want, q_type)
    order = torch.randperm(B * -(-M // PAGE), generator=torch.Generator().manual_seed(9))
    pages = [paged(x, order.to(device)) for x in (k, v)]
    table = order.view(B, -1).int().to(device)
    o = libattn.decode(q, *pages, block_table=table, len_kv=lens, causal=True, **descales)
    near(o, want, q_type)


@pytest.mark.parametrize("kv_type", (TYPES[0], torch.int8))
@pytest.mark.parametrize("each", (True, False))
@pytest.mark.parametrize("len_q", (1, 20))
@pytest.mark.parametrize("spread", (0.0, 8.0))
def test_factors_of_rows_and_pages(device, kv_type, each, len_q, spread):
    """Descales that differ by many powers of 2, one per row (`each`) or per page. They are NaN
    where there is no key."""
    q, k, v, _, _, _ = make(device, kv_type, torch.float16, 128, len_q)
    lengths, width = [M, 123, 40], -(-M // PAGE)
    lens = torch.tensor(lengths, dtype=torch.int32, device=device)
    factors = [  # [batch, page, row or 1, head]
        draw(B, width, PAGE if each else 1, G, seed=n).mul(power).exp2().div(32)
        for n, power in ((6, 0.5), (7, spread))  # k: larger scores add errors
    ]
    of_rows = [f.expand(B, width, PAGE, G).reshape(B, -1, G)[:, :M].contiguous() for f in factors]
    k64, v64 = (
        x.cpu().float().double() * f.double()[..., None]
        for x, f in zip((k, v), of_rows, strict=True)
    )
    want = attention64(q, k64, v64, lengths)
    for b, length in enumerate(lengths):
        for f in of_rows:
            f[b, length:] = torch.nan
    rows = {n: f.to(device) for n, f in zip(("descale_k", "descale_v"), of_rows, strict=True)}
    o = libattn.decode(q, k, v, len_kv=lens, causal=True, out_dtype=torch.float32, **rows)
    scale = want.abs().max()  # terms differ in size: the largest sets the error

    def close(o):
        torch.testing.assert_close(o.cpu().double(), want, rtol=2.0**-9, atol=float(scale) * 2e-3)

    close(o)
    order = torch.randperm(B * width, generator=torch.Generator().manual_seed(9))
    pages = [paged(x, order.to(device)) for x in (k, v)]
    of_pages = []
    for f in factors:
        flat = torch.full((B * width, *f.shape[2:]), torch.nan)
        flat[order] = f.reshape(B * width, *f.shape[2:])
        of_pages.append(flat.to(device))
    table = order.view(B, -1).int().to(device)
    o = libattn.decode(
        q,
        *pages,
        block_table=table,
        len_kv=lens,
        causal=True,
        out_dtype=torch.float32,
        descale_k=of_pages[0],
        descale_v=of_pages[1],
    )
    close(o)
    missing = table.clone()
    missing[0, 1] = -1  # a missing page: its descale must not be read
    o = libattn.decode(q, *pages, block_table=missing, len_kv=lens, descale_k=of_pages[0])
    assert bool(o.isfinite().all())


@pytest.mark.parametrize(
    ("kv_type", "q_type"),
    [(kv_type, torch.bfloat16) for kv_type in TYPES] + [(torch.int8, torch.float32)],
)
def test_hostile_tables_and_lengths(device, kv_type, q_type):
    """Missing pages hide their keys; lengths are clamped; other sequences stay as they are."""
    q, k, v, descales, k64, v64 = make(device, kv_type, q_type, 64)
    width = -(-M // PAGE)
    order = torch.arange(B * width)
    pages = [paged(x, order.to(device)) for x in (k, v)]
    table = order.view(B, -1).int().clone()
    table[0, 3:] = torch.tensor([-1, 2**31 - 1, -(2**31), B * width] * 4)
    # On the host, lengths are checked and refused instead of clamped.
    lens = torch.tensor([2**31 - 1, 77, -9] if device == "cuda" else [M, 77, 0], dtype=torch.int32)
    o = libattn.decode(q, *pages, block_table=table.to(device), len_kv=lens.to(device), **descales)
    near(o, attention64(q, k64, v64, [3 * PAGE, 77, 0]), q_type)


@pytest.mark.parametrize("name", ("descale_k", "descale_v"))
def test_a_descale_of_nan_makes_its_rows_nan(device, name):
    q, k, v, descales, k64, v64 = make(device, TYPES[0], torch.bfloat16, 128)
    descales[name][1, 0] = torch.nan
    lengths = [M, 100, 0]
    lens = torch.tensor(lengths, dtype=torch.int32, device=device)
    descales[name][2] = torch.nan  # this sequence sees no key, so its o is 0 even with NaN
    o = libattn.decode(q, k, v, len_kv=lens, **descales)
    assert bool(o[1, :, : H // G].isnan().all())
    want = attention64(q, k64, v64, lengths)
    want[1, :, : H // G] = torch.nan
    tolerance = 2.0**-6
    torch.testing.assert_close(
        o.cpu().double(), want, rtol=tolerance, atol=tolerance, equal_nan=True
    )


def test_every_code_is_read(device):
    """One key has all the weight, so o equals v, also for NaN, infinities and subnormals."""
    codes = torch.arange(256, dtype=torch.uint8)
    for kv_type in (*TYPES, torch.int8):
        v = codes.view(kv_type).view(1, 1, 1, 256).to(device)
        k = torch.ones(1, 1, 1, 8).to(kv_type).to(device)
        q = torch.ones(1, 1, 1, 8, dtype=torch.float16, device=device)
        o = libattn.decode(q, k, v, out_dtype=torch.float32)
        want = codes.view(kv_type).float()
        torch.testing.assert_close(o.cpu().ravel(), want, rtol=0, atol=0, equal_nan=True)


def test_refusals(device):
    q, k, v, descales, _, _ = make(device, TYPES[0], torch.bfloat16, 64)
    with pytest.raises(ValueError, match="shape of descale_k"):
        libattn.decode(q, k, v, descale_k=descales["descale_k"][:2])
    with pytest.raises(ValueError, match="type of k"):
        libattn.decode(q.float(), k, v)
