"""Unusual PyTorch tensors and flags are refused with a clear message or give a right result: never
uninitialized memory, a lost gradient or another meaning."""

from __future__ import annotations

import libattn
import libattn.torch
import numpy as np
import pytest
import torch
from naive import naive

B, N, M, H, G, D = 2, 5, 7, 4, 2, 8


def tensors(seed=0, requires_grad=False):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((B, N, H, D), (B, M, G, D), (B, M, G, D))
    made = (torch.randn(shape, generator=generator) for shape in shapes)
    return [x.requires_grad_(requires_grad) for x in made]


def close(a, b):
    assert torch.isfinite(a).all()
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("at", range(3))
def test_meta_among_cpu_tensors_is_refused(at):
    x = tensors()
    x[at] = x[at].to("meta")
    with pytest.raises(ValueError, match=r"device: found (meta|cpu); accepted (meta|cpu)"):
        libattn.torch.attention(*x)
    with pytest.raises(ValueError, match=r"device: found (meta|cpu); accepted (meta|cpu)"):
        libattn.torch.scaled_dot_product_attention(*(t.transpose(1, 2) for t in x), enable_gqa=True)
    with pytest.raises(ValueError, match=r"device: found (meta|cpu); accepted (meta|cpu)"):
        libattn.torch.decode(*x)
    with pytest.raises(ValueError, match=r"device: found meta; accepted cpu or cuda"):
        libattn.attention(*x)


@pytest.mark.parametrize(
    "options",
    (
        {"mask": torch.ones(1, 1, N, M, dtype=torch.bool, device="meta")},
        {"bias": torch.ones(1, 1, N, M, device="meta")},
        {"len_kv": torch.ones(B, dtype=torch.int32, device="meta")},
        {"alibi_slopes": torch.ones(H, device="meta")},
        {"rope": libattn.Rope(cos=torch.ones(9, 4, device="meta"), sin=torch.ones(9, 4))},
    ),
    ids=lambda options: next(iter(options)),
)
def test_a_meta_option_among_cpu_tensors_is_refused(options):
    with pytest.raises(ValueError, match="device: found meta; accepted cpu"):
        libattn.torch.attention(*tensors(), **options)


def test_meta_in_the_other_operators_is_refused():
    q, k, v = tensors()
    o, lse = libattn.torch.attention(q, k, v, return_lse=True)
    with pytest.raises(ValueError, match="merge: lse2: device: found meta"):
        libattn.torch.merge(o, lse, o, lse.to("meta"))
    with pytest.raises(ValueError, match="rope: positions: device: found meta"):
        libattn.torch.rope(q, positions=torch.zeros(1, N, dtype=torch.int32, device="meta"))
    new = k[:, :1].to("meta")
    with pytest.raises(ValueError, match="decode: k_new: device: found meta"):
        libattn.torch.decode(q, k, v, k_new=new, v_new=new, len_kv=[1, 2])


def test_tensors_that_are_all_on_meta_give_shapes():
    o = libattn.torch.attention(*(x.to("meta") for x in tensors()))
    assert o.device.type == "meta" and o.shape == (B, N, H, D)


@pytest.mark.parametrize("grad", (False, True))
def test_jit_trace_is_refused(grad):
    q, k, v = tensors(requires_grad=grad)
    wide = [x.repeat_interleave(H // x.size(2), 2).transpose(1, 2) for x in (q, k, v)]
    packed = [x.detach() for x in (q, k, v)]
    calls = [
        (libattn.torch.attention, (q, k, v)),
        (libattn.torch.scaled_dot_product_attention, wide),
        (libattn.torch.flash_attn_func, (q, k, v)),
        (libattn.torch.decode, packed),
        (lambda q: libattn.torch.rope(q), (q,)),
        (lambda o, lse: libattn.torch.merge(o, lse, o, lse), (q, torch.zeros(B, H, N))),
    ]
    for call, inputs in calls:
        with pytest.raises(RuntimeError, match="torch.jit.trace"):
            torch.jit.trace(call, tuple(inputs), check_trace=False)
    with pytest.raises((RuntimeError, ValueError), match="torch.jit.trace"):
        torch.jit.trace(libattn.attention, tuple(packed), check_trace=False)


@pytest.mark.parametrize("name", ("scale", "softcap"))
def test_a_number_that_requires_a_gradient_is_refused(name):
    q, k, v = tensors(requires_grad=True)
    learned = torch.tensor(0.7, requires_grad=True)
    with pytest.raises(ValueError, match=f"{name}: found a tensor that requires a gradient"):
        libattn.torch.attention(q, k, v, **{name: learned})
    number = {"scale": learned.detach(), "softcap": torch.tensor(0.7)}[name]
    close(
        libattn.torch.attention(q, k, v, **{name: number}),
        libattn.torch.attention(q, k, v, **{name: float(number)}),
    )


def test_drop_ins_refuse_numbers_that_require_gradients():
    q, k, v = tensors(requires_grad=True)
    learned = torch.tensor(0.7, requires_grad=True)
    with pytest.raises(ValueError, match="scale: found a tensor that requires a gradient"):
        libattn.torch.scaled_dot_product_attention(q, q, q, scale=learned)
    for name in ("softmax_scale", "softcap"):
        with pytest.raises(ValueError, match=f"{name}: found a tensor that requires a gradient"):
            libattn.torch.flash_attn_func(q, k, v, **{name: learned})


def test_a_tensor_as_scale_is_read_in_every_call():
    q, k, v = tensors()
    scale = torch.tensor(0.25)
    first = libattn.torch.attention(q, k, v, scale=scale)
    scale.fill_(2.0)
    second = libattn.torch.attention(q, k, v, scale=scale)
    close(first, libattn.torch.attention(q, k, v, scale=0.25))
    close(second, libattn.torch.attention(q, k, v, scale=2.0))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("name", ("causal", "deterministic", "return_lse"))
@pytest.mark.parametrize("value", ("no", 1, torch.tensor(True), None))
def test_flags_are_booleans(name, value):
    q, k, v = tensors()
    if value is None and name != "return_lse":
        libattn.torch.attention(q, k, v, **{name: value})  # None: the default
        return
    with pytest.raises(ValueError, match=f"{name}: found .*; accepted True or False"):
        libattn.torch.attention(q, k, v, **{name: value})


@pytest.mark.parametrize(
    ("call", "name"),
    (
        (lambda x, **o: libattn.torch.scaled_dot_product_attention(x, x, x, **o), "is_causal"),
        (lambda x, **o: libattn.torch.scaled_dot_product_attention(x, x, x, **o), "enable_gqa"),
        (lambda x, **o: libattn.torch.flash_attn_func(x, x, x, **o), "causal"),
        (lambda x, **o: libattn.torch.flash_attn_func(x, x, x, **o), "deterministic"),
        (lambda x, **o: libattn.torch.flash_attn_func(x, x, x, **o), "return_attn_probs"),
        (lambda x, **o: libattn.torch.rope(x, **o), "inverse"),
    ),
)
def test_flags_of_drop_ins_are_booleans(call, name):
    with pytest.raises(ValueError, match=f"{name}: found 'no'; accepted True or False"):
        call(tensors()[0], **{name: "no"})


def test_a_pending_negation_is_resolved_or_refused():
    """Also in a call that reuses the structures of one with plain tensors of the same sizes."""
    q, k, v = tensors()
    minus = torch._neg_view(q)
    wanted = libattn.torch.attention(-q, k, v)
    for _ in range(2):
        close(libattn.torch.attention(minus, k, v), wanted)
        with pytest.raises(ValueError, match="attention: q: found .*resolve_neg"):
            libattn.attention(minus, k, v)
        close(libattn.torch.attention(q, k, v), naive(q, k, v)[0].float())
        libattn.attention(q, k, v)
    leaf = q.clone().requires_grad_()
    libattn.torch.attention(torch._neg_view(leaf), k, v).sum().backward()
    other = q.clone().requires_grad_()
    libattn.torch.attention(-other, k, v).sum().backward()
    close(leaf.grad, other.grad)


def test_conjugated_nested_and_sparse_tensors_are_refused():
    q, k, v = tensors()
    conjugated = torch.complex(q, q).conj()
    with pytest.raises(ValueError, match=r"attention: q: found .*conjugation.*resolve_conj\(\)"):
        libattn.attention(conjugated, k, v)
    nested = torch.nested.nested_tensor([q[0], q[1]])
    sparse = q.to_sparse()
    for _ in range(2):
        with pytest.raises(ValueError, match="attention: q: found a nested tensor; .*cu_len_q"):
            libattn.attention(nested, k, v)
        with pytest.raises(ValueError, match=r"attention: q: found .*sparse.*to_dense\(\)"):
            libattn.attention(sparse, k, v)
        for odd in (conjugated, nested, sparse):
            with pytest.raises((ValueError, RuntimeError), match="attention|libattn"):
                libattn.torch.attention(odd, k, v)


def test_int64_and_lists_are_converted():
    q, k, v = tensors(requires_grad=True)
    lengths, begin = [3, 5], [[0, 1, 1, 2, 2]] * B
    wanted = libattn.torch.attention(
        q,
        k,
        v,
        len_kv=torch.tensor(lengths, dtype=torch.int32),
        kv_begin=torch.tensor(begin, dtype=torch.int32),
    )
    grads = torch.autograd.grad(wanted.square().sum(), (q, k, v))
    for made in (list, torch.tensor):
        o = libattn.torch.attention(q, k, v, len_kv=made(lengths), kv_begin=made(begin))
        assert torch.equal(o, wanted)
        for a, b in zip(torch.autograd.grad(o.square().sum(), (q, k, v)), grads, strict=True):
            assert torch.equal(a, b)
    plain = [x.detach() for x in (q, k, v)]
    o = libattn.torch.decode(*plain, len_kv=torch.tensor(lengths), block_table=None)
    assert torch.equal(o, libattn.torch.decode(*plain, len_kv=lengths))
    packed = [x.detach().flatten(0, 1) for x in (q, k, v)]
    cu = {"cu_len_q": [0, 2, 10], "cu_len_kv": [0, 9, 14]}
    o = libattn.torch.attention(*packed, **cu)
    cu = {name: torch.tensor(x, dtype=torch.int32) for name, x in cu.items()}
    assert torch.equal(o, libattn.torch.attention(*packed, **cu))
    positions = torch.tensor([[3, 1, 4, 1, 5]])
    for made in (positions, positions.int(), positions.tolist()):
        assert torch.equal(
            libattn.torch.rope(plain[0], positions=made),
            libattn.torch.rope(plain[0], positions=positions.int()),
        )
    with pytest.raises(ValueError, match="len_kv: found 4294967301; accepted -2"):
        libattn.torch.attention(q, k, v, len_kv=torch.tensor([2**32 + 5, 1]))
    with pytest.raises(ValueError, match=r"len_kv: found \[1.5, 2\]; accepted a list of whole"):
        libattn.torch.attention(q, k, v, len_kv=[1.5, 2])


def test_masks_and_biases_of_two_dimensions_or_with_strides():
    q, k, v = tensors(requires_grad=True)
    mask = torch.rand(N, M) < 0.6
    full = libattn.torch.attention(q, k, v, mask=mask[None, None])
    assert torch.equal(libattn.torch.attention(q, k, v, mask=mask), full)
    assert torch.equal(libattn.torch.attention(q, k, v, mask=mask.t().contiguous().t()), full)
    results = []
    for form in (lambda b: b[None, None], lambda b: b, lambda b: b.t().contiguous().t()):
        bias = torch.linspace(-1, 1, N * M).reshape(N, M).requires_grad_()
        o = libattn.torch.attention(q, k, v, bias=form(bias))
        results.append((o, torch.autograd.grad(o.square().sum(), bias)[0]))
    for o, dbias in results[1:]:
        assert torch.equal(o, results[0][0]) and dbias.shape == (N, M)
        close(dbias, results[0][1])
    strided = torch.randn(1, H, M, N).transpose(2, 3)
    expanded = strided[:, :1].expand(B, H, N, M)
    for bias in (strided, expanded):
        close(
            libattn.torch.attention(q, k, v, bias=bias),
            libattn.torch.attention(q, k, v, bias=bias.contiguous()),
        )
    with pytest.raises(ValueError, match=r"attention: shape of mask: found \(2, 5, 7\)"):
        libattn.torch.attention(q, k, v, mask=torch.ones(B, N, M, dtype=torch.bool))


def test_arguments_that_are_no_tensors_are_named():
    q, k, v = tensors()
    functions = libattn.torch
    calls = {
        "attention: k: found None": lambda: functions.attention(q, None, v),
        "decode: q: found 3": lambda: functions.decode(3, k, v),
        "merge: lse1: found": lambda: functions.merge(q, [1], q, q),
        "rope: x: found 'x'": lambda: functions.rope("x"),
        "type of key: found None": lambda: functions.scaled_dot_product_attention(q, None, q),
        "type of attn_mask: found True": lambda: functions.scaled_dot_product_attention(
            q, q, q, attn_mask=True
        ),
        "flash_attn_func: q: found None": lambda: functions.flash_attn_func(None, k, v),
        "flash_attn_qkvpacked_func: qkv: found 1": lambda: functions.flash_attn_qkvpacked_func(1),
        "window_size: found 3": lambda: functions.flash_attn_func(q, k, v, window_size=3),
        "window_size: found 'a'": lambda: functions.flash_attn_func(q, k, v, window_size=("a", 1)),
        "with_kvcache: k_cache: found": lambda: functions.flash_attn_with_kvcache(q, "x", v),
        "out_dtype: found torch.int8; accepted torch.float32": lambda: functions.attention(
            q, k, v, out_dtype=torch.int8
        ),
        "window: .*None = unlimited": lambda: functions.attention(q, k, v, window=(-1, -1)),
        "precision: found 'fp8'": lambda: functions.attention(q, k, v, precision="fp8"),
    }
    for message, call in calls.items():
        with pytest.raises(ValueError, match=message):
            call()


def test_rot_dim_0_is_refused():
    """0 must not be treated as None, which rotates every dimension."""
    q, k, v = tensors()
    turn = libattn.torch.rope
    with pytest.raises(ValueError, match="attention: rope.rot_dim: found 0; accepted even"):
        libattn.torch.attention(q, k, v, rope=libattn.Rope(rot_dim=0))
    with pytest.raises(ValueError, match="rope: rot_dim: found 0; accepted even"):
        turn(q, rot_dim=0)
    compiled = torch.compile(lambda x, d: turn(x, rot_dim=d), dynamic=True, backend="eager")
    for rot_dim in (4, 6):
        assert torch.equal(compiled(q, rot_dim), turn(q, rot_dim=rot_dim))
    with pytest.raises(ValueError, match="rope: rot_dim: found 0; accepted even"):
        compiled(q, 0)


@pytest.mark.parametrize("make", (np.int32, np.int64, np.uint8, None), ids=str)
def test_numpy_arrays_and_ranges_are_indices(make):
    q, k, v = tensors()

    def given(lengths):
        return range(3, 5) if make is None else np.array(lengths, make)

    o = libattn.torch.attention(q, k, v, len_kv=given([3, 4]))
    assert torch.equal(o, libattn.torch.attention(q, k, v, len_kv=[3, 4]))
    o = libattn.torch.decode(q, k, v, len_kv=given([3, 4]))
    assert torch.equal(o, libattn.torch.decode(q, k, v, len_kv=[3, 4]))
    if make is not None:
        o = libattn.torch.rope(q, positions=given([[3, 1, 4, 1, 5]]))
        assert torch.equal(o, libattn.torch.rope(q, positions=[[3, 1, 4, 1, 5]]))


@pytest.mark.parametrize(
    "lengths",
    (
        [True, 2],
        [2, np.True_],
        [torch.tensor(True), 2],
        np.array([True, False]),
        np.array([1.0, 2.0]),
        np.ma.masked_array([1, 2]),
        "ab",
        3,
    ),
    ids=repr,
)
def test_no_lengths(lengths):
    q, k, v = tensors()
    accepted = "accepted a list of whole numbers, or an int32 or int64 tensor or NumPy array"
    with pytest.raises(ValueError, match=f"^attention: len_kv: found .*; {accepted}"):
        libattn.torch.attention(q, k, v, len_kv=lengths)


def test_lengths_in_numpy_beyond_32_bits_are_refused():
    q, k, v = tensors()
    with pytest.raises(ValueError, match=r"^attention: len_kv: found 4294967301; accepted -2\^31"):
        libattn.torch.attention(q, k, v, len_kv=np.array([2**32 + 5, 1]))
    with pytest.raises(ValueError, match="len_kv: found -1; accepted 0 or more"):
        libattn.torch.attention(q, k, v, len_kv=np.array([-1, 1]))
    with pytest.raises(ValueError, match="len_kv: dtype: found bool; accepted int32, int64"):
        libattn.torch.attention(q, k, v, len_kv=torch.ones(B, dtype=torch.bool))


@pytest.mark.parametrize(
    "seed", (np.int64(7), np.uint8(7), np.array(7), np.array([7], np.uint64)), ids=repr
)
def test_seeds_of_numpy(seed):
    q, k, v = tensors()
    o = libattn.torch.attention(q, k, v, dropout_p=0.5, seed=seed, offset=seed)
    assert torch.equal(o, libattn.torch.attention(q, k, v, dropout_p=0.5, seed=7, offset=7))


@pytest.mark.parametrize("seed", (np.int64(-1), np.float64(7), np.True_, np.array([7, 8])))
def test_no_seeds(seed):
    q, k, v = tensors()
    with pytest.raises(ValueError, match=r"^attention: seed: found .*; accepted 0 to 2\*\*64 - 1"):
        libattn.torch.attention(q, k, v, dropout_p=0.5, seed=seed)


@pytest.mark.parametrize("dtype", (torch.complex64, torch.complex128))
def test_complex_numbers_are_no_lengths(dtype):
    q, k, v = tensors()
    lengths = [torch.tensor(1 + 2j, dtype=dtype)] * B
    with pytest.raises(ValueError, match="len_kv: found .*; accepted a list of whole numbers"):
        libattn.torch.attention(q, k, v, len_kv=lengths)


def test_a_seed_on_the_host_is_a_number():
    q, k, v = tensors()
    o = libattn.attention(q, k, v, dropout_p=0.5, seed=torch.tensor([7]))
    assert torch.equal(o, libattn.attention(q, k, v, dropout_p=0.5, seed=7))
    with pytest.raises(ValueError, match=r"seed: found Tensor of torch.int64 \[2\]"):
        libattn.attention(q, k, v, dropout_p=0.5, seed=torch.tensor([7, 8]))
