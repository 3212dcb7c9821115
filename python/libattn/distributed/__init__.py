"""libattn.distributed: attention over several devices and machines, on torch.distributed.

    o = libattn.distributed.ring_attention(q, k, v, causal=True, layout="zigzag")

Every rank passes its rows of the sequence; `shard` cuts them. Results and gradients are those of
one device. Messages go through process groups of torch.distributed (gloo, NCCL).
"""

from ._attention import all_to_all_attention, mesh_attention, ring_attention
from ._decode import decode
from ._groups import TransportError
from ._sharding import positions, shard, unshard
from ._transport import Traffic, traffic

__all__ = [
    "Traffic",
    "TransportError",
    "all_to_all_attention",
    "decode",
    "mesh_attention",
    "positions",
    "ring_attention",
    "shard",
    "traffic",
    "unshard",
]
