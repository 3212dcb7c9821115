"""Text of C++ and PTX, cut at the top level of brackets and outside of strings."""

from __future__ import annotations


def end_of_string(text: str, begin: int) -> int:
    """The position after the string that begins at this position."""
    at = begin + 1
    while text[at] != '"':
        at += 2 if text[at] == "\\" else 1
    return at + 1


def split(text: str, separator: str) -> list[str]:
    """Splits at a separator that is in no brackets and in no string."""
    parts = [""]
    depth = 0
    at = 0
    while at < len(text):
        char = text[at]
        end = end_of_string(text, at) if char == '"' else at + 1
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        if char == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += text[at:end]
        at = end
    return parts


def closing(text: str, opening: int) -> int:
    """The position of the parenthesis that closes the one at this position."""
    depth = 0
    at = opening
    while True:
        char = text[at]
        if char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
            if depth == 0:
                return at
        at = end_of_string(text, at) if char == '"' else at + 1
