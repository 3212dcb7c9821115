// Arguments of kernels; see arguments.hpp.
#include "cuda/host/arguments.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/element_size.hpp"
#include "core/philox.hpp"
#include "core/visibility.hpp"

namespace attn::cuda {
namespace {

constexpr double kLog2E = 1.4426950408889634;

using device::kUnlimited;
using device::Pairs;
using device::Rows;

constexpr std::int64_t kVectorBytes = 16;
// Kernels reach the rows of a tile, 256 at most, by 32-bit offsets.
constexpr std::int64_t kMaxVectorStride = (std::int64_t{1} << 31) / 256;

char* address(const TensorView& view) {
  return static_cast<char*>(view.address());
}

std::int64_t stride_bytes(const TensorView& view, int dim) {
  return view.strides[static_cast<std::size_t>(dim)] * core::element_size(view.dtype);
}

bool aligned(const TensorView& view, int dim) {
  return view.shape[static_cast<std::size_t>(dim)] <= 1 ||
         stride_bytes(view, dim) % kVectorBytes == 0;
}

bool aligned_base(const TensorView& view) {
  return reinterpret_cast<std::uintptr_t>(view.address()) % kVectorBytes == 0;
}

// Whether rows [b, len, heads, dim] or [total, heads, dim] can be loaded 16 bytes at a time.
bool loads_by_vectors(const TensorView& view) {
  const std::int64_t dim = view.shape[static_cast<std::size_t>(view.rank - 1)];
  const int row = view.rank - 3;
  bool vector = aligned_base(view) && dim * core::element_size(view.dtype) % kVectorBytes == 0 &&
                (view.shape[static_cast<std::size_t>(row)] <= 1 ||
                 stride_bytes(view, row) < kMaxVectorStride);
  for (int d = 0; d + 1 < view.rank; ++d) vector = vector && aligned(view, d);
  return vector;
}

// [b, len, heads, dim] or [total, heads, dim].
Rows rows_of(const TensorView& view) {
  Rows rows;
  if (!view.given()) return rows;
  const bool packed = view.rank == 3;
  rows.base = address(view);
  rows.stride_batch = packed ? 0 : stride_bytes(view, 0);
  rows.stride_row = stride_bytes(view, packed ? 0 : 1);
  rows.stride_head = stride_bytes(view, packed ? 1 : 2);
  rows.type = static_cast<int>(view.dtype);
  rows.vector = loads_by_vectors(view) ? 1 : 0;
  return rows;
}

// [b, h, n] or [h, total].
Rows statistics_of(const TensorView& view) {
  Rows rows;
  if (!view.given()) return rows;
  const bool packed = view.rank == 2;
  rows.base = address(view);
  rows.stride_batch = packed ? 0 : stride_bytes(view, 0);
  rows.stride_head = stride_bytes(view, packed ? 0 : 1);
  rows.stride_row = stride_bytes(view, packed ? 1 : 2);
  rows.type = static_cast<int>(view.dtype);
  return rows;
}

// [b|1, n] or [total].
Rows indices_of(const TensorView& view) {
  Rows rows;
  if (!view.given()) return rows;
  const bool packed = view.rank == 1;
  rows.base = address(view);
  rows.stride_batch = packed || view.shape[0] == 1 ? 0 : stride_bytes(view, 0);
  rows.stride_row = stride_bytes(view, packed ? 0 : 1);
  rows.type = static_cast<int>(view.dtype);
  return rows;
}

Pairs pairs_of(const TensorView& view, const Extent& extent) {
  Pairs pairs;
  if (!view.given()) return pairs;
  pairs.base = address(view);
  pairs.stride_batch = extent.batch ? stride_bytes(view, 0) : 0;
  pairs.stride_head = extent.head ? stride_bytes(view, 1) : 0;
  pairs.stride_q = extent.q ? stride_bytes(view, 2) : 0;
  pairs.stride_kv = extent.kv ? stride_bytes(view, 3) : 0;
  pairs.type = static_cast<int>(view.dtype);
  const bool vector = aligned_base(view) && pairs.stride_kv == core::element_size(view.dtype) &&
                      (!extent.batch || aligned(view, 0)) && (!extent.head || aligned(view, 1)) &&
                      (!extent.q || aligned(view, 2));
  pairs.vector = vector ? 1 : 0;
  return pairs;
}

device::Integers integers_of(const TensorView& view) {
  if (!view.given()) return {};
  return {static_cast<const int*>(view.address()), view.strides[0]};
}

// In f32, within its finite numbers.
float to_float(double value) {
  constexpr double kMax = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(value, -kMax, kMax));
}

void fill_sizes(const Problem& p, device::Arguments& a) {
  a.batch = static_cast<int>(p.batch);
  a.heads_q = static_cast<int>(p.heads_q);
  a.heads_kv = static_cast<int>(p.heads_kv);
  a.heads_per_kv = static_cast<int>(p.heads_q / p.heads_kv);
  a.max_len_q = static_cast<int>(p.len_q);
  a.max_len_kv = static_cast<int>(p.len_kv);
  a.total_q = static_cast<int>(p.total_q);
  a.total_kv = static_cast<int>(p.total_kv);
  a.packed_q = p.layout_q == Layout::packed ? 1 : 0;
  a.packed_kv = p.layout_kv == Layout::packed ? 1 : 0;
  a.dim_qk = static_cast<int>(p.dim_qk);
  a.dim_vo = static_cast<int>(p.dim_vo);
}

// Sides of the window are counted from the clamped diagonal, so that an end at diag +- a side is
// where it was before the clamping.
void fill_visibility(const Problem& p, const Arguments& from, device::Arguments& a) {
  std::int64_t diag = 0;
  a.bottom_right = p.diagonal == Diagonal::bottom_right ? 1 : 0;
  if (p.diagonal == Diagonal::explicit_value) diag = core::explicit_diagonal(from);
  const auto clamped = [](std::int64_t value) {
    return std::clamp<std::int64_t>(value, -kUnlimited, kUnlimited);
  };
  a.diag = clamped(diag);
  std::int64_t begin = -kUnlimited;
  std::int64_t end = kUnlimited;
  if (p.window_left) begin = clamped(core::saturating_add(diag, -*p.window_left));
  if (p.window_right) end = clamped(core::saturating_add(diag, *p.window_right));
  if (p.causal) end = std::min<std::int64_t>(end, a.diag);
  a.window_left = a.diag - begin;
  a.window_right = end - a.diag;
}

// tanh(x) / x = sum of c_n x^2n to 7e-8 for |x| up to 0.6: fitted to the relative error by iterated
// least squares. Of raw products x with scale and cap in the coefficients.
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
  // Squares of products within reach are finite.
  a.cap_reach = fits ? to_float(std::min(kReach / std::abs(ratio), 1e18)) : -1.0f;
  a.cap_unit = to_float(1.0 / (softcap * kLog2E));
}

void fill_scores(const Problem& p, const Arguments& from, device::Arguments& a) {
  const double scale = from.scale ? *from.scale : 1.0 / std::sqrt(static_cast<double>(p.dim_qk));
  a.scale = to_float(scale);
  // Not 0: a hidden score, -inf, is multiplied by it.
  a.scale_log2 = to_float(std::max(std::abs(scale) * kLog2E, 1.2e-38));
  a.negative_scale = scale < 0.0 ? 1 : 0;
  if (p.softcap) {
    // Smaller caps are 0 in f32, and larger ones none.
    const double softcap = std::clamp(from.softcap, 1e-20, 1e20);
    a.softcap = to_float(softcap);
    a.inverse_cap = to_float(scale / softcap);
    fill_cap_series(scale, softcap, a);
  }
  if (from.alibi_slopes.given()) {
    const TensorView& slopes = from.alibi_slopes;
    const bool per_batch = slopes.rank == 2;
    a.slopes = static_cast<const float*>(slopes.address());
    a.slopes_stride_batch = per_batch ? stride_bytes(slopes, 0) : 0;
    a.slopes_stride_head = stride_bytes(slopes, per_batch ? 1 : 0);
  }
  if (from.sinks.given()) {
    a.sinks = static_cast<const float*>(from.sinks.address());
    a.sinks_stride = stride_bytes(from.sinks, 0);
  }
}

void fill_dropout(const Problem& p, const Arguments& from, device::Arguments& a) {
  if (!p.dropout) return;
  const std::uint32_t threshold = core::dropout_threshold(from.dropout_p);
  a.keep_threshold = threshold;
  a.keep_scale = static_cast<float>(256.0 / threshold);
  static_assert(sizeof(std::uint64_t) == sizeof(unsigned long long));
  a.seed_at = reinterpret_cast<const unsigned long long*>(from.seed.device);
  a.offset_at = reinterpret_cast<const unsigned long long*>(from.offset.device);
  a.seed = from.seed.host;
  a.offset = from.offset.host;
  const Origin& origin = from.origin;
  const std::int64_t heads = origin.heads_q != 0 ? origin.heads_q : p.heads_q;
  a.origin_q = static_cast<unsigned>(origin.q);
  a.origin_kv = static_cast<unsigned>(origin.kv);
  a.origin_head = static_cast<unsigned>(origin.batch) * static_cast<unsigned>(heads) +
                  static_cast<unsigned>(origin.head);
  a.origin_heads = static_cast<unsigned>(heads);
}

void fill_gradients(const Problem& p, const Arguments& from, device::Arguments& a) {
  a.dout = rows_of(from.dout);
  a.dq = rows_of(from.dq);
  a.dk = rows_of(from.dk);
  a.dv = rows_of(from.dv);
  a.dlse = statistics_of(from.dlse);
  a.delta = statistics_of(from.delta);
  a.dbias = pairs_of(from.dbias, p.bias);
  a.dbias_full =
      (p.bias.batch ? 8 : 0) | (p.bias.head ? 4 : 0) | (p.bias.q ? 2 : 0) | (p.bias.kv ? 1 : 0);
  if (from.dsink.given()) {
    a.dsink = static_cast<float*>(from.dsink.address());
    a.dsink_stride = stride_bytes(from.dsink, 0);
  }
  a.accumulate = p.accumulate ? 1 : 0;
}

}  // namespace

device::Arguments device_arguments(Pass pass, const Problem& p, const Arguments& from) {
  device::Arguments a;
  a.q = rows_of(from.q);
  a.k = rows_of(from.k);
  a.v = rows_of(from.v);
  a.o = rows_of(from.o);
  a.lse = statistics_of(from.lse);
  a.bias = pairs_of(from.bias, p.bias);
  a.mask = pairs_of(from.mask, p.mask);
  a.kv_begin = indices_of(from.kv_begin);
  a.kv_end = indices_of(from.kv_end);
  a.len_q = integers_of(from.len_q);
  a.len_kv = integers_of(from.len_kv);
  a.cu_len_q = integers_of(from.cu_len_q);
  a.cu_len_kv = integers_of(from.cu_len_kv);
  if (from.nonfinite_count.given()) {
    a.nonfinite_count = static_cast<unsigned*>(from.nonfinite_count.address());
  }
  fill_sizes(p, a);
  fill_visibility(p, from, a);
  fill_scores(p, from, a);
  fill_dropout(p, from, a);
  if (pass == Pass::backward) fill_gradients(p, from, a);
  return a;
}

bool loads_by_elements(Pass pass, const Problem& problem, const device::Arguments& a) {
  const auto whole = [&](const Rows& rows) {
    return rows.vector != 0 && rows.type == static_cast<int>(problem.dtype);
  };
  // Dropout that is placed within a block of 16 is drawn by elements too.
  const bool within = problem.dropout && (a.origin_q | a.origin_kv) % 16 != 0;
  return within ||
         !(whole(a.q) && whole(a.k) && whole(a.v) && (pass != Pass::backward || whole(a.dout)));
}

}  // namespace attn::cuda
