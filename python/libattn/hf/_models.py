"""Which models call transformers' attention interface, read from the source of their module.

transformers hands `attn_implementation="libattn"` to every model, also to those that compute
attention themselves. Such a model would take libattn's mask for its own and compute with it.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from libattn import Unsupported

# A module that calls the attention interface names it.
_INTERFACE = "ALL_ATTENTION_FUNCTIONS"
_DEFINES_ATTENTION = re.compile(r"^class \w*Attention\w*\(", re.MULTILINE)
# One class of layers per implementation, looked up by its name.
_CHOOSES_CLASS = re.compile(r"_CLASSES\[(self\.)?config\._attn_implementation\]")
# A model that passes this goes on computing with the mask of pairs.
_COMPUTES_WITH_MASK = re.compile(r"allow_is_causal_skip\s*=\s*False")

# Models whose real tokens depend on the attention results of padding tokens. Those see no key where
# padding is on the left: libattn's result is 0, eager's the mean of all values.
_READS_PADDING = {"transformers.models.blt.modeling_blt": "its patches include padding tokens"}

# Names of `register`, and the config classes of _COMPUTES_WITH_MASK that were seen so far (inside
# torch.compile no source can be read).
names: set[str] = set()
_with_mask: set[type] = set()


@functools.cache
def _source(module_name: str) -> str | None:
    """The source of a loaded module, None where there is none."""
    module = sys.modules.get(module_name)
    if not isinstance(module, ModuleType):
        return None
    try:
        return inspect.getsource(module)
    except (OSError, TypeError):
        return None


def _has_own_attention(module_name: str) -> bool:
    """Whether a module has attention layers that don't call the interface."""
    source = _source(module_name)
    if source is None:
        return False
    if _INTERFACE in source:
        return _CHOOSES_CLASS.search(source) is not None
    return _DEFINES_ATTENTION.search(source) is not None


def _modeling_module(config_class: type) -> str:
    """transformers keeps configuration_x.py and modeling_x.py side by side."""
    return config_class.__module__.replace("configuration_", "modeling_")


def _refuse(model: str) -> None:
    raise Unsupported(
        f"libattn.hf: {model} computes attention itself and doesn't call transformers' attention "
        'interface; load it with attn_implementation="eager"'
    )


def check_class(model_class: type) -> None:
    """Raises Unsupported for a model class with its own attention."""
    if _has_own_attention(model_class.__module__):
        _refuse(model_class.__name__)


def check_config(config: Any) -> None:
    """As `check_class`, for the model of a config. Not for use inside torch.compile."""
    config_class = type(config)
    module_name = _modeling_module(config_class)
    if _has_own_attention(module_name):
        _refuse(name_of(config))
    source = _source(module_name)
    if source is not None and _COMPUTES_WITH_MASK.search(source):
        _with_mask.add(config_class)


def check_left_padding(config: Any) -> None:
    """Raises Unsupported for the config of a model that can't have padding on the left."""
    reason = _READS_PADDING.get(_modeling_module(type(config)))
    if reason is not None:
        raise Unsupported(
            f"libattn.hf: {name_of(config)} with padding on the left: {reason}, where libattn's "
            "result is 0 and eager's isn't; pad on the right or use attn_implementation=\"eager\""
        )


def name_of(config: Any) -> str:
    """What to call the model of a config in a message."""
    architectures = getattr(config, "architectures", None)
    return str(architectures[0] if architectures else type(config).__name__)


def computes_with_mask(config: Any) -> bool:
    """Whether `check_config` found that the config's model goes on computing with its mask."""
    return type(config) in _with_mask


def check_at_construction(pretrained: type) -> None:
    """Lets transformers' `PreTrainedModel` refuse such models when they are made or loaded.

    `get_correct_attn_implementation` is what every constructor calls with the name that it was
    given. Without that method, models are refused at their first mask.
    """
    original: Callable[..., Any] | None = getattr(
        pretrained, "get_correct_attn_implementation", None
    )
    if original is None or hasattr(original, "_libattn"):
        return

    @functools.wraps(original)
    def checked(self: Any, requested_attention: str | None, *rest: Any, **options: Any) -> Any:
        if requested_attention in names:
            check_class(type(self))
            check_config(self.config)
        return original(self, requested_attention, *rest, **options)

    checked._libattn = True  # type: ignore[attr-defined]
    pretrained.get_correct_attn_implementation = checked  # type: ignore[attr-defined]
