// Moves rows between memory (any type, strided or paged) and tiles of f32 or f64: converts,
// zero-fills, transposes, and stores with one rounding.
#if defined(ATTN_CPU_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTN_CPU_ROWS_INL_H_
#undef ATTN_CPU_ROWS_INL_H_
#else
#define ATTN_CPU_ROWS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/element_size.hpp"
#include "cpu/host/call.hpp"
#include "cpu/kernels/element.hpp"
#include "cpu/kernels/row_prefetch.hpp"

HWY_BEFORE_NAMESPACE();
namespace attn::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Same as core::f8e4m3_to_f32. Subnormals are converted from integers. That reads no f32 subnormal,
// which the caller may have set to flush to zero.
template <class D>
HWY_INLINE hn::VFromD<D> FromF8e4m3(D df, hn::VFromD<hn::RebindToUnsigned<D>> bits) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7Fu));
  const auto sign = hn::ShiftLeft<24>(hn::Xor(bits, magnitude));
  const auto subnormal =
      hn::Mul(hn::ConvertTo(df, hn::BitCast(di, magnitude)), hn::Set(df, 0x1p-9f));
  const auto normal = hn::Add(hn::ShiftLeft<20>(magnitude), hn::Set(du, 120u << 23));
  auto value =
      hn::IfThenElse(hn::Lt(magnitude, hn::Set(du, 8u)), hn::BitCast(du, subnormal), normal);
  value = hn::IfThenElse(hn::Eq(magnitude, hn::Set(du, 0x7Fu)), hn::Set(du, 0x7FC00000u), value);
  return hn::BitCast(df, hn::Or(sign, value));
}

// Same as core::f8e5m2_to_f32.
template <class D>
HWY_INLINE hn::VFromD<D> FromF8e5m2(D df, hn::VFromD<hn::RebindToUnsigned<D>> bits) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7Fu));
  const auto sign = hn::ShiftLeft<24>(hn::Xor(bits, magnitude));
  const auto subnormal =
      hn::Mul(hn::ConvertTo(df, hn::BitCast(di, magnitude)), hn::Set(df, 0x1p-16f));
  const auto shifted = hn::ShiftLeft<21>(magnitude);
  const auto normal = hn::Add(shifted, hn::Set(du, 112u << 23));
  auto value =
      hn::IfThenElse(hn::Lt(magnitude, hn::Set(du, 4u)), hn::BitCast(du, subnormal), normal);
  const auto infinite = hn::Or(shifted, hn::Set(du, 0x7F800000u));  // infinity or NaN
  value = hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x7Bu)), infinite, value);
  return hn::BitCast(df, hn::Or(sign, value));
}

// Converts full vectors of an 8-bit type, times descale. Returns the number of elements converted.
HWY_INLINE std::int64_t LoadI8Vectors(const char* source, float descale, std::int64_t count,
                                      float* HWY_RESTRICT out) {
  const hn::ScalableTag<float> df;
  const hn::RebindToSigned<decltype(df)> di;
  const hn::Rebind<std::int8_t, decltype(df)> d8;
  constexpr std::int64_t kLanes = hn::MaxLanes(df);
  const auto* values = reinterpret_cast<const std::int8_t*>(source);
  const auto factor = hn::Set(df, descale);
  std::int64_t c = 0;
  for (; c + kLanes <= count; c += kLanes) {
    const auto value = hn::ConvertTo(df, hn::PromoteTo(di, hn::LoadU(d8, values + c)));
    hn::Store(hn::Mul(value, factor), df, out + c);
  }
  return c;
}
HWY_INLINE std::int64_t LoadF8Vectors(DType dtype, const char* source, float descale,
                                      std::int64_t count, float* HWY_RESTRICT out) {
  const hn::ScalableTag<float> df;
  const hn::RebindToUnsigned<decltype(df)> du;
  const hn::Rebind<std::uint8_t, decltype(df)> d8;
  constexpr std::int64_t kLanes = hn::MaxLanes(df);
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(source);
  const auto factor = hn::Set(df, descale);
  std::int64_t c = 0;
  for (; c + kLanes <= count; c += kLanes) {
    const auto bits = hn::PromoteTo(du, hn::LoadU(d8, bytes + c));
    const auto value = dtype == DType::f8e4m3 ? FromF8e4m3(df, bits) : FromF8e5m2(df, bits);
    hn::Store(hn::Mul(value, factor), df, out + c);
  }
  return c;
}

// Whether LoadVector() supports the type. f16 needs a native conversion: Highway's emulation loses
// infinities.
template <class T>
constexpr bool loads_as_vectors(DType dtype) {
  if (dtype == kArithmetic<T>) return true;
  constexpr bool kHalves = HWY_TARGET <= HWY_AVX2 || HWY_ARCH_ARM_A64;
  return sizeof(T) == 4 && (dtype == DType::bf16 || (kHalves && dtype == DType::f16));
}

// Elements [c, c + lanes) of a row. The type must be one that loads_as_vectors().
template <DType kType, class D>
HWY_INLINE hn::Vec<D> LoadVector(D d, const char* row, std::int64_t c) {
  static_assert(loads_as_vectors<hn::TFromD<D>>(kType));
  if constexpr (kType == DType::bf16) {
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::Rebind<std::uint32_t, D> d32;
    const auto* bits = reinterpret_cast<const std::uint16_t*>(row) + c;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, bits))));
  } else if constexpr (kType == DType::f16) {
    const hn::Rebind<hwy::float16_t, D> d16;
    return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(row) + c));
  } else {
    return hn::LoadU(d, reinterpret_cast<const hn::TFromD<D>*>(row) + c);
  }
}
template <DType kType, class T>
HWY_INLINE std::int64_t LoadVectors(const char* source, std::int64_t count, T* HWY_RESTRICT out) {
  const hn::ScalableTag<T> d;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  std::int64_t c = 0;
  for (; c + kLanes <= count; c += kLanes) hn::Store(LoadVector<kType>(d, source, c), d, out + c);
  return c;
}

// out[0, count) = the row's elements, times descale for 8-bit types; out[count, padded) = 0. A null
// source is a row of zeros.
template <class T>
HWY_INLINE void LoadRow(DType dtype, const char* source, std::int64_t count, std::int64_t padded,
                        T* HWY_RESTRICT out, float descale = 1.0f) {
  if (source == nullptr) count = 0;
  std::int64_t c = 0;
  if (dtype == kArithmetic<T>) {
    c = LoadVectors<kArithmetic<T>>(source, count, out);
    if (c < count) {
      std::memcpy(out + c, source + c * std::int64_t{sizeof(T)},
                  static_cast<std::size_t>(count - c) * sizeof(T));
      c = count;
    }
  } else if constexpr (std::is_same_v<T, float>) {
    if (dtype == DType::bf16) c = LoadVectors<DType::bf16>(source, count, out);
    if constexpr (loads_as_vectors<T>(DType::f16)) {
      if (dtype == DType::f16) c = LoadVectors<DType::f16>(source, count, out);
    }
    if (dtype == DType::f8e4m3 || dtype == DType::f8e5m2) {
      c = LoadF8Vectors(dtype, source, descale, count, out);
    }
    if (dtype == DType::i8) c = LoadI8Vectors(source, descale, count, out);
  }
  const std::int64_t bytes = core::element_size(dtype);
  for (; c < count; ++c) out[c] = T(descale) * LoadElement<T>(dtype, source + c * bytes);
  if (c < padded) std::fill(out + c, out + padded, T(0));
}

// Same as core::f32_to_bf16, for full vectors. Returns the number of elements stored.
HWY_INLINE std::int64_t StoreBf16Vectors(char* address, const float* HWY_RESTRICT values,
                                         std::int64_t count) {
  const hn::ScalableTag<float> df;
  const hn::Rebind<std::uint32_t, decltype(df)> d32;
  const hn::Rebind<std::uint16_t, decltype(df)> d16;
  constexpr std::int64_t kLanes = hn::MaxLanes(df);
  auto* out = reinterpret_cast<std::uint16_t*>(address);
  std::int64_t c = 0;
  for (; c + kLanes <= count; c += kLanes) {
    const auto value = hn::LoadU(df, values + c);
    const auto bits = hn::BitCast(d32, value);
    const auto upper = hn::ShiftRight<16>(bits);
    const auto half = hn::Add(hn::And(upper, hn::Set(d32, 1u)), hn::Set(d32, 0x7FFFu));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, half));
    const auto quiet = hn::Or(upper, hn::Set(d32, 0x40u));
    const auto is_nan = hn::RebindMask(d32, hn::IsNaN(value));
    hn::StoreU(hn::TruncateTo(d16, hn::IfThenElse(is_nan, quiet, rounded)), d16, out + c);
  }
  return c;
}

// Rounds full vectors to f16, if the instruction set does. NaN stays NaN, with other bits than
// those of core::f32_to_f16. Returns the number of elements stored.
HWY_INLINE std::int64_t StoreF16Vectors(char* address, const float* HWY_RESTRICT values,
                                        std::int64_t count) {
  std::int64_t c = 0;
  if constexpr (loads_as_vectors<float>(DType::f16)) {
    const hn::ScalableTag<float> df;
    const hn::Rebind<hwy::float16_t, decltype(df)> d16;
    constexpr std::int64_t kLanes = hn::MaxLanes(df);
    auto* out = reinterpret_cast<hwy::float16_t*>(address);
    for (; c + kLanes <= count; c += kLanes) {
      hn::StoreU(hn::DemoteTo(d16, hn::LoadU(df, values + c)), d16, out + c);
    }
  }
  return c;
}

// Stores values[0, count) as a row. Returns how many non-finite values it replaced.
template <class T>
HWY_INLINE std::uint32_t StoreRow(DType dtype, char* address, const T* HWY_RESTRICT values,
                                  std::int64_t count, bool accumulate, bool zero_nonfinite) {
  if (!accumulate && !zero_nonfinite && dtype == kArithmetic<T>) {
    const hn::ScalableTag<T> d;
    constexpr std::int64_t kLanes = hn::MaxLanes(d);
    T* out = reinterpret_cast<T*>(address);
    std::int64_t c = 0;
    for (; c + kLanes <= count; c += kLanes) hn::StoreU(hn::LoadU(d, values + c), d, out + c);
    if (c < count)
      std::memcpy(out + c, values + c, static_cast<std::size_t>(count - c) * sizeof(T));
    return 0;
  }
  std::int64_t c = 0;
  if constexpr (std::is_same_v<T, float>) {
    if (!accumulate && !zero_nonfinite && dtype == DType::bf16) {
      c = StoreBf16Vectors(address, values, count);
    }
    if (!accumulate && !zero_nonfinite && dtype == DType::f16) {
      c = StoreF16Vectors(address, values, count);
    }
  }
  const std::int64_t bytes = core::element_size(dtype);
  std::uint32_t replaced = 0;
  for (; c < count; ++c) {
    replaced += StoreElement(dtype, address + c * bytes, values[c], accumulate, zero_nonfinite);
  }
  return replaced;
}

// Prefetches a row before it is read (or written). Rows of a head are kilobytes apart, a pattern
// that hardware prefetchers do not follow.
template <bool kWrite = false>
HWY_INLINE void PrefetchRow(const char* row, std::int64_t bytes) {
  if (row == nullptr) return;  // a key without a page
  prefetch_lines<kWrite, 3>(row, bytes);
}
inline constexpr std::int64_t kRowsAhead = 8;

// Loads a tile of keys or values of one key head, row-major [tile x padded]: rows [j0, j0 + count)
// of the sequence, then zeros. `more`: number of rows after these that are read next, for
// prefetching.
template <class T>
HWY_INLINE void LoadKeyTile(const Call& call, const StridedTensor& rows, const Entry& entry,
                            std::int64_t head, std::int64_t j0, std::int64_t count,
                            std::int64_t tile, std::int64_t dim, std::int64_t padded, T* out,
                            std::int64_t more = 0) {
  const float of_all = rows.descale_rows ? 1.0f : rows.descale(entry.b, head);
  for (std::int64_t j = 0; j < tile; ++j) {
    if (j + kRowsAhead < count + more) {
      PrefetchRow(row_address(call, rows, entry.b, entry.first_kv, j0 + j + kRowsAhead, head),
                  dim * core::element_size(rows.dtype));
    }
    const char* source =
        j < count ? row_address(call, rows, entry.b, entry.first_kv, j0 + j, head) : nullptr;
    const bool own = rows.descale_rows && source != nullptr;
    LoadRow(rows.dtype, source, dim, padded, out + j * padded,
            own ? row_descale(call, rows, entry.b, j0 + j, head) : of_all);
  }
}

// out[c * ld + j] = rows[j * padded + c] for four rows j and columns [0, dim).
template <class T>
HWY_INLINE void TransposeFourRows(const T* HWY_RESTRICT rows, std::int64_t padded, std::int64_t dim,
                                  T* HWY_RESTRICT out, std::int64_t ld) {
  std::int64_t c = 0;
#if HWY_TARGET != HWY_SCALAR
  if constexpr (sizeof(T) == 4) {
    // 4 x 4 blocks: interleave 32-bit, then 64-bit elements of two rows each.
    const hn::FixedTag<T, 4> d;
    const hn::Repartition<double, decltype(d)> wide;
    for (; c + 4 <= dim; c += 4) {
      const auto row0 = hn::Load(d, rows + c);
      const auto row1 = hn::Load(d, rows + padded + c);
      const auto row2 = hn::Load(d, rows + 2 * padded + c);
      const auto row3 = hn::Load(d, rows + 3 * padded + c);
      const auto low01 = hn::BitCast(wide, hn::InterleaveLower(d, row0, row1));
      const auto low23 = hn::BitCast(wide, hn::InterleaveLower(d, row2, row3));
      const auto high01 = hn::BitCast(wide, hn::InterleaveUpper(d, row0, row1));
      const auto high23 = hn::BitCast(wide, hn::InterleaveUpper(d, row2, row3));
      T* at = out + c * ld;
      hn::Store(hn::BitCast(d, hn::InterleaveLower(wide, low01, low23)), d, at);
      hn::Store(hn::BitCast(d, hn::InterleaveUpper(wide, low01, low23)), d, at + ld);
      hn::Store(hn::BitCast(d, hn::InterleaveLower(wide, high01, high23)), d, at + 2 * ld);
      hn::Store(hn::BitCast(d, hn::InterleaveUpper(wide, high01, high23)), d, at + 3 * ld);
    }
  }
#endif
  for (; c < dim; ++c) {
    for (std::int64_t j = 0; j < 4; ++j) out[c * ld + j] = rows[j * padded + c];
  }
}

// Loads the transpose of LoadKeyTile(): out[dim x tile]. `rows` is scratch for four converted rows.
template <class T>
HWY_INLINE void LoadKeyTileTransposed(const Call& call, const StridedTensor& view,
                                      const Entry& entry, std::int64_t head, std::int64_t j0,
                                      std::int64_t count, std::int64_t tile, std::int64_t dim,
                                      std::int64_t padded, T* HWY_RESTRICT rows,
                                      T* HWY_RESTRICT out) {
  for (std::int64_t j = 0; j < tile; j += 4) {
    const std::int64_t some = std::clamp<std::int64_t>(count - j, 0, 4);
    LoadKeyTile(call, view, entry, head, j0 + j, some, 4, dim, padded, rows,
                std::max<std::int64_t>(count - j - some, 0));
    TransposeFourRows(rows, padded, dim, out + j, tile);
  }
}

}  // namespace attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // ATTN_CPU_ROWS_INL_H_
