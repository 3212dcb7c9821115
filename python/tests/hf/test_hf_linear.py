"""The operators that a model with libattn runs: every layer calls libattn, and no operator needs
memory quadratic in the length."""

from __future__ import annotations

import pytest
import torch
from small_models import LAYERS, MODELS, batch, pair
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

LENGTH = 1000


class Operators(TorchDispatchMode):
    """Counts the calls of each operator and keeps the largest number of elements that one made."""

    def __init__(self):
        super().__init__()
        self.count = {}
        self.largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = function.name()
        self.count[name] = self.count.get(name, 0) + 1
        tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.largest = max(self.largest, *(x.numel() for x in tensors), 0)
        return result


def run(model, kind):
    tokens, mask = batch([LENGTH, LENGTH - 200], "right" if kind == "right" else "left")
    arguments = {"attention_mask": mask}
    if kind == "packed":
        arguments = {"position_ids": (torch.arange(LENGTH) % 150)[None].expand(2, -1)}
    with Operators() as operators:
        model(input_ids=tokens, use_cache=False, **arguments).logits.sum().backward()
    return operators


@pytest.mark.parametrize("kind", ["right", "left", "packed"])
@pytest.mark.parametrize("name", MODELS)
def test_nothing_quadratic(name, kind):
    eager, ours = pair(MODELS[name])
    found = run(ours, kind)
    assert found.largest < LENGTH * LENGTH
    assert found.count["libattn::forward"] == found.count["libattn::backward"] == LAYERS
    softmax = [operator for operator in found.count if "softmax" in operator]
    assert not softmax or name == "gpt_oss"  # the router of its experts uses softmax
    if kind == "right":
        assert run(eager, kind).largest >= 2 * 4 * LENGTH * LENGTH


@pytest.mark.parametrize(
    ("name", "kind"), [("llama", "whole"), ("gemma2", "left"), ("gemma2", "packed")]
)
def test_compiled_without_breaks(name, kind):
    """The model is one graph: every layer calls libattn's operator, and nothing is quadratic."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph.graph)
        return graph

    eager, ours = pair(MODELS[name])
    length = 600
    tokens, mask = batch([length], "left")
    arguments = {"use_cache": False}
    if kind == "left":
        mask[:, :40] = 0
        arguments["attention_mask"] = mask
    elif kind == "packed":
        arguments["position_ids"] = (torch.arange(length) % 150)[None]
    torch._dynamo.reset()
    with torch.no_grad():
        try:
            torch.compile(eager, backend="eager", fullgraph=True)(input_ids=tokens, **arguments)
        except torch._dynamo.exc.Unsupported:
            pytest.skip("this torch makes no single graph of transformers' eager model")
    torch._dynamo.reset()
    compiled = torch.compile(ours, backend=backend, fullgraph=True)
    with torch.no_grad():
        expected = ours(input_ids=tokens, **arguments).logits
        found = compiled(input_ids=tokens, **arguments).logits
    torch._dynamo.reset()
    real = mask.bool()
    assert (found[real] - expected[real]).abs().max() <= 1e-5 * expected[real].abs().max()
    (graph,) = graphs
    values = [node.meta.get("example_value") for node in graph.nodes]
    largest = max(value.numel() for value in values if isinstance(value, torch.Tensor))
    assert largest < length * length
    assert sum("libattn" in str(node.target) for node in graph.nodes) == LAYERS
