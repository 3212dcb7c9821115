// Rotary embedding (Su et al. 2021, RoFormer, section 3.2.2) in one pass over the rows. Cosines and
// sines are computed once per row, from f64 angles, and shared by its heads. The rotation is in f64
// too.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/rotary.cpp"
#include <hwy/foreach_target.h>
// foreach_target comes first.
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "core/validate.hpp"
#include "cpu/kernels/element.hpp"
#include "cpu/kernels/kernels.hpp"
#include "cpu/kernels/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attn::cpu::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using core::kMaxDim;

// Cosines and sines of a row. Every 16th position calls the standard library (25 ns for each). The
// next 15 positions are computed from it by rotation, with an error of a few 1e-16. Chains begin at
// multiples of 16, so the values depend only on the position. `exact` (f64 rows): every position
// calls the standard library.
class Angles {
 public:
  Angles(const RotaryJob& job, bool exact)
      : job_(job), pairs_(job.rot_dim / 2), chained_(!exact && job.cos == nullptr) {
    const double direction = job.inverse ? -1.0 : 1.0;
    if (job.style == Rope::none || job.cos != nullptr) return;
    for (std::int64_t m = 0; m < pairs_; ++m) {
      frequency_[m] = direction * std::pow(job.base, -2.0 * static_cast<double>(m) /
                                                         static_cast<double>(job.rot_dim));
      if (!chained_) continue;
      step_cos_[m] = std::cos(frequency_[m]);
      step_sin_[m] = std::sin(frequency_[m]);
    }
  }
  [[nodiscard]] const double* cosines() const { return cos_; }
  [[nodiscard]] const double* sines() const { return sin_; }

  void Set(std::int64_t position) {
    if (job_.cos != nullptr) return Read(position);
    if (!chained_) return Start(position);
    const std::int64_t first = position & ~(kChain - 1);
    std::int64_t steps = 1;
    if (position != last_ + 1 || position == first) {
      Start(first);
      steps = position - first;
    }
    for (; steps > 0; --steps) Step();
    last_ = position;
  }

 private:
  static constexpr std::int64_t kChain = 16;

  void Read(std::int64_t position) {
    const double direction = job_.inverse ? -1.0 : 1.0;
    const std::int64_t row = std::clamp<std::int64_t>(position, 0, job_.table_rows - 1);
    const std::int64_t bytes = size_of(job_.table_dtype);
    const char* cos = job_.cos + row * job_.cos_stride;
    const char* sin = job_.sin + row * job_.sin_stride;
    for (std::int64_t m = 0; m < pairs_; ++m) {
      cos_[m] = LoadElement<double>(job_.table_dtype, cos + m * bytes);
      sin_[m] = direction * LoadElement<double>(job_.table_dtype, sin + m * bytes);
    }
  }
  void Start(std::int64_t position) {
    for (std::int64_t m = 0; m < pairs_; ++m) {
      const double angle = static_cast<double>(position) * frequency_[m];
      cos_[m] = std::cos(angle);
      sin_[m] = std::sin(angle);
    }
  }
  void Step() {
    for (std::int64_t m = 0; m < pairs_; ++m) {
      const double cos = cos_[m] * step_cos_[m] - sin_[m] * step_sin_[m];
      sin_[m] = sin_[m] * step_cos_[m] + cos_[m] * step_sin_[m];
      cos_[m] = cos;
    }
  }

  const RotaryJob& job_;
  std::int64_t pairs_;
  bool chained_;
  std::int64_t last_ = std::int64_t{1} << 62;  // no valid position
  double frequency_[kMaxDim / 2];
  double step_cos_[kMaxDim / 2];
  double step_sin_[kMaxDim / 2];
  double cos_[kMaxDim / 2];
  double sin_[kMaxDim / 2];
};

// Rotates pairs of elements of type T in f64, with one rounding of the result.
template <class T>
class RowRotation {
 public:
  static constexpr hn::ScalableTag<double> d{};
  static constexpr std::int64_t kLanes = hn::MaxLanes(d);
  using V = hn::Vec<hn::ScalableTag<double>>;

  RowRotation(Rope style, std::int64_t half)
      : interleaved_(style == Rope::interleaved), half_(half) {}

  // Rotates pairs [m, m + kLanes).
  void Rotate(T* row, std::int64_t m, const double* cosines, const double* sines) const {
    const hn::Rebind<T, decltype(d)> dt;
    auto x = hn::Zero(dt);
    auto y = x;
    if (interleaved_) {
      hn::LoadInterleaved2(dt, row + 2 * m, x, y);
    } else {
      x = hn::LoadU(dt, row + m);
      y = hn::LoadU(dt, row + m + half_);
    }
    const auto cos = hn::LoadU(d, cosines + m);
    const auto sin = hn::LoadU(d, sines + m);
    const V wide_x = Widen(x);
    const V wide_y = Widen(y);
    x = Narrow(hn::MulSub(wide_x, cos, hn::Mul(wide_y, sin)));
    y = Narrow(hn::MulAdd(wide_x, sin, hn::Mul(wide_y, cos)));
    if (interleaved_) {
      hn::StoreInterleaved2(x, y, dt, row + 2 * m);
    } else {
      hn::StoreU(x, dt, row + m);
      hn::StoreU(y, dt, row + m + half_);
    }
  }

  // Rotates pair m.
  void RotateOne(T* row, std::int64_t m, double cos, double sin) const {
    T& x = row[interleaved_ ? 2 * m : m];
    T& y = row[interleaved_ ? 2 * m + 1 : m + half_];
    const auto wide_x = static_cast<double>(x);
    const auto wide_y = static_cast<double>(y);
    x = static_cast<T>(wide_x * cos - wide_y * sin);
    y = static_cast<T>(wide_x * sin + wide_y * cos);
  }

 private:
  template <class W>
  static V Widen(W values) {
    if constexpr (sizeof(T) == 4) {
      return hn::PromoteTo(d, values);
    } else {
      return values;
    }
  }
  static hn::Vec<hn::Rebind<T, hn::ScalableTag<double>>> Narrow(V values) {
    if constexpr (sizeof(T) == 4) {
      return hn::DemoteTo(hn::Rebind<T, hn::ScalableTag<double>>(), values);
    } else {
      return values;
    }
  }

  bool interleaved_;
  std::int64_t half_;
};

template <class T>
void Rotate(const RotaryJob& job, const Angles& angles, T* row) {
  const std::int64_t half = job.rot_dim / 2;
  const RowRotation<T> turn(job.style, half);
  std::int64_t m = 0;
  for (; m + RowRotation<T>::kLanes <= half; m += RowRotation<T>::kLanes) {
    turn.Rotate(row, m, angles.cosines(), angles.sines());
  }
  for (; m < half; ++m) turn.RotateOne(row, m, angles.cosines()[m], angles.sines()[m]);
}

template <class T>
void RotateRowsOf(const Call& call, const RotaryJob& job, const RotaryEntry& entry,
                  std::int64_t begin, std::int64_t end) {
  Angles angles(job, sizeof(T) == 8);
  alignas(64) T row[kMaxDim];
  for (std::int64_t r = begin; r < end; ++r) {
    if (job.style != Rope::none) {
      angles.Set(job.positions.given() ? index_at(job.positions, entry.b, entry.first_in, r)
                                       : r + entry.position0);
    }
    for (std::int64_t head = 0; head < job.heads; ++head) {
      const char* source = row_address(call, job.in, entry.b, entry.first_in, r, head);
      char* target = row_address(call, job.out, entry.b, entry.first_out, entry.out_row0 + r, head);
      if (source == nullptr || target == nullptr) continue;
      const std::int64_t head_kv = head / (job.heads / call.problem.heads_kv);
      const float descale = job.in.descale_rows ? row_descale(call, job.in, entry.b, r, head_kv)
                                                : job.in.descale(entry.b, head_kv);
      LoadRow(job.in.dtype, source, job.dim, job.dim, row, descale);
      if (job.style != Rope::none) Rotate(job, angles, row);
      count_nonfinite(
          call, StoreRow(job.out.dtype, target, row, job.dim, job.accumulate, job.zero_nonfinite));
    }
  }
}

}  // namespace

void RotateRows(const Call& call, const RotaryJob& job, const RotaryEntry& entry,
                std::int64_t begin, std::int64_t end) {
  if (job.in.dtype == DType::f64) {
    RotateRowsOf<double>(call, job, entry, begin, end);
  } else {
    RotateRowsOf<float>(call, job, entry, begin, end);
  }
}

}  // namespace attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attn::cpu {
HWY_EXPORT(RotateRows);

void rotate_rows(const Call& call, const RotaryJob& job, const RotaryEntry& entry,
                 std::int64_t begin, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(RotateRows)(call, job, entry, begin, end);
}
}  // namespace attn::cpu
#endif
