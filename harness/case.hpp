// Case: one problem together with how its arguments are made. Printable to one line and back, so
// that `attn check --case "..."` reproduces it. Tests, benchmarks, the support table and sanitizer
// runs all take their problems from one list of these (list.cpp).
#pragma once

#include <attn/attn.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace attn::harness {

// How the tensors lie in memory.
enum class Memory : std::int32_t {
  bshd = 0,       // contiguous in the order of the shape
  bhsd = 1,       // heads before rows
  fused_qkv = 2,  // q, k and v are column ranges of one buffer (needs len_q == len_kv)
  sliced = 3,     // a slice of a larger tensor: rows and heads left out at both ends
  padded = 4,     // every row followed by a gap, odd strides
};

// Inputs whose heads or batch entries all have stride 0 (k, v, bias, mask).
enum class Expanded : std::int32_t { none = 0, heads = 1, batch = 2 };

// What len_q, len_kv, cu_len_q, cu_len_kv hold.
enum class Lengths : std::int32_t {
  full = 0,     // every entry has the largest length
  varied = 1,   // the first entry has the largest length, the others less
  zero = 2,     // as varied, and the last entry is empty
  hostile = 3,  // as varied, but values below 0 and past the limit, to be clamped
  gaps = 4,     // packed, as varied, with rows before and behind that no entry has
};

// What kv_begin and kv_end hold.
enum class Ranges : std::int32_t {
  documents = 0,  // the row's document, lengths by hash
  random = 1,     // anything, not monotone, some empty, some out of range
  empty = 2,      // begin >= end for every other row
};

enum class Sinks : std::int32_t { normal = 0, minus_inf = 1, plus_inf = 2 };

// A non-finite element put in one visible place.
enum class Planted : std::int32_t { none = 0, nan_q = 1, nan_v = 2, inf_k = 3, nan_dout = 4 };

struct Case {
  Pass pass = Pass::forward;
  Problem problem{};
  std::string name;  // the options that made it, "causal+dropout"; no spaces
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

// "backward name=causal+alibi seed=7 memory=bhsd : dtype=bf16 batch=2 ...": what is at its default
// is left out; the problem follows the colon as attn::to_string prints it.
std::string to_string(const Case& c);
// The inverse. Throws attn::Error (invalid_argument) that names the word it can't read.
Case parse_case(const std::string& text);

// Which part of the list is wanted; what is not given does not restrict.
struct Filter {
  std::optional<Pass> pass;
  std::optional<DType> dtype;
  std::string name;        // substring of Case::name
  std::string option;      // one whole option of Case::name
  std::int32_t shard = 0;  // every `shards`-th case, starting at `shard`
  std::int32_t shards = 1;
  std::int64_t limit = 0;   // at most so many, evenly spread; 0 = all
  bool every_type = false;  // pairs in each of f32, f16, bf16 instead of in one of them
};

// The default list: every option alone and every pair of options, sizes and memory layouts by hash,
// in f32, f16 and bf16; f64, decode and hand-picked sizes on top. Deterministic.
std::vector<Case> case_list(const Filter& filter = {});

// One row of the support table.
struct OptionInfo {
  std::string name;
  std::string what;  // one line
};
std::vector<OptionInfo> option_list();
// The option alone (or none, for an empty name) on a small plain problem: for the support table.
Case option_case(const std::string& option, Pass pass, DType dtype);

}  // namespace attn::harness
