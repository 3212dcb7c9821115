// What kernels are given in their uniform: mirrors of the structures in kernels/*.wgsl, which
// tests/webgpu/parameters_test.cpp holds against the sources.
#pragma once

#include <array>
#include <cstdint>

namespace attn::webgpu {

using U32 = std::uint32_t;

// A tensor's rows, see forward.wgsl.
struct Rows {
  U32 base = 0;
  U32 batch = 0;
  U32 row = 0;
  U32 head = 0;
};

// Of the attention kernels (block `parameters`).
struct Parameters {
  Rows q, k, v, dout, o, dq, dk, dv, lse, dlse, delta, dsink, bias, mask, dbias;
  U32 bias_kv = 0;
  U32 mask_kv = 0;
  U32 dbias_part = 0;
  U32 dim_qk = 0;
  U32 dim_vo = 0;
  U32 heads_q = 0;
  U32 group = 1;
  U32 packed = 0;

  U32 first_batch = 0;
  U32 first_head_q = 0;
  U32 first_head_kv = 0;
  U32 first_tile_q = 0;
  U32 first_tile_kv = 0;
  U32 tiles_q = 0;
  U32 tiles_kv = 0;
  U32 rows = 0;

  U32 entries_at = 0;
  U32 ranges_at = 0;
  U32 tiles_at = 0;
  U32 keys_at = 0;
  U32 slopes_at = 0;
  U32 sinks_at = 0;
  U32 stats_at = 0;
  U32 split_tiles = 0;

  float scale = 1.0f;
  float softcap = 0.0f;
  float keep_scale = 1.0f;
  U32 keep_below = 256;
  std::array<U32, 2> seed{};
  U32 offset = 0;
  U32 accumulate = 0;
  std::array<U32, 4> origin{};
  U32 origin_heads = 0;
  U32 splits = 1;
  U32 len_q = 0;
  U32 len_kv = 0;
  U32 batch = 0;
  U32 heads = 0;
  U32 first_split = 0;
  U32 dbias_full = 0;

  U32 page_size = 0;
  U32 num_pages = 0;
  U32 table_at = 0;
  U32 table_batch = 0;
  U32 table_page = 0;
  U32 split_keys = 0;
  U32 bias_type = 0;
  U32 mask_given = 0;

  float unit = 0.0f;
  float to_log2 = 0.0f;
  U32 out_type = 0;
  U32 gathered = 0;
};
static_assert(sizeof(Parameters) % 16 == 0);

// Of copy.wgsl.
struct CopyParameters {
  Rows source, to, positions, table;
  U32 rows = 0;
  U32 heads = 0;
  U32 dim = 0;
  U32 dims = 0;
  U32 first_batch = 0;
  U32 first_line = 0;
  U32 entries_at = 0;
  U32 which = 0;
  U32 past = 0;
  U32 paged = 0;
  U32 page_size = 1;
  U32 num_pages = 0;

  std::array<U32, 2> offset{};
  U32 position_of = 0;
  U32 inverse = 0;
  U32 table_rows = 0;
  U32 cosines_at = 0;
  U32 cosines_row = 0;
  U32 sines_at = 0;
  U32 sines_row = 0;
  U32 rot_dim = 0;
  U32 accumulate = 0;
  U32 nonfinite_zero = 0;
};
static_assert(sizeof(CopyParameters) % 16 == 0);

// Of prepare.wgsl.
struct Prepare {
  U32 batch = 0;
  U32 heads_q = 0;
  U32 len_q = 0;
  U32 len_kv = 0;
  U32 total_q = 0;
  U32 total_kv = 0;
  U32 packed = 0;
  U32 given = 0;

  Rows lengths_q, lengths_kv, slopes, sinks, kv_begin, kv_end;

  U32 bottom_right = 0;
  std::int32_t diag = 0;
  std::int32_t low_band = 0;
  std::int32_t high_band = 0;
  U32 tile = 0;
  U32 tile_kv = 0;
  U32 tiles = 0;
  U32 tiles_kv = 0;

  U32 len_new = 0;
  U32 entries_at = 0;
  U32 slopes_at = 0;
  U32 sinks_at = 0;
  U32 ranges_at = 0;
  U32 tiles_at = 0;
  U32 keys_at = 0;
  U32 spare = 0;
};
static_assert(sizeof(Prepare) % 16 == 0);

inline constexpr std::size_t kParameterBytes = 512;  // of a dispatch; uniform_alignment divides it
static_assert(sizeof(Parameters) <= kParameterBytes && sizeof(Prepare) <= kParameterBytes);

}  // namespace attn::webgpu
