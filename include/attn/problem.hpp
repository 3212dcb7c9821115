// Problem: what the choice and the compilation of a kernel depend on. A plain, printable, hashable
// value without pointers: the key of plan caches, test cases and benchmark rows.
#pragma once

#include <attn/export.h>

#include <attn/tensor.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace attn {

// decode is the forward against a KV cache: it may append new rows first and split over keys.
enum class Pass : std::int32_t { forward = 0, backward = 1, decode = 2 };
ATTN_API const char* to_string(Pass pass);

// padded: tensors [batch, len, heads, dim] with an optional length per sequence.
// packed: tensors [total, heads, dim] with cumulative lengths [batch + 1].
enum class Layout : std::int32_t { padded = 0, packed = 1 };

// The diagonal of causal, window and ALiBi: query i is aligned with key i + diag.
// bottom_right: diag = len_kv - len_q of the sequence. top_left: 0. explicit_value:
// Arguments::diag, or origin.q - origin.kv when that is not given.
enum class Diagonal : std::int32_t { bottom_right = 0, top_left = 1, explicit_value = 2 };

// How CUDA tensor cores multiply f32. The CPU always computes in IEEE f32.
enum class Precision : std::int32_t { tf32x3 = 0, tf32 = 1, ieee = 2 };

// Rotary pairs: interleaved rotates (2m, 2m+1), half rotates (m, m + rot_dim/2).
enum class Rope : std::int32_t { none = 0, interleaved = 1, half = 2 };

// Shape of a bias or mask [b|b/n|1, h|1, len_q|1, len_kv|1]: which of its dimensions are full. A
// dimension that is not full is broadcast (size 1 or stride 0). With b/n entries, sequences n * i
// to n * i + n - 1 share entry i.
struct Extent {
  bool given = false;
  bool batch = false;
  bool head = false;
  bool q = false;
  bool kv = false;
  std::int64_t per_entry = 1;  // n: sequences that share an entry; 1 unless `batch`

  // The size of the batch dimension, the sequences per entry, and the entry of a sequence.
  [[nodiscard]] constexpr std::int64_t entries(std::int64_t sequences) const {
    return batch ? sequences / per_entry : 1;
  }
  [[nodiscard]] constexpr std::int64_t sharers(std::int64_t sequences) const {
    return batch ? per_entry : sequences;
  }
  [[nodiscard]] constexpr std::int64_t entry_of(std::int64_t sequence) const {
    if (!batch) return 0;
    return per_entry == 1 ? sequence : sequence / per_entry;
  }
  bool operator==(const Extent&) const = default;
};

inline constexpr std::int64_t kSplitAuto = 0;   // the plan decides
inline constexpr std::int64_t kSplitNone = -1;  // never split

struct Problem {
  // Types. `dtype` is the type of q, and the default (DType::none) of the others unless noted.
  DType dtype = DType::f32;
  DType dtype_kv = DType::none;    // k, v and the KV cache
  DType dtype_out = DType::none;   // o and dout: dtype or f32; with f8 inputs bf16 (none), f16, f32
  DType dtype_grad = DType::none;  // dq, dk, dv: dtype or f32
  DType dtype_bias = DType::none;  // f32, f16, bf16 (f64 with f64 inputs); none = f32 (f64)
  DType dtype_dbias = DType::none;  // f32 or the bias's type; none = the bias's type
  Precision precision = Precision::tf32x3;

  // Sizes. heads_q is a multiple of heads_kv; dims are 1..512; len_q and len_kv are the largest of
  // the batch. With packed layouts total_q and total_kv are the rows of the packed tensors.
  std::int64_t batch = 1;
  std::int64_t heads_q = 1;
  std::int64_t heads_kv = 1;
  std::int64_t len_q = 0;
  std::int64_t len_kv = 0;
  std::int64_t dim_qk = 64;
  std::int64_t dim_vo = 64;
  Layout layout_q = Layout::padded;
  Layout layout_kv = Layout::padded;
  std::int64_t total_q = 0;
  std::int64_t total_kv = 0;
  bool lengths_q = false;   // Arguments::len_q is given
  bool lengths_kv = false;  // Arguments::len_kv is given

  // Visibility.
  bool causal = false;
  Diagonal diagonal = Diagonal::bottom_right;
  std::optional<std::int64_t> window_left{};   // absent: unlimited
  std::optional<std::int64_t> window_right{};  // absent: unlimited
  bool kv_begin = false;
  bool kv_end = false;
  Extent mask{};

  // The score.
  bool softcap = false;
  bool alibi = false;
  Extent bias{};
  bool sink = false;
  bool dropout = false;

  // Rotary embedding of q and k inside attention. rot_dim 0 = dim_qk.
  Rope rope = Rope::none;
  std::int64_t rot_dim = 0;
  bool rope_tables = false;     // Arguments::rope_cos and rope_sin are given
  bool rope_positions = false;  // Arguments::rope_pos_q and rope_pos_k are given

  // KV cache (forward and decode: page_size; decode alone: len_new, split_keys).
  std::int64_t page_size = 0;            // 0: not paged
  std::int64_t len_new = 0;              // rows to append before attending; 0: none
  std::int64_t split_keys = kSplitAuto;  // split every n keys, kSplitAuto or kSplitNone
  bool descale_rows = false;  // descale_k and descale_v have a factor for each row or page

  // Outputs.
  bool lse = true;     // forward: write lse
  bool dlse = false;   // backward: a gradient of lse is given
  bool delta = false;  // backward: delta is given by the caller; o is then not read
  bool dq = true;      // backward: which gradients to write
  bool dk = true;
  bool dv = true;
  bool dbias = false;
  bool dsink = false;
  bool accumulate = false;      // add to the gradients instead of overwriting them
  bool deterministic = false;   // bit-identical from run to run for the same plan
  bool nonfinite_zero = false;  // write 0 for non-finite elements of o and of gradients; count them

  bool operator==(const Problem&) const = default;

  // The types with DType::none resolved.
  [[nodiscard]] DType kv_type() const { return dtype_kv == DType::none ? dtype : dtype_kv; }
  [[nodiscard]] DType out_type() const {
    if (dtype_out != DType::none) return dtype_out;
    return dtype == DType::f8e4m3 || dtype == DType::f8e5m2 ? DType::bf16 : dtype;
  }
  [[nodiscard]] DType grad_type() const { return dtype_grad == DType::none ? dtype : dtype_grad; }
  [[nodiscard]] DType bias_type() const {
    return dtype_bias == DType::none ? statistics_type() : dtype_bias;
  }
  [[nodiscard]] DType dbias_type() const {
    return dtype_dbias == DType::none ? bias_type() : dtype_dbias;
  }
  // lse, sinks, slopes, delta: f64 with f64 inputs, else f32.
  [[nodiscard]] DType statistics_type() const {
    return dtype == DType::f64 ? DType::f64 : DType::f32;
  }
  [[nodiscard]] std::int64_t rotary_dim() const { return rot_dim == 0 ? dim_qk : rot_dim; }
};

ATTN_API std::size_t hash_value(const Problem& problem);

// One line of key=value words; fields at their default are left out, switches are bare words:
// "dtype=bf16 batch=2 heads_q=8 heads_kv=2 len_q=128 len_kv=256 causal window_left=64 bias=hqk".
// Extents print the letters of their full dimensions ("1" when all are broadcast); "b/4": 4
// sequences share an entry of the batch dimension.
ATTN_API std::string to_string(const Problem& problem);
// The inverse of to_string. Throws Error (invalid_argument) that names the word it can't read.
ATTN_API Problem parse_problem(const std::string& text);

}  // namespace attn

template <>
struct std::hash<attn::Problem> {
  std::size_t operator()(const attn::Problem& problem) const { return attn::hash_value(problem); }
};
