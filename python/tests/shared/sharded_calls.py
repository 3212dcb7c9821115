"""One rank of test_sharding.py: attention on DTensors equals attention on plain tensors.

usage: python sharded_calls.py RANK FILE
"""

import sys

import libattn.torch
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

try:
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
except ImportError:  # 2.4
    from torch.distributed._tensor import DTensor, Replicate, Shard, distribute_tensor

B, N, M, H, G, D = 4, 6, 9, 4, 2, 8


def i32(*values):
    return torch.tensor(values, dtype=torch.int32)


def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


BEGIN = torch.arange(N, dtype=torch.int32) // 2
OPTIONS = {
    "plain": {},
    "causal": {"causal": True, "window": (3, None), "softcap": 2.0, "scale": 0.4},
    "ranges": {"kv_begin": torch.stack([BEGIN, 0 * BEGIN, 2 - BEGIN, BEGIN])},
    "documents": {"kv_begin": BEGIN[None], "kv_end": BEGIN[None] + 4},
    "mask": {"mask": random(B, 1, N, M) > -0.5},
    "bias": {"bias": random(1, H, N, M)},
    "bias of sequences": {"bias": random(B, 1, 1, M)},
    "alibi": {"alibi_slopes": random(H).abs()},
    "alibi of sequences": {"alibi_slopes": random(B, H).abs()},
    "sinks": {"sinks": random(H), "causal": True},
    "lengths": {"len_q": i32(1, 2, 6, 0), "len_kv": i32(9, 3, 0, 5)},
    "dropout": {"dropout_p": 0.5, "seed": 5},
    "dropout with an origin": {
        "dropout_p": 0.5,
        "seed": torch.tensor([5]),
        "origin": libattn.Origin(batch=1, head=2, heads_q=9),
    },
    "rope": {"rope": libattn.Rope(cos=random(9, 4).cos(), sin=random(9, 4).sin())},
    "packed": {"cu_len_q": i32(0, 2, N), "cu_len_kv": i32(0, 4, M)},
}
AS_DTENSORS = ("bias", "bias of sequences", "sinks", "ranges")  # options that are DTensors too


def check(name, mesh, placements, options_too, heads_kv=G):
    options = OPTIONS[name]
    batch = () if name == "packed" else (B,)
    shapes = (*batch, N, H, D), (*batch, M, heads_kv, D), (*batch, M, heads_kv, D)
    learned = [n for n in ("bias", "sinks") if n in options]
    leaves = [random(*s).requires_grad_() for s in shapes]
    leaves += [options[n].clone().requires_grad_() for n in learned]
    rest = {n: x for n, x in options.items() if n not in learned}

    def run(leaves, rest):
        return libattn.torch.attention(
            *leaves[:3], **dict(zip(learned, leaves[3:], strict=True)), **rest, return_lse=True
        )

    o, lse = run(leaves, rest)
    finite = ~lse.isneginf()
    upstream = random(*o.shape)
    loss = (o * upstream).sum() + 0.1 * lse[finite].sum()
    expected = torch.autograd.grad(loss, leaves)

    whole = [Replicate()]
    given = [
        distribute_tensor(x.detach(), mesh, p) for x, p in zip(leaves[:3], placements, strict=True)
    ]
    if options_too:
        given += [distribute_tensor(x.detach(), mesh, whole) for x in leaves[3:]]
        rest = {
            n: distribute_tensor(x, mesh, whole) if torch.is_tensor(x) and n != "seed" else x
            for n, x in rest.items()
        }
    else:
        given += [x.detach().clone() for x in leaves[3:]]
    given = [x.requires_grad_() for x in given]
    found, found_lse = run(given, rest)
    assert isinstance(found, DTensor) and found.shape == o.shape, name
    torch.testing.assert_close(found.full_tensor(), o, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found_lse.full_tensor(), lse, rtol=1e-5, atol=1e-5)
    one = (found * distribute_tensor(upstream, mesh, whole)).sum()
    seen = distribute_tensor(finite.float(), mesh, whole)
    two = (torch.where(seen > 0, found_lse, torch.zeros_like(found_lse))).sum()
    (one + 0.1 * two).backward()
    for x, want in zip(given, expected, strict=True):
        got = x.grad.full_tensor() if isinstance(x.grad, DTensor) else x.grad
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    return found.placements


def main():
    rank, file = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (2,))
    for name in OPTIONS:
        packed = name == "packed"
        heads = 1 if packed else 2
        for options_too in (False, True) if name in AS_DTENSORS else (False,):
            assert check(name, mesh, [[Shard(heads)]] * 3, options_too) == (Shard(heads),)
            if not packed:
                assert check(name, mesh, [[Shard(0)]] * 3, options_too) == (Shard(0),)
    # Tensors with another placement are redistributed. A key head is never split over two ranks.
    mixed = [[Shard(2)], [Replicate()], [Shard(0)]]
    assert check("plain", mesh, mixed, False) == (Shard(2),)
    assert check("plain", mesh, [[Shard(1)]] * 3, False) == (Replicate(),)
    assert check("dropout", mesh, [[Shard(2)]] * 3, False, heads_kv=1) == (Replicate(),)
    q = distribute_tensor(random(B, N, H, D), mesh, [Shard(0)])
    try:
        libattn.torch.attention(q, q, q, dropout_p=0.5)
    except ValueError as error:
        assert "the same one on all ranks" in str(error)
    else:
        raise AssertionError("dropout without a seed was not refused")
    as_sdpa = libattn.torch.scaled_dot_product_attention(*[q.transpose(1, 2)] * 3, is_causal=True)
    assert as_sdpa.placements == (Shard(0),)
    print("passed", flush=True)
    dist.destroy_process_group()


main()
