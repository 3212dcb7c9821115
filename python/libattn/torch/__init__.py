"""libattn for PyTorch: attention, decode, merge and rope with gradients, and drop-in functions.

Importing this imports torch and registers the operators of namespace "libattn". attention, decode,
merge and rope take the options of the NumPy-level functions; scaled_dot_product_attention and
replace_sdpa stand in for PyTorch's own, flash_attn_* for those of the flash-attention package,
triangle_attention for cuEquivariance's and evoformer_attention for DeepSpeed's.
"""

from ._attention import attention, decode, merge, rope
from ._flash import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)
from ._kvcache import flash_attn_with_kvcache
from ._pair_bias import evoformer_attention, triangle_attention
from ._sdpa import replace_sdpa, scaled_dot_product_attention

__all__ = [
    "attention",
    "decode",
    "evoformer_attention",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
    "merge",
    "replace_sdpa",
    "rope",
    "scaled_dot_product_attention",
    "triangle_attention",
]
