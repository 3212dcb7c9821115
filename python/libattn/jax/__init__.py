"""libattn for JAX: attention with gradients, and jax.nn.dot_product_attention's signature.

Importing this imports jax and registers libattn's handlers with XLA, for the CPU and for CUDA.
docs/jax.md tells what works under which transformation.
"""

import jax as _jax

if _jax.__version_info__ < (0, 6):
    raise ImportError(f"libattn.jax: JAX: found {_jax.__version__}; accepted 0.6 or later")

from ._attention import attention
from ._dot_product import dot_product_attention

__all__ = ["attention", "dot_product_attention"]
