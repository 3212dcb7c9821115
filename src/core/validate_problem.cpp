// The rules on a Problem alone: see validate.hpp.
#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "core/names.hpp"
#include "core/refusal.hpp"
#include "core/signature.hpp"
#include "core/validate.hpp"

namespace attn::core {

namespace {

// Lengths are read from i32 arrays.
constexpr std::int64_t kMaxSize = std::numeric_limits<std::int32_t>::max();

Status check_enums(Pass pass, const Problem& p) {
  const auto unknown = [&](const char* field, auto value) {
    std::string accepted;
    for (const auto& entry : names_of(value)) {
      if (!accepted.empty()) accepted += ", ";
      accepted += entry.name;
    }
    return refuse(to_string(pass), std::string("value of ") + field,
                  std::to_string(static_cast<std::int64_t>(value)), accepted);
  };
  for (const auto& [field, value] : {std::pair{"dtype", p.dtype},
                                     {"dtype_kv", p.dtype_kv},
                                     {"dtype_out", p.dtype_out},
                                     {"dtype_grad", p.dtype_grad},
                                     {"dtype_bias", p.dtype_bias},
                                     {"dtype_dbias", p.dtype_dbias}}) {
    if (!is_known(value)) return unknown(field, value);
  }
  if (!is_known(p.precision)) return unknown("precision", p.precision);
  if (!is_known(p.layout_q)) return unknown("layout_q", p.layout_q);
  if (!is_known(p.layout_kv)) return unknown("layout_kv", p.layout_kv);
  if (!is_known(p.diagonal)) return unknown("diagonal", p.diagonal);
  if (!is_known(p.rope)) return unknown("rope", p.rope);
  return {};
}

Status check_types(Pass pass, const Problem& p) {
  const char* f = to_string(pass);
  const std::string_view q = to_string(p.dtype);
  if (!is_float(p.dtype) && !is_f8(p.dtype)) {
    return refuse(f, "dtype", q, "f32, f16, bf16, f64, f8e4m3, f8e5m2");
  }
  const DType kv = p.kv_type();
  const bool takes_f8 = is_f8(p.dtype) || is_half(p.dtype);
  const bool takes_i8 = p.dtype == DType::f32 || is_half(p.dtype);
  if (kv != p.dtype && !(is_f8(kv) && takes_f8) && !(kv == DType::i8 && takes_i8)) {
    return refuse(f, "dtype_kv", to_string(kv) + std::string(" with dtype=") + to_string(p.dtype),
                  "the type of q, f8 types with a 16-bit or f8 q, or i8 with a 16-bit or f32 q");
  }
  const DType out = p.out_type();
  if (is_f8(p.dtype) ? !(out == DType::f32 || is_half(out))
                     : !(out == p.dtype || out == DType::f32)) {
    return refuse(f, "dtype_out", to_string(out) + std::string(" with dtype=") + to_string(p.dtype),
                  is_f8(p.dtype) ? "f32, f16 or bf16 with f8 inputs" : "the type of q, or f32");
  }
  const DType bias = p.bias_type();
  if (!(bias == DType::f32 || is_half(bias) || (bias == DType::f64 && p.dtype == DType::f64))) {
    return refuse(f, "dtype_bias",
                  to_string(bias) + std::string(" with dtype=") + to_string(p.dtype),
                  "f32, f16, bf16, and f64 with f64 inputs");
  }
  const DType dbias = p.dbias_type();
  if (dbias != bias && dbias != DType::f32) {
    return refuse(f, "dtype_dbias",
                  to_string(dbias) + std::string(" with a bias of ") + to_string(bias),
                  "the bias's type, or f32");
  }
  if (pass != Pass::backward) return {};
  if (is_f8(p.dtype) || is_8_bit(kv)) {
    return Status::unsupported("backward: 8-bit inputs: found " + std::string(q) + " q and " +
                               to_string(kv) + " k, v; accepted f32, f16, bf16, f64");
  }
  const DType grad = p.grad_type();
  if (grad != p.dtype && grad != DType::f32) {
    return refuse(f, "dtype_grad",
                  to_string(grad) + std::string(" with dtype=") + to_string(p.dtype),
                  "the type of q, or f32");
  }
  return {};
}

Status check_sizes(Pass pass, const Problem& p) {
  struct Range {
    const char* name;
    std::int64_t value;
    std::int64_t low;
    std::int64_t high;
  };
  const std::array<Range, 12> ranges{{{"batch", p.batch, 0, kMaxSize},
                                      {"heads_q", p.heads_q, 1, kMaxSize},
                                      {"heads_kv", p.heads_kv, 1, kMaxSize},
                                      {"len_q", p.len_q, 0, kMaxSize},
                                      {"len_kv", p.len_kv, 0, kMaxSize},
                                      {"dim_qk", p.dim_qk, 1, kMaxDim},
                                      {"dim_vo", p.dim_vo, 1, kMaxDim},
                                      {"total_q", p.total_q, 0, kMaxSize},
                                      {"total_kv", p.total_kv, 0, kMaxSize},
                                      {"page_size", p.page_size, 0, kMaxSize},
                                      {"len_new", p.len_new, 0, kMaxSize},
                                      {"split_keys", p.split_keys, kSplitNone, kMaxSize}}};
  for (const Range& range : ranges) {
    if (range.value >= range.low && range.value <= range.high) continue;
    return refuse(to_string(pass), "size", assignment(range.name, range.value),
                  std::to_string(range.low) + " to " + std::to_string(range.high));
  }
  if (p.heads_q % p.heads_kv != 0) {
    return refuse(to_string(pass), "heads_q is a multiple of heads_kv",
                  assignment("heads_q", p.heads_q) + " " + assignment("heads_kv", p.heads_kv),
                  "a heads_kv that divides heads_q");
  }
  return {};
}

// Limits the number of elements of each tensor, so that offsets in bytes fit 64 bits.
Status check_products(Pass pass, const Problem& p) {
  constexpr std::int64_t kMaxElements = std::int64_t{1} << 57;
  struct Product {
    const char* of;
    std::array<std::int64_t, 4> sizes;
  };
  const bool packed_q = p.layout_q == Layout::packed;
  const bool packed_kv = p.layout_kv == Layout::packed;
  const std::int64_t dim = std::max(p.dim_qk, p.dim_vo);
  const auto pairs = [&](const Extent& e) {
    return std::array<std::int64_t, 4>{e.batch ? p.batch : 1, e.head ? p.heads_q : 1,
                                       e.q ? p.len_q : 1, e.kv ? p.len_kv : 1};
  };
  const std::array<Product, 6> products{
      {{"q and o", {packed_q ? 1 : p.batch, packed_q ? p.total_q : p.len_q, p.heads_q, dim}},
       {"k and v", {packed_kv ? 1 : p.batch, packed_kv ? p.total_kv : p.len_kv, p.heads_kv, dim}},
       {"k_new and v_new", {p.batch, p.len_new, p.heads_kv, dim}},
       {"scores' rows", {p.batch, p.len_q, p.heads_q, 1}},
       {"bias", pairs(p.bias)},
       {"mask", pairs(p.mask)}}};
  for (const Product& product : products) {
    std::int64_t elements = 1;
    bool fits = true;
    for (const std::int64_t size : product.sizes) {
      fits = fits && !__builtin_mul_overflow(elements, size, &elements);
    }
    if (fits && elements <= kMaxElements) continue;
    std::string found(product.of);
    for (std::size_t d = 0; d < product.sizes.size(); ++d) {
      found += (d == 0 ? " of " : " x ") + std::to_string(product.sizes[d]);
    }
    return refuse(to_string(pass), "number of elements", found, "at most 2^57");
  }
  return {};
}

Status check_layouts(Pass pass, const Problem& p) {
  const char* f = to_string(pass);
  const bool packed_q = p.layout_q == Layout::packed;
  const bool packed_kv = p.layout_kv == Layout::packed;
  if (!packed_q && p.total_q != 0) {
    return refuse(f, "total_q is for layout_q=packed", assignment("total_q", p.total_q),
                  "0 with layout_q=padded");
  }
  if (!packed_kv && p.total_kv != 0) {
    return refuse(f, "total_kv is for layout_kv=packed", assignment("total_kv", p.total_kv),
                  "0 with layout_kv=padded");
  }
  if (packed_q && p.lengths_q) {
    return refuse(f, "lengths of a packed layout", "lengths_q with layout_q=packed",
                  "cu_len_q alone");
  }
  if (packed_kv && p.lengths_kv) {
    return refuse(f, "lengths of a packed layout", "lengths_kv with layout_kv=packed",
                  "cu_len_kv alone");
  }
  if (p.page_size > 0 && pass == Pass::backward) {
    return refuse(f, "paged k and v", assignment("page_size", p.page_size),
                  "page_size=0; pages are for forward and decode");
  }
  if (p.page_size > 0 && packed_kv) {
    return refuse(f, "paged k and v", "page_size with layout_kv=packed", "layout_kv=padded");
  }
  if (p.len_new > 0 && pass != Pass::decode) {
    return refuse(f, "append", assignment("len_new", p.len_new), "len_new=0; decode appends");
  }
  if (p.len_new > 0 && (packed_kv || !p.lengths_kv)) {
    return refuse(f, "append",
                  packed_kv ? "len_new with layout_kv=packed" : "len_new without lengths_kv",
                  "layout_kv=padded or pages, with lengths_kv");
  }
  if (p.descale_rows && (packed_kv || !is_8_bit(p.kv_type()))) {
    return refuse(f, "descale_rows",
                  packed_kv ? "descale_rows with layout_kv=packed"
                            : std::string("dtype_kv=") + to_string(p.kv_type()),
                  packed_kv ? "layout_kv=padded or pages" : "f8e4m3, f8e5m2 or i8 with it");
  }
  if (p.split_keys != kSplitAuto && pass != Pass::decode) {
    return refuse(f, "split", assignment("split_keys", p.split_keys),
                  "split_keys=0; decode splits");
  }
  return {};
}

Status check_options(Pass pass, const Problem& p) {
  const char* f = to_string(pass);
  for (const auto& [name, window] :
       {std::pair{"window_left", p.window_left}, {"window_right", p.window_right}}) {
    if (window && *window < 0) {
      return refuse(f, "window", assignment(name, *window), "none, or 0 and more");
    }
  }
  for (const auto& [name, e] : {std::pair{"bias", p.bias}, {"mask", p.mask}}) {
    if (!e.given && (e.batch || e.head || e.q || e.kv)) {
      return refuse(f, "extent", std::string("full dimensions in ") + name + ", which is not given",
                    std::string(name) + ".given, or no full dimensions");
    }
    if (e.per_entry == 1) continue;
    if (!e.batch) {
      return refuse(f, "extent",
                    assignment("per_entry", e.per_entry) + " in " + name + " without a batch",
                    "per_entry=1, or a full batch dimension");
    }
    if (e.per_entry < 1 || p.batch % e.per_entry != 0) {
      return refuse(f, "extent", assignment("per_entry", e.per_entry) + " in " + name,
                    "1 and more, a divisor of batch=" + std::to_string(p.batch));
    }
  }
  if (p.rope == Rope::none) {
    if (p.rot_dim == 0 && !p.rope_tables && !p.rope_positions) return {};
    return refuse(f, "rotary embedding",
                  std::string(p.rope_tables      ? "rope_tables"
                              : p.rope_positions ? "rope_positions"
                                                 : "rot_dim") +
                      " with rope=none",
                  "rope=interleaved or rope=half with it");
  }
  if (p.rot_dim < 0 || p.rotary_dim() % 2 != 0 || p.rotary_dim() > p.dim_qk) {
    return refuse(f, "rot_dim", assignment("rot_dim", p.rotary_dim()),
                  "even, 2 to dim_qk=" + std::to_string(p.dim_qk));
  }
  return {};
}

Status check_gradients(Pass pass, const Problem& p) {
  if (pass != Pass::backward) return {};
  const char* f = to_string(pass);
  if (p.delta && p.dlse) {
    return refuse(f, "delta", "delta with dlse", "one of them: delta already contains dlse");
  }
  if (p.dbias && !p.bias.given) return refuse(f, "dbias", "dbias without bias", "bias with it");
  if (p.dsink && !p.sink) return refuse(f, "dsink", "dsink without sink", "sink with it");
  return {};
}

}  // namespace

Status validate_problem(Pass pass, const Problem& problem) {
  if (!is_known(pass)) {
    return refuse("validate", "value of pass", std::to_string(static_cast<std::int32_t>(pass)),
                  "forward, backward, decode");
  }
  for (const auto check : {check_enums, check_types, check_sizes, check_products, check_layouts,
                           check_options, check_gradients}) {
    if (Status status = check(pass, problem); !status.ok()) return status;
  }
  return {};
}

}  // namespace attn::core
