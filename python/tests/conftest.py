"""Shared by the tests of the package: random numbers, and the option to run a part of the tests."""

from __future__ import annotations

import numpy as np
import pytest


def pytest_addoption(parser):
    parser.addoption(
        "--sample",
        type=int,
        default=1,
        metavar="N",
        help="of each test with parameters only every Nth set, on each device; tests without "
        "always run",
    )


def pytest_collection_modifyitems(config, items):
    every = config.getoption("--sample")
    if every < 2:
        return
    seen: dict[object, int] = {}
    kept, left_out = [], []
    for item in items:
        name = getattr(item, "originalname", item.name)
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        test = (item.path, name, parameters.get("device"))
        at = seen[test] = seen.get(test, -1) + 1
        (kept if at % every == 0 else left_out).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture
def rng():
    return np.random.default_rng(20240607)
