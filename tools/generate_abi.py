"""Writes the ctypes side of the C ABI: python/libattn/_abi.py from include/attn/attn.h.

usage: tools/generate_abi.py HEADER OUTPUT

Reads enumerations, structs, function types and functions of the header, which is C without macros
in declarations (apart from ATTN_API). Names stay as they are in C. The module has the constants, a
ctypes.Structure for each struct, a CFUNCTYPE for each function type and PROTOTYPES: the result and
the arguments of each function. Pointers are plain addresses (c_void_p), which are the quickest to
set and take byref() as well; texts that are read are c_char_p.
A declaration that this script can't read is an error: it is never left out.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

# C type -> ctypes type and the Python type that a field of it reads as.
NUMBERS = {
    "int32_t": ("c_int32", "int"),
    "uint32_t": ("c_uint32", "int"),
    "int64_t": ("c_int64", "int"),
    "uint64_t": ("c_uint64", "int"),
    "size_t": ("c_size_t", "int"),
    "double": ("c_double", "float"),
    "float": ("c_float", "float"),
}


@dataclass(frozen=True)
class Declared:
    """One field or argument: its C type, stars, name and array length (0 = none)."""

    const: bool
    base: str
    stars: int
    name: str
    length: int


@dataclass
class Header:
    """What a header declares, in its order."""

    constants: list[tuple[str, str]] = field(default_factory=list)
    structs: dict[str, list[Declared]] = field(default_factory=dict)
    opaque: set[str] = field(default_factory=set)
    function_types: dict[str, tuple[Declared, list[str]]] = field(default_factory=dict)
    functions: dict[str, tuple[Declared, list[Declared]]] = field(default_factory=dict)


def fail(text: str) -> SystemExit:
    """The error of a declaration that can't be read."""
    return SystemExit(f"generate_abi: can't read this declaration: {' '.join(text.split())}")


def strip(text: str) -> str:
    """The header without comments, preprocessor lines and the extern "C" braces."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
    text = re.sub(r"//[^\n]*", " ", text)
    text = re.sub(r"#ifdef __cplusplus.*?#endif", " ", text, flags=re.DOTALL)
    text = re.sub(r"^\s*#(?:[^\n]*\\\n)*[^\n]*$", " ", text, flags=re.MULTILINE)
    return text.replace("ATTN_API", " ")


def statements(text: str) -> list[str]:
    """The text cut at the semicolons that are outside of braces."""
    found, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char == "{") - (char == "}")
        if char == ";" and depth == 0:
            found.append(text[start:at].strip())
            start = at + 1
    if text[start:].strip():
        raise fail(text[start:])
    return [statement for statement in found if statement]


def declared(text: str) -> list[Declared]:
    """What one field declaration ("type a, b[4]") or argument ("const type* a") declares."""
    match = re.fullmatch(r"\s*(const\s+)?(\w+)\s*([*\s\w,\[\]]*)", text)
    if match is None:
        raise fail(text)
    found = []
    for part in match[3].split(","):
        one = re.fullmatch(r"\s*(\*[\s*]*)?(\w*)\s*(?:\[\s*(\d+)\s*\])?\s*", part)
        if one is None:
            raise fail(text)
        stars = (one[1] or "").count("*")
        found.append(Declared(bool(match[1]), match[2], stars, one[2], int(one[3] or 0)))
    return found


def arguments(text: str) -> list[str]:
    """An argument list cut at the commas that are outside of parentheses."""
    parts, depth = [""], 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [] if "".join(parts).strip() in ("", "void") else [part.strip() for part in parts]


def parse(text: str) -> Header:
    """Everything that the header declares."""
    header = Header()
    for statement in statements(strip(text)):
        if match := re.fullmatch(r"enum\s*\{(.*)\}", statement, re.DOTALL):
            for entry in match[1].split(","):
                constant = re.fullmatch(r"\s*(\w+)\s*=\s*(-?\d+)\s*", entry)
                if constant is None:
                    raise fail(entry)
                header.constants.append((constant[1], constant[2]))
        elif match := re.fullmatch(
            r"typedef struct (\w+)\s*\{(.*)\}\s*(\w+)", statement, re.DOTALL
        ):
            rows = [row for row in match[2].split(";") if row.strip()]
            header.structs[match[3]] = [one for row in rows for one in declared(row)]
        elif match := re.fullmatch(r"typedef struct (\w+)\s+(\w+)", statement):
            header.opaque.add(match[2])
        elif match := re.fullmatch(
            r"typedef\s+(.+?)\(\s*\*\s*(\w+)\s*\)\s*\((.*)\)", statement, re.S
        ):
            header.function_types[match[2]] = (declared(match[1])[0], arguments(match[3]))
        elif match := re.fullmatch(r"([\w\s*]+?)(\w+)\s*\((.*)\)", statement, re.DOTALL):
            taken = [declared(one)[0] for one in arguments(match[3])]
            header.functions[match[2]] = (declared(match[1])[0], taken)
        else:
            raise fail(statement)
    return header


def ctypes_of(header: Header, one: Declared, *, inside: str) -> tuple[str, str]:
    """The ctypes expression of a field or argument, and the Python type that reading it gives."""
    if one.base == "char" and one.stars == 1 and one.const:
        kind, python = "c_char_p", "Text | None"
    elif one.stars > 0:
        known = {"void", "char", *NUMBERS, *header.structs, *header.opaque}
        if one.base not in known:
            raise fail(f"{inside}: {one.base}* {one.name}")
        kind, python = "c_void_p", "int | None"
    elif one.base == "char" and one.length > 0:
        return f"c_char * {one.length}", "Text"
    elif one.base in NUMBERS:
        kind, python = NUMBERS[one.base]
    elif one.base in header.structs:
        kind = python = one.base
    elif one.base in header.function_types:
        kind, python = one.base, "Any"
    else:
        raise fail(f"{inside}: {one.base} {one.name}")
    if one.length == 0:
        return kind, python
    return f"{kind} * {one.length}", f"Array[{kind}]"


def result_of(header: Header, one: Declared, *, inside: str) -> str:
    """The ctypes expression of a result."""
    if one.base == "void" and one.stars == 0:
        return "None"
    return ctypes_of(header, one, inside=inside)[0]


def tuple_of(words: list[str]) -> str:
    """Words as the source of a tuple."""
    return "(" + ", ".join(words) + ("," if len(words) == 1 else "") + ")"


def write(header: Header, source: str) -> str:
    """The module's source."""
    lines: list[str] = []
    lines += [f"{name}: Final = {value}" for name, value in header.constants]
    for name, (result, taken) in header.function_types.items():
        words = [result_of(header, result, inside=name)]
        for argument in taken:
            if re.search(r"\(\s*\*", argument):  # a function's address
                words.append("c_void_p")
            else:
                words.append(ctypes_of(header, declared(argument)[0], inside=name)[0])
        lines += ["", f"{name} = CFUNCTYPE({', '.join(words)})"]
    for name, fields in header.structs.items():
        rows = [(one, *ctypes_of(header, one, inside=name)) for one in fields]
        lines += ["", "", f"class {name}(Structure):", f'    """struct {name}."""', ""]
        lines += [f"    {one.name}: {python}" for one, _, python in rows]
        lines += ["    _fields_ = ["]
        lines += [f'        ("{one.name}", {kind}),' for one, kind, _ in rows]
        lines += ["    ]"]
    lines += ["", "", "# Function -> (restype, argtypes)."]
    lines += ["PROTOTYPES: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {"]
    for name, (result, taken_by) in header.functions.items():
        words = [ctypes_of(header, one, inside=name)[0] for one in taken_by]
        lines.append(
            f'    "{name}": ({result_of(header, result, inside=name)}, {tuple_of(words)}),'
        )
    lines += ["}", ""]
    body = "\n".join(lines)
    known = {"Array", "CFUNCTYPE", "Structure", "c_char", "c_char_p", "c_void_p"}
    known |= {kind for kind, _ in NUMBERS.values()}
    used = sorted(word for word in known if re.search(rf"\b{word}\b", body))
    opening = [
        f'"""The C ABI for ctypes; tools/generate_abi.py makes it of {source}: do not edit."""',
        "",
        "from __future__ import annotations",
        "",
        "from ctypes import (",
        *(f"    {word}," for word in used),
        ")",
        "from typing import Any, Final, TypeAlias",
        "",
        "Text: TypeAlias = bytes  # by a name that no field has",
        "",
        "",
    ]
    return "\n".join(opening) + body


def main() -> None:
    """Reads the header and writes the module; a module that is the same already is left alone."""
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    header, output = Path(sys.argv[1]), Path(sys.argv[2])
    module = write(parse(header.read_text()), f"include/attn/{header.name}")
    if not output.exists() or output.read_text() != module:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(module)


if __name__ == "__main__":
    main()
