"""generate() with libattn gives eager's tokens, whatever the cache, the padding and the search."""

from __future__ import annotations

import libattn.hf
import pytest
import torch
import transformers
from small_models import DECODERS, LAYERS, WINDOW, assert_linear, batch, llama, pair

NEW = 10  # beyond the window, with the prompt


def generate(model, tokens, mask, **options):
    settings = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, **options}
    return model.generate(tokens, attention_mask=mask, **settings)


@pytest.mark.parametrize("padded", ["whole", "left"])
@pytest.mark.parametrize("cache", ["dynamic", "static", "none"])
@pytest.mark.parametrize("name", DECODERS)
def test_greedy(name, cache, padded):
    """Mistral's and half of Gemma 2's and GPT-OSS's layers have sliding caches, of either kind."""
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
    """A prompt longer than the window, and than decode takes at a time."""
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
    """Several queries after a filled cache, then none of the cache's room left unwritten."""
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
    """bf16 weights: tokens may differ from eager's, shapes and calls may not."""
    _, ours = pair(llama)
    tokens, mask = batch([9, 5], "left")
    with libattn.hf.record() as calls:
        found = generate(ours.to(torch.bfloat16), tokens, mask, do_sample=True)
    assert found.shape == (2, 9 + NEW)
    assert_linear(calls, LAYERS, passes=NEW)


def test_autocast():
    """Under autocast the keys may be of another type than the queries; nothing is refused."""
    eager, ours = pair(llama)
    tokens, mask = batch([9, 5], "left")
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        expected = eager(input_ids=tokens, attention_mask=mask).logits.float()
        found = ours(input_ids=tokens, attention_mask=mask).logits.float()
    real = mask.bool()
    assert (found[real] - expected[real]).abs().max() <= 5e-2 * expected[real].abs().max()
