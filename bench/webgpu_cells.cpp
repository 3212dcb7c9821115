// The cells for WebGPU: plain cells of 16384 tokens, a long one that shows linear memory, a small
// model's layers, and decode in large batches.
#include "bench/cell_list.hpp"

namespace attn::bench {
namespace {

constexpr std::int64_t kLongestTokens = 16384;
constexpr Shape kLong{1, 1, 1, 65536, 64};

// All layers of a GPT-2 with grouped heads in one measurement.
constexpr Shape kModel{1, 12, 4, 512, 64};
constexpr std::int64_t kModelLayers = 12;

}  // namespace

void add_webgpu_plain(DType dtype, Pass pass, std::vector<Cell>& out) {
  for (const std::int64_t dim : {64, 128}) {
    for (const bool causal : {true, false}) {
      for (std::int64_t len = 1024; len <= kLongestTokens; len *= 2) {
        out.push_back(plain_cell({kLongestTokens / len, 32, 8, len, dim}, dtype, pass, causal));
      }
    }
  }
  out.push_back(plain_cell(kLong, dtype, pass, true));
  Cell& model = out.emplace_back(plain_cell(kModel, dtype, pass, true));
  model.layers = kModelLayers;
  model.name = "model/gpt2-12-layers-" + shape_name(model.problem) + tail(dtype, pass);
}

void add_webgpu_decode(DType dtype, std::vector<Cell>& out) {
  const auto paged = [&](const Shape& shape) {
    Cell& cell = out.emplace_back(decode_cell("paged16", shape, dtype));
    cell.problem.page_size = 16;
    cell.problem.lengths_kv = true;
  };
  out.push_back(decode_cell("contiguous", {1, 32, 8, 16384, 128}, dtype));
  for (const std::int64_t dim : {64, 128}) {
    const std::int64_t large = 256 * 64 / dim;  // 1 GiB of keys and 1 GiB of values in 16 bits
    for (const std::int64_t batch : {std::int64_t{16}, std::int64_t{64}, large}) {
      out.push_back(decode_cell("contiguous", {batch, 32, 8, 4096, dim}, dtype));
    }
    paged({64, 32, 8, 4096, dim});
    // A paged cache is one binding; devices limit bindings to less than 2 GiB.
    if (size_of(dtype) <= 2) paged({large, 32, 8, 4096, dim});
  }
  out.push_back(decode_cell("contiguous-mha", {16, 32, 32, 4096, 128}, dtype));
}

}  // namespace attn::bench
