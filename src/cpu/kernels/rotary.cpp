// Rotary embedding (Su et al. 2021, RoFormer, section 3.2.2). One pass over the rows; cosines and
// sines are made once a row, from f64 angles, for all its heads.
#include <algorithm>
#include <cmath>

#include "cpu/kernels/element.hpp"
#include "cpu/kernels/kernels.hpp"

namespace attn::cpu {
namespace {

constexpr std::int64_t kMaxDim = 256;

template <class T>
struct Angles {
  double frequency[kMaxDim / 2];
  T cos[kMaxDim / 2];
  T sin[kMaxDim / 2];

  explicit Angles(const RotaryJob& job) {
    for (std::int64_t m = 0; job.cos == nullptr && m < job.rot_dim / 2; ++m) {
      frequency[m] =
          std::pow(job.base, -2.0 * static_cast<double>(m) / static_cast<double>(job.rot_dim));
    }
  }

  void set(const RotaryJob& job, std::int64_t position) {
    const std::int64_t half = job.rot_dim / 2;
    if (job.cos != nullptr) {
      position = std::clamp<std::int64_t>(position, 0, job.table_rows - 1);
      std::copy_n(reinterpret_cast<const T*>(job.cos + position * job.cos_stride), half, cos);
      std::copy_n(reinterpret_cast<const T*>(job.sin + position * job.sin_stride), half, sin);
    } else {
      for (std::int64_t m = 0; m < half; ++m) {
        const double angle = static_cast<double>(position) * frequency[m];
        cos[m] = static_cast<T>(std::cos(angle));
        sin[m] = static_cast<T>(std::sin(angle));
      }
    }
    if (job.inverse) {
      for (std::int64_t m = 0; m < half; ++m) sin[m] = -sin[m];
    }
  }
};

template <class T>
void rotate(const RotaryJob& job, const Angles<T>& angles, T* row) {
  const std::int64_t half = job.rot_dim / 2;
  for (std::int64_t m = 0; m < half; ++m) {
    const bool interleaved = job.style == Rope::interleaved;
    T& x = row[interleaved ? 2 * m : m];
    T& y = row[interleaved ? 2 * m + 1 : m + half];
    const T rotated = x * angles.cos[m] - y * angles.sin[m];
    y = x * angles.sin[m] + y * angles.cos[m];
    x = rotated;
  }
}

}  // namespace

template <class T>
void rotate_rows(const Call& call, const RotaryJob& job, const RotaryEntry& entry,
                 std::int64_t begin, std::int64_t end) {
  Angles<T> angles(job);
  T row[kMaxDim];
  const std::int64_t in_bytes = size_of(job.in.dtype);
  const std::int64_t out_bytes = size_of(job.out.dtype);
  for (std::int64_t r = begin; r < end; ++r) {
    angles.set(job, job.positions.given() ? index_at(job.positions, entry.b, entry.first_in, r)
                                          : r + entry.position0);
    for (std::int64_t head = 0; head < job.heads; ++head) {
      const char* source = row_address(call, job.in, entry.b, entry.first_in, r, head);
      char* target = row_address(call, job.out, entry.b, entry.first_out, entry.out_row0 + r, head);
      if (source == nullptr || target == nullptr) continue;
      for (std::int64_t c = 0; c < job.dim; ++c) {
        row[c] = LoadElement<T>(job.in.dtype, source + c * in_bytes);
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

template void rotate_rows<float>(const Call&, const RotaryJob&, const RotaryEntry&, std::int64_t,
                                 std::int64_t);
template void rotate_rows<double>(const Call&, const RotaryJob&, const RotaryEntry&, std::int64_t,
                                  std::int64_t);

}  // namespace attn::cpu
