// Tuned: tiles that were measured on a device (attn::tune_*), which take precedence over the
// heuristics. Kept in a file for each device, see tuned/tuned_file.hpp.
#pragma once

#include <optional>
#include <string>

#include "core/status.hpp"
#include "cuda/families/sm80/heuristics.hpp"
#include "tuned/tuned_file.hpp"

namespace attn::cuda::sm80 {

// "forward dim_qk=64 dim_vo=64 bias_bytes=0 mask=0 ..."
std::string to_string(const Shape& shape);
// "tile_q=128 tile_kv=64 warps=4 ...", and back; every field has to be there.
std::string to_string(const Tiles& tiles);
std::optional<Tiles> parse_tiles(const std::string& text);

class Tuned {
 public:
  // Reads the file of the device where there is one. An empty root: none, and nothing is stored.
  Tuned(const std::string& root, std::string device);
  // The process's, by name of the device; kept for good.
  static Tuned& of(const std::string& device);

  [[nodiscard]] std::optional<Tiles> find(const Shape& shape) const;
  // For plans made from now on; none: the heuristics choose.
  void use(const Shape& shape, const std::optional<Tiles>& tiles);
  [[nodiscard]] core::Status store() const { return file_.store(); }

  [[nodiscard]] const std::string& path() const { return file_.path(); }  // empty: nowhere
  [[nodiscard]] std::size_t size() const { return file_.size(); }
  // Why the file was not used; empty where it was, or where there is none.
  [[nodiscard]] const std::string& problem() const { return file_.problem(); }

 private:
  tuned::TunedFile file_;
};

// The facts of a device with the tiles that were measured on it.
core::Status tuned_facts(const Driver& driver, int ordinal, DeviceFacts& facts);

}  // namespace attn::cuda::sm80
