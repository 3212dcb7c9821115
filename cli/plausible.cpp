// Implements plausible.hpp.
#include "cli/plausible.hpp"

#include <fmt/format.h>

#include <cstring>
#include <string>

namespace attn::cli {
namespace {

std::int64_t value_at(const TensorView& view, std::int64_t index) {
  std::int32_t value = 0;
  std::memcpy(&value,
              static_cast<const char*>(view.address()) +
                  index * view.strides[0] * static_cast<std::int64_t>(sizeof value),
              sizeof value);
  return value;
}

void check_each(const char* name, const TensorView& view, std::int64_t largest, const char* rows) {
  for (std::int64_t b = 0; view.rank == 1 && b < view.shape[0]; ++b) {
    const std::int64_t value = value_at(view, b);
    if (value >= 0 && value <= largest) continue;
    throw BadInput(fmt::format("{}: found {} for sequence {}; accepted 0 to {}, the {}", name,
                               value, b, largest, rows));
  }
}

void check_cumulative(const char* name, const TensorView& view, std::int64_t total) {
  std::int64_t before = 0;
  for (std::int64_t b = 0; view.rank == 1 && b < view.shape[0]; ++b) {
    const std::int64_t value = value_at(view, b);
    if (value < before || value > total) {
      throw BadInput(
          fmt::format("{}: found {} at {} after {}; accepted numbers that do not go "
                      "down, 0 to {}, the rows of the tensor",
                      name, value, b, before, total));
    }
    before = value;
  }
}

// Sizes of q and k under one interpretation of their shapes.
struct Reading {
  std::int64_t rows_q, rows_kv, heads_q, heads_kv;
  [[nodiscard]] bool divisible() const { return heads_kv > 0 && heads_q % heads_kv == 0; }
};

}  // namespace

void check_layout(const InputOptions& options, const Inputs& inputs) {
  if (options.layout_given) return;
  const Arguments& a = inputs.arguments;
  const std::string named = inputs.metadata("layout");
  if (!named.empty() && named != "bshd") {
    throw BadInput(fmt::format(
        "layout: the metadata of {} names {}; accepted --layout {}, or --layout bshd to read it as "
        "[batch, len, heads, dim] all the same",
        options.file, files::printable(named), named == "packed" ? "packed" : "bhsd"));
  }
  if (a.q.rank != 4 || a.k.rank != 4 || a.block_table.given()) return;
  const Reading as_bshd{a.q.shape[1], a.k.shape[1], a.q.shape[2], a.k.shape[2]};
  const Reading as_bhsd{a.q.shape[2], a.k.shape[2], a.q.shape[1], a.k.shape[1]};
  if (!as_bshd.divisible() && as_bhsd.divisible()) {
    throw BadInput(fmt::format(
        "heads_q is a multiple of heads_kv: found {} and {} in [batch, len, heads, dim]; accepted "
        "--layout bhsd if they are [batch, heads, len, dim] with {} and {} heads",
        as_bshd.heads_q, as_bshd.heads_kv, as_bhsd.heads_q, as_bhsd.heads_kv));
  }
  if (as_bshd.heads_q > as_bshd.rows_q && as_bshd.heads_kv > as_bshd.rows_kv &&
      as_bhsd.divisible()) {
    throw BadInput(fmt::format(
        "layout: found {} heads and {} rows in q, {} and {} in k, as [batch, len, heads, dim]; "
        "accepted --layout bhsd if they are [batch, heads, len, dim], --layout bshd if not",
        as_bshd.heads_q, as_bshd.rows_q, as_bshd.heads_kv, as_bshd.rows_kv));
  }
}

void check_lengths(const Problem& problem, const Arguments& arguments) {
  const Arguments& a = arguments;
  check_each("len_q", a.len_q, problem.len_q, "rows of q");
  check_each("len_kv", a.len_kv, problem.len_kv,
             problem.page_size > 0 ? "rows of a sequence's pages" : "rows of k");
  check_cumulative("cu_len_q", a.cu_len_q, problem.total_q);
  check_cumulative("cu_len_kv", a.cu_len_kv, problem.total_kv);
}

}  // namespace attn::cli
