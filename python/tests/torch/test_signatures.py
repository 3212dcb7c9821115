"""The drop-ins' signatures are the originals', and each of their parameters does something."""

import inspect

import pytest

torch = pytest.importorskip("torch", minversion="2.4")

import libattn.torch as at  # noqa: E402

from .naive import naive  # noqa: E402

REQUIRED = inspect.Parameter.empty
SHARED = [
    ("dropout_p", 0.0),
    ("softmax_scale", None),
    ("causal", False),
    ("window_size", (-1, -1)),
    ("softcap", 0.0),
    ("alibi_slopes", None),
    ("deterministic", False),
    ("return_attn_probs", False),
]


def required(*names):
    return [(name, REQUIRED) for name in names]


# Written down from flash-attention 2.8.3, PyTorch 2.15, cuEquivariance 0.10 and DeepSpeed 0.18.
LENGTHS = required("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
RECORDED = {
    "flash_attn_func": required("q", "k", "v") + SHARED,
    "flash_attn_kvpacked_func": required("q", "kv") + SHARED,
    "flash_attn_qkvpacked_func": required("qkv") + SHARED,
    "flash_attn_varlen_func": required("q", "k", "v") + LENGTHS + SHARED + [("block_table", None)],
    "flash_attn_varlen_kvpacked_func": required("q", "kv") + LENGTHS + SHARED,
    "flash_attn_varlen_qkvpacked_func": required("qkv", "cu_seqlens", "max_seqlen") + SHARED,
    "flash_attn_with_kvcache": [
        *required("q", "k_cache", "v_cache"),
        ("k", None),
        ("v", None),
        ("rotary_cos", None),
        ("rotary_sin", None),
        ("cache_seqlens", None),
        ("cache_batch_idx", None),
        ("cache_leftpad", None),
        ("block_table", None),
        ("softmax_scale", None),
        ("causal", False),
        ("window_size", (-1, -1)),
        ("softcap", 0.0),
        ("rotary_interleaved", True),
        ("alibi_slopes", None),
        ("num_splits", 0),
        ("return_softmax_lse", False),
    ],
    "triangle_attention": [
        *required("q", "k", "v", "bias"),
        ("mask", None),
        ("scale", None),
        ("return_aux", False),
        ("kv_lengths", None),
    ],
    "evoformer_attention": required("Q", "K", "V", "biases"),
    "scaled_dot_product_attention": [
        *required("query", "key", "value"),
        ("attn_mask", None),
        ("dropout_p", 0.0),
        ("is_causal", False),
        ("scale", None),
        ("enable_gqa", False),
    ],
}
KEYWORD_ONLY = {
    "scaled_dot_product_attention": ("scale", "enable_gqa"),
    "triangle_attention": ("kv_lengths",),
}


@pytest.mark.parametrize("name", RECORDED)
def test_signature(name):
    parameters = inspect.signature(getattr(at, name)).parameters
    assert [(p.name, p.default) for p in parameters.values()] == RECORDED[name]
    for parameter in parameters.values():
        keyword = parameter.name in KEYWORD_ONLY.get(name, ())
        assert parameter.kind == (
            parameter.KEYWORD_ONLY if keyword else parameter.POSITIONAL_OR_KEYWORD
        )


def test_signature_of_the_torch_at_hand():
    """PyTorch's own argument parser takes the recorded order."""
    q = torch.zeros(1, 1, 2, 2)
    torch.nn.functional.scaled_dot_product_attention(q, q, q, None, 0.0, False, scale=None)
    with pytest.raises(TypeError):
        torch.nn.functional.scaled_dot_product_attention(q, q, q, None, 0.0, False, None)
    with pytest.raises(TypeError):
        at.scaled_dot_product_attention(q, q, q, None, 0.0, False, None)


B, N, M, H, D = 2, 5, 7, 4, 8


def inputs(seed=0):
    torch.manual_seed(seed)
    return torch.randn(B, N, H, D), torch.randn(B, M, H, D), torch.randn(B, M, H, D)


# What each shared option does to the result: "changes" it, leaves it "same", or gives "more".
EFFECTS = {
    "dropout_p": (0.5, "changes"),
    "softmax_scale": (0.1, "changes"),
    "causal": (True, "changes"),
    "window_size": ((1, 1), "changes"),
    "softcap": (0.5, "changes"),
    "alibi_slopes": (torch.tensor([0.1, 0.2, 0.3, 0.4]), "changes"),
    "deterministic": (True, "same"),
    "return_attn_probs": (True, "more"),
}
BAD = [
    ("dropout_p", 1.0),
    ("dropout_p", -0.1),
    ("softmax_scale", float("nan")),
    ("window_size", (1, 2, 3)),
    ("softcap", float("inf")),
    ("alibi_slopes", torch.zeros(H + 1)),
    ("alibi_slopes", torch.zeros(H, dtype=torch.float16)),
]


def call(name, q, k, v, **options):
    """One of the functions on the same numbers, its result as padded [b, n, h, d]."""
    function = getattr(at, name)
    if "varlen" not in name:
        if "qkvpacked" in name:
            return function(torch.stack((q, k, v), 2), **options)
        if "kvpacked" in name:
            return function(q, torch.stack((k, v), 2), **options)
        return function(q, k, v, **options)
    n, m = q.size(1), k.size(1)
    flat_q, flat_k, flat_v = (x.flatten(0, 1) for x in (q, k, v))
    cu_q = torch.arange(0, B * n + 1, n, dtype=torch.int32)
    cu_k = torch.arange(0, B * m + 1, m, dtype=torch.int32)
    if "qkvpacked" in name:
        result = function(torch.stack((flat_q, flat_k, flat_v), 1), cu_q, n, **options)
    elif "kvpacked" in name:
        result = function(flat_q, torch.stack((flat_k, flat_v), 1), cu_q, cu_k, n, m, **options)
    else:
        result = function(flat_q, flat_k, flat_v, cu_q, cu_k, n, m, **options)
    if isinstance(result, tuple):
        return result[0].view_as(q), *result[1:]
    return result.view_as(q)


FLASH = [name for name in RECORDED if name.startswith("flash") and "kvcache" not in name]


def operands(name):
    q, k, v = inputs()
    return (k.clone(), k, v) if "qkvpacked" in name else (q, k, v)


@pytest.mark.parametrize("option", EFFECTS)
@pytest.mark.parametrize("name", FLASH)
def test_each_flash_parameter(name, option):
    assert {n for n, _ in SHARED} == set(EFFECTS)
    q, k, v = operands(name)
    value, effect = EFFECTS[option]
    plain = call(name, q, k, v)
    other = call(name, q, k, v, **{option: value})
    if effect == "changes":
        assert not torch.allclose(plain, other, atol=1e-3)
    elif effect == "same":
        assert torch.equal(plain, other)
    else:
        out, lse, probabilities = other
        assert torch.equal(out, plain) and probabilities is None
        _, want = naive(q, k, v)
        if "varlen" in name:
            want = want.transpose(0, 1).flatten(1)
        assert lse.dtype == torch.float32
        assert ((lse - want).abs() < 1e-5).all()


@pytest.mark.parametrize("option,value", BAD)
@pytest.mark.parametrize("name", FLASH)
def test_each_bad_value_is_refused(name, option, value):
    q, k, v = operands(name)
    with pytest.raises(ValueError):
        call(name, q, k, v, **{option: value})


def test_window_takes_negatives_and_tensors():
    q, k, v = inputs()
    plain = at.flash_attn_func(q, k, v)
    assert torch.equal(at.flash_attn_func(q, k, v, window_size=(-5, -2)), plain)
    sides = torch.tensor([2, 1])
    one = at.flash_attn_func(q, k, v, window_size=sides)
    assert torch.equal(one, at.flash_attn_func(q, k, v, window_size=(2, 1)))
    causal = at.flash_attn_func(q, k, v, causal=True)
    assert torch.equal(at.flash_attn_func(q, k, v, window_size=(-1, 0)), causal)
    assert torch.equal(at.flash_attn_func(q, k, v, softcap=-1.0), plain)


def test_each_length_parameter():
    """Packed lengths: cu_seqlens move the sequences, and a smaller max_seqlen cuts longer ones."""
    q, k, v = (x.flatten(0, 1) for x in inputs())
    k, v = k[: len(q)], v[: len(q)]
    given = {
        "cu_seqlens_q": torch.tensor([0, 5, 10], dtype=torch.int32),
        "cu_seqlens_k": torch.tensor([0, 6, 10], dtype=torch.int32),
        "max_seqlen_q": 5,
        "max_seqlen_k": 6,
    }
    plain = at.flash_attn_varlen_func(q, k, v, **given)
    for name in ("cu_seqlens_q", "cu_seqlens_k"):
        moved = {**given, name: torch.tensor([0, 4, 10], dtype=torch.int32)}
        moved["max_" + name[3:].replace("seqlens", "seqlen")] = 6
        assert not torch.allclose(at.flash_attn_varlen_func(q, k, v, **moved), plain, atol=1e-3)
    wide = at.flash_attn_varlen_func(q, k, v, **{**given, "max_seqlen_q": 99, "max_seqlen_k": 99})
    assert torch.allclose(wide, plain, atol=1e-6)
    tensors = {**given, "max_seqlen_q": torch.tensor(5), "max_seqlen_k": torch.tensor(6)}
    assert torch.equal(at.flash_attn_varlen_func(q, k, v, **tensors), plain)
    short = at.flash_attn_varlen_func(q, k, v, **{**given, "max_seqlen_q": 4})
    assert (short[[4, 9]] == 0).all()
    kept = [0, 1, 2, 3, 5, 6, 7, 8]
    assert torch.allclose(short[kept], plain[kept], atol=1e-6)
    cut = at.flash_attn_varlen_func(q, k, v, **{**given, "max_seqlen_k": 4})
    assert torch.allclose(cut[5:], plain[5:], atol=1e-6)
    assert torch.allclose(cut[:5], at.flash_attn_func(q[None, :5], k[None, :4], v[None, :4])[0])
    for name in ("max_seqlen_q", "max_seqlen_k"):
        with pytest.raises(ValueError):
            at.flash_attn_varlen_func(q, k, v, **{**given, name: -1})


def test_each_sdpa_parameter():
    q, k, v = (x.transpose(1, 2) for x in inputs())
    plain = at.scaled_dot_product_attention(q, k, v)
    half = {
        "attn_mask": torch.ones(N, M, dtype=torch.bool).tril(),
        "dropout_p": 0.5,
        "is_causal": True,
        "scale": 0.1,
    }
    for name, value in half.items():
        other = at.scaled_dot_product_attention(q, k, v, **{name: value})
        assert not torch.allclose(other, plain, atol=1e-3), name
    causal = at.scaled_dot_product_attention(q, k, v, is_causal=True)
    masked = at.scaled_dot_product_attention(q, k, v, half["attn_mask"])
    assert torch.allclose(causal, masked, atol=1e-6)
    with pytest.raises(ValueError):
        at.scaled_dot_product_attention(q, k[:, :2], v[:, :2])
    grouped = at.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True)
    wide = [x[:, :2].repeat_interleave(2, 1) for x in (k, v)]
    assert torch.allclose(grouped, at.scaled_dot_product_attention(q, *wide), atol=1e-6)


def test_deterministic_is_passed_on(monkeypatch):
    from libattn.torch import _flash

    seen = []

    def spy(*args, **options):
        seen.append(options["deterministic"])
        return at.attention(*args, **options)

    monkeypatch.setattr(_flash, "attention", spy)
    for name in FLASH:
        for value in (False, True):
            call(name, *operands(name), deterministic=value)
    assert seen == [False, True] * len(FLASH)
