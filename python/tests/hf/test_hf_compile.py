"""torch.compile of models with libattn: the same logits as eager's, padded and not."""

from __future__ import annotations

import itertools
import re

import pytest
import torch
import transformers
from libattn.hf._guarded import GuardedMask
from small_models import PAD, VOCABULARY, batch, pair, relative_error

PYTORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


def gpt2():
    """Without dropout, so that training mode computes the same."""
    rates = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    ends = {"pad_token_id": PAD, "bos_token_id": 1, "eos_token_id": 2}
    sizes = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 64}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **ends, **rates))


def llama():
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=PAD,
    )
    return transformers.LlamaForCausalLM(config)


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("padded", [False, True], ids=["unpadded", "padded"])
@pytest.mark.parametrize("make", [gpt2, llama])
def test_compiled_model(make, padded, backend):
    """Logits without a cache; with the default backend the gradient too."""
    eager, ours = pair(make)
    tokens, mask = batch([9, 5] if padded else [9, 9], "left")
    arguments = {"input_ids": tokens, "use_cache": False}
    if padded:
        arguments["attention_mask"] = mask
    real = mask.bool()
    expected = eager(**arguments).logits[real]
    try:
        found = torch.compile(ours, backend=backend)(**arguments).logits[real]
    except NameError as error:
        skip_where_eager_fails_too(eager, arguments, error)
        raise
    assert relative_error(found, expected) <= 1e-5
    if backend == "inductor":
        gradients = [
            torch.autograd.grad(out.square().mean(), trained(model))
            for model, out in ((eager, expected), (ours, found))
        ]
        for wanted, got in zip(*gradients, strict=True):
            assert relative_error(got, wanted) <= 1e-4


def trained(model):
    """Parameters whose gradients are compared. The default backend of PyTorch 2.6 computes the
    gradient of an embedding wrong on CPUs, also in a model without attention."""
    named = model.named_parameters()
    return [x for name, x in named if PYTORCH >= (2, 8) or not re.search("wte|wpe|embed", name)]


def skip_where_eager_fails_too(eager, arguments, error):
    """PyTorch up to 2.7 generates a guard for transformers' code that uses the name torch without
    importing it, so the error also occurs without libattn."""
    if PYTORCH >= (2, 8):
        return
    torch._dynamo.reset()
    try:
        torch.compile(eager, backend="eager")(**arguments)
    except type(error):
        pytest.skip(f"with eager attention this PyTorch ends in the same error: {error}")


LAYERS = [
    *itertools.product([gpt2, llama], [[9, 9], [9, 5]], ["eager", "aot_eager"]),
    (llama, [9, 5], "inductor"),
]


@pytest.mark.parametrize(("make", "lengths", "backend"), LAYERS)
def test_compiled_layer(make, lengths, backend):
    """Only the layer is compiled. Its mask is created and guarded outside of the graph."""
    _, ours = pair(make)
    tokens, padding = batch(lengths, "left")
    layer = next(m for name, m in ours.named_modules() if name.endswith((".h.0", ".layers.0")))
    calls = []
    hook = layer.register_forward_pre_hook(
        lambda _, args, kwargs: calls.append((args, kwargs)), with_kwargs=True
    )
    with torch.no_grad():
        ours(input_ids=tokens, attention_mask=padding, use_cache=False)
        hook.remove()
        ((args, kwargs),) = calls
        masks = [x for x in (*args, *kwargs.values()) if isinstance(x, GuardedMask)]
        assert len(masks) == 1
        # PyTorch 2.4 breaks the graph where transformers looks up the attention function.
        compiled = torch.compile(layer, backend=backend, fullgraph=PYTORCH > (2, 4))
        results = [run(*args, **kwargs) for run in (layer, compiled)]
    expected, found = (x[0] if isinstance(x, tuple) else x for x in results)
    real = padding.bool()
    assert relative_error(found[real], expected[real]) <= 1e-5
