"""The API reference of C and C++ from the public headers: each declaration with its comment."""

from __future__ import annotations

import re
from pathlib import Path

HEADERS = Path(__file__).resolve().parents[2] / "include" / "attn"
# Left out, because callers don't need it: compiler attributes; on the page of C++, the C interface.
CPP = ("attn.hpp", "arguments.hpp", "problem.hpp", "tensor.hpp", "context.hpp", "cache.hpp")
CPP += ("tune.hpp", "webgpu.hpp")
LINE = re.compile(r"^\s*//\s?(.*)$")
TYPE = re.compile(
    r"^(?:typedef )?(?:enum class|enum|struct|class) (?:\[\[\w+\]\] )?(?:ATTN_API )?(\w+)"
)
TYPE_END = re.compile(r"^\} (\w+);", re.MULTILINE)
FUNCTION = re.compile(r"(\w+)\s*\(")
SKIPPED = re.compile(r"^(#|namespace |\}  // namespace|extern |\}$|using namespace|ATTN_API$)")


def chunks(text: str) -> list[str]:
    """Parts between blank lines outside of braces and comments."""
    found: list[str] = []
    lines: list[str] = []
    depth = 0
    in_comment = False
    for line in text.splitlines():
        bare = re.sub(r'//.*|/\*.*?\*/|"[^"]*"', "", line)
        if "/*" in bare:
            in_comment = True
        if not line.strip() and depth == 0 and not in_comment:
            if lines:
                found.append("\n".join(lines))
            lines = []
            continue
        lines.append(line)
        if "*/" in line:
            in_comment = False
            continue
        if not in_comment and not re.match(r"^(namespace|extern)\b.*\{$", line):
            depth = max(0, depth + bare.count("{") - bare.count("}"))
    if lines:
        found.append("\n".join(lines))
    return found


def apart(chunk: str) -> list[str]:
    """Declarations of one part, each with the comment above it; bodies are not cut."""
    if "{" in re.sub(r"//.*|/\*.*?\*/", "", chunk):
        return [chunk]
    found: list[list[str]] = [[]]
    for line in chunk.splitlines():
        begins = line.startswith(("//", "/*"))
        if begins and found[-1] and re.search(r";\s*(//.*|/\*.*\*/)?$", found[-1][-1]):
            found.append([])
        found[-1].append(line)
    return ["\n".join(lines) for lines in found]


def comment_and_code(chunk: str) -> tuple[str, str]:
    """The comment in front of a declaration, and the rest."""
    if chunk.startswith("/*") and "*/" in chunk:
        comment, _, code = chunk.partition("*/")
        lines = [re.sub(r"^\s*(/\*|\*) ?", "", line) for line in comment.splitlines()]
        return "\n".join(lines).strip(), code.strip("\n")
    lines = chunk.splitlines()
    count = 0
    while count < len(lines) and LINE.match(lines[count]):
        count += 1
    comment = "\n".join(re.sub(r"^\s*// ?", "", line) for line in lines[:count])
    return comment, "\n".join(lines[count:])


def prose(comment: str) -> str:
    """A comment as Markdown: lists and indented code stay, the rest is escaped."""
    made: list[str] = []
    code: list[str] = []

    def flush() -> None:
        if code:
            made.append("\n```cpp\n" + "\n".join(code) + "\n```\n")
            code.clear()

    in_list = False
    for line in comment.splitlines():
        in_list = bool(re.match(r"\s*- ", line)) or (in_list and line.startswith("  "))
        if not in_list and (line.startswith("  ") or (code and line)):
            code.append(line[2:] if line.startswith("  ") else line)
            continue
        flush()
        if re.match(r"\s*- ", line) and made and not re.match(r"\s*(- |  )", made[-1]):
            made.append("")
        line = re.sub(r"^  (?=- )", "", line) if in_list else line
        line = re.sub(r"([*_\[\]<>])", r"\\\1", line)
        made.append(re.sub(r"docs/(\w+)\.md", r"[\1.md](../\1.md)", line))
    flush()
    return "\n".join(made)


def names_of(code: str) -> list[str]:
    """What a part declares."""
    first = next((line for line in code.splitlines() if not line.startswith("template")), "")
    kind = TYPE.match(first)
    if kind:
        end = TYPE_END.search(code) if code.startswith("typedef") else None
        return [end[1] if end else kind[1]]
    if first.startswith("enum {"):
        return [", ".join(re.findall(r"\bATTN_\w+", code)[:2]) + ", ..."]
    names = []
    for line in re.sub(r"//.*|/\*.*?\*/", "", code).replace("\n   ", " ").splitlines():
        if re.match(r"^(ATTN_API|inline|typedef|using|#define|constexpr)", line):
            alias = re.match(r"^using (\w+) =", line) or re.match(r"^typedef .*?\(\*(\w+)\)", line)
            alias = alias or re.match(r"^typedef struct \w+ (\w+);", line)
            alias = alias or re.match(r"^#define (\w+)", line)
            alias = alias or re.match(r"^inline constexpr \S+ (\w+) =", line)
            found = alias or FUNCTION.search(line)
            if found and found[1] not in names:
                names.append(found[1])
    return names


def header(name: str, language: str, level: int = 2) -> str:
    text = (HEADERS / name).read_text(encoding="utf-8")
    parts = [f"{'#' * level} &lt;attn/{name}&gt; {{#{name.replace('.', '-')}}}"]
    every = chunks(text)
    for n, chunk in enumerate([every[0], *(part for c in every[1:] for part in apart(c))]):
        comment, code = comment_and_code(chunk)
        code = "\n".join(line for line in code.splitlines() if not _is_frame(line)).strip("\n")
        if n == 0:
            parts.append(prose(comment))
            continue
        if not code:
            if comment:
                parts.append(prose(comment))
            continue
        names = names_of(code)
        if not names or names == ["std"]:
            continue
        title = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        parts.append(f"{'#' * (level + 1)} " + title.replace("_", r"\_"))
        if comment:
            parts.append(prose(comment))
        parts.append(f"```{language}\n{code}\n```")
    return "\n\n".join(parts) + "\n"


def _is_frame(line: str) -> bool:
    return (
        bool(re.match(r"^(#(?!define ATTN_INIT)|namespace |extern |\}\s*// namespace)", line))
        or line == "}"
    )


def cpp_page() -> str:
    intro = (
        "# C++ reference\n\nGenerated from the public headers. Link `attn::attn` "
        "(`find_package(attn)`); `<attn/attn.hpp>` includes all but `<attn/webgpu.hpp>`. "
        "[What is computed](../semantics.md) defines the results.\n\n"
    )
    return intro + "\n".join(header(name, "cpp") for name in CPP)


def c_page() -> str:
    intro = (
        "# C reference\n\nGenerated from `<attn/attn.h>`. [Versions and ABI](../versioning.md) "
        "says what stays compatible.\n\n"
    )
    return intro + header("attn.h", "c")
