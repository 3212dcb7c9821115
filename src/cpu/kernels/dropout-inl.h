// Dropout factors of a strip: 256/t where a pair is kept, 0 where it is dropped.
//
// One Philox call serves rows {i, i+1, i+8, i+9} and columns {j, j+1, j+8, j+9} of placed indices,
// so calls are made for blocks of 16 x 16 aligned in placed indices and spread to the rows of the
// strip. Each 32-bit quantity sits in a 64-bit lane, whose low half the widening multiply reads.
#if defined(ATTN_CPU_DROPOUT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTN_CPU_DROPOUT_INL_H_
#undef ATTN_CPU_DROPOUT_INL_H_
#else
#define ATTN_CPU_DROPOUT_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/philox.hpp"
#include "cpu/host/call.hpp"
#include "cpu/kernels/tile.hpp"

HWY_BEFORE_NAMESPACE();
namespace attn::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr std::int64_t kDropoutBlocks = kMaxTileKv / 16 + 1;    // any alignment of j0
inline constexpr std::int64_t kDropoutCalls = kDropoutBlocks * 4 + 4;  // rounded up to 8 lanes

struct DropoutWords {
  // words[w][call]: the word of row (w >> 1) * 8 + (w & 1) of the call's block.
  HWY_ALIGN std::uint64_t words[4][kDropoutCalls];
};

// Philox4x32-10 for calls with counters (row, first_column + column_of(call), head, offset).
HWY_INLINE void DropoutCalls(core::PhiloxKey key, std::uint32_t row, std::uint32_t first_column,
                             std::uint32_t head, std::uint32_t offset_lo, std::int64_t calls,
                             DropoutWords& out) {
  HWY_ALIGN std::uint64_t columns[kDropoutCalls];
  for (std::int64_t call = 0; call < kDropoutCalls; ++call) {
    // Blocks of 16 columns take 4 calls, at columns 0, 2, 4 and 6 of the block.
    const auto step = static_cast<std::uint32_t>((call >> 2) * 16 + (call & 3) * 2);
    columns[call] = first_column + step;
    columns[call] &= 0xFFFFFFFFu;
  }
#if HWY_TARGET == HWY_SCALAR  // has no lanes to widen
  for (std::int64_t call = 0; call < calls; ++call) {
    const auto column = static_cast<std::uint32_t>(columns[call]);
    const core::PhiloxCounter bits = core::philox4x32_10({row, column, head, offset_lo}, key);
    for (std::size_t word = 0; word < 4; ++word) out.words[word][call] = bits[word];
  }
#else
  const hn::ScalableTag<std::uint64_t> d;
  const hn::Repartition<std::uint32_t, decltype(d)> d32;
  using V = hn::Vec<decltype(d)>;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  const V low_half = hn::Set(d, 0xFFFFFFFFu);
  const V mul0 = hn::Set(d, core::kPhiloxMul0);
  const V mul1 = hn::Set(d, core::kPhiloxMul1);
  for (std::int64_t call = 0; call < calls; call += kLanes) {
    V c0 = hn::Set(d, row);
    V c1 = hn::Load(d, columns + call);
    V c2 = hn::Set(d, head);
    V c3 = hn::Set(d, offset_lo);
    core::PhiloxKey round_key = key;
    for (int round = 0; round < core::kPhiloxRounds; ++round) {
      const V product0 = hn::MulEven(hn::BitCast(d32, c0), hn::BitCast(d32, mul0));
      const V product1 = hn::MulEven(hn::BitCast(d32, c2), hn::BitCast(d32, mul1));
      c0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(product1), c1), hn::Set(d, round_key[0]));
      c1 = hn::And(product1, low_half);
      c2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(product0), c3), hn::Set(d, round_key[1]));
      c3 = hn::And(product0, low_half);
      round_key[0] += core::kPhiloxWeyl0;
      round_key[1] += core::kPhiloxWeyl1;
    }
    hn::Store(c0, d, out.words[0] + call);
    hn::Store(c1, d, out.words[1] + call);
    hn::Store(c2, d, out.words[2] + call);
    hn::Store(c3, d, out.words[3] + call);
  }
#endif
}

// A row's factors of whole blocks of 16 columns, from the row's word of 4 calls for each block.
// Bytes 0 and 1 of call n's word are columns 2 n and 2 n + 1 of the block, bytes 2 and 3 are 8
// further.
template <class T>
HWY_INLINE void FactorsOf(const std::uint64_t* HWY_RESTRICT words, std::int64_t blocks,
                          std::uint32_t threshold, T kept, T* HWY_RESTRICT out) {
  HWY_ALIGN std::uint8_t bytes[kDropoutBlocks * 16];
  for (std::int64_t block = 0; block < blocks; ++block) {
    std::uint8_t of_block[16];
    for (std::size_t n = 0; n < 4; ++n) {
      const auto word = static_cast<std::uint32_t>(words[block * 4 + static_cast<std::int64_t>(n)]);
      of_block[2 * n] = static_cast<std::uint8_t>(word);
      of_block[2 * n + 1] = static_cast<std::uint8_t>(word >> 8);
      of_block[2 * n + 8] = static_cast<std::uint8_t>(word >> 16);
      of_block[2 * n + 9] = static_cast<std::uint8_t>(word >> 24);
    }
    std::memcpy(bytes + block * 16, of_block, sizeof(of_block));
  }
#if HWY_TARGET != HWY_SCALAR
  if constexpr (sizeof(T) == 4) {
    const hn::ScalableTag<T> d;
    const hn::RebindToSigned<decltype(d)> d32;
    const hn::Rebind<std::uint8_t, decltype(d)> d8;
    constexpr std::int64_t kLanes = hn::MaxLanes(d);
    static_assert(16 % kLanes == 0);
    const auto least_dropped = hn::Set(d32, static_cast<std::int32_t>(threshold));
    const auto factor = hn::Set(d, kept);
    for (std::int64_t c = 0; c < blocks * 16; c += kLanes) {
      const auto byte = hn::PromoteTo(d32, hn::Load(d8, bytes + c));
      const auto keeps = hn::RebindMask(d, hn::Lt(byte, least_dropped));
      hn::Store(hn::IfThenElseZero(keeps, factor), d, out + c);
    }
    return;
  }
#endif
  for (std::int64_t c = 0; c < blocks * 16; ++c) out[c] = bytes[c] < threshold ? kept : T(0);
}

// The factor of a pair that is kept; 1 without dropout.
template <class T>
HWY_INLINE T kept_factor(const Call& call) {
  return call.problem.dropout ? static_cast<T>(256.0 / call.numbers.dropout_threshold) : T(1);
}

// factors[rows x cols] of strip rows against keys [j0, j0 + cols).
template <class T>
HWY_NOINLINE void DropoutFactors(const Call& call, const Entry& entry, const TileRow* rows,
                                 std::int64_t count, std::int64_t j0, std::int64_t cols,
                                 T* HWY_RESTRICT factors) {
  const T kept = kept_factor<T>(call);
  const auto column0 = static_cast<std::uint32_t>(j0 + call.numbers.origin.kv);
  const std::uint32_t first_column = column0 & ~15u;
  const std::int64_t shift = column0 & 15u;
  const std::int64_t blocks = (shift + cols + 15) / 16;
  DropoutWords words;

  for (std::int64_t r = 0; r < count;) {
    // A run of rows of one head with consecutive queries.
    std::int64_t run = 1;
    while (r + run < count && rows[r + run].head == rows[r].head) ++run;
    const auto head = static_cast<std::uint32_t>((entry.b + call.numbers.origin.batch) *
                                                     call.numbers.origin.heads_q +
                                                 rows[r].head + call.numbers.origin.head);
    const std::int64_t first = rows[r].i + call.numbers.origin.q;
    const std::int64_t last = first + run - 1;
    for (std::int64_t block = first & ~std::int64_t{15}; block <= last; block += 16) {
      for (std::int64_t pair = 0; pair < 8; pair += 2) {
        bool made = false;
        for (int word = 0; word < 4; ++word) {
          const std::int64_t placed = block + pair + (word >> 1) * 8 + (word & 1);
          if (placed < first || placed > last) continue;
          if (!made) {
            DropoutCalls(call.numbers.philox_key, static_cast<std::uint32_t>(block + pair),
                         first_column, head, call.numbers.philox_offset, blocks * 4, words);
            made = true;
          }
          HWY_ALIGN T row_factors[kDropoutBlocks * 16];
          FactorsOf(words.words[word], blocks, call.numbers.dropout_threshold, kept, row_factors);
          std::copy_n(row_factors + shift, cols, factors + (r + placed - first) * cols);
        }
      }
    }
    r += run;
  }
}

}  // namespace attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // ATTN_CPU_DROPOUT_INL_H_
