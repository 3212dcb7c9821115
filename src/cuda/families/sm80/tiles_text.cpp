// Shapes and tiles as text; see tiles_text.hpp.
#include "cuda/families/sm80/tiles_text.hpp"

#include "tuned/tiles_text.hpp"

namespace attn::cuda::sm80 {
namespace {

// All fields except the pass, in the order of the text.
template <class Visit>
void visit_shape(Visit visit) {
  visit("dim_qk", &Shape::dim_qk);
  visit("dim_vo", &Shape::dim_vo);
  visit("bias_bytes", &Shape::bias_bytes);
  visit("mask", &Shape::mask);
  visit("softcap", &Shape::softcap);
  visit("alibi", &Shape::alibi);
  visit("dropout", &Shape::dropout);
  visit("banded", &Shape::banded);
  visit("element_bytes", &Shape::element_bytes);
  visit("products", &Shape::products);
}

template <class Visit>
void visit_tiles(Visit visit) {
  visit("tile_q", &Tiles::tile_q);
  visit("tile_kv", &Tiles::tile_kv);
  visit("warps", &Tiles::warps);
  visit("stages", &Tiles::stages);
  visit("blocks", &Tiles::blocks);
  visit("q_in_registers", &Tiles::q_in_registers);
  visit("chunk", &Tiles::chunk);
  visit("p_ds_in_smem", &Tiles::p_ds_in_smem);
  visit("split_dk_dv", &Tiles::split_dk_dv);
  visit("split_s_dp", &Tiles::split_s_dp);
  visit("kv_in_registers", &Tiles::kv_in_registers);
}

}  // namespace

std::string to_string(const Shape& shape) {
  std::string text = to_string(shape.pass);
  visit_shape([&](const char* name, auto field) {
    text.append(" ").append(name).append("=").append(std::to_string(int{shape.*field}));
  });
  return text;
}

std::string to_string(const Tiles& tiles) {
  return tuned::tiles_text(tiles, [](const auto& visit) { visit_tiles(visit); });
}

std::optional<Tiles> parse_tiles(const std::string& text) {
  return tuned::parse_tiles_text<Tiles>(text, [](const auto& visit) { visit_tiles(visit); });
}

}  // namespace attn::cuda::sm80
