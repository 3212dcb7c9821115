// Copies; see copy.hpp.
#include "webgpu/host/copy.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <vector>

namespace attn::webgpu {
namespace {

constexpr std::int64_t kLines = 8;  // of a block of the grid

U32 u32(std::int64_t value) {
  return static_cast<U32>(value);
}

// base^(-2m / rot_dim) / (2 pi), turns per position, as its 64 bits behind the point, low word
// first. The error, 2^-53 relative, is 1e-9 of a turn at position 2^20.
std::vector<U32> frequencies(const Rotation& rotation) {
  std::vector<U32> words;
  for (std::int64_t m = 0; m < rotation.rot_dim / 2; ++m) {
    const double exponent = -2.0 * static_cast<double>(m) / static_cast<double>(rotation.rot_dim);
    const double turns = std::pow(rotation.base, exponent) / (2.0 * std::numbers::pi);
    const double fraction = turns - std::floor(turns);
    const double high = std::floor(std::ldexp(fraction, 32));
    words.push_back(static_cast<U32>(std::ldexp(std::ldexp(fraction, 32) - high, 32)));
    words.push_back(static_cast<U32>(high));
  }
  return words;
}

void add_constants(const Copy& copy, bool in_place, Step& step) {
  const Rotation& rotation = copy.rotation;
  step.spec.source = "copy";
  step.spec.entry = "copy";
  step.add_constant("TYPE_SOURCE", number_of(copy.from.dtype));
  step.add_constant("TYPE_TO", number_of(copy.to.dtype));
  step.add_constant("LINES", kLines);
  step.add_constant("ROPE", static_cast<double>(rotation.style));
  step.add_constant("IN_PLACE", in_place ? 1 : 0);
}

// Whether they are the same elements in the same places.
bool same_place(const View& a, const View& b) {
  return a.memory == b.memory && a.buffer == b.buffer && a.offset_bytes == b.offset_bytes &&
         a.stride_batch == b.stride_batch && a.stride_row == b.stride_row &&
         a.stride_head == b.stride_head && a.dtype == b.dtype;
}

void fill_rotation(const Rotation& rotation, CopyParameters& p) {
  const auto offset = static_cast<std::uint64_t>(rotation.offset);
  p.offset = {static_cast<U32>(offset), static_cast<U32>(offset >> 32)};
  p.position_of = !rotation.positions.given() ? static_cast<U32>(rotation.from)
                  : rotation.from_positions   ? 4
                                              : 3;
  p.inverse = rotation.inverse ? 1 : 0;
  p.rot_dim = rotation.style == Rope::none ? 0 : u32(rotation.rot_dim);
}

}  // namespace

core::Status add_copy(Work& work, const DeviceFacts& facts, const Copy& copy) {
  const View& from = copy.from;
  const std::int64_t batch = copy.batch > 0 ? copy.batch : from.batch;
  const std::int64_t rows = copy.rows > 0 ? copy.rows : from.rows;
  if (batch == 0 || rows == 0 || !copy.to.given()) return {};
  const bool in_place = same_place(from, copy.to);
  Step whole;
  add_constants(copy, in_place, whole);
  Operand made;
  if (copy.rotation.style != Rope::none && !copy.rotation.cosines.given()) {
    made = work.add_constants(frequencies(copy.rotation));
  }

  // Blocks of entries and heads that can be bound.
  std::int64_t batches = std::min(batch, kMaxGrid);
  std::int64_t heads = from.heads;
  const auto bytes = [&](const View& view) {
    return bind(view, {0, batches, 0, heads}, 1, facts.storage_alignment).operand.size;
  };
  while (std::max(bytes(from), bytes(copy.to)) > facts.max_storage_binding_bytes) {
    if (batches == 1 && heads == 1) {
      return core::Status::unsupported(
          "webgpu: copy: found rows of one head over " + std::to_string(bytes(from)) +
          " bytes; this device binds at most " + std::to_string(facts.max_storage_binding_bytes));
    }
    std::int64_t& n = batches > 1 ? batches : heads;
    n = (n + 1) / 2;
  }
  for (std::int64_t b = 0; b < batch; b += batches) {
    for (std::int64_t h = 0; h < from.heads; h += heads) {
      const Block block{b, std::min(batches, batch - b), h, std::min(heads, from.heads - h)};
      Step step = whole;
      CopyParameters p;
      const auto bound_block = [&](const View& view, const Block& of, Rows& to) {
        const Binding binding = bind(view, of, size_of(view.dtype), facts.storage_alignment);
        to = binding.rows;
        return binding.operand;
      };
      const auto bound = [&](const View& view, Rows& to) { return bound_block(view, block, to); };
      // Pages and the table are those of all entries.
      const auto bound_whole = [&](const View& view, Rows& to) {
        return bound_block(view, {0, view.batch, block.head, block.heads}, to);
      };
      const Operand source =
          copy.paged == Copy::Paged::from ? bound_whole(from, p.source) : bound(from, p.source);
      const Operand to =
          copy.paged == Copy::Paged::to ? bound_whole(copy.to, p.to) : bound(copy.to, p.to);
      // What is read for inputs that are not given; nothing is where source is written.
      const Operand nothing = in_place ? Operand{Memory::constants, nullptr, 0, 16} : source;
      const auto bound_or_nothing = [&](const View& view, Rows& rows_of_it) {
        return view.given() ? bound(view, rows_of_it) : nothing;
      };
      step.bind(Access::read, nothing);
      step.bind(Access::write, to);
      step.bind(Access::read, copy.info.size > 0 ? copy.info : nothing);
      step.bind(Access::read, bound_or_nothing(copy.rotation.positions, p.positions));
      step.bind(Access::read,
                copy.block_table.given() ? bound_whole(copy.block_table, p.table) : nothing);
      Rows table;
      if (made.size > 0) {
        step.bind(Access::read, made);
        step.bind(Access::read, nothing);
      } else {
        step.bind(Access::read, bound_or_nothing(copy.rotation.cosines, table));
        p.cosines_at = table.base;
        p.cosines_row = table.row;
        step.bind(Access::read, bound_or_nothing(copy.rotation.sines, table));
        p.sines_at = table.base;
        p.sines_row = table.row;
        p.table_rows = copy.rotation.cosines.given() ? u32(copy.rotation.cosines.rows) : 0;
      }
      Rows count;
      step.bind(Access::write, copy.count.given() ? bound(copy.count, count)
                                                  : Operand{Memory::spare, nullptr, 0, 16});
      p.rows = u32(rows);
      p.heads = u32(block.heads);
      p.dim = u32(from.dim);
      p.dims = u32(copy.to.dim);
      p.first_batch = u32(b);
      p.entries_at = copy.entries_at;
      p.which = static_cast<U32>(copy.which);
      p.past = copy.zero_past ? 1 : 0;
      p.paged = static_cast<U32>(copy.paged);
      p.page_size = u32(copy.page_size);
      p.num_pages = u32((copy.paged == Copy::Paged::from ? from : copy.to).batch);
      fill_rotation(copy.rotation, p);
      p.accumulate = copy.accumulate ? 1 : 0;
      p.nonfinite_zero = copy.nonfinite_zero ? 1 : 0;
      step.set_lines(rows * block.heads, kLines, block.batches);
      step.set_parameters(p);
      work.steps.push_back(step);
    }
  }
  return {};
}

}  // namespace attn::webgpu
