"""nox sessions: the tests of the Python package, one session per environment of python_envs.py.

usage: nox -f tools/noxfile.py --list
       nox -f tools/noxfile.py -s "package(NAME)"
       nox -f tools/noxfile.py -s zoo [-- --write]

A session tests the wheel in build/wheel (./dev wheel). Sessions py* install it into a fresh
environment and hold the time to the first result and to import it against limits; the others run
in the kept environments with the wheel unpacked in build/python/site. A session of a pair (of a
PyTorch and a transformers) runs only when its name is given: tools/python_envs.py pairs.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

import nox

TOOLS = Path(__file__).resolve().parent
sys.path.insert(0, str(TOOLS))
import python_envs  # noqa: E402

ROOT = TOOLS.parent
WORK = ROOT / "build" / "python"
SECONDS_TO_FIRST_RESULT = 30
MILLISECONDS_TO_IMPORT = 60  # of libattn alone; NumPy's import takes 3 to 6 times as long
SECONDS_OF_A_TEST = 600

FIRST_RESULT = """
import numpy, libattn
x = numpy.ones((1, 4, 2, 8), numpy.float32)
assert abs(libattn.attention(x, x, x) - 1).max() < 1e-6"""
IMPORT = """
import numpy, time; start = time.perf_counter(); import libattn
print(1000 * (time.perf_counter() - start))"""


def wheel() -> Path:
    """The wheel that is tested."""
    found = sorted((ROOT / "build" / "wheel").glob("*.whl"))
    if len(found) != 1:
        raise SystemExit(
            f"noxfile: {len(found)} wheels in build/wheel; accepted: one (./dev wheel)"
        )
    return found[0]


def in_process(session: nox.Session, python: Path, code: str) -> str:
    """Runs code in a process of its own, outside of the tree, and returns what it prints."""
    with session.chdir(WORK):
        return str(session.run(str(python), "-c", code, external=True, silent=True, log=False))


def fresh(session: nox.Session, name: str) -> Path:
    """The Python of a fresh environment with the wheel. Fails when a time is above its limit."""
    folder = WORK / name
    shutil.rmtree(folder, ignore_errors=True)
    session.run(python_envs.interpreter_of(name), "-m", "venv", str(folder), external=True)
    python = folder / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    began = time.monotonic()
    session.run(*install, str(wheel()), external=True)
    in_process(session, python, FIRST_RESULT)
    seconds = time.monotonic() - began
    # The minimum, because other processes only make it slower.
    milliseconds = min(float(in_process(session, python, IMPORT)) for _ in range(5))
    session.log(f"install and first result {seconds:.1f} s, import {milliseconds:.0f} ms more")
    if seconds > SECONDS_TO_FIRST_RESULT:
        session.error(f"first result after {seconds:.1f} s; limit {SECONDS_TO_FIRST_RESULT} s")
    if milliseconds > MILLISECONDS_TO_IMPORT:
        beyond = f"import takes {milliseconds:.0f} ms more than NumPy's"
        session.error(f"{beyond}; limit {MILLISECONDS_TO_IMPORT} ms")
    session.run(*install, *python_envs.ENVIRONMENTS[name].packages, external=True)
    return python


@nox.session(venv_backend="none")
@nox.parametrize("environment", list(python_envs.ENVIRONMENTS), ids=list(python_envs.ENVIRONMENTS))
def package(session: nox.Session, environment: str) -> None:
    """The tests of one environment."""
    spec = python_envs.ENVIRONMENTS[environment]
    if python_envs.interpreter(spec.python) is None:
        session.skip(f"no Python {spec.python} in PATH or pyenv")
    WORK.mkdir(parents=True, exist_ok=True)
    python = fresh(session, environment) if spec.fresh else python_envs.make(environment)
    session.chdir(ROOT)
    files = [str(path.relative_to(ROOT)) for file in spec.files for path in sorted(ROOT.glob(file))]
    skipped = [str(path.relative_to(ROOT)) for file in spec.without for path in ROOT.glob(file)]
    words = [
        str(python),
        "-m",
        "pytest",
        "-q",
        "-rfE",
        "-p",
        "no:cacheprovider",
        "--durations",
        "5",
    ]
    words += ["--timeout", str(SECONDS_OF_A_TEST), "--sample", str(spec.sample)]
    if os.environ.get("ATTN_REPORTS"):
        words += ["--junitxml", f"{os.environ['ATTN_REPORTS']}/{environment}.xml"]
    words += ["-k", spec.select] if spec.select else []
    words += [file for file in files if file not in skipped]
    # Waiting threads don't spin, because two sessions run in parallel. PyTorch's compiler has a
    # cache folder per session, and no processes of its own: each would import torch.
    paths = [str(WORK / "site")]
    if spec.over:
        paths.append(str(python_envs.folder_of(environment)))
    variables = {
        "ATTN_LIBRARY": "",
        "OMP_WAIT_POLICY": "passive",
        "PYTHONPATH": os.pathsep.join(paths),
        "TORCHINDUCTOR_CACHE_DIR": str(WORK / f"{environment}.inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    session.run(*words, env=variables, external=True)
    if spec.types:
        session.run(str(python), "-m", "mypy", external=True)


@nox.session(venv_backend="none", default=False)
def zoo(session: nox.Session) -> None:
    """Compares every architecture of transformers with eager: python/tests/hf/zoo."""
    in_newest(session, "zoo", "python/tests/hf", "-m", "zoo.run", *session.posargs)


@nox.session(venv_backend="none", default=False)
def distributed(session: nox.Session) -> None:
    """libattn.distributed on 1, 2, 3, 4 and 8 processes: all cases, masks and checks."""
    programs = "python/tests/shared"
    ranks = ("1", "2", "3", "4", "8")
    words = (f"{programs}/distributed_cases.py", *ranks)
    in_newest(session, "distributed", programs, *words)
    in_newest(session, "distributed", programs, *words, "--first", "450", "--count", "100")
    in_newest(session, "distributed", programs, f"{programs}/distributed_masks.py", *ranks)
    in_newest(session, "distributed", programs, f"{programs}/distributed_calls.py")


def in_newest(session: nox.Session, name: str, path: str, *words: str) -> None:
    """Runs Python with these words, the wheel and a folder of tests in its path."""
    python = python_envs.make("newest")
    site = WORK / name
    shutil.rmtree(site, ignore_errors=True)
    install = [str(python), "-m", "pip", "install", "-q", "--no-deps", "--target", str(site)]
    session.run(*install, str(wheel()), external=True)
    session.chdir(ROOT)
    variables = {
        "ATTN_LIBRARY": "",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(site), path]),
    }
    session.run(str(python), *words, env=variables, external=True)
