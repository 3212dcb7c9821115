"""Tiny configs of transformers' architectures. One rule shrinks the fields that it knows by name,
in a config and in the configs inside it. A table (exceptions.py) has what the rule can't guess.

A config is converted to a dict, shrunk and constructed again, so that transformers validates it and
computes the fields that it derives from others.
"""

from __future__ import annotations

import copy
import re
from typing import Any

import torch
import transformers
from zoo.exceptions import CONFIGS, DROP, FIELDS, NOT_BUILT

VOCABULARY = 99
HEAD_DIM = 16
WINDOW = 6
LARGEST_DEFAULT = 120e6  # parameters; a smaller model is built with its default config
MOST_LAYERS = 6


# Values in place of None in some default configs; -1 means the number of heads.
_GIVEN = {"head_dim": HEAD_DIM, "num_key_value_heads": -1, "vocab_size": VOCABULARY}
_GIVEN["pad_token_id"] = 0


# Fields of backbones that follow from the number of layers.
_STAGES = ("stage_names", "out_features", "out_indices")


class NotBuilt(Exception):
    """There is no tiny model of this class; the message is the reason."""


def _matches(pattern: str, name: str) -> bool:
    return re.search(pattern, name) is not None


def _number(name: str, value: int, fields: dict[str, Any], heads: int) -> int:
    """The value of an integer field in the tiny config."""
    width = HEAD_DIM * heads
    if _matches(r"(?<!mamba_)(n_heads?|num_heads|attention_heads)$", name):
        return heads
    if _matches(r"(key_value_heads|kv_heads|num_query_groups)$", name):
        queries = fields.get(name.replace("key_value", "attention"))
        return 1 if value == 1 else heads if value == queries else max(heads // 2, 1)
    if _matches(r"qk_(nope|rope)_head_dim$|^rotary_dim$", name):
        return HEAD_DIM // 2
    if name == "head_dim" and value == fields.get("qk_rope_head_dim"):
        return HEAD_DIM // 2
    if _matches(r"head_(dim|size)$|^(d_kv|d_head|kv_channels|dim_head|head_dim)$", name):
        return HEAD_DIM
    if _matches(r"(^|_)(n_group|topk_group|num_expert_group)$", name):
        return 1
    if _matches(r"experts_per_tok|topk$|top_k|moe_k$", name):
        return min(value, 2)
    if _matches(r"experts$|zero_expert_num$", name) and "shared" not in name:
        return min(value, 4)
    if _matches(r"_rank$", name):
        return min(value, 8)
    if _matches(r"(^|_)first_k_dense_replace$|num_dense_layers$", name):
        return min(value, 1)
    if _matches(r"(?<!extract_)(layers|n_layer|num_blocks)$", name):
        return min(value, 2)
    if _matches(r"vocab_size", name):
        return VOCABULARY if value > VOCABULARY else value
    if _matches(r"position(s|_embeddings)$|max_seq_len$|context_length$|n_ctx$", name):
        return min(value, 128)
    if _matches(
        r"^(sliding_window|attention_window(_size)?|sliding_window_size|window_size)$", name
    ):
        return min(value, WINDOW)
    if _matches(r"attention_chunk_size$", name):
        return min(value, WINDOW)
    if name == "image_size":
        return 32
    if name == "patch_size":
        return 8 if value >= 8 else value
    if _matches(
        r"intermediate|ffn|d_ff$|^dff$|dim_ff$|mlp_dim|n_inner|d_inner|feed_forward_size", name
    ):
        return min(value, 2 * width)
    if _matches(
        r"hidden|embed|emb_|model|proj|width|n_embd|(^|_)dim$|latent|output|query_pre_attn", name
    ):
        return (
            min(value, width)
            if value >= 32 and not _matches("max|layer|kernel|max_", name)
            else value
        )
    return value


def _few_layers(fields: dict[str, Any]) -> None:
    """Keeps one layer of each kind (at least 2 layers) in the lists with an entry per layer."""
    for name in ("num_hidden_layers", "num_layers", "n_layer", "n_layers"):
        count = fields.get(name)
        if isinstance(count, int) and count > 2:
            break
    else:
        return
    per_layer = {
        key: value
        for key, value in fields.items()
        if isinstance(value, list | tuple) and len(value) == count
    }
    own = {int(layer): value for layer, value in (fields.get("per_layer_config") or {}).items()}
    first: dict[Any, int] = {}
    for layer in range(count):
        alike = [value[layer] for value in per_layer.values()]
        first.setdefault(repr([*alike, own.get(layer)]), layer)
    kept = sorted(first.values())[:MOST_LAYERS]
    if len(kept) < 2:
        kept = [0, 1]
    for key, value in per_layer.items():
        fields[key] = [value[layer] for layer in kept]
    if own:
        fields["per_layer_config"] = {
            at: own[layer] for at, layer in enumerate(kept) if layer in own
        }
    fields[name] = len(kept)
    fields["_layers"] = name


def _shrink(fields: dict[str, Any], heads: int, free_tokens: list[int]) -> dict[str, Any]:
    """A tiny copy of a config's dict."""
    fields = copy.deepcopy(fields)
    _few_layers(fields)
    layers = fields.pop("_layers", None)
    result: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, dict):
            inner = "model_type" in value or (
                name.endswith("config") and name != "per_layer_config"
            )
            if name == "per_layer_config":
                value = {at: _shrink(one, heads, free_tokens) for at, one in value.items()}
            result[name] = _shrink(value, heads, free_tokens) if inner else value
        elif value is None and name in _GIVEN:
            result[name] = heads if _GIVEN[name] < 0 else _GIVEN[name]
        elif _matches(r"token_(id|index|ids)$", name):
            result[name] = _token(value, free_tokens)
        elif isinstance(value, bool) or not isinstance(value, int | list | tuple):
            result[name] = value
        elif isinstance(value, list | tuple):
            numbers = all(isinstance(one, int) and not isinstance(one, bool) for one in value)
            widths = numbers and _matches(r"intermediate_size$|conv_dim$|heads_per_layer", name)
            result[name] = [_number(name, one, fields, heads) for one in value] if widths else value
        elif name == layers:
            result[name] = value
        else:
            result[name] = _number(name, value, fields, heads)
    return result


def _token(value: Any, free: list[int]) -> Any:
    """A token's number within the tiny vocabulary; of a list, only the first token is kept."""
    if isinstance(value, list | tuple):
        return [_token(one, free) for one in value[:1]]
    return free.pop() if isinstance(value, int) and value >= 20 else value


def tiny_config(model_class: type, kind: str, heads: int) -> Any:
    """The tiny config of a model class. Raises NotBuilt where the table says so."""
    name = model_class.__name__
    if name in NOT_BUILT:
        raise NotBuilt(NOT_BUILT[name])
    config_class = model_class.config_class
    if name in CONFIGS:
        return CONFIGS[name](heads)
    given = FIELDS.get(name, FIELDS.get(config_class.__name__, {}))
    given = given(heads) if callable(given) else given
    fields = _shrink(config_class().to_dict(), heads, list(range(80, 98)))
    for drop in ("transformers_version", "model_type", "architectures", *_STAGES):
        fields.pop(drop, None)
    if kind == "causal" and "is_decoder" in fields:
        fields["is_decoder"] = True
    if fields.get("is_encoder_decoder") and fields.get("decoder_start_token_id") is None:
        fields["decoder_start_token_id"] = 1
    _update(fields, given)
    return config_class.from_dict(fields)


def _update(fields: dict[str, Any], given: dict[str, Any]) -> None:
    for key, value in given.items():
        if isinstance(value, dict) and isinstance(fields.get(key), dict):
            _update(fields[key], value)
        elif value is DROP:
            fields.pop(key, None)
        else:
            fields[key] = value


def default_config(model_class: type) -> Any:
    """The default config of a model that is small enough with it."""
    config = model_class.config_class()
    with torch.device("meta"):
        parameters = sum(one.numel() for one in model_class(config).parameters())
    if parameters > LARGEST_DEFAULT:
        raise NotBuilt(f"its default config has {parameters / 1e6:.0f} million parameters")
    return config


def spread(model: torch.nn.Module) -> None:
    """Random weights large enough that attention matters: the usual 0.02 makes flat scores."""
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        last = name.rsplit(".", 1)[-1]
        with torch.no_grad():
            if parameter.ndim >= 2 and "norm" not in name.lower():
                fan = parameter.shape[-1]
                if parameter.ndim > 2 and last == "weight":  # convolutions
                    fan = parameter[0].numel()
                parameter.normal_(0.0, max(fan, 1) ** -0.5)
            elif "sink" in name:
                parameter.normal_()
            elif last == "bias":
                parameter.add_(0.05 * torch.randn_like(parameter))
            elif parameter.numel() and parameter.abs().max() < 1e-2:
                parameter.normal_(0.0, 0.5)  # gates and scales that are initialized to 0


def make(model_class: type, config: Any, implementation: str) -> Any:
    """A model in evaluation mode, made by transformers' constructor."""
    config = copy.deepcopy(config)
    model = model_class._from_config(config, attn_implementation=implementation)
    return model.eval().float()


def classes() -> dict[str, tuple[str, str]]:
    """{model class: (kind, model type)} of the five kinds of mappings."""
    from transformers.models.auto import modeling_auto

    found: dict[str, tuple[str, str]] = {}
    for kind, mappings in MAPPINGS.items():
        for mapping in mappings:
            names = getattr(modeling_auto, f"MODEL_FOR_{mapping}_MAPPING_NAMES")
            for model_type, entry in names.items():
                for name in entry if isinstance(entry, list | tuple) else (entry,):
                    found.setdefault(name, (kind, model_type))
    return found


MAPPINGS = {
    "causal": ("CAUSAL_LM",),
    "masked": ("MASKED_LM",),
    "seq2seq": ("SEQ_TO_SEQ_CAUSAL_LM",),
    "vision": ("IMAGE_CLASSIFICATION",),
    "audio": ("SPEECH_SEQ_2_SEQ", "CTC", "AUDIO_CLASSIFICATION"),
}


def model_class(name: str) -> type:
    return getattr(transformers, name)
