// The case list: every option alone and in pairs, sizes, decode, hand-picked problems.
#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <span>
#include <string_view>

#include "case.hpp"
#include "options.hpp"
#include "values.hpp"

namespace attn::harness {
namespace {

constexpr std::array kTypes{DType::f32, DType::bf16, DType::f16};
constexpr std::array kF8Types{DType::f8e4m3, DType::f8e5m2};
constexpr std::array kAllTypes{DType::f32, DType::bf16, DType::f16, DType::f64};

// Lengths around multiples of likely tiles, primes, and 1.
constexpr std::array<std::int64_t, 32> kDrawnLengths{
    1,  2,  3,  5,  7,   13,  15,  16,  17,  31,  32,  33,  47,  61,  63,  64,
    65, 95, 96, 97, 127, 128, 129, 191, 192, 193, 251, 255, 256, 257, 263, 509};
constexpr std::array<std::int64_t, 30> kDrawnDims{1,  2,  3,   4,   5,   7,   8,   9,   12,  15,
                                                  16, 17, 24,  31,  32,  33,  48,  63,  64,  65,
                                                  80, 96, 100, 127, 128, 129, 160, 200, 255, 256};

// A plain problem. Three of four span several tiles of keys and of queries in every plan.
Case plain(Pass pass, DType dtype, std::uint64_t seed) {
  Draw draw(seed);
  Case c;
  c.pass = pass;
  c.seed = seed;
  Problem& p = c.problem;
  p.dtype = dtype;
  p.batch = draw.range(1, 2);
  p.heads_q = p.heads_kv = draw.range(1, 2);
  p.dim_qk = draw.of({8, 16, 16, 24, 32, 64});
  p.dim_vo = p.dim_qk;
  if (is_f8(dtype)) p.dtype_out = kTypes[seed % kTypes.size()];
  if (pass == Pass::decode) {
    p.batch = draw.range(1, 3);
    p.len_q = draw.of({1, 1, 1, 2, 4, 7, 16, 19});
    p.len_kv = draw.of({1, 33, 64, 129, 257, 300, 401});
  } else if (draw.chance(0.75)) {
    p.len_q = draw.of({257, 258, 263, 271, 300});
    p.len_kv = draw.of({257, 264, 283, 320, 389});
  } else {
    p.len_q = draw.of({1, 2, 17, 63, 64, 65, 127, 129});
    p.len_kv = draw.of({1, 3, 31, 64, 65, 128, 129, 191});
  }
  return c;
}

std::uint64_t seed_of(const std::string& text) {
  return hash(1, stream_of(text), 0) >> 40;
}

bool is_one_of(std::string_view name, std::span<const std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// A plain problem with the options applied; nullopt if they cannot be combined.
std::optional<Case> combine(Pass pass, DType dtype, std::uint64_t seed,
                            const std::vector<const Option*>& on) {
  Case c = plain(pass, dtype, seed);
  Draw draw(seed + 1);
  for (const Option* option : on) {
    option->apply(c, draw);
    c.name += (c.name.empty() ? "" : "+") + std::string(option->name);
  }
  if (c.name.empty()) c.name = "plain";
  if (!settle(c)) return std::nullopt;
  return c;
}

class List {
 public:
  explicit List(bool every_type) : every_type_(every_type) {}

  // The seed depends only on the options, so forward and backward use the same problem.
  void add(Pass pass, DType dtype, const std::string& salt, const std::vector<const Option*>& on) {
    std::string name = salt + to_string(dtype);
    for (const Option* option : on) name += std::string("+") + option->name;
    const std::optional<Case> c = combine(pass, dtype, seed_of(name), on);
    if (c) cases.push_back(*c);
  }

  void alone(Pass pass) {
    for (const DType dtype : kAllTypes) {
      add(pass, dtype, "plain", {});
      for (const Option& option : options()) {
        if (!serves(option, pass)) continue;
        add(pass, dtype, "alone", {&option});
        add(pass, dtype, "again", {&option});
      }
    }
  }

  // Every option with 8-bit types, which have no backward.
  void alone_f8(Pass pass) {
    for (const DType dtype : kF8Types) {
      add(pass, dtype, "plain", {});
      for (const Option& option : options()) {
        if (serves(option, pass) && option.group != std::string("cache type")) {
          add(pass, dtype, "alone", {&option});
        }
      }
    }
  }

  void pairs(Pass pass) {
    const std::vector<Option>& all = options();
    std::size_t turn = 0;
    for (std::size_t a = 0; a < all.size(); ++a) {
      for (std::size_t b = a + 1; b < all.size(); ++b) {
        ++turn;
        if (!compatible(all[a], all[b], pass)) continue;
        const bool own = all[b].passes == Passes::decode || all[b].passes == Passes::forward_decode;
        if (pass == Pass::decode && !own && turn % 4 != 0 && !every_type_) continue;
        for (std::size_t type = 0; type < kTypes.size(); ++type) {
          if (every_type_ || type == turn % kTypes.size()) {
            add(pass, kTypes[type], "pair", {&all[a], &all[b]});
          }
        }
        if (turn % 9 == 0) add(pass, DType::f64, "pair", {&all[a], &all[b]});
      }
    }
  }

  // Four options at once.
  void several(Pass pass, std::uint64_t count) {
    const std::vector<Option>& all = options();
    for (std::uint64_t n = 0; n < count; ++n) {
      Draw draw(hash(7, static_cast<std::uint64_t>(pass), n));
      std::vector<const Option*> on;
      for (int tries = 0; tries < 40 && on.size() < 4; ++tries) {
        const Option& next =
            all[static_cast<std::size_t>(draw.range(0, static_cast<std::int64_t>(all.size()) - 1))];
        const bool fits =
            serves(next, pass) && std::all_of(on.begin(), on.end(), [&](const Option* o) {
              return o != &next && compatible(*o, next, pass);
            });
        if (fits) on.push_back(&next);
      }
      std::sort(on.begin(), on.end());  // table order
      add(pass, kTypes[n % kTypes.size()], "several", on);
    }
  }

  // Different lengths and dimensions, causal or not.
  void sizes(Pass pass, std::uint64_t count) {
    for (std::uint64_t n = 0; n < count; ++n) {
      const std::uint64_t seed = hash(11, 0, n) >> 40;
      Draw draw(seed);
      Case c = plain(pass, kAllTypes[n % kAllTypes.size()], seed);
      c.name = "sizes";
      Problem& p = c.problem;
      p.batch = p.heads_q = p.heads_kv = 1;
      const auto length = [&] {
        return kDrawnLengths[static_cast<std::size_t>(draw.range(0, kDrawnLengths.size() - 1))];
      };
      if (pass != Pass::decode) p.len_q = length();
      p.len_kv = n % 5 == 0 ? p.len_q : length();
      p.dim_qk = kDrawnDims[n % kDrawnDims.size()];
      p.dim_vo = n % 3 == 0 ? p.dim_qk : kDrawnDims[(n * 7 + 3) % kDrawnDims.size()];
      p.causal = draw.chance(0.6);
      if (settle(c)) cases.push_back(c);
    }
  }

  // Head dims above 256, at the boundaries of the slices that kernels split them into.
  void wide(Pass pass) {
    struct Wide {
      std::int64_t dim_qk, dim_vo;
      std::array<std::string_view, 4> options{};  // those that serve the pass are on
    };
    constexpr std::array<Wide, 8> kWide{{
        {257, 64},
        {512, 512},
        {64, 320},
        {512, 256},
        {321, 511},
        {64, 320, {"sink", "window", "paged_16"}},
        {512, 512, {"rope", "bias", "dropout", "paged_16"}},
        {512, 512, {"lengths_kv", "paged_3"}},
    }};
    for (std::size_t n = 0; n < kWide.size(); ++n) {
      const std::uint64_t seed = hash(13, 0, n) >> 40;
      Case c = plain(pass, kTypes[n % kTypes.size()], seed);
      c.name = "wide";
      Problem& p = c.problem;
      p.batch = 1;
      p.heads_q = 2;
      p.heads_kv = 1;
      if (pass != Pass::decode) p.len_q = 65;
      p.len_kv = 97;
      p.dim_qk = kWide[n].dim_qk;
      p.dim_vo = kWide[n].dim_vo;
      p.causal = n % 2 == 0;
      add_with(c, kWide[n].options);
    }
  }

  // Caches with rotary embedding or head dims above 256: on CUDA such a forward copies k and v, and
  // kernels of wide heads convert them. One page is longer than the sequences. The last cases have
  // f8 queries, which CUDA copies, and descale factors for two key heads (even seeds have them).
  void caches(Pass pass) {
    struct Cache {
      std::int64_t dim_qk, dim_vo, len_kv;
      std::array<std::string_view, 4> options{};  // those that serve the pass are on
      DType dtype = DType::none;                  // none: types of 16 and 32 bits
      DType dtype_kv = DType::none;
      DType dtype_out = DType::none;
    };
    constexpr DType e4m3 = DType::f8e4m3;
    constexpr DType e5m2 = DType::f8e5m2;
    constexpr std::array<Cache, 14> kCaches{{
        {32, 48, 97, {"rope", "paged_16", "descale_rows", "decode_rope"}},
        {20, 20, 40, {"rope_interleaved", "paged_64", "cache_i8", "lengths"}},
        {64, 32, 97, {"rope_positions", "packed_kv", "cache_e4m3", "window"}},
        {512, 512, 97, {"paged_16", "descale_rows", "softcap", "append_1"}},
        {300, 270, 97, {"cache_i8", "append_5", "decode_rope", "bias"}},
        {272, 512, 97, {"paged_16", "append_5", "decode_rope", "dropout"}},
        {512, 64, 97, {"rope_interleaved", "descale_rows", "lengths_kv", "append_1"}},
        {64, 320, 97, {"rope", "paged_3", "cache_e5m2", "mask"}},
        {64, 48, 97, {"descale_rows", "append_5"}, e4m3, e4m3, DType::bf16},
        {48, 64, 97, {"paged_16", "descale_rows", "append_1"}, e5m2, e4m3, DType::f16},
        {128, 128, 97, {"paged_3", "append_5"}, e4m3, e5m2, DType::f32},
        {272, 512, 97, {"lengths_kv", "append_1"}, e5m2, e5m2, DType::f16},
        {32, 32, 97, {"rope", "paged_16", "descale_rows", "decode_rope"}, e4m3, e4m3, DType::bf16},
        {33, 20, 97, {"packed_q", "dropout"}, e5m2, e5m2, DType::f32},
    }};
    for (std::size_t n = 0; n < kCaches.size(); ++n) {
      for (std::size_t type = 0; type < kTypes.size(); ++type) {
        const bool of_f8 = kCaches[n].dtype != DType::none;
        if ((!every_type_ || of_f8) && type != n % kTypes.size()) continue;
        const std::uint64_t seed = hash(29, 0, n) >> 40;
        Case c =
            of_f8 ? plain(pass, kCaches[n].dtype, seed / 2 * 2) : plain(pass, kTypes[type], seed);
        c.name = of_f8 ? "f8_queries" : "cache";
        Problem& p = c.problem;
        p.dtype_kv = kCaches[n].dtype_kv;
        if (of_f8) p.dtype_out = kCaches[n].dtype_out;
        p.batch = 2;
        p.heads_q = 4;
        p.heads_kv = 2;
        if (pass != Pass::decode) p.len_q = 33;
        p.len_kv = kCaches[n].len_kv;
        p.dim_qk = kCaches[n].dim_qk;
        p.dim_vo = kCaches[n].dim_vo;
        p.causal = n % 2 == 0;
        add_with(c, kCaches[n].options);
      }
    }
  }

  // Short sequences with as many (batch, head) pairs as a large GPU has SMs, and with twice as
  // many. For these there are kernels in which one block computes all gradients of a head.
  void short_rows() {
    struct Rows {
      std::int64_t batch, len_q, len_kv, dim;
      void (*set)(Case&);
    };
    constexpr std::array<Rows, 6> kRows{{
        {9, 70, 140, 8, [](Case&) {}},
        {18, 40, 136, 8, [](Case& c) { c.problem.causal = c.problem.dlse = true; }},
        {9, 140, 100, 8, [](Case& c) { c.problem.deterministic = c.problem.sink = true; }},
        {18, 70, 140, 8, [](Case& c) { c.problem.window_left = 40, c.problem.window_right = 10; }},
        {9, 40, 130, 16, [](Case& c) { c.problem.dropout = true, c.dropout_p = 0.25; }},
        {9, 70, 140, 8, [](Case& c) { c.problem.softcap = true, c.softcap = 2; }},
    }};
    for (std::size_t n = 0; n < kRows.size(); ++n) {
      const Rows& rows = kRows[n];
      for (std::size_t type = 0; type < kTypes.size(); ++type) {
        if (!every_type_ && type != 1 + n % 2) continue;
        Case c = plain(Pass::backward, kTypes[type], hash(17, 0, n) >> 40);
        c.name = "short_rows";
        Problem& p = c.problem;
        p.batch = rows.batch;
        p.heads_q = p.heads_kv = 12;
        p.len_q = rows.len_q;
        p.len_kv = rows.len_kv;
        p.dim_qk = p.dim_vo = rows.dim;
        rows.set(c);
        cases.push_back(c);  // settle() would leave fewer heads
      }
    }
  }

  // Few queries and more heads than a large GPU computes at once. For these there are kernels in
  // which a tile of queries holds several heads of a group, and, with few keys, smaller tiles.
  void few_queries() {
    struct Few {
      std::int64_t batch, heads, group, len_q, len_kv, dim;
      void (*set)(Case&);
    };
    constexpr std::array<Few, 12> kFew{{
        {17, 16, 8, 20, 140, 16, [](Case& c) { c.problem.causal = true; }},
        {17, 16, 8, 40, 90, 16, [](Case& c) { c.problem.softcap = true, c.softcap = 2; }},
        {17, 8, 2, 33, 40, 72, [](Case& c) { c.problem.alibi = c.problem.causal = true; }},
        {17, 8, 4, 70, 20, 80, [](Case& c) { c.problem.sink = c.problem.lengths_kv = true; }},
        {17, 8, 4, 140, 15, 72, [](Case& c) { c.problem.causal = true; }},
        {17, 8, 8, 20, 40, 136, [](Case& c) { c.problem.window_left = 7; }},
        {15, 18, 6, 33, 70, 16, [](Case& c) { c.problem.lengths_q = true; }},
        {17, 8, 8, 9, 140, 8, [](Case& c) { c.problem.dropout = true, c.dropout_p = 0.25; }},
        {33, 16, 1, 33, 70, 8, [](Case& c) { c.problem.causal = true; }},
        {33, 16, 1, 17, 33, 80, [](Case& c) { c.problem.softcap = true, c.softcap = 2; }},
        {33, 16, 4, 20, 20, 8, [](Case& c) { c.problem.alibi = true; }},
        {33, 16, 2, 20, 20, 72, [](Case& c) { c.problem.dropout = true, c.dropout_p = 0.25; }},
    }};
    for (std::size_t n = 0; n < kFew.size(); ++n) {
      for (const DType type : {DType::bf16, DType::f16, DType::f32, DType::f8e4m3}) {
        const DType usual = n % 3 == 0 ? DType::f8e4m3 : kTypes[1 + n % 2];
        if (!every_type_ && type != usual) continue;
        Case c = plain(Pass::forward, type, hash(19, 0, n) >> 40);
        c.name = "few_queries";
        Problem& p = c.problem;
        p.batch = kFew[n].batch;
        p.heads_q = kFew[n].heads;
        p.heads_kv = kFew[n].heads / kFew[n].group;
        p.len_q = kFew[n].len_q;
        p.len_kv = kFew[n].len_kv;
        p.dim_qk = p.dim_vo = kFew[n].dim;
        kFew[n].set(c);
        cases.push_back(c);  // settle() would leave fewer heads
      }
    }
  }

  // Rows of a cache that are an odd number of vectors, which the CPU reads in place. There are
  // enough sequences that one task has all heads.
  void cache_rows() {
    constexpr std::array<std::array<std::int64_t, 2>, 3> kDims{{{48, 80}, {80, 48}, {16, 112}}};
    for (std::size_t n = 0; n < kDims.size(); ++n) {
      for (const DType type : kTypes) {
        Case c = plain(Pass::decode, type, hash(23, 0, n) >> 40);
        c.name = "cache_rows";
        Problem& p = c.problem;
        p.batch = 9;
        p.heads_q = 8;
        p.heads_kv = 4;
        p.len_q = 1;
        p.len_kv = 70 + static_cast<std::int64_t>(n);
        p.dim_qk = kDims[n][0];
        p.dim_vo = kDims[n][1];
        cases.push_back(c);  // settle() would leave fewer heads
      }
    }
  }

  // One size is 0, but the bias and its gradient have elements: one per pair, and one per key.
  void nothing(Pass pass) {
    for (const DType dtype : kAllTypes) {
      for (std::int64_t Problem::* const size :
           {&Problem::batch, &Problem::len_q, &Problem::len_kv}) {
        for (const bool of_pairs : {true, false}) {
          Case c = plain(pass, dtype, seed_of("nothing"));
          c.name = "nothing";
          Problem& p = c.problem;
          p.*size = 0;
          p.bias = {.given = true, .batch = false, .head = true, .q = of_pairs, .kv = true};
          p.dtype_bias = dtype;
          p.dbias = pass == Pass::backward;
          p.causal = true;
          if (settle(c)) cases.push_back(c);
        }
      }
    }
  }

  // A NaN or an infinity that is visible to every query or key.
  void planted(Pass pass) {
    for (const Planted what : {Planted::nan_q, Planted::nan_v, Planted::inf_k, Planted::nan_dout}) {
      if (what == Planted::nan_dout && pass != Pass::backward) continue;
      if (what == Planted::inf_k && pass == Pass::backward) continue;
      for (const DType dtype : kAllTypes) {
        for (const bool zero : {false, true}) {
          Case c = plain(pass, dtype, seed_of("planted"));
          c.name = "planted";
          c.planted = what;
          c.problem.nonfinite_zero = zero;
          if (settle(c)) cases.push_back(c);
        }
      }
    }
  }

  // A sink of +inf has all the weight.
  void sink_plus_inf() {
    for (const DType dtype : kAllTypes) {
      Case c = plain(Pass::forward, dtype, seed_of("sink_plus_inf"));
      c.name = "sink_plus_inf";
      c.problem.sink = true;
      c.sinks = Sinks::plus_inf;
      cases.push_back(c);
    }
  }

  std::vector<Case> cases;

 private:
  // Adds the case with those of the options that serve its pass.
  void add_with(Case c, std::span<const std::string_view> names) {
    Draw draw(c.seed + 1);
    for (const Option& option : options()) {
      if (!serves(option, c.pass) || !is_one_of(option.name, names)) continue;
      option.apply(c, draw);
      c.name += std::string("+") + option.name;
    }
    if (settle(c)) cases.push_back(c);
  }

  bool every_type_;
};

bool has_option(const std::string& name, const std::string& option) {
  return ("+" + name + "+").find("+" + option + "+") != std::string::npos;
}

}  // namespace

std::vector<Case> case_list(const Filter& filter) {
  List list(filter.every_type);
  for (const Pass pass : {Pass::forward, Pass::backward, Pass::decode}) {
    if (filter.pass && *filter.pass != pass) continue;
    list.alone(pass);
    if (pass != Pass::backward) list.alone_f8(pass);
    list.pairs(pass);
    list.several(pass, pass == Pass::decode ? 60 : 120);
    list.sizes(pass, pass == Pass::decode ? 60 : 160);
    list.wide(pass);
    if (pass != Pass::backward) list.caches(pass);
    if (pass != Pass::decode) {
      list.nothing(pass);
      list.planted(pass);
    }
    if (pass == Pass::backward) list.short_rows();
    if (pass == Pass::forward) {
      list.sink_plus_inf();
      list.few_queries();
    }
    if (pass == Pass::decode) list.cache_rows();
  }
  std::vector<Case> wanted;
  for (Case& c : list.cases) {
    if (filter.dtype && c.problem.dtype != *filter.dtype) continue;
    if (c.name.find(filter.name) == std::string::npos) continue;
    if (!filter.option.empty() && !has_option(c.name, filter.option)) continue;
    if (filter.precision && c.problem.dtype == DType::f32) c.problem.precision = *filter.precision;
    wanted.push_back(std::move(c));
  }
  std::vector<Case> result;
  const auto total = static_cast<std::int64_t>(wanted.size());
  const std::int64_t count = filter.limit > 0 ? std::min(filter.limit, total) : total;
  for (std::int64_t n = 0; n < count; ++n) {
    if (n % std::max(filter.shards, 1) != filter.shard) continue;
    result.push_back(wanted[static_cast<std::size_t>(n * total / count)]);
  }
  return result;
}

std::vector<OptionInfo> option_list() {
  std::vector<OptionInfo> list;
  for (const Option& option : options()) list.push_back({option.name, option.what});
  return list;
}

Case option_case(const std::string& option, Pass pass, DType dtype) {
  std::vector<const Option*> on;
  for (const Option& known : options()) {
    if (known.name == option) on.push_back(&known);
  }
  if (on.empty() && !option.empty()) {
    throw Error(ErrorCode::invalid_argument, "option_case: no option \"" + option + "\"");
  }
  Case c = plain(pass, dtype, 1);
  c.problem.len_q = pass == Pass::decode ? 1 : 64;
  c.problem.len_kv = 64;
  Draw draw(2);
  for (const Option* known : on) {
    known->apply(c, draw);
    c.name = known->name;
  }
  if (c.name.empty()) c.name = "plain";
  settle(c);
  return c;
}

}  // namespace attn::harness
