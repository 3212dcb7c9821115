"""The API reference of the Python package, from signatures and docstrings; nothing is imported.

A docstring is what help() shows. Its paragraphs stay in order; lines "name, name: text" become a
list of definitions, with the lines that follow until the next one.
"""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import dataclass
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "libattn"
TYPES = PACKAGE / "_types.py"
ITEM = re.compile(r"^(\w+(?:(?:, | \.\.\. )\w+)*)(?:: | {2,})(.+)$")
BULLET = re.compile(r"^[-*] ")


@dataclass(frozen=True)
class Entry:
    """One public name: where it is defined."""

    module: str  # "libattn.torch"
    name: str
    node: ast.FunctionDef | ast.ClassDef
    file: Path

    @property
    def docstring(self) -> str:
        return ast.get_docstring(self.node) or ""


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _file(folder: Path, node: ast.ImportFrom) -> Path:
    if not node.level:
        return PACKAGE.joinpath(*str(node.module).split(".")[1:]).with_suffix(".py")
    for _ in range(node.level - 1):
        folder = folder.parent
    return folder / f"{node.module}.py"


def module_docstring(module: str) -> str:
    return ast.get_docstring(_tree(init_of(module))) or ""


def init_of(module: str) -> Path:
    path = PACKAGE.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def entries(module: str) -> list[Entry]:
    """The names of a module's __all__, in the order of its imports."""
    init = init_of(module)
    tree = _tree(init)
    public: set[str] = set()
    sources: dict[str, Path] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            public = set(ast.literal_eval(node.value))
        elif isinstance(node, ast.ImportFrom) and (
            node.level or (node.module or "").startswith("libattn.")
        ):
            sources |= {alias.name: _file(init.parent, node) for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            sources[node.name] = init
    found = []
    # Functions first, in the order of the imports; then classes.
    order = sorted(public & sources.keys(), key=lambda n: (n[0].isupper(), list(sources).index(n)))
    for name in order:
        file = sources[name]
        nodes = [
            node
            for node in ast.walk(_tree(file))
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name
        ]
        # Overloads come first, the implementation last.
        if nodes:
            found.append(Entry(module, name, nodes[-1], file))
    return found


def parameters(node: ast.FunctionDef) -> list[str]:
    """Names of parameters; that of **options is left out."""
    arguments = node.args
    return [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def signature(entry: Entry) -> str:
    node = entry.node
    if isinstance(node, ast.ClassDef):
        return _class_signature(entry.name, node)
    arguments = node.args
    parts = []
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    defaults += arguments.defaults
    for argument, default in zip(positional, defaults, strict=True):
        parts.append(_parameter(argument, default))
    if arguments.kwonlyargs:
        parts.append("*")
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        parts.append(_parameter(argument, default))
    if arguments.kwarg:
        parts.append("**" + _parameter(arguments.kwarg, None))
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    one_line = f"{entry.name}({', '.join(parts)}){result}"
    if len(one_line) <= 88:
        return one_line
    return f"{entry.name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){result}"


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    text = argument.arg
    if argument.annotation:
        text += f": {ast.unparse(argument.annotation)}"
    if default is not None:
        text += f" = {ast.unparse(default)}" if argument.annotation else f"={ast.unparse(default)}"
    return text


def _class_signature(name: str, node: ast.ClassDef) -> str:
    bases = f"({', '.join(map(ast.unparse, node.bases))})" if node.bases else ""
    fields = [
        "    " + ast.unparse(item)
        for item in node.body
        if isinstance(item, ast.AnnAssign) and not ast.unparse(item.target).startswith("_")
    ]
    return "\n".join([f"class {name}{bases}", *fields])


def inline(text: str) -> str:
    """Text of a docstring as HTML: `code` is markup, and pages are links."""
    text = re.sub(r"`+([^`]+)`+", r"<code>\1</code>", escape(text, quote=False))
    return re.sub(r"docs/([\w/]+)\.md", r'<a href="../\1.html">\1.md</a>', text)


def render(docstring: str) -> str:
    """A docstring as HTML inside of Markdown."""
    made = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(docstring)):
        lines = paragraph.splitlines()
        if all(line.startswith("    ") for line in lines):
            made.append("```\n" + "\n".join(line[4:] for line in lines) + "\n```")
        elif any(ITEM.match(line) for line in lines):
            made.append(_definitions(lines))
        elif any(BULLET.match(line) for line in lines):
            made.append(_bullets(lines))
        else:
            made.append(f"<p>{inline(' '.join(lines))}</p>")
    return "\n\n".join(made)


def _definitions(lines: list[str]) -> str:
    before: list[str] = []
    items: list[tuple[str, list[str]]] = []
    for line in lines:
        item = ITEM.match(line)
        if item:
            items.append((item[1], [item[2]]))
        elif items:
            items[-1][1].append(line.strip())
        else:
            before.append(line)
    text = f"<p>{inline(' '.join(before))}</p>\n" if before else ""
    rows = "".join(
        f"<dt>{escape(names)}</dt><dd>{inline(' '.join(words))}</dd>\n" for names, words in items
    )
    return f'{text}<dl class="parameters">\n{rows}</dl>'


def _bullets(lines: list[str]) -> str:
    before: list[str] = []
    items: list[list[str]] = []
    for line in lines:
        if BULLET.match(line):
            items.append([line[2:]])
        elif items:
            items[-1].append(line.strip())
        else:
            before.append(line)
    text = f"<p>{inline(' '.join(before))}</p>\n" if before else ""
    return text + "<ul>" + "".join(f"<li>{inline(' '.join(i))}</li>" for i in items) + "</ul>"


def page(module: str, title: str) -> str:
    parts = [f"# {title}", render(module_docstring(module))]
    note = "The text is that of `help()`: both come from the docstrings."
    parts.append(f"*{note}*")
    for entry in entries(module):
        parts.append(f"## {entry.name} {{#{entry.name}}}")
        parts.append(f"```python\n{signature(entry)}\n```")
        parts.append(render(entry.docstring))
    if module == "libattn":
        parts += ["## Types", render(ast.get_docstring(_tree(TYPES)) or "")]
        for name, code, text in types():
            parts += [f"### {name}", f"```python\n{code}\n```", render(text)]
    return "\n\n".join(parts) + "\n"


def types() -> list[tuple[str, str, str]]:
    """(name, code, docstring) of each type of _types.py."""
    found = []
    body = _tree(TYPES).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef):
            found.append((node.name, f"class {node.name}(Protocol)", ast.get_docstring(node) or ""))
        elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(after, ast.Expr):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            text = ast.literal_eval(after.value)
            found.append((ast.unparse(target), ast.unparse(node), str(text)))
    return found
