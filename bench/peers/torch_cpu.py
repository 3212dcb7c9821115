"""PyTorch's attention on the CPU as a peer: reads requests from stdin, one JSON object per line,
and answers each with one line on stdout. bench/peer.cpp drives it.

    {"do": "hello"}                                    -> {"version": "2.6.0", "threads": 2}
    {"do": "load", "dtype": "bf16", "batch": 1, "heads_q": 12, "heads_kv": 12, "len": 512,
     "dim": 64, "causal": true, "backward": false}     -> {"ok": true}
    {"do": "sample", "budget": 0.5, "least": 3}        -> {"seconds": [0.0123, ...]}
    {"do": "gemm", "size": 2048, "budget": 0.3, "least": 3}   -> the same, of f32 matrix products

Usage: torch_cpu.py THREADS
"""

import json
import sys
import time

import torch

DTYPES = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f64": torch.float64,
}


def load(request):
    """Returns a function for one call: forward, or backward through a retained graph."""
    torch.manual_seed(1)
    dtype = DTYPES[request["dtype"]]

    def tensor(heads):
        # Heads before rows in memory: the usual layout of calls to PyTorch's flash kernel.
        return torch.randn(
            request["batch"], heads, request["len"], request["dim"], dtype=dtype
        ).requires_grad_(request["backward"])

    q, k, v = (tensor(request[h]) for h in ("heads_q", "heads_kv", "heads_kv"))
    gqa = {"enable_gqa": True} if request["heads_q"] != request["heads_kv"] else {}

    def forward():
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=request["causal"], **gqa
        )

    if not request["backward"]:

        def call():
            with torch.no_grad():
                forward()

        return call
    o = forward()
    dout = torch.randn_like(o)
    return lambda: torch.autograd.grad(o, (q, k, v), dout, retain_graph=True)


def sample(call, budget, least):
    seconds = []
    while len(seconds) < least or sum(seconds) < budget:
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds


def gemm(size):
    """Returns a function for one product of square matrices in f32."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    return lambda: torch.mm(a, b)


def main():
    torch.set_num_threads(int(sys.argv[1]))
    call = None
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "hello":
            answer = {"version": torch.__version__, "threads": torch.get_num_threads()}
        elif request["do"] == "load":
            try:
                call = load(request)
                call()
                answer = {"ok": True}
            except (RuntimeError, TypeError) as error:
                answer = {"ok": False, "error": str(error)}
        elif request["do"] == "gemm":
            product = gemm(request["size"])
            product()
            answer = {"seconds": sample(product, request["budget"], request["least"])}
        else:
            answer = {"seconds": sample(call, request["budget"], request["least"])}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
