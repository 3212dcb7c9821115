#!/usr/bin/env python3
"""Runs the case list with `attn check`, and names cases that do not end.

usage: tools/check_cases.py [--processes 6] [--silence 10] COMMAND... -- ARGUMENT...

COMMAND is how `attn` is started here; ARGUMENTs go to `attn check`:

    tools/check_cases.py bundle/run attn -- --device cuda --pass forward

Each process runs a part of the list, one case after the other. If a process says nothing for
--silence seconds, it is ended, its case is reported as hung, and the rest of its part runs in a new
process: a kernel that waits forever blocks its own process alone. Prints the counts of `attn check`
and, last, googletest's summary lines. Exit status 1 if a case failed or hung, or none passed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

MOST_CASES = 250  # of one process: a command line has 128 KiB for one argument, 2 MiB for all


class Part:
    """Cases that run one after the other."""

    def __init__(self, command: list[str], words: list[str], silence: float) -> None:
        self.command = [*command, "check", *words, "--jobs", "1", "--verbose", "--json"]
        self.silence = silence
        self.counts: Counter[str] = Counter()
        self.messages: list[str] = []

    def run(self, cases: list[str]) -> None:
        """Runs all cases."""
        while cases:
            done = self.run_process(cases[:MOST_CASES])
            cases = cases[done:]

    def run_process(self, cases: list[str]) -> int:
        """Runs cases until one hangs; returns how many are settled."""
        with subprocess.Popen(
            [*self.command, "--case", *cases],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        ) as process:
            heard = [time.monotonic()]
            rows: list[dict[str, str]] = []
            reader = threading.Thread(target=self.read, args=(process, heard, rows))
            reader.start()
            while process.poll() is None and time.monotonic() - heard[0] < self.silence:
                time.sleep(0.05)
            hung = process.poll() is None
            if hung:
                os.killpg(process.pid, signal.SIGKILL)
            reader.join()
        for row in rows:
            self.counts[row["result"]] += 1
            if row["result"] == "failed":
                self.messages.append(f"failed: {row['case']}\n  {row['message']}")
        settled = len(rows)
        if settled == len(cases):
            return settled
        word = "hung" if hung else "ended its process"
        self.counts["hung"] += 1
        self.messages.append(f"{word}: {cases[settled]}")
        return settled + 1

    @staticmethod
    def read(
        process: subprocess.Popen[str], heard: list[float], rows: list[dict[str, str]]
    ) -> None:
        """Collects the rows that a process prints, and the time of the last."""
        assert process.stdout is not None
        for line in process.stdout:
            heard[0] = time.monotonic()
            if line.startswith("{"):
                rows.append(json.loads(line))


def main() -> int:
    """Parses the command line and runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--silence", type=float, default=10)
    parser.add_argument("command", nargs="+")
    if "--" not in sys.argv:
        parser.error("-- and the words of `attn check` are missing")
    split = sys.argv.index("--")
    args = parser.parse_args(sys.argv[1:split])
    words = sys.argv[split + 1 :]
    listed = subprocess.run(
        [*args.command, "check", *words, "--list"], stdout=subprocess.PIPE, text=True, check=True
    )
    cases = [line for line in listed.stdout.splitlines() if line]
    started = time.monotonic()
    parts = [Part(args.command, words, args.silence) for _ in range(args.processes)]
    with ThreadPoolExecutor(args.processes) as pool:
        for n, part in enumerate(parts):
            pool.submit(part.run, cases[n :: args.processes])
    counts: Counter[str] = sum((part.counts for part in parts), Counter())
    for part in parts:
        for message in part.messages:
            print(message)
    print(
        f"{len(cases)} cases in {time.monotonic() - started:.0f} s: {counts['passed']} passed, "
        f"{counts['failed']} failed, {counts['hung']} hung, {counts['skipped']} skipped"
    )
    bad = counts["failed"] + counts["hung"]
    print(f"[  PASSED  ] {counts['passed']} tests.")
    if bad:
        print(f"[  FAILED  ] {bad} tests.")
    return 1 if bad or not counts["passed"] or sum(counts.values()) != len(cases) else 0


if __name__ == "__main__":
    sys.exit(main())
