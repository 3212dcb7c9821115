// What a call's tensors allow kernels to load; see access.hpp.
#include "core/access.hpp"

#include <algorithm>
#include <bit>

#include "core/element_size.hpp"
#include "core/signature.hpp"

namespace attn::core {
namespace {

constexpr std::int64_t kVectorBytes = 16;
// Kernels address the rows of a tile, 256 at most, by 32-bit offsets.
constexpr std::int64_t kMaxRowStride = (std::int64_t{1} << 31) / 256;
// Limits that cuTensorMapEncodeTiled sets, in bytes.
constexpr std::int64_t kMaxTmaStride = std::int64_t{1} << 40;
// Dropout draws one Philox block for 16 x 16 scores (docs/semantics.md).
constexpr std::int64_t kDropoutBlock = 16;

// The number of elements in 16 bytes, a power of 2. Sizes and strides are compared in elements, not
// in bytes: the call is not validated yet, so products could overflow.
std::int64_t vector_elements(DType dtype) {
  const auto size = static_cast<std::uint64_t>(std::max<std::int64_t>(element_size(dtype), 1));
  return kVectorBytes >> std::countr_zero(size);
}

// Whether TMA can copy tiles of a bias, its gradient or a mask [b|1, h|1, len_q|1, len_kv|1].
bool tma_takes_scores_of(const TensorView& view) {
  constexpr std::size_t kKeys = 3;
  if (view.rank != 4 || reinterpret_cast<std::uintptr_t>(view.address()) % kVectorBytes != 0) {
    return false;
  }
  const std::int64_t vector = vector_elements(view.dtype);
  for (std::size_t d = 0; d <= kKeys; ++d) {
    if (view.shape[d] <= 0) return false;
    if (view.shape[d] == 1) continue;  // the stride is not used
    const std::int64_t stride = view.strides[d];
    if (d == kKeys ? stride != 1 : (stride & (vector - 1)) != 0) return false;
    if (stride < 0 || stride >= kMaxTmaStride / kVectorBytes * vector) return false;
  }
  return true;
}

// Requirements of TMA kernels on other arguments than q, k, v, o and their gradients. Forward
// kernels fold the scale into the exponent, so it must be positive unless a score modifier applies
// it.
bool tma_takes_scores(Pass pass, const Problem& p, const Arguments& a) {
  const bool has_modifier = p.softcap || p.alibi || p.bias.given;
  const bool folds_scale = pass != Pass::backward && !has_modifier;
  if (folds_scale && a.scale && !(*a.scale > 0.0)) return false;
  for (const TensorView* view : {&a.bias, &a.mask, &a.dbias}) {
    if (view->given() && !tma_takes_scores_of(*view)) return false;
  }
  // A store by TMA writes multiples of 16 bytes, also past the end of a row (seen on an H200).
  return !a.dbias.given() || a.dbias.shape[3] % vector_elements(a.dbias.dtype) == 0;
}

}  // namespace

const char* to_string(Access access) {
  switch (access) {
    case Access::element: return "element";
    case Access::vector: return "vector";
    case Access::tma: break;
  }
  return "tma";
}

Access best_access(Pass pass, const Problem& p) {
  const bool quantized = element_size(p.kv_type()) == 1 && pass != Pass::backward;
  const bool mixed =
      (p.kv_type() != p.dtype && !quantized) || (pass == Pass::backward && p.out_type() != p.dtype);
  const std::int64_t vector = std::max(vector_elements(p.dtype), vector_elements(p.kv_type()));
  if (mixed || p.dim_qk % vector != 0 || p.dim_vo % vector != 0) return Access::element;
  return Access::tma;
}

// Each call needs it for each tensor, so there are no branches between dimensions.
Access access_of_rows(const TensorView& view) {
  if (view.rank != 3 && view.rank != 4) return Access::element;
  const auto rank = static_cast<std::size_t>(view.rank);
  const std::int64_t vector = vector_elements(view.dtype);
  std::int64_t unaligned = view.shape[rank - 1];  // the low bits are 0 if rows can be vectors
  bool mappable = view.shape[rank - 1] > 0;
  for (std::size_t d = 0; d + 1 < rank; ++d) {
    // The stride of a dimension of size 1 is not used.
    const std::int64_t stride = view.shape[d] > 1 ? view.strides[d] : vector;
    unaligned |= stride;
    // No TMA for expanded tensors: cuTensorMapEncodeTiled does not document strides of 0.
    mappable &= view.shape[d] > 0 && stride > 0 && stride < kMaxTmaStride / kVectorBytes * vector;
  }
  const bool long_rows =
      view.shape[rank - 3] > 1 && view.strides[rank - 3] >= kMaxRowStride / kVectorBytes * vector;
  if (reinterpret_cast<std::uintptr_t>(view.address()) % kVectorBytes != 0 ||
      (unaligned & (vector - 1)) != 0 || long_rows) {
    return Access::element;
  }
  return mappable ? Access::tma : Access::vector;
}

Access access_of(Pass pass, const Problem& p, const Arguments& a) {
  Access access = best_access(pass, p);
  if (access == Access::element) return access;
  // If the origin is inside a Philox block, only the element kernels draw the right bits.
  if (p.dropout && ((a.origin.q | a.origin.kv) % kDropoutBlock) != 0) return Access::element;
  for (const TensorView* view : {&a.q, &a.k, &a.v}) {
    access = std::min(access, access_of_rows(*view));
  }
  if (pass == Pass::backward) access = std::min(access, access_of_rows(a.dout));
  if (access != Access::tma) return access;
  // Outputs, and inputs that only pre- and postprocessing kernels read, never require
  // Access::element.
  const auto also = [&](const TensorView& view) {
    if (view.given() && access_of_rows(view) != Access::tma) access = Access::vector;
  };
  also(a.o);
  if (pass == Pass::backward) {
    also(a.dq);
    also(a.dk);
    also(a.dv);
  }
  return access == Access::tma && !tma_takes_scores(pass, p, a) ? Access::vector : access;
}

}  // namespace attn::core
