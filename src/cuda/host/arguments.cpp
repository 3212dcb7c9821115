// Arguments of kernels; see arguments.hpp.
#include "cuda/host/arguments.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/access.hpp"
#include "core/call_numbers.hpp"
#include "core/strided.hpp"

namespace attn::cuda {
namespace {

constexpr double kLog2E = 1.4426950408889634;

using device::kUnlimited;

constexpr std::int64_t kVectorBytes = 16;

bool aligned(std::int64_t bytes) {
  return bytes % kVectorBytes == 0;
}

bool aligned(const void* base) {
  return aligned(static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(base)));
}

// Converts a view to the device struct; `type` is the value of the DType.
device::StridedTensor rows_of(const core::StridedTensor& from, bool vector = false) {
  device::StridedTensor rows;
  rows.base = from.base;
  rows.stride_batch = from.stride_batch;
  rows.stride_row = from.stride_row;
  rows.stride_head = from.stride_head;
  rows.type = static_cast<int>(from.dtype);
  rows.vector = vector ? 1 : 0;
  return rows;
}

// [b, len, heads, dim] or [total, heads, dim]. `access`: what is known about all tensors of rows.
device::StridedTensor rows_of(const TensorView& view, core::Access access) {
  const bool vector =
      access == core::Access::tma || core::access_of_rows(view) != core::Access::element;
  return rows_of(core::rows_of(view), view.given() && vector);
}

device::ScoreTensor scores_of(const TensorView& view, const Extent& extent) {
  device::ScoreTensor scores;
  const core::ScoreTensor from = core::scores_of(view, extent);
  if (!view.given()) return scores;
  scores.base = from.base;
  scores.stride_batch = from.stride_batch;
  scores.stride_head = from.stride_head;
  scores.stride_q = from.stride_q;
  scores.stride_kv = from.stride_kv;
  scores.type = static_cast<int>(from.dtype);
  const bool vector = aligned(from.base) && from.stride_kv == core::element_size(from.dtype) &&
                      (view.shape[0] <= 1 || aligned(from.stride_batch)) &&
                      (view.shape[1] <= 1 || aligned(from.stride_head)) &&
                      (view.shape[2] <= 1 || aligned(from.stride_q));
  scores.vector = vector ? 1 : 0;
  return scores;
}

// The multiplier by which EntryOf() in kernels/shared/score_entries.cuh divides by per_entry:
// ceil(2^63 / per_entry).
unsigned long long entry_factor(const Extent& extent) {
  constexpr std::uint64_t kOne = std::uint64_t{1} << 63;
  const auto sharers = static_cast<std::uint64_t>(extent.per_entry);
  if (sharers == 1) return kOne;  // without the division, which takes 5 to 20 ns
  return (kOne + sharers - 1) / sharers;
}

device::LengthArray lengths_of(const TensorView& view) {
  const core::LengthArray lengths = core::lengths_of(view);
  return {lengths.base, lengths.stride};
}

// Rounds to f32; clamps to its finite range.
float to_float(double value) {
  constexpr double kMax = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(value, -kMax, kMax));
}

void fill_sizes(const Problem& p, const core::CallNumbers& numbers, device::Arguments& a) {
  a.batch = static_cast<int>(p.batch);
  a.heads_q = static_cast<int>(p.heads_q);
  a.heads_kv = static_cast<int>(p.heads_kv);
  a.heads_per_kv = static_cast<int>(numbers.heads_per_kv);
  a.max_len_q = static_cast<int>(p.len_q);
  a.max_len_kv = static_cast<int>(p.len_kv);
  a.total_q = static_cast<int>(p.total_q);
  a.total_kv = static_cast<int>(p.total_kv);
  a.packed_q = p.layout_q == Layout::packed ? 1 : 0;
  a.packed_kv = p.layout_kv == Layout::packed ? 1 : 0;
  a.dim_qk = static_cast<int>(p.dim_qk);
  a.dim_vo = static_cast<int>(p.dim_vo);
}

// The window is measured from the clamped diagonal, so that its ends, diag - left and diag + right,
// do not move when diag is clamped.
void fill_visibility(const core::Band& band, device::Arguments& a) {
  const auto clamped = [](std::int64_t value) {
    return std::clamp<std::int64_t>(value, -kUnlimited, kUnlimited);
  };
  a.bottom_right = band.bottom_right ? 1 : 0;
  a.diag = clamped(band.fixed);
  a.window_left = a.diag - clamped(band.low());
  a.window_right = clamped(band.high()) - a.diag;
}

// tanh(x) / x = sum of c_n x^2n with a relative error of 7e-8 for |x| up to 0.6: fitted by iterated
// least squares. The coefficients include scale and cap, so that kernels apply them to raw
// products.
void fill_cap_series(double scale, double softcap, device::Arguments& a) {
  constexpr double kReach = 0.6;
  constexpr double kSeries[] = {0.9999999268687472, -0.3333230997252761, 0.13310173632093492,
                                -0.05210147897032537, 0.015475425901609587};
  const double ratio = scale / softcap;
  double factor = scale * kLog2E;
  bool fits = true;
  for (int n = 0; n < 5; ++n, factor *= ratio * ratio) {
    fits = fits && std::abs(factor) < 1e37;
    a.cap_series[n] = to_float(kSeries[n] * factor);
  }
  // The limit 1e18 keeps squares of raw products finite.
  a.cap_reach = fits ? to_float(std::min(kReach / std::abs(ratio), 1e18)) : -1.0f;
  a.cap_unit = to_float(1.0 / (softcap * kLog2E));
}

void fill_scores(const Problem& p, const core::CallNumbers& numbers, const Arguments& from,
                 device::Arguments& a) {
  const double scale = numbers.scale;
  a.scale = to_float(scale);
  // Not 0, because kernels multiply hidden scores (-inf) by it: -inf * 0 would be NaN.
  a.scale_log2 = to_float(std::max(std::abs(scale) * kLog2E, 1.2e-38));
  a.negative_scale = scale < 0.0 ? 1 : 0;
  if (p.softcap) {
    a.softcap = to_float(numbers.softcap);
    a.inverse_cap = to_float(scale / numbers.softcap);
    fill_cap_series(scale, numbers.softcap, a);
  }
  if (from.alibi_slopes.given()) {
    const TensorView& slopes = from.alibi_slopes;
    const bool per_batch = slopes.rank == 2;
    a.slopes = static_cast<const float*>(slopes.address());
    a.slopes_stride_batch = per_batch ? core::stride_bytes(slopes, 0) : 0;
    a.slopes_stride_head = core::stride_bytes(slopes, per_batch ? 1 : 0);
  }
  if (from.sinks.given()) {
    a.sinks = static_cast<const float*>(from.sinks.address());
    a.sinks_stride = core::stride_bytes(from.sinks, 0);
  }
}

void fill_dropout(const Problem& p, const core::CallNumbers& numbers, const Arguments& from,
                  device::Arguments& a) {
  if (!p.dropout) return;
  a.keep_threshold = numbers.dropout_threshold;
  a.keep_scale = static_cast<float>(256.0 / numbers.dropout_threshold);
  static_assert(sizeof(std::uint64_t) == sizeof(unsigned long long));
  a.seed_at = reinterpret_cast<const unsigned long long*>(from.seed.device);
  a.offset_at = reinterpret_cast<const unsigned long long*>(from.offset.device);
  a.seed = from.seed.host;
  a.offset = from.offset.host;
  const Origin& origin = numbers.origin;
  a.origin_q = static_cast<unsigned>(origin.q);
  a.origin_kv = static_cast<unsigned>(origin.kv);
  a.origin_heads = static_cast<unsigned>(origin.heads_q);
  a.origin_head =
      static_cast<unsigned>(origin.batch) * a.origin_heads + static_cast<unsigned>(origin.head);
}

void fill_gradients(const Problem& p, const Arguments& from, core::Access access,
                    device::Arguments& a) {
  a.dout = rows_of(from.dout, access);
  a.dq = rows_of(from.dq, access);
  a.dk = rows_of(from.dk, access);
  a.dv = rows_of(from.dv, access);
  a.dlse = rows_of(core::statistics_of(from.dlse));
  a.delta = rows_of(core::statistics_of(from.delta));
  a.dbias = scores_of(from.dbias, p.bias);
  a.dbias_entries = static_cast<int>(p.bias.entries(p.batch));
  a.dbias_sharers = static_cast<int>(p.bias.sharers(p.batch));
  a.dbias_full =
      (p.bias.batch ? 8 : 0) | (p.bias.head ? 4 : 0) | (p.bias.q ? 2 : 0) | (p.bias.kv ? 1 : 0);
  if (from.dsink.given()) {
    a.dsink = static_cast<float*>(from.dsink.address());
    a.dsink_stride = core::stride_bytes(from.dsink, 0);
  }
  a.accumulate = p.accumulate ? 1 : 0;
}

}  // namespace

device::StridedTensor device_rows(const TensorView& view) {
  return rows_of(view, core::Access::element);
}

device::StridedTensor device_statistics(const TensorView& view) {
  return rows_of(core::statistics_of(view));
}

device::StridedTensor device_indices(const TensorView& view) {
  return rows_of(core::indices_of(view));
}

device::Arguments device_arguments(Pass pass, const Problem& p, const Arguments& from,
                                   core::Access access) {
  device::Arguments a;
  a.q = rows_of(from.q, access);
  a.k = rows_of(from.k, access);
  a.v = rows_of(from.v, access);
  a.o = rows_of(from.o, access);
  a.lse = rows_of(core::statistics_of(from.lse));
  a.bias = scores_of(from.bias, p.bias);
  a.mask = scores_of(from.mask, p.mask);
  a.bias_factor = entry_factor(p.bias);
  a.mask_factor = entry_factor(p.mask);
  a.kv_begin = rows_of(core::indices_of(from.kv_begin));
  a.kv_end = rows_of(core::indices_of(from.kv_end));
  a.len_q = lengths_of(from.len_q);
  a.len_kv = lengths_of(from.len_kv);
  a.cu_len_q = lengths_of(from.cu_len_q);
  a.cu_len_kv = lengths_of(from.cu_len_kv);
  if (from.nonfinite_count.given()) {
    a.nonfinite_count = static_cast<unsigned*>(from.nonfinite_count.address());
  }
  const core::CallNumbers numbers = core::numbers_of(p, from);
  fill_sizes(p, numbers, a);
  fill_visibility(numbers.band, a);
  fill_scores(p, numbers, from, a);
  fill_dropout(p, numbers, from, a);
  if (pass == Pass::backward) fill_gradients(p, from, access, a);
  return a;
}

}  // namespace attn::cuda
