"""The shared library: where it is, its functions with their types, its errors as exceptions."""

from __future__ import annotations

import ctypes
import os
import pathlib
import threading
from typing import Any

from . import _abi


class Error(RuntimeError):
    """libattn could not do it for a reason that lies in the device or in libattn itself."""


class Unsupported(Error):
    """The call is valid, but no usable backend does it; the message says why, one by one."""


def _find() -> str:
    """The library file: ATTN_LIBRARY, else the one that lies in this package."""
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


def check(code: int) -> None:
    """Raises what the code of a call stands for, with the library's own message."""
    if code != _abi.ATTN_OK:
        raise exception_of(code)


def exception_of(code: int) -> Exception:
    message = LIBRARY.attn_last_error().decode()
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

    def __init__(self, threads: int = 0, backend: str | None = None) -> None:
        options = _abi.attn_context_options()
        size = ctypes.sizeof(options)
        check(LIBRARY.attn_context_options_init(ctypes.byref(options), size))
        options.threads = threads
        options.backend = None if backend is None else backend.encode()
        handle = ctypes.c_void_p()
        check(LIBRARY.attn_context_create(ctypes.byref(options), ctypes.byref(handle)))
        self.handle = handle
        self.threads: int = LIBRARY.attn_context_threads(handle)

    def __del__(self) -> None:
        handle = getattr(self, "handle", None)
        if handle is not None:
            LIBRARY.attn_context_destroy(handle)


_lock = threading.Lock()
_contexts: dict[tuple[int, str | None], Context] = {}
_threads_set = 0  # by set_num_threads; 0 = not set


def context(threads: int = 0, backend: str | None = None) -> Context:
    """The context of calls on so many threads; what set_num_threads said comes first. backend: the
    one that is asked for by name."""
    wanted = _threads_set or threads, backend
    found = _contexts.get(wanted)
    if found is None:
        with _lock:
            found = _contexts.get(wanted)
            if found is None:
                if len(_contexts) >= 16:  # each may keep scratch memory
                    _contexts.clear()
                found = _contexts[wanted] = Context(*wanted)
    return found


def set_num_threads(threads: int) -> None:
    """How many threads a call on host memory uses from now on, in this process.

    threads: 1 or more; 0 takes the default back: ATTN_NUM_THREADS, else all CPUs that the process
    may run on; with PyTorch tensors torch.get_num_threads().
    """
    global _threads_set
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 0:
        raise ValueError(
            f"set_num_threads: threads: found {threads!r}; accepted 0 (default) or more"
        )
    if threads:
        context_before = _threads_set
        _threads_set = threads
        try:
            context()
        except Exception:
            _threads_set = context_before
            raise
    _threads_set = threads


def get_num_threads() -> int:
    """How many threads a call on NumPy arrays uses."""
    return context().threads


def text_of(fill: Any) -> str:
    """The text that a C function writes into a buffer: fill(buffer, size, needed) -> code."""
    needed = ctypes.c_size_t()
    check(fill(None, 0, ctypes.byref(needed)))
    buffer = ctypes.create_string_buffer(needed.value)
    check(fill(buffer, needed.value, ctypes.byref(needed)))
    return buffer.value.decode()
