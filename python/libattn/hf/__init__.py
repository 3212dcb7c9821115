"""libattn as an attention implementation of Hugging Face transformers.

    import libattn.hf
    libattn.hf.register()
    model = AutoModel.from_pretrained(..., attn_implementation="libattn")

`register` adds a function to transformers' `AttentionInterface` (what a layer calls in place of its
eager attention) and one to its `AttentionMaskInterface` (what a model calls to prepare its mask).
The second returns, for each query, the interval of keys that it sees, 2 integers a query, in place
of a [batch, 1, len_q, len_kv] mask.

transformers is imported by `register`, torch by this module's parts.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from libattn import Unsupported
from libattn.hf._record import Call, record

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["OLDEST_TRANSFORMERS", "Call", "record", "register", "sequence_parallel"]

OLDEST_TRANSFORMERS = "5.4"


def register(name: str = "libattn") -> None:
    """Makes `attn_implementation=name` known to transformers. Calling it again changes nothing.

    name: the word for attn_implementation.

    Errors: ImportError without transformers; libattn.Unsupported when transformers is older than
    `OLDEST_TRANSFORMERS` (its mask interface has no q_length and q_offset to build on).
    """
    try:
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        raise ImportError("libattn.hf.register needs the package transformers") from error
    version = str(getattr(transformers, "__version__", "unknown"))
    if not _has_interfaces(transformers):
        raise Unsupported(
            f"libattn.hf.register: transformers {version} is too old: its mask interface doesn't "
            f"take q_length and q_offset; transformers {OLDEST_TRANSFORMERS} or newer is needed"
        )
    from libattn.hf import _models
    from libattn.hf._attention import attention_forward
    from libattn.hf._mask import visible_keys

    _models.names.add(name)
    _models.check_at_construction(transformers.PreTrainedModel)
    transformers.AttentionInterface.register(name, attention_forward)
    transformers.AttentionMaskInterface.register(name, visible_keys)


@contextlib.contextmanager
def sequence_parallel(
    model: Any,
    *,
    scheme: Literal["ring", "all_to_all"] = "ring",
    group: Any = None,
    mesh: Any = None,
    layout: Literal["contiguous", "zigzag", "striped"] = "contiguous",
    kv_begin: Tensor | None = None,
) -> Iterator[None]:
    """Runs a model on sequences that are split over ranks: libattn.distributed in every layer.

    Inside, call the model with this rank's rows: input_ids cut by libattn.distributed.shard, and
    position_ids=libattn.distributed.positions(...)[None]. Backwards of what was computed inside may
    run after it. Cut labels the same way, after they were shifted, and compute the loss from the
    logits; sum the gradients of the weights over the ranks. Generation with a cache is refused.

    model: a PreTrainedModel whose attention is causal, bidirectional or windowed. Its
        attn_implementation is set back at the end.
    scheme: "ring" or "all_to_all": ring_attention or all_to_all_attention of libattn.distributed.
    group: a ProcessGroup, a DeviceMesh of one dimension, or None for all processes.
    mesh: for mesh_attention, in place of scheme and group.
    layout: which rows each rank holds: see libattn.distributed.shard.
    kv_begin: i32 [b|1, rows]: the first key of each row's document, counted in the complete row.

    Raises libattn.Unsupported for models and masks that it does not run, ValueError for a broken
    rule, and what the functions of libattn.distributed raise.
    """
    register()
    from libattn.hf import _sequence_parallel

    attention = _sequence_parallel.scheme(scheme, group, mesh, layout, kv_begin)
    with _sequence_parallel.running(model, attention):
        yield


def _has_interfaces(transformers: object) -> bool:
    """Whether this transformers has both interfaces in the form that libattn.hf fills."""
    if not hasattr(transformers, "AttentionInterface"):
        return False
    if not hasattr(transformers, "AttentionMaskInterface"):
        return False
    masking = importlib.import_module("transformers.masking_utils")
    sdpa_mask = getattr(masking, "sdpa_mask", None)
    # A decorated function's own code takes *args: unwrap it.
    return callable(sdpa_mask) and {"q_length", "q_offset"} <= set(
        inspect.signature(inspect.unwrap(sdpa_mask)).parameters
    )
