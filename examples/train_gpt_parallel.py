#!/usr/bin/env python3
"""Trains the GPT of train_gpt.py with each row of text split over processes.

    torchrun --nproc-per-node 4 examples/train_gpt_parallel.py --context 4096 --batch 1

Every process holds some tokens of each row and computes all layers for them; attention reaches the
others' tokens by libattn.distributed. The losses are those of train_gpt.py with the same options.
Options in addition to those of train_gpt.py:

    --scheme ring | all_to_all
    --layout contiguous | zigzag | striped     of the ring; zigzag if it is not given

With --device cuda each process takes the GPU of its LOCAL_RANK.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import libattn.distributed as parallel
import torch
import torch.distributed as dist
import torch.nn.functional as F
from gpt_model import Attend
from gpt_text import BadText, Stream
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent))
import train_gpt  # noqa: E402


class SplitTrainer(train_gpt.Trainer):
    """Each process has its rows of the tokens, and the sum of all processes' gradients."""

    scheme, layout = "ring", "zigzag"

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.model.attention = self.attention
        self.sums: list[dist.Work] = []
        for parameter in self.model.parameters():
            parameter.register_post_accumulate_grad_hook(self.start_sum)

    def start_sum(self, parameter: Tensor) -> None:
        """The sum over all processes, under the rest of the backward."""
        self.sums.append(dist.all_reduce(parameter.grad, async_op=True))

    def complete_gradients(self) -> None:
        for pending in self.sums:
            pending.wait()
        self.sums.clear()

    def attention(self, kv_begin: Tensor, dropout: float) -> Attend:
        if self.scheme == "all_to_all":
            return lambda q, k, v: parallel.all_to_all_attention(
                q, k, v, causal=True, kv_begin=kv_begin, dropout_p=dropout
            )
        # With the rows of all processes, no call waits to compare them. (The processes draw a
        # seed of dropout together, so that calls with dropout exchange something in any case.)
        ranks, rows = dist.get_world_size(), None
        if self.context % (2 * ranks) == 0 and dropout == 0:
            rows = [self.context // ranks] * ranks
        return lambda q, k, v: parallel.ring_attention(
            q,
            k,
            v,
            layout=self.layout,
            lengths=rows,
            causal=True,
            kv_begin=kv_begin,
            dropout_p=dropout,
        )

    def loss(self, text: Stream, rows: int, seed: int) -> Tensor:
        """The mean over all tokens; its gradient is that of this process's tokens."""
        tokens, targets, kv_begin = self.place(
            *(
                parallel.shard(x, layout=self.layout)
                for x in text.random_rows(rows, self.context, seed)
            )
        )
        (place,) = self.place(parallel.positions(self.context, layout=self.layout))
        scores = self.scores(tokens, kv_begin, place)
        share = F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="sum")
        share = share / (rows * self.context)
        total = share.detach().clone()
        dist.all_reduce(total)
        return share + (total - share.detach())


def main() -> int:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--scheme", choices=("ring", "all_to_all"), default="ring")
    parser.add_argument("--layout", choices=("contiguous", "zigzag", "striped"), default="zigzag")
    chosen, rest = parser.parse_known_args()
    SplitTrainer.scheme = chosen.scheme
    SplitTrainer.layout = "contiguous" if chosen.scheme == "all_to_all" else chosen.layout
    try:
        options = train_gpt.parse(rest)
        if options.device == "cuda":
            options.device = f"cuda:{os.environ['LOCAL_RANK']}"
            torch.cuda.set_device(options.device)
        dist.init_process_group("gloo" if options.device == "cpu" else "nccl")
        dist.barrier()  # NCCL's first messages need all processes
        if dist.get_rank() == 0:
            options.out.mkdir(parents=True, exist_ok=True)
            trainer, summary = train_gpt.train(options, SplitTrainer)
            train_gpt.print_summaries([summary])
            if options.save:
                trainer.save(options.save)
            train_gpt.plot(options.out, [options.attention])
        else:
            if options.threads:
                torch.set_num_threads(options.threads)
            trainer = SplitTrainer(options)
            if options.resume:
                trainer.resume(options.resume)
            while trainer.step < options.steps:
                trainer.train_step()
    except (train_gpt.BadInput, BadText, OSError) as error:
        print(f"train_gpt_parallel: {error}", file=sys.stderr)
        return 2
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
