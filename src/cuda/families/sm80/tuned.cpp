// Measured tiles; see tuned.hpp.
#include "cuda/families/sm80/tuned.hpp"

#include <map>
#include <memory>
#include <mutex>

#include "cuda/host/cache.hpp"
#include "tuned/tiles_text.hpp"

namespace attn::cuda::sm80 {
namespace {

constexpr int kVersion = 4;  // of Shape and Tiles as text

// The fields in addition to the pass, in the order in which they are written.
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

Tuned::Tuned(const std::string& root, std::string device)
    : file_({root, "cuda", std::move(device), kVersion},
            [](const std::string& tiles) { return parse_tiles(tiles).has_value(); }) {}

Tuned& Tuned::of(const std::string& device) {
  static std::mutex mutex;
  static auto& all = *new std::map<std::string, std::unique_ptr<Tuned>>;  // plans may be made late
  const std::lock_guard lock(mutex);
  std::unique_ptr<Tuned>& tuned = all[device];
  if (tuned == nullptr) tuned = std::make_unique<Tuned>(Cache::default_root(), device);
  return *tuned;
}

core::Status tuned_facts(const Driver& driver, int ordinal, DeviceFacts& facts) {
  const DeviceFacts* known = nullptr;
  core::Status status = device_facts(driver, ordinal, known);
  if (!status.ok()) return status;
  facts = *known;
  facts.tuned = &Tuned::of(facts.name);
  return {};
}

std::optional<Tiles> Tuned::find(const Shape& shape) const {
  if (file_.size() == 0) return std::nullopt;
  const std::optional<std::string> found = file_.find(to_string(shape));
  return found ? parse_tiles(*found) : std::nullopt;
}

void Tuned::use(const Shape& shape, const std::optional<Tiles>& tiles) {
  file_.use(to_string(shape), tiles ? to_string(*tiles) : "");
}

}  // namespace attn::cuda::sm80
