"""Logits and gradients of small models with libattn against eager's."""

from __future__ import annotations

import libattn.hf
import pytest
import torch
from small_models import (
    LAYERS,
    MODELS,
    VOCABULARY,
    assert_linear,
    batch,
    bert,
    llama,
    pair,
    relative_error,
)

TOLERANCE = 2e-5  # for f32: the largest difference over the largest value


def losses(eager, ours, tokens, weight, **arguments):
    """Runs both forward and backward; the loss counts the real tokens (weight 1) only."""
    results = []
    target = torch.randn(*tokens.shape, VOCABULARY)
    for model in (eager, ours):
        model.zero_grad()
        with libattn.hf.record() as calls:
            logits = model(input_ids=tokens, **arguments).logits
            (logits * target * weight[..., None]).sum().backward()
        gradients = {name: p.grad for name, p in model.named_parameters()}
        results.append((logits.detach(), gradients, calls))
    (expected, expected_gradients, none), (found, gradients, calls) = results
    assert not none
    real = weight.bool()
    assert relative_error(found[real], expected[real]) <= TOLERANCE
    assert gradients.keys() == expected_gradients.keys()
    for name, gradient in expected_gradients.items():
        if gradient is not None and gradient.abs().max() > 0:
            # The gradient of key biases is 0 except for rounding: compare with the scale of others.
            scale = max(gradient.abs().max().item(), 1e-3 * _largest(expected_gradients))
            error = (gradients[name] - gradient).abs().max().item() / scale
            assert error <= 10 * TOLERANCE, name
    return calls


def _largest(gradients):
    return max(
        gradient.abs().max().item() for gradient in gradients.values() if gradient is not None
    )


@pytest.mark.parametrize("side", ["none", "right", "left"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients(name, side):
    eager, ours = pair(MODELS[name])
    lengths = [14, 14, 14] if side == "none" else [14, 9, 3]
    tokens, mask = batch(lengths, side)
    arguments = {} if side == "none" else {"attention_mask": mask}
    calls = losses(eager, ours, tokens, mask.float(), **arguments)
    assert_linear(calls, LAYERS)
    assert {call.operation for call in calls} == {"attention"}
    if side != "none":
        assert {call.mask for call in calls} == {"intervals"}


@pytest.mark.parametrize("name", ["llama", "gemma2", "bert"])
def test_padding_inside(name):
    """A 2-D mask with holes is passed as one flag per key, not as a mask of pairs."""
    eager, ours = pair(MODELS[name])
    tokens, mask = batch([14, 14, 14], "right")
    mask[0, 4:7] = 0
    mask[1, 2] = 0
    mask[1, 12:] = 0
    calls = losses(eager, ours, tokens, mask.float(), attention_mask=mask)
    assert_linear(calls, LAYERS)
    assert "intervals and keys" in {call.mask for call in calls}


STARTS = ([0, 7, 16], [0, 11])


def packed_batch():
    """Two rows of 20 tokens, documents at STARTS: tokens, mask of ones, restarting positions."""
    tokens, mask = batch([20, 20], "right")
    positions = torch.arange(20).repeat(2, 1)
    for row, starts in enumerate(STARTS):
        for start in starts[1:]:
            positions[row, start:] = torch.arange(20 - start)
    return tokens, mask, positions


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_packed_documents_equal_eager(name):
    eager, ours = pair(MODELS[name])
    tokens, mask, positions = packed_batch()
    calls = losses(eager, ours, tokens, mask.float(), position_ids=positions, use_cache=False)
    assert_linear(calls, LAYERS)
    assert {call.mask for call in calls} == {"intervals"}


@pytest.mark.parametrize("use_cache", [False, True])
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_oss"])
def test_packed_documents_equal_documents_alone(name, use_cache):
    """Also where eager attends across documents: with a cache, and in models that build no document
    mask."""
    _, ours = pair(MODELS[name])
    tokens, _, positions = packed_batch()
    with torch.no_grad():
        packed = ours(input_ids=tokens, position_ids=positions, use_cache=use_cache).logits
        for row, starts in enumerate(STARTS):
            for start, end in zip(starts, [*starts[1:], 20], strict=True):
                alone = ours(input_ids=tokens[row : row + 1, start:end]).logits
                assert relative_error(packed[row : row + 1, start:end], alone) <= TOLERANCE


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_packed_documents_by_cu_seq_lens(name):
    _, ours = pair(MODELS[name])
    tokens, _ = batch([20], "right")
    bounds = torch.tensor([0, 7, 16, 20], dtype=torch.int32)
    with libattn.hf.record() as calls, torch.no_grad():
        packed = ours(
            input_ids=tokens,
            position_ids=torch.cat([torch.arange(n) for n in (7, 9, 4)])[None],
            cu_seq_lens_q=bounds,
            cu_seq_lens_k=bounds,
            max_length_q=9,
            max_length_k=9,
        ).logits
    assert_linear(calls, LAYERS)
    for start, end in ((0, 7), (7, 16), (16, 20)):
        alone = ours(input_ids=tokens[:, start:end]).logits
        assert relative_error(packed[:, start:end], alone) <= TOLERANCE
    with pytest.raises(ValueError, match="packed in one row"):
        ours(input_ids=tokens.expand(2, -1), cu_seq_lens_q=bounds, cu_seq_lens_k=bounds)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ["gemma2", "gpt_oss"])
def test_gradient_checkpointing(name, reentrant):
    eager, ours = pair(MODELS[name])
    for model in (eager, ours):
        model.train()
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    tokens, mask = batch([12, 7], "left")
    calls = losses(eager, ours, tokens, mask.float(), attention_mask=mask, use_cache=False)
    assert_linear(calls, LAYERS, passes=2)


def test_callers_own_mask():
    """A 4-D mask is used as it is: a boolean one hides keys, a floating-point one is added to the
    scores and gets a gradient."""
    eager, ours = pair(llama)
    tokens, mask = batch([10, 10], "right")
    pairs = torch.tril(torch.rand(2, 1, 10, 10) < 0.6) | torch.eye(10, dtype=torch.bool)
    added = torch.where(pairs, 0.0, torch.finfo(torch.float32).min)
    expected = eager(input_ids=tokens, attention_mask=added).logits
    for given, kind in ((pairs, "mask"), (added, "bias")):
        with libattn.hf.record() as calls:
            found = ours(input_ids=tokens, attention_mask=given).logits
        assert {call.mask for call in calls} == {kind}
        assert relative_error(found, expected) <= TOLERANCE
    with pytest.raises(ValueError, match=r"torch.int64 and shape \[2, 1, 10, 10\]"):
        ours(input_ids=tokens, attention_mask=pairs.long())
    biases = [torch.randn(2, 4, 10, 10, requires_grad=True) for _ in range(2)]
    with torch.no_grad():
        biases[1].copy_(biases[0])
    for model, bias in zip((eager, ours), biases, strict=True):
        model(input_ids=tokens, attention_mask=bias).logits.square().sum().backward()
    assert relative_error(biases[1].grad, biases[0].grad) <= 10 * TOLERANCE


def test_attention_dropout_follows_torch_seed():
    def run(seed):
        torch.manual_seed(seed)
        return ours(input_ids=tokens).last_hidden_state

    _, ours = pair(llama)
    ours = ours.model.train()
    for layer in ours.layers:
        layer.self_attn.attention_dropout = 0.5
    tokens, _ = batch([12], "right")
    first, again, other = run(3), run(3), run(4)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("name", MODELS)
def test_attention_weights_are_refused(name):
    _, ours = pair(MODELS[name])
    tokens, _ = batch([5], "right")
    with pytest.raises(libattn.Unsupported, match="output_attentions=True"):
        ours(input_ids=tokens, output_attentions=True)
    with pytest.raises(ValueError, match="output_attentions"):
        ours.config.output_attentions = True


@pytest.mark.parametrize("argument", ["cache", "block_indices", "indices", "sinks", "head_mask"])
def test_arguments_that_would_change_the_meaning_are_refused(argument):
    from libattn.hf._attention import attention_forward

    x = torch.randn(1, 2, 3, 8)
    with pytest.raises(libattn.Unsupported, match=argument):
        attention_forward(torch.nn.Identity(), x, x, x, **{argument: x})


def test_types_and_layouts():
    """bf16, and a query tensor with rows that are not adjacent in memory."""
    from libattn.hf._attention import attention_forward

    module = torch.nn.Identity()
    q, k, v = (torch.randn(2, 4, 8, 7).mT for _ in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    found, weights = attention_forward(module, q, k, v, is_causal=True)
    assert weights is None
    assert relative_error(found.transpose(1, 2), expected) <= 1e-5
    found, _ = attention_forward(module, *(x.bfloat16() for x in (q, k, v)), is_causal=True)
    assert found.dtype == torch.bfloat16
    assert relative_error(found.transpose(1, 2).float(), expected) <= 3e-2


@pytest.mark.parametrize("causal", [True, False])
def test_window_without_a_mask(causal):
    """A layer that is called without a mask sees keys at distances below sliding_window."""
    from libattn.hf._attention import attention_forward

    q, k, v = (torch.randn(1, 2, 9, 8) for _ in range(3))
    row, key = torch.arange(9)[:, None], torch.arange(9)
    visible = (row - key).abs() < 3
    if causal:
        visible &= key <= row
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=visible)
    module = torch.nn.Identity()
    module.is_causal = causal
    found, _ = attention_forward(module, q, k, v, sliding_window=3)
    assert relative_error(found.transpose(1, 2), expected) <= 1e-5


def test_transformers_too_old(monkeypatch):
    import transformers
    from transformers import masking_utils

    def sdpa_mask(batch_size, cache_position, kv_length, kv_offset=0):
        """The signature of transformers 5.0."""

    monkeypatch.setattr(transformers, "__version__", "5.0.0")
    monkeypatch.setattr(masking_utils, "sdpa_mask", sdpa_mask)
    with pytest.raises(libattn.Unsupported, match="transformers 5.0.0 is too old.*5.4 or newer"):
        libattn.hf.register()


def test_registered_twice_and_by_another_name():
    libattn.hf.register()
    libattn.hf.register("libattn_again")
    _, ours = pair(bert)
    ours.set_attn_implementation("libattn_again")
    tokens, mask = batch([6, 4], "right")
    with libattn.hf.record() as calls:
        ours(input_ids=tokens, attention_mask=mask)
    assert_linear(calls, LAYERS)
