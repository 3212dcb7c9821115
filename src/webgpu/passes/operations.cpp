// Implements operations.hpp.
#include "webgpu/passes/operations.hpp"

#include <algorithm>
#include <initializer_list>
#include <string>

#include "webgpu/passes/copy.hpp"
#include "webgpu/passes/geometry.hpp"

namespace attn::webgpu {
namespace {

constexpr std::int64_t kLines = 16;  // per workgroup

// Binds the tensors of an operation for a block of sequences.
class Bindings {
 public:
  Bindings(Dispatch& dispatch, const DeviceFacts& facts, const Block& block,
           const Operand& stand_in)
      : dispatch_(dispatch), facts_(facts), block_(block), stand_in_(stand_in) {}

  void read(std::string_view name, const View& view, StridedTensor& place) {
    dispatch_.bind(name, view.given() ? bound(view, place) : stand_in_);
  }
  void write(std::string_view name, const View& view, StridedTensor& place) {
    dispatch_.bind(name, view.given() ? bound(view, place) : spare());
  }
  // An input that is also the output; the kernel reads it through the output's binding.
  void read_in_place(std::string_view name) { dispatch_.bind(name, stand_in_); }

 private:
  Operand bound(const View& view, StridedTensor& place) const {
    const Binding binding = bind(view, block_, size_of(view.dtype), facts_.storage_alignment);
    place = binding.place;
    return binding.operand;
  }
  Operand spare() { return {Memory::spare, nullptr, 256 * spares_++, 16}; }

  Dispatch& dispatch_;
  const DeviceFacts& facts_;
  const Block block_;
  const Operand stand_in_;
  std::uint64_t spares_ = 0;
};

bool same_view(const View& a, const View& b) {
  return a.buffer == b.buffer && a.offset_bytes == b.offset_bytes && a.dtype == b.dtype &&
         a.stride_batch == b.stride_batch && a.stride_row == b.stride_row &&
         a.stride_head == b.stride_head;
}

// Copies an input that shares a buffer with an output, because no dispatch may read and write one
// buffer.
core::Status separate(Work& work, const DeviceFacts& facts, View& input,
                      std::initializer_list<const View*> outputs) {
  const bool shared = input.given() && std::ranges::any_of(outputs, [&](const View* output) {
                        return output->given() && output->buffer == input.buffer;
                      });
  if (!shared) return {};
  const std::int64_t elements = input.batch * input.heads * input.rows * input.dim;
  const Operand part =
      work.reserve(Memory::prepared, static_cast<std::uint64_t>(elements * size_of(input.dtype)));
  Copy copy;
  copy.from = input;
  copy.to = scratch_view(part, input.dtype, input.batch, input.heads, input.rows, input.dim);
  input = copy.to;
  return add_copy(work, facts, copy);
}

// Sequences per dispatch, so that the largest tensor can be bound; 0 if one sequence is too large.
std::int64_t entries_of(const View& largest, const DeviceFacts& facts) {
  std::int64_t batches = std::min(largest.batch, kMaxGrid);
  const auto bytes = [&] {
    return bind(largest, {0, batches, 0, largest.heads}, 1, facts.storage_alignment).operand.size +
           facts.storage_alignment;
  };
  while (bytes() > facts.max_storage_binding_bytes) {
    if (batches == 1) return 0;
    batches = (batches + 1) / 2;
  }
  return batches;
}

core::Status too_large(const char* function, const DeviceFacts& facts) {
  return core::Status::unsupported(std::string("webgpu: ") + function +
                                   ": bytes of one sequence; this device binds at most " +
                                   std::to_string(facts.max_storage_binding_bytes) + " at once");
}

// The position of each packed row in its sequence, computed by prepare.wgsl.
View packed_positions(const RopeArguments& arguments, const View& x, const DeviceFacts& facts,
                      Work& work) {
  const Operand part = work.reserve(Memory::info, static_cast<std::uint64_t>(x.rows * 4));
  const View list = list_view(arguments.cu_len);
  const Binding lengths = bind(list, {}, 4, facts.storage_alignment);
  PrepareParameters p;
  p.batch = u32(list.rows - 1);
  p.total_q = u32(x.rows);
  p.lengths_q = lengths.place;
  Dispatch dispatch("prepare", "positions");
  dispatch.bind("info", part);
  dispatch.bind("lengths_q", lengths.operand);
  for (const char* unused : {"lengths_kv", "slopes", "sinks"}) {
    dispatch.bind(unused, lengths.operand);
  }
  dispatch.set_elements(x.rows);
  dispatch.set_parameters(p);
  work.dispatches.push_back(dispatch);
  return scratch_view(part, DType::i32, 1, 1, x.rows, 1);
}

}  // namespace

core::Status make_work(const RopeArguments& a, const DeviceFacts& facts, Work& work) {
  Copy copy;
  copy.from = rows_view(a.x);
  copy.to = rows_view(a.out);
  if (!copy.from.given()) return {};
  Rotation& to = copy.rotation;
  to.style = a.style;
  to.rot_dim = a.rot_dim == 0 ? copy.from.dim : a.rot_dim;
  to.inverse = a.inverse;
  to.base = a.base;
  to.offset = a.pos_offset;
  to.cosines = table_view(a.cos);
  to.sines = table_view(a.sin);
  to.positions = list_view(a.positions);
  if (!same_view(copy.from, copy.to)) {
    core::Status status = separate(work, facts, copy.from, {&copy.to});
    if (!status.ok()) return status;
  }
  if (a.cu_len.given() && !a.positions.given()) {
    to.positions = packed_positions(a, copy.from, facts, work);
    to.from_positions = true;
  }
  return add_copy(work, facts, copy);
}

core::Status make_work(const MergeArguments& a, const DeviceFacts& facts, Work& work) {
  View o1 = rows_view(a.o1);
  View o2 = rows_view(a.o2);
  View lse1 = row_scalars_view(a.lse1);
  View lse2 = row_scalars_view(a.lse2);
  const View o = rows_view(a.o);
  View lse = row_scalars_view(a.lse);
  if (!o.given()) return {};
  const bool in_place_o = same_view(o1, o);
  const bool in_place_lse = lse.given() && same_view(lse1, lse);
  core::Status status;
  const auto separated = [&](View& input) {
    if (status.ok()) status = separate(work, facts, input, {&o, &lse});
  };
  if (!in_place_o) separated(o1);
  if (!in_place_lse) separated(lse1);
  separated(o2);
  separated(lse2);
  // If o and lse share a buffer, their bindings could overlap.
  const View user_lse = lse;
  if (lse.given() && lse.buffer == o.buffer) {
    const Operand part =
        work.reserve(Memory::staged, static_cast<std::uint64_t>(o.batch * o.heads * o.rows * 4));
    lse = scratch_view(part, DType::f32, o.batch, o.heads, o.rows, 1);
    if (in_place_lse && status.ok()) status = separate(work, facts, lse1, {&o});
  }
  const std::int64_t batches = entries_of(o, facts);
  if (batches == 0) return too_large("merge", facts);
  for (std::int64_t b = 0; b < o.batch && status.ok(); b += batches) {
    const Block block{b, std::min(batches, o.batch - b), 0, o.heads};
    Dispatch dispatch("merge");
    dispatch.add_constant("TYPE_1", number_of(o1.dtype));
    dispatch.add_constant("TYPE_2", number_of(o2.dtype));
    dispatch.add_constant("TYPE_TO", number_of(o.dtype));
    dispatch.add_constant("LINES", kLines);
    const bool lse_in_place = in_place_lse && same_view(lse, user_lse);
    dispatch.add_constant("IN_PLACE_O", in_place_o ? 1 : 0);
    dispatch.add_constant("IN_PLACE_LSE", lse_in_place ? 1 : 0);
    dispatch.add_constant("HAS_2", o2.given() ? 1 : 0);
    dispatch.add_constant("HAS_LSE", lse.given() ? 1 : 0);
    MergeParameters p;
    const Operand stand_in = bind(lse2, {0, 1, 0, 1}, 4, facts.storage_alignment).operand;
    Bindings bindings(dispatch, facts, block, stand_in);
    in_place_o ? bindings.read_in_place("o1") : bindings.read("o1", o1, p.o1);
    lse_in_place ? bindings.read_in_place("lse1") : bindings.read("lse1", lse1, p.lse1);
    bindings.read("o2", o2, p.o2);
    bindings.read("lse2", lse2, p.lse2);
    bindings.write("to", o, p.o);
    bindings.write("lse", lse, p.lse);
    if (in_place_o) p.o1 = p.o;
    if (lse_in_place) p.lse1 = p.lse;
    p.rows = u32(o.rows);
    p.heads = u32(o.heads);
    p.dim = u32(o.dim);
    dispatch.set_lines(o.rows * o.heads, kLines, block.batches);
    dispatch.set_parameters(p);
    work.dispatches.push_back(dispatch);
  }
  if (status.ok() && lse.memory != Memory::tensor) {
    Copy copy;
    copy.from = lse;
    copy.to = user_lse;
    status = add_copy(work, facts, copy);
  }
  return status;
}

namespace {

// One of the two partial results, or the merged one.
struct Side {
  View o, lse, dout, dlse;
};

core::Status add_merge_backward(const Side& of, const View& lse2, const Side& whole,
                                const DeviceFacts& facts, Work& work) {
  if (!of.dout.given() && !of.dlse.given()) return {};
  Side one = of;
  Side all = whole;
  View other = lse2;
  const View gradient = of.dout;
  const View gradient_lse = of.dlse;
  core::Status status;
  for (View* input : {&one.o, &one.lse, &other, &all.o, &all.dout, &all.dlse}) {
    if (status.ok()) status = separate(work, facts, *input, {&gradient, &gradient_lse});
  }
  const std::int64_t batches = entries_of(whole.o, facts);
  if (batches == 0) return too_large("merge_backward", facts);
  for (std::int64_t b = 0; b < whole.o.batch && status.ok(); b += batches) {
    const Block block{b, std::min(batches, whole.o.batch - b), 0, whole.o.heads};
    Dispatch dispatch("merge_backward");
    dispatch.add_constant("TYPE_1", number_of(one.o.dtype));
    dispatch.add_constant("TYPE_O", number_of(all.o.dtype));
    dispatch.add_constant("TYPE_TO", number_of(gradient.dtype));
    dispatch.add_constant("HAS_1", one.o.given() ? 1 : 0);
    dispatch.add_constant("HAS_DLSE", all.dlse.given() ? 1 : 0);
    dispatch.add_constant("HAS_DOUT1", gradient.given() ? 1 : 0);
    dispatch.add_constant("HAS_DLSE1", gradient_lse.given() ? 1 : 0);
    MergeBackwardParameters p;
    const Operand stand_in = bind(one.lse, {0, 1, 0, 1}, 4, facts.storage_alignment).operand;
    Bindings bindings(dispatch, facts, block, stand_in);
    bindings.read("o1", one.o, p.o1);
    bindings.read("o", all.o, p.o);
    bindings.read("dout", all.dout, p.dout);
    bindings.read("lse1", one.lse, p.lse1);
    bindings.read("lse2", other, p.lse2);
    bindings.read("dlse", all.dlse, p.dlse);
    bindings.write("to", gradient, p.dout1);
    bindings.write("dlse1", gradient_lse, p.dlse1);
    p.rows = u32(whole.o.rows);
    p.heads = u32(whole.o.heads);
    p.dim = u32(whole.o.dim);
    dispatch.set_lines(whole.o.rows * whole.o.heads, kLines, block.batches);
    dispatch.set_parameters(p);
    work.dispatches.push_back(dispatch);
  }
  return status;
}

}  // namespace

core::Status make_work(const MergeBackwardArguments& a, const DeviceFacts& facts, Work& work) {
  const View lse1 = row_scalars_view(a.lse1);
  const View lse2 = row_scalars_view(a.lse2);
  const Side whole{rows_view(a.o), row_scalars_view(a.lse), rows_view(a.dout),
                   row_scalars_view(a.dlse)};
  if (!whole.o.given()) return {};
  core::Status status =
      add_merge_backward({rows_view(a.o1), lse1, rows_view(a.dout1), row_scalars_view(a.dlse1)},
                         lse2, whole, facts, work);
  if (!status.ok()) return status;
  return add_merge_backward({rows_view(a.o2), lse2, rows_view(a.dout2), row_scalars_view(a.dlse2)},
                            lse1, whole, facts, work);
}

}  // namespace attn::webgpu
