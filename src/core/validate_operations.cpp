// The rules on merge, its backward and rope: see validate.hpp.
#include <cmath>
#include <string>

#include "core/names.hpp"
#include "core/refusal.hpp"
#include "core/signature.hpp"
#include "core/tensor_rules.hpp"
#include "core/validate.hpp"

namespace attn::core {

namespace {

DType statistics_of(DType dtype) {
  return dtype == DType::f64 ? DType::f64 : DType::f32;
}

// Accepts any [b, n, h, dim] or [total, h, dim] of a floating-point type.
Status check_rows(const char* f, const char* name, const TensorView& view) {
  if (!view.given()) {
    return refuse(f, std::string(name) + " is needed", "none", "[b, n, h, dim] or [total, h, dim]");
  }
  if (!is_float(view.dtype)) {
    return refuse(f, std::string("type of ") + name, to_string(view.dtype), "f32, f16, bf16, f64");
  }
  if (view.rank != 3 && view.rank != 4) {
    return refuse(f, std::string("shape of ") + name, to_string(view),
                  "[b, n, h, dim] or [total, h, dim]");
  }
  for (int d = 0; d < view.rank; ++d) {
    const std::int64_t size = view.shape[static_cast<std::size_t>(d)];
    const bool dim = d == view.rank - 1;
    if (size < 0 || (dim && (size < 1 || size > kMaxDim)) || size > 0x7FFFFFFF) {
      return refuse(f, std::string("shape of ") + name, to_string(view),
                    "a last dimension of 1 to 512, others 0 to 2^31 - 1");
    }
  }
  return {};
}

Shape like(const TensorView& view, DType dtype) {
  Shape shape;
  shape.dtype = dtype;
  shape.rank = view.rank;
  for (std::size_t d = 0; d < view.shape.size(); ++d) shape.dims[d] = {view.shape[d], Fit::exact};
  return shape;
}

Shape statistics_like(const TensorView& rows) {
  const DType dtype = statistics_of(rows.dtype);
  if (rows.rank == 3) return {dtype, {{rows.shape[1]}, {rows.shape[0]}}};
  return {dtype, {{rows.shape[0]}, {rows.shape[2]}, {rows.shape[1]}}};
}

// A partial result or its gradient: shaped like o, with the type of o or f32.
Status check_partial(const char* f, TensorRules& rules, const char* name, const TensorView& view,
                     const TensorView& o, bool written, Use use, const char* because = "") {
  if (view.given() && view.dtype != o.dtype && view.dtype != DType::f32) {
    return refuse(f, std::string("type of ") + name,
                  is_known(view.dtype) ? to_string(view.dtype) : "an unknown type",
                  to_string(o.dtype) + std::string(", the type of o, or f32"));
  }
  return rules.check(name, view, like(o, view.dtype), written, use, because);
}

}  // namespace

Status validate(const MergeArguments& a) {
  const char* f = "merge";
  if (Status status = check_rows(f, "o", a.o); !status.ok()) return status;
  TensorRules rules(f);
  const Shape stats = statistics_like(a.o);
  Status status = rules.check("o", a.o, like(a.o, a.o.dtype), true, Use::needed);
  if (status.ok()) status = rules.check("lse", a.lse, stats, true, Use::optional);
  if (status.ok()) status = check_partial(f, rules, "o1", a.o1, a.o, false, Use::needed);
  if (status.ok()) status = rules.check("lse1", a.lse1, stats, false, Use::needed);
  if (status.ok()) status = check_partial(f, rules, "o2", a.o2, a.o, false, Use::optional);
  if (status.ok()) status = rules.check("lse2", a.lse2, stats, false, Use::needed);
  if (status.ok()) status = rules.check_stream(a.stream);
  rules.allow_in_place(a.o, a.o1);
  rules.allow_in_place(a.lse, a.lse1);
  return status.ok() ? rules.check_aliases() : status;
}

Status validate(const MergeBackwardArguments& a) {
  const char* f = "merge_backward";
  if (Status status = check_rows(f, "o", a.o); !status.ok()) return status;
  TensorRules rules(f);
  const Shape stats = statistics_like(a.o);
  Status status = rules.check("o", a.o, like(a.o, a.o.dtype), false, Use::needed);
  if (status.ok()) status = rules.check("lse", a.lse, stats, false, Use::needed);
  if (status.ok()) status = check_partial(f, rules, "o1", a.o1, a.o, false, Use::needed);
  if (status.ok()) status = rules.check("lse1", a.lse1, stats, false, Use::needed);
  if (status.ok()) status = check_partial(f, rules, "o2", a.o2, a.o, false, Use::optional);
  if (status.ok()) status = rules.check("lse2", a.lse2, stats, false, Use::needed);
  if (status.ok()) {
    status = rules.check("dout", a.dout, like(a.o, a.o.dtype), false, Use::needed);
  }
  if (status.ok()) status = rules.check("dlse", a.dlse, stats, false, Use::optional);
  if (status.ok()) {
    status = check_partial(f, rules, "dout1", a.dout1, a.o, true, Use::optional);
  }
  if (status.ok()) {
    status = check_partial(f, rules, "dout2", a.dout2, a.o, true,
                           a.o2.given() ? Use::optional : Use::absent, "o2");
  }
  if (status.ok()) status = rules.check("dlse1", a.dlse1, stats, true, Use::optional);
  if (status.ok()) status = rules.check("dlse2", a.dlse2, stats, true, Use::optional);
  if (status.ok()) status = rules.check_stream(a.stream);
  return status.ok() ? rules.check_aliases() : status;
}

Status validate(const RopeArguments& a) {
  const char* f = "rope";
  if (Status status = check_rows(f, "x", a.x); !status.ok()) return status;
  const std::int64_t dim = a.x.shape[static_cast<std::size_t>(a.x.rank - 1)];
  const std::int64_t rot_dim = a.rot_dim == 0 ? dim : a.rot_dim;
  if (a.style != Rope::interleaved && a.style != Rope::half) {
    return refuse(f, "style", name_of(a.style), "interleaved, half");
  }
  if (rot_dim < 2 || rot_dim % 2 != 0 || rot_dim > dim) {
    return refuse(f, "rot_dim", assignment("rot_dim", rot_dim),
                  "even, 2 to " + std::to_string(dim));
  }
  if (a.cos.given() != a.sin.given()) {
    return refuse(f, "cos goes with sin", a.cos.given() ? "cos without sin" : "sin without cos",
                  "both or neither");
  }
  if (!a.cos.given() && !(std::isfinite(a.base) && a.base > 0.0)) {
    return refuse(f, "base", std::to_string(a.base), "a finite number above 0");
  }
  if (a.pos_offset > kMaxPosition || a.pos_offset < -kMaxPosition) {
    return refuse(f, "pos_offset", std::to_string(a.pos_offset), "-2^53 to 2^53");
  }
  const bool packed = a.x.rank == 3;
  const Shape table{statistics_of(a.x.dtype), {{1, Fit::at_least}, {rot_dim / 2}}};
  const Shape positions = packed ? Shape{DType::i32, {{a.x.shape[0]}}}
                                 : Shape{DType::i32, {{a.x.shape[0], Fit::one_or}, {a.x.shape[1]}}};
  TensorRules rules(f);
  Status status = rules.check("x", a.x, like(a.x, a.x.dtype), false, Use::needed);
  if (status.ok()) status = rules.check("out", a.out, like(a.x, a.x.dtype), true, Use::needed);
  if (status.ok()) {
    status = rules.check("positions", a.positions, positions, false, Use::optional);
  }
  if (status.ok()) {
    status = rules.check("cu_len", a.cu_len, {DType::i32, {{1, Fit::at_least}}}, false,
                         packed ? Use::optional : Use::absent, "a packed x");
  }
  if (status.ok()) status = rules.check("cos", a.cos, table, false, Use::optional);
  if (status.ok()) status = rules.check("sin", a.sin, table, false, Use::optional);
  if (status.ok() && a.cos.given() && a.cos.shape[0] != a.sin.shape[0]) {
    status = refuse(f, "shape of sin", to_string(a.sin), "as many positions as cos");
  }
  if (status.ok()) status = rules.check_stream(a.stream);
  rules.allow_in_place(a.out, a.x);
  return status.ok() ? rules.check_aliases() : status;
}

}  // namespace attn::core
