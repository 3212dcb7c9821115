"""The pages of the documentation: links have targets, blocks of code run or compile, and help() and
the site show the same text.

The words after the language of a code fence (tools/docs/blocks.py) say what a block needs. Python
blocks of a page run in order, in one namespace; those that import what is not installed are left
out.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "docs"))
import blocks  # noqa: E402
import errors  # noqa: E402
import pages  # noqa: E402
import python_reference  # noqa: E402

PAGES = ("README.md", *pages.sources())
LIBRARIES = ("torch", "transformers", "jax", "tensorflow", "cupy")
MODULES = {
    "libattn": None,
    "libattn.torch": "torch",
    "libattn.distributed": "torch",
    "libattn.hf": "transformers",
    "libattn.jax": "jax",
    "libattn.plot": None,
}  # and the package that each needs
# docs/jax.md is for several devices; JAX reads their number when it starts.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
COMMAND = ROOT / "build" / "release" / "cli" / "attn"
SHARED = ROOT / "build" / "release" / "src" / "api"
COMPILERS = {
    "cpp": ("c++", "-std=c++20", "-Wall", "-Wextra", "-Werror"),
    "c": ("cc", "-std=c11", "-Wall", "-Wextra", "-Werror"),
}


def blocks_of(page: str, *languages: str) -> list[blocks.Block]:
    return [block for block in blocks.blocks(ROOT / page) if block.language in languages]


def pages_with(*languages: str) -> list[str]:
    return [page for page in PAGES if blocks_of(page, *languages)]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page):
    assert list(pages.problems(page)) == []


@pytest.mark.parametrize("page", pages_with("python"))
def test_python_blocks_run(page):
    namespace: dict[str, object] = {}
    for block in blocks_of(page, "python"):
        missing = [
            name
            for name in LIBRARIES
            if name in block.source and importlib.util.find_spec(name) is None
        ]
        if missing or block.needs:
            compile(block.source, page, "exec")
            continue
        # Blank lines in front make a traceback show the line of the page.
        source = "\n" * (block.line - 1) + block.source
        exec(compile(source, str(ROOT / page), "exec"), namespace)


@pytest.mark.parametrize("language", COMPILERS)
@pytest.mark.parametrize("page", pages_with("c", "cpp"))
def test_c_and_cpp_blocks_compile(page, language, tmp_path):
    compiler = COMPILERS[language]
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"no {compiler[0]}")
    for block in blocks_of(page, language):
        if "sketch" in block.needs:
            continue
        file = tmp_path / f"block.{language}"
        file.write_text(block.source, encoding="utf-8")
        words = [*compiler, f"-I{ROOT / 'include'}", str(file)]
        program = "main(" in block.source and (SHARED / "libattn.so").exists()
        if program:
            words += [
                "-o",
                str(tmp_path / "block"),
                f"-L{SHARED}",
                "-lattn",
                f"-Wl,-rpath,{SHARED}",
            ]
        else:
            words.append("-fsyntax-only")
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{page}:{block.line}\n{done.stderr}"
        if program:
            subprocess.run([tmp_path / "block"], check=True, timeout=60)


@pytest.fixture
def folder_of_tensors(tmp_path):
    """The files that the commands of the pages read."""
    rng = np.random.default_rng(0)
    for name in "qkv":
        np.save(tmp_path / f"{name}.npy", rng.standard_normal((1, 40, 4, 16), np.float32))
    layer = ROOT / "examples" / "data" / "minilm_layer3.safetensors"
    shutil.copy(layer, tmp_path / "layer.safetensors")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


@pytest.mark.parametrize("page", pages_with("sh"))
def test_commands_run(page, folder_of_tensors):
    if not COMMAND.exists():
        pytest.skip("no build/release/cli/attn")
    environment = os.environ | {
        "PATH": f"{COMMAND.parent}{os.pathsep}{os.environ['PATH']}",
        "ATTN_CACHE_DIR": str(folder_of_tensors / "cache"),
    }
    for block in blocks_of(page, "sh"):
        if block.needs:
            continue
        done = subprocess.run(
            ["bash", "-ec", block.source],
            cwd=folder_of_tensors,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, f"{page}:{block.line}\n{done.stdout}{done.stderr}"


def test_every_picture_is_on_a_page():
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    assert [name for name in pages.pictures.NAMES if f"pictures/{name}.svg" not in text] == []


def test_the_page_of_errors_lists_every_rule():
    assert errors.differences() == []


PUBLIC = [entry for module in MODULES for entry in python_reference.entries(module)]


@pytest.mark.parametrize("entry", PUBLIC, ids=lambda entry: f"{entry.module}.{entry.name}")
def test_help_shows_what_the_site_shows(entry):
    needed = MODULES[entry.module]
    if needed and importlib.util.find_spec(needed) is None:
        pytest.skip(f"no {needed}")
    found = getattr(importlib.import_module(entry.module), entry.name)
    assert inspect.getdoc(found) == inspect.cleandoc(entry.docstring)


def test_every_public_name_is_in_the_reference():
    for module in MODULES:
        tree = ast.parse(python_reference.init_of(module).read_text(encoding="utf-8"))
        public = {
            name
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
            for name in ast.literal_eval(node.value)
        }
        found = {entry.name for entry in PUBLIC if entry.module == module}
        assert public - found <= {"OLDEST_TRANSFORMERS"}  # a constant


@pytest.mark.parametrize("entry", PUBLIC, ids=lambda entry: f"{entry.module}.{entry.name}")
def test_docstrings_name_every_parameter(entry):
    """A docstring mentions each parameter, or a function that documents the same parameter."""
    text = entry.docstring
    assert text, "no docstring"
    if not hasattr(entry.node, "args"):
        return
    elsewhere = ("see attention", "flash_attn_func", "flash_attn_varlen_func", "those of supports")
    if any(words in text for words in elsewhere):
        return
    words = set(text.replace("_sin", " rotary_sin").replace(",", " ").replace(":", " ").split())
    missing = [name for name in python_reference.parameters(entry.node) if name not in words]
    assert missing == []
    if python_reference.parameters(entry.node):
        assert re.search(r"\b[Rr]aises|\b[Ee]rrors", text), "nothing about errors"
