// The rotary embedding as an operation of its own (docs/semantics.md, "Rotary embedding").
#include <algorithm>

#include "reference/elements.hpp"
#include "reference/needs.hpp"
#include "reference/reference.hpp"
#include "reference/rotary.hpp"

namespace attn::reference {

namespace {

// The row's index from the start of its sequence. Packed rows outside all sequences count from the
// start of the tensor.
std::int64_t local_row(const RopeArguments& a, std::int64_t row) {
  if (!a.cu_len.given()) return row;
  const std::int64_t total = a.x.shape[0];
  for (std::int64_t b = 0; b + 1 < a.cu_len.shape[0]; ++b) {
    const std::int64_t begin = read_integer(a.cu_len, position_of(a.cu_len, {b}));
    const std::int64_t end = read_integer(a.cu_len, position_of(a.cu_len, {b + 1}));
    const std::int64_t first = std::min(std::max<std::int64_t>(begin, 0), total);
    if (first <= row && row < end) return row - first;
  }
  return row;
}

Wide position_of_row(const RopeArguments& a, std::int64_t b, std::int64_t row) {
  const TensorView& given = a.positions;
  if (!given.given()) return Wide{local_row(a, row)} + a.pos_offset;
  if (given.rank == 1) return read_integer(given, position_of(given, {row}));
  return read_integer(given, position_of(given, {given.shape[0] == 1 ? 0 : b, row}));
}

}  // namespace

std::string rope(const RopeArguments& a) {
  const bool padded = a.x.rank == 4;
  std::string found = check("reference rope", {{"x", a.x, padded ? 4 : 3},
                                               {"out", a.out, a.x.rank},
                                               {"positions", a.positions, padded ? 2 : 1, false},
                                               {"cu_len", a.cu_len, 1, false},
                                               {"cos", a.cos, 2, a.sin.given()},
                                               {"sin", a.sin, 2, a.cos.given()}});
  if (!found.empty()) return found;
  const std::int64_t dim = a.x.shape[padded ? 3 : 2];
  const std::int64_t rot_dim = a.rot_dim == 0 ? dim : a.rot_dim;
  if (a.style == Rope::none) return "reference rope: style is none";
  if (rot_dim < 0 || rot_dim % 2 != 0 || rot_dim > dim) {
    return "reference rope: rot_dim must be even and at most dim";
  }
  if (a.cos.given() && (a.cos.shape[0] < 1 || a.sin.shape[0] < a.cos.shape[0] ||
                        a.cos.shape[1] < rot_dim / 2 || a.sin.shape[1] < rot_dim / 2)) {
    return "reference rope: cos and sin must be [positions >= 1, rot_dim / 2]";
  }
  const Rotation rotation{a.style, rot_dim, a.base, a.cos, a.sin};
  const std::int64_t batch = padded ? a.x.shape[0] : 1;
  const std::int64_t rows = a.x.shape[padded ? 1 : 0];
  const std::int64_t heads = a.x.shape[padded ? 2 : 1];
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t i = 0; i < rows; ++i) {
      const Wide position = position_of_row(a, b, i);
      for (std::int64_t h = 0; h < heads; ++h) {
        const auto start = [&](const TensorView& view) {
          return padded ? position_of(view, {b, i, h}) : position_of(view, {i, h});
        };
        Row row = read_row(a.x, start(a.x), dim);
        rotate(rotation, position, a.inverse, row.data());
        std::int64_t at = start(a.out);
        for (const double value : row) write(a.out, at++, value);
      }
    }
  }
  return "";
}

}  // namespace attn::reference
