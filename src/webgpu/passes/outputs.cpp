// Outputs of a call: where kernels write them, and the copies that follow.
#include "webgpu/passes/attention.hpp"

namespace attn::webgpu {
namespace {

constexpr std::int64_t kFillRows = 256;  // per workgroup of fill.wgsl
constexpr U32 kMinusInfinity = 0xff800000u;

// Whether an input is in the tensor's buffer.
bool is_read(const PreparedCall& prepared, const View& tensor) {
  for (const View* input :
       {&prepared.q, &prepared.k, &prepared.v, &prepared.dout, &prepared.bias, &prepared.mask}) {
    if (input->given() && input->memory == Memory::tensor && input->buffer == tensor.buffer) {
      return true;
    }
  }
  return false;
}

View scratch_lse(const PreparedCall& prepared, Memory memory, Work& work) {
  const Problem& p = prepared.problem();
  const bool packed = p.layout_q == Layout::packed;
  const Operand part =
      work.reserve(memory, std::uint64_t{prepared.common.rows} * prepared.common.heads_q * 4);
  return scratch_view(part, DType::f32, packed ? 1 : p.batch, p.heads_q,
                      packed ? p.total_q : p.len_q, 1);
}

}  // namespace

View place_output(const PreparedCall& prepared, const View& tensor, Work& work) {
  const Problem& problem = prepared.problem();
  const bool backward = prepared.plan.pass == Pass::backward;
  const bool direct = in_units(tensor, 4) && !is_read(prepared, tensor) &&
                      !problem.nonfinite_zero &&
                      !(backward && (problem.accumulate || problem.rope != Rope::none));
  if (direct) return tensor;
  const Operand part = work.reserve(
      Memory::staged,
      static_cast<std::uint64_t>(tensor.batch * tensor.heads * tensor.rows * tensor.dim * 4));
  return scratch_view(part, DType::f32, tensor.batch, tensor.heads, tensor.rows, tensor.dim);
}

core::Status finish_output(const PreparedCall& prepared, const View& tensor, const View& written,
                           Copy::Which which, bool rotates, Work& work) {
  if (!tensor.given() || written.memory == Memory::tensor) return {};
  const Problem& problem = prepared.problem();
  const bool backward = prepared.plan.pass == Pass::backward;
  const bool of_keys = which == Copy::Which::keys;
  Copy copy;
  if (backward && rotates && problem.rope != Rope::none) {
    copy = rotation_of(prepared, which);
    copy.rotation.inverse = true;
  } else if (which != Copy::Which::all &&
             (of_keys ? problem.layout_kv : problem.layout_q) == Layout::packed) {
    copy.which = which;
    copy.info = prepared.info;
    copy.sequences_at = prepared.common.sequences_at;
    copy.batch = problem.batch;
    copy.rows = of_keys ? problem.len_kv : problem.len_q;
  }
  copy.from = written;
  copy.to = tensor;
  copy.zero_past = tensor.batch > 1 || problem.batch == 1;  // padded rows past the length
  copy.accumulate = backward && problem.accumulate;
  copy.nonfinite_zero = problem.nonfinite_zero;
  if (problem.nonfinite_zero) copy.count = list_view(prepared.arguments.nonfinite_count);
  return add_copy(work, prepared.facts(), copy);
}

View place_lse(const PreparedCall& prepared, const View& lse, const View& output, Work& work) {
  const bool direct = lse.given() && !is_read(prepared, lse) && lse.buffer != output.buffer;
  return direct ? lse : scratch_lse(prepared, Memory::staged, work);
}

View place_combined_lse(const PreparedCall& prepared, const View& lse, const View& output,
                        Work& work) {
  if (!lse.given() || lse.buffer != output.buffer) return lse;
  return scratch_lse(prepared, Memory::prepared, work);
}

core::Status finish_lse(const PreparedCall& prepared, const View& lse, const View& written,
                        Work& work) {
  return finish_output(prepared, lse, written, Copy::Which::queries, false, work);
}

void add_fill(const PreparedCall& prepared, const View& tensor, Copy::Which which, U32 value,
              Work& work) {
  if (!tensor.given()) return;
  Dispatch dispatch("fill");
  dispatch.add_constant("TYPE_TO", number_of(tensor.dtype));
  FillParameters p;
  dispatch.bind("info", prepared.info);
  const Block all{0, 1, 0, tensor.heads};
  bind_tensor(prepared, dispatch, "to", tensor, all, size_of(tensor.dtype), p.to);
  p.rows = static_cast<U32>(tensor.rows);
  p.heads = static_cast<U32>(tensor.heads);
  p.dim = static_cast<U32>(tensor.dim);
  p.batch = static_cast<U32>(prepared.problem().batch);
  p.sequences_at = prepared.common.sequences_at;
  p.which = static_cast<U32>(which);
  p.value = value;
  dispatch.set_lines(tensor.rows, kFillRows, 1);
  dispatch.set_parameters(p);
  work.dispatches.push_back(dispatch);
}

void add_fill_uncovered(const PreparedCall& prepared, Work& work) {
  const Problem& problem = prepared.problem();
  const Arguments& a = prepared.arguments;
  const bool packed_q = problem.layout_q == Layout::packed;
  const bool packed_kv = problem.layout_kv == Layout::packed;
  if (prepared.plan.pass != Pass::backward) {
    if (!packed_q) return;
    add_fill(prepared, rows_view(a.o), Copy::Which::queries, 0, work);
    add_fill(prepared, row_scalars_view(a.lse), Copy::Which::queries, kMinusInfinity, work);
    return;
  }
  if (problem.accumulate) return;
  if (packed_q) add_fill(prepared, rows_view(a.dq), Copy::Which::queries, 0, work);
  if (packed_kv) {
    add_fill(prepared, rows_view(a.dk), Copy::Which::keys, 0, work);
    add_fill(prepared, rows_view(a.dv), Copy::Which::keys, 0, work);
  }
}

}  // namespace attn::webgpu
