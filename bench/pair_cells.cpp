// The cells of a pair bias, as in AlphaFold's triangle attention: n sequences of length n share a
// bias [1, h, n, n]. The gradient of the bias is the sum over the sequences.
#include "bench/cell_list.hpp"

namespace attn::bench {
namespace {

constexpr std::int64_t kHeads = 4;
constexpr std::int64_t kLengths[] = {128, 256, 384, 512, 768, 1024, 1536};
constexpr std::int64_t kVariantLength = 512;
constexpr std::int64_t kMostOnHost = 256;

}  // namespace

void add_pair(Device device, DType dtype, Pass pass, std::vector<Cell>& out) {
  const bool backward = pass == Pass::backward;
  const auto add = [&](const char* variant, std::int64_t len, std::int64_t dim, auto change) {
    Cell cell;
    cell.suite = "pair";
    cell.pass = pass;
    cell.option = variant;
    Problem& p = cell.problem = problem_of({len, kHeads, kHeads, len, dim}, dtype, false);
    p.bias = {.given = true, .batch = false, .head = true, .q = true, .kv = true};
    p.dtype_bias = dtype;
    p.dbias = backward;
    change(p);
    cell.name = std::string("pair/") + variant + "-n" + std::to_string(len) + "-d" +
                std::to_string(dim) + tail(dtype, pass);
    out.push_back(std::move(cell));
  };
  for (const std::int64_t dim : {32, 16}) {
    for (const std::int64_t len : kLengths) {
      if (device == Device::host && len > kMostOnHost) continue;
      add("bias", len, dim, [](Problem&) {});
    }
  }
  const std::int64_t len = device == Device::host ? kMostOnHost : kVariantLength;
  add("mask", len, 32, [](Problem& p) {
    p.mask = {.given = true, .batch = true, .head = false, .q = false, .kv = true};
  });
  add("groups", len, 32, [](Problem& p) {
    p.bias.batch = true;
    p.bias.per_entry = p.batch / 2;
  });
  add("bias", len, 64, [](Problem&) {});
  if (!backward) return;
  add("no-gradient", len, 32, [](Problem& p) { p.dbias = false; });
  add("deterministic", len, 32, [](Problem& p) { p.deterministic = true; });
}

}  // namespace attn::bench
