"""Text for the training example: files become documents, and documents one stream of bytes.

Tokens are bytes, so there is nothing to train or download. Every document starts with the token 0,
which occurs in no text. A model predicts the same token at the end of a document.
"""

from __future__ import annotations

import random
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

BEGIN = 0


class BadText(ValueError):
    """The given text cannot be used for training; the message says why."""


def standard_library() -> Iterator[Path]:
    """The sources of Python's standard library, without tests and installed packages."""
    root = Path(sysconfig.get_path("stdlib"))
    left_out = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
    for path in root.rglob("*.py"):
        if left_out.isdisjoint(path.relative_to(root).parts):
            yield path


def find_files(paths: Sequence[Path]) -> list[Path]:
    """The files of the given files and folders (hidden ones left out), sorted by name."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = (p for p in path.rglob("*") if p.is_file())
            found += (p for p in inside if not _is_hidden(p.relative_to(path)))
        elif path.is_file():
            found.append(path)
        else:
            raise BadText(f"{path}: no such file or folder")
    return sorted(found if paths else standard_library())


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def read_documents(paths: Sequence[Path], seed: int) -> list[bytes]:
    """Every file that holds text, in an order drawn from the seed."""
    documents = []
    for path in find_files(paths):
        try:
            text = path.read_bytes()
        except OSError as error:
            raise BadText(f"{path}: cannot be read: {error.strerror}") from error
        if b"\0" not in text and text.strip():  # binary and empty files are no documents
            documents.append(text)
    if not documents:
        where = ", ".join(map(str, paths)) or "the standard library"
        raise BadText(f"{where}: no text (every file is empty or holds a zero byte)")
    random.Random(seed).shuffle(documents)
    return documents


@dataclass(frozen=True)
class Stream:
    """A sequence of documents, stored contiguously."""

    tokens: Tensor
    """u8 [total]."""
    starts: Tensor
    """i64 [documents], ascending from 0: where each document starts."""

    def rows(self, offsets: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, the tokens that follow them (i64 [b, n]) and kv_begin (i32 [b, n]).

        Row r is the n tokens from offsets[r] on. kv_begin counts from the row's start: a document
        that began before the row is visible from 0.
        """
        place = offsets[:, None] + torch.arange(n + 1)  # [b, n + 1]
        tokens = self.tokens[place].long()
        document = torch.searchsorted(self.starts, place[:, :-1].contiguous(), right=True) - 1
        kv_begin = (self.starts[document] - offsets[:, None]).clamp(min=0).int()
        return tokens[:, :-1], tokens[:, 1:], kv_begin

    def random_rows(self, b: int, n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """Rows at b positions drawn from the seed."""
        generator = torch.Generator().manual_seed(seed)
        last = len(self.tokens) - n - 1
        return self.rows(torch.randint(last + 1, (b,), generator=generator), n)


def load_streams(paths: Sequence[Path], context: int, seed: int) -> tuple[Stream, Stream]:
    """The stream to train on, and the last twentieth of the text, held out."""
    documents = read_documents(paths, seed)
    text = b"".join(bytes([BEGIN]) + document for document in documents)
    held_out = max(len(text) // 20, context + 1)
    if len(text) < 2 * (context + 1):
        raise BadText(
            f"the text has {len(text)} tokens; a context of {context} needs at least "
            f"{2 * (context + 1)} (one row to train on and one held out): give more text or a "
            "smaller --context"
        )
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return _stream(tokens[:-held_out]), _stream(tokens[-held_out:])


def _stream(tokens: Tensor) -> Stream:
    starts = (tokens == BEGIN).nonzero()[:, 0]
    if tokens[0] != BEGIN:  # the cut went through a document: its rest is one too
        starts = torch.cat((starts.new_zeros(1), starts))
    return Stream(tokens, starts)
