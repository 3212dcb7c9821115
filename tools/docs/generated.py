"""Pages that are generated from the built library and from benchmark rows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html import escape
from pathlib import Path
from typing import Any

import charts
from drawing import Drawing

ROOT = Path(__file__).resolve().parents[2]
TYPES = ("f32", "f16", "bf16", "f64")
NAMES = {"cpu": "CPU", "cuda": "CUDA", "webgpu": "WebGPU", "reference": "reference"}
PASSES = ("forward", "backward", "decode")


def attn(release: Path, *words: str, **environment: str) -> str:
    return printed_by([release / "cli" / "attn", *words], environment)


def of_package(*words: str) -> str:
    """What the Python package's own commands print."""
    environment = {"PYTHONPATH": str(ROOT / "python"), "COLUMNS": "100"}
    return printed_by([sys.executable, "-m", "libattn", *words], environment)


def printed_by(command: list[str | Path], environment: dict[str, str]) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=os.environ | environment
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr}")
    return done.stdout


def command_line(release: Path) -> str:
    top = attn(release, "--help").strip()
    listed = top.partition("Subcommands:\n")[2].partition("\n\n")[0]
    parts = [
        "# The command `attn`",
        "What `attn --help` and `attn COMMAND --help` print. "
        "[Quick start](../start/command_line.md) has examples on files.",
        f"```text\n{top}\n```",
    ]
    for command in re.findall(r"^  (\w+)", listed, re.MULTILINE):
        text = attn(release, command, "--help").strip()
        parts.append(f"## attn {command} {{#{command}}}\n\n```text\n{text}\n```")
    for command in ("doctor", "plot"):
        text = of_package(command, "--help").strip()
        parts.append(f"## attn {command} {{#{command}}}\n\nOnly in the Python package:")
        parts.append(f"```text\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def tables(release: Path) -> tuple[dict[str, list[dict[str, Any]]], dict[str, str]]:
    """A table for each backend, or the reason why there is none. No GPU is needed: CUDA's support
    depends only on properties of the device, and a test driver reports these."""
    shown = json.loads(attn(release, "info", "--json"))
    found, details = shown["support"], {b["name"]: b["detail"] for b in shown["backends"]}
    driver = release / "tests" / "cuda"
    if "cuda" not in found and (driver / "libcuda.so.1").exists():
        environment = {"LD_LIBRARY_PATH": str(driver)}
        # The compiler that ./dev setup installs where there is no toolkit.
        for wheel in ROOT.glob(".venv/lib/python3*/site-packages/nvidia/cu13"):
            environment.setdefault("ATTN_NVRTC", str(wheel.parents[1]))
        shown = json.loads(attn(release, "info", "--json", **environment))
        found |= {name: rows for name, rows in shown["support"].items() if name == "cuda"}
        details |= {b["name"]: b["detail"] for b in shown["backends"] if b["name"] == "cuda"}
    return (
        {name: found[name] for name in NAMES if name in found},
        {name: details[name] for name in NAMES if name not in found},
    )


def cell(row: dict[str, Any]) -> str:
    """How far a backend supports an option: a single text if it is the same for every pass."""
    texts = {}
    for pass_ in PASSES:
        types, reasons = row[pass_]["types"], row[pass_]["reasons"]
        if types:
            texts[pass_] = "all" if len(types) == len(TYPES) else " ".join(types)
        elif reasons:
            texts[pass_] = "no"
    missing = [pass_ for pass_ in PASSES if pass_ not in texts]
    kind = "no" if "no" in texts.values() else "yes"
    if len(set(texts.values())) == 1:
        text = next(iter(texts.values()))
        if missing:
            text += f" ({', '.join(texts)})"
    else:
        text = "<br>".join(f"{pass_}: {types}" for pass_, types in texts.items())
    return f'<td class="{kind}">{text}</td>'


def reason_of(reason: str, backend: str) -> str:
    """This backend's part of a verdict, which has the reasons of all backends."""
    for part in reason.split("; "):
        name, _, why = part.partition(": ")
        if name == backend:
            rest = reason.split(f"{backend}: ", 1)[1]
            for other in ("cuda", "webgpu", "cpu", "reference"):
                rest = rest.split(f"; {other}: ", 1)[0]
            return rest or why
    return reason


def support(release: Path) -> str:
    found, absent = tables(release)
    head = "".join(f"<th>{NAMES[backend]}</th>" for backend in found)
    by_option = {backend: {row["option"]: row for row in rows} for backend, rows in found.items()}
    body = []
    for option, row in next(iter(by_option.values())).items():
        cells = "".join(cell(rows[option]) for rows in by_option.values())
        name = option or "(plain)"
        body.append(f"<tr><td><code>{name}</code><br>{escape(row['what'])}</td>{cells}</tr>")
    parts = [
        "# What runs where",
        "Generated from the library by `attn info --json`: the element types of each option on "
        "each backend, for forward, backward and decode. `all`: f32, f16, bf16 and f64. Passes in "
        "parentheses: the others have no such option. On your machine `attn info --support` "
        "prints it, and `libattn.supports(problem, device=...)` answers for one call, with the "
        "reason of every backend. A call that nothing supports raises "
        "[Unsupported](errors.md#unsupported); nothing falls back to another device or type.",
        *(
            f"{NAMES[name]} is not shown, since this build could not use it: {why}"
            for name, why in absent.items()
        ),
        "## Options {#table}",
        f"<table><thead><tr><th>option</th>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>",
    ]
    reasons: dict[str, str] = {}
    for backend, rows in found.items():
        for row in rows:
            for pass_ in PASSES:
                for type_, reason in row[pass_]["reasons"].items():
                    where = f"{row['option'] or '(plain)'}, {pass_}, {type_}"
                    reasons.setdefault(f"{backend}: {reason_of(reason, backend)}", where)
    if reasons:
        parts += ["## What is missing, and why {#missing}", "With the first case of each reason:"]
        lines = "".join(
            f"<tr><td>{escape(why)}</td><td>{escape(where)}</td></tr>"
            for why, where in reasons.items()
        )
        parts.append(f"<table><tbody>{lines}</tbody></table>")
    return "\n\n".join(parts) + "\n"


def performance() -> tuple[str, dict[str, Drawing]]:
    return charts.page()
