// core/validate on problems and arguments that agree with each other but for a few damaged places:
// no undefined behaviour, and every refusal has a code and a message. Nothing behind the pointers
// may be touched, so they point nowhere.
#include <fuzzer/FuzzedDataProvider.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <limits>

#include "core/validate.hpp"

namespace {

using namespace attn;  // NOLINT: a program of one file

// Mostly small, sometimes anything.
std::int64_t any_size(FuzzedDataProvider& in) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  static constexpr std::array<std::int64_t, 8> kHostile = {
      -1, kMax, -kMax - 1, kMax - 1, std::int64_t{1} << 62, std::int64_t{1} << 32, 513, 0};
  const auto kind = in.ConsumeIntegral<std::uint8_t>();
  if (kind < 240) return kind % 9;
  if (kind < 250) return in.PickValueInArray(kHostile);
  return in.ConsumeIntegral<std::int64_t>();
}

DType any_type(FuzzedDataProvider& in) {
  return static_cast<DType>(in.ConsumeIntegralInRange<std::int32_t>(-1, 9));
}

Extent any_extent(FuzzedDataProvider& in) {
  const auto bits = in.ConsumeIntegral<std::uint8_t>();
  if ((bits & 1) == 0) return {};
  const std::int64_t per_entry = (bits & 32) == 0 ? 1 : any_size(in);
  return {true, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0, (bits & 16) != 0, per_entry};
}

std::optional<std::int64_t> any_window(FuzzedDataProvider& in) {
  if (!in.ConsumeBool()) return std::nullopt;
  return any_size(in);
}

Problem any_problem(FuzzedDataProvider& in) {
  Problem p;
  static constexpr std::array<DType, 4> kFloats = {DType::f32, DType::f16, DType::bf16, DType::f64};
  p.dtype = in.ConsumeBool() ? in.PickValueInArray(kFloats) : any_type(in);
  if (in.ConsumeBool()) {
    for (DType* type : {&p.dtype_kv, &p.dtype_out, &p.dtype_grad, &p.dtype_bias, &p.dtype_dbias}) {
      if (in.ConsumeBool()) *type = any_type(in);
    }
  }
  p.precision = static_cast<Precision>(in.ConsumeIntegralInRange<std::int32_t>(0, 3));
  p.batch = any_size(in);
  p.heads_kv = any_size(in);
  p.heads_q = in.ConsumeBool() ? p.heads_kv : any_size(in);
  p.len_q = any_size(in);
  p.len_kv = any_size(in);
  p.dim_qk = any_size(in);
  p.dim_vo = any_size(in);
  const auto layouts = in.ConsumeIntegral<std::uint8_t>();
  p.layout_q = static_cast<Layout>((layouts & 3) == 3 ? 1 : 0);
  p.layout_kv = static_cast<Layout>((layouts & 12) == 12 ? 1 : 0);
  p.total_q = any_size(in);
  p.total_kv = any_size(in);
  const auto switches = in.ConsumeIntegral<std::uint32_t>();
  int bit = 0;
  for (bool* on : {&p.lengths_q,
                   &p.lengths_kv,
                   &p.causal,
                   &p.kv_begin,
                   &p.kv_end,
                   &p.softcap,
                   &p.alibi,
                   &p.sink,
                   &p.dropout,
                   &p.rope_tables,
                   &p.rope_positions,
                   &p.lse,
                   &p.dlse,
                   &p.delta,
                   &p.dq,
                   &p.dk,
                   &p.dv,
                   &p.dbias,
                   &p.dsink,
                   &p.accumulate,
                   &p.deterministic,
                   &p.nonfinite_zero}) {
    *on = (switches >> bit++ & 1) != 0;
  }
  p.diagonal = static_cast<Diagonal>(in.ConsumeIntegralInRange<std::int32_t>(0, 3));
  p.window_left = any_window(in);
  p.window_right = any_window(in);
  p.mask = any_extent(in);
  p.bias = any_extent(in);
  if (in.ConsumeBool()) {
    p.rope = static_cast<Rope>(in.ConsumeIntegralInRange<std::int32_t>(0, 3));
    p.rot_dim = any_size(in);
  }
  if (in.ConsumeBool()) {
    p.page_size = any_size(in);
    p.len_new = any_size(in);
    p.split_keys = any_size(in);
  }
  return p;
}

// Somewhere of its own for every view, so that they don't overlap unless damaged.
struct Addresses {
  std::uintptr_t next = std::uintptr_t{1} << 40;
  void* take() { return reinterpret_cast<void*>(next += std::uintptr_t{1} << 32); }
};

std::int64_t wrapping_product(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}

TensorView made(Addresses& addresses, DType type, std::initializer_list<std::int64_t> shape) {
  TensorView view;
  view.data = addresses.take();
  view.dtype = type;
  view.rank = static_cast<std::int32_t>(shape.size());
  std::size_t d = 0;
  for (const std::int64_t extent : shape) view.shape[d++] = extent;
  std::int64_t stride = 1;
  while (d-- > 0) {
    view.strides[d] = stride;
    stride = wrapping_product(stride, view.shape[d]);
  }
  return view;
}

TensorView rows(Addresses& at, DType type, const Problem& p, bool q, std::int64_t heads,
                std::int64_t dim) {
  const bool packed = (q ? p.layout_q : p.layout_kv) == Layout::packed;
  if (packed) return made(at, type, {q ? p.total_q : p.total_kv, heads, dim});
  if (!q && p.page_size > 0) return made(at, type, {4, p.page_size, heads, dim});
  return made(at, type, {p.batch, q ? p.len_q : p.len_kv, heads, dim});
}

TensorView extent(Addresses& at, DType type, const Problem& p, const Extent& e) {
  return made(at, type,
              {e.per_entry < 1 ? 1 : e.entries(p.batch), e.head ? p.heads_q : 1, e.q ? p.len_q : 1,
               e.kv ? p.len_kv : 1});
}

Arguments matching_arguments(Pass pass, const Problem& p) {
  Addresses at;
  Arguments a;
  const bool backward = pass == Pass::backward;
  const bool packed_q = p.layout_q == Layout::packed;
  const bool packed_kv = p.layout_kv == Layout::packed;
  const DType stat = p.statistics_type();
  const auto statistics = [&] {
    return packed_q ? made(at, stat, {p.heads_q, p.total_q})
                    : made(at, stat, {p.batch, p.heads_q, p.len_q});
  };
  const auto per_query = [&] {
    return packed_q ? made(at, DType::i32, {p.total_q}) : made(at, DType::i32, {p.batch, p.len_q});
  };
  a.q = rows(at, p.dtype, p, true, p.heads_q, p.dim_qk);
  a.k = rows(at, p.kv_type(), p, false, p.heads_kv, p.dim_qk);
  a.v = rows(at, p.kv_type(), p, false, p.heads_kv, p.dim_vo);
  a.o = rows(at, p.out_type(), p, true, p.heads_q, p.dim_vo);
  if (p.lse || backward) a.lse = statistics();
  if (p.bias.given) a.bias = extent(at, p.bias_type(), p, p.bias);
  if (p.mask.given) a.mask = extent(at, DType::u8, p, p.mask);
  if (p.alibi) a.alibi_slopes = made(at, stat, {p.heads_q});
  if (p.sink) a.sinks = made(at, stat, {p.heads_q});
  if (p.lengths_q) a.len_q = made(at, DType::i32, {p.batch});
  if (p.lengths_kv) a.len_kv = made(at, DType::i32, {p.batch});
  const std::int64_t cumulative = wrapping_product(p.batch, 1) < 1000 ? p.batch + 1 : p.batch;
  if (packed_q) a.cu_len_q = made(at, DType::i32, {cumulative});
  if (packed_kv) a.cu_len_kv = made(at, DType::i32, {cumulative});
  if (p.kv_begin) a.kv_begin = per_query();
  if (p.kv_end) a.kv_end = per_query();
  if (p.page_size > 0) a.block_table = made(at, DType::i32, {p.batch, 8});
  if (p.len_new > 0) {
    a.k_new = made(at, p.kv_type(), {p.batch, p.len_new, p.heads_kv, p.dim_qk});
    a.v_new = made(at, p.kv_type(), {p.batch, p.len_new, p.heads_kv, p.dim_vo});
  }
  if (p.rope_tables) {
    a.rope_cos = made(at, stat, {64, p.rotary_dim() / 2});
    a.rope_sin = made(at, stat, {64, p.rotary_dim() / 2});
  }
  if (p.rope_positions) {
    a.rope_pos_q = per_query();
    a.rope_pos_k =
        packed_kv ? made(at, DType::i32, {p.total_kv}) : made(at, DType::i32, {p.batch, p.len_kv});
  }
  if (p.nonfinite_zero) a.nonfinite_count = made(at, DType::i32, {1});
  if (backward) {
    a.dout = rows(at, p.out_type(), p, true, p.heads_q, p.dim_vo);
    if (p.dlse) a.dlse = statistics();
    if (p.delta) a.delta = statistics();
    if (p.dq) a.dq = rows(at, p.grad_type(), p, true, p.heads_q, p.dim_qk);
    if (p.dk) a.dk = rows(at, p.grad_type(), p, false, p.heads_kv, p.dim_qk);
    if (p.dv) a.dv = rows(at, p.grad_type(), p, false, p.heads_kv, p.dim_vo);
    if (p.dbias) a.dbias = extent(at, p.dbias_type(), p, p.bias);
    if (p.dsink) a.dsink = made(at, stat, {p.heads_q});
  }
  if (p.softcap) a.softcap = 30.0;
  if (p.dropout) a.dropout_p = 0.1;
  return a;
}

void damage(FuzzedDataProvider& in, TensorView& view) {
  const auto dim = in.ConsumeIntegralInRange<std::size_t>(0, kMaxRank - 1);
  switch (in.ConsumeIntegralInRange<int>(0, 8)) {
    case 0: view = {}; break;
    case 1: view.shape[dim] = any_size(in); break;
    case 2: view.strides[dim] = any_size(in); break;
    case 3: view.dtype = any_type(in); break;
    case 4: view.data = nullptr; break;
    case 5: view.rank = in.ConsumeIntegralInRange<std::int32_t>(-1, 6); break;
    case 6: view.offset_bytes = any_size(in); break;
    case 7:
      view.device = static_cast<Device>(in.ConsumeIntegralInRange<std::int32_t>(-1, 3));
      break;
    default: view.ordinal = in.ConsumeIntegral<std::int8_t>(); break;
  }
}

double any_number(FuzzedDataProvider& in) {
  static constexpr std::array<double, 8> kHostile = {0.0,
                                                     -1.0,
                                                     1.0,
                                                     1.0 / 512,
                                                     1.0 / 513,
                                                     1e308,
                                                     std::numeric_limits<double>::infinity(),
                                                     std::numeric_limits<double>::quiet_NaN()};
  return in.ConsumeBool() ? in.PickValueInArray(kHostile) : in.ConsumeFloatingPoint<double>();
}

template <std::size_t kCount>
TensorView& any_of(FuzzedDataProvider& in, const std::array<TensorView*, kCount>& views) {
  return *views[in.ConsumeIntegralInRange<std::size_t>(0, kCount - 1)];
}

void damage(FuzzedDataProvider& in, Arguments& a) {
  const std::array views = {&a.q,          &a.k,
                            &a.v,          &a.o,
                            &a.lse,        &a.bias,
                            &a.mask,       &a.alibi_slopes,
                            &a.sinks,      &a.len_q,
                            &a.len_kv,     &a.cu_len_q,
                            &a.cu_len_kv,  &a.kv_begin,
                            &a.kv_end,     &a.block_table,
                            &a.k_new,      &a.v_new,
                            &a.descale_q,  &a.descale_k,
                            &a.descale_v,  &a.rope_cos,
                            &a.rope_sin,   &a.rope_pos_q,
                            &a.rope_pos_k, &a.dout,
                            &a.dlse,       &a.delta,
                            &a.dq,         &a.dk,
                            &a.dv,         &a.dbias,
                            &a.dsink,      &a.nonfinite_count};
  switch (in.ConsumeIntegralInRange<int>(0, 9)) {
    case 0: any_of(in, views).data = any_of(in, views).data; break;  // an alias
    case 1: any_of(in, views) = any_of(in, views); break;
    case 2: a.scale = any_number(in); break;
    case 3: a.softcap = any_number(in); break;
    case 4: a.dropout_p = any_number(in); break;
    case 5: a.rope_base = any_number(in); break;
    case 6:
      a.diag = any_size(in);
      a.rope_pos_offset = any_size(in);
      break;
    case 7:
      a.origin = {any_size(in), any_size(in), any_size(in), any_size(in), any_size(in)};
      break;
    default: damage(in, any_of(in, views)); break;
  }
}

void check(const core::Status& status) {
  if (status.ok() != status.message.empty()) std::abort();
}

void fuzz_attention(FuzzedDataProvider& in) {
  const auto pass = static_cast<Pass>(in.ConsumeIntegralInRange<std::int32_t>(0, 2));
  const Problem problem = any_problem(in);
  check(core::validate_problem(pass, problem));
  Arguments arguments = matching_arguments(pass, problem);
  for (int n = in.ConsumeIntegralInRange<int>(0, 3); n > 0; --n) damage(in, arguments);
  check(core::validate(pass, problem, arguments));
}

void fuzz_merge(FuzzedDataProvider& in) {
  Addresses at;
  const std::int64_t b = any_size(in), n = any_size(in), h = any_size(in), d = any_size(in);
  const auto values = [&] { return made(at, DType::f32, {b, n, h, d}); };
  const auto statistics = [&] { return made(at, DType::f32, {b, h, n}); };
  if (in.ConsumeBool()) {
    MergeArguments a{values(), statistics(), values(), statistics(), values(), statistics(), {}};
    const std::array views = {&a.o1, &a.lse1, &a.o2, &a.lse2, &a.o, &a.lse};
    for (int k = in.ConsumeIntegralInRange<int>(0, 2); k > 0; --k) damage(in, any_of(in, views));
    check(core::validate(a));
  } else {
    MergeBackwardArguments a{values(), statistics(), values(), statistics(), values(), statistics(),
                             values(), statistics(), values(), statistics(), values(), statistics(),
                             {}};
    const std::array views = {&a.o1,   &a.lse1, &a.o2,    &a.lse2,  &a.o,     &a.lse,
                              &a.dout, &a.dlse, &a.dout1, &a.dlse1, &a.dout2, &a.dlse2};
    for (int k = in.ConsumeIntegralInRange<int>(0, 2); k > 0; --k) damage(in, any_of(in, views));
    check(core::validate(a));
  }
}

void fuzz_rope(FuzzedDataProvider& in) {
  Addresses at;
  RopeArguments a;
  const std::int64_t b = any_size(in), n = any_size(in), h = any_size(in), d = any_size(in);
  a.x = made(at, DType::f32, {b, n, h, d});
  a.out = in.ConsumeBool() ? a.x : made(at, DType::f32, {b, n, h, d});
  a.style = static_cast<Rope>(in.ConsumeIntegralInRange<std::int32_t>(0, 3));
  a.rot_dim = any_size(in);
  a.base = any_number(in);
  a.pos_offset = any_size(in);
  if (in.ConsumeBool()) a.positions = made(at, DType::i32, {b, n});
  if (in.ConsumeBool()) a.cos = a.sin = made(at, DType::f32, {n, d / 2});
  const std::array views = {&a.x, &a.out, &a.positions, &a.cu_len, &a.cos, &a.sin};
  for (int k = in.ConsumeIntegralInRange<int>(0, 2); k > 0; --k) damage(in, any_of(in, views));
  check(core::validate(a));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider in(data, size);
  const auto kind = in.ConsumeIntegral<std::uint8_t>();
  if (kind < 192) {
    fuzz_attention(in);
  } else if (kind < 224) {
    fuzz_merge(in);
  } else {
    fuzz_rope(in);
  }
  return 0;
}
