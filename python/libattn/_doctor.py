"""`python -m libattn doctor`: what runs on this machine, why the rest does not, how to get it."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

import libattn

from . import _check
from .__main__ import command

_AHEAD = "; only kernels compiled ahead: "  # of the CUDA backend's detail, where NVRTC is missing
_SECONDS_TO_IMPORT = 300


class Row(NamedTuple):
    """One line. ok: None where nothing was looked for. get: what to do about a missing part."""

    name: str
    ok: bool | None
    detail: str
    get: str = ""


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Drops what drivers and their loaders write to stderr."""
    sys.stderr.flush()
    kept = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _amx(engine: str) -> Row:
    """Whether bf16 problems use AMX, and if not, which part is missing."""
    if engine == "amx_bf16":
        return Row("amx", True, "bf16 problems use AMX tiles")
    if platform.machine() not in ("x86_64", "AMD64"):
        return Row("amx", False, f"{platform.machine()} processors have no AMX")
    try:
        flags = set(pathlib.Path("/proc/cpuinfo").read_text().split())
    except OSError:
        linux = sys.platform == "linux"
        unknown = "unknown: /proc/cpuinfo can't be read; AMX is not in use"
        return Row("amx", False, unknown if linux else "libattn uses AMX on Linux only")
    if "amx_bf16" not in flags:
        return Row("amx", False, "the processor or its hypervisor has no amx_bf16")
    named = os.environ.get("ATTN_CPU_ENGINE") or os.environ.get("ATTN_CPU_TARGET")
    if named:
        return Row("amx", False, f"the environment selects {named}", "unset ATTN_CPU_ENGINE")
    return Row("amx", False, "the kernel denies it to this process", "Linux 5.16 or later")


def _cuda(backend: dict[str, Any]) -> list[Row]:
    if not backend["built"]:
        return [Row("cuda", False, backend["detail"] or "this build has no CUDA backend")]
    if not backend["usable"]:
        driver = Row("cuda", False, backend["detail"], "NVIDIA's driver, release 525 or later")
        return [driver, Row("nvrtc", None, "not looked for without a CUDA device")]
    device, _, reason = backend["detail"].partition(_AHEAD)
    if reason:
        get = "pip install nvidia-cuda-nvrtc"
        return [Row("cuda", True, device), Row("nvrtc", False, reason, get)]
    device, _, version = device.partition(", NVRTC ")
    return [Row("cuda", True, device), Row("nvrtc", True, version)]


def _webgpu(backend: dict[str, Any]) -> Row:
    if not backend["built"]:
        return Row("webgpu", False, backend["detail"] or "this build has no WebGPU backend")
    if backend["usable"]:
        return Row("webgpu", True, backend["detail"])
    get = 'pip install "libattn[webgpu]"'
    if "no WebGPU library" not in backend["detail"]:
        get = "a Vulkan, Metal or Direct3D 12 driver (on Debian without a GPU: mesa-vulkan-drivers)"
    return Row("webgpu", False, backend["detail"], get)


def _backends(facts: dict[str, Any]) -> list[Row]:
    rows = []
    for backend in facts["backends"]:
        if backend["name"] == "cpu":
            threads = f"{facts['threads']} threads"
            rows.append(Row("cpu", backend["usable"], f"{backend['detail']}, {threads}"))
            rows.append(_amx(backend["detail"].rpartition("bf16 by ")[2]))
        elif backend["name"] == "cuda":
            rows += _cuda(backend)
        elif backend["name"] == "webgpu":
            rows.append(_webgpu(backend))
    return sorted(rows, key=lambda row: row.name not in ("cpu", "amx"))


# The package, the extra that installs it, and the module of libattn that needs it.
_FRAMEWORKS = (
    ("torch", "torch", "libattn.torch"),
    ("transformers", "hf", "libattn.hf"),
    ("jax", "jax", "libattn.jax"),
)


def _oldest(package: str) -> str:
    """The oldest release that this package declares it works with; empty where it is unknown."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for line in importlib.metadata.requires("libattn") or []:
            found = re.match(rf"{package}\s*>=\s*([\d.]+)", line)
            if found:
                return found[1]
    return ""


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:3]]


def _frameworks() -> list[Row]:
    """Imports each framework with libattn's module for it, in processes of their own."""
    rows, started = [], []
    for package, extra, module in _FRAMEWORKS:
        get = f'pip install "libattn[{extra}]"'
        try:
            here = importlib.util.find_spec(module) is not None
        except ImportError:  # the module's package imports what is missing
            here = True
        if not here:
            rows.append(Row(package, None, f"this version of libattn has no {module}"))
        elif importlib.util.find_spec(package) is None:
            rows.append(Row(package, False, "not installed", get))
        else:
            code = f"import {package} as p, {module}; print(p.__version__)"
            process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            started.append((package, get, module, process))
    for package, get, module, process in started:
        try:
            out, err = process.communicate(timeout=_SECONDS_TO_IMPORT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            rows.append(Row(package, False, f"not imported after {_SECONDS_TO_IMPORT} s"))
            continue
        version, oldest = (out.split() or [""])[-1], _oldest(package)
        if process.returncode != 0:
            why = (err.strip().splitlines() or [f"exit status {process.returncode}"])[-1]
            rows.append(Row(package, False, f"import fails: {why}", get))
        elif oldest and _numbers(version) < _numbers(oldest):
            rows.append(Row(package, False, f"{version}; {oldest} or later is needed", get))
        else:
            rows.append(Row(package, True, f"{version}, for {module}"))
    order = [package for package, _, _ in _FRAMEWORKS]
    return sorted(rows, key=lambda row: order.index(row.name))


def _command() -> Row:
    file = command()
    if file is not None and shutil.which(file):
        return Row("command", True, file)
    if file is not None:
        return Row("command", False, f"{file} is no program that this user may run")
    return Row("command", False, "this package was built without it", "./dev wheel in the sources")


def _results() -> Row:
    """Attention and gradients of this installation against float64 NumPy."""
    wrong, count = [], 0
    for name, errors in _check.compare():
        count += 1
        bad = {output: error for output, error in errors.items() if not error <= _check.MOST}
        wrong += [f"{name}: {output} is off by {error:.1e}" for output, error in bad.items()]
    if wrong:
        return Row("results", False, "; ".join(wrong), "a report with this text")
    return Row("results", True, f"{count} sets of options agree with float64 NumPy, with gradients")


def findings() -> dict[str, Any]:
    """All that doctor prints."""
    with _quiet_stderr():
        facts = libattn.info()
        rows = [*_backends(facts), _results()]
    rows += [_command(), *_frameworks()]
    return {
        "version": facts["version"],
        "library": facts["library"],
        "python": platform.python_version(),
        "numpy": np.__version__,
        "system": platform.platform(),
        "rows": [row._asdict() for row in rows],
    }


_STATES = {True: "ok", False: "no", None: "-"}


def _print(found: dict[str, Any]) -> None:
    width = min(max(shutil.get_terminal_size().columns, 60), 120)
    print(f"libattn {found['version']}, {found['library']}")
    print(f"Python {found['python']}, NumPy {found['numpy']}, {found['system']}\n")
    for row in found["rows"]:
        state = _STATES[row["ok"]]
        head = f"{state:3} {row['name']:13}"
        print(textwrap.fill(row["detail"], width, initial_indent=head, subsequent_indent=" " * 17))
        if row["get"]:
            get = f"get: {row['get']}"
            print(textwrap.fill(get, width, initial_indent=" " * 17, subsequent_indent=" " * 22))


def main(words: list[str]) -> int:
    """Prints the findings. The exit code is 1 where the CPU backend does not work or is wrong."""
    parser = argparse.ArgumentParser(
        prog="attn doctor",
        description="What runs on this machine, why the rest does not, and how to get it. Exit "
        "codes: 0 attention on the CPU works and is right, 1 it does not.",
    )
    parser.add_argument("--json", action="store_true", help="for scripts")
    arguments = parser.parse_args(words)
    try:
        found = findings()
    except (ValueError, MemoryError, libattn.Error) as error:
        print(f"attn: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        _print(found)
    needed = [row["ok"] for row in found["rows"] if row["name"] in ("cpu", "results")]
    return 0 if needed == [True, True] else 1
