"""Splits the tracked source files into prose (comments, messages, docs) and code. Both halves keep
every newline, so line numbers stay those of the file. The checks of ./dev lint share it."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

C_LIKE = {".cpp", ".hpp", ".c", ".h", ".cu", ".cuh", ".wgsl"}
SCRIPTS = {".sh", ".cmake", ".txt", ".toml", ".in"}
# Measured rows, recorded logs, fuzzer inputs and data are not written by us.
NOT_SOURCES = ("bench/results/", "tests/fuzz/corpus/", "examples/data/")

# A gap stands for code that was removed: no pattern may match across it.
GAP = "\0"

_C_TOKENS = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
      | (?P<string>R"(?P<mark>[^\s()\\]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*")
      | (?P<character>'(?:\\[^\n']+|\\'|[^'\\\n])')""",
    re.S | re.X,
)
_PYTHON_TOKENS = re.compile(
    r"""(?P<comment>\#[^\n]*)
      | (?P<string>\"{3}.*?\"{3}|'{3}.*?'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')""",
    re.S | re.X,
)
_SCRIPT_TOKENS = re.compile(
    r"""(?P<comment>(?:(?<=\s)|^)\#[^\n]*)
      | (?P<string><<-?'?(?P<mark>[A-Z]+)'?\n.*?\n(?P=mark)\n|"(?:\\.|[^"\\])*")
      | (?P<character>(?<!\\)'[^']*')""",
    re.S | re.X | re.M,
)
_MARKDOWN_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.S | re.M)
_MARKERS = re.compile(
    r"""//+!?|/\*+|\*+/|\#+!?|^\s*\*(?=\s)|\"{3}|'{3}|^R"\w*\(|\)\w*"$|^["']|["']$""", re.M
)


@cache
def tracked() -> list[str]:
    """Paths of the tracked files that people write, from the root of the repository."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = [name for name in listed.split("\0") if name and not name.startswith(NOT_SOURCES)]
    return [name for name in names if (ROOT / name).is_file() and not (ROOT / name).is_symlink()]


def kind(name: str) -> str:
    """'c', 'python', 'script', 'markdown', or '' for files that are not checked."""
    suffix = Path(name).suffix
    if suffix in C_LIKE:
        return "c"
    if suffix in SCRIPTS or name in ("dev", ".ci/run"):
        return "script"
    return {".py": "python", ".md": "markdown"}.get(suffix, "")


def blank(text: str, fill: str = " ") -> str:
    """The same text with every character except newlines replaced."""
    return re.sub(r"[^\n]", fill, text)


def split(name: str, text: str) -> tuple[str, str]:
    """(prose, code) of a file."""
    of_kind = kind(name)
    if of_kind == "markdown":
        return _MARKDOWN_CODE.sub(lambda found: blank(found[0], GAP), text), ""
    tokens = {"c": _C_TOKENS, "python": _PYTHON_TOKENS, "script": _SCRIPT_TOKENS}[of_kind]
    prose, code, at = [], [], 0
    for token in tokens.finditer(text):
        between = text[at : token.start()]
        prose.append(re.sub(r"\S", GAP, between))
        code.append(between)
        # A string without a space is a name or a path, not a message.
        is_prose = token["comment"] or (token["string"] and " " in token["string"])
        words = _MARKERS.sub(lambda found: blank(found[0]), token[0])
        prose.append(words if is_prose else blank(token[0], GAP))
        code.append(blank(token[0]))
        at = token.end()
    prose.append(re.sub(r"\S", GAP, text[at:]))
    code.append(text[at:])
    return "".join(prose), "".join(code)


def line_of(text: str, offset: int) -> int:
    """The line number, counted from 1, of an offset."""
    return text.count("\n", 0, offset) + 1
