"""Pages that are generated from the built library and from benchmark rows."""

from __future__ import annotations

import json
import os
import subprocess
from html import escape
from pathlib import Path
from typing import Any

import charts
from drawing import Drawing

TYPES = ("f32", "f16", "bf16", "f64")
PASSES = ("forward", "backward", "decode")
COMMANDS = ("run", "check", "bench", "info", "cache", "tune")


def attn(release: Path, *words: str, **environment: str) -> str:
    done = subprocess.run(
        [release / "cli" / "attn", *words],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | environment,
    )
    if done.returncode:
        raise SystemExit(f"attn {' '.join(words)}: {done.stderr}")
    return done.stdout


def command_line(release: Path) -> str:
    parts = [
        "# The command `attn`",
        "What `attn --help` and `attn COMMAND --help` print. "
        "[Quick start](../start/command_line.md) has examples on files.",
        f"```text\n{attn(release, '--help').strip()}\n```",
    ]
    for command in COMMANDS:
        text = attn(release, command, "--help").strip()
        parts.append(f"## attn {command} {{#{command}}}\n\n```text\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def tables(release: Path) -> dict[str, list[dict[str, Any]]]:
    """The table of each backend. CUDA's comes from its plans for a device that a test driver
    reports, so that no GPU is needed: what is supported is a function of the device's facts."""
    found = json.loads(attn(release, "info", "--json"))["support"]
    driver = release / "tests" / "cuda"
    if "cuda" not in found and (driver / "libcuda.so.1").exists():
        shown = attn(release, "info", "--json", LD_LIBRARY_PATH=str(driver))
        found |= {k: v for k, v in json.loads(shown)["support"].items() if k == "cuda"}
    order = ("cpu", "cuda", "webgpu", "reference")
    return {name: found[name] for name in order if name in found}


def cell(row: dict[str, Any], pass_: str) -> str:
    types, reasons = row[pass_]["types"], row[pass_]["reasons"]
    if types:
        text = "all" if len(types) == len(TYPES) else " ".join(types)
        return f'<td class="yes">{text}</td>'
    return '<td class="no">no</td>' if reasons else "<td>-</td>"


def reason_of(reason: str, backend: str) -> str:
    """The words of this backend in a verdict, which has those of all."""
    for part in reason.split("; "):
        name, _, why = part.partition(": ")
        if name == backend:
            rest = reason.split(f"{backend}: ", 1)[1]
            for other in ("cuda", "webgpu", "cpu", "reference"):
                rest = rest.split(f"; {other}: ", 1)[0]
            return rest or why
    return reason


def support(release: Path) -> str:
    parts = [
        "# What runs where",
        "Generated from the library by `attn info --json`: each option, pass and type of each "
        "backend. `all` is f32, f16, bf16 and f64; `-`: the pass has no such option. On your "
        "machine `attn info --support` prints it, and `libattn.supports(problem, device=...)` "
        "answers for one call, with the reason of every backend. Calls that nothing supports "
        "raise [Unsupported](errors.md#unsupported); nothing falls back to another device or type.",
    ]
    for backend, rows in tables(release).items():
        head = "".join(f"<th>{pass_}</th>" for pass_ in PASSES)
        body, reasons = [], {}
        for row in rows:
            cells = "".join(cell(row, pass_) for pass_ in PASSES)
            name = row["option"] or "(plain)"
            body.append(
                f"<tr><td><code>{name}</code></td>{cells}<td>{escape(row['what'])}</td></tr>"
            )
            for pass_ in PASSES:
                for type_, reason in row[pass_]["reasons"].items():
                    where = f"{name}, {pass_}, {type_}"
                    reasons.setdefault(reason_of(reason, backend), where)
        parts.append(f"## {'CPU' if backend == 'cpu' else backend} {{#{backend}}}")
        parts.append(
            f"<table><thead><tr><th>option</th>{head}<th></th></tr></thead>"
            f"<tbody>{''.join(body)}</tbody></table>"
        )
        if reasons:
            parts.append("What is missing, with the first case that has this reason:")
            rows_ = "".join(
                f"<tr><td>{escape(where)}</td><td>{escape(why)}</td></tr>"
                for why, where in reasons.items()
            )
            parts.append(f"<table><tbody>{rows_}</tbody></table>")
    return "\n\n".join(parts) + "\n"


def performance() -> tuple[str, dict[str, Drawing]]:
    return charts.page()
