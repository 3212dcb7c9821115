// Tiles that may be chosen by measuring; see tiles.hpp.
#include "cpu/host/tiles.hpp"

#include <algorithm>
#include <bit>

#include "cpu/kernels/kernels.hpp"
#include "platform/platform.hpp"
#include "tuned/tiles_text.hpp"

namespace attn::cpu {
namespace {

constexpr int kVersion = 1;  // format of the text of keys and tiles
constexpr std::int64_t kMostForwardRows = 1024;
constexpr std::int64_t kMostBlockKv = 4096;

template <class Visit>
void visit_tiles(Visit visit) {
  visit("tile_rows", &Tiles::tile_rows);
  visit("strip_rows", &Tiles::strip_rows);
  visit("tile_kv", &Tiles::tile_kv);
  visit("block_kv", &Tiles::block_kv);
}

std::int64_t rounded(std::int64_t length) {
  return static_cast<std::int64_t>(
      std::bit_ceil(static_cast<std::uint64_t>(std::clamp<std::int64_t>(length, 1, 1 << 30))));
}

// Number of keys in the window of a row; 0: no window.
std::int64_t window_of(const Problem& p) {
  if (!p.window_left && (p.causal || !p.window_right)) return 0;
  const std::int64_t left = std::min(p.window_left.value_or(p.len_kv), p.len_kv);
  const std::int64_t right = p.causal ? 0 : std::min(p.window_right.value_or(p.len_kv), p.len_kv);
  return rounded(left + right);
}

}  // namespace

std::string to_string(const Tiles& tiles) {
  return tuned::tiles_text(tiles, [](const auto& visit) { visit_tiles(visit); });
}

std::optional<Tiles> parse_tiles(const std::string& text) {
  return tuned::parse_tiles_text<Tiles>(text, [](const auto& visit) { visit_tiles(visit); });
}

std::string tune_key(Pass pass, const Problem& p, Engine engine) {
  std::string text = to_string(pass);
  const auto add = [&](const char* name, const std::string& value) {
    text.append(" ").append(name).append("=").append(value);
  };
  const auto add_size = [&](const char* name, std::int64_t value) {
    add(name, std::to_string(value));
  };
  add("engine", to_string(engine));
  add("dtype", to_string(p.dtype));
  add("dtype_kv", to_string(p.kv_type()));
  add_size("dim_qk", p.dim_qk);
  add_size("dim_vo", p.dim_vo);
  add_size("heads", rounded(p.batch * p.heads_kv));
  add_size("rows", rounded(p.heads_q / p.heads_kv * p.len_q));
  add_size("keys", rounded(p.len_kv));
  add_size("causal", p.causal ? 1 : 0);
  add_size("window", window_of(p));
  add_size("bias_bytes", p.bias.given ? size_of(p.bias_type()) : 0);
  add_size("mask", p.mask.given ? 1 : 0);
  add_size("softcap", p.softcap ? 1 : 0);
  add_size("alibi", p.alibi ? 1 : 0);
  add_size("dropout", p.dropout ? 1 : 0);
  if (pass == Pass::backward) {
    add_size("dq", p.dq ? 1 : 0);
    add_size("dk_dv", p.dk || p.dv ? 1 : 0);
    add_size("dbias", p.dbias ? 1 : 0);
  }
  return text;
}

std::string misfit(Pass pass, Engine engine, const Tiles& t) {
  const bool packed = engine != Engine::float_simd;
  const bool backward = pass == Pass::backward;
  const std::int64_t step_kv = packed ? kPackedDepth : 16;
  const std::int64_t step_rows = packed ? kBf16Rows : 1;
  const std::int64_t most_rows = backward ? kMostTileRows : kMostForwardRows;
  const auto outside = [](const char* name, std::int64_t step, std::int64_t most) {
    return std::string(name) + " is no multiple of " + std::to_string(step) + " up to " +
           std::to_string(most);
  };
  const auto fits = [](std::int64_t value, std::int64_t step, std::int64_t most) {
    return value > 0 && value % step == 0 && value <= most;
  };
  if (!fits(t.tile_kv, step_kv, kMaxTileKv)) return outside("tile_kv", step_kv, kMaxTileKv);
  if (!fits(t.tile_rows, step_rows, most_rows)) return outside("tile_rows", step_rows, most_rows);
  if (packed && !backward && t.strip_rows > kMostBf16Rows) {
    return outside("strip_rows", step_rows, kMostBf16Rows);
  }
  if (packed && backward && t.strip_rows != kBf16StripRows) {
    return "strip_rows is not " + std::to_string(kBf16StripRows);
  }
  if (!fits(t.strip_rows, step_rows, t.tile_rows)) {
    return outside("strip_rows", step_rows, t.tile_rows);
  }
  if (divide_up(t.tile_rows, t.strip_rows) > kMostStrips) {
    return "a tile has more than " + std::to_string(kMostStrips) + " strips";
  }
  if (backward &&
      !fits(t.block_kv, t.tile_kv, std::min(kMostBlockKv, kMostTilesOfBlock * t.tile_kv))) {
    return outside("block_kv", t.tile_kv, std::min(kMostBlockKv, kMostTilesOfBlock * t.tile_kv));
  }
  if (!backward && t.block_kv != 0) return "block_kv is not 0";
  return {};
}

std::vector<Tiles> candidate_tiles(Pass pass, const Problem& p, Engine engine) {
  const bool packed = engine != Engine::float_simd;
  const bool backward = pass == Pass::backward;
  const std::int64_t all_rows = std::max<std::int64_t>(p.heads_q / p.heads_kv * p.len_q, 1);
  const bool by_blocks = backward && (p.dk || p.dv);
  std::vector<std::int64_t> rows{96, 192, 384, 768};
  std::vector<std::int64_t> strips{12, 24, 48, 96};
  if (packed) strips = {16, kMostBf16Rows};
  if (backward) rows = {kMostTileRows};  // only backward_q and bias_gradient use tile_rows
  if (backward && !by_blocks) rows = {48, 96, 192};
  if (packed && backward) strips = {kBf16StripRows};
  std::vector<Tiles> list;
  for (const std::int64_t tile_kv : {32, 64, 96, 128}) {
    for (const std::int64_t tile_rows : rows) {
      for (const std::int64_t strip_rows : strips) {
        for (const std::int64_t block : {64, 128, 256, 512, 1024}) {
          Tiles tiles{tile_rows, strip_rows, tile_kv, backward ? round_up(block, tile_kv) : 0};
          if (!misfit(pass, engine, tiles).empty()) continue;
          // A plan clamps tiles to the problem, so larger ones would repeat a smaller candidate.
          if (tile_rows >= 2 * all_rows && tile_rows > rows[0]) continue;
          if (tile_kv >= 2 * p.len_kv && tile_kv > 32) continue;
          if (backward && block >= 2 * p.len_kv && block > 64) continue;
          if (std::find(list.begin(), list.end(), tiles) == list.end()) list.push_back(tiles);
          if (!by_blocks) break;
        }
      }
    }
  }
  return list;
}

tuned::TunedFile& my_tuned_tiles() {
  // Never destroyed: plans may be made while the process exits.
  static auto& file = *new tuned::TunedFile(
      {tuned::cache_root(), "cpu", platform::processor_name() + " " + target_name(), kVersion},
      [](const std::string& tiles) { return parse_tiles(tiles).has_value(); });
  return file;
}

}  // namespace attn::cpu
