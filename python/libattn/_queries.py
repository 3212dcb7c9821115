"""Questions: supports, explain, workspace_bytes, describe and info."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _abi, _library
from ._calls import LIBRARY, init
from ._facts import DEVICES
from ._functions import PASSES, described
from ._options import Options
from ._types import Array
from ._values import choice, named, shown

if TYPE_CHECKING:
    from ._options import Unpack

_DEVICES = {name: code for code, name in DEVICES.items()}


class Verdict(NamedTuple):
    """Whether a backend supports a problem: its name, or why none does."""

    supported: bool
    backend: str
    reason: str


def describe(q: Array, k: Array, v: Array, **options: Unpack[Options]) -> str:
    """The problem of attention(q, k, v, **options) as one line of key=value words.

    q, k, v, options: as in attention; only types, shapes and which options are on are read. Raises
    what attention raises.

    supports, explain, workspace_bytes and the command `attn` take such a line:
    "dtype=bf16 batch=2 heads_q=8 heads_kv=2 len_q=128 len_kv=128 causal window_left=64".
    """
    return described("describe", "forward", {"q": q, "k": k, "v": v}, options)[0]


def _question(function: str, problem: str, pass_: str, device: str) -> tuple[int, Any, int]:
    value = init(_abi.attn_problem, size_only=True)
    if not isinstance(problem, str):
        raise ValueError(
            f"{function}: problem: found {shown(problem)}; accepted a line of text, see describe()"
        )
    if "\0" in problem:
        raise ValueError(f"{function}: problem: found a NUL in {shown(problem)}; accepted text")
    words = problem.encode(errors="replace")
    _library.check(LIBRARY.attn_problem_parse(words, ctypes.byref(value)), function)
    try:
        return choice("pass_", pass_, PASSES), value, choice("device", device, _DEVICES)
    except ValueError as error:
        raise named(function, error) from None


def supports(problem: str, pass_: str = "forward", device: str = "host") -> Verdict:
    """Whether a usable backend supports this, and if not, why, backend by backend.

    problem: a line as describe() returns.
    pass_: "forward", "backward" or "decode".
    device: "host", "cuda" or "webgpu".

    Returns a Verdict. Raises ValueError where the problem itself breaks a rule.
    """
    number, value, place = _question("supports", problem, pass_, device)
    verdict = init(_abi.attn_verdict, size_only=True)
    context = _library.context()
    _library.check(
        LIBRARY.attn_supports(
            context.handle, number, ctypes.byref(value), place, ctypes.byref(verdict)
        ),
        "supports",
    )
    return Verdict(bool(verdict.supported), verdict.backend.decode(), verdict.reason.decode())


def explain(problem: str, pass_: str = "forward", device: str = "host") -> str:
    """The steps of such a call as text: its rules, each backend's verdict, the plan. Arguments and
    errors are those of supports."""
    number, value, place = _question("explain", problem, pass_, device)
    context = _library.context()

    def fill(buffer: Any, size: int, needed: Any) -> Any:
        return LIBRARY.attn_explain(
            context.handle, number, ctypes.byref(value), place, buffer, size, needed
        )

    return _library.text_of(fill, "explain")


def workspace_bytes(problem: str, pass_: str = "forward", device: str = "host") -> int:
    """Bytes of scratch memory of such a call, in total. Arguments and errors are those of supports;
    raises Unsupported if no backend supports it."""
    number, value, place = _question("workspace_bytes", problem, pass_, device)
    needed = ctypes.c_int64()
    context = _library.context()
    _library.check(
        LIBRARY.attn_workspace_bytes(
            context.handle, number, ctypes.byref(value), place, ctypes.byref(needed)
        ),
        "workspace_bytes",
    )
    return needed.value


def version() -> str:
    """The library's version, "0.1.0"."""
    text: bytes = LIBRARY.attn_version()
    return text.decode()


def info() -> dict[str, Any]:
    """Version, library file, threads, and the backends: built, usable, device or why not."""
    context = _library.context()
    backends = []
    count = ctypes.c_int32(1)
    index = 0
    while index < count.value:
        one = init(_abi.attn_backend_info, size_only=True)
        _library.check(
            LIBRARY.attn_backend_at(context.handle, index, ctypes.byref(one), ctypes.byref(count))
        )
        backends.append(
            {
                "name": one.name.decode(),
                "built": bool(one.built),
                "usable": bool(one.usable),
                "detail": one.detail.decode(),
            }
        )
        index += 1
    return {
        "version": version(),
        "library": _library.PATH,
        "threads": context.threads,
        "backends": backends,
    }
