#!/usr/bin/env python3
"""Trains a small GPT on text, with libattn's attention or PyTorch's, and compares them.

    python examples/train_gpt.py                     # Python's own library, about 10M parameters
    python examples/train_gpt.py notes/ book.txt     # any files and folders
    python examples/train_gpt.py --compare --steps 20 --samples 0

The model is in gpt_model.py, the text in gpt_text.py. --out receives one log per attention (JSON
lines: the settings, then every step, then a summary) and loss.png.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from gpt_model import ATTENTION, GPT, Shape, generate
from gpt_text import BEGIN, BadText, Stream, load_streams

EXAMPLES = Path(__file__).resolve().parent


class BadInput(Exception):
    """The options contradict each other or a file; the message says why."""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a small GPT on text.",
        allow_abbrev=False,  # --compare must be found among the arguments by its name
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    text = parser.add_argument_group("text")
    text.add_argument(
        "text",
        nargs="*",
        type=Path,
        help="files and folders, each file a document; none: the sources of Python's own library",
    )
    text.add_argument("--context", type=int, default=Shape.context, help="tokens (bytes) in a row")
    text.add_argument("--batch", type=int, default=2, help="rows in a step")

    model = parser.add_argument_group("model")
    model.add_argument("--layers", type=int, default=Shape.layers)
    model.add_argument("--heads", type=int, default=Shape.heads, help="query heads")
    model.add_argument(
        "--kv-heads", type=int, default=Shape.kv_heads, help="key/value heads; divides --heads"
    )
    model.add_argument("--head-dim", type=int, default=Shape.head_dim, help="channels of a head")
    model.add_argument("--hidden", type=int, default=Shape.hidden, help="width inside the MLP")
    model.add_argument("--dropout", type=float, default=0.0, help="of attention weights")

    run = parser.add_argument_group("training")
    which = run.add_mutually_exclusive_group()
    which.add_argument("--attention", choices=list(ATTENTION), default="libattn")
    which.add_argument(
        "--compare",
        action="store_true",
        help="run every attention in turn, each in a process of its own, and print tokens/s and "
        "peak memory of each",
    )
    run.add_argument("--steps", type=int, default=240, help="step to train up to")
    run.add_argument("--learning-rate", type=float, default=1e-3, help="after the warm-up")
    run.add_argument("--warmup", type=int, default=20, help="steps to reach the learning rate")
    run.add_argument(
        "--evaluate-every", type=int, default=40, help="steps between losses of held-out text"
    )
    run.add_argument("--seed", type=int, default=0, help="of weights, text and samples")
    run.add_argument("--threads", type=int, default=0, help="of the CPU; 0: PyTorch's choice")
    run.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    run.add_argument("--bf16", action="store_true", help="compute in bf16; weights stay f32")

    results = parser.add_argument_group("results")
    results.add_argument("--out", type=Path, default=Path("train_gpt"), help="folder, made here")
    results.add_argument("--save", type=Path, help="file to write a checkpoint to at the end")
    results.add_argument("--resume", type=Path, help="checkpoint to continue from")
    results.add_argument("--samples", type=int, default=3, help="texts to write at the end")
    results.add_argument("--sample-length", type=int, default=200, help="tokens of a sample")
    results.add_argument("--prompt", default="", help="what the samples continue")
    return check(parser.parse_args(arguments))


def check(options: argparse.Namespace) -> argparse.Namespace:
    """Refuses invalid options before anything is computed."""
    for name in ("batch", "steps", "evaluate_every", "sample_length"):
        if getattr(options, name) < 1:
            raise BadInput(f"--{name.replace('_', '-')} must be at least 1")
    for name in ("warmup", "threads", "samples"):
        if getattr(options, name) < 0:
            raise BadInput(f"--{name} must not be negative")
    if not 0 <= options.dropout < 1:
        raise BadInput(f"--dropout must be in [0, 1); it is {options.dropout}")
    if not 0 < options.learning_rate < math.inf:
        raise BadInput(f"--learning-rate must be positive; it is {options.learning_rate}")
    if options.compare and (options.save or options.resume):
        raise BadInput("--compare trains three models: --save and --resume are for one")
    kind, _, number = options.device.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdigit()):
        raise BadInput(f"--device must be cpu, cuda or cuda:N; it is {options.device}")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise BadInput(f"--device {options.device}: PyTorch finds {torch.cuda.device_count()} GPUs")
    if options.resume and not options.resume.is_file():
        raise BadInput(f"--resume {options.resume}: no such file")
    if options.save and not options.save.resolve().parent.is_dir():
        raise BadInput(f"--save {options.save}: its folder does not exist")
    if options.attention == "libattn" and importlib.util.find_spec("libattn") is None:
        raise BadInput("the package libattn is not installed: install it, or give --attention sdpa")
    return options


def shape_of(options: argparse.Namespace) -> Shape:
    """The options that are fields of Shape."""
    names = {field.name for field in dataclasses.fields(Shape)}
    try:
        return Shape(**{name: value for name, value in vars(options).items() if name in names})
    except ValueError as error:
        raise BadInput(str(error)) from error


def learning_rate(step: int, options: argparse.Namespace) -> float:
    """Linear warm-up, then a cosine down to a tenth at the last step."""
    if step <= options.warmup:
        return options.learning_rate * step / options.warmup
    done = (step - options.warmup) / max(1, options.steps - options.warmup)
    return options.learning_rate * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


def peak_memory(device: str) -> int:
    """Peak memory in bytes: of this process on the CPU, of PyTorch's tensors on a GPU.

    Linux's VmHWM is preferred: getrusage's value starts at the size of the parent process.
    """
    if device != "cpu":
        return torch.cuda.max_memory_allocated(device)
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024
    except (OSError, StopIteration):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


class Trainer:
    """Model, optimiser and the losses so far; everything a checkpoint holds."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.step = 0
        self.curve: list[dict[str, float]] = []
        shape = shape_of(options)
        self.train_text, self.held_out = load_streams(options.text, shape.context, options.seed)
        torch.manual_seed(options.seed)
        self.model = GPT(shape, options.attention, options.dropout).to(options.device)
        matrices = [p for p in self.model.parameters() if p.dim() == 2]
        vectors = [p for p in self.model.parameters() if p.dim() < 2]
        self.optimiser = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
            betas=(0.9, 0.95),
        )

    def loss(self, text: Stream, rows: int, seed: int) -> torch.Tensor:
        """Mean cross entropy of the next byte, in nats."""
        tokens, targets, kv_begin = self.place(*text.random_rows(rows, self.context, seed))
        scores = self.scores(tokens, kv_begin)
        return F.cross_entropy(scores.flatten(0, 1), targets.flatten())

    @property
    def context(self) -> int:
        return self.model.shape.context

    def place(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        return [x.to(self.options.device) for x in tensors]

    def scores(self, *inputs: torch.Tensor) -> torch.Tensor:
        """What the model returns, in f32."""
        kind = torch.device(self.options.device).type
        with torch.autocast(kind, torch.bfloat16, enabled=self.options.bf16):
            return self.model(*inputs).float()

    def complete_gradients(self) -> None:
        """Called between the backward and the optimiser."""

    def train_step(self) -> dict[str, float]:
        """One step; its row of the log. The text depends only on the seed and the step."""
        began = time.perf_counter()
        self.step += 1
        self.model.train()
        rate = learning_rate(self.step, self.options)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        loss = self.loss(self.train_text, self.options.batch, (self.options.seed << 32) + self.step)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.complete_gradients()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        row = {"step": self.step, "loss": loss.item(), "learning_rate": rate}
        if not math.isfinite(row["loss"]):
            raise BadInput(f"step {self.step}: the loss is {row['loss']}: lower --learning-rate")
        row["seconds"] = time.perf_counter() - began
        if self.step % self.options.evaluate_every == 0 or self.step == self.options.steps:
            row["held_out_loss"] = self.evaluate()
        self.curve.append(row)
        return row

    @torch.no_grad()
    def evaluate(self) -> float:
        """The loss of eight rows of held-out text, the same ones each time."""
        self.model.eval()
        return statistics.fmean(self.loss(self.held_out, 1, seed).item() for seed in range(8))

    def save(self, path: Path) -> None:
        state = {
            "shape": vars(self.model.shape),
            "step": self.step,
            "curve": self.curve,
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "random": torch.get_rng_state(),
        }
        unfinished = path.with_name(path.name + ".part")
        torch.save(state, unfinished)
        os.replace(unfinished, path)

    def resume(self, path: Path) -> None:
        try:
            state = torch.load(path, weights_only=True)
            shape = state["shape"]
        except Exception as error:
            raise BadInput(f"--resume {path}: not a checkpoint of this program: {error}") from error
        if shape != vars(self.model.shape):
            raise BadInput(f"--resume {path}: its model is {shape}, not {vars(self.model.shape)}")
        if state["step"] >= self.options.steps:
            raise BadInput(f"--resume {path}: it is at step {state['step']}: give more --steps")
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        torch.set_rng_state(state["random"])
        self.step, self.curve = state["step"], state["curve"]


class Progress:
    """A line that is overwritten in a terminal; without a terminal, a line from time to time."""

    def __init__(self, name: str, first: int, steps: int, tokens: int) -> None:
        self.name, self.first, self.steps, self.tokens = name, first, steps, tokens
        self.began = time.perf_counter()
        self.terminal = sys.stderr.isatty()

    def show(self, row: dict[str, float]) -> None:
        step, last = int(row["step"]), row["step"] == self.steps
        if not self.terminal and not last and step % max(1, self.steps // 10):
            return
        each = (time.perf_counter() - self.began) / (step - self.first)
        minutes, seconds = divmod(round(each * (self.steps - step)), 60)
        bar = "#" * (20 * step // self.steps)
        line = (
            f"{self.name} [{bar:.<20}] {step}/{self.steps}  loss {row['loss']:.3f}  "
            f"{self.tokens / each:,.0f} tokens/s  {minutes}:{seconds:02} left"
        )
        print("\r\033[K" + line if self.terminal else line, file=sys.stderr, flush=True,
              end="" if self.terminal and not last else "\n")  # fmt: skip


def train(
    options: argparse.Namespace, kind: type[Trainer] = Trainer
) -> tuple[Trainer, dict[str, Any]]:
    """Trains up to --steps, writing the log; the trainer and the log's summary."""
    if options.threads:
        torch.set_num_threads(options.threads)
    trainer = kind(options)
    if options.resume:
        trainer.resume(options.resume)
    before = peak_memory(options.device)
    parameters = sum(p.numel() for p in trainer.model.parameters())
    settings = {"attention": options.attention, "parameters": parameters, "batch": options.batch,
                "seed": options.seed, "torch": torch.__version__, "python": sys.version.split()[0],
                "threads": torch.get_num_threads(), "device": options.device,
                "bf16": options.bf16, "shape": vars(trainer.model.shape),
                "train_tokens": len(trainer.train_text.tokens)}  # fmt: skip
    tokens = options.batch * trainer.model.shape.context
    progress = Progress(options.attention, trainer.step, options.steps, tokens)
    rows = trainer.curve[:]
    with (options.out / f"{options.attention}.jsonl").open("w") as log:
        for row in [settings, *rows]:
            log.write(json.dumps(row) + "\n")
        while trainer.step < options.steps:
            row = trainer.train_step()
            log.write(json.dumps(row) + "\n")
            log.flush()
            progress.show(row)
        made = trainer.curve[len(rows) :]
        peak = peak_memory(options.device)
        summary = {
            "attention": options.attention,
            # The median step ignores steps that other processes delayed.
            "tokens_per_second": tokens / statistics.median(row["seconds"] for row in made),
            "peak_bytes": peak,
            "peak_bytes_of_steps": peak - before,
            "loss": made[-1]["loss"],
            "held_out_loss": made[-1]["held_out_loss"],
        }
        log.write(json.dumps(summary) + "\n")
    return trainer, summary


def print_summaries(summaries: list[dict[str, Any]]) -> None:
    print(f"{'attention':<10}{'tokens/s':>10}{'peak MB':>10}{'of steps':>10}{'held-out loss':>15}")
    for s in summaries:
        print(
            f"{s['attention']:<10}{s['tokens_per_second']:>10,.0f}{s['peak_bytes'] / 1e6:>10,.0f}"
            f"{s['peak_bytes_of_steps'] / 1e6:>10,.0f}{s['held_out_loss']:>15.4f}"
        )


def compare(options: argparse.Namespace, arguments: list[str]) -> None:
    """Runs every attention in a separate process, so that peak memory is measured separately."""
    arguments = [a for a in arguments if a != "--compare"]
    summaries, losses = [], {}
    for name in ATTENTION:
        # If an option is given twice, argparse uses the last one.
        command = [sys.executable, str(EXAMPLES / "train_gpt.py"), *arguments]
        command += ["--attention", name, "--samples", "0"]
        if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
            raise BadInput(f"--attention {name} failed; its message is above")
        log = [json.loads(line) for line in (options.out / f"{name}.jsonl").open()]
        summaries.append(log[-1])
        losses[name] = [row["loss"] for row in log if "step" in row]
    print_summaries(summaries)
    for name in ("sdpa", "eager"):
        apart = max(abs(a - b) for a, b in zip(losses["libattn"], losses[name], strict=True))
        print(f"largest difference of libattn's loss from {name}'s at a step: {apart:.1e}")


def plot(folder: Path, names: list[str]) -> None:
    """loss.png from the logs of the named attentions."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        print("no loss.png: matplotlib is not installed (pip install matplotlib)")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    for name in names:
        rows = [json.loads(line) for line in (folder / f"{name}.jsonl").open()]
        curve = [row for row in rows if "step" in row]
        steps, losses = [r["step"] for r in curve], [r["loss"] for r in curve]
        (line,) = axes.plot(steps, losses, lw=0.7, alpha=0.4)  # of few rows, so it jumps
        means = [statistics.fmean(losses[max(0, i - 15) : i + 1]) for i in range(len(losses))]
        axes.plot(steps, means, color=line.get_color(), label=f"{name}, mean of 16 steps")
        held = [r for r in curve if "held_out_loss" in r]
        axes.plot([r["step"] for r in held], [r["held_out_loss"] for r in held], "o--", ms=4,
                  color=line.get_color(), label=f"{name}, held-out text")  # fmt: skip
    axes.set(xlabel="step", ylabel="cross entropy, nats per byte", title="Loss")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(folder / "loss.png", dpi=110)
    pyplot.close(figure)
    print(f"{folder / 'loss.png'} and the logs next to it are written")


def print_samples(trainer: Trainer) -> None:
    options = trainer.options
    prompt = [BEGIN, *options.prompt.encode()]
    samples = generate(trainer.model, prompt, options.samples, options.sample_length, options.seed)
    for number, sample in enumerate(samples, 1):
        print(f"---- sample {number}\n{options.prompt}{bytes(sample).decode(errors='replace')}")


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        options = parse(arguments)
        options.out.mkdir(parents=True, exist_ok=True)
        if options.compare:
            compare(options, arguments)
            plot(options.out, list(ATTENTION))
            return 0
        trainer, summary = train(options)
        print_summaries([summary])
        if options.save:
            trainer.save(options.save)
        plot(options.out, [options.attention])
        if options.samples:
            print_samples(trainer)
    except (BadInput, BadText, OSError) as error:
        print(f"train_gpt: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
