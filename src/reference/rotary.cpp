// Rotary embedding of one row: see rotary.hpp.
#include "reference/rotary.hpp"

#include <algorithm>
#include <cmath>

#include "reference/elements.hpp"

namespace attn::reference {

Rotation rotation_of(const Problem& problem, const Arguments& arguments) {
  Rotation rotation;
  rotation.style = problem.rope;
  rotation.rot_dim = problem.rotary_dim();
  rotation.base = arguments.rope_base;
  if (problem.rope_tables) {
    rotation.cos = arguments.rope_cos;
    rotation.sin = arguments.rope_sin;
  }
  return rotation;
}

void rotate(const Rotation& rotation, Wide position, bool inverse, double* row) {
  if (rotation.style == Rope::none) return;
  const std::int64_t pairs = rotation.rot_dim / 2;
  for (std::int64_t m = 0; m < pairs; ++m) {
    double cosine = 0.0;
    double sine = 0.0;
    if (rotation.cos.given()) {
      const auto last = Wide{rotation.cos.shape[0] - 1};
      const auto line = static_cast<std::int64_t>(std::min(std::max(position, Wide{0}), last));
      cosine = read(rotation.cos, position_of(rotation.cos, {line, m}));
      sine = read(rotation.sin, position_of(rotation.sin, {line, m}));
    } else {
      const double exponent = -2.0 * static_cast<double>(m) / static_cast<double>(rotation.rot_dim);
      const double angle = static_cast<double>(position) * std::pow(rotation.base, exponent);
      cosine = std::cos(angle);
      sine = std::sin(angle);
    }
    if (inverse) sine = -sine;

    const bool interleaved = rotation.style == Rope::interleaved;
    double& first = row[interleaved ? 2 * m : m];
    double& second = row[interleaved ? 2 * m + 1 : m + pairs];
    const double x = first;
    const double y = second;
    first = x * cosine - y * sine;
    second = x * sine + y * cosine;
  }
}

Wide query_position(const Problem& problem, const Arguments& arguments, const Entry& entry,
                    std::int64_t i) {
  const TensorView& given = arguments.rope_pos_q;
  if (problem.rope_positions) return read_integer(given, query_at(problem, given, entry, i));
  return Wide{i} + entry.diag + arguments.rope_pos_offset;
}

Wide key_position(const Problem& problem, const Arguments& arguments, const Entry& entry,
                  std::int64_t j) {
  const TensorView& given = arguments.rope_pos_k;
  if (problem.rope_positions) return read_integer(given, key_at(problem, given, entry, j));
  return Wide{j} + arguments.rope_pos_offset;
}

Wide new_key_position(const Problem& problem, const Arguments& arguments, const Entry& entry,
                      std::int64_t t) {
  const TensorView& given = arguments.rope_pos_k;
  if (problem.rope_positions) return read_integer(given, key_at(problem, given, entry, t));
  return Wide{entry.len_kv_before} + t + arguments.rope_pos_offset;
}

}  // namespace attn::reference
