"""Signals during a call: Ctrl-C, alarms and every other handler of Python run while C computes.

A call leaves the GIL and keeps the main thread in C, where Python runs no signal handler. The
library asks `attn_arguments.should_stop` in the calling thread every 20 ms or so. The answer comes
from here: entering Python lets it run the handlers of signals that arrived. What a handler raises
ends the call and is raised by it; when none raises, the call goes on.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from typing import Any

from . import _abi

_main_thread = threading.main_thread().ident


def _after_fork() -> None:
    global _main_thread
    _main_thread = threading.get_ident()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def runs_handlers() -> bool:
    """Whether this thread is the one that runs signal handlers: only its calls are watched."""
    return threading.get_ident() == _main_thread


class Raised(BaseException):
    """Carries what a handler raised past `except` clauses that are not meant for it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class Watch:
    """The should_stop of one arguments structure. Serves one call at a time.

    raised: what a handler raised during the call, if one did; the caller of the call raises it.
    """

    __slots__ = ("raised", "should_stop")

    def __init__(self) -> None:
        self.raised: list[BaseException] = []
        answers = _answers(self.raised)
        next(answers)
        # A generator, not a function: Python runs handlers on the way into a function, before its
        # `try` begins. A generator goes on inside of its `try`.
        self.should_stop = _abi.attn_should_stop(answers.send)


def _answers(raised: list[BaseException]) -> Generator[int, Any, None]:
    """Answers 0 for as long as no signal handler raises, then 1; keeps what was raised."""
    try:
        while True:
            yield 0
    except GeneratorExit:
        return
    except BaseException as error:
        raised.append(error)
    yield 1
