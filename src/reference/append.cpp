// The append of decode: see append.hpp.
#include "reference/append.hpp"

#include "reference/elements.hpp"
#include "reference/entry.hpp"
#include "reference/rotary.hpp"

namespace attn::reference {

namespace {

void write_row(const TensorView& view, std::int64_t position, const Row& row) {
  for (const double value : row) write(view, position++, value);
}

}  // namespace

void append_rows(const Problem& problem, const Arguments& arguments) {
  const TensorView& k_new = arguments.k_new;
  const TensorView& v_new = arguments.v_new;
  const Rotation rotation = rotation_of(problem, arguments);
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const Entry entry = entry_of(problem, arguments, b);
    for (std::int64_t t = 0; t < problem.len_new; ++t) {
      const std::int64_t j = entry.len_kv_before + t;
      if (j >= entry.len_kv) continue;
      for (std::int64_t g = 0; g < problem.heads_kv; ++g) {
        const auto k_at = key_row(problem, arguments, arguments.k, entry, j, g);
        const auto v_at = key_row(problem, arguments, arguments.v, entry, j, g);
        if (!k_at || !v_at) continue;
        Row k = read_row(k_new, position_of(k_new, {b, t, g}), problem.dim_qk);
        const Row v = read_row(v_new, position_of(v_new, {b, t, g}), problem.dim_vo);
        rotate(rotation, new_key_position(problem, arguments, entry, t), false, k.data());
        write_row(arguments.k, *k_at, k);
        write_row(arguments.v, *v_at, v);
      }
    }
  }
}

}  // namespace attn::reference
