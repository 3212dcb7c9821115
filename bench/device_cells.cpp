// The cells for a GPU: the plain cells of the recorded peers (16384 tokens in total), each option
// at batch 4, 16 heads and length 4096, and decode.
#include "bench/cell_list.hpp"
#include "harness/values.hpp"

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
    c.problem.dtype_bias = harness::is_f8(dtype) ? DType::bf16 : dtype;
  };
  list.add("bias", shape, false, shape, bias);
  if (!backward) return;
  list.add("bias-gradient", shape, false, shape, [bias](Cell& c) {
    bias(c);
    c.problem.dbias = true;
  });
  list.add("deterministic", shape, true, shape, [](Cell& c) { c.problem.deterministic = true; });
}

// Batch and length of caches.
constexpr std::int64_t kCaches[][2] = {{1, 4096},  {1, 32768},  {1, 131072}, {16, 4096},
                                       {64, 4096}, {128, 1024}, {128, 8192}};

}  // namespace

void add_device_decode(DType dtype, std::vector<Cell>& out) {
  const auto add = [&](const char* name, const Shape& shape, auto change) {
    Cell cell = decode_cell(name, shape, dtype);
    change(cell);
    out.push_back(std::move(cell));
  };
  for (const std::int64_t dim : {128, 64}) {
    for (const std::int64_t heads_kv : {8, 32}) {
      if (dim == 64 && heads_kv == 32) continue;
      for (const auto& [batch, len] : kCaches) {
        add("contiguous", {batch, 32, heads_kv, len, dim}, [](Cell&) {});
      }
    }
  }
  const auto paged = [](std::int64_t size) {
    return [size](Cell& c) {
      c.problem.page_size = size;
      c.problem.lengths_kv = true;
    };
  };
  for (const Shape& shape : {Shape{1, 32, 8, 32768, 128}, Shape{64, 32, 8, 4096, 128}}) {
    add("paged1", shape, paged(1));
    add("paged16", shape, paged(16));
    add("paged64", shape, paged(64));
    add("paged256", shape, paged(256));
  }
  const Shape several{16, 32, 8, 4096, 128};
  add("four-queries", several, [](Cell& c) { c.problem.len_q = 4; });
  add("sixteen-queries", several, [](Cell& c) { c.problem.len_q = 16; });
  add("append", several, [](Cell& c) {
    c.problem.lengths_kv = true;
    c.problem.len_new = 1;
    c.lengths.assign(16, 4000);
  });
  add("alibi", several, [](Cell& c) { c.problem.alibi = true; });
  add("every-256-keys", several, [](Cell& c) { c.problem.split_keys = 256; });
  if (dtype == DType::f32) return;
  const auto of_type = [](DType type, std::int64_t page_size) {
    return [=](Cell& c) {
      c.problem.dtype_kv = type;
      c.problem.page_size = page_size;
      c.problem.lengths_kv = page_size > 0;
    };
  };
  for (const std::int64_t dim : {128, 64}) {
    for (const auto& [batch, len] : kCaches) {
      add("e4m3", {batch, 32, 8, len, dim}, of_type(DType::f8e4m3, 0));
    }
  }
  for (const Shape& shape : {Shape{1, 32, 8, 32768, 128}, Shape{64, 32, 8, 4096, 128}}) {
    add("e4m3-paged16", shape, of_type(DType::f8e4m3, 16));
    add("e5m2", shape, of_type(DType::f8e5m2, 0));
    add("int8", shape, of_type(DType::i8, 0));
    add("int8-rows", shape, [](Cell& c) {
      c.problem.dtype_kv = DType::i8;
      c.problem.descale_rows = true;
    });
    add("int8-pages16", shape, [](Cell& c) {
      c.problem.dtype_kv = DType::i8;
      c.problem.page_size = 16;
      c.problem.lengths_kv = true;
      c.problem.descale_rows = true;
    });
  }
}

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
