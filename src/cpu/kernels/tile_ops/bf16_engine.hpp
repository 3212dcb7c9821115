// Engines that multiply bf16 tiles with f32 sums: AMX tiles or AVX-512 dot products of bf16 pairs
// on x86, BFMMLA on 64-bit ARM. They are leaf code with instruction sets of their own, callable by
// the kernels of any Highway target.
//
// B operands are packed: blocks of 32 rows (depth) by 16 columns. Within a block each engine has
// the order that its instruction reads. On x86 pairs of rows are interleaved, so that a 32-bit word
// holds B[2 k][n] and B[2 k + 1][n] (Intel 64 SDM, TDPBF16PS and VDPBF16PS). For BFMMLA see
// bf16_neon.cpp.
#pragma once

#include <cstdint>

#include "cpu/kernels/row_prefetch.hpp"

namespace attn::cpu {

using Bf16Bits = std::uint16_t;

inline constexpr std::int64_t kPackedDepth = 32;  // rows of a packed block
inline constexpr std::int64_t kPackedCols = 16;   // its columns
inline constexpr std::int64_t kPackedBlock = kPackedDepth * kPackedCols;
inline constexpr std::int64_t kBf16Rows = 16;  // rows of A and C come in multiples of this

// C (+)= A B. `rows` is a multiple of kBf16Rows, `cols` of kPackedCols, `depth` of kPackedDepth.
struct Bf16Product {
  const Bf16Bits* a;  // [rows x depth] row-major
  std::int64_t lda;
  const Bf16Bits* b;     // [depth x cols] packed
  std::int64_t b_depth;  // elements between blocks along the depth ...
  std::int64_t b_cols;   // ... and along the columns
  float* c;              // [rows x cols] row-major
  std::int64_t ldc;
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t depth;
  bool accumulate;
  bool b_is_far = false;         // B is in L2, not in L1
  RowPrefetch* ahead = nullptr;  // may be stepped for each block of columns
};

// Random bytes of dropout, and how to use them.
struct Bf16Dropout {
  const std::uint8_t* bytes = nullptr;  // row 0's random bytes; null: no dropout
  std::int64_t row = 0;                 // stride of a row in bytes
  std::uint8_t last_kept = 255;         // pairs with a byte of at most this are kept
  float factor = 1.0F;                  // kept pairs are multiplied by this
};

// The columns of a strip that a row sees: [begin, end), minus those that `mask` and `missing` hide.
struct SeenRow {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  const std::uint8_t* mask = nullptr;     // at column 0: 0 = hidden; null: hides nothing
  const std::uint8_t* missing = nullptr;  // at column 0: not 0 = hidden; null: hides nothing
};

// One bit per pair, set if it is visible. One word per 32 columns.
inline constexpr std::int64_t kVisibleBits = 32;
struct Bf16Visible {
  const std::uint32_t* words = nullptr;  // of row 0; null: all pairs are visible
  std::int64_t row = 0;                  // stride of a row in words
  // All rows see all columns of [full_begin, full_end): multiples of 32, or both 0.
  std::int64_t full_begin = 0;
  std::int64_t full_end = 0;
};

// What is added to scores, after the scale: a bias of every pair, or ALiBi. Only for engines with
// `adds`.
struct Bf16Addend {
  enum class Kind : std::uint8_t { none, bias_bf16, bias_f32, slope };
  Kind kind = Kind::none;
  const char* const* bias = nullptr;  // each row's address of column 0
  const float* slope = nullptr;       // of each row: slope |distance| is subtracted
  const float* distance = nullptr;    // of each row: that of column 0
  // Each line of the bias that is read prefetches the one this many bytes after it. 0: none.
  std::int64_t ahead = 0;
};

// Where `gradient` writes dS as dbias. Only for engines with `writes_dbias`.
struct Bf16Dbias {
  char* const* rows = nullptr;  // each row's address of column 0, in bf16; null: no dbias
  std::int64_t keys = 0;        // columns [0, keys) exist
  bool stream = false;          // rows are aligned to 64 bytes and are not read soon
  // If several sequences share the dbias: f32 sums of row 0, `row` elements between rows. The first
  // one stores to the sums, and the last one stores dbias instead of the sums.
  float* sums = nullptr;
  std::int64_t row = 0;
  bool first = false;
  bool last = false;
};

// The most rows that one call of an engine's `softmax` or `gradient` takes.
inline constexpr std::int64_t kMostBf16Rows = kPackedDepth;

// One step of the online softmax for a strip of rows.
struct Bf16Softmax {
  float* s;  // [rows x cols] scores / scale in; each row starts with its bf16 P out
  std::int64_t lds;
  std::int64_t rows;  // up to kMostBf16Rows
  std::int64_t cols;  // a multiple of 32
  float scale;        // > 0; any sign with an addend
  float* row_max;     // [rows] running maximum of the scores
  float* row_sum;
  float* o;          // [rows x ldo] accumulated o, rescaled if a maximum grows
  std::int64_t ldo;  // a multiple of 16
  // P is 0 where dropped. The factor of kept pairs is applied to o at the end: the rounded product
  // P * factor would have the same relative error in all elements of o.
  Bf16Dropout dropout;
  Bf16Visible visible;
  // > 0: scores are softcap tanh(scale s / softcap). Only for engines with `caps`.
  float softcap = 0.0F;
  Bf16Addend addend;             // only if softcap is 0
  RowPrefetch* ahead = nullptr;  // may be stepped for each row
};

// Rows whose scores are in L1 at the same time in the backward: the depth of a packed block.
inline constexpr std::int64_t kBf16PartRows = kPackedDepth;
static_assert(kBf16PartRows <= kMostBf16Rows);
// Rows of a strip in the backward: as many are loaded together, and added to dk and dv at a time.
// With 32, each tile of the sums of dk and dv was loaded and stored for one product.
inline constexpr std::int64_t kBf16Parts = 2;
inline constexpr std::int64_t kBf16StripRows = kBf16Parts * kBf16PartRows;

// Computes P and dS of kBf16PartRows rows against `cols` keys, from scores and dP.
struct Bf16Gradient {
  const float* s;      // [kBf16PartRows x cols] scores / scale
  const float* dp;     // [kBf16PartRows x cols]
  std::int64_t count;  // valid rows; P and dS of the others are 0
  std::int64_t cols;   // a multiple of 32
  float scale;
  Bf16Addend addend;   // without softcap
  const float* lse;    // [kBf16PartRows]
  const float* delta;  // [kBf16PartRows]
  const float* tanh;   // [count x cols] of softcap; null: no softcap, or it is applied here
  // > 0: scores are softcap tanh(scale s / softcap). Only for engines with `caps`, without an
  // addend.
  float softcap = 0.0F;
  Bf16Dropout dropout;
  Bf16Visible visible;
  // Packed blocks of 16 columns, `packed_cols` elements apart. The engine chooses the order of the
  // columns among 32; transpose_sums() puts their sums in order.
  Bf16Bits* p;  // 0 where dropped, without the factor elsewhere
  Bf16Bits* ds;
  std::int64_t packed_cols;
  Bf16Bits* ds_rows;  // [kBf16PartRows x cols] row-major
  float* ds_f32;      // [count x cols], may alias dp; null: not needed
  Bf16Dbias dbias;
  RowPrefetch* ahead = nullptr;  // may be stepped for each two rows
};

struct Bf16Engine {
  const char* name;
  // Called before and after the products of a task, on its thread.
  void (*begin)();
  void (*end)();
  void (*multiply)(const Bf16Product&);
  // Packs K^T of 16 keys. rows[n]: the `dim` elements of key n, null for zeros. `out`: blocks along
  // the depth, which is dim rounded up to 32.
  void (*pack_keys)(const char* const* rows, std::int64_t dim, Bf16Bits* out);
  // Packs V of 32 keys. rows[k] as above. `out`: blocks along the columns, dim rounded up to 32.
  void (*pack_values)(const char* const* rows, std::int64_t dim, Bf16Bits* out);
  // Writes the visibility words of `count` rows of `cols` columns. Returns whether any pair is
  // visible.
  bool (*find_visible)(const SeenRow* rows, std::int64_t count, std::int64_t cols,
                       std::uint32_t* words);
  void (*softmax)(const Bf16Softmax&);
  // Transposes 32 rows of `dim` elements (null: zeros): out[dim rounded up to 32][32], with rows
  // `ld_out` apart. Copies them to copy[32][dim rounded up to 32].
  void (*transpose)(const char* const* rows, std::int64_t dim, Bf16Bits* out, std::int64_t ld_out,
                    Bf16Bits* copy);
  void (*gradient)(const Bf16Gradient&);
  // to[j * ld_to + c] = from[c * ld_from + column of j] for 32 keys j and 16 dims c. Columns are in
  // the order of `gradient`; `from` is aligned to 64 bytes.
  void (*transpose_sums)(const float* from, std::int64_t ld_from, float* to, std::int64_t ld_to);
  // The same for all dims, times `factor` and rounded to bf16: rows[j], where it is not null.
  // `from` has round_up(dim, 32) rows. Null: not implemented.
  void (*store_sums)(const float* from, std::int64_t ld_from, float factor, std::int64_t dim,
                     char* const* rows);
  // rows[r], where it is not null = `dim` sums from[r * ld_from] times factors[r], rounded to bf16.
  // Null: not implemented.
  void (*store_rows)(const float* from, std::int64_t ld_from, const float* factors,
                     std::int64_t count, std::int64_t dim, char* const* rows);
  bool caps;          // whether `softmax` and `gradient` apply softcap
  bool adds;          // whether `softmax` and `gradient` apply an addend
  bool writes_dbias;  // whether `gradient` writes dbias
};

// Null if the processor or the operating system lacks a feature that the engine needs.
const Bf16Engine* amx_bf16_engine();   // AMX, and AVX-512 with bf16 conversions
const Bf16Engine* bf16_dot_engine();   // AVX-512 with VDPBF16PS
const Bf16Engine* bf16_mmla_engine();  // NEON with BFMMLA
// Whether VDPBF16PS has a higher throughput than FMA. AMD cores from Zen 4 on take one cycle for 32
// pairs, twice the throughput of FMA. Intel cores take two cycles and have two FMA ports: on a 4th
// generation Xeon, bf16_dot reaches 0.65 to 0.85 of the speed of f32 (measured).
bool bf16_dot_is_fast();
bool is_amd();  // the processor
// Whether bf16_mmla is used by default: on Linux, because BFMMLA computes four times the products
// of an FMA of the same width. It was tested under emulation only; no hardware was measured. On
// macOS ATTN_CPU_ENGINE selects it.
bool bf16_mmla_is_fast();

}  // namespace attn::cpu
