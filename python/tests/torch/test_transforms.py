"""torch.vmap and torch.func over attention: equal to a loop, and to autograd, for every option."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", minversion="2.4")

import libattn  # noqa: E402
from libattn import Rope  # noqa: E402
from libattn.torch import _ops as operators  # noqa: E402
from libattn.torch import attention, flash_attn_func, scaled_dot_product_attention  # noqa: E402
from torch.func import grad, jacrev, vjp  # noqa: E402

V, B, N, M, H, G, D = 3, 2, 6, 9, 4, 2, 8


def i32(*values):
    return torch.tensor(values, dtype=torch.int32)


def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


TABLES = {"cos": random(20, 4).cos(), "sin": random(20, 4).sin()}
BEGIN = torch.arange(N, dtype=torch.int32) // 2
KEYS = torch.arange(M, dtype=torch.int32)[None]
PACKED = {"cu_len_q": i32(0, 2, N), "cu_len_kv": i32(0, 4, M), "max_len_q": 4, "max_len_kv": 5}
# Options that all indices of vmap share.
SHARED = {
    "plain": {},
    "causal": {"causal": True},
    "top left": {"causal": True, "diagonal": "top_left"},
    "diagonal": {"causal": True, "diagonal": 1},
    "window": {"window": (3, 1)},
    "documents": {"kv_begin": BEGIN[None], "kv_end": BEGIN[None] + 4},
    "ranges": {"kv_begin": torch.stack([BEGIN, 2 - BEGIN]), "causal": True},
    "mask": {"mask": random(1, 1, N, M) > -0.5},
    "mask of sequences": {"mask": random(B, 1, 1, M) > -0.5},
    "plain mask": {"mask": random(N, M) > -0.5},
    "bias": {"bias": random(1, H, N, M)},
    "bias of sequences": {"bias": random(B, 1, 1, M)},
    "bias of keys": {"bias": random(1, H, 1, M)},
    "softcap": {"softcap": 1.5},
    "alibi": {"alibi_slopes": random(H).abs()},
    "alibi of sequences": {"alibi_slopes": random(B, H).abs()},
    "sinks": {"sinks": random(H), "causal": True},
    "lengths": {"len_q": i32(N, 2), "len_kv": i32(0, 5)},
    "list of lengths": {"len_kv": [3, 7]},
    "dropout": {"dropout_p": 0.25, "seed": 11, "offset": 2},
    "origin": {
        "causal": True,
        "diagonal": "origin",
        "origin": libattn.Origin(batch=1, q=9, kv=6),
        "dropout_p": 0.5,
        "seed": 3,
    },
    "scale": {"scale": 0.7},
    "rope": {"rope": Rope("interleaved", 4, 100.0, 3)},
    "rope with tables": {"rope": Rope(**TABLES, positions_q=BEGIN[None], positions_kv=KEYS)},
    "packed": PACKED,
    "packed causal": {**PACKED, "causal": True, "sinks": random(H)},
    "deterministic": {"deterministic": True, "precision": "ieee"},
}
# Options with tensors [V, ...] that differ from index to index of vmap.
VARYING = {
    "documents": {"kv_begin": torch.stack([BEGIN, 2 - BEGIN, 0 * BEGIN])[:, None]},
    "ranges": {"kv_end": torch.arange(V * B * N, dtype=torch.int32).reshape(V, B, N) % 11},
    "mask": {"mask": random(V, B, H, N, M) > -0.5},
    "mask of entries": {"mask": random(V, 1, 1, 1, M) > -0.5},
    "bias": {"bias": random(V, B, H, N, 1)},
    "bias of entries": {"bias": random(V, 1, 1, N, M)},
    "alibi": {"alibi_slopes": random(V, H).abs()},
    "alibi of sequences": {"alibi_slopes": random(V, B, H).abs()},
    "sinks": {"sinks": random(V, H)},
    "lengths": {"len_q": i32(1, 2, 3, 4, 5, 6).reshape(V, B)},
    "seed": {"seed": torch.tensor([[1], [2], [3]]), "dropout_p": 0.5},
    "packed": {**PACKED, "cu_len_kv": i32(0, 4, 9, 0, 6, 8, 0, 0, 9).reshape(V, 3)},
}
LEARNED = ("bias", "sinks")


def inputs(packed=False, dtype=torch.float32):
    batch = () if packed else (B,)
    shapes = (*batch, N, H, D), (*batch, M, G, D), (*batch, M, G, D)
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(V, *s, generator=generator).to(dtype) for s in shapes]


def close(found, expected):
    """Folded and single calls may split keys differently: a few roundings of the type."""
    assert found.shape == expected.shape and found.dtype == expected.dtype
    eps = 8 * torch.finfo(found.dtype).eps
    torch.testing.assert_close(found, expected, rtol=eps, atol=eps * 4)


def loss(function, leaves, fixed):
    learned = dict(zip(fixed[0], leaves[3:], strict=True))
    if "bias" in learned and learned["bias"].shape[-2] == 1:  # an expansion's gradient is a sum
        learned["bias"] = learned["bias"].expand(-1, H, N, -1)
    o, lse = function(*leaves[:3], **learned, **fixed[1])
    weights = torch.linspace(0.5, 1.5, o.numel()).reshape(o.shape).to(o.dtype)
    return (weights * o).sum().float() + 0.1 * lse.masked_fill(lse.isneginf(), 0).sum()


def with_lse(*tensors, **options):
    return attention(*tensors, return_lse=True, **options)


def by_autograd(leaves, fixed):
    leaves = [x.detach().clone().requires_grad_() for x in leaves]
    return torch.autograd.grad(loss(with_lse, leaves, fixed), leaves)


IN_BF16 = ("plain", "causal", "bias", "sinks", "dropout", "packed")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((n, torch.float32) for n in SHARED), *((n, torch.bfloat16) for n in IN_BF16)],
    ids=[*SHARED, *(n + " in bf16" for n in IN_BF16)],
)
def test_options_that_entries_share(name, dtype):
    options = SHARED[name]
    q, k, v = inputs("packed" in name, dtype)
    learned = [n for n in LEARNED if n in options]
    fixed = learned, {n: x for n, x in options.items() if n not in learned}
    given = [options[n] for n in learned]
    dims = (0, 0, 0, *(None for _ in learned))
    o, lse = torch.vmap(lambda *x: with_lse(*x, **options))(q, k, v)
    singles = [with_lse(*x, **options) for x in zip(q, k, v, strict=True)]
    close(o, torch.stack([one for one, _ in singles]))
    close(lse, torch.stack([one for _, one in singles]))

    differentiated = grad(lambda *x: loss(with_lse, x, fixed), tuple(range(len(dims))))
    found = torch.vmap(differentiated, dims)(q, k, v, *given)
    each = [by_autograd((*x, *given), fixed) for x in zip(q, k, v, strict=True)]
    for one, expected in zip(found, zip(*each, strict=True), strict=True):
        close(one, torch.stack(expected))
    for one, expected in zip(differentiated(q[0], k[0], v[0], *given), each[0], strict=True):
        close(one, expected)


@pytest.mark.parametrize("name", VARYING)
def test_options_that_differ_between_entries(name):
    options = VARYING[name]
    q, k, v = inputs("packed" in name)
    moved = {n: x for n, x in options.items() if torch.is_tensor(x) and x.size(0) == V}
    moved = {n: x for n, x in moved.items() if x is not PACKED["cu_len_q"]} | {
        n: options[n] for n in ("cu_len_kv",) if n in options
    }
    rest = {n: x for n, x in options.items() if n not in moved}
    learned = [n for n in LEARNED if n in moved]

    def differentiated(q, k, v, moved):
        given = rest | {n: x for n, x in moved.items() if n not in learned}
        leaves = (q, k, v, *(moved[n] for n in learned))
        return grad(lambda leaves: loss(with_lse, leaves, (learned, given)))(leaves)

    found = torch.vmap(differentiated)(q, k, v, moved)
    each = []
    for at in range(V):
        one = {n: x[at] for n, x in moved.items()}
        given = rest | {n: x for n, x in one.items() if n not in learned}
        leaves = (q[at], k[at], v[at], *(one[n] for n in learned))
        each.append(by_autograd(leaves, (learned, given)))
    for one, expected in zip(found, zip(*each, strict=True), strict=True):
        close(one, torch.stack(expected))


def test_descales():
    q, k, v = (x.to(torch.float8_e4m3fn) for x in inputs())
    shared = {"descale_q": random(B, G).abs()}
    moved = random(V, B, G).abs(), random(V, B, G).abs()

    def run(q, k, v, of_k, of_v):
        return attention(q, k, v, causal=True, descale_k=of_k, descale_v=of_v, **shared)

    found = torch.vmap(run)(q, k, v, *moved)
    for at in range(V):
        close(found[at], run(*(x[at] for x in (q, k, v, *moved))))


@pytest.mark.parametrize("dims", [(0, None, None), (None, 0, 0), (2, 1, 0), (4, 4, 4)])
def test_where_the_vmapped_dimension_is(dims):
    given = [x if d is not None else x[0] for x, d in zip(inputs(), dims, strict=True)]
    moved = [x if d is None else x.movedim(0, d) for x, d in zip(given, dims, strict=True)]
    moved = [x.contiguous() for x in moved]
    found = torch.vmap(lambda *x: attention(*x, causal=True), dims, out_dims=1)(*moved)
    for at in range(V):
        one = [x if d is None else x[at] for x, d in zip(given, dims, strict=True)]
        close(found[:, at], attention(*one, causal=True))
    # The gradient of a shared tensor is the sum over the indices of vmap.
    total = grad(lambda *x: torch.vmap(attention, dims)(*x).square().sum(), (0, 1, 2))(*moved)
    leaves = [x.clone().requires_grad_() for x in moved]
    pairs = list(zip(leaves, dims, strict=True))
    parts = [[x if d is None else x.select(d, at).clone() for x, d in pairs] for at in range(V)]
    parts = [[x.contiguous() for x in one] for one in parts]
    sums = sum(attention(*one).square().sum() for one in parts)
    for one, expected in zip(total, torch.autograd.grad(sums, leaves), strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-5, atol=1e-5)


def test_nested_and_empty():
    q, k, v = (torch.stack([x, 2 * x]) for x in inputs())
    found = torch.vmap(torch.vmap(attention))(q, k, v)
    close(found, torch.stack([torch.vmap(attention)(q[i], k[i], v[i]) for i in range(2)]))
    for options in ({}, {"sinks": torch.zeros(H)}, {"dropout_p": 0.5, "seed": 1}):
        function = grad(lambda q, k, v: attention(q, k, v, **options).sum())  # noqa: B023
        assert torch.vmap(function)(q[0, :0], k[0, :0], v[0, :0]).shape == (0, B, N, H, D)


@pytest.mark.parametrize("batch", (0, 1))
@pytest.mark.parametrize("name", [name for name in SHARED if "packed" not in name])
def test_batches_of_no_and_one_sequence(name, batch):
    def first(x):
        of_sequences = isinstance(x, list) or (isinstance(x, torch.Tensor) and x.size(0) == B)
        return x[:batch] if of_sequences else x

    options = {name: first(x) for name, x in SHARED[name].items()}
    q, k, v = (x[:, :batch] for x in inputs())
    found = torch.vmap(lambda *x: attention(*x, **options))(q, k, v)
    close(found, torch.stack([attention(*x, **options) for x in zip(q, k, v, strict=True)]))


@pytest.mark.parametrize("option", ("bias", "mask"))
def test_a_batch_of_no_sequence_with_pairs_of_each_entry(option):
    q, k, v = (x[:, :0] for x in inputs())
    pairs = random(V, 1, H, N, M)
    pairs = pairs if option == "bias" else pairs > 0

    def total(q, pairs, k, v):
        return attention(q, k, v, **{option: pairs}).sum()

    assert torch.vmap(total)(q, pairs, k, v).shape == (V,)
    for argument in range(1 + (option == "bias")):
        found = torch.vmap(grad(total, argument))(q, pairs, k, v)
        assert found.shape == (q, pairs)[argument].shape and (found == 0).all()


def calls_of(monkeypatch, function):
    seen = []
    forward, backward = libattn.attention, libattn.attention_backward
    plain = operators._plain.forward
    monkeypatch.setattr(libattn, "attention", lambda *a, **o: (seen.append(1), forward(*a, **o))[1])
    monkeypatch.setattr(
        libattn, "attention_backward", lambda *a, **o: (seen.append(2), backward(*a, **o))[1]
    )
    monkeypatch.setattr(operators._plain, "forward", lambda *a: (seen.append(1), plain(*a))[1])
    function()
    monkeypatch.undo()
    return seen.count(1), seen.count(2)


@pytest.mark.parametrize("name", [*SHARED])
def test_how_many_calls_are_made(name, monkeypatch):
    q, k, v = inputs("packed" in name)
    options = SHARED[name]
    whole = grad(lambda q: torch.vmap(lambda *x: attention(*x, **options))(q, k, v).sum())
    looped = ("dropout", "origin", "packed", "packed causal", "mask of sequences")
    looped += ("bias of sequences",)
    one = V if name in looped else 1
    assert calls_of(monkeypatch, lambda: whole(q)) == (one, one)


def test_other_ways_in():
    q, k, v = inputs()
    heads_first = [
        x.transpose(2, 3) for x in (q, k.repeat_interleave(2, 3), v.repeat_interleave(2, 3))
    ]
    bias = random(V, H, N, M)
    found = torch.vmap(scaled_dot_product_attention)(*heads_first, bias)
    for at in range(V):
        one = [x[at] for x in heads_first]
        close(found[at], scaled_dot_product_attention(*one, bias[at]))
    found = torch.vmap(lambda *x: flash_attn_func(*x, causal=True))(q, k, v)
    close(found[1], flash_attn_func(q[1], k[1], v[1], causal=True))

    o, pull = vjp(attention, q[0], k[0], v[0])
    leaves = [x[0].clone().requires_grad_() for x in (q, k, v)]
    upstream = random(*o.shape)
    expected = torch.autograd.grad(attention(*leaves), leaves, upstream)
    for one, want in zip(pull(upstream), expected, strict=True):
        close(one, want)
    small = q[0, :1, :2]
    jacobian = jacrev(lambda q: attention(q, k[0, :1], v[0, :1]))(small)
    expected = torch.autograd.functional.jacobian(lambda q: attention(q, k[0, :1], v[0, :1]), small)
    close(jacobian, expected)
    by_batch = torch.autograd.functional.jacobian(
        lambda q: attention(q, k[0, :1], v[0, :1]), small, vectorize=True
    )
    close(by_batch, expected)


def test_dropout_without_a_seed():
    q, k, v = (x[:1].expand_as(x) for x in inputs())
    function = lambda *x: attention(*x, dropout_p=0.5)  # noqa: E731
    same = torch.vmap(function, randomness="same")(q, k, v)
    assert torch.equal(same[0], same[1])
    different = torch.vmap(function, randomness="different")(q, k, v)
    assert not torch.equal(different[0], different[1])
    with pytest.raises(RuntimeError, match="randomness"):
        torch.vmap(function)(q, k, v)


def test_what_is_refused():
    q, k, v = (x[0] for x in inputs())
    function = lambda q: attention(q, k, v).square().sum()  # noqa: E731
    for call in (
        lambda: torch.func.jvp(function, (q,), (q,)),
        lambda: torch.func.jacfwd(function)(q),
        lambda: torch.func.hessian(function)(q),
    ):
        with pytest.raises(RuntimeError, match="attention has no forward-mode derivative"):
            call()
    with pytest.raises(RuntimeError, match="attention has no second derivative"):
        grad(lambda q: grad(function)(q).sum())(q)
    with pytest.raises(RuntimeError, match=r"torch\.func\.functionalize"):
        torch.func.functionalize(function)(q)
