// Copies; see copy.hpp.
#include "webgpu/passes/copy.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "core/validate.hpp"

namespace attn::webgpu {
namespace {

constexpr std::int64_t kCopiedLines = 8;  // per workgroup
static_assert(kCopiedLines * core::kMaxDim * 4 <= 16384, "rotated lines fit 16 KiB");

// base^(-2m / rot_dim) / (2 pi), turns per position, as 64 fraction bits, low word first. The
// relative error of 2^-53 is 1e-9 of a turn at position 2^20.
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

void add_constants(const Copy& copy, bool in_place, Dispatch& dispatch) {
  const Rotation& rotation = copy.rotation;
  dispatch.add_constant("TYPE_SOURCE", number_of(copy.from.dtype));
  dispatch.add_constant("TYPE_TO", number_of(copy.to.dtype));
  dispatch.add_constant("LINES", kCopiedLines);
  dispatch.add_constant("ROPE", static_cast<double>(rotation.style));
  // Two values, because each needs a pipeline. The larger one takes all of 16 KiB of workgroup
  // memory.
  const bool is_wide = rotation.style != Rope::none && rotation.rot_dim > core::kMaxDim / 2;
  dispatch.add_constant("MAX_ROT_DIM", is_wide ? core::kMaxDim : core::kMaxDim / 2);
  dispatch.add_constant("IN_PLACE", in_place ? 1 : 0);
}

// Whether both views have the same elements at the same addresses.
bool same_place(const View& a, const View& b) {
  return a.memory == b.memory && a.buffer == b.buffer && a.offset_bytes == b.offset_bytes &&
         a.stride_batch == b.stride_batch && a.stride_row == b.stride_row &&
         a.stride_head == b.stride_head && a.dtype == b.dtype;
}

void set_rotation(const Rotation& rotation, CopyParameters& p) {
  const auto offset = static_cast<std::uint64_t>(rotation.offset);
  p.offset = {static_cast<U32>(offset), static_cast<U32>(offset >> 32)};
  p.position_of = !rotation.positions.given() ? static_cast<U32>(rotation.from)
                  : rotation.from_positions   ? 4
                                              : 3;
  p.inverse = rotation.inverse ? 1 : 0;
  p.rot_dim = rotation.style == Rope::none ? 0 : u32(rotation.rot_dim);
}

// Sequences and heads that one dispatch can bind; no sequences if not even one head of one fits.
Block largest_block(const Copy& copy, std::int64_t batch, const DeviceFacts& facts) {
  Block block{0, std::min(batch, kMaxGrid), 0, copy.from.heads};
  const auto fits = [&](const View& view) {
    return bind(view, block, 1, facts.storage_alignment).operand.size <=
           facts.max_storage_binding_bytes;
  };
  while (!fits(copy.from) || !fits(copy.to)) {
    if (block.batches == 1 && block.heads == 1) return {0, 0, 0, 0};
    std::int64_t& n = block.batches > 1 ? block.batches : block.heads;
    n = (n + 1) / 2;
  }
  return block;
}

// Binds the tensors of a copy. `frequencies`: of the rotation, if it has no tables.
void bind_copy(const Copy& copy, const Block& block, const Operand& frequencies,
               std::uint32_t alignment, Dispatch& dispatch, CopyParameters& p) {
  const auto bind_block = [&](const View& view, const Block& of, StridedTensor& place) {
    const Binding binding = bind(view, of, size_of(view.dtype), alignment);
    place = binding.place;
    return binding.operand;
  };
  // Any sequence may use any page, so all pages and their complete table are bound.
  const auto bind_either = [&](const View& view, bool pages, StridedTensor& place) {
    return bind_block(view, pages ? Block{0, view.batch, block.head, block.heads} : block, place);
  };
  const Operand source = bind_either(copy.from, copy.paged == Copy::Paged::from, p.source);
  const Operand to = bind_either(copy.to, copy.paged == Copy::Paged::to, p.to);
  // Replaces absent inputs. In place, the source is written, so the constants replace them.
  const Operand absent =
      same_place(copy.from, copy.to) ? Operand{Memory::constants, nullptr, 0, 16} : source;
  const auto bind_input = [&](const char* name, const View& view, bool pages,
                              StridedTensor& place) {
    dispatch.bind(name, view.given() ? bind_either(view, pages, place) : absent);
  };
  dispatch.bind("source", absent);
  dispatch.bind("to", to);
  dispatch.bind("info", copy.info.size > 0 ? copy.info : absent);
  bind_input("positions", copy.rotation.positions, false, p.positions);
  bind_input("block_table", copy.block_table, true, p.table);
  StridedTensor cosines;
  StridedTensor sines;
  bind_input("cosines", copy.rotation.cosines, false, cosines);
  bind_input("sines", copy.rotation.sines, false, sines);
  if (frequencies.size > 0) dispatch.bind("cosines", frequencies);
  p.cosines_at = cosines.base;
  p.cosines_row = cosines.row;
  p.sines_at = sines.base;
  p.sines_row = sines.row;
  p.table_rows = copy.rotation.cosines.given() ? u32(copy.rotation.cosines.rows) : 0;
  StridedTensor count;
  dispatch.bind("count", copy.count.given() ? bind_block(copy.count, block, count)
                                            : Operand{Memory::spare, nullptr, 0, 16});
}

}  // namespace

core::Status add_copy(Work& work, const DeviceFacts& facts, const Copy& copy) {
  const View& from = copy.from;
  const std::int64_t batch = copy.batch > 0 ? copy.batch : from.batch;
  const std::int64_t rows = copy.rows > 0 ? copy.rows : from.rows;
  if (batch == 0 || rows == 0 || !copy.to.given()) return {};
  Dispatch unbound("copy");
  add_constants(copy, same_place(from, copy.to), unbound);
  Operand words;
  if (copy.rotation.style != Rope::none && !copy.rotation.cosines.given()) {
    words = work.add_constants(frequencies(copy.rotation));
  }
  const Block largest = largest_block(copy, batch, facts);
  if (largest.batches == 0) {
    const auto bytes = bind(from, {0, 1, 0, 1}, 1, facts.storage_alignment).operand.size;
    return core::Status::unsupported("webgpu: copy: found rows of one head over " +
                                     std::to_string(bytes) + " bytes; this device binds at most " +
                                     std::to_string(facts.max_storage_binding_bytes));
  }
  for (std::int64_t b = 0; b < batch; b += largest.batches) {
    for (std::int64_t h = 0; h < from.heads; h += largest.heads) {
      const Block block{b, std::min(largest.batches, batch - b), h,
                        std::min(largest.heads, from.heads - h)};
      Dispatch dispatch = unbound;
      CopyParameters p;
      bind_copy(copy, block, words, facts.storage_alignment, dispatch, p);
      p.rows = u32(rows);
      p.heads = u32(block.heads);
      p.dim = u32(from.dim);
      p.dims = u32(copy.to.dim);
      p.first_batch = u32(b);
      p.sequences_at = copy.sequences_at;
      p.which = static_cast<U32>(copy.which);
      p.past = copy.zero_past ? 1 : 0;
      p.paged = static_cast<U32>(copy.paged);
      p.page_size = u32(copy.page_size);
      p.num_pages = u32((copy.paged == Copy::Paged::from ? from : copy.to).batch);
      set_rotation(copy.rotation, p);
      p.accumulate = copy.accumulate ? 1 : 0;
      p.nonfinite_zero = copy.nonfinite_zero ? 1 : 0;
      dispatch.set_lines(rows * block.heads, kCopiedLines, block.batches);
      dispatch.set_parameters(p);
      work.dispatches.push_back(dispatch);
    }
  }
  return {};
}

}  // namespace attn::webgpu
