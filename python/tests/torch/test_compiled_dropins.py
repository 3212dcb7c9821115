"""The drop-ins under torch.compile: one graph, and the same results as without."""

import pytest

torch = pytest.importorskip("torch", minversion="2.4")

import libattn.torch as at  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def compiled(function, dynamic):
    return torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=dynamic)


def same(one, two):
    return all(torch.allclose(a, b, atol=1e-5) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("kind", ["plain", "causal", "bool", "float", "3-d", "5-d"])
def test_sdpa(kind, dynamic):
    def function(q, k, v, mask, causal):
        out = at.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)
        return out, *torch.autograd.grad(out.sin().sum(), (q, k, v))

    def forward(q, k, v, mask, causal):
        return at.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)

    run = compiled(forward, dynamic)
    for n in (5, 9):
        shape = {"3-d": (4, n, 8), "5-d": (2, 3, 4, n, 8)}.get(kind, (2, 4, n, 8))
        inputs = [torch.randn(shape, requires_grad=True) for _ in range(3)]
        mask = {"bool": torch.rand(2, 1, n, n) < 0.7, "float": torch.randn(n, n)}.get(kind)
        out = run(*inputs, mask, kind == "causal")
        gradients = torch.autograd.grad(out.sin().sum(), inputs)
        assert same((out, *gradients), function(*inputs, mask, kind == "causal"))


def test_replaced_sdpa():
    def function(q):
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)

    q = torch.randn(2, 4, 6, 8)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    with at.replace_sdpa():
        out = torch.compile(function, fullgraph=True, backend=backend)(q)
    targets = [str(node.target) for node in graphs[0].graph.nodes]
    assert any("libattn" in target for target in targets)
    assert torch.allclose(out, function(q), atol=1e-5)


@pytest.mark.parametrize("dynamic", [False, True])
def test_flash(dynamic):
    def function(q, k, v, slopes):
        return at.flash_attn_func(q, k, v, 0.0, None, True, (3, -1), 2.0, slopes, False, True)[:2]

    run = compiled(function, dynamic)
    for n in (5, 7):
        inputs = [torch.randn(2, n, 4, 8, requires_grad=True) for _ in range(3)]
        slopes = torch.rand(4)
        assert same(run(*inputs, slopes), function(*inputs, slopes))


@pytest.mark.parametrize("dynamic", [False, True])
def test_cache(device, dynamic):
    def function(q, k_cache, v_cache, new, lengths, cos, sin, index):
        return at.flash_attn_with_kvcache(
            q,
            k_cache,
            v_cache,
            new,
            new,
            cos,
            sin,
            lengths,
            cache_batch_idx=index,
            cache_leftpad=index,
            causal=True,
        )

    run = compiled(function, dynamic)
    for n in (1, 3):
        caches = [torch.randn(3, 16, 2, 8, device=device) for _ in range(2)]
        copies = [cache.clone() for cache in caches]
        q, new = (torch.randn(2, n, 2, 8, device=device) for _ in range(2))
        lengths = torch.tensor([4, 6], dtype=torch.int32, device=device)
        index = torch.tensor([2, 0], dtype=torch.int32, device=device)
        cos, sin = (torch.rand(16, 4, device=device) for _ in range(2))
        rest = (new, lengths, cos, sin, index)
        out = run(q, *caches, *rest)
        assert same((out, *caches), (function(q, *copies, *rest), *copies))


@pytest.mark.parametrize("paged", [False, True])
def test_packed(paged):
    def function(q, k, v, lengths, table):
        with torch.no_grad():
            return at.flash_attn_varlen_func(
                q, k, v, lengths, lengths, 5, 5, causal=True, block_table=table
            )

    q, pages = torch.randn(9, 2, 8), torch.randn(4, 3, 2, 8)
    lengths = torch.tensor([0, 5, 9], dtype=torch.int32)
    table = torch.tensor([[0, 3], [2, 1]], dtype=torch.int32) if paged else None
    inputs = (q, pages, pages) if paged else (q, q, q)
    out = compiled(function, False)(*inputs, lengths, table)
    assert torch.allclose(out, function(*inputs, lengths, table), atol=1e-5)
