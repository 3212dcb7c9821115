"""Which pages the site has, in which order, and where links between them lead."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import blocks
import notebooks
import pictures

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

# Pages of the repository outside of docs/ -> pages of the site.
ELSEWHERE = {
    "HACKING.md": "development/hacking.md",
    "CHANGELOG.md": "development/changes.md",
    "bench/README.md": "development/benchmarks.md",
    "examples/README.md": "examples.md",
}
# Pages that build.py writes.
GENERATED = (
    "reference/python.md",
    "reference/torch.md",
    "reference/distributed.md",
    "reference/huggingface.md",
    "reference/jax.md",
    "reference/plot.md",
    "reference/cpp.md",
    "reference/c.md",
    "reference/command_line.md",
    "support.md",
    "performance.md",
)
# Title or "" (the page's own), page. A page that does not exist is left out; a page of docs/ that
# is not listed here is added to "More".
Nav = list[tuple[str, "str | Nav"]]
NAV: Nav = [
    ("Home", "index.md"),
    (
        "Quick start",
        [
            ("Python, NumPy", "start/numpy.md"),
            ("PyTorch", "start/pytorch.md"),
            ("Hugging Face", "start/transformers.md"),
            ("JAX", "jax.md"),
            ("C++", "start/cpp.md"),
            ("C", "start/c.md"),
            ("Command line", "start/command_line.md"),
            ("Examples", "examples.md"),
            ("Installation", "packaging.md"),
        ],
    ),
    ("Tutorial", "tutorial.md"),
    ("Notebooks", [("", f"notebooks/{name}.md") for name in notebooks.names()]),
    (
        "Options",
        [
            ("Overview", "options/index.md"),
            ("Which keys a query sees", "options/visibility.md"),
            ("What changes the scores", "options/scores.md"),
            ("Dropout", "options/dropout.md"),
            ("Heads, lengths and layouts", "options/layouts.md"),
            ("Decoding with a cache", "options/decode.md"),
            ("Rotary embedding", "options/rope.md"),
            ("Parts of a larger problem", "options/parts.md"),
            ("How a call runs", "options/running.md"),
        ],
    ),
    (
        "Reference",
        [
            ("What is computed", "semantics.md"),
            ("Python: libattn", "reference/python.md"),
            ("Python: libattn.torch", "reference/torch.md"),
            ("Python: libattn.distributed", "reference/distributed.md"),
            ("Python: libattn.hf", "reference/huggingface.md"),
            ("Python: libattn.jax", "reference/jax.md"),
            ("Python: libattn.plot", "reference/plot.md"),
            ("C++", "reference/cpp.md"),
            ("C", "reference/c.md"),
            ("Command line", "reference/command_line.md"),
            ("Environment variables", "environment.md"),
            ("Errors", "errors.md"),
            ("Versions and ABI", "versioning.md"),
        ],
    ),
    (
        "Devices and tools",
        [
            ("What runs where", "support.md"),
            ("PyTorch's tools", "torch.md"),
            ("Several devices", "distributed.md"),
            ("Looking at attention", "inspect.md"),
            ("CUDA", "cuda.md"),
            ("WebGPU", "webgpu.md"),
        ],
    ),
    (
        "Models",
        [
            ("Hugging Face transformers", "huggingface.md"),
            ("Tested versions", "versions.md"),
        ],
    ),
    ("Coming from", "coming_from.md"),
    ("Numerics", "numerics.md"),
    (
        "Performance",
        [
            ("Measurements", "performance.md"),
            ("Method", "development/benchmarks.md"),
        ],
    ),
    (
        "How it works",
        [
            ("CPU kernels", "kernels/cpu.md"),
            ("CPU: decode", "kernels/cpu_decode.md"),
            ("CPU: small problems", "kernels/cpu_small.md"),
            ("CPU: AMX", "kernels/cpu_amx.md"),
            ("CPU: f32", "kernels/cpu_f32.md"),
            ("CUDA: sm80", "kernels/sm80.md"),
            ("CUDA: decode", "kernels/decode.md"),
            ("CUDA: sm90 forward", "kernels/sm90_forward.md"),
            ("CUDA: sm90 forward in f32", "kernels/sm90_forward_f32.md"),
            ("CUDA: sm90 forward above dim 256", "kernels/sm90_forward_wide.md"),
            ("CUDA: sm90 backward", "kernels/sm90_backward.md"),
            ("CUDA: sm90 gradient of a bias", "kernels/sm90_backward_dbias.md"),
            ("CUDA: sm90 backward above dim 128", "kernels/sm90_backward_wide.md"),
            ("WebGPU kernels", "kernels/webgpu.md"),
            ("The source tree", "development/hacking.md"),
            ("Changes", "development/changes.md"),
        ],
    ),
]


def sources() -> dict[str, str]:
    """Page of the repository -> page of the site."""
    found = {
        str(path.relative_to(ROOT)): str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")
    }
    return dict(sorted(found.items())) | ELSEWHERE


def navigation(present: set[str]) -> list[object]:
    """The `nav` of mkdocs.yml."""
    left = set(present)

    def build(entries: Nav) -> list[object]:
        made: list[object] = []
        for title, entry in entries:
            if isinstance(entry, list):
                inside = build(entry)
                if inside:
                    made.append({title: inside})
            elif entry in present:
                left.discard(entry)
                made.append({title: entry} if title else entry)
        return made

    made = build(NAV)
    return [*made, {"More": sorted(left)}] if left else made


def problems(page: str) -> Iterator[str]:
    """Links of a page of the repository that lead nowhere."""
    path = ROOT / page
    text = path.read_text(encoding="utf-8")
    for line, target in blocks.links(text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = Path(os.path.normpath(path.parent / name)) if name else path
        if is_generated(file):
            continue
        if not file.exists():
            yield f"{page}:{line}: {target}: no such file"
            continue
        if not anchor or file.suffix != ".md":
            continue
        if anchor not in blocks.anchors(file.read_text(encoding="utf-8")):
            yield f"{page}:{line}: {target}: no such heading"


def is_generated(file: Path) -> bool:
    if not file.is_relative_to(DOCS):
        return False
    name = str(file.relative_to(DOCS))
    return name in GENERATED or (
        file.parent.name == "pictures" and file.suffix == ".svg" and file.stem in pictures.NAMES
    )


class Linker:
    """Rewrites links for the site: to other pages, or to copies of files of the repository."""

    def __init__(self) -> None:
        self.pages = sources() | {"README.md": "index.md"}
        for name in notebooks.names():
            path = (notebooks.FOLDER / f"{name}.ipynb").relative_to(ROOT)
            self.pages[str(path)] = f"notebooks/{name}.md"
        self.files: set[Path] = set()  # to be copied into files/

    def relink(self, text: str, page: str) -> str:
        folder = (ROOT / page).parent
        here = Path(self.pages[page]).parent

        def target_of(target: str) -> str | None:
            """The target of a link on the site; None if it does not lead to the site."""
            if re.match(r"[a-z]+:|#", target):
                return target
            name, mark, anchor = target.partition("#")
            file = Path(os.path.normpath(folder / name))
            if file.is_dir() and (file / "README.md").exists():
                file = file / "README.md"
            path = str(file.relative_to(ROOT))
            if path in self.pages:
                found = self.pages[path]
            elif is_generated(file):
                found = str(file.relative_to(DOCS))
            elif file.is_file():
                self.files.add(file)
                found = "files/" + path + (".txt" if file.suffix == ".md" else "")
            else:
                return None
            return os.path.relpath(found, here) + mark + anchor

        bare = blocks.without_code(text)
        made, at = [], 0
        for link in blocks.LINK.finditer(bare):
            target = target_of(link["target"])
            shown = text[link.start("text") : link.end("text")]
            made += [
                text[at : link.start()],
                shown[1:-1] if target is None else f"{shown}({target})",
            ]
            at = link.end()
        return "".join([*made, text[at:]])
