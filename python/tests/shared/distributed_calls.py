"""libattn.distributed: decode, errors, traffic, memory, overlap and failures.

usage: python distributed_calls.py [NAME...]     default: all checks

Each check runs in forked ranks of its own (distributed_cases.fork).
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from typing import Any

import libattn.distributed as distributed
import libattn.torch
import torch
import torch.distributed as dist
from distributed_cases import fork, join, leave
from libattn.distributed import _ring, _transport
from torch.distributed.device_mesh import init_device_mesh
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

SECONDS = 3  # timeout of the group that loses a rank
BLOCK = 0.1  # seconds that a block takes in `overlap`


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return made.to(dtype)


def qkv(rows: int, h: int = 4, g: int = 2, d: int = 8, dtype: Any = torch.float64) -> Any:
    return [random(2, rows, x, d, seed=at, dtype=dtype) for at, x in enumerate((h, g, g))]


def parts(tensors: Any, **how: Any) -> Any:
    return [distributed.shard(x, 1, **how).clone().requires_grad_() for x in tensors]


def close(got: torch.Tensor, want: torch.Tensor, error: float = 1e-12) -> None:
    assert got.shape == want.shape, (got.shape, want.shape)
    worst = (got - want).abs().max().item() if got.numel() else 0.0
    assert worst <= error, worst


def refused(text: str, call: Any, *arguments: Any, **options: Any) -> None:
    try:
        call(*arguments, **options)
    except ValueError as error:
        assert text in str(error), f"{error}\ndoes not contain\n{text}"
        return
    raise AssertionError(f"accepted what should say: {text}")


# --- checks: functions of (rank, ranks) ---------------------------------------------------------


def decode(rank: int, ranks: int) -> None:
    """Every option of decode over uneven parts of a cache, some of them empty."""
    sizes = [[7, 0, 5, 9], [3, 8, 1, 0]]  # rows in use by sequence and rank
    used = [row[:ranks] for row in sizes]
    capacity = 9
    h, g, d = 4, 2, 8
    for n in (1, 3):
        q = random(2, n, h, d)
        cache = [random(2, capacity, g, d, seed=1 + r) for r in range(ranks)]
        values = [random(2, capacity, g, d, seed=11 + r) for r in range(ranks)]
        bias = [random(2, h, n, capacity, seed=21 + r) for r in range(ranks)]
        total = [sum(row) for row in used]
        longest = max(total)

        def whole(part: Any, dim: int, longest: int = longest) -> torch.Tensor:
            rows = []
            for b, row in enumerate(used):
                kept = torch.cat(
                    [x[b].narrow(dim - 1, 0, m) for x, m in zip(part, row, strict=True)], dim - 1
                )
                pad = list(kept.shape)
                pad[dim - 1] = longest - kept.size(dim - 1)
                rows.append(torch.cat([kept, kept.new_zeros(pad)], dim - 1))
            return torch.stack(rows)

        for options in (
            {},
            {"causal": True},
            {"causal": True, "window": (4, None), "softcap": 2.0},
            {"window": (3, 1)},
            {"sinks": random(h), "causal": True},
            {"alibi_slopes": random(h).abs(), "causal": True},
            {"alibi_slopes": random(2, h).abs()},
            {"bias": bias, "scale": 0.3},
        ):
            full, mine = dict(options), dict(options)
            if "bias" in options:
                full["bias"], mine["bias"] = whole(bias, 3), bias[rank]
            want = libattn.torch.decode(
                q,
                whole(cache, 1),
                whole(values, 1),
                len_kv=torch.tensor(total),
                return_lse=True,
                **full,
            )
            lengths = torch.tensor([row[rank] for row in used])
            got = distributed.decode(
                q, cache[rank], values[rank], len_kv=lengths, return_lse=True, **mine
            )
            for x, y in zip(got, want, strict=True):
                close(x, y)
    refused("dropout_p", distributed.decode, q, cache[rank], values[rank], dropout_p=0.5)
    if ranks == 1:
        return
    wrong = q[:1] if rank == 1 else q
    refused("batch of q: found 1 on rank 1; accepted 2, as on rank 0", distributed.decode, wrong,
            cache[rank][: len(wrong)], values[rank][: len(wrong)])  # fmt: skip


def errors(rank: int, ranks: int) -> None:
    """All ranks raise, and name the rank and the rule."""
    ring = distributed.ring_attention
    q, k, v = parts(qkv(12))
    refused("causal: found 1 on rank 1; accepted 0, as on rank 0", ring, q, k, v, causal=rank == 1)
    one = q[..., :4] if rank == 1 else q
    two = k[..., :4] if rank == 1 else k
    refused("dim of q: found 4 on rank 1; accepted 8, as on rank 0", ring, one, two, v)
    text = "shape of kv_begin" if rank == 1 else "rank 1 refused its arguments"
    refused(
        text, ring, q, k, v, kv_begin=torch.zeros(1, q.size(1) + (rank == 1), dtype=torch.int32)
    )
    text = "unknown" if rank == 0 else "rank 0 refused its arguments"
    extra: Any = {"no_such_option": 1} if rank == 0 else {}
    try:
        ring(q, k, v, **extra)
        raise AssertionError("accepted an unknown option")
    except (TypeError, ValueError) as error:
        assert rank == 0 or text in str(error), error
    row, bounds = random(q.size(1), 4, 8), torch.tensor([0, 5, 12], dtype=torch.int32)
    packed = {"cu_len_q": bounds, "cu_len_kv": bounds}
    refused("shape of bias", ring, row, row, row, **packed, bias=random(2, 4, 6, 7))
    refused("kv_begin", ring, row, row, row, **packed, kv_begin=bounds)
    refused("rope", ring, q, k, v, rope=libattn.Rope())
    counts = _lengths(12, ranks)
    refused("lengths_kv: found it without lengths", ring, q, k, v, lengths_kv=counts)
    refused("lengths_kv: found ()", ring, q, k, v, lengths=counts, lengths_kv=())
    refused("layout: found 'spiral'", ring, q, k, v, layout="spiral")
    rows = q.size(1) - 2 * (rank == 0)
    refused("rows of q on the ranks", ring, q[:, :rows], k[:, :rows], v[:, :rows], layout="zigzag")
    refused("keys of bias", ring, q, k, v, bias=random(1, 1, q.size(1), 5))
    refused("heads of q", distributed.all_to_all_attention, *parts(qkv(12, ranks - 1, ranks - 1)))
    typed = k.to(torch.float32) if rank == 0 else k
    refused("type of k" if rank == 0 else "rank 0 refused", ring, q, typed, v)
    if ranks == 4:
        mesh = init_device_mesh("cpu", (2, 2))
        text = "causal: found" if rank > 1 else "refused its arguments"
        refused(text, distributed.mesh_attention, q, k, v, mesh=mesh, causal=rank == 3)
    dist.barrier()
    ring(q, k, v)  # the group still works


def forms(rank: int, ranks: int) -> None:
    """bf16 with f32 results, autocast, lengths=, the same bits twice, one seed for all ranks."""
    ring = distributed.ring_attention
    whole = qkv(20)
    want = libattn.torch.attention(*whole, causal=True)
    q, k, v = parts(whole)
    counts = _lengths(20, ranks)
    both = dict.fromkeys(("lengths", "lengths_kv"), torch.tensor(counts))
    for lengths in ({"lengths": counts}, both):
        close(ring(q, k, v, causal=True, **lengths), distributed.shard(want))

    narrow = [x.to(torch.bfloat16) for x in whole]
    leaves = parts(narrow)
    o = ring(*leaves, causal=True, out_dtype=torch.float32)
    assert o.dtype == torch.float32
    one = libattn.torch.attention(*narrow, causal=True, out_dtype=torch.float32)
    close(o, distributed.shard(one), 1e-2)
    o.sum().backward()
    assert all(x.grad is not None and x.grad.dtype == torch.bfloat16 for x in leaves)

    with torch.autocast("cpu", torch.bfloat16):
        assert ring(*parts(qkv(20, dtype=torch.float32))).dtype == torch.bfloat16

    # Gradients of one tensor alone, on a mesh of one dimension; also with uneven groups of heads.
    for wanted, inputs in itertools.product(range(3), (whole, qkv(20, h=6, g=3))):
        leaves = [x.detach() for x in parts(inputs)]
        full = [x.clone() for x in inputs]
        leaves[wanted].requires_grad_()
        full[wanted].requires_grad_()
        line = init_device_mesh("cpu", (ranks,))
        for call in (ring, distributed.all_to_all_attention):
            leaves[wanted].grad = full[wanted].grad = None
            call(*leaves, causal=True, group=line).square().sum().backward()
            libattn.torch.attention(*full, causal=True).square().sum().backward()
            close(leaves[wanted].grad, distributed.shard(full[wanted].grad))

    found = []
    for _ in range(2):
        leaves = parts([x.to(torch.float32) for x in qkv(150)], layout="zigzag")
        ring(*leaves, layout="zigzag", causal=True, deterministic=True).square().sum().backward()
        found.append([x.grad for x in leaves])
    assert all(torch.equal(x, y) for x, y in zip(*found, strict=True))

    torch.manual_seed(rank)  # the first rank's draw counts
    seeded = ring(q, k, v, dropout_p=0.5)
    torch.manual_seed(0)
    seed = int(torch.randint(2**63 - 1, (1,)).item())
    close(seeded, distributed.shard(libattn.torch.attention(*whole, dropout_p=0.5, seed=seed)))
    joined = distributed.unshard(distributed.shard(whole[0], layout="striped"), layout="striped")
    close(joined, whole[0], 0.0)


def compiled(rank: int, ranks: int) -> None:
    """torch.compile runs the call outside of its graphs; checkpoints compute it again."""

    def layer(q: Any, k: Any, v: Any) -> Any:
        return distributed.ring_attention(q * 1.5, k, v, causal=True) * 2.0

    def checkpointed(*x: Any) -> Any:
        return checkpoint(layer, *x, use_reentrant=False)

    found = []
    for call in (layer, checkpointed, torch.compile(layer, backend="aot_eager")):
        leaves = parts(qkv(20))
        call(*leaves).sin().sum().backward()
        found.append([x.grad for x in leaves])
    for x, *others in zip(*found, strict=True):
        for y in others:
            close(x, y)


def _lengths(rows: int, ranks: int) -> list[int]:
    return [rows // ranks + (rank < rows % ranks) for rank in range(ranks)]


def bytes_moved(rank: int, ranks: int) -> None:
    """The number of bytes moved is exactly that of docs/distributed.md."""
    for g in (8, 2):
        _bytes_moved(ranks, g)


def _bytes_moved(ranks: int, g: int) -> None:
    n, h, d, size = 2 * ranks * ranks, 8, 16, 8
    whole = [random(1, n, heads, d) for heads in (h, g, g)]
    block = 2 * n // ranks * g * d * size  # keys and values of a rank

    def moved(call: Any, **options: Any) -> Any:
        how = {x: options[x] for x in ("layout",) if x in options}
        leaves = parts(whole, group=options.get("mesh"), **how)
        with distributed.traffic() as forward:
            o = call(*leaves, **options)
        with distributed.traffic() as backward:
            o.sum().backward()
        sums = torch.tensor([forward.sent_bytes, backward.sent_bytes], dtype=torch.int64)
        got = torch.tensor([forward.received_bytes, backward.received_bytes], dtype=torch.int64)
        dist.all_reduce(sums)
        dist.all_reduce(got)
        assert torch.equal(sums, got)
        return (sums / ranks).tolist()

    ring = distributed.ring_attention
    for layout in ("contiguous", "zigzag", "striped"):
        forward, backward = moved(ring, layout=layout)
        assert forward == (ranks - 1) * block, (forward, block)
        assert backward == 2 * (ranks - 1) * block
        # Striped parts move to zigzag ones and back: q, k, v, o and lse, then dout and delta too.
        dropped = moved(ring, layout=layout, dropout_p=0.5, seed=1)
        rows = n // ranks * size * (ranks - 1) / ranks * (layout == "striped")
        forward += rows * ((2 * h + 2 * g) * d + h)
        backward += rows * ((3 * h + 4 * g) * d + 2 * h)
        assert dropped == [forward, backward], (dropped, forward, backward)
    forward, _ = moved(ring, causal=True)  # contiguous: half of the blocks are visible
    assert forward == (ranks - 1) / 2 * block
    forward, _ = moved(ring, causal=True, window=(n // ranks, None))  # one neighbour's block
    assert forward == (ranks - 1) / ranks * block
    forward, backward = moved(distributed.all_to_all_attention)
    each = n // ranks * d * size * (ranks - 1) / ranks
    assert forward == each * (2 * h + 2 * max(g, ranks)), (forward, each)
    assert backward == each * (2 * h + 2 * max(g, ranks))
    if ranks % 2 == 0:
        mesh = init_device_mesh("cpu", (ranks // 2, 2))
        forward, backward = moved(distributed.mesh_attention, mesh=mesh)
        ring_bytes = (ranks // 2 - 1) * block
        pair_bytes = n // ranks * d * size / 2 * (2 * h + 2 * g)
        assert forward == ring_bytes + pair_bytes
        assert backward == 2 * ring_bytes + pair_bytes, (backward, ring_bytes, pair_bytes)
    batch, queries = 2, 3
    with distributed.traffic() as cache:
        distributed.decode(
            random(batch, queries, h, d), random(batch, 5, g, d), random(batch, 5, g, d)
        )
    moved_bytes = (ranks - 1) * batch * queries * h * (d + 1) * size
    assert cache.sent_bytes == cache.received_bytes == moved_bytes, (cache, moved_bytes)


def memory(rank: int, ranks: int) -> None:
    """Allocations of a rank: O(length / ranks). Peak of the storages that are alive."""
    striped = {"layout": "striped", "dropout_p": 0.5, "seed": 1}  # exchanges rows
    for options, limit in (({}, 32), (striped, 48)):
        peaks = []
        for n in (64, 128):
            leaves = parts([random(1, n * ranks, 2, 16, seed=x) for x in range(3)])

            def call(leaves: Any = leaves, options: Any = options) -> Any:
                return distributed.ring_attention(*leaves, causal=True, **options)

            peaks.append(_peak(call) / (n * 2 * 16 * 8))
        # In units of one rank's q: o, its wide copy, lse, its own block, and the blocks under way.
        assert max(peaks) < limit, peaks
        assert abs(peaks[1] - peaks[0]) < 1, peaks
        most = torch.tensor(max(peaks))
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        if rank == 0:
            how = ", ".join(f"{name}={x!r}" for name, x in options.items())
            print(f"peak of a rank's allocations: {float(most):.1f} times its q ({how or 'plain'})")


class _Peak(TorchDispatchMode):
    """The peak number of bytes in storages that are allocated inside the context."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, tuple[Any, int]] = {}
        self.most = 0

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = call(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, torch.Tensor):
                storage = x.untyped_storage()
                self.made[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.made = {key: kept for key, kept in self.made.items() if not kept[0].expired()}
        self.most = max(self.most, sum(size for _, size in self.made.values()))
        return out


def _peak(call: Any) -> int:
    with _Peak() as counter:
        call().sum().backward()
    return counter.most


class _Slow:
    """A transport whose messages take `delay` seconds from their start."""

    def __init__(self, delay: float) -> None:
        self.delay, self.inner, self.waited = delay, _transport.start, 0.0

    def __call__(self, group: Any, kind: str, messages: Any) -> Any:
        pending = self.inner(group, kind, messages)
        if pending.works:
            pending.works.append(_Until(time.perf_counter() + self.delay))
        return pending


class _Until:
    def __init__(self, end: float) -> None:
        self.end = end

    def wait(self) -> None:
        time.sleep(max(0.0, self.end - time.perf_counter()))


def overlap(rank: int, ranks: int) -> None:
    """A step takes as long as the slower of computing and transport (sleeps here), within 15 %."""
    leaves = [x.detach() for x in parts(qkv(8 * ranks))]
    kernel, inner = _ring._attention, _transport.start

    def slow(*words: Any, **options: Any) -> Any:
        time.sleep(BLOCK)
        return kernel(*words, **options)

    def seconds() -> float:
        best = float("inf")
        for _ in range(3):
            dist.barrier()
            began = time.perf_counter()
            distributed.ring_attention(*leaves)
            found = torch.tensor([time.perf_counter() - began])
            dist.all_reduce(found, op=dist.ReduceOp.MAX)
            best = min(best, float(found))
        return best

    steps = (
        ranks // 2
    )  # in both directions; each brings two blocks, the last one when ranks are even
    blocks = [2] * steps
    blocks[-1] -= ranks % 2 == 0
    _ring._attention = slow
    for delay in (0.6 * BLOCK, 3 * BLOCK):
        _transport.start = _Slow(delay)  # type: ignore[assignment]
        found = seconds()
        computed = [BLOCK * x for x in (1, *blocks)]
        expected = sum(max(x, delay) for x in computed[:-1]) + computed[-1]
        if rank == 0:
            both = sum(computed) + steps * delay
            print(f"overlap: {found:.3f} s; longer of both {expected:.3f}, their sum {both:.3f}")
        assert found < 1.15 * expected, (found, expected)
    _ring._attention, _transport.start = kernel, inner


def killed(rank: int, call: Any, backward: bool = False) -> None:
    """A rank dies during a call: the others raise within the timeout of the group."""
    q, k, v = parts(qkv(30))
    call(q, k, v).sum().backward()
    began = time.perf_counter()
    real, armed = _transport.start, not backward

    def end(*words: Any) -> Any:
        if armed and end.calls:
            os.kill(os.getpid(), signal.SIGKILL)
        end.calls += armed
        return real(*words)

    def arm(gradient: torch.Tensor) -> None:
        nonlocal armed
        armed = True

    end.calls = 0
    if rank == 1:
        _transport.start = end
    try:
        for _ in range(3):
            at = "forward"
            o = call(q, k, v)
            o.register_hook(arm)
            at = "backward"
            o.sum().backward()
    except distributed.TransportError as error:
        assert time.perf_counter() - began < SECONDS + 10
        assert f"rank {rank}" in str(error), error
        assert at == "backward" or not backward
        os._exit(0)  # the group can't be closed
    raise AssertionError("no error without rank 1")


def silent(rank: int, ranks: int) -> None:
    """A rank stays alive but stops responding: the others raise after the timeout."""
    q, k, v = parts(qkv(30))
    distributed.ring_attention(q, k, v)
    began = time.perf_counter()
    if rank == 1:
        _transport.start = lambda *words: time.sleep(SECONDS + 2) or os._exit(0)  # type: ignore
    try:
        distributed.ring_attention(q, k, v)
    except distributed.TransportError as error:
        passed = time.perf_counter() - began
        assert SECONDS - 1 < passed < SECONDS + 10
        # Later on a busy machine, the other rank has ended.
        assert passed > SECONDS + 1.5 or "Timed out" in str(error) or "timeout" in str(error), error
        os._exit(0)
    raise AssertionError("no error although rank 1 waits")


CHECKS = {
    "decode": (decode, (1, 2, 4)),
    "errors": (errors, (2, 4)),
    "forms": (forms, (2,)),
    "compiled": (compiled, (2,)),
    "bytes_moved": (bytes_moved, (2, 4, 8)),
    "memory": (memory, (4, 8)),
    "overlap": (overlap, (2, 4)),
    "killed": (lambda r, n: killed(r, distributed.ring_attention), (3,)),
    "killed_in_backward": (lambda r, n: killed(r, distributed.ring_attention, True), (3,)),
    "killed_in_exchange": (lambda r, n: killed(r, distributed.all_to_all_attention), (3,)),
    "silent": (silent, (2,)),
}


def run_rank(name: str, rank: int, ranks: int, store: str) -> int:
    join(rank, ranks, store, SECONDS if name.startswith(("killed", "silent")) else 60)
    CHECKS[name][0](rank, ranks)
    leave()
    return 0


def main() -> int:
    failed = 0
    names = sys.argv[1:] or list(CHECKS)
    if {"compiled", "memory"} & set(names):
        import torch._dynamo  # noqa: F401  they import it: once, before the ranks are forked
    for name in names:
        for ranks in CHECKS[name][1]:
            began = time.perf_counter()
            found = fork(ranks, lambda r, s, c=name, n=ranks: run_rank(c, r, n, s))
            if name.startswith("killed"):
                found[1] += signal.SIGKILL  # as it should
            failed += any(found)
            outcome = f"FAILED: {found}" if any(found) else "passed"
            print(f"{name} on {ranks} ranks in {time.perf_counter() - began:.1f} s: {outcome}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
