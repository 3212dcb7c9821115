// Few query rows against a cache. Memory bandwidth is the limit, so keys and values are read once,
// in place, and prefetched one tile ahead.
#if defined(ATTN_CPU_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTN_CPU_DECODE_INL_H_
#undef ATTN_CPU_DECODE_INL_H_
#else
#define ATTN_CPU_DECODE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cpu/kernels/gemm-inl.h"
#include "cpu/kernels/math-inl.h"
#include "cpu/kernels/rows-inl.h"
#include "cpu/kernels/tile.hpp"

HWY_BEFORE_NAMESPACE();
namespace attn::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// How many of the `count` rows from j on are one stride apart, that is, on the same page.
inline std::int64_t RowsOfPage(const Call& call, const StridedTensor& rows, std::int64_t j,
                               std::int64_t count) {
  if (!rows.paged) return count;
  return std::min(call.problem.page_size - j % call.problem.page_size, count);
}

// missing[j] = 1 where key j0 + j has no page, else 0.
inline void FindMissing(const Call& call, const Entry& entry, std::int64_t j0, std::int64_t keys,
                        std::uint8_t* missing) {
  for (std::int64_t j = 0; j < keys;) {
    // Tests the pages of v: k may be a rotated copy, which has no pages.
    const std::int64_t count = RowsOfPage(call, call.v, j0 + j, keys - j);
    std::fill_n(missing + j, count, has_page(call, entry.b, j0 + j) ? 0 : 1);
    j += count;
  }
}

// Addresses of the keys or values of a tile. `dtype` is a type that loads_as_vectors().
struct CacheTile {
  DType dtype = DType::none;
  const char* rows[kMaxTileKv];
};

// Whether rows are converted while they are multiplied, not before.
template <class T>
bool ReadsInPlace(const StridedTensor& rows, std::int64_t dim, std::int64_t padded) {
  return loads_as_vectors<T>(rows.dtype) && dim == padded;
}

// Finds rows [j0, j0 + count) of a key head, then zeros up to `tile` rows. Rows are converted only
// if their type can't be loaded as vectors. converted: [tile x padded].
template <class T>
HWY_INLINE void FindCacheTile(const Call& call, const StridedTensor& rows, const Entry& entry,
                              std::int64_t head, std::int64_t j0, std::int64_t count,
                              std::int64_t tile, std::int64_t dim, std::int64_t padded,
                              T* converted, CacheTile& to) {
  const auto* zeros = reinterpret_cast<const char*>(converted + (tile - 1) * padded);
  const auto address = [&](std::int64_t j) {
    return row_address(call, rows, entry.b, entry.first_kv, j0 + j, head);
  };
  if (ReadsInPlace<T>(rows, dim, padded)) {
    to.dtype = rows.dtype;
    for (std::int64_t j = 0; j < count;) {
      const std::int64_t end = j + RowsOfPage(call, rows, j0 + j, count - j);
      const char* row = address(j);
      const std::int64_t stride = row == nullptr ? 0 : rows.stride_row;
      if (row == nullptr) row = zeros;  // no page
      for (; j < end; ++j, row += stride) to.rows[j] = row;
    }
    std::fill_n(converted + (tile - 1) * padded, padded, T(0));
    std::fill(to.rows + count, to.rows + tile, zeros);
    return;
  }
  const float of_all = rows.descale_rows ? 1.0f : rows.descale(entry.b, head);
  for (std::int64_t j = 0; j < count; ++j) {
    const char* source = address(j);
    LoadRow(rows.dtype, source, dim, padded, converted + j * padded,
            rows.descale_rows && source != nullptr ? row_descale(call, rows, entry.b, j0 + j, head)
                                                   : of_all);
  }
  std::fill(converted + count * padded, converted + tile * padded, T(0));
  to.dtype = kArithmetic<T>;
  for (std::int64_t j = 0; j < tile; ++j) {
    to.rows[j] = reinterpret_cast<const char*>(converted + j * padded);
  }
}

// Prefetches rows [begin, end) of keys and values of `heads` key heads from `head` on. If heads are
// next to each other, all keys of a row are adjacent, and so are its values. It prefetches the keys
// first, then the values: memory comes closer to its highest rate with longer runs
// (docs/kernels/cpu_decode.md). It advances in small steps, so that memory works while the core
// computes. It prefetches into L2, because L1 has fewer line fill buffers.
class RowsAhead {
 public:
  RowsAhead(const Call& call, const Entry& entry, std::int64_t head, std::int64_t heads,
            core::KeyRange rows)
      : call_(call),
        entry_(entry),
        head_(head),
        heads_(heads),
        end_(rows.end),
        j_(rows.begin),
        k_bytes_(call.problem.dim_qk * core::element_size(call.k.dtype)),
        v_bytes_(call.problem.dim_vo * core::element_size(call.v.dtype)) {}

  void Restart(std::int64_t row) {
    if (j_ == row) return;
    j_ = row;
    n_ = left_ = 0;
  }
  // Prefetches as many rows as `count` keys and their values have.
  HWY_INLINE void Step(std::int64_t count) {
    for (; count > 0 && j_ < end_; --count) {
      if (n_ == 0) Find();
      if (v_ != nullptr) {
        Prefetch(Nth(n_));
        Prefetch(Nth(n_ + 1));
      }
      Advance();
    }
  }
  // A key or value of one head.
  struct Run {
    const char* row;
    std::int64_t bytes;
  };
  // Instead of Step(count): stores what it would prefetch in `to`. Returns the number of runs, at
  // most 2 * count.
  std::int64_t Take(std::int64_t count, Run* to) {
    std::int64_t taken = 0;
    for (; count > 0 && j_ < end_; --count) {
      if (n_ == 0) Find();
      if (v_ != nullptr) {
        to[taken++] = Nth(n_);
        to[taken++] = Nth(n_ + 1);
      }
      Advance();
    }
    return taken;
  }
  static HWY_INLINE void Prefetch(const Run& run) { prefetch_lines<false, 2>(run.row, run.bytes); }

 private:
  void Advance() {
    n_ += 2;
    if (n_ < 2 * heads_) return;
    n_ = 0;
    ++j_;
  }
  void Find() {
    if (left_ > 0) {
      --left_;
      if (v_ == nullptr) return;
      k_ += call_.k.stride_row;
      v_ += call_.v.stride_row;
      return;
    }
    k_ = row_address(call_, call_.k, entry_.b, entry_.first_kv, j_, head_);
    v_ = row_address(call_, call_.v, entry_.b, entry_.first_kv, j_, head_);
    left_ = RowsOfPage(call_, call_.v, j_, end_ - j_) - 1;
  }
  // Row j_ has the keys of all heads, then the values.
  [[nodiscard]] HWY_INLINE Run Nth(std::int64_t n) const {
    if (n < heads_) return {k_ + n * call_.k.stride_head, k_bytes_};
    return {v_ + (n - heads_) * call_.v.stride_head, v_bytes_};
  }

  const Call& call_;
  const Entry& entry_;
  std::int64_t head_, heads_, end_;
  std::int64_t j_;         // the next row
  std::int64_t n_ = 0;     // what Nth() takes next, an even number
  std::int64_t left_ = 0;  // rows after j_ that are one stride apart
  std::int64_t k_bytes_, v_bytes_;
  const char* k_ = nullptr;  // row j_ of the first head
  // Null if the row has no page. k_ does not tell: k may be a rotated copy, which has no pages.
  const char* v_ = nullptr;
};

inline constexpr std::int64_t kKeysAtOnce = kRowsAtOnce;
inline constexpr std::int64_t kKeysOfValues = 8;  // of a step of AddValues()

// Two vectors of a row are loaded at a time. For bf16 they are the elements with an even and those
// with an odd index: a shift and an AND turn 32-bit words into them, while elements in order take
// two loads that widen and two shifts. q and o then have this order too ("split"). Elements past
// the last full pair of vectors stay in order.
template <DType kType, class T>
constexpr bool is_split() {
  return kType == DType::bf16 && sizeof(T) == 4 && HWY_TARGET != HWY_SCALAR;
}

template <DType kType, class D, class V = hn::Vec<D>>
HWY_INLINE void LoadPair(D d, const char* row, std::int64_t c, V& first, V& second) {
  using T = hn::TFromD<D>;
  if constexpr (is_split<kType, T>()) {
    const hn::Repartition<std::uint16_t, D> d16;
    const hn::Repartition<std::uint32_t, D> d32;
    const auto words =
        hn::BitCast(d32, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(row) + c));
    first = hn::BitCast(d, hn::ShiftLeft<16>(words));
    second = hn::BitCast(d, hn::And(words, hn::Set(d32, 0xFFFF0000U)));
  } else {
    first = LoadVector<kType>(d, row, c);
    second = LoadVector<kType>(d, row, c + static_cast<std::int64_t>(hn::MaxLanes(d)));
  }
}

// Reorders a row of `dim` elements, a multiple of a vector, in place.
template <bool kToSplit, class T>
HWY_INLINE void ReorderRow(T* row, std::int64_t dim) {
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<T> d;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  for (std::int64_t c = 0; c + 2 * kLanes <= dim; c += 2 * kLanes) {
    hn::Vec<decltype(d)> first;
    hn::Vec<decltype(d)> second;
    if constexpr (kToSplit) {
      hn::LoadInterleaved2(d, row + c, first, second);
      hn::Store(first, d, row + c);
      hn::Store(second, d, row + c + kLanes);
    } else {
      first = hn::Load(d, row + c);
      second = hn::Load(d, row + c + kLanes);
      hn::StoreInterleaved2(first, second, d, row + c);
    }
  }
#else
  (void)row;
  (void)dim;
#endif
}

// S of kRows rows and four keys. The keys share each load of q.
template <int kRows, DType kType, class T>
HWY_INLINE void DotBlock(const T* HWY_RESTRICT q, std::int64_t ldq, const char* const* k,
                         std::int64_t dim, T* HWY_RESTRICT s, std::int64_t lds) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  V sum[kRows][kKeysAtOnce];
  for (int r = 0; r < kRows; ++r) {
    for (int n = 0; n < kKeysAtOnce; ++n) sum[r][n] = hn::Zero(d);
  }
  std::int64_t c = 0;
  for (; c + 2 * kLanes <= dim; c += 2 * kLanes) {
    V value[kRows][2];
    for (int r = 0; r < kRows; ++r) {
      value[r][0] = hn::Load(d, q + r * ldq + c);
      value[r][1] = hn::Load(d, q + r * ldq + c + kLanes);
    }
    for (int n = 0; n < kKeysAtOnce; ++n) {
      V first;
      V second;
      LoadPair<kType>(d, k[n], c, first, second);
      for (int r = 0; r < kRows; ++r) {
        sum[r][n] = hn::MulAdd(value[r][1], second, hn::MulAdd(value[r][0], first, sum[r][n]));
      }
    }
  }
  for (; c < dim; c += kLanes) {
    V key[kKeysAtOnce];
    for (int n = 0; n < kKeysAtOnce; ++n) key[n] = LoadVector<kType>(d, k[n], c);
    for (int r = 0; r < kRows; ++r) {
      const V value = hn::Load(d, q + r * ldq + c);
      for (int n = 0; n < kKeysAtOnce; ++n) sum[r][n] = hn::MulAdd(value, key[n], sum[r][n]);
    }
  }
  for (int r = 0; r < kRows; ++r) ReduceRows<Sum>(d, sum[r], s + r * lds);
}

// O += P V for kRows rows and kVectors vectors of columns from c on.
template <int kRows, int kVectors, DType kType, class T>
HWY_INLINE void ValuesBlock(const T* HWY_RESTRICT p, std::int64_t ldp, const char* const* v,
                            std::int64_t keys, std::int64_t c, T* HWY_RESTRICT o,
                            std::int64_t ldo) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  V sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int n = 0; n < kVectors; ++n) sum[r][n] = hn::Zero(d);
  }
  for (std::int64_t j = 0; j < keys; ++j) {
    V value[kVectors];
    if constexpr (kVectors % 2 == 0) {
      for (int n = 0; n < kVectors; n += 2) {
        LoadPair<kType>(d, v[j], c + n * kLanes, value[n], value[n + 1]);
      }
    } else {
      for (int n = 0; n < kVectors; ++n) value[n] = LoadVector<kType>(d, v[j], c + n * kLanes);
    }
    for (int r = 0; r < kRows; ++r) {
      const V weight = hn::Set(d, p[r * ldp + j]);
      for (int n = 0; n < kVectors; ++n) sum[r][n] = hn::MulAdd(weight, value[n], sum[r][n]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int n = 0; n < kVectors; ++n) {
      T* to = o + r * ldo + c + n * kLanes;
      hn::Store(hn::Add(sum[r][n], hn::Load(d, to)), d, to);
    }
  }
}

// Calls body() with the element type of a tile as a compile-time constant.
template <class T, class Body>
HWY_INLINE void WithType(DType dtype, Body&& body) {
  if constexpr (sizeof(T) == 4) {
    if (dtype == DType::bf16) return body(std::integral_constant<DType, DType::bf16>());
    if constexpr (loads_as_vectors<T>(DType::f16)) {
      if (dtype == DType::f16) return body(std::integral_constant<DType, DType::f16>());
    }
  }
  body(std::integral_constant<DType, kArithmetic<T>>());
}

// S[rows x keys] = Q K^T. q [rows x dim] has the order of is_split() and is padded with zeros to
// full vectors; `keys` is a multiple of four. ahead(n) is called after the scores of each n keys.
template <class T, class Ahead>
HWY_NOINLINE void DotRows(const T* q, std::int64_t ldq, std::int64_t rows, const CacheTile& k,
                          std::int64_t first, std::int64_t keys, std::int64_t dim, T* s,
                          std::int64_t lds, Ahead&& ahead) {
  constexpr int kMost = kGemmVectors == 4 ? 4 : 2;  // rows: 4 * kMost accumulators in registers
  WithType<T>(k.dtype, [&](auto type) {
    constexpr DType kType = type();
    for (std::int64_t j = 0; j < keys; j += kKeysAtOnce) {
      const char* const* key = k.rows + first + j;
      std::int64_t r = 0;
      for (; r + kMost <= rows; r += kMost) {
        DotBlock<kMost, kType>(q + r * ldq, ldq, key, dim, s + r * lds + j, lds);
      }
      switch (rows - r) {
        case 3:
          DotBlock<std::min(3, kMost), kType>(q + r * ldq, ldq, key, dim, s + r * lds + j, lds);
          break;
        case 2: DotBlock<2, kType>(q + r * ldq, ldq, key, dim, s + r * lds + j, lds); break;
        case 1: DotBlock<1, kType>(q + r * ldq, ldq, key, dim, s + r * lds + j, lds); break;
        default: break;
      }
      ahead(kKeysAtOnce);
    }
  });
}

template <int kVectors, DType kType, class T>
HWY_INLINE void ValuesColumns(const T* p, std::int64_t ldp, std::int64_t rows, const char* const* v,
                              std::int64_t keys, std::int64_t c, T* o, std::int64_t ldo) {
  constexpr int kMost = 4;
  std::int64_t r = 0;
  for (; r + kMost <= rows; r += kMost) {
    ValuesBlock<kMost, kVectors, kType>(p + r * ldp, ldp, v, keys, c, o + r * ldo, ldo);
  }
  switch (rows - r) {
    case 3: ValuesBlock<3, kVectors, kType>(p + r * ldp, ldp, v, keys, c, o + r * ldo, ldo); break;
    case 2: ValuesBlock<2, kVectors, kType>(p + r * ldp, ldp, v, keys, c, o + r * ldo, ldo); break;
    case 1: ValuesBlock<1, kVectors, kType>(p + r * ldp, ldp, v, keys, c, o + r * ldo, ldo); break;
    default: break;
  }
}

// O[rows x cols] += P V; o has the order of is_split(), cols is padded to full vectors. Takes eight
// keys at a time, so that the prefetches in ahead() are spread over the products.
template <class T, class Ahead>
HWY_NOINLINE void AddValues(const T* p, std::int64_t ldp, std::int64_t rows, const CacheTile& v,
                            std::int64_t first, std::int64_t keys, std::int64_t cols, T* o,
                            std::int64_t ldo, Ahead&& ahead) {
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  constexpr std::int64_t kColumns = kGemmVectors * kLanes;
  constexpr std::int64_t kKeys = kKeysOfValues;
  WithType<T>(v.dtype, [&](auto type) {
    constexpr DType kType = type();
    for (std::int64_t j = 0; j < keys; j += kKeys) {
      const char* const* value = v.rows + first + j;
      const std::int64_t some = std::min(kKeys, keys - j);
      std::int64_t c = 0;
      for (; c + kColumns <= cols; c += kColumns) {
        ValuesColumns<kGemmVectors, kType>(p + j, ldp, rows, value, some, c, o, ldo);
        if (c == 0) ahead(kKeys / 2);
      }
      for (; c + 2 * kLanes <= cols; c += 2 * kLanes) {
        ValuesColumns<2, kType>(p + j, ldp, rows, value, some, c, o, ldo);
      }
      for (; c < cols; c += kLanes) {
        ValuesColumns<1, kType>(p + j, ldp, rows, value, some, c, o, ldo);
      }
      ahead(cols < kColumns ? kKeys : kKeys / 2);
    }
  });
}

}  // namespace attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // ATTN_CPU_DECODE_INL_H_
