"""Public functions that torch.compile calls as they are: messages are no part of a graph."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def eager(function: F) -> F:
    """The function, called outside of torch.compile's graphs.

    torch.compiler.disable would do, but imports torch._dynamo, which takes seconds: it is used only
    after something else has imported that.
    """
    disabled: list[Callable[..., Any]] = []

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        dynamo = sys.modules.get("torch._dynamo")
        if dynamo is None or not hasattr(dynamo, "disable"):
            return function(*arguments, **options)
        if not disabled:
            disabled.append(dynamo.disable(function))
        return disabled[0](*arguments, **options)

    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    return cast(F, call)
