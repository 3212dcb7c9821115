"""No model is wrong silently: its results equal eager's, or libattn refuses it by name."""

from __future__ import annotations

import copy
import functools
import inspect
import sys

import libattn.hf
import pytest
import torch
import transformers
from libattn.hf import _attention, _mask, _models
from libattn.hf._guarded import GuardedMask, unguarded
from small_models import PAD, VOCABULARY, batch, relative_error
from transformers import masking_utils

NO_FLAG = torch.nn.Identity()
SMALL = {"vocab_size": VOCABULARY, "pad_token_id": PAD, "bos_token_id": 1, "eos_token_id": 2}


def bloom_config(**options):
    return transformers.BloomConfig(**SMALL, hidden_size=32, n_layer=1, n_head=4, **options)


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_mask_goes_before_the_layers_flag(causal, flag):
    """PegasusX, BigBirdPegasus and NllbMoe set is_causal=False in the layers of their decoders."""
    q, k, v = (torch.randn(2, 2, 7, 8) for _ in range(3))
    module = torch.nn.Identity()
    module.is_causal = flag
    function = masking_utils.causal_mask_function
    if not causal:
        function = masking_utils.bidirectional_mask_function
    mask = _mask.visible_keys(
        2,
        7,
        7,
        mask_function=function,
        allow_is_causal_skip=causal,
        allow_is_bidirectional_skip=not causal,
    )
    found, _ = _attention.attention_forward(module, q, k, v, mask)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    assert relative_error(found.transpose(1, 2), expected) <= 1e-5


def test_encoder_as_decoder_with_a_cache():
    """BertLMHeadModel without is_decoder builds a mask for the new token only, but attends to all
    cached keys."""
    config = transformers.BertConfig(**SMALL, hidden_size=32, num_hidden_layers=1)
    config.num_attention_heads = 4
    eager = transformers.BertLMHeadModel(config).eval()
    ours = copy.deepcopy(eager)
    eager.set_attn_implementation("eager")
    ours.set_attn_implementation("libattn")
    tokens, _ = batch([5, 5], "right")
    options = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    expected = eager.generate(tokens, **options)
    assert torch.equal(ours.generate(tokens, **options), expected)


def small_pegasus_x(heads):
    return transformers.PegasusXForConditionalGeneration(
        transformers.PegasusXConfig(
            **SMALL,
            d_model=32,
            encoder_layers=1,
            decoder_layers=2,
            encoder_attention_heads=heads,
            decoder_attention_heads=heads,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            num_global_tokens=2,
            block_size=4,
            decoder_start_token_id=1,
        )
    )


@pytest.mark.parametrize("heads", [2, 4])
def test_decoder_does_not_see_the_future(heads):
    eager = small_pegasus_x(heads).eval()
    with torch.no_grad():
        for parameter in eager.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5)
    ours = copy.deepcopy(eager)
    eager.set_attn_implementation("eager")
    ours.set_attn_implementation("libattn")
    tokens, _ = batch([8, 8], "right")
    targets, _ = batch([6, 6], "right")
    with torch.no_grad():
        expected = eager(input_ids=tokens, decoder_input_ids=targets).logits
        found = ours(input_ids=tokens, decoder_input_ids=targets).logits
        targets[:, -1] = (targets[:, -1] + 7) % VOCABULARY
        changed = ours(input_ids=tokens, decoder_input_ids=targets).logits
    assert relative_error(found, expected) <= 1e-4
    assert relative_error(changed[:, :-1], found[:, :-1]) <= 1e-5
    assert not relative_error(changed, found) <= 1e-5


def test_model_with_its_own_attention_is_refused(tmp_path):
    """The constructor and loading refuse it; if it gets past both, its first mask does."""
    refusal = r'Bloom\w+ computes attention itself.*attn_implementation="eager"'
    with pytest.raises(libattn.Unsupported, match=refusal):
        transformers.BloomForCausalLM(bloom_config(attn_implementation="libattn"))
    model = transformers.BloomForCausalLM(bloom_config())
    model.save_pretrained(tmp_path)
    with pytest.raises(libattn.Unsupported, match=refusal):
        transformers.BloomForCausalLM.from_pretrained(tmp_path, attn_implementation="libattn")
    model.config._attn_implementation_internal = "libattn"
    tokens, mask = batch([6, 4], "left")
    for arguments in ({}, {"attention_mask": mask}):
        with pytest.raises(libattn.Unsupported, match=refusal):
            model(input_ids=tokens, **arguments)


def test_model_with_a_class_for_each_implementation_is_refused():
    config = transformers.FalconConfig(
        **SMALL, hidden_size=32, num_hidden_layers=1, num_attention_heads=4
    )
    config._attn_implementation = "libattn"
    with pytest.raises(libattn.Unsupported, match="FalconForCausalLM computes attention itself"):
        transformers.FalconForCausalLM(config)


def test_models_that_call_the_interface_are_not_refused():
    for name in ("LlamaForCausalLM", "BertModel", "BartModel", "ViTModel", "WhisperModel"):
        model_class = getattr(transformers, name)
        _models.check_class(model_class)
        _models.check_config(model_class.config_class())


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("heads", [2, 4])
@pytest.mark.parametrize("length", [1, 2, 3, 5])
def test_mask_is_not_for_computing(length, heads, padded):
    padding = torch.ones(2, length, dtype=torch.bool)
    padding[0, 0] = not padded
    mask = _mask.visible_keys(2, length, length, attention_mask=padding, config=bert_config())
    scores = torch.randn(2, heads, length, length)
    for compute in (
        lambda: scores + mask,
        lambda: torch.where(mask, scores, 0.0),
        lambda: mask[:, :, :, :length],
        lambda: mask.to(torch.float32),
        lambda: torch.nn.functional.pad(mask, (0, 3)),
    ):
        with pytest.raises(libattn.Unsupported, match='BertConfig computes with.*"eager"'):
            compute()
    for moved in (mask.to("cpu"), mask.clone(), mask.detach(), copy.deepcopy(mask)):
        assert isinstance(moved, GuardedMask)
        assert torch.equal(unguarded(moved), unguarded(mask))
    # Inside torch.compile the guard is not active. There, the shape still makes it fail: the sum
    # can't be multiplied with the values.
    with pytest.raises(RuntimeError):
        (scores + unguarded(mask)) @ torch.randn(2, heads, length, 8)


def bert_config():
    return transformers.BertConfig(hidden_size=32, num_attention_heads=4)


@pytest.mark.skipif(not hasattr(transformers, "DogeConfig"), reason="no Doge in this transformers")
@pytest.mark.parametrize("heads", [2, 4])
def test_model_that_computes_with_its_mask_generates(heads):
    """Doge adds its own mask to that of transformers, also for a single query."""
    if torch.__version__.startswith("2.4."):
        pytest.skip("Doge needs flex attention, which PyTorch 2.4 does not have")
    config = transformers.DogeConfig(
        **SMALL,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        keep_window_size=4,
    )
    eager = transformers.DogeForCausalLM(config).eval()
    ours = copy.deepcopy(eager)
    eager.set_attn_implementation("eager")
    ours.set_attn_implementation("libattn")
    tokens, mask = batch([9, 5], "left")
    options = {"attention_mask": mask, "max_new_tokens": 8, "min_new_tokens": 8}
    if "allow_is_causal_skip" not in inspect.getsource(sys.modules[type(ours).__module__]):
        # In transformers 5.4 the model does not declare that it computes with its mask.
        with pytest.raises(libattn.Unsupported, match='Doge.* computes with its.*"eager"'):
            ours.generate(tokens, do_sample=False, **options)
        return
    expected = eager.generate(tokens, do_sample=False, **options)
    assert torch.equal(ours.generate(tokens, do_sample=False, **options), expected)


def test_registers_where_transformers_decorates_its_mask_function(monkeypatch):
    original = masking_utils.sdpa_mask

    @functools.wraps(original)
    def decorated(*args, **kwargs):
        return original(*args, **kwargs)

    monkeypatch.setattr(masking_utils, "sdpa_mask", decorated)
    libattn.hf.register()


def test_largest_head_dim():
    """The message names the limit that the library really has."""
    largest = _attention.LARGEST_DIM
    for dim in (largest, largest + 8):
        x = torch.randn(1, 1, 3, dim)
        if dim == largest:
            libattn.torch.attention(x, x, x)
            _attention.attention_forward(NO_FLAG, x, x, x)
            continue
        with pytest.raises(ValueError, match=f"dim_qk={dim}"):
            libattn.torch.attention(x, x, x)
        with pytest.raises(libattn.Unsupported, match=f'head dim {dim}.*up to {largest}.*"sdpa"'):
            _attention.attention_forward(NO_FLAG, x, x, x)
