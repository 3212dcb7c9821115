"""libattn.hf.sequence_parallel: small models of transformers on forked ranks against one process.

usage: python distributed_models.py RANKS
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "hf"))

import libattn.distributed as distributed
import libattn.hf
import small_models
import torch
import torch.distributed as dist
from distributed_cases import fork, join, leave

LENGTH = 21
CASES = (
    ("llama", {"layout": "zigzag"}),
    ("llama", {"scheme": "all_to_all"}),
    ("mistral", {"layout": "striped"}),
    ("gemma2", {"layout": "contiguous"}),
    ("gpt_oss", {"layout": "zigzag"}),
)


def check(name: str, how: dict[str, Any], documents: bool) -> None:
    torch.manual_seed(3)
    model = getattr(small_models, name)().train()
    kind = torch.float32 if name == "gpt_oss" else torch.float64  # its experts have no f64
    model.to(kind)
    layout = how.get("layout", "contiguous")
    tokens = torch.randint(1, small_models.VOCABULARY, (1, LENGTH))
    weight = torch.randn(1, LENGTH, small_models.VOCABULARY, dtype=kind)
    model.set_attn_implementation("libattn")
    places = torch.arange(LENGTH)[None]
    begin = places // 8 * 8
    whole = model(tokens, position_ids=places % 8 if documents else places).logits
    (whole * weight).sum().backward()
    want = {name: x.grad.clone() for name, x in model.named_parameters() if x.grad is not None}
    model.zero_grad()
    if documents:  # RoPE is relative: positions of the complete row give the same scores
        how = {**how, "kv_begin": distributed.shard(begin, layout=layout).to(torch.int32)}
    with libattn.hf.sequence_parallel(model, **how):
        place = distributed.positions(LENGTH, layout=layout)[None]
        logits = model(distributed.shard(tokens, layout=layout), position_ids=place).logits
    # Norms and rotary tables are f32 in f64 models too.
    (logits * distributed.shard(weight, layout=layout)).sum().backward()
    torch.testing.assert_close(
        logits, distributed.shard(whole, layout=layout), rtol=1e-4, atol=1e-4
    )
    for name, parameter in model.named_parameters():
        if name in want:
            got = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            dist.all_reduce(got)
            torch.testing.assert_close(got, want[name], rtol=1e-4, atol=1e-4)
    assert model.config._attn_implementation == "libattn"


def refusals() -> None:
    model = small_models.llama()
    tokens = torch.ones(1, 6, dtype=torch.int64)
    for text, options in (
        ("position_ids: found none", {}),
        ("restart", {"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2]])}),
        ("padding", {"position_ids": torch.arange(6)[None],
                     "attention_mask": torch.tensor([[1, 1, 1, 1, 0, 0]])}),
    ):  # fmt: skip
        try:
            with libattn.hf.sequence_parallel(model):
                model(tokens, **options)
        except (ValueError, libattn.Unsupported) as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"accepted: {text}")


def run_rank(rank: int, ranks: int, store: str) -> int:
    join(rank, ranks, store, 60)
    libattn.hf.register()
    for name, how in CASES:
        check(name, how, documents=False)
    check("llama", {"layout": "zigzag"}, documents=True)
    refusals()
    leave()
    return 0


def main() -> int:
    ranks = int(sys.argv[1])
    for name, _ in CASES:  # imports the models once, before the fork
        getattr(small_models, name)()
    statuses = fork(ranks, lambda rank, store: run_rank(rank, ranks, store))
    print(f"exit statuses of the ranks: {statuses}")
    return int(any(statuses))


if __name__ == "__main__":
    sys.exit(main())
