"""CUDA graphs and streams:

- a capture compiles nothing, and a replay sees changed inputs
- a call waits for earlier work on its stream
- the library launches some calls by graphs of its own; calls that are queued at the same time must
  still each use their own inputs
"""

import threading

import libattn
import libattn.torch
import pytest
import torch
from against_float64 import compare, expected, found, inputs

DTYPE = torch.bfloat16
DELAY_CYCLES = 200_000_000  # about a tenth of a second


def _refill(x, seed):
    """New values in the same memory."""
    generator = torch.Generator("cuda").manual_seed(seed)
    for t in (x.q, x.k, x.v, x.dout, x.dlse):
        t.copy_(torch.randn(t.shape, generator=generator, device="cuda"))


def _replay_with_changed_inputs(graph, got, x, names=None):
    """Replays with two sets of inputs and checks the results of these names (default: all)."""
    for seed in (1, 2):
        _refill(x, seed)
        graph.replay()
        want = expected(x)
        compare(got, {name: want[name] for name in names or want}, DTYPE)


def _refilled(count):
    """`count` inputs of one problem, each with its own values, and their expected results."""
    cases = [inputs("deterministic", "cuda", DTYPE) for _ in range(count)]
    for seed, x in enumerate(cases):
        _refill(x, seed)
    return cases, [expected(x) for x in cases]


def _in_threads(work, cases, others):
    """Runs work(case, other) for all pairs at once, each in a separate thread."""
    errors = []

    def caught(*pair):
        try:
            work(*pair)
        except Exception as error:
            errors.append(repr(error))

    torch.cuda.synchronize()
    pairs = zip(cases, others, strict=True)
    threads = [threading.Thread(target=caught, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def _captured(call):
    """(graph, result): the call runs once, then is captured; the result is that of the capture."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    return graph, result


@pytest.mark.parametrize("name", ("plain", "causal", "documents", "lengths", "bias", "dropout"))
def test_forward_replays_with_changed_inputs(name):
    x = inputs(name, "cuda", DTYPE)
    graph, (o, lse) = _captured(
        lambda: libattn.torch.attention(x.q, x.k, x.v, return_lse=True, **x.options)
    )
    _replay_with_changed_inputs(graph, {"o": o, "lse": lse}, x, ("o", "lse"))


# Dims choose the backward kernel: up to 128, up to 256, and clusters above.
@pytest.mark.parametrize(
    ("name", "dim"),
    [(n, 64) for n in ("causal", "documents", "softcap", "sinks", "dropout", "deterministic")]
    + [(n, 128) for n in ("documents", "dropout")]
    + [(n, dim) for n in ("plain", "causal", "deterministic") for dim in (256, 512)],
)
def test_forward_and_backward_replay_with_changed_inputs(name, dim):
    x = inputs(name, "cuda", DTYPE, dims=(dim, dim))
    graph, got = _captured(lambda: found(x))
    _replay_with_changed_inputs(graph, got, x)


def test_lengths_on_the_device_may_change_between_replays():
    x = inputs("lengths", "cuda", DTYPE)
    graph, got = _captured(lambda: found(x))
    for lens in ([200, 61], [1, 0], [130, 200]):
        x.options["len_q"].copy_(torch.tensor(lens))
        graph.replay()
        compare(got, expected(x), DTYPE)


def test_replays_with_a_seed_on_the_device_draw_anew():
    x = inputs("plain", "cuda", DTYPE)
    seed, offset = (torch.zeros(1, dtype=torch.int64, device="cuda") for _ in range(2))
    on_device = dict(x.options, dropout_p=0.25, seed=seed, offset=offset)
    x.options = on_device
    graph, got = _captured(lambda: found(x))
    for numbers in ((11, 0), (11, 2**33 + 3), (2**40 + 1, 0)):
        seed.fill_(numbers[0])
        offset.fill_(numbers[1])
        graph.replay()
        x.options = dict(on_device, seed=numbers[0], offset=numbers[1])
        compare(got, expected(x), DTYPE)


def test_replays_without_a_seed_draw_anew():
    """The seed comes from PyTorch's generator, and each replay of a graph advances it."""
    x = inputs("plain", "cuda", DTYPE)
    graph, o = _captured(lambda: libattn.torch.attention(x.q, x.k, x.v, dropout_p=0.5))
    graph.replay()
    first = o.clone()
    graph.replay()
    assert not torch.equal(first, o)


def test_a_capture_that_would_compile_is_refused():
    """Nothing is compiled or loaded while a stream captures; the error says what to do."""
    q = torch.randn(1, 40, 1, 248, dtype=torch.float16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    message = ""
    with torch.cuda.graph(graph):
        o = torch.zeros_like(q)
        try:
            o = libattn.torch.attention(q, q, q, window=(17, 5), softcap=3.0, dropout_p=0.5, seed=1)
        except (libattn.Error, ValueError) as error:
            message = str(error)
    if not message:  # the kernel was loaded before, so the result must be right
        graph.replay()
        want = libattn.torch.attention(q, q, q, window=(17, 5), softcap=3.0, dropout_p=0.5, seed=1)
        assert torch.equal(o, want)
    else:
        assert "captur" in message


def _on_a_side_stream(call, fill):
    """A call on a stream that writes its inputs only after a delay."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(DELAY_CYCLES)
        fill()
        result = call()
        done = torch.cuda.Event()
        done.record()
    assert not done.query(), "the call waited for the device"
    side.synchronize()
    return result


def test_a_side_stream_behind_a_delay():
    x = inputs("causal", "cuda", DTYPE)
    want = expected(x)
    good = [t.clone() for t in (x.q, x.k, x.v, x.dout)]
    found(x)  # compiles and loads the kernels
    for t in (x.q, x.k, x.v, x.dout):
        t.zero_()
    torch.cuda.synchronize()

    def fill():
        for t, values in zip((x.q, x.k, x.v, x.dout), good, strict=True):
            t.copy_(values)

    compare(_on_a_side_stream(lambda: found(x), fill), want, DTYPE)


def test_a_stream_given_by_address():
    """The library allocates its scratch memory on that stream; the caller passes the outputs."""
    x = inputs("causal", "cuda", DTYPE)
    want = expected(x)
    o, lse = libattn.attention(x.q, x.k, x.v, causal=True, return_lse=True)
    made = {n: torch.empty_like(t) for n, t in (("dq", x.q), ("dk", x.k), ("dv", x.v))}
    good = x.q.clone()
    x.q.zero_()
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(DELAY_CYCLES)
        x.q.copy_(good)
    options = {"causal": True, "stream": side.cuda_stream}
    libattn.attention(x.q, x.k, x.v, out=o, lse_out=lse, **options)
    libattn.attention_backward(
        x.dout, x.q, x.k, x.v, o, lse, dlse=x.dlse, want=("dq",), **made, **options
    )
    side.synchronize()
    compare({"o": o, "lse": lse, **made}, want, DTYPE)


def test_threads_on_streams_of_their_own():
    names = ("causal", "documents", "window", "sinks")
    cases = [inputs(name, "cuda", DTYPE) for name in names]

    def work(x, want):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                got = found(x)
            torch.cuda.current_stream().synchronize()
        compare(got, want, DTYPE)

    _in_threads(work, cases, [expected(x) for x in cases])


def _same(results, want):
    """All results are right and have the same bits as the first."""
    compare(results[0], want, DTYPE)
    for other in results[1:]:
        for name, value in other.items():
            assert torch.equal(value, results[0][name]), name


def test_calls_that_wait_on_two_streams_have_their_own_inputs():
    """A delay comes first on both streams, so that no call has begun when the last is queued."""
    cases, wants = _refilled(4)
    found(cases[0])  # compiles and loads the kernels
    streams = [torch.cuda.Stream() for _ in range(2)]
    results = [[] for _ in cases]
    torch.cuda.synchronize()
    for stream in streams:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(DELAY_CYCLES)
    for _ in range(10):
        for at, x in enumerate(cases):
            with torch.cuda.stream(streams[at % 2]):
                results[at].append(found(x))
    torch.cuda.synchronize()
    for of_one, want in zip(results, wants, strict=True):
        _same(of_one, want)


def test_threads_that_share_a_stream():
    cases, wants = _refilled(4)
    found(cases[0])
    stream = torch.cuda.Stream()
    results = [[] for _ in cases]

    def work(x, into):
        with torch.cuda.stream(stream):
            for _ in range(20):
                into.append(found(x))

    _in_threads(work, cases, results)
    torch.cuda.synchronize()
    for of_one, want in zip(results, wants, strict=True):
        _same(of_one, want)


def test_a_capture_on_a_stream_of_earlier_and_later_calls():
    x = inputs("deterministic", "cuda", DTYPE)
    want = expected(x)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        results = [found(x) for _ in range(3)]
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        got = found(x)
    with torch.cuda.stream(side):
        results += [found(x) for _ in range(2)]
    torch.cuda.synchronize()
    _same(results, want)
    _replay_with_changed_inputs(graph, got, x)


def test_calls_on_another_stream_while_one_captures():
    """The library builds its own graph for that stream; this must not break the capture."""
    x = inputs("causal", "cuda", DTYPE)
    o, lse = libattn.attention(x.q, x.k, x.v, causal=True, return_lse=True)
    compare({"o": o, "lse": lse}, {n: expected(x)[n] for n in ("o", "lse")}, DTYPE)
    made = {"out": torch.zeros_like(o), "lse_out": torch.zeros_like(lse)}
    other = torch.cuda.Stream()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = libattn.torch.attention(x.q, x.k, x.v, causal=True)
        for _ in range(4):
            libattn.attention(x.q, x.k, x.v, causal=True, stream=other.cuda_stream, **made)
    other.synchronize()
    assert torch.equal(made["out"], o)
    assert torch.equal(made["lse_out"], lse)
    graph.replay()
    assert torch.equal(captured, o)
