"""T5: its relative bias goes through the attention interface as position_bias, with its gradient.

Raffel et al. 2020, section 2.1: scores are not scaled. There is one learned bias per head and
bucket of distances, shared by the layers of a stack.
"""

from __future__ import annotations

import copy
import inspect

import libattn.hf
import pytest
import torch
import transformers
from small_models import PAD, VOCABULARY, batch, relative_error
from transformers.models.t5 import modeling_t5

LAYERS = 2
TOLERANCE = 2e-5

pytestmark = pytest.mark.skipif(
    "ALL_ATTENTION_FUNCTIONS" not in inspect.getsource(modeling_t5),
    reason="this transformers' T5 has no attention interface",
)


@pytest.fixture
def models():
    config = transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=64,
        d_kv=16,
        d_ff=96,
        num_layers=LAYERS,
        num_heads=4,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=16,
        dropout_rate=0.0,
        pad_token_id=PAD,
        decoder_start_token_id=PAD,
        eos_token_id=None,
    )
    eager = transformers.T5ForConditionalGeneration(config)
    with torch.no_grad():
        for name, parameter in eager.named_parameters():
            if "relative_attention_bias" in name:
                parameter.normal_()
    ours = copy.deepcopy(eager)
    eager.set_attn_implementation("eager")
    ours.set_attn_implementation("libattn")
    return eager, ours


def run(model, tokens, mask, targets):
    with libattn.hf.record() as calls:
        output = model(input_ids=tokens, attention_mask=mask, labels=targets)
    output.loss.backward()
    return output, calls, {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("side", ["right", "left"])
def test_logits_and_gradients(models, side):
    eager, ours = models
    tokens, mask = batch([13, 8, 5], side)
    targets, _ = batch([10, 10, 10], "right")
    expected, _, expected_gradients = run(eager, tokens, mask, targets)
    found, calls, gradients = run(ours, tokens, mask, targets)
    # Encoder, decoder, and the decoder's attention to the encoder.
    assert len(calls) == 3 * LAYERS
    assert {call.mask for call in calls} <= {"none", "intervals"}
    assert relative_error(found.logits, expected.logits) <= TOLERANCE
    assert sum("relative_attention_bias" in name for name in gradients) == 2
    for name, gradient in expected_gradients.items():
        assert gradient.abs().max() > 0, name
        assert relative_error(gradients[name], gradient) <= 10 * TOLERANCE, name


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generate(models, cache):
    eager, ours = (model.eval() for model in models)
    tokens, mask = batch([13, 8, 5], "right")
    options = {"max_new_tokens": 12, "min_new_tokens": 12, "cache_implementation": cache}
    expected = eager.generate(tokens, attention_mask=mask, **options)
    with libattn.hf.record() as calls:
        found = ours.generate(tokens, attention_mask=mask, **options)
    assert torch.equal(found, expected)
    assert len(calls) == LAYERS + 12 * 2 * LAYERS
    assert {call.operation for call in calls} == {"decode"}


def test_gradient_checkpointing(models):
    eager, ours = models
    tokens, mask = batch([9, 6], "right")
    targets, _ = batch([7, 7], "right")
    _, _, expected = run(eager, tokens, mask, targets)
    ours.train()
    ours.gradient_checkpointing_enable({"use_reentrant": False})
    _, _, gradients = run(ours, tokens, mask, targets)
    for name, gradient in expected.items():
        assert relative_error(gradients[name], gradient) <= 10 * TOLERANCE, name


def test_attention_weights_are_refused(models):
    _, ours = models
    tokens, mask = batch([5], "right")
    with pytest.raises(libattn.Unsupported, match="output_attentions=True"):
        ours(input_ids=tokens, decoder_input_ids=tokens, output_attentions=True)
