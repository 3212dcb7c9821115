// The structures that kernels are given, as C++ and WGSL lay them out: the sources are read, and
// every member has to be where the other has it.
#include "webgpu/host/parameters.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <map>
#include <sstream>
#include <string>

#include "webgpu/host/sources.hpp"

namespace attn::webgpu {
namespace {

using Offsets = std::map<std::string, std::size_t>;

struct Layout {
  std::size_t size, alignment;
};

// WGSL, section 14.4.1.
Layout layout_of(const std::string& type) {
  if (type == "Rows") return {16, 4};
  if (type == "vec2<u32>") return {8, 8};
  if (type == "vec4<u32>") return {16, 16};
  EXPECT_TRUE(type == "u32" || type == "i32" || type == "f32") << type;
  return {4, 4};
}

// Where the source's structure has its members.
Offsets offsets_of(const std::string& source, const std::string& structure) {
  Offsets offsets;
  for (const Source& one : kernel_sources()) {
    if (one.name != source) continue;
    const std::string text(one.text);
    const std::size_t begin = text.find("struct " + structure + " {");
    if (begin == std::string::npos) break;
    std::istringstream lines(text.substr(begin, text.find("\n}", begin) - begin));
    std::size_t at = 0;
    for (std::string line; std::getline(lines, line);) {
      line = line.substr(0, line.find("//"));
      const std::size_t colon = line.find(':');
      if (colon == std::string::npos) continue;
      const std::size_t first = line.find_first_not_of(' ');
      const std::string type = line.substr(colon + 2, line.rfind(',') - colon - 2);
      const Layout layout = layout_of(type);
      at = (at + layout.alignment - 1) / layout.alignment * layout.alignment;
      offsets[line.substr(first, colon - first)] = at;
      at += layout.size;
    }
  }
  return offsets;
}

#define ATTN_MEMBER(name) offsets[#name] = offsetof(Mirror, name)

TEST(Parameters, OfAttention) {
  using Mirror = Parameters;
  Offsets offsets;
  ATTN_MEMBER(q);
  ATTN_MEMBER(k);
  ATTN_MEMBER(v);
  ATTN_MEMBER(dout);
  ATTN_MEMBER(o);
  ATTN_MEMBER(dq);
  ATTN_MEMBER(dk);
  ATTN_MEMBER(dv);
  ATTN_MEMBER(lse);
  ATTN_MEMBER(dlse);
  ATTN_MEMBER(delta);
  ATTN_MEMBER(dsink);
  ATTN_MEMBER(bias);
  ATTN_MEMBER(mask);
  ATTN_MEMBER(dbias);
  ATTN_MEMBER(bias_kv);
  ATTN_MEMBER(mask_kv);
  ATTN_MEMBER(dbias_part);
  ATTN_MEMBER(dim_qk);
  ATTN_MEMBER(dim_vo);
  ATTN_MEMBER(heads_q);
  ATTN_MEMBER(group);
  ATTN_MEMBER(packed);
  ATTN_MEMBER(first_batch);
  ATTN_MEMBER(first_head_q);
  ATTN_MEMBER(first_head_kv);
  ATTN_MEMBER(first_tile_q);
  ATTN_MEMBER(first_tile_kv);
  ATTN_MEMBER(tiles_q);
  ATTN_MEMBER(tiles_kv);
  ATTN_MEMBER(rows);
  ATTN_MEMBER(entries_at);
  ATTN_MEMBER(ranges_at);
  ATTN_MEMBER(tiles_at);
  ATTN_MEMBER(keys_at);
  ATTN_MEMBER(slopes_at);
  ATTN_MEMBER(sinks_at);
  ATTN_MEMBER(stats_at);
  ATTN_MEMBER(split_tiles);
  ATTN_MEMBER(scale);
  ATTN_MEMBER(softcap);
  ATTN_MEMBER(keep_scale);
  ATTN_MEMBER(keep_below);
  ATTN_MEMBER(seed);
  ATTN_MEMBER(offset);
  ATTN_MEMBER(accumulate);
  ATTN_MEMBER(origin);
  ATTN_MEMBER(origin_heads);
  ATTN_MEMBER(splits);
  ATTN_MEMBER(len_q);
  ATTN_MEMBER(len_kv);
  ATTN_MEMBER(batch);
  ATTN_MEMBER(heads);
  ATTN_MEMBER(first_split);
  ATTN_MEMBER(dbias_full);
  ATTN_MEMBER(page_size);
  ATTN_MEMBER(num_pages);
  ATTN_MEMBER(table_at);
  ATTN_MEMBER(table_batch);
  ATTN_MEMBER(table_page);
  ATTN_MEMBER(split_keys);
  ATTN_MEMBER(bias_type);
  ATTN_MEMBER(mask_given);
  ATTN_MEMBER(unit);
  ATTN_MEMBER(to_log2);
  ATTN_MEMBER(out_type);
  ATTN_MEMBER(gathered);
  EXPECT_EQ(offsets, offsets_of("forward", "Parameters"));
}

TEST(Parameters, OfPrepare) {
  using Mirror = Prepare;
  Offsets offsets;
  ATTN_MEMBER(batch);
  ATTN_MEMBER(heads_q);
  ATTN_MEMBER(len_q);
  ATTN_MEMBER(len_kv);
  ATTN_MEMBER(total_q);
  ATTN_MEMBER(total_kv);
  ATTN_MEMBER(packed);
  ATTN_MEMBER(given);
  ATTN_MEMBER(lengths_q);
  ATTN_MEMBER(lengths_kv);
  ATTN_MEMBER(slopes);
  ATTN_MEMBER(sinks);
  ATTN_MEMBER(kv_begin);
  ATTN_MEMBER(kv_end);
  ATTN_MEMBER(bottom_right);
  ATTN_MEMBER(diag);
  ATTN_MEMBER(low_band);
  ATTN_MEMBER(high_band);
  ATTN_MEMBER(tile);
  ATTN_MEMBER(tile_kv);
  ATTN_MEMBER(tiles);
  ATTN_MEMBER(tiles_kv);
  ATTN_MEMBER(len_new);
  ATTN_MEMBER(entries_at);
  ATTN_MEMBER(slopes_at);
  ATTN_MEMBER(sinks_at);
  ATTN_MEMBER(ranges_at);
  ATTN_MEMBER(tiles_at);
  ATTN_MEMBER(keys_at);
  EXPECT_EQ(offsets, offsets_of("prepare", "Prepare"));
}

TEST(Parameters, OfCopies) {
  using Mirror = CopyParameters;
  Offsets offsets;
  ATTN_MEMBER(source);
  ATTN_MEMBER(to);
  ATTN_MEMBER(positions);
  ATTN_MEMBER(table);
  ATTN_MEMBER(rows);
  ATTN_MEMBER(heads);
  ATTN_MEMBER(dim);
  ATTN_MEMBER(dims);
  ATTN_MEMBER(first_batch);
  ATTN_MEMBER(first_line);
  ATTN_MEMBER(entries_at);
  ATTN_MEMBER(which);
  ATTN_MEMBER(past);
  ATTN_MEMBER(paged);
  ATTN_MEMBER(page_size);
  ATTN_MEMBER(num_pages);
  ATTN_MEMBER(offset);
  ATTN_MEMBER(position_of);
  ATTN_MEMBER(inverse);
  ATTN_MEMBER(table_rows);
  ATTN_MEMBER(cosines_at);
  ATTN_MEMBER(cosines_row);
  ATTN_MEMBER(sines_at);
  ATTN_MEMBER(sines_row);
  ATTN_MEMBER(rot_dim);
  ATTN_MEMBER(accumulate);
  ATTN_MEMBER(nonfinite_zero);
  EXPECT_EQ(offsets, offsets_of("copy", "Copy"));
}

#undef ATTN_MEMBER

}  // namespace
}  // namespace attn::webgpu
