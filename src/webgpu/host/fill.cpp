// Rows of packed tensors that no entry has, by fill.wgsl.
#include "webgpu/host/attention.hpp"

namespace attn::webgpu {
namespace {

constexpr std::int64_t kRows = 256;  // of a workgroup
constexpr U32 kMinusInfinity = 0xff800000u;

// Of fill.wgsl.
struct FillParameters {
  Rows to;
  U32 rows = 0;
  U32 heads = 0;
  U32 dim = 0;
  U32 batch = 0;
  U32 first_row = 0;
  U32 entries_at = 0;
  U32 which = 0;
  U32 value = 0;
};

}  // namespace

void AttentionWork::fill(const View& tensor, Copy::Which which, U32 value) {
  if (!tensor.given()) return;
  Step step;
  step.spec.source = "fill";
  step.spec.entry = "fill";
  step.add_constant("TYPE_TO", number_of(tensor.dtype));
  FillParameters p;
  step.bind(Access::read, info);
  const Block whole{0, 1, 0, tensor.heads};
  bind_rows(step, Access::write, tensor, whole, size_of(tensor.dtype), p.to);
  p.rows = static_cast<U32>(tensor.rows);
  p.heads = static_cast<U32>(tensor.heads);
  p.dim = static_cast<U32>(tensor.dim);
  p.batch = static_cast<U32>(problem.batch);
  p.entries_at = common.entries_at;
  p.which = static_cast<U32>(which);
  p.value = value;
  step.set_lines(tensor.rows, kRows, 1);
  step.set_parameters(p);
  work.steps.push_back(step);
}

void AttentionWork::fill_uncovered() {
  const bool packed_q = problem.layout_q == Layout::packed;
  const bool packed_kv = problem.layout_kv == Layout::packed;
  const Arguments& a = arguments;
  if (call.pass != Pass::backward) {
    if (!packed_q) return;
    fill(rows_view(a.o), Copy::Which::queries, 0);
    fill(statistics_view(a.lse), Copy::Which::queries, kMinusInfinity);
    return;
  }
  if (problem.accumulate) return;
  if (packed_q) fill(rows_view(a.dq), Copy::Which::queries, 0);
  if (packed_kv) {
    fill(rows_view(a.dk), Copy::Which::keys, 0);
    fill(rows_view(a.dv), Copy::Which::keys, 0);
  }
}

}  // namespace attn::webgpu
