"""libattn: exact softmax attention, forward, backward and decode, in linear memory.

    import numpy as np, libattn
    o, lse = libattn.attention(q, k, v, causal=True, return_lse=True)   # [b, n, h, dim]
    dq, dk, dv, *_ = libattn.attention_backward(do, q, k, v, o, lse, causal=True)

Arrays are NumPy's (bfloat16 by ml_dtypes), PyTorch's, or anything with DLPack or
`__cuda_array_interface__`. None is copied, except int64 indices and strided masks (see Options).
`libattn.torch` has differentiable functions and drop-ins for PyTorch, `libattn.distributed` splits
sequences over devices, `libattn.hf` is the adapter for Hugging Face transformers, `libattn.jax` has
the functions for JAX, and `libattn.plot` draws.
"""

from ._functions import Gradients, attention, attention_backward, decode
from ._library import Error, Unsupported, get_num_threads, set_num_threads
from ._operations import merge, merge_backward, rope
from ._options import Options, Origin, Rope
from ._queries import Verdict, describe, explain, info, supports, version, workspace_bytes
from ._weights import attention_weights

__version__ = version()

__all__ = [
    "Error",
    "Gradients",
    "Options",
    "Origin",
    "Rope",
    "Unsupported",
    "Verdict",
    "attention",
    "attention_backward",
    "attention_weights",
    "decode",
    "describe",
    "explain",
    "get_num_threads",
    "info",
    "merge",
    "merge_backward",
    "rope",
    "set_num_threads",
    "supports",
    "version",
    "workspace_bytes",
]
