// Overlap of strided views, as a bounded search for small integer combinations: see overlap.hpp.
//
// Elements of a view lie at base + sum x_d * stride_d. Two views overlap if the addresses of two of
// their elements are close enough, so every check has the form: is there a sum of x_t * stride_t
// within [low, high], with each x_t within its bounds? If strides nest, each level of the search
// has one or two candidates.
#include "core/overlap.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

#include "core/element_size.hpp"

namespace attn::core {

namespace {

struct Term {
  std::int64_t stride = 0;  // bytes, > 0
  std::int64_t low = 0;     // bounds of the index (difference)
  std::int64_t high = 0;
};

// Sorted by descending stride.
class Terms {
 public:
  void add(const Term& term) {
    int at = count_++;
    for (; at > 0 && (*this)[at - 1].stride < term.stride; --at) (*this)[at] = (*this)[at - 1];
    (*this)[at] = term;
  }
  [[nodiscard]] int size() const { return count_; }
  [[nodiscard]] Term& operator[](int at) { return items_[static_cast<std::size_t>(at)]; }

 private:
  std::array<Term, 2 * static_cast<std::size_t>(kMaxRank)> items_{};
  int count_ = 0;
};

constexpr std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  return a / b - (a % b != 0 && a < 0);
}

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return -floor_div(-a, b);
}

class Search {
 public:
  explicit Search(Terms& terms) : terms_(terms) {
    for (int t = terms.size() - 1; t >= 0; --t) {
      const auto at = static_cast<std::size_t>(t);
      least_[at] = least_[at + 1] + terms[t].stride * terms[t].low;
      most_[at] = most_[at + 1] + terms[t].stride * terms[t].high;
    }
  }

  // Whether the terms from `at` on can sum to a value in [low, high]. Also true if the search takes
  // too many steps.
  bool reaches(int at, std::int64_t low, std::int64_t high) {
    const auto index = static_cast<std::size_t>(at);
    if (high < least_[index] || low > most_[index]) return false;
    if (at == terms_.size()) return true;
    if (--patience_ < 0) return true;
    const Term& term = terms_[at];
    const std::int64_t first = std::max(term.low, ceil_div(low - most_[index + 1], term.stride));
    const std::int64_t last = std::min(term.high, floor_div(high - least_[index + 1], term.stride));
    for (std::int64_t x = first; x <= last; ++x) {
      if (reaches(at + 1, low - x * term.stride, high - x * term.stride)) return true;
    }
    return false;
  }

 private:
  Terms& terms_;
  std::array<std::int64_t, 2 * static_cast<std::size_t>(kMaxRank) + 1> least_{};
  std::array<std::int64_t, 2 * static_cast<std::size_t>(kMaxRank) + 1> most_{};
  int patience_ = 4096;
};

// The view as runs of contiguous bytes: the last dimension where its stride is 1, else one element.
struct Runs {
  std::int64_t bytes = 0;
  int outer = 0;  // dimensions [0, outer) place the runs
};

Runs runs_of(const TensorView& view) {
  const std::int64_t element = element_size(view.dtype);
  const auto last = static_cast<std::size_t>(view.rank - 1);
  if (view.strides[last] == 1 || view.shape[last] == 1) {
    return {view.shape[last] * element, view.rank - 1};
  }
  return {element, view.rank};
}

bool touches_other_memory(const TensorView& a, const TensorView& b) {
  if (a.device != b.device || a.ordinal != b.ordinal) return true;
  return a.device == Device::webgpu && a.data != b.data;
}

// False if address + offset overflows 64 bits.
bool begin_of(const TensorView& view, std::int64_t& begin) {
  const auto data = static_cast<std::int64_t>(
      view.device == Device::webgpu ? 0 : reinterpret_cast<std::uintptr_t>(view.data));
  return !__builtin_add_overflow(data, view.offset_bytes, &begin);
}

bool is_empty(const TensorView& view) {
  for (int d = 0; d < view.rank; ++d) {
    if (view.shape[static_cast<std::size_t>(d)] == 0) return true;
  }
  return view.rank == 0;
}

}  // namespace

bool byte_range(const TensorView& view, ByteRange& range) {
  range = {};
  if (is_empty(view)) return true;
  const std::int64_t element = element_size(view.dtype);
  std::int64_t span = element;
  for (int d = 0; d < view.rank; ++d) {
    const auto at = static_cast<std::size_t>(d);
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(view.shape[at] - 1, view.strides[at], &reach) ||
        __builtin_mul_overflow(reach, element, &reach) ||
        __builtin_add_overflow(span, reach, &span) || span > kMaxBytes) {
      return false;
    }
  }
  return begin_of(view, range.begin) && !__builtin_add_overflow(range.begin, span, &range.end);
}

bool same_view(const TensorView& a, const TensorView& b) {
  if (touches_other_memory(a, b) || a.dtype != b.dtype || a.rank != b.rank) return false;
  std::int64_t begin_a = 0;
  std::int64_t begin_b = 0;
  if (!begin_of(a, begin_a) || !begin_of(b, begin_b) || begin_a != begin_b) return false;
  for (int d = 0; d < a.rank; ++d) {
    const auto at = static_cast<std::size_t>(d);
    if (a.shape[at] != b.shape[at]) return false;
    if (a.shape[at] > 1 && a.strides[at] != b.strides[at]) return false;
  }
  return true;
}

bool share_bytes(const TensorView& a, const TensorView& b) {
  if (touches_other_memory(a, b)) return false;
  ByteRange range_a;
  ByteRange range_b;
  if (!byte_range(a, range_a) || !byte_range(b, range_b)) return true;
  if (range_a.begin == range_a.end || range_b.begin == range_b.end) return false;
  if (range_a.end <= range_b.begin || range_b.end <= range_a.begin) return false;

  // The difference of two addresses is a sum over a's strides minus a sum over b's. Equal strides
  // of a and b are merged into one term.
  const Runs runs_a = runs_of(a);
  const Runs runs_b = runs_of(b);
  Terms terms;
  for (int d = 0; d < runs_a.outer; ++d) {
    const auto at = static_cast<std::size_t>(d);
    if (a.shape[at] <= 1 || a.strides[at] == 0) continue;  // the stride is not used
    terms.add({a.strides[at] * element_size(a.dtype), 0, a.shape[at] - 1});
  }
  for (int d = 0; d < runs_b.outer; ++d) {
    const auto at = static_cast<std::size_t>(d);
    if (b.shape[at] <= 1 || b.strides[at] == 0) continue;
    const std::int64_t stride = b.strides[at] * element_size(b.dtype);
    Term term{stride, 1 - b.shape[at], 0};
    for (int t = 0; t < terms.size(); ++t) {
      if (terms[t].stride != stride || terms[t].low < 0) continue;
      terms[t].low = term.low;
      term.stride = 0;
      break;
    }
    if (term.stride > 0) terms.add(term);
  }
  const std::int64_t apart = range_b.begin - range_a.begin;
  return Search(terms).reaches(0, apart - runs_a.bytes + 1, apart + runs_b.bytes - 1);
}

bool overlaps_itself(const TensorView& view) {
  if (is_empty(view)) return false;
  const Runs runs = runs_of(view);
  Terms terms;
  for (int d = 0; d < runs.outer; ++d) {
    const auto at = static_cast<std::size_t>(d);
    if (view.shape[at] <= 1) continue;
    if (view.strides[at] == 0) return true;
    terms.add({view.strides[at] * element_size(view.dtype), 0, view.shape[at] - 1});
  }

  bool nests = true;
  std::int64_t inner = runs.bytes;
  for (int t = terms.size() - 1; t >= 0; --t) {
    if (terms[t].stride < inner) nests = false;
    inner += terms[t].stride * terms[t].high;
  }
  if (nests) return false;

  // Searches for two different index tuples that are less than a run apart. `lead` is the first
  // dimension where they differ; that difference is positive without loss of generality.
  for (int lead = 0; lead < terms.size(); ++lead) {
    Terms differences;
    differences.add({terms[lead].stride, 1, terms[lead].high});
    for (int t = lead + 1; t < terms.size(); ++t) {
      differences.add({terms[t].stride, -terms[t].high, terms[t].high});
    }
    if (Search(differences).reaches(0, 1 - runs.bytes, runs.bytes - 1)) return true;
  }
  return false;
}

}  // namespace attn::core
