"""Arguments that are converted: int64 arrays and lists of indices, masks and biases of two
dimensions or with a strided last dimension. Seeds of dropout, and flags of NumPy's types."""

from __future__ import annotations

import libattn
import numpy as np
import pytest
from comparing import assert_close
from exported import Exported
from libattn import _reference

B, N, M, H, G, D = 2, 5, 7, 4, 2, 8


def arrays():
    rng = np.random.default_rng(3)
    shapes = ((B, N, H, D), (B, M, G, D), (B, M, G, D))
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


FORMS = {
    "list": lambda x: x.tolist(),
    "tuple": lambda x: tuple(x.tolist()),
    "int64": lambda x: x.astype(np.int64),
    "other byte order": lambda x: x.astype(">i8"),
    "strided int64": lambda x: np.repeat(x.astype(np.int64), 2, -1)[..., ::2],
    "DLPack": lambda x: Exported(x.astype(np.int64)),
}


def test_a_range_is_a_list():
    q, k, v = arrays()
    o = libattn.attention(q, k, v, len_kv=range(3, 5))
    assert (o == libattn.attention(q, k, v, len_kv=[3, 4])).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("exported", (False, True), ids=("NumPy", "only DLPack"))
def test_indices_are_converted(form, exported):
    make = FORMS[form]
    q, k, v = arrays()
    given = Exported(q) if exported else q
    begin = np.array([[0, 1, 1, 2, 2], [0, 0, 1, 0, 5]], np.int32)
    options = {"len_q": [3, 5], "len_kv": [7, 4], "kv_begin": begin, "kv_end": begin + 3}
    options = {name: np.asarray(x, np.int32) for name, x in options.items()}
    made = {name: make(x) for name, x in options.items()}
    o, lse = libattn.attention(given, k, v, return_lse=True, **made)
    want = _reference.attention(q, k, v, **options)
    assert_close(o, want.o, "float32", scale=4.0)
    grads = libattn.attention_backward(o, given, k, v, o, lse, **made)
    right = libattn.attention_backward(o, q, k, v, o, lse, **options)
    assert (grads.dq == right.dq).all() and (grads.dk == right.dk).all()

    cu_q, cu_kv = np.array([0, 2, B * N], np.int32), np.array([0, 9, B * M], np.int32)
    packed = [x.reshape(-1, *x.shape[2:]) for x in (q, k, v)]
    o = libattn.attention(*packed, cu_len_q=make(cu_q), cu_len_kv=make(cu_kv))
    assert (o == libattn.attention(*packed, cu_len_q=cu_q, cu_len_kv=cu_kv)).all()

    table = np.array([[1, 0], [0, -1]], np.int32)
    o = libattn.decode(q, k, v, block_table=make(table), len_kv=make(options["len_kv"]))
    assert (o == libattn.decode(q, k, v, block_table=table, len_kv=options["len_kv"])).all()

    positions = np.array([[3, 1, 4, 1, 5]], np.int32)
    o = libattn.rope(q, positions=make(positions))
    assert (o == libattn.rope(q, positions=positions)).all()
    to_keys = np.arange(M, dtype=np.int32)[None]
    o, same = (
        libattn.attention(
            q, k, v, rope=libattn.Rope(positions_q=f(positions), positions_kv=f(to_keys))
        )
        for f in (make, lambda x: x)
    )
    assert (o == same).all()
    o = libattn.rope(packed[0], cu_len=make(cu_q))
    assert (o == libattn.rope(packed[0], cu_len=cu_q)).all()


@pytest.mark.parametrize("name", ("len_q", "len_kv", "kv_begin", "kv_end", "block_table"))
def test_indices_that_int32_does_not_hold_are_refused(name):
    q, k, v = arrays()
    x = np.full((B, N) if name.startswith("kv") else (B, 2) if name[0] == "b" else (B,), 2**32 + 1)
    call = libattn.decode if name == "block_table" else libattn.attention
    with pytest.raises(ValueError, match=f"{call.__name__}: {name}: found 4294967297; accepted -2"):
        call(q, k, v, **{name: x})
    with pytest.raises(ValueError, match=f"{name}: found .*; accepted a list of whole numbers"):
        call(q, k, v, **{name: [1.0, 2.0]})
    with pytest.raises(ValueError, match=f"{name}: dtype: found uint8; accepted int32, int64, or"):
        call(q, k, v, **{name: x.astype(np.uint8)})


def test_masks_of_two_dimensions_or_with_strides():
    q, k, v = arrays()
    mask = np.random.default_rng(5).random((N, M)) < 0.6
    want = _reference.attention(q, k, v, mask=mask[None, None]).o
    for form in (mask, mask[None, None], np.asfortranarray(mask), mask[::-1, ::-1][::-1, ::-1]):
        assert_close(libattn.attention(q, k, v, mask=form), want, "float32", scale=4.0)
    flipped = _reference.attention(q, k, v, mask=mask[None, None, :, ::-1]).o
    assert_close(libattn.attention(q, k, v, mask=mask[:, ::-1]), flipped, "float32", scale=4.0)
    assert_close(
        libattn.attention(q, k, v, mask=Exported(mask.astype(np.uint8))), want, "float32", scale=4.0
    )


@pytest.mark.parametrize("form", ("2-D", "strided", "strided and expanded"))
def test_biases_of_two_dimensions_or_with_strides(form):
    q, k, v = arrays()
    rng = np.random.default_rng(7)
    if form == "2-D":
        bias = rng.standard_normal((N, M)).astype(np.float32)
        wide = bias[None, None]
    else:
        bias = rng.standard_normal((1, H, M, N)).astype(np.float32).swapaxes(2, 3)
        if form == "strided and expanded":
            bias = np.broadcast_to(bias[:, :1], (B, H, N, M))
        wide = bias if form == "strided" else bias[:1, :1]
    o, lse = libattn.attention(q, k, v, bias=bias, return_lse=True)
    assert_close(o, _reference.attention(q, k, v, bias=wide).o, "float32", scale=4.0)
    dout = rng.standard_normal(q.shape).astype(np.float32)
    want = _reference.gradients(dout, q, k, v, bias=wide)["dbias"]
    want = want[0, 0] if form == "2-D" else want
    found = libattn.attention_backward(dout, q, k, v, o, lse, bias=bias).dbias
    assert found.shape == want.shape
    assert_close(found, want, "float32", scale=4.0)
    given = np.ones(want.shape, np.float32)
    result = libattn.attention_backward(
        dout, q, k, v, o, lse, bias=bias, dbias=given, want=("dbias",), accumulate=True
    )
    assert result.dbias is given
    assert_close(given, want + 1, "float32", scale=4.0)


@pytest.mark.parametrize("maker", ("numpy", "torch", "DLPack"))
def test_a_gradient_of_two_dimensions_is_written_in_place_or_refused(maker):
    """A copy of a strided array would lose the gradient."""
    makers = {"numpy": lambda x: x, "DLPack": Exported}
    make = makers[maker] if maker in makers else pytest.importorskip("torch").from_numpy
    q, k, v = arrays()
    bias = np.random.default_rng(7).standard_normal((N, M)).astype(np.float32)
    o, lse = libattn.attention(q, k, v, bias=bias, return_lse=True)
    want = libattn.attention_backward(o, q, k, v, o, lse, bias=bias).dbias

    def backward(memory, view, **options):
        made = view(make(memory)) if maker == "torch" else make(view(memory))
        options |= {"bias": make(bias), "dbias": made, "want": ("dbias",)}
        found = libattn.attention_backward(*map(make, (o, q, k, v, o, lse)), **options)
        assert found.dbias is made

    for accumulate in (False, True):
        for view in (lambda x: x, lambda x: x[:N, :M]):
            memory = np.ones((N, M) if view(o) is o else (N + 1, M + 2), np.float32)
            backward(memory, view, accumulate=accumulate)
            assert_close(view(memory), want + accumulate, "float32", scale=4.0)
        for shape, view in (((M, N), lambda x: x.T), ((N, 2 * M), lambda x: x[:, ::2])):
            memory = np.ones(shape, np.float32)
            refused = "attention_backward: last dimension of dbias: found .*; accepted a contiguous"
            with pytest.raises(ValueError, match=refused):
                backward(memory, view, accumulate=accumulate)
            assert (memory == 1).all()


def test_the_gradient_of_a_bias_of_dlpack_has_its_shape():
    q, k, v = arrays()
    bias = np.random.default_rng(7).standard_normal((N, M)).astype(np.float32)
    o, lse = libattn.attention(q, k, v, bias=bias, return_lse=True)
    want = libattn.attention_backward(o, q, k, v, o, lse, bias=bias).dbias
    found = libattn.attention_backward(o, q, k, v, o, lse, bias=Exported(bias)).dbias
    assert found.shape == (N, M) and (found == want).all()


def test_dropout_needs_a_seed():
    """There is no good default: a fixed seed would give every call the same mask, and a random one
    would be unknown to the backward."""
    q, k, v = arrays()
    o, lse = libattn.attention(q, k, v, return_lse=True)
    calls = {
        "attention": lambda **options: libattn.attention(q, k, v, **options),
        "decode": lambda **options: libattn.decode(q, k, v, **options),
        "attention_backward": lambda **options: libattn.attention_backward(
            o, q, k, v, o, lse, **options
        ),
    }
    for name, call in calls.items():
        with pytest.raises(ValueError, match=f"{name}: seed: found none with dropout_p=0.5; acc"):
            call(dropout_p=0.5)
        call(dropout_p=0.5, seed=3)
        call(dropout_p=0.0)
    assert "dropout" in libattn.describe(q, k, v, dropout_p=0.5)
    signed = libattn.attention(q, k, v, dropout_p=0.5, seed=np.array(-1))
    assert (signed == libattn.attention(q, k, v, dropout_p=0.5, seed=2**64 - 1)).all()


def test_numpy_scalars_are_numbers_and_flags():
    q, k, v = arrays()
    found = libattn.attention(
        q,
        k,
        v,
        causal=np.bool_(True),
        return_lse=np.bool_(False),
        scale=np.float32(0.25),
        window=(np.int64(2), None),
        diagonal=np.array(1),
        softcap=np.array(3.0),
    )
    want = libattn.attention(
        q, k, v, causal=True, scale=0.25, window=(2, None), diagonal=1, softcap=3
    )
    assert (found == want).all()


def test_a_scale_in_an_array_is_read_in_every_call():
    q, k, v = arrays()
    scale = np.array(0.25)
    first = libattn.attention(q, k, v, scale=scale)
    scale[...] = 2
    assert (first == libattn.attention(q, k, v, scale=0.25)).all()
    assert (libattn.attention(q, k, v, scale=scale) == libattn.attention(q, k, v, scale=2.0)).all()
