// Rotary embedding (Su et al. 2021, RoFormer, section 3.2.2). One pass over the rows; cosines and
// sines are made once a row, from f64 angles, for all its heads; the rotation itself is in f64 too,
// so that a stored row is rounded once. The cost hides behind the cosines.
#include <algorithm>
#include <cmath>

#include "core/validate.hpp"
#include "cpu/kernels/element.hpp"
#include "cpu/kernels/kernels.hpp"

namespace attn::cpu {
namespace {

using core::kMaxDim;

struct Angles {
  double frequency[kMaxDim / 2];
  double cos[kMaxDim / 2];
  double sin[kMaxDim / 2];

  explicit Angles(const RotaryJob& job) {
    for (std::int64_t m = 0; job.cos == nullptr && m < job.rot_dim / 2; ++m) {
      frequency[m] =
          std::pow(job.base, -2.0 * static_cast<double>(m) / static_cast<double>(job.rot_dim));
    }
  }

  void set(const RotaryJob& job, std::int64_t position) {
    const double direction = job.inverse ? -1.0 : 1.0;
    const std::int64_t row = std::clamp<std::int64_t>(position, 0, job.table_rows - 1);
    const std::int64_t bytes = size_of(job.table_dtype);
    for (std::int64_t m = 0; m < job.rot_dim / 2; ++m) {
      if (job.cos != nullptr) {
        cos[m] = LoadElement<double>(job.table_dtype, job.cos + row * job.cos_stride + m * bytes);
        sin[m] = LoadElement<double>(job.table_dtype, job.sin + row * job.sin_stride + m * bytes);
      } else {
        const double angle = static_cast<double>(position) * frequency[m];
        cos[m] = std::cos(angle);
        sin[m] = std::sin(angle);
      }
      sin[m] *= direction;
    }
  }
};

void rotate(const RotaryJob& job, const Angles& angles, double* row) {
  const std::int64_t half = job.rot_dim / 2;
  for (std::int64_t m = 0; m < half; ++m) {
    const bool interleaved = job.style == Rope::interleaved;
    double& x = row[interleaved ? 2 * m : m];
    double& y = row[interleaved ? 2 * m + 1 : m + half];
    const double rotated = x * angles.cos[m] - y * angles.sin[m];
    y = x * angles.sin[m] + y * angles.cos[m];
    x = rotated;
  }
}

}  // namespace

void rotate_rows(const Call& call, const RotaryJob& job, const RotaryEntry& entry,
                 std::int64_t begin, std::int64_t end) {
  Angles angles(job);
  double row[kMaxDim];
  const std::int64_t in_bytes = size_of(job.in.dtype);
  const std::int64_t out_bytes = size_of(job.out.dtype);
  for (std::int64_t r = begin; r < end; ++r) {
    if (job.style != Rope::none) {
      angles.set(job, job.positions.given() ? index_at(job.positions, entry.b, entry.first_in, r)
                                            : r + entry.position0);
    }
    for (std::int64_t head = 0; head < job.heads; ++head) {
      const char* source = row_address(call, job.in, entry.b, entry.first_in, r, head);
      char* target = row_address(call, job.out, entry.b, entry.first_out, entry.out_row0 + r, head);
      if (source == nullptr || target == nullptr) continue;
      const std::int64_t head_kv = head / (job.heads / call.problem.heads_kv);
      const double descale = job.in.descale_rows ? row_descale(call, job.in, entry.b, r, head_kv)
                                                 : job.in.descale(entry.b, head_kv);
      for (std::int64_t c = 0; c < job.dim; ++c) {
        row[c] = descale * LoadElement<double>(job.in.dtype, source + c * in_bytes);
      }
      if (job.style != Rope::none) rotate(job, angles, row);
      std::uint32_t replaced = 0;
      for (std::int64_t c = 0; c < job.dim; ++c) {
        replaced += StoreElement(job.out.dtype, target + c * out_bytes, row[c], job.accumulate,
                                 job.zero_nonfinite);
      }
      count_nonfinite(call, replaced);
    }
  }
}

}  // namespace attn::cpu
