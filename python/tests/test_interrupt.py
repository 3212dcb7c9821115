"""Signals during a call: handlers run while C code computes, and their exceptions end it soon."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time

import libattn
import numpy as np
import pytest

LONG = 1 << 18  # queries and keys of a call that would take minutes


@pytest.fixture
def long_call():
    """q, k and v of a call that only a signal ends. Loads the library first, so that measured times
    do not include loading."""
    small_call_works()
    return [np.full((1, LONG, 1, 64), 0.1, np.float32) for _ in range(3)]


@pytest.fixture
def alarm():
    """Sets a handler of SIGALRM, and takes it and the timer back after the test."""
    before = signal.getsignal(signal.SIGALRM)

    def set_alarm(handler, seconds, interval=0.0):
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, seconds, interval)

    yield set_alarm
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def small_call_works():
    q = np.ones((1, 3, 2, 8), np.float32)
    np.testing.assert_allclose(libattn.attention(q, q, q), q, rtol=1e-6)


def slack():
    """The longest accepted seconds from a signal to its exception; more on a busy machine."""
    return 0.3 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class Alarmed(ValueError):
    """A kind of error that the library raises too: a handler's must pass through unchanged."""


def test_alarm_raises_during_a_call(long_call, alarm):
    def handler(signum, frame):
        raise Alarmed("of the handler")

    begin = time.perf_counter()
    alarm(handler, 0.2)
    with pytest.raises(Alarmed) as caught:
        libattn.attention(*long_call)
    assert time.perf_counter() - begin < 0.2 + slack()
    assert caught.value.args == ("of the handler",)
    assert caught.value.__cause__ is None
    small_call_works()


# A handler may also run in the Python part of a call, which names the function in the library's own
# errors.
def test_an_error_of_a_handler_keeps_its_type_before_the_computation(monkeypatch):
    from libattn import _calls

    def raises(*arguments):
        raise Alarmed("of the handler")

    monkeypatch.setattr(_calls, "_key", raises)
    q = np.ones((1, 3, 2, 8), np.float32)
    with pytest.raises(Alarmed) as caught:
        libattn.attention(q, q, q)
    assert caught.value.args == ("of the handler",)


def test_alarm_raises_during_a_backward(long_call, alarm):
    def handler(signum, frame):
        raise Alarmed

    q, k, v = long_call
    lse = np.zeros((1, 1, LONG), np.float32)
    begin = time.perf_counter()
    alarm(handler, 0.2)
    with pytest.raises(Alarmed):
        libattn.attention_backward(q, q, k, v, q, lse)
    assert time.perf_counter() - begin < 0.2 + slack()
    small_call_works()


def test_ctrl_c(long_call):
    # A shell's background jobs ignore SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    begin = time.perf_counter()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        libattn.attention(*long_call)
    assert time.perf_counter() - begin < 0.2 + slack()
    timer.join()
    signal.signal(signal.SIGINT, before)
    small_call_works()


# A handler that raises nothing runs again and again, on time, and the result is right.
def test_handlers_run_and_the_call_goes_on(alarm):
    length = 1 << 12
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, length, 4, 64), np.float32) for _ in range(3))
    expected = libattn.attention(q, k, v)
    ran = []
    alarm(lambda signum, frame: ran.append(time.perf_counter()), 0.01, 0.01)
    begin = time.perf_counter()
    while time.perf_counter() - begin < 0.5:
        before = len(ran)
        start = time.perf_counter()
        o = libattn.attention(q, k, v)
        if time.perf_counter() - start > 0.2:
            assert len(ran) > before + 1
        np.testing.assert_array_equal(o, expected)
    assert ran


# A handler may call the library itself, even for the same kind of call.
def test_a_handler_calls_the_library(long_call, alarm):
    def handler(signum, frame):
        small_call_works()
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        signal.signal(signal.SIGALRM, raises)

        q = long_call[0]
        with pytest.raises(Alarmed):
            libattn.attention(q, q, q)
        raise KeyError("outer")

    def raises(signum, frame):
        raise Alarmed

    alarm(handler, 0.1)
    with pytest.raises(KeyError, match="outer"):
        libattn.attention(*long_call)
    small_call_works()


# Handlers run in the main thread: a call of another one goes on to its end.
def test_a_call_of_another_thread_is_left_alone(long_call, alarm):
    length = 1 << 12
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, length, 4, 64), np.float32) for _ in range(3))
    expected = libattn.attention(q, k, v)
    found = []
    thread = threading.Thread(
        target=lambda: found.extend(libattn.attention(q, k, v) for _ in range(3))
    )

    def handler(signum, frame):
        raise Alarmed

    thread.start()
    alarm(handler, 0.1)
    with pytest.raises(Alarmed):
        libattn.attention(*long_call)
    thread.join()
    assert len(found) == 3
    for o in found:
        np.testing.assert_array_equal(o, expected)


def test_kept_structures_are_freed_quietly(recwarn):
    from libattn import _interrupt

    watch = _interrupt.Watch()
    assert watch.should_stop(None) == 0
    assert watch.should_stop(None) == 0
    assert not watch.raised
    del watch
    gc.collect()
    assert not recwarn.list


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_is_interrupted_too(long_call):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            libattn.attention(*long_call)
        except KeyboardInterrupt:
            status = 0
        finally:
            os._exit(status)
    begin = time.perf_counter()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert time.perf_counter() - begin < 10
