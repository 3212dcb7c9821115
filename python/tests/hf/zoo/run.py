"""Compares every architecture of transformers' five kinds of mappings with eager, each in a process
of its own.

usage: PYTHONPATH=python:python/tests/hf \\
           python -m zoo.run [--jobs N] [--seconds N] [--write] [MODEL...]

Prints one JSON row per architecture as it is done, and a count of the outcomes. --write updates
results.jsonl and the table in docs/huggingface.md. Exit status 1 where a row is wrong.
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import wait
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"


def _child(name: str, kind: str, pipe: Any) -> None:
    from zoo.check import check

    pipe.send(check(name, kind))


def rows(names: list[str], jobs: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Yields each architecture's row when it is done; ends a process after `seconds`."""
    import transformers
    from zoo import build, check

    # Processes are forked after the imports that all of them need; no thread has run yet.
    check.prepare()
    _ = (transformers.LlamaForCausalLM, transformers.WhisperForConditionalGeneration)
    _ = (transformers.ViTForImageClassification, transformers.T5ForConditionalGeneration)
    known = build.classes()
    context = multiprocessing.get_context("fork")
    waiting = list(reversed(names))
    running: dict[Any, tuple[Any, str, float]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            name = waiting.pop()
            receive, send = context.Pipe(duplex=False)
            process = context.Process(target=_child, args=(name, known[name][0], send))
            process.start()
            send.close()
            running[receive] = (process, name, time.monotonic() + seconds)
        wait(list(running), 1.0)
        for receive, (process, name, end) in tuple(running.items()):
            row = {"model": name, "kind": known[name][0], "outcome": "wrong"}
            if receive.poll():
                try:
                    row = receive.recv()
                except EOFError:
                    row["reason"] = "its process died"
            elif time.monotonic() > end:
                row["reason"] = f"takes more than {seconds:.0f} s"
            else:
                continue
            process.kill()
            process.join()
            del running[receive]
            yield row


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--write", action="store_true")
    words = parser.parse_args()
    from zoo import build, table

    names = words.models or list(build.classes())
    found = []
    for row in rows(names, words.jobs, words.seconds):
        print(json.dumps(row), flush=True)
        found.append(row)
    if words.write:
        import torch
        import transformers

        table.write(
            found,
            {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0]},
        )
    counts = collections.Counter(row["outcome"] for row in found)
    print(dict(counts), file=sys.stderr)
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
