"""Small models with random weights. Each exists twice with the same weights: eager and libattn."""

from __future__ import annotations

import copy

import torch
import transformers

VOCABULARY = 96
PAD = 0
WINDOW = 6
LAYERS = 2

_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "max_position_embeddings": 1024,
    "pad_token_id": PAD,
}
_DECODER = {**_COMMON, "num_key_value_heads": 2, "head_dim": 16, "eos_token_id": None}
_DECODER["bos_token_id"] = 1
_ALTERNATING = ["sliding_attention", "full_attention"]


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**_DECODER))


def mistral():
    """A window in every layer, so that the dynamic cache is a sliding one."""
    config = transformers.MistralConfig(**_DECODER, sliding_window=WINDOW)
    return transformers.MistralForCausalLM(config)


def gemma2():
    """Softcap in every layer, a window in every other layer, and a scale other than the default."""
    config = transformers.Gemma2Config(
        **_DECODER,
        sliding_window=WINDOW,
        layer_types=_ALTERNATING,
        attn_logit_softcapping=2.0,
        query_pre_attn_scalar=8,
    )
    return transformers.Gemma2ForCausalLM(config)


def gpt_oss():
    """Sinks in every layer, a window in every other layer, mixture-of-experts MLPs."""
    config = transformers.GptOssConfig(
        **_DECODER,
        sliding_window=WINDOW,
        layer_types=_ALTERNATING,
        num_local_experts=4,
        num_experts_per_tok=2,
    )
    model = transformers.GptOssForCausalLM(config)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.sinks.normal_()
    return model


def bert():
    return transformers.BertForMaskedLM(transformers.BertConfig(**_COMMON))


DECODERS = {"llama": llama, "mistral": mistral, "gemma2": gemma2, "gpt_oss": gpt_oss}
MODELS = {**DECODERS, "bert": bert}


def pair(make):
    """(eager, libattn): a model and its copy in evaluation mode; large weights spread scores."""
    torch.manual_seed(1)
    eager = make().eval()
    with torch.no_grad():
        for name, parameter in eager.named_parameters():
            # The usual initial weights of 0.02 make scores that hardly differ from 0.
            if parameter.ndim >= 2 and "norm" not in name.lower():
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5)
    ours = copy.deepcopy(eager)
    eager.set_attn_implementation("eager")
    ours.set_attn_implementation("libattn")
    return eager, ours


def batch(lengths, side, len_padded=None):
    """Tokens i64 [batch, n] and their mask, padded on the `side` given."""
    n = len_padded or max(lengths)
    tokens = torch.randint(1, VOCABULARY, (len(lengths), n))
    mask = torch.zeros_like(tokens)
    for row, length in enumerate(lengths):
        where = slice(0, length) if side == "right" else slice(n - length, n)
        mask[row, where] = 1
    return torch.where(mask == 1, tokens, PAD), mask


def relative_error(found, expected):
    """The largest difference over the largest expected value; NaN where there is one."""
    return ((found - expected).abs().max() / expected.abs().max().clamp_min(1e-20)).item()


def assert_linear(calls, layers, passes=1):
    """Checks that every layer called libattn and that memory of masks was linear in the lengths."""
    assert len(calls) == layers * passes
    assert sorted(call.layer for call in calls) == sorted(list(range(layers)) * passes)
    for call in calls:
        assert call.mask in ("none", "intervals", "intervals and keys")
        assert call.mask_elements <= 5 * call.batch * (max(call.len_q, call.len_kv) + 1)
