// A decode with several query rows per key head, in f32: one step of the online softmax with both
// products. Scores are kept transposed, S^T[key][row], as in small-inl.h. So K and V are read in
// place, the softmax needs no maximum or sum across lanes, and P^T has the elements that P V
// broadcasts next to each other. Next to dot products of rows (decode-inl.h), this saves the sums
// across lanes: 14 instructions for 16 scores, a third of the product at dim 128.
//
// - S^T = K Q^T: a vector of Q^T holds two dims of half as many rows as it has lanes, and two
//   elements of K are broadcast together. Broadcasts of single elements would need one load for
//   each multiply-add with AVX-512, where 16 rows are one vector. Each vector of sums has two sums
//   for a row, which are added at the end.
// - O += P V: a block of rows and one or two vectors of columns stays in registers for all keys of
//   the tile.
#if defined(ATTN_CPU_DECODE_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTN_CPU_DECODE_ROWS_INL_H_
#undef ATTN_CPU_DECODE_ROWS_INL_H_
#else
#define ATTN_CPU_DECODE_ROWS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cpu/kernels/decode-inl.h"
#include "cpu/kernels/math-inl.h"
#include "cpu/kernels/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attn::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Where AttendRows() is used. Vectors of four lanes would hold one pair of rows, so other
// instruction sets keep the dot products.
inline constexpr bool kHasAttendRows = HWY_TARGET <= HWY_AVX2;
inline constexpr bool kHasManyRegisters = HWY_TARGET <= HWY_AVX3;
// With fewer rows, dot products are as fast (docs/kernels/cpu_decode.md).
inline constexpr std::int64_t kLeastAttendRows = kHasManyRegisters ? 7 : 5;

#if HWY_TARGET <= HWY_AVX2

inline constexpr std::int64_t kMostBlockKeys = 8;

// One step against the keys [first, first + strip.cols) of a tile, which all rows see.
struct RowsStep {
  const float* q;  // from PackRows()
  std::int64_t rows;
  const CacheTile* k;
  const CacheTile* v;
  std::int64_t first;
  std::int64_t dim_qk;  // both padded
  std::int64_t dim_vo;
  SoftmaxStrip<float> strip;  // s: S^T [cols x 16 rows]
  float* converted;           // keys of a block in f32: [kMostBlockKeys x dim_qk]
};

// Rows of the cache that are prefetched during one block of a product. They are found before it:
// with all registers in use, its loops can't call a function.
class RowsDuring {
 public:
  // Prefetches as many rows as RowsAhead::Step(count) would, in `steps` calls of step().
  RowsDuring(RowsAhead* ahead, std::int64_t count, std::int64_t steps) {
    num_ = ahead->Take(std::min(count, kMost / 2), runs_);
    of_step_ = (num_ + steps - 1) / steps;
  }
  HWY_INLINE void step() {
    for (std::int64_t n = 0; n < of_step_ && now_ < num_; ++n, ++now_) {
      RowsAhead::Prefetch(runs_[now_]);
    }
  }

 private:
  static constexpr std::int64_t kMost = kMaxTileKv;
  RowsAhead::Run runs_[kMost];
  std::int64_t num_;
  std::int64_t now_ = 0;
  std::int64_t of_step_;
};

inline constexpr std::int64_t kRowLanes = hn::MaxLanes(hn::ScalableTag<float>());
inline constexpr std::int64_t kPairRows = kRowLanes / 2;  // rows of a vector of Q^T
inline constexpr std::int64_t kDimsOfStep = 16;           // for each RowsDuring::step()
inline constexpr std::int64_t kKeysOfStep = 8;

// Q^T in pairs of dims: [dim / 2][rows, rounded up to kPairRows][2]. Rows past the last are zeros.
inline void PackRows(const float* HWY_RESTRICT q, std::int64_t ldq, std::int64_t rows,
                     std::int64_t dim, float* HWY_RESTRICT to) {
  const hn::FixedTag<float, 4> d;
  const hn::Repartition<double, decltype(d)> pairs;
  const std::int64_t padded = round_up(rows, kPairRows);
  for (std::int64_t r = 0; r < padded; r += 2) {
    const float* const row = q + r * ldq;
    for (std::int64_t c = 0; c < dim; c += 4) {
      const auto first = hn::BitCast(pairs, r < rows ? hn::Load(d, row + c) : hn::Zero(d));
      const auto second =
          hn::BitCast(pairs, r + 1 < rows ? hn::Load(d, row + ldq + c) : hn::Zero(d));
      float* const at = to + c * padded + 2 * r;
      hn::Store(hn::BitCast(d, hn::InterleaveLower(first, second)), d, at);
      hn::Store(hn::BitCast(d, hn::InterleaveUpper(pairs, first, second)), d, at + 2 * padded);
    }
  }
}

// A key in f32, in the order of is_split().
template <DType kType>
HWY_INLINE void ConvertKey(const char* row, std::int64_t dim, float* HWY_RESTRICT to) {
  const hn::ScalableTag<float> d;
  std::int64_t c = 0;
  for (; c + 2 * kRowLanes <= dim; c += 2 * kRowLanes) {
    hn::Vec<decltype(d)> first;
    hn::Vec<decltype(d)> second;
    LoadPair<kType>(d, row, c, first, second);
    hn::Store(first, d, to + c);
    hn::Store(second, d, to + c + kRowLanes);
  }
  for (; c < dim; c += kRowLanes) hn::Store(LoadVector<kType>(d, row, c), d, to + c);
}

// Scores of kKeys keys and kVectors * kPairRows rows. s: [key][full vectors of rows].
template <int kKeys, int kVectors, DType kType>
HWY_INLINE void ScoresBlock(const RowsStep& x, std::int64_t j, float* HWY_RESTRICT s,
                            RowsDuring& ahead) {
  const hn::ScalableTag<float> d;
  const hn::Repartition<double, decltype(d)> pairs;
  using V = hn::Vec<decltype(d)>;
  const float* HWY_RESTRICT q = x.q;
  const char* key[kKeys];
  for (int n = 0; n < kKeys; ++n) {
    key[n] = x.k->rows[x.first + j + n];
    if constexpr (kType != DType::f32) {
      float* const to = x.converted + n * x.dim_qk;
      ConvertKey<kType>(key[n], x.dim_qk, to);
      key[n] = reinterpret_cast<const char*>(to);
    }
  }
  V sum[kKeys][kVectors];
  HWY_UNROLL(8)
  for (int n = 0; n < kKeys; ++n) {
    HWY_UNROLL(4)
    for (int v = 0; v < kVectors; ++v) sum[n][v] = hn::Zero(d);
  }
  constexpr std::int64_t kPair = 2 * sizeof(float);
  for (std::int64_t at = 0; at < x.dim_qk * std::int64_t{sizeof(float)};) {
    ahead.step();
    for (std::int64_t n = 0; n < kDimsOfStep / 2; ++n, at += kPair) {
      V value[kKeys];
      V query[kVectors];
      const auto load_value = [&](int m) {
        double pair;
        std::memcpy(&pair, key[m] + at, sizeof(pair));
        value[m] = hn::BitCast(d, hn::Set(pairs, pair));
      };
      const auto load_query = [&](int v) { query[v] = hn::Load(d, q + v * kRowLanes); };
      // The smaller set stays in registers: 3 keys and 4 vectors have 12 sums, 3 elements of K and
      // one vector of Q^T at a time.
      if constexpr (kVectors > kKeys) {
        HWY_UNROLL(8)
        for (int m = 0; m < kKeys; ++m) load_value(m);
        HWY_UNROLL(4)
        for (int v = 0; v < kVectors; ++v) {
          load_query(v);
          HWY_UNROLL(8)
          for (int m = 0; m < kKeys; ++m) sum[m][v] = hn::MulAdd(value[m], query[v], sum[m][v]);
        }
      } else {
        HWY_UNROLL(4)
        for (int v = 0; v < kVectors; ++v) load_query(v);
        HWY_UNROLL(8)
        for (int m = 0; m < kKeys; ++m) {
          load_value(m);
          HWY_UNROLL(4)
          for (int v = 0; v < kVectors; ++v) {
            sum[m][v] = hn::MulAdd(value[m], query[v], sum[m][v]);
          }
        }
      }
      q += kVectors * kRowLanes;
    }
  }
  HWY_UNROLL(8)
  for (int n = 0; n < kKeys; ++n) {
    HWY_UNROLL(4)
    for (int v = 0; v < kVectors; v += 2) {
      const V& low = sum[n][v];
      const V& high = sum[n][std::min(v + 1, kVectors - 1)];
      hn::Store(hn::Add(hn::ConcatEven(d, high, low), hn::ConcatOdd(d, high, low)), d, s);
      s += kRowLanes;
    }
  }
}

// The keys of a block: sums in 12 of 16 registers, or 16 of 32.
template <int kVectors>
constexpr int block_keys() {
  return kHasManyRegisters ? 8 : 12 / kVectors;
}

// S^T. The number of keys is a multiple of 16.
template <int kVectors, DType kType>
HWY_INLINE void ScoresOfRows(const RowsStep& x, RowsAhead* ahead) {
  constexpr int kKeys = block_keys<kVectors>();
  static_assert(kKeys <= kMostBlockKeys);
  // Blocks of 6 or 3 keys don't divide 16.
  constexpr int kFewKeys = kKeys == 6 ? 4 : kKeys == 3 ? 2 : kKeys;
  constexpr std::int64_t kRowsOfS = (kVectors + 1) / 2 * kRowLanes;
  const std::int64_t keys = x.strip.cols;
  const std::int64_t steps = x.dim_qk / kDimsOfStep;
  std::int64_t due = 0;  // keys reported to `ahead`, an even number
  for (std::int64_t j = 0; j < keys;) {
    const bool few = (keys - j) % kKeys != 0;
    const std::int64_t end = j + (few ? kFewKeys : kKeys);
    RowsDuring during(ahead, (end - due) / 2, steps);
    due += (end - due) / 2 * 2;
    float* const s = x.strip.s + j * kRowsOfS;
    if (few) {
      ScoresBlock<kFewKeys, kVectors, kType>(x, j, s, during);
    } else {
      ScoresBlock<kKeys, kVectors, kType>(x, j, s, during);
    }
    j = end;
  }
}

// S^T becomes P^T; the rows' maxima, sums and o are updated. kRowVectors: of a key in S^T.
template <int kRowVectors>
HWY_INLINE void SoftmaxOfRows(const RowsStep& x) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  constexpr std::int64_t kRows = kRowVectors * kRowLanes;
  constexpr int kChains = 4;  // independent maxima and sums
  const SoftmaxStrip<float>& strip = x.strip;
  alignas(64) float of_rows[kRows];
  for (int u = 0; u < kRowVectors; ++u) {
    V most[kChains];
    const float* s = strip.s + u * kRowLanes;
    for (int n = 0; n < kChains; ++n) most[n] = hn::Load(d, s + n * kRows);
    for (std::int64_t j = kChains; j < strip.cols; j += kChains) {
      for (int n = 0; n < kChains; ++n) {
        most[n] = hn::Max(most[n], hn::Load(d, s + (j + n) * kRows));
      }
    }
    const V largest = hn::Max(hn::Max(most[0], most[1]), hn::Max(most[2], most[3]));
    hn::Store(hn::Mul(largest, hn::Set(d, strip.factor)), d, of_rows + u * kRowLanes);
  }
  for (std::int64_t r = 0; r < x.rows; ++r) of_rows[r] = UpdateMax(strip, r, of_rows[r]);
  std::fill(of_rows + x.rows, of_rows + kRows, 0.0F);
  const V factor = hn::Set(d, strip.factor);
  for (int u = 0; u < kRowVectors; ++u) {
    const V shift = hn::Load(d, of_rows + u * kRowLanes);
    V sum[kChains];
    for (V& value : sum) value = hn::Zero(d);
    float* s = strip.s + u * kRowLanes;
    for (std::int64_t j = 0; j < strip.cols; j += kChains) {
      for (int n = 0; n < kChains; ++n, s += kRows) {
        const V p = ExpKeepNan(d, hn::MulSub(hn::Load(d, s), factor, shift));
        hn::Store(p, d, s);
        sum[n] = hn::Add(sum[n], p);
      }
    }
    hn::Store(hn::Add(hn::Add(sum[0], sum[1]), hn::Add(sum[2], sum[3])), d,
              of_rows + u * kRowLanes);
  }
  for (std::int64_t r = 0; r < x.rows; ++r) strip.row_sum[r] += of_rows[r];
}

// Where a block of O += P V reads V. Rows of a cache that are 4 KiB apart share the ways of one set
// of L1, so a second group of rows would read V from L2 again. Instead, the first group copies its
// columns in f32.
enum class ValuesFrom { cache, cache_and_copy, copy };

// A block: rows [row, row + some), columns from c on.
struct ValuesPlace {
  std::int64_t row;
  std::int64_t some;
  std::int64_t c;
  float* copy;  // [keys x kVectors vectors]
};

// O += P V for kRows rows (place.some of them exist) and kVectors vectors of columns.
template <ValuesFrom kFrom, int kRows, int kVectors, DType kType, int kRowVectors>
HWY_INLINE void RowsValuesBlock(const RowsStep& x, const ValuesPlace& place, RowsDuring& ahead) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  V sum[kRows][kVectors];
  HWY_UNROLL(16)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(2)
    for (int n = 0; n < kVectors; ++n) sum[r][n] = hn::Zero(d);
  }
  const float* HWY_RESTRICT p = x.strip.s + place.row;
  float* HWY_RESTRICT copy = place.copy;
  const char* const* v = x.v->rows + x.first;
  const char* const* const end = v + x.strip.cols;
  while (v != end) {
    ahead.step();
    for (std::int64_t j = 0; j < kKeysOfStep; ++j, ++v, p += kRowVectors * kRowLanes) {
      V value[kVectors];
      if constexpr (kFrom == ValuesFrom::copy) {
        for (int n = 0; n < kVectors; ++n) value[n] = hn::Load(d, copy + n * kRowLanes);
      } else if constexpr (kVectors == 2) {
        LoadPair<kType>(d, *v, place.c, value[0], value[1]);
      } else {
        value[0] = LoadVector<kType>(d, *v, place.c);
      }
      if constexpr (kFrom == ValuesFrom::cache_and_copy) {
        for (int n = 0; n < kVectors; ++n) hn::Store(value[n], d, copy + n * kRowLanes);
      }
      if constexpr (kFrom != ValuesFrom::cache) copy += kVectors * kRowLanes;
      HWY_UNROLL(16)
      for (int r = 0; r < kRows; ++r) {
        const V weight = hn::Set(d, p[r]);
        HWY_UNROLL(2)
        for (int n = 0; n < kVectors; ++n) sum[r][n] = hn::MulAdd(weight, value[n], sum[r][n]);
      }
    }
  }
  float* HWY_RESTRICT o = x.strip.o + place.row * x.strip.ldo + place.c;
  HWY_UNROLL(16)
  for (int r = 0; r < kRows; ++r) {
    if (r >= place.some) break;
    HWY_UNROLL(2)
    for (int n = 0; n < kVectors; ++n) {
      float* const to = o + n * kRowLanes;
      hn::Store(hn::Add(sum[r][n], hn::Load(d, to)), d, to);
    }
    o += x.strip.ldo;
  }
}

// Rows of a block with two vectors of columns.
inline constexpr std::int64_t kMostBlockRows = kHasManyRegisters ? 14 : 6;

template <ValuesFrom kFrom, int kVectors, DType kType, int kRowVectors>
HWY_INLINE void RowsValuesGroup(const RowsStep& x, const ValuesPlace& place, RowsDuring& ahead) {
  const auto block = [&](auto rows) {
    RowsValuesBlock<kFrom, rows(), kVectors, kType, kRowVectors>(x, place, ahead);
  };
  // With AVX-512 few sizes suffice, because P^T has 16 rows.
  constexpr int kFewest = kHasManyRegisters ? 8 : kFrom == ValuesFrom::cache ? 5 : 3;
  constexpr int kStep = kHasManyRegisters ? 2 : 1;
  // Several groups have at most 8 rows each.
  constexpr bool kTall = !kHasManyRegisters || kFrom == ValuesFrom::cache;
  if (place.some <= kFewest) return block(std::integral_constant<int, kFewest>());
  if constexpr (kTall) {
    if (place.some <= kFewest + kStep) {
      return block(std::integral_constant<int, kFewest + kStep>());
    }
    if constexpr (kFewest + 2 * kStep <= kMostBlockRows) {
      if (place.some <= kFewest + 2 * kStep) {
        return block(std::integral_constant<int, kFewest + 2 * kStep>());
      }
      block(std::integral_constant<int, kMostBlockRows>());
    }
  }
}

// O += P V. With 15 or 16 rows and AVX-512, a block has all rows and one vector of columns.
// Elements of bf16 come in two vectors (is_split), so then there are two groups of rows.
template <DType kType, int kRowVectors>
HWY_INLINE void ValuesOfRows(const RowsStep& x, RowsAhead* ahead) {
  constexpr bool kMayBeTall = kHasManyRegisters && kType != DType::bf16;
  const bool tall = kMayBeTall && x.rows > kMostBlockRows;
  const std::int64_t width = tall ? kRowLanes : 2 * kRowLanes;
  const std::int64_t groups = tall ? 1 : divide_up(x.rows, kMostBlockRows);
  const std::int64_t blocks = divide_up(x.dim_vo, width) * groups;
  const std::int64_t keys = x.strip.cols;
  alignas(64) float copy[kMaxTileKv * 2 * kRowLanes];
  std::int64_t due = 0;  // keys reported to `ahead`, an even number
  std::int64_t block = 0;
  for (std::int64_t c = 0; c < x.dim_vo; c += width) {
    for (std::int64_t n = 0; n < groups; ++n) {
      const std::int64_t count = (keys * ++block / blocks - due) / 2;
      due += 2 * count;
      RowsDuring during(ahead, count, keys / kKeysOfStep);
      const std::int64_t row = x.rows * n / groups;
      const ValuesPlace place{row, x.rows * (n + 1) / groups - row, c, copy};
      const auto group = [&](auto vectors) {
        if (groups == 1) {
          RowsValuesGroup<ValuesFrom::cache, vectors(), kType, kRowVectors>(x, place, during);
        } else if (n == 0) {
          RowsValuesGroup<ValuesFrom::cache_and_copy, vectors(), kType, kRowVectors>(x, place,
                                                                                     during);
        } else {
          RowsValuesGroup<ValuesFrom::copy, vectors(), DType::f32, kRowVectors>(x, place, during);
        }
      };
      if constexpr (kMayBeTall) {
        if (tall) {
          RowsValuesBlock<ValuesFrom::cache, 16, 1, kType, kRowVectors>(x, place, during);
          continue;
        }
      }
      if constexpr (kHasManyRegisters) {
        if (c + width > x.dim_vo) {
          group(std::integral_constant<int, 1>());
          continue;
        }
      }
      group(std::integral_constant<int, 2>());
    }
  }
}

template <int kVectors>
HWY_NOINLINE void AttendRowsOf(const RowsStep& x, RowsAhead* ahead) {
  constexpr int kRowVectors = (kVectors + 1) / 2;
  WithType<float>(x.k->dtype, [&](auto type) { ScoresOfRows<kVectors, type()>(x, ahead); });
  SoftmaxOfRows<kRowVectors>(x);
  WithType<float>(x.v->dtype, [&](auto type) { ValuesOfRows<type(), kRowVectors>(x, ahead); });
}

// The complete step: S^T, softmax, O += P V. The number of keys is a multiple of 16.
inline void AttendRows(const RowsStep& x, RowsAhead* ahead) {
  const std::int64_t vectors = divide_up(x.rows, kPairRows);
  if constexpr (kHasManyRegisters) {
    vectors == 1 ? AttendRowsOf<1>(x, ahead) : AttendRowsOf<2>(x, ahead);
  } else {
    switch (vectors) {
      case 2: return AttendRowsOf<2>(x, ahead);
      case 3: return AttendRowsOf<3>(x, ahead);
      default: return AttendRowsOf<4>(x, ahead);
    }
  }
}

#endif  // HWY_TARGET <= HWY_AVX2

}  // namespace attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // ATTN_CPU_DECODE_ROWS_INL_H_
