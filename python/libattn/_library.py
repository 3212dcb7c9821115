"""The shared library: its file, its functions with their types, its errors as exceptions."""

from __future__ import annotations

import ctypes
import os
import pathlib
import re
import threading
from typing import Any

from . import _abi
from ._facts import PUBLIC
from ._values import renamed, shown


class Error(RuntimeError):
    """A call failed for a reason that lies in the device or in libattn itself."""


class Unsupported(Error):
    """The call is valid, but no usable backend supports it. The message has each one's reason."""


def _find() -> str:
    """The library file: ATTN_LIBRARY, else the one in this package."""
    named = os.environ.get("ATTN_LIBRARY")
    if named:
        if not os.path.exists(named):
            raise ImportError(f"libattn: ATTN_LIBRARY: found '{named}', which does not exist")
        return named
    folder = pathlib.Path(__file__).parent
    for name in ("libattn.so", "libattn.dylib", "attn.dll"):
        if (folder / name).exists():
            return str(folder / name)
    raise ImportError(
        f"libattn: no library in {folder}; accepted: an installed wheel, or ATTN_LIBRARY set to "
        "the file of the shared library"
    )


def _load(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path)
    for name, (result, arguments) in _abi.PROTOTYPES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


PATH = _find()
LIBRARY = _load(PATH)


def check(code: int, function: str | None = None) -> None:
    """Raises the exception of a code, with the library's message; none for ATTN_OK."""
    if code != _abi.ATTN_OK:
        raise exception_of(code, function)


# Fields of attn_problem that no caller of Python names, and the words that Python has for them.
_FIELDS = {
    "dtype_kv": "type of k and v",
    "dtype_out": "type of out",
    "dtype_grad": "grad_dtype",
    "dtype_bias": "type of bias",
    "dtype_dbias": "dbias_dtype",
    "lengths_q": "len_q",
    "lengths_kv": "len_kv",
    "len_new": "rows of k_new",
    "layout_q=packed": "a packed q",
    "layout_kv=packed": "packed k and v",
    "layout_kv=padded": "padded k and v",
    "rope_tables": "rope.cos",
    "rope_positions": "rope.positions_q",
    "rope_base": "rope.base",
    "rope_pos_offset": "rope.pos_offset",
    **PUBLIC,
}
_WORDS = re.compile("|".join(rf"\b{word}\b" for word in sorted(_FIELDS, key=len, reverse=True)))


def in_python(function: str, message: str) -> str:
    """A message of the library with the function and the names that the caller wrote."""
    message = message.replace(" with dtype=", " with a q of ").replace(": dtype: ", ": type of q: ")
    message = _WORDS.sub(lambda found: _FIELDS[found[0]], message)
    place, _, rest = message.partition(": ")
    if place == "parse_problem":
        return f"{function}: problem: found {rest[:200]}; accepted a line as describe() returns"
    if place in ("describe", "forward", "backward", "decode", "Context"):
        message = f"{function}: {rest}"
    return renamed(function, message)


def exception_of(code: int, function: str | None = None) -> Exception:
    """The exception of a code, for a call of the Python function of this name."""
    message = LIBRARY.attn_last_error().decode()
    if function is not None:
        message = in_python(function, message)
    if code == _abi.ATTN_INVALID_ARGUMENT:
        return ValueError(message)
    if code == _abi.ATTN_UNSUPPORTED:
        return Unsupported(message)
    if code == _abi.ATTN_OUT_OF_MEMORY:
        return MemoryError(message)
    return Error(message)


class Context:
    """An attn_context: threads, scratch memory and plans. Serves many threads at once."""

    __slots__ = ("handle", "threads")

    def __init__(
        self, threads: int = 0, backend: str | None = None, function: str | None = None
    ) -> None:
        options = _abi.attn_context_options()
        size = ctypes.sizeof(options)
        check(LIBRARY.attn_context_options_init(ctypes.byref(options), size))
        options.threads = threads
        options.backend = None if backend is None else backend.encode()
        handle = ctypes.c_void_p()
        code = LIBRARY.attn_context_create(ctypes.byref(options), ctypes.byref(handle))
        check(code, function)
        self.handle = handle
        self.threads: int = LIBRARY.attn_context_threads(handle)

    def __del__(self) -> None:
        handle = getattr(self, "handle", None)
        if handle is not None:
            LIBRARY.attn_context_destroy(handle)


_lock = threading.Lock()
_contexts: dict[tuple[int, str | None], Context] = {}
_MOST_THREADS = 4096  # of src/api/context.cpp
_threads_set = 0  # by set_num_threads; 0 = not set


def context(threads: int = 0, backend: str | None = None, function: str | None = None) -> Context:
    """The context of calls on this many threads; set_num_threads has precedence. backend: the name
    of the one to use, None = the library chooses. function: named by errors.

    Callers keep the result in a variable until the C function returns: if another thread empties
    the cache in the meantime, that reference alone keeps the handle valid."""
    wanted = _threads_set or threads, backend
    found = _contexts.get(wanted)
    if found is None:
        with _lock:
            found = _contexts.get(wanted)
            if found is None:
                if len(_contexts) >= 16:  # each may keep scratch memory
                    _contexts.clear()
                found = _contexts[wanted] = Context(*wanted, function)
    return found


def set_num_threads(threads: int) -> None:
    """Sets how many threads a call on host memory uses from now on, in this process.

    threads: 1 to 4096; 0 restores the default: ATTN_NUM_THREADS, else all CPUs that the process may
    run on; with PyTorch tensors torch.get_num_threads(). Raises ValueError for anything else.
    """
    global _threads_set
    whole = isinstance(threads, int) and not isinstance(threads, bool)
    if not whole or not 0 <= threads <= _MOST_THREADS:
        raise ValueError(
            f"set_num_threads: threads: found {shown(threads)}; accepted 0 (default) to "
            f"{_MOST_THREADS}"
        )
    if threads:
        context_before = _threads_set
        _threads_set = threads
        try:
            context(function="set_num_threads")
        except Exception:
            _threads_set = context_before
            raise
    _threads_set = threads
    check(LIBRARY.attn_xla_set_threads(threads))  # calls of libattn.jax


def get_num_threads() -> int:
    """How many threads a call on NumPy arrays uses."""
    return context().threads


def text_of(fill: Any, function: str | None = None) -> str:
    """The text of a C function that fills a buffer: fill(buffer, size, needed) -> code."""
    needed = ctypes.c_size_t()
    check(fill(None, 0, ctypes.byref(needed)), function)
    buffer = ctypes.create_string_buffer(needed.value)
    check(fill(buffer, needed.value, ctypes.byref(needed)))
    return buffer.value.decode()
