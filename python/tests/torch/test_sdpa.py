"""scaled_dot_product_attention against PyTorch's own in float64, and replace_sdpa."""

import itertools
import math
import random
import threading

import pytest

torch = pytest.importorskip("torch", minversion="2.4")

import libattn.torch as at  # noqa: E402
from libattn.torch import _sdpa  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention as torch_sdpa  # noqa: E402

from .naive import check_close  # noqa: E402

F = torch.nn.functional


def theirs(query, key, value, mask=None, causal=False, scale=None):
    """PyTorch's math path, rows that see nothing set to 0 (as PyTorch does from 2.5 on)."""
    with sdpa_kernel(SDPBackend.MATH):
        out = torch_sdpa(query, key, value, mask, 0.0, causal, scale=scale)
    if mask is None:
        return out
    seen = mask if mask.dtype == torch.bool else mask > -torch.inf
    return torch.where(seen.any(-1, keepdim=True), out, 0.0)


def compare(shapes, dtype, mask=None, causal=False, scale=None, groups=1):
    """Result and gradients, where there are no rows without keys, next to PyTorch's."""
    torch.manual_seed(0)
    inputs = [torch.randn(shape).to(dtype) for shape in shapes]
    float_mask = mask is not None and mask.dtype != torch.bool
    results = []
    for function, kind in ((None, dtype), (theirs, torch.float64), (theirs, dtype)):
        leaves = [x.detach().to(kind).requires_grad_() for x in inputs]
        the_mask = mask
        if float_mask:
            the_mask = mask.to(kind if mask.dtype == dtype or kind == torch.float64 else mask.dtype)
            the_mask = the_mask.detach().requires_grad_()
            leaves.append(the_mask)
        if function is None:
            out = at.scaled_dot_product_attention(
                *leaves[:3], the_mask, 0.0, causal, scale=scale, enable_gqa=groups > 1
            )
        else:
            wide = leaves[:3]
            if groups > 1:
                wide[1:] = [x.repeat_interleave(groups, -3) for x in leaves[1:3]]
            out = function(*wide, the_mask, causal, scale)
        torch.manual_seed(1)
        upstream = torch.randn(out.shape).to(dtype)
        results.append((out, *torch.autograd.grad(out, leaves, upstream.to(kind))))
    names = ("out", "query's gradient", "key's gradient", "value's gradient", "mask's gradient")
    for name, got, want, rough in zip(names, *results, strict=False):
        check_close(got, want, rough, name, dtype)


RANKS = [
    ((5, 8), (7, 8), (7, 6)),
    ((3, 5, 8), (3, 7, 8), (3, 7, 6)),
    ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 6)),
    ((2, 2, 3, 5, 8), (2, 2, 3, 7, 8), (2, 2, 3, 7, 6)),
    ((2, 1, 2, 3, 5, 8), (2, 3, 2, 3, 7, 8), (2, 3, 2, 3, 7, 6)),
    ((2, 4, 5, 8), (1, 4, 7, 8), (1, 4, 7, 6)),
    ((1, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 6)),
    ((2, 4, 5, 8), (2, 1, 7, 8), (2, 1, 7, 6)),
    ((2, 1, 5, 8), (2, 4, 7, 8), (2, 4, 7, 6)),
    ((2, 4, 5, 8), (2, 1, 7, 8), (2, 4, 7, 6)),
    ((2, 4, 5, 8), (4, 7, 8), (7, 6)),
    ((2, 3, 7, 8), (2, 3, 4, 8), (2, 3, 4, 8)),
]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shapes", RANKS)
def test_ranks_and_broadcasting(shapes, causal):
    compare(shapes, torch.float32, causal=causal, scale=0.3)


@pytest.mark.parametrize("float_mask", [False, True])
@pytest.mark.parametrize(
    "shape",
    [(7,), (5, 7), (1, 7), (5, 1), (3, 5, 7), (3, 1, 7), (2, 1, 5, 7), (2, 3, 5, 7), (1, 1, 1, 7)],
)
def test_mask_shapes(shape, float_mask):
    torch.manual_seed(2)
    if len(shape) == 1:
        shape = (1, *shape)
    mask = torch.randn(shape) if float_mask else torch.rand(shape) < 0.7
    if not float_mask:
        mask[..., 0] = True
    compare(((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8)), torch.float32, mask)


@pytest.mark.parametrize("float_mask", [False, True])
@pytest.mark.parametrize(
    "shape", [(5, 7), (4, 5, 7), (3, 1, 1, 7), (1, 3, 4, 5, 7), (2, 1, 1, 5, 7)]
)
def test_mask_of_five_dimensions(shape, float_mask):
    torch.manual_seed(2)
    mask = torch.randn(shape) if float_mask else torch.rand(shape) < 0.7
    if not float_mask:
        mask[..., 0] = True
    compare(((2, 3, 4, 5, 8), (2, 3, 4, 7, 8), (2, 3, 4, 7, 8)), torch.float32, mask)


@pytest.mark.parametrize("expanded", [(2, 3, 5, 7), (3, 5, 7), (5, 7)])
def test_expanded_mask_gives_the_whole_gradient(expanded):
    """A mask that was expanded from one row gets the sum over what it broadcasts to."""
    q, k, v = (torch.randn(2, 3, n, 8) for n in (5, 7, 7))
    gradients = []
    for function, kind in (
        (at.scaled_dot_product_attention, torch.float32),
        (theirs, torch.float64),
    ):
        torch.manual_seed(3)
        row = torch.randn(1, 7).to(kind).requires_grad_()
        out = function(q.to(kind), k.to(kind), v.to(kind), row.expand(expanded))
        gradients.append(torch.autograd.grad(out.sin().sum(), row)[0])
    assert ((gradients[0] - gradients[1]).abs() < 1e-5).all()


def sweep():
    """A sample of the product that PyTorch's own tests sweep: types, lengths, dims, options."""
    everything = list(
        itertools.product(
            [torch.float32, torch.float16, torch.bfloat16, torch.float64],
            [(1, 7), (8, 8), (64, 128), (143, 256), (256, 143), (97, 1)],
            [8, 16, 33, 64, 128, 203],
            ["none", "causal", "bool", "float", "float32", "gqa", "mqa"],
            [None, "l1"],
        )
    )
    return random.Random(0).sample(everything, 40)


@pytest.mark.parametrize("dtype,lengths,dim,kind,scale", sweep())
def test_sweep(dtype, lengths, dim, kind, scale):
    n, m = lengths
    torch.manual_seed(n + m + dim)
    mask = None
    if kind == "bool":
        mask = torch.rand(2, 1, n, m) < 0.6
        mask[..., m // 2] = True
    elif kind == "float":
        mask = torch.randn(1, 4, n, m).to(dtype)
    elif kind == "float32":
        mask = torch.randn(n, m)
    heads_kv = {"gqa": 2, "mqa": 1}.get(kind, 4)
    shapes = ((2, 4, n, dim), (2, heads_kv, m, dim), (2, heads_kv, m, dim))
    number = None if scale is None else 1 / dim
    compare(shapes, dtype, mask, kind == "causal", number, groups=4 // heads_kv)


@pytest.mark.parametrize("float_mask", [False, True])
def test_rows_that_see_nothing_are_zero(float_mask):
    q, k, v = (torch.randn(2, 3, n, 8, requires_grad=True) for n in (5, 7, 7))
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[2] = False
    if float_mask:
        mask = torch.zeros(5, 7).masked_fill(~mask, -torch.inf)
    out = at.scaled_dot_product_attention(q, k, v, mask)
    assert (out[:, :, 2] == 0).all() and torch.isfinite(out).all()
    gradients = torch.autograd.grad(out.sum(), (q, k, v))
    assert all(bool(torch.isfinite(g).all()) for g in gradients)
    assert (gradients[0][:, :, 2] == 0).all()
    some = [0, 1, 3, 4]
    whole = at.scaled_dot_product_attention(q[:, :, some], k, v)
    assert torch.allclose(out[:, :, some], whole, atol=1e-6)
    nothing = at.scaled_dot_product_attention(q, k[:, :, :0], v[:, :, :0])
    assert nothing.shape == (2, 3, 5, 8) and (nothing == 0).all()


def test_causal_is_top_left():
    q, k, v = (torch.randn(1, 1, n, 4) for n in (3, 6, 6))
    out = at.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert torch.allclose(out[:, :, 0], v[:, :, 0])
    assert torch.allclose(out, theirs(q, k, v, causal=True), atol=1e-6)


def test_causal_bias():
    from torch.nn.attention.bias import causal_lower_right, causal_upper_left

    q, k, v = (torch.randn(2, 3, n, 8) for n in (4, 6, 6))
    for bias, diagonal in ((causal_upper_left(4, 6), 0), (causal_lower_right(4, 6), 2)):
        mask = torch.ones(4, 6, dtype=torch.bool).tril(diagonal)
        out = at.scaled_dot_product_attention(q, k, v, bias)
        assert torch.allclose(out, theirs(q, k, v, mask), atol=1e-6)
    with pytest.raises(ValueError, match="CausalBias"):
        at.scaled_dot_product_attention(q, k, v, causal_lower_right(3, 6))


def test_dropout_is_drawn_from_torchs_generator():
    n, m = 64, 128
    q, k, v = torch.zeros(1, 2, n, 8), torch.zeros(1, 2, m, 8), torch.eye(m).expand(1, 2, m, m)
    torch.manual_seed(5)
    one = at.scaled_dot_product_attention(q, k, v, dropout_p=0.25)
    two = at.scaled_dot_product_attention(q, k, v, dropout_p=0.25)
    torch.manual_seed(5)
    again = at.scaled_dot_product_attention(q, k, v, dropout_p=0.25)
    assert torch.equal(one, again) and not torch.equal(one, two)
    kept = one > 0
    assert torch.allclose(one[kept], torch.tensor(1 / m / 0.75))
    expected, sigma = 0.75, math.sqrt(0.25 * 0.75 / kept.numel())
    assert abs(kept.double().mean().item() - expected) < 4 * sigma
    for p in (-0.1, 1.1, 1.0, 0.001):
        with pytest.raises(ValueError):
            at.scaled_dot_product_attention(q, k, v, dropout_p=p)


Q, K, V = torch.zeros(2, 4, 5, 8), torch.zeros(2, 4, 7, 8), torch.zeros(2, 4, 7, 6)
MASK = torch.ones(5, 7, dtype=torch.bool)
REFUSED = {
    "mask with is_causal": ((Q, K, V, MASK, 0.0, True), {}),
    "one dimension": ((Q[0, 0, 0], K, V), {}),
    "types": ((Q, K.half(), V), {}),
    "heads": ((Q, K[:, :2], V[:, :2]), {}),
    "heads that do not divide": ((Q, K[:, :3], V[:, :3]), {"enable_gqa": True}),
    "groups of two dimensions": ((Q[0, 0], K[0, 0], V[0, 0]), {"enable_gqa": True}),
    "batch": ((Q, K[:1].repeat(3, 1, 1, 1), V), {}),
    "int mask": ((Q, K, V, MASK.int()), {}),
    "byte mask": ((Q, K, V, MASK.byte()), {}),
    "double mask": ((Q, K, V, MASK.double()), {}),
    "mask of one dimension": ((Q, K, V, MASK[0]), {}),
    "mask of a wrong length": ((Q, K, V, MASK[:, :6]), {}),
    "mask of a larger batch": ((Q[:1], K[:1], V[:1], MASK.expand(3, 4, 5, 7)), {}),
    "mask of too many dimensions": ((Q, K, V, MASK.expand(1, 2, 4, 5, 7)), {}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_torch_refuses_is_refused(case):
    args, options = REFUSED[case]
    with pytest.raises((ValueError, RuntimeError)) as ours:
        at.scaled_dot_product_attention(*args, **options)
    assert isinstance(ours.value, ValueError) and isinstance(ours.value, RuntimeError)
    if "enable_gqa" not in options:
        with pytest.raises((RuntimeError, IndexError)):
            torch_sdpa(*args, **options)


@pytest.mark.parametrize(
    "args,message",
    [
        ((Q, torch.zeros(2, 4, 7, 9), V), "k"),
        ((Q, K, V[:, :, :6]), "v"),
        ((torch.zeros(1, 1, 2, 600),) * 3, "512"),
        ((Q.int(), K.int(), V.int()), "type"),
    ],
)
def test_what_the_library_refuses_is_a_value_error(args, message):
    with pytest.raises(ValueError, match=message):
        at.scaled_dot_product_attention(*args)


def test_views_are_not_copied(monkeypatch):
    seen = []

    def spy(q, k, v, **options):
        seen.append((q, k, v, options.get("mask")))
        return at.attention(q, k, v, **options)

    monkeypatch.setattr(_sdpa, "attention", spy)
    packed = torch.randn(2, 6, 3, 4, 8)  # [b, n, (q, k, v), h, d], as a fused projection gives it
    views = [x.transpose(1, 2) for x in packed.unbind(2)]
    mask = (torch.rand(2, 1, 1, 6) < 0.7).expand(2, 4, 6, 6)
    out = at.scaled_dot_product_attention(*views, mask)
    assert out.shape == (2, 4, 6, 8)
    for got, view in zip(seen[0][:3], views, strict=True):
        assert got.data_ptr() == view.data_ptr()
        assert got.stride() == view.transpose(1, 2).stride()
    assert seen[0][3].data_ptr() == mask.data_ptr() and seen[0][3].stride() == mask.stride()
    strided = torch.randn(2, 4, 8, 6).transpose(-1, -2)
    out = at.scaled_dot_product_attention(strided, strided, strided)
    assert torch.allclose(out, theirs(strided, strided, strided), atol=1e-6)


def test_groups_of_different_sizes():
    q, k, v = (torch.randn(2, h, 5, 8, dtype=torch.float64) for h in (12, 2, 3))
    out = at.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    want = theirs(q, k.repeat_interleave(6, 1), v.repeat_interleave(4, 1))
    assert torch.allclose(out, want, atol=1e-12)


def test_double_gradients_are_exact():
    torch.manual_seed(0)
    inputs = [torch.randn(1, 2, n, 3, dtype=torch.float64, requires_grad=True) for n in (3, 4, 4)]
    mask = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(at.scaled_dot_product_attention, (*inputs, mask))


def test_autocast():
    q, k, v = (torch.randn(2, 3, 6, 8) for _ in range(3))
    mask = torch.zeros(6, 6)
    with torch.autocast("cpu", torch.bfloat16):
        out = at.scaled_dot_product_attention(q, k.bfloat16(), v, mask)
        assert out.dtype == torch_sdpa(q, k.bfloat16(), v, mask).dtype == torch.bfloat16
    assert torch.allclose(out.float(), theirs(q, k, v), atol=3e-2)


def calls(monkeypatch):
    count = []

    def spy(*args, **options):
        count.append(1)
        return at.attention(*args, **options)

    monkeypatch.setattr(_sdpa, "attention", spy)
    return count


def test_multihead_attention_goes_through(monkeypatch):
    count = calls(monkeypatch)
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(16, 4, batch_first=True)
    x = torch.randn(2, 6, 16)
    causal = torch.nn.Transformer.generate_square_subsequent_mask(6)
    padding = torch.zeros(2, 6, dtype=torch.bool)
    padding[0, 4:] = True
    for options in (
        {},
        {"attn_mask": causal, "is_causal": True},
        {"attn_mask": causal, "key_padding_mask": torch.zeros(2, 6).masked_fill(padding, -1e9)},
        {"key_padding_mask": padding},
    ):
        want, _ = layer(x, x, x, need_weights=False, **options)
        before = len(count)
        with at.replace_sdpa():
            got, _ = layer(x, x, x, need_weights=False, **options)
        assert len(count) == before + 1
        assert torch.allclose(got, want, atol=1e-5)


def test_replacement_nests_and_ends():
    original = F.scaled_dot_product_attention
    with at.replace_sdpa():
        with at.replace_sdpa():
            assert F.scaled_dot_product_attention is at.scaled_dot_product_attention
        assert F.scaled_dot_product_attention is at.scaled_dot_product_attention
    assert F.scaled_dot_product_attention is original
    with pytest.raises(KeyError), at.replace_sdpa():
        raise KeyError
    assert F.scaled_dot_product_attention is original

    @at.replace_sdpa()
    def current():
        return F.scaled_dot_product_attention

    assert current() is at.scaled_dot_product_attention
    assert F.scaled_dot_product_attention is original


def test_replacement_of_overlapping_threads():
    """One thread leaves while another is still inside: the original is back after both."""
    original = F.scaled_dot_product_attention
    entered, left = threading.Event(), threading.Event()

    def first():
        with at.replace_sdpa():
            entered.set()
            assert left.wait(10)

    thread = threading.Thread(target=first)
    thread.start()
    assert entered.wait(10)
    outer = at.replace_sdpa()
    outer.__enter__()
    left.set()
    thread.join()
    assert F.scaled_dot_product_attention is at.scaled_dot_product_attention
    outer.__exit__(None, None, None)
    assert F.scaled_dot_product_attention is original


def test_transformers_sdpa_goes_through(monkeypatch):
    transformers = pytest.importorskip("transformers")
    count = calls(monkeypatch)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation="sdpa",
    )
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(64, (2, 9))
    padding = torch.ones(2, 9, dtype=torch.long)
    padding[0, :3] = 0
    with torch.no_grad():
        want = model(ids, attention_mask=padding).logits
        with at.replace_sdpa():
            got = model(ids, attention_mask=padding).logits
    assert len(count) == 2
    real = padding.bool()
    assert torch.allclose(got[real], want[real], atol=1e-4)
