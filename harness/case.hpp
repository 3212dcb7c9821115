// Case: a problem and the recipe for its arguments. A case prints as one line that parses back, so
// `attn check --case "..."` reproduces it. Tests, benchmarks, the support table and sanitizer runs
// use the same list of cases (list.cpp).
#pragma once

#include <attn/attn.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace attn::harness {

// Memory layout of the tensors.
enum class Memory : std::int32_t {
  bshd = 0,       // contiguous in the order of the shape
  bhsd = 1,       // heads before rows
  fused_qkv = 2,  // q, k and v are column ranges of one buffer (needs len_q == len_kv)
  sliced = 3,     // a slice of a larger tensor, without its first and last rows and heads
  padded = 4,     // a gap after every row, odd strides
};

// Inputs with stride 0 between heads or sequences (k, v, bias, mask).
enum class Expanded : std::int32_t { none = 0, heads = 1, batch = 2 };

// Values of len_q, len_kv, cu_len_q, cu_len_kv.
enum class Lengths : std::int32_t {
  full = 0,     // every sequence has the maximum length
  varied = 1,   // the first sequence has the maximum length, the others are shorter
  zero = 2,     // as varied, and the last sequence is empty
  hostile = 3,  // as varied, plus values below 0 and past the limit, which must be clamped
  gaps = 4,     // packed, as varied, with uncovered rows before the sequences and few or many after
};

// Values of kv_begin and kv_end.
enum class Ranges : std::int32_t {
  documents = 0,  // the query's document, with hashed lengths
  random = 1,     // arbitrary: not monotone, some empty, some out of range
  empty = 2,      // begin >= end for every other row
};

enum class Sinks : std::int32_t { normal = 0, minus_inf = 1, plus_inf = 2 };

// A non-finite element at one visible position.
enum class Planted : std::int32_t { none = 0, nan_q = 1, nan_v = 2, inf_k = 3, nan_dout = 4 };

struct Case {
  Pass pass = Pass::forward;
  Problem problem{};
  std::string name;  // its options, "causal+dropout"; no spaces
  std::uint64_t seed = 1;

  Memory memory = Memory::bshd;
  Expanded expanded = Expanded::none;
  Lengths lengths = Lengths::full;
  Ranges ranges = Ranges::documents;
  Sinks sinks = Sinks::normal;
  Planted planted = Planted::none;
  bool slopes_per_batch = false;     // alibi slopes [b, h] instead of [h]
  double value_scale = 1.0;          // standard deviation of q and k
  double mask_density = 0.75;        // share of non-zero mask elements
  double bias_hidden = 0.0;          // share of bias elements that are -inf
  double pages_missing = 0.0;        // share of block-table entries without a page
  std::optional<double> scale;       // Arguments::scale
  double softcap = 0.0;              // Arguments::softcap
  double dropout_p = 0.0;            // Arguments::dropout_p; seed and offset come from `seed`
  bool device_seed = false;          // seed and offset are given as pointers
  std::optional<std::int64_t> diag;  // Arguments::diag
  Origin origin{};
  double rope_base = 10000.0;
  std::int64_t rope_pos_offset = 0;

  bool operator==(const Case& other) const;
};

// "backward name=causal+alibi seed=7 memory=bhsd : dtype=bf16 batch=2 ...". Defaults are omitted;
// the problem follows the colon in the format of attn::to_string.
std::string to_string(const Case& c);
// The inverse. Throws attn::Error (invalid_argument) that names the invalid word.
Case parse_case(const std::string& text);

// Selects a part of the list. Unset fields select everything.
struct Filter {
  std::optional<Pass> pass;
  std::optional<DType> dtype;
  std::string name;        // substring of Case::name
  std::string option;      // one complete option of Case::name
  std::int32_t shard = 0;  // every `shards`-th case, starting at `shard`
  std::int32_t shards = 1;
  std::int64_t limit = 0;              // maximum number of cases, evenly spaced; 0 = all
  std::optional<Precision> precision;  // of the cases in f32
  bool every_type = false;  // pairs of options in each of f32, f16, bf16 instead of one of them
};

// The default list: every option alone and every pair of options in f32, f16 and bf16, with hashed
// sizes and memory layouts; also f64, decode and hand-picked sizes. Deterministic.
std::vector<Case> case_list(const Filter& filter = {});

// One row of the support table.
struct OptionInfo {
  std::string name;
  std::string what;  // one line
};
std::vector<OptionInfo> option_list();
// The option alone (none if the name is empty) on a small plain problem, for the support table.
Case option_case(const std::string& option, Pass pass, DType dtype);

}  // namespace attn::harness
