"""Commit and date of a row, for the scripts that measure what a call costs on the host."""

from __future__ import annotations

import datetime
import os
import pathlib
import subprocess


def provenance() -> dict[str, str]:
    """The fields `commit` and `date` (README.md). ATTN_BENCH_COMMIT overrides git's answer."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "commit": os.environ.get("ATTN_BENCH_COMMIT") or described_commit(),
        "date": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def described_commit() -> str:
    command = ("git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude", "*")
    folder = pathlib.Path(__file__).parent
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
