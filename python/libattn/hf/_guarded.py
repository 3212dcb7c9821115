"""libattn's mask as a tensor that refuses to be computed with.

Some models do more with their mask than to hand it to attention: they route by it, cut it, or add
it to scores. They expect transformers' mask [batch, 1, len_q, len_kv] of pairs and would compute
nonsense with libattn's (see _mask.py).

A layer that is compiled alone gets a guarded mask as its graph's input. torch.compile inspects the
inputs of a graph, and the graph computes with them, through functions that no model calls. Those
are permitted.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._dynamo import config as dynamo
from torch._guards import TracingContext
from torch._ops import OpOverload
from torch.utils._pytree import tree_map_only

from libattn import Unsupported

# What a mask meets on its way to a layer: it is looked at, moved between devices, copied.
_HARMLESS = frozenset(
    "__get__ __set__ __repr__ __str__ __format__ __hash__ __len__ __deepcopy__ __reduce_ex__ "
    "size stride dim ndimension numel nelement element_size storage_offset data_ptr get_device "
    "is_floating_point is_complex is_contiguous is_inference untyped_storage requires_grad_ "
    "to cuda cpu contiguous clone detach pin_memory record_stream as_subclass".split()
)


class GuardedMask(Tensor):  # type: ignore[misc, unused-ignore]
    """A mask of libattn; any operation but looking, moving and copying raises Unsupported."""

    model: str

    @staticmethod
    def of(mask: Tensor, model: str) -> GuardedMask:
        """mask, guarded. model: what to call the model in the message."""
        guarded: GuardedMask = mask.as_subclass(GuardedMask)
        guarded.model = model
        return guarded

    def __deepcopy__(self, memo: Any) -> Any:
        return self.clone()

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        # torch.compile traces, or looks at the graph's inputs.
        if torch.compiler.is_compiling() or TracingContext.try_get() is not None:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **(kwargs or {}))
        if isinstance(function, OpOverload):  # a compiled graph runs
            args, kwargs = tree_map_only(GuardedMask, unguarded, (args, kwargs or {}))
            return function(*args, **kwargs)
        name = getattr(function, "__name__", str(function))
        guarded = next((a for a in args if isinstance(a, GuardedMask)), None)
        model = "a model" if guarded is None else guarded.__dict__.get("model", "a model")
        with torch._C.DisableTorchFunctionSubclass():
            result = function(*args, **(kwargs or {})) if name in _HARMLESS else None
            changed = isinstance(result, Tensor) and result.dtype != torch.int32
            if name not in _HARMLESS or changed:
                raise Unsupported(
                    f"libattn.hf: {model} computes with its attention mask ({name}); libattn's "
                    "mask is the interval of keys that each query sees; load the model with "
                    'attn_implementation="eager"'
                )
            if isinstance(result, Tensor) and name != "as_subclass":
                return GuardedMask.of(result, model)
        return result


# PyTorch 2.4 to 2.6 trace only the subclasses in this set, newer ones every subclass.
if torch.__version__.startswith(("2.4.", "2.5.", "2.6.")):
    dynamo.traceable_tensor_subclasses.add(GuardedMask)


def unguarded(mask: Tensor) -> Tensor:
    """The tensor that a `GuardedMask` guards; any other tensor as it is."""
    if not isinstance(mask, GuardedMask):
        return mask
    with torch._C.DisableTorchFunctionSubclass():
        if torch.compiler.is_compiling():  # as_subclass breaks the graph
            plain: Tensor = torch.ops.aten.alias.default(mask)
            return plain
        return mask.as_subclass(Tensor)
