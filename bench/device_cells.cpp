// The cells for a GPU: the plain cells of the recorded peers (16384 tokens in total), and each
// option at batch 4, 16 heads and length 4096.
#include "bench/cell_list.hpp"

namespace attn::bench {
namespace {

constexpr std::int64_t kTokens = 16384;
constexpr std::int64_t kDocuments = 16;

struct Heads {
  std::int64_t dim, heads_q, heads_kv;
};
constexpr Heads kPlainHeads[] = {{64, 32, 32}, {128, 16, 16}, {128, 32, 8}, {256, 8, 8}};

void add_options_of(std::int64_t dim, DType dtype, Pass pass, std::vector<Cell>& out) {
  OptionList list(dtype, pass, "-d" + std::to_string(dim), out);
  const bool backward = pass == Pass::backward;
  const Shape shape{4, 16, 16, 4096, dim};
  // Plain cells of the same work: documents as sequences; for windows, about as many pairs.
  const Shape documents{4 * kDocuments, 16, 16, 4096 / kDocuments, dim};
  const Shape near{32, 16, 16, 512, dim};
  const Shape far{8, 16, 16, 2048, dim};
  for (const bool causal : {true, false}) out.push_back(plain_cell(shape, dtype, pass, causal));
  for (const Shape& like : {documents, near, far}) {
    out.push_back(plain_cell(like, dtype, pass, true));
  }
  list.add("documents16", shape, true, documents, [](Cell& c) {
    c.problem.kv_begin = true;
    c.documents = kDocuments;
  });
  list.add("window256", shape, true, near, [](Cell& c) { c.problem.window_left = 256; });
  list.add("window1024", shape, true, far, [](Cell& c) { c.problem.window_left = 1024; });
  list.add("softcap", shape, true, shape, [](Cell& c) {
    c.problem.softcap = true;
    c.softcap = 30.0;
  });
  list.add("alibi", shape, true, shape, [](Cell& c) { c.problem.alibi = true; });
  list.add("sinks", shape, true, shape, [backward](Cell& c) {
    c.problem.sink = true;
    c.problem.dsink = backward;
  });
  list.add("dropout", shape, false, shape, [](Cell& c) {
    c.problem.dropout = true;
    c.dropout_p = 0.1;
  });
  list.add("mask", shape, false, shape, [](Cell& c) {
    c.problem.mask = {.given = true, .batch = false, .head = false, .q = true, .kv = true};
  });
  const auto bias = [dtype](Cell& c) {
    c.problem.bias = {.given = true, .batch = false, .head = true, .q = true, .kv = true};
    c.problem.dtype_bias = dtype;
  };
  list.add("bias", shape, false, shape, bias);
  if (!backward) return;
  list.add("bias-gradient", shape, false, shape, [bias](Cell& c) {
    bias(c);
    c.problem.dbias = true;
  });
  list.add("deterministic", shape, true, shape, [](Cell& c) { c.problem.deterministic = true; });
}

}  // namespace

void add_device_plain(DType dtype, Pass pass, std::vector<Cell>& out) {
  for (const Heads& heads : kPlainHeads) {
    for (const bool causal : {true, false}) {
      for (std::int64_t len = 512; len <= kTokens; len *= 2) {
        const Shape shape{kTokens / len, heads.heads_q, heads.heads_kv, len, heads.dim};
        out.push_back(plain_cell(shape, dtype, pass, causal));
      }
    }
  }
}

void add_device_options(DType dtype, Pass pass, std::vector<Cell>& out) {
  for (const std::int64_t dim : {64, 128}) add_options_of(dim, dtype, pass, out);
}

}  // namespace attn::bench
