// Implements options.hpp.
#include "options.hpp"

#include <algorithm>
#include <cstring>

#include "inputs.hpp"
#include "values.hpp"

namespace attn::harness {
namespace {

using enum Passes;

Extent extent(bool batch, bool head, bool q, bool kv) {
  return {true, batch, head, q, kv, 1};
}

void bias(Case& c, Extent e, bool own_type = false) {
  c.problem.bias = e;
  c.problem.dbias = c.pass == Pass::backward;
  if (own_type && c.problem.dtype != DType::f64) {
    c.problem.dtype_bias = c.problem.dtype == DType::f16 ? DType::f16 : DType::bf16;
  }
}

// Makes each two consecutive sequences share an entry of a bias or mask.
void in_pairs(Case& c, Extent& extent) {
  extent.per_entry = 2;
  c.problem.batch = (c.problem.batch + 1) / 2 * 2;
}

void sink(Case& c, Sinks kind) {
  c.problem.sink = true;
  c.problem.dsink = c.pass == Pass::backward;
  c.sinks = kind;
}

void lengths(Case& c, bool q, bool kv, Lengths kind) {
  c.problem.lengths_q = q;
  c.problem.lengths_kv = kv;
  c.lengths = kind;
  c.problem.batch = std::max<std::int64_t>(c.problem.batch, 2);
}

void packed(Case& c, bool q, bool kv, Lengths kind) {
  if (q) c.problem.layout_q = Layout::packed;
  if (kv) c.problem.layout_kv = Layout::packed;
  c.lengths = kind;
  c.problem.batch = std::max<std::int64_t>(c.problem.batch, 2);
}

void ranges(Case& c, bool begin, bool end, Ranges kind) {
  c.problem.kv_begin = begin;
  c.problem.kv_end = end;
  c.ranges = kind;
}

void rope(Case& c, Rope style) {
  c.problem.rope = style;
  c.rope_pos_offset = 3;
}

void paged(Case& c, std::int64_t page_size) {
  c.problem.page_size = page_size;
}

void cache_type(Case& c, DType dtype) {
  if (c.problem.dtype == DType::f16 || c.problem.dtype == DType::bf16) c.problem.dtype_kv = dtype;
}

void cache_i8(Case& c) {
  cache_type(c, DType::i8);
  if (c.problem.dtype == DType::f32) c.problem.dtype_kv = DType::i8;
}

std::vector<Option> visibility_options() {
  return {
      {"causal", "keys up to the diagonal", "", any,
       [](Case& c, Draw&) { c.problem.causal = true; }},
      {"top_left", "diagonal at the first key", "diagonal", any,
       [](Case& c, Draw&) { c.problem.diagonal = Diagonal::top_left; }},
      {"diag", "diagonal given by the caller", "diagonal", any,
       [](Case& c, Draw& draw) {
         c.problem.diagonal = Diagonal::explicit_value;
         c.diag = draw.range(-20, 40);
       }},
      {"origin", "one chunk of a larger problem", "diagonal", any,
       [](Case& c, Draw& draw) {
         c.problem.diagonal = Diagonal::explicit_value;
         c.origin = {draw.range(0, 3), draw.range(0, 5), draw.range(0, 99), draw.range(0, 60), 12};
       }},
      {"window_left", "keys not too far before", "window", any,
       [](Case& c, Draw& draw) { c.problem.window_left = draw.of({0, 1, 17, 64, 150}); }},
      {"window_right", "keys not too far behind", "window", any,
       [](Case& c, Draw& draw) { c.problem.window_right = draw.of({0, 1, 17, 64, 150}); }},
      {"window", "keys near on both sides", "window", any,
       [](Case& c, Draw& draw) {
         c.problem.window_left = draw.of({0, 3, 40, 130});
         c.problem.window_right = draw.of({0, 2, 33, 129});
       }},
      {"kv_begin", "a first key for each query: documents", "ranges", any,
       [](Case& c, Draw&) { ranges(c, true, false, Ranges::documents); }},
      {"kv_end", "a last key for each query: prefix and documents", "ranges", any,
       [](Case& c, Draw&) { ranges(c, false, true, Ranges::documents); }},
      {"kv_ranges", "first and last keys in no order, out of range too", "ranges", any,
       [](Case& c, Draw&) { ranges(c, true, true, Ranges::random); }},
      {"kv_ranges_empty", "every other query sees nothing", "ranges", any,
       [](Case& c, Draw&) { ranges(c, true, true, Ranges::empty); }},
      {"mask", "boolean mask [b, h, n, m]", "mask", any,
       [](Case& c, Draw&) { c.problem.mask = extent(true, true, true, true); }},
      {"mask_keys", "boolean mask [b, 1, 1, m]", "mask", any,
       [](Case& c, Draw&) { c.problem.mask = extent(true, false, false, true); }},
      {"mask_shared", "boolean mask [1, 1, n, m], few keys seen", "mask", any,
       [](Case& c, Draw&) {
         c.problem.mask = extent(false, false, true, true);
         c.mask_density = 0.02;
       }},
      {"mask_groups", "boolean mask [b/2, 1, n, m]", "mask", any,
       [](Case& c, Draw&) {
         c.problem.mask = extent(true, false, true, true);
         in_pairs(c, c.problem.mask);
       }},
      {"mask_queries", "boolean mask [1, h, n, 1]: empty rows", "mask", any,
       [](Case& c, Draw&) { c.problem.mask = extent(false, true, true, false); }},
  };
}

std::vector<Option> score_options() {
  return {
      {"bias", "bias [b, h, n, m] with its gradient", "bias", any,
       [](Case& c, Draw&) { bias(c, extent(true, true, true, true)); }},
      {"bias_shared", "bias [1, h, n, m] in a 16-bit type", "bias", any,
       [](Case& c, Draw&) { bias(c, extent(false, true, true, true), true); }},
      {"bias_groups", "bias [b/2, h, n, m] with its gradient", "bias", any,
       [](Case& c, Draw&) {
         bias(c, extent(true, true, true, true), true);
         in_pairs(c, c.problem.bias);
       }},
      {"bias_keys", "bias [b, 1, 1, m], gradient in f32", "bias", any,
       [](Case& c, Draw&) {
         bias(c, extent(true, false, false, true), true);
         if (c.problem.dbias && c.problem.dtype != DType::f64) c.problem.dtype_dbias = DType::f32;
       }},
      {"bias_queries", "bias [1, h, n, 1]", "bias", any,
       [](Case& c, Draw&) { bias(c, extent(false, true, true, false)); }},
      {"bias_number", "bias [1, 1, 1, 1]", "bias", any,
       [](Case& c, Draw&) { bias(c, extent(false, false, false, false)); }},
      {"bias_hidden", "bias [1, 1, n, m], half of it -inf", "bias", any,
       [](Case& c, Draw&) {
         bias(c, extent(false, false, true, true));
         c.bias_hidden = 0.5;
       }},
      {"softcap", "softcap * tanh(score / softcap)", "", any,
       [](Case& c, Draw& draw) {
         c.problem.softcap = true;
         c.softcap = static_cast<double>(draw.of({1, 2, 20}));
       }},
      {"alibi", "linear biases, slopes [h]", "alibi", any,
       [](Case& c, Draw&) { c.problem.alibi = true; }},
      {"alibi_batch", "linear biases, slopes [b, h]", "alibi", any,
       [](Case& c, Draw&) {
         c.problem.alibi = true;
         c.slopes_per_batch = true;
       }},
      {"sink", "attention sinks with gradient", "sink", any,
       [](Case& c, Draw&) { sink(c, Sinks::normal); }},
      {"sink_minus_inf", "some heads without a sink", "sink", any,
       [](Case& c, Draw&) { sink(c, Sinks::minus_inf); }},
      {"dropout", "dropout", "dropout", any,
       [](Case& c, Draw& draw) {
         c.problem.dropout = true;
         c.dropout_p = static_cast<double>(draw.of({10, 25, 50, 90})) / 100.0;
       }},
      {"device_seed", "dropout, seed and offset read where the tensors are", "dropout", any,
       [](Case& c, Draw&) {
         c.problem.dropout = true;
         c.dropout_p = 0.25;
         c.device_seed = true;
       }},
      {"scale", "a given scale", "scale", any, [](Case& c, Draw&) { c.scale = 0.375; }},
      {"scale_negative", "a negative scale", "scale", any, [](Case& c, Draw&) { c.scale = -0.25; }},
      {"scale_zero", "scale 0", "scale", any, [](Case& c, Draw&) { c.scale = 0.0; }},
      {"large_scores", "scores of some tens", "", any, [](Case& c, Draw&) { c.value_scale = 3.0; }},
      {"rope", "rotary embedding of halves", "rope", forward_backward,
       [](Case& c, Draw&) { rope(c, Rope::half); }},
      {"rope_interleaved", "rotary embedding of neighbours, part of the dimension", "rope",
       forward_backward,
       [](Case& c, Draw&) {
         rope(c, Rope::interleaved);
         c.problem.rot_dim = 2;
       }},
      {"rope_tables", "rotary embedding by tables", "rope", forward_backward,
       [](Case& c, Draw& draw) {
         rope(c, draw.chance(0.5) ? Rope::half : Rope::interleaved);
         c.problem.rope_tables = true;
       }},
      {"rope_positions", "rotary embedding at given positions", "rope", forward_backward,
       [](Case& c, Draw& draw) {
         rope(c, draw.chance(0.5) ? Rope::half : Rope::interleaved);
         c.problem.rope_positions = true;
       }},
  };
}

std::vector<Option> shape_options() {
  return {
      {"lengths_q", "lengths of the queries", "lengths", any,
       [](Case& c, Draw&) { lengths(c, true, false, Lengths::varied); }},
      {"lengths_kv", "lengths of the keys", "lengths", any,
       [](Case& c, Draw&) { lengths(c, false, true, Lengths::varied); }},
      {"lengths", "lengths of both, one entry empty", "lengths", any,
       [](Case& c, Draw&) { lengths(c, true, true, Lengths::zero); }},
      {"lengths_hostile", "lengths out of range", "lengths", any,
       [](Case& c, Draw&) { lengths(c, true, true, Lengths::hostile); }},
      {"packed", "packed rows", "lengths", forward_backward,
       [](Case& c, Draw&) { packed(c, true, true, Lengths::varied); }},
      {"packed_zero", "packed rows, one entry empty", "lengths", forward_backward,
       [](Case& c, Draw&) { packed(c, true, true, Lengths::zero); }},
      {"packed_gaps", "packed rows, some of no entry", "lengths", forward_backward,
       [](Case& c, Draw&) { packed(c, true, true, Lengths::gaps); }},
      {"packed_q", "packed queries, padded keys", "lengths", any,
       [](Case& c, Draw&) {
         packed(c, true, false, Lengths::varied);
         c.problem.lengths_kv = true;
       }},
      {"packed_kv", "padded queries, packed keys", "lengths", forward_backward,
       [](Case& c, Draw&) { packed(c, false, true, Lengths::varied); }},
      {"no_keys", "len_kv = 0", "size", forward_backward,
       [](Case& c, Draw&) { c.problem.len_kv = 0; }},
      {"no_queries", "len_q = 0", "size", forward_backward,
       [](Case& c, Draw&) { c.problem.len_q = 0; }},
      {"gqa", "groups of heads share keys", "heads", any,
       [](Case& c, Draw& draw) {
         c.problem.heads_kv = 2;
         c.problem.heads_q = draw.of({4, 6});
       }},
      {"mqa", "all heads share keys", "heads", any,
       [](Case& c, Draw& draw) {
         c.problem.heads_kv = 1;
         c.problem.heads_q = draw.of({3, 4});
       }},
      {"dims_odd", "odd dimensions", "dims", any,
       [](Case& c, Draw& draw) {
         c.problem.dim_qk = draw.of({1, 7, 33});
         c.problem.dim_vo = draw.of({1, 5, 19, 65});
       }},
      {"dims_apart", "dim_qk and dim_vo apart", "dims", any,
       [](Case& c, Draw& draw) {
         c.problem.dim_qk = draw.of({8, 40, 96});
         c.problem.dim_vo = draw.of({16, 24, 72});
       }},
      {"dims_large", "dimensions up to 256", "dims", any,
       [](Case& c, Draw& draw) {
         c.problem.dim_qk = draw.of({128, 192, 256});
         c.problem.dim_vo = draw.of({128, 160, 256});
         c.problem.batch = std::min<std::int64_t>(c.problem.batch, 2);
       }},
      {"bhsd", "heads before rows in memory", "memory", any,
       [](Case& c, Draw&) { c.memory = Memory::bhsd; }},
      {"fused_qkv", "q, k and v in one buffer", "memory", forward_backward,
       [](Case& c, Draw&) { c.memory = Memory::fused_qkv; }},
      {"sliced", "slices of larger tensors", "memory", any,
       [](Case& c, Draw&) { c.memory = Memory::sliced; }},
      {"padded_rows", "gaps after every row", "memory", any,
       [](Case& c, Draw&) { c.memory = Memory::padded; }},
      {"expanded_heads", "k and v of stride 0 over heads, bias and mask expanded", "expanded", any,
       [](Case& c, Draw&) {
         c.expanded = Expanded::heads;
         c.problem.heads_q = c.problem.heads_kv = 2;
       }},
      {"expanded_batch", "k and v of stride 0 over the batch", "expanded", any,
       [](Case& c, Draw&) {
         c.expanded = Expanded::batch;
         c.problem.batch = std::max<std::int64_t>(c.problem.batch, 2);
       }},
  };
}

std::vector<Option> result_options() {
  return {
      {"out_f32", "o in f32 from 16-bit inputs", "", any,
       [](Case& c, Draw&) {
         if (c.problem.dtype != DType::f64) c.problem.dtype_out = DType::f32;
       }},
      {"no_lse", "lse not wanted", "", forward_decode,
       [](Case& c, Draw&) { c.problem.lse = false; }},
      {"nonfinite_zero", "non-finite results become 0 and are counted", "", any,
       [](Case& c, Draw& draw) {
         c.problem.nonfinite_zero = true;
         if (c.pass == Pass::forward && draw.chance(0.5)) c.planted = Planted::nan_q;
       }},
      {"dlse", "a gradient of lse", "delta", backward,
       [](Case& c, Draw&) { c.problem.dlse = true; }},
      {"delta", "delta made by the caller", "delta", backward,
       [](Case& c, Draw&) { c.problem.delta = true; }},
      {"accumulate", "gradients are added to", "", backward,
       [](Case& c, Draw&) { c.problem.accumulate = true; }},
      {"deterministic", "the same bits every time", "", any,
       [](Case& c, Draw&) { c.problem.deterministic = true; }},
      {"grad_f32", "gradients in f32 from 16-bit inputs", "", backward,
       [](Case& c, Draw&) {
         if (c.problem.dtype != DType::f64) c.problem.dtype_grad = DType::f32;
       }},
      {"only_dq", "dk and dv not wanted", "wanted", backward,
       [](Case& c, Draw&) { c.problem.dk = c.problem.dv = false; }},
      {"only_dkv", "dq not wanted", "wanted", backward,
       [](Case& c, Draw&) { c.problem.dq = false; }},
      {"only_dv", "dq and dk not wanted", "wanted", backward,
       [](Case& c, Draw&) { c.problem.dq = c.problem.dk = false; }},
  };
}

std::vector<Option> cache_options() {
  return {
      {"paged_1", "pages of 1 row", "paged", forward_decode, [](Case& c, Draw&) { paged(c, 1); }},
      {"paged_3", "pages of 3 rows", "paged", forward_decode, [](Case& c, Draw&) { paged(c, 3); }},
      {"paged_16", "pages of 16 rows, some missing", "paged", forward_decode,
       [](Case& c, Draw&) {
         paged(c, 16);
         c.pages_missing = 0.15;
       }},
      {"paged_64", "pages of 64 rows", "paged", forward_decode,
       [](Case& c, Draw&) { paged(c, 64); }},
      {"cache_e4m3", "k and v in f8e4m3, a 16-bit q", "cache type", forward_decode,
       [](Case& c, Draw&) { cache_type(c, DType::f8e4m3); }},
      {"cache_e5m2", "k and v in f8e5m2, a 16-bit q", "cache type", forward_decode,
       [](Case& c, Draw&) { cache_type(c, DType::f8e5m2); }},
      {"cache_i8", "k and v in i8, a 16-bit or f32 q", "cache type", forward_decode,
       [](Case& c, Draw&) { cache_i8(c); }},
      {"descale_rows", "8-bit k and v with a factor for each row or page", "cache type",
       forward_decode,
       [](Case& c, Draw& draw) {
         cache_i8(c);
         if (draw.chance(0.4)) cache_type(c, DType::f8e4m3);
         c.problem.descale_rows = c.problem.dtype != DType::f64;
       }},
      {"append_1", "one new row a batch entry", "append", decode,
       [](Case& c, Draw&) { c.problem.len_new = 1; }},
      {"append_5", "five new rows", "append", decode,
       [](Case& c, Draw&) { c.problem.len_new = 5; }},
      {"split_keys", "cut every n keys", "split", decode,
       [](Case& c, Draw& draw) { c.problem.split_keys = draw.of({16, 64, 100}); }},
      {"split_none", "never cut", "split", decode,
       [](Case& c, Draw&) { c.problem.split_keys = kSplitNone; }},
      {"decode_rope", "queries and new keys are rotated", "rope", decode,
       [](Case& c, Draw& draw) { rope(c, draw.chance(0.5) ? Rope::half : Rope::interleaved); }},
      {"decode_rope_tables", "the same by tables", "rope", decode,
       [](Case& c, Draw&) {
         rope(c, Rope::half);
         c.problem.rope_tables = true;
       }},
  };
}

// Limits the cost of a case: the reference needs about a second for 10^9 multiplications.
void shrink(Case& c) {
  constexpr std::int64_t kMost = 12'000'000;
  Problem& p = c.problem;
  const auto cost = [&p] {
    return p.batch * p.heads_q * p.len_q * p.len_kv * (p.dim_qk + p.dim_vo);
  };
  const bool entries = p.lengths_q || p.lengths_kv || p.layout_q == Layout::packed ||
                       p.layout_kv == Layout::packed || c.expanded == Expanded::batch ||
                       p.bias.per_entry > 1 || p.mask.per_entry > 1;
  if (cost() > kMost) p.batch = std::min<std::int64_t>(p.batch, entries ? 2 : 1);
  if (cost() > kMost && p.len_q > 263) p.len_q = 257 + p.len_q % 7;
  if (cost() > kMost && p.len_kv > 270) p.len_kv = 257 + p.len_kv % 13;
  if (cost() > kMost && p.heads_q == p.heads_kv && c.expanded != Expanded::heads) {
    p.heads_q = p.heads_kv = 1;
  }
  if (cost() > 4 * kMost) p.len_q = std::min<std::int64_t>(p.len_q, 71);
  if (c.memory == Memory::fused_qkv) p.len_kv = p.len_q;
}

}  // namespace

std::int64_t Draw::range(std::int64_t low, std::int64_t high) {
  return hash_range(seed_, 1, next_++, low, high);
}

std::int64_t Draw::of(std::initializer_list<std::int64_t> choices) {
  return choices.begin()[range(0, static_cast<std::int64_t>(choices.size()) - 1)];
}

bool Draw::chance(double p) {
  return hash_uniform(seed_, 2, next_++) < p;
}

const std::vector<Option>& options() {
  static const std::vector<Option> table = [] {
    std::vector<Option> all;
    for (const auto& part : {visibility_options(), score_options(), shape_options(),
                             result_options(), cache_options()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }();
  return table;
}

bool serves(const Option& option, Pass pass) {
  switch (option.passes) {
    case any: return true;
    case forward_backward: return pass != Pass::decode;
    case forward_decode: return pass != Pass::backward;
    case backward: return pass == Pass::backward;
    case decode: return pass == Pass::decode;
  }
  return false;
}

bool compatible(const Option& a, const Option& b, Pass pass) {
  if (!serves(a, pass) || !serves(b, pass)) return false;
  return *a.group == '\0' || std::strcmp(a.group, b.group) != 0;
}

bool settle(Case& c) {
  Problem& p = c.problem;
  if (p.page_size > 0) {
    if (p.layout_kv == Layout::packed || c.expanded != Expanded::none) return false;
    p.lengths_kv = p.lengths_kv || c.lengths != Lengths::full;
  }
  if (p.len_new > 0) {
    if (p.layout_kv == Layout::packed || c.expanded != Expanded::none) return false;
    if (c.lengths == Lengths::hostile) return false;
    p.lengths_kv = true;
    if (c.lengths == Lengths::full) c.lengths = Lengths::varied;
    p.len_kv = std::max(p.len_kv, p.len_new);
  }
  if (p.descale_rows && p.layout_kv == Layout::packed) return false;
  if (p.rope != Rope::none) {
    p.dim_qk += p.dim_qk % 2;
    if (p.rot_dim > 0) p.rot_dim = std::max<std::int64_t>(2, p.dim_qk / 4 * 2);
  }
  if (c.memory == Memory::fused_qkv) {
    if (p.layout_q != p.layout_kv || p.lengths_q != p.lengths_kv) return false;
    if (c.expanded != Expanded::none || p.kv_type() != p.dtype) return false;
    if (p.len_kv == 0 || p.len_q == 0) return false;
    p.len_kv = p.len_q;
  }
  // Sequences of packed tensors share no rows.
  if (c.expanded == Expanded::batch && p.layout_kv == Layout::packed) return false;
  // semantics.md does not define the effect of a non-finite score on dropped and hidden pairs.
  if (p.len_q == 0 || p.len_kv == 0 || p.dropout || c.bias_hidden > 0.0) {
    c.planted = Planted::none;
  }
  shrink(c);
  set_totals(c);
  return c.memory != Memory::fused_qkv || p.layout_q == Layout::padded || p.total_q == p.total_kv;
}

}  // namespace attn::harness
