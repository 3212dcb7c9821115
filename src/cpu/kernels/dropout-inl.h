// Random bytes of dropout for a strip. A pair is kept if its byte is below the threshold t, and
// then multiplied by 256/t.
//
// One Philox call serves rows {i, i+1, i+8, i+9} and columns {j, j+1, j+8, j+9} of global indices.
// So calls are made for blocks of 16 x 16 that are aligned in global indices, and their bytes are
// copied to the rows of the strip. Each 32-bit value is in a 64-bit lane; the widening multiply
// reads only the low half. The high half is not cleared between rounds.
#if defined(ATTN_CPU_DROPOUT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTN_CPU_DROPOUT_INL_H_
#undef ATTN_CPU_DROPOUT_INL_H_
#else
#define ATTN_CPU_DROPOUT_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "core/divide_up.hpp"
#include "core/philox.hpp"
#include "cpu/host/call.hpp"
#include "cpu/kernels/tile.hpp"
#include "cpu/kernels/tile_ops/bf16_engine.hpp"

HWY_BEFORE_NAMESPACE();
namespace attn::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr std::int64_t kDropoutBlocks = kDropoutRow / 16;
inline constexpr std::int64_t kDropoutCalls = kDropoutBlocks * 4 + 4;  // rounded up to 8 lanes

struct DropoutWords {
  // words[w][call]: the word of row (w >> 1) * 8 + (w & 1) of the call's block.
  HWY_ALIGN std::uint32_t words[4][kDropoutCalls];
};

// Philox4x32-10 for calls with counters (row, first_column + column_of(call), head, offset).
HWY_INLINE void DropoutCalls(core::PhiloxKey key, std::uint32_t row, std::uint32_t first_column,
                             std::uint32_t head, std::uint32_t offset_lo, std::int64_t calls,
                             DropoutWords& out) {
  // A block of 16 columns takes 4 calls, at its columns 0, 2, 4 and 6.
  const auto column_of = [&](std::int64_t call) {
    return first_column + static_cast<std::uint32_t>((call >> 2) * 16 + (call & 3) * 2);
  };
#if HWY_TARGET == HWY_SCALAR  // has no lanes to widen
  for (std::int64_t call = 0; call < calls; ++call) {
    const core::PhiloxCounter bits =
        core::philox4x32_10({row, column_of(call), head, offset_lo}, key);
    for (std::size_t word = 0; word < 4; ++word) out.words[word][call] = bits[word];
  }
#else
  const hn::ScalableTag<std::uint64_t> d;
  const hn::Repartition<std::uint32_t, decltype(d)> d32;
  const hn::Rebind<std::uint32_t, decltype(d)> dword;
  using V = hn::Vec<decltype(d)>;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  const V mul0 = hn::Set(d, core::kPhiloxMul0);
  const V mul1 = hn::Set(d, core::kPhiloxMul1);
  HWY_ALIGN std::uint64_t columns[kDropoutCalls];
  for (std::int64_t call = 0; call < core::round_up(calls, kLanes); ++call) {
    columns[call] = column_of(call);
  }
  for (std::int64_t call = 0; call < calls; call += kLanes) {
    V c0 = hn::Set(d, row);
    V c1 = hn::Load(d, columns + call);
    V c2 = hn::Set(d, head);
    V c3 = hn::Set(d, offset_lo);
    core::PhiloxKey round_key = key;
    for (int round = 0; round < core::kPhiloxRounds; ++round) {
      const V product0 = hn::MulEven(hn::BitCast(d32, c0), hn::BitCast(d32, mul0));
      const V product1 = hn::MulEven(hn::BitCast(d32, c2), hn::BitCast(d32, mul1));
      c0 = hn::Xor3(hn::ShiftRight<32>(product1), c1, hn::Set(d, round_key[0]));
      c1 = product1;
      c2 = hn::Xor3(hn::ShiftRight<32>(product0), c3, hn::Set(d, round_key[1]));
      c3 = product0;
      round_key[0] += core::kPhiloxWeyl0;
      round_key[1] += core::kPhiloxWeyl1;
    }
    hn::StoreU(hn::TruncateTo(dword, c0), dword, out.words[0] + call);
    hn::StoreU(hn::TruncateTo(dword, c1), dword, out.words[1] + call);
    hn::StoreU(hn::TruncateTo(dword, c2), dword, out.words[2] + call);
    hn::StoreU(hn::TruncateTo(dword, c3), dword, out.words[3] + call);
  }
#endif
}

// Writes a row's bytes for full blocks of 16 columns, from 4 words per block. Bytes 0 and 1 of word
// n belong to columns 2 n and 2 n + 1 of the block, bytes 2 and 3 to the columns 8 further.
HWY_INLINE void SpreadWords(const std::uint32_t* HWY_RESTRICT words, std::int64_t blocks,
                            std::uint8_t* HWY_RESTRICT bytes) {
  HWY_ALIGN static constexpr std::uint8_t kOrder[16] = {0, 1, 4, 5, 8,  9,  12, 13,
                                                        2, 3, 6, 7, 10, 11, 14, 15};
#if HWY_TARGET == HWY_SCALAR
  for (std::int64_t block = 0; block < blocks; ++block) {
    for (std::int64_t n = 0; n < 16; ++n) {
      const std::uint32_t word = words[block * 4 + kOrder[n] / 4];
      bytes[block * 16 + n] = static_cast<std::uint8_t>(word >> (8 * (kOrder[n] % 4)));
    }
  }
#else
  const hn::FixedTag<std::uint8_t, 16> d;
  const auto order = hn::Load(d, kOrder);
  for (std::int64_t block = 0; block < blocks; ++block) {
    const auto four = hn::Load(d, reinterpret_cast<const std::uint8_t*>(words + block * 4));
    hn::Store(hn::TableLookupBytes(four, order), d, bytes + block * 16);
  }
#endif
}

// The factor of a kept pair; 1 without dropout.
template <class T>
HWY_INLINE T kept_factor(const Call& call) {
  return call.problem.dropout ? static_cast<T>(256.0 / call.numbers.dropout_threshold) : T(1);
}

// Computes the bytes of strip rows against keys [j0, j0 + cols). The bytes of row r start at the
// returned pointer + r * kDropoutRow, inside `bytes` [rows x kDropoutRow].
inline HWY_NOINLINE const std::uint8_t* DropoutBytes(const Call& call, const Entry& entry,
                                                     const TileRow* rows, std::int64_t count,
                                                     std::int64_t j0, std::int64_t cols,
                                                     std::uint8_t* HWY_RESTRICT bytes) {
  const auto column0 = static_cast<std::uint32_t>(j0 + call.numbers.origin.kv);
  const std::uint32_t first_column = column0 & ~15u;
  const std::int64_t shift = column0 & 15u;
  const std::int64_t blocks = (shift + cols + 15) / 16;
  DropoutWords words;

  for (std::int64_t r = 0; r < count;) {
    // A run of rows of one head. Their queries are consecutive.
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
          SpreadWords(words.words[word], blocks, bytes + (r + placed - first) * kDropoutRow);
        }
      }
    }
    r += run;
  }
  return bytes + shift;
}

// The parameters of dropout for a bf16 engine.
HWY_INLINE Bf16Dropout DropoutOf(const Call& call, const std::uint8_t* bytes) {
  return {.bytes = bytes,
          .row = kDropoutRow,
          .last_kept = static_cast<std::uint8_t>(call.numbers.dropout_threshold - 1),
          .factor = kept_factor<float>(call)};
}

// The lanes whose pairs are kept.
template <class D>
HWY_INLINE hn::Mask<D> KeptLanes(D d, const std::uint8_t* HWY_RESTRICT bytes,
                                 std::uint32_t threshold) {
  using T = hn::TFromD<D>;
  if constexpr (sizeof(T) == 4 && HWY_TARGET != HWY_SCALAR) {
    const hn::RebindToSigned<D> d32;
    const hn::Rebind<std::uint8_t, D> d8;
    const auto least_dropped = hn::Set(d32, static_cast<std::int32_t>(threshold));
    return hn::RebindMask(d, hn::Lt(hn::PromoteTo(d32, hn::LoadU(d8, bytes)), least_dropped));
  } else {
    HWY_ALIGN T lanes[hn::MaxLanes(d)];
    for (std::size_t n = 0; n < hn::MaxLanes(d); ++n) lanes[n] = static_cast<T>(bytes[n]);
    return hn::Lt(hn::Load(d, lanes), hn::Set(d, static_cast<T>(threshold)));
  }
}

// Multiplies the kept probabilities of a row by the factor and sets the others to 0.
template <class T>
HWY_INLINE void DropRow(const Call& call, const std::uint8_t* HWY_RESTRICT bytes, std::int64_t cols,
                        T* HWY_RESTRICT p) {
  const hn::ScalableTag<T> d;
  const auto factor = hn::Set(d, kept_factor<T>(call));
  for (std::int64_t c = 0; c < cols; c += static_cast<std::int64_t>(hn::MaxLanes(d))) {
    const auto kept = KeptLanes(d, bytes + c, call.numbers.dropout_threshold);
    hn::Store(hn::IfThenElseZero(kept, hn::Mul(hn::Load(d, p + c), factor)), d, p + c);
  }
}

}  // namespace attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // ATTN_CPU_DROPOUT_INL_H_
