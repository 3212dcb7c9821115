#!/usr/bin/env python3
"""Builds the documentation site into build/docs. `./dev docs` runs it in its own environment.

usage: tools/docs/build.py [--release BUILD] [--serve]

Pages of docs/ and some of the repository are copied with their links rewritten, code fences lose
the words that only tests read, notebooks become pages with outputs, and pages and pictures are
generated: the references from docstrings and headers, the table of support and the command's help
from the built library, plots from the rows in bench/results.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import blocks
import generated
import header_reference
import notebooks
import pages
import pictures
import python_reference

HERE = Path(__file__).resolve().parent
ROOT = pages.ROOT
WORK = ROOT / "build" / "docs_pages"
SITE = ROOT / "build" / "docs"


def write(name: str, text: str) -> None:
    path = WORK / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def for_the_site(text: str) -> str:
    """The page without the words after a fence's language, and without a syntax that only GitHub
    needs: a backslash before | in code in a table."""
    text = blocks.FENCE.sub(
        lambda fence: fence[0].replace(fence["info"], (fence["info"].split() or [""])[0], 1), text
    )
    return re.sub(r"`[^`\n]*\\\|[^`\n]*`", lambda code: code[0].replace("\\|", "|"), text)


def write_pages() -> None:
    linker = pages.Linker()
    for source, target in pages.sources().items():
        text = (ROOT / source).read_text(encoding="utf-8")
        write(target, linker.relink(for_the_site(text), source))
    for file in sorted(linker.files):
        name = str(file.relative_to(ROOT))
        target = WORK / "files" / (name + (".txt" if file.suffix == ".md" else ""))
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)


def write_notebooks() -> None:
    for name in notebooks.names():
        text, outputs = notebooks.page(name)
        write(f"notebooks/{name}.md", text)
        for file, picture in outputs.items():
            (WORK / "notebooks" / file).write_bytes(picture)


def write_generated(release: Path) -> None:
    write("reference/python.md", python_reference.page("libattn", "Python: libattn"))
    write("reference/torch.md", python_reference.page("libattn.torch", "Python: libattn.torch"))
    title = "Python: libattn.distributed"
    write("reference/distributed.md", python_reference.page("libattn.distributed", title))
    write("reference/huggingface.md", python_reference.page("libattn.hf", "Python: libattn.hf"))
    write("reference/jax.md", python_reference.page("libattn.jax", "Python: libattn.jax"))
    write("reference/plot.md", python_reference.page("libattn.plot", "Python: libattn.plot"))
    write("reference/cpp.md", header_reference.cpp_page())
    write("reference/c.md", header_reference.c_page())
    write("reference/command_line.md", generated.command_line(release))
    write("support.md", generated.support(release))
    text, plots = generated.performance()
    write("performance.md", text)
    for name, drawing in plots.items():
        write(f"pictures/{name}.svg", drawing.svg())
    for name, draw in pictures.NAMES.items():
        write(f"pictures/{name}.svg", draw().svg())


def write_settings() -> Path:
    shutil.copyfile(HERE / "style.css", WORK / "style.css")
    present = {str(path.relative_to(WORK)) for path in WORK.rglob("*.md")}
    settings = (HERE / "mkdocs.yml").read_text(encoding="utf-8")
    settings += f"docs_dir: {WORK}\nsite_dir: {SITE}\n"
    settings += f"nav: {json.dumps(pages.navigation(present))}\n"
    path = WORK.parent / "docs_mkdocs.yml"
    path.write_text(settings, encoding="utf-8")
    return path


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--release", type=Path, default=ROOT / "build" / "release")
    parser.add_argument("--serve", action="store_true", help="serve the site on port 8000")
    arguments = parser.parse_args()
    wrong = [problem for page in pages.sources() for problem in pages.problems(page)]
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        return 1
    os.environ.setdefault("ATTN_LIBRARY", str(arguments.release / "src" / "api" / "libattn.so"))
    sys.path.insert(0, str(ROOT / "python"))
    shutil.rmtree(WORK, ignore_errors=True)
    write_pages()
    write_notebooks()
    write_generated(arguments.release)
    settings = write_settings()
    command = ["serve"] if arguments.serve else ["build", "--strict", "--quiet"]
    words = [sys.executable, "-m", "mkdocs", *command, "--config-file", str(settings)]
    done = subprocess.run(words, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}).returncode
    if done == 0 and not arguments.serve:
        print(f"{SITE}/index.html")
    return done


if __name__ == "__main__":
    sys.exit(main())
