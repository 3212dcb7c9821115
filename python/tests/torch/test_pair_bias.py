"""triangle_attention and evoformer_attention against textbook attention in float64, and a bias or
mask with an entry per group of sequences."""

import pytest

torch = pytest.importorskip("torch", minversion="2.4")

import libattn.torch as at  # noqa: E402

from .naive import check_close  # noqa: E402

TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def textbook(q, k, v, added, seen, scale=None):
    """q, k, v [B, N, H, n, d]; rows that see nothing are 0."""
    scale = q.size(-1) ** -0.5 if scale is None else scale
    scores = scale * (q @ k.transpose(-1, -2)) + added
    scores = scores.masked_fill(~seen, -torch.inf)
    some = seen.expand(scores.shape).any(-1, keepdim=True)
    p = torch.softmax(torch.where(some, scores, 0.0), -1)
    return torch.where(some, p, 0.0) @ v, scores


def results(function, leaves, dtype):
    leaves = [x.detach().to(dtype).requires_grad_() for x in leaves]
    out = function(*leaves)
    torch.manual_seed(7)
    upstream = torch.randn(out.shape, dtype=torch.float64).to(dtype)
    return (out, *torch.autograd.grad(out, leaves, upstream))


def compare(ours, theirs, leaves, dtype):
    got = results(ours, leaves, dtype)
    want = results(theirs, [x.to(dtype) for x in leaves], torch.float64)
    rough = results(theirs, leaves, dtype)
    names = ("out", "dq", "dk", "dv", "dbias", "dmask")
    for name, *each in zip(names, got, want, rough, strict=False):
        check_close(*each, name, dtype)


def inputs(batch, sequences, heads, rows, keys, dim):
    torch.manual_seed(0)
    shapes = [
        (batch, sequences, heads, rows, dim),
        (batch, sequences, heads, keys, dim),
        (batch, sequences, heads, keys, dim),
        (batch, 1, heads, rows, keys),
    ]
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("masked", [False, True])
def test_triangle_attention(dtype, batch, masked):
    leaves = inputs(batch, 4, 2, 9, 7, 16)
    mask = torch.rand(batch, 4, 1, 1, 7) < 0.6 if masked else None
    if masked:
        mask[0, 1] = False  # rows without a key
    seen = torch.ones(1, dtype=torch.bool) if mask is None else mask
    compare(
        lambda q, k, v, bias: at.triangle_attention(q, k, v, bias, mask),
        lambda q, k, v, bias: textbook(q, k, v, bias, seen)[0],
        leaves,
        dtype,
    )


def test_without_a_batch_dimension():
    leaves = [x[0] for x in inputs(1, 4, 2, 9, 7, 16)]
    mask = torch.rand(4, 1, 1, 7) < 0.6
    compare(
        lambda q, k, v, bias: at.triangle_attention(q, k, v, bias, mask, 0.3),
        lambda q, k, v, bias: textbook(q, k, v, bias, mask, 0.3)[0],
        leaves,
        torch.float32,
    )
    out = at.triangle_attention(*leaves, mask, return_aux=True)
    assert [tuple(x.shape) for x in out] == [(4, 2, 9, 16), (4, 2, 9, 1), (4, 2, 9, 1)]


def test_auxiliary_results_and_lengths():
    q, k, v, bias = inputs(2, 3, 2, 9, 7, 8)
    lengths = torch.tensor([[7, 3, 0], [1, 7, 5]], dtype=torch.int32)
    mask = torch.rand(2, 3, 1, 1, 7) < 0.7
    seen = mask & (torch.arange(7) < lengths[..., None, None, None])
    want, scores = textbook(q, k, v, bias, seen)
    for given in (lengths, lengths.long()[..., None, None, None]):
        out, lse, most = at.triangle_attention(
            q, k, v, bias, mask, return_aux=True, kv_lengths=given
        )
        torch.testing.assert_close(out, want)
        torch.testing.assert_close(lse, torch.logsumexp(scores, -1, keepdim=True))
        torch.testing.assert_close(most, scores.amax(-1, keepdim=True))


def test_auxiliary_results_under_autocast():
    """Autocast rounds the inputs; the row maximum is that of their products in f32."""
    q, k, v, bias = (x.float() for x in inputs(2, 3, 2, 9, 7, 64))
    seen = torch.ones(1, dtype=torch.bool)
    with torch.autocast("cpu", torch.bfloat16):
        out, lse, most = at.triangle_attention(q, k, v, bias, return_aux=True)
    _, scores = textbook(*(x.bfloat16().double() for x in (q, k, v, bias)), seen)
    assert out.dtype == torch.bfloat16 and lse.dtype == most.dtype == torch.float32
    want = scores.amax(-1, keepdim=True).float()
    torch.testing.assert_close(most, want, rtol=1e-5, atol=1e-5)
    assert (lse >= most).all()


def test_strides_expanded_biases_and_mask_types():
    q, k, v, bias = inputs(2, 3, 2, 8, 8, 8)
    mask = torch.rand(2, 1, 1, 1, 8) < 0.7
    want = at.triangle_attention(q, k, v, bias, mask.expand(2, 3, 1, 1, 8).contiguous())
    strided = [
        x.permute(4, 0, 3, 2, 1).contiguous().permute(1, 4, 3, 2, 0) for x in (q, k, v, bias)
    ]
    torch.testing.assert_close(at.triangle_attention(*strided, mask.int()), want)
    one = bias[:1].clone().requires_grad_()
    out = at.triangle_attention(q, k, v, one.expand(2, -1, -1, -1, -1))
    torch.testing.assert_close(out, at.triangle_attention(q, k, v, one.repeat(2, 1, 1, 1, 1)))
    (gradient,) = torch.autograd.grad(out.square().sum(), one)
    many = bias[:1].repeat(2, 1, 1, 1, 1).requires_grad_()
    out = at.triangle_attention(q, k, v, many)
    (each,) = torch.autograd.grad(out.square().sum(), many)
    torch.testing.assert_close(gradient, each.sum(0, keepdim=True))


def test_the_gradient_of_a_bias_has_its_type():
    q, k, v, bias = inputs(2, 3, 2, 8, 8, 8)
    half = [x.bfloat16() for x in (q, k, v)]
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        leaf = bias.to(dtype).requires_grad_()
        at.triangle_attention(*half, leaf).float().sum().backward()
        assert leaf.grad.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("kind", ["none", "bool", "additive", "learned", "values"])
def test_evoformer_attention(dtype, batch, kind):
    leaves = [x.transpose(2, 3) for x in inputs(batch, 3, 2, 8, 8, 16)[:3]]
    bias = torch.randn(batch, 1, 2, 8, 8, dtype=torch.float64)
    keep = torch.rand(batch, 3, 1, 1, 8) < 0.7
    keep[0, 0] = True
    mask = {
        "none": None,
        "bool": keep,
        "additive": (keep.double() - 1) * 1e9,
        "learned": torch.randn(keep.shape, dtype=torch.float64),
        "values": torch.randn(keep.shape, dtype=torch.float64),
    }[kind]
    leaves.append(bias)
    if kind == "learned":
        leaves.append(mask)
    if kind in ("additive", "values"):
        mask = mask.to(dtype)

    def ours(q, k, v, bias, learned=None):
        return at.evoformer_attention(q, k, v, [mask if learned is None else learned, bias])

    def theirs(q, k, v, bias, learned=None):
        seen = torch.ones(1, dtype=torch.bool)
        if kind == "bool" or kind == "additive":
            seen = keep
        elif kind == "values":
            bias = bias + mask.to(bias.dtype)
        elif kind == "learned":
            bias = bias + learned
        out, _ = textbook(*(x.transpose(2, 3) for x in (q, k, v)), bias, seen)
        return out.transpose(2, 3)

    compare(ours, theirs, leaves, dtype)


def test_evoformer_attention_takes_fewer_biases():
    q, k, v = (x.transpose(2, 3) for x in inputs(1, 3, 2, 8, 8, 16)[:3])
    plain = at.evoformer_attention(q, k, v, [])
    for biases in ([], [None], [None, None], (None,)):
        torch.testing.assert_close(at.evoformer_attention(q, k, v, biases), plain)
    hidden = at.evoformer_attention(q, k, v, [torch.full((1, 3, 1, 1, 8), -1e9)])
    assert (hidden == 0).all()


REFUSED = {
    "type of q": lambda a: (None, *a[1:]),
    "rank of q": lambda a: (a[0][0, 0], *a[1:]),
    "rank of bias": lambda a: (*a[:3], a[3][0]),
    "type of bias": lambda a: (*a[:3], a[3].int()),
    "shape of bias": lambda a: (*a[:3], a[3][..., 1:]),
    "batch dimensions of k": lambda a: (a[0], a[1][:, 1:], *a[2:]),
    "shape of mask": lambda a: (*a, torch.ones(2, 3, 1, 8, 8, dtype=torch.bool)),
}


@pytest.mark.parametrize("rule", REFUSED)
def test_triangle_attention_refuses(rule):
    with pytest.raises(ValueError, match=f"triangle_attention: {rule}: found .*; accepted "):
        at.triangle_attention(*REFUSED[rule](inputs(2, 3, 2, 8, 8, 8)))


def test_lengths_of_other_types_or_beyond_32_bits_are_refused():
    for dtype in (torch.bool, torch.uint8, torch.float32):
        with pytest.raises(ValueError, match="triangle_attention: type of kv_lengths: found .*int"):
            at.triangle_attention(
                *inputs(2, 3, 2, 8, 8, 8), kv_lengths=torch.ones(2, 3, dtype=dtype)
            )
    for length in (2**32 + 2, 2**32 - 1, -(2**32)):
        with pytest.raises(ValueError, match=f"len_kv: found {length}; accepted "):
            at.triangle_attention(*inputs(2, 3, 2, 8, 8, 8), kv_lengths=torch.full((2, 3), length))


def test_evoformer_attention_refuses():
    q, k, v = (x.transpose(2, 3) for x in inputs(2, 3, 2, 8, 8, 16)[:3])
    mask, bias = torch.zeros(2, 3, 1, 1, 8), torch.zeros(2, 1, 2, 8, 8)
    for rule, biases in {
        "biases": [mask, bias, bias],
        "shape of res_mask": [mask[:, :1], bias],
        "shape of pair_bias": [mask, bias[:1]],
        "type of res_mask": [1.0, bias],
    }.items():
        with pytest.raises(ValueError, match=f"evoformer_attention: {rule}: found .*; accepted "):
            at.evoformer_attention(q, k, v, biases)


@pytest.mark.parametrize("with_mask", (False, True))
@pytest.mark.parametrize("batch", ((2, 0), (0, 3), (1, 0)))
def test_no_sequences(batch, with_mask):
    q, k, v, bias = inputs(*batch, 2, 5, 7, 8)
    bias.requires_grad_()
    mask = torch.ones(batch[0], 1, 1, 1, 7, dtype=torch.bool) if with_mask else None
    lengths = torch.ones(batch, dtype=torch.int32)
    out, lse, most = at.triangle_attention(q, k, v, bias, mask, return_aux=True, kv_lengths=lengths)
    assert out.shape == q.shape and lse.shape == most.shape == (*batch, 2, 5, 1)
    assert (torch.autograd.grad(out.sum(), bias)[0] == 0).all()
    rows = [x.transpose(2, 3) for x in (q, k, v)]
    for res_mask in (None, torch.zeros(*batch, 1, 1, 7), torch.rand(*batch, 1, 1, 7)):
        out = at.evoformer_attention(*rows, [res_mask, bias])
        assert out.shape == rows[0].shape
        assert (torch.autograd.grad(out.sum(), bias)[0] == 0).all()


@pytest.mark.parametrize("entries", [1, 2, 3, 6])
def test_groups_of_sequences_under_vmap(entries):
    torch.manual_seed(0)
    q, k, v = (torch.randn(3, 6, 5, 2, 8, dtype=torch.float64) for _ in range(3))
    bias = torch.randn(3, entries, 2, 5, 5, dtype=torch.float64)

    def loss(q, k, v, bias):
        return at.attention(q, k, v, bias=bias).square().sum()

    got = torch.vmap(torch.func.grad(loss, argnums=3))(q, k, v, bias)
    shared = torch.vmap(loss, in_dims=(0, 0, 0, None))(q, k, v, bias[0])
    for n in range(3):
        leaf = bias[n].clone().requires_grad_()
        torch.testing.assert_close(
            got[n], torch.autograd.grad(loss(q[n], k[n], v[n], leaf), leaf)[0]
        )
        torch.testing.assert_close(shared[n], loss(q[n], k[n], v[n], bias[0]))


@pytest.mark.parametrize(
    ("option", "message"),
    (
        ({"return_aux": 1}, "return_aux: found 1; accepted True or False"),
        ({"scale": "x"}, "scale: found 'x'; accepted a number"),
    ),
)
def test_errors_name_the_function(option, message):
    q, k, v, bias = inputs(1, 3, 2, 8, 8, 8)
    with pytest.raises(ValueError, match=f"^triangle_attention: {message}"):
        at.triangle_attention(q, k, v, bias, **option)


def test_compiled():
    q, k, v, bias = (x.float() for x in inputs(2, 3, 2, 8, 8, 8))
    mask = torch.rand(2, 3, 1, 1, 8) < 0.7
    leaf = bias.clone().requires_grad_()
    compiled = torch.compile(at.triangle_attention, backend="aot_eager", fullgraph=True)
    out = compiled(q, k, v, leaf, mask)
    torch.testing.assert_close(out, at.triangle_attention(q, k, v, bias, mask))
    (got,) = torch.autograd.grad(out.sum(), leaf)
    (want,) = torch.autograd.grad(at.triangle_attention(q, k, v, leaf, mask).sum(), leaf)
    torch.testing.assert_close(got, want)
