"""generate() with libattn gives the same tokens as eager, for every cache, padding and search."""

from __future__ import annotations

import libattn.hf
import pytest
import torch
import transformers
from small_models import DECODERS, LAYERS, WINDOW, assert_linear, batch, llama, pair

NEW = 10  # with the prompt, longer than the window


def generate(model, tokens, mask, **options):
    settings = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, **options}
    return model.generate(tokens, attention_mask=mask, **settings)


@pytest.mark.parametrize("padded", ["whole", "left"])
@pytest.mark.parametrize("cache", ["dynamic", "static", "none"])
@pytest.mark.parametrize("name", DECODERS)
def test_greedy(name, cache, padded):
    """All layers of Mistral, and half of those of Gemma 2 and GPT-OSS, have sliding caches, dynamic
    or static."""
    eager, ours = pair(DECODERS[name])
    tokens, mask = batch([9, 9, 9] if padded == "whole" else [9, 4, 7], "left")
    options = {"use_cache": False} if cache == "none" else {"cache_implementation": cache}
    expected = generate(eager, tokens, mask, **options)
    with libattn.hf.record() as calls:
        found = generate(ours, tokens, mask, **options)
    assert expected.shape == (3, 9 + NEW)
    assert torch.equal(found, expected)
    assert_linear(calls, LAYERS, passes=NEW)
    if cache != "none":
        assert {call.operation for call in calls} == {"decode"}
        assert [call.len_q for call in calls] == [9] * LAYERS + [1] * LAYERS * (NEW - 1)


@pytest.mark.parametrize("name", ["mistral", "gemma2"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_long_prompt_through_sliding_cache(name, cache):
    """The prompt is longer than the window, and longer than one decode call accepts."""
    eager, ours = pair(DECODERS[name])
    tokens, mask = batch([3 * WINDOW + 5, 11], "left")
    expected = generate(eager, tokens, mask, cache_implementation=cache)
    with libattn.hf.record() as calls:
        found = generate(ours, tokens, mask, cache_implementation=cache)
    assert torch.equal(found, expected)
    assert {call.operation for call in calls} == {"attention", "decode"}
    assert_linear(calls, LAYERS, passes=NEW)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_beams(name):
    eager, ours = pair(DECODERS[name])
    tokens, mask = batch([9, 5], "left")
    expected = generate(eager, tokens, mask, num_beams=3)
    assert torch.equal(generate(ours, tokens, mask, num_beams=3), expected)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", DECODERS)
def test_prompt_in_pieces(name, cache):
    """The prompt comes in chunks: some chunks have several queries after cached keys, and in the
    end a sliding cache has no free entry left."""
    models = pair(DECODERS[name])
    tokens, _ = batch([12, 12], "right")
    logits = []
    for model in models:
        if cache == "static":
            past = transformers.StaticCache(config=model.config, max_cache_len=16)
        else:
            past = transformers.DynamicCache(config=model.config)
        with torch.no_grad():
            pieces = [
                model(input_ids=tokens[:, start:end], past_key_values=past, use_cache=True).logits
                for start, end in ((0, 5), (5, 8), (8, 9), (9, 12))
            ]
        logits.append(torch.cat(pieces, 1))
    assert (logits[0] - logits[1]).abs().max() <= 2e-5 * logits[0].abs().max()


def test_sampling_under_bf16():
    """bf16 rounding may change the sampled tokens, so only shapes and calls are checked."""
    _, ours = pair(llama)
    tokens, mask = batch([9, 5], "left")
    with libattn.hf.record() as calls:
        found = generate(ours.to(torch.bfloat16), tokens, mask, do_sample=True)
    assert found.shape == (2, 9 + NEW)
    assert_linear(calls, LAYERS, passes=NEW)


def test_autocast():
    """Under autocast, keys and queries may have different types; libattn must not refuse that."""
    eager, ours = pair(llama)
    tokens, mask = batch([9, 5], "left")
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        expected = eager(input_ids=tokens, attention_mask=mask).logits.float()
        found = ours(input_ids=tokens, attention_mask=mask).logits.float()
    real = mask.bool()
    assert (found[real] - expected[real]).abs().max() <= 5e-2 * expected[real].abs().max()
