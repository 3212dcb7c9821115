// Rules on single tensors and on aliases between tensors, shared by all functions.
#pragma once

#include <array>
#include <attn/tensor.hpp>
#include <cstdint>
#include <optional>

#include "core/overlap.hpp"
#include "core/signature.hpp"
#include "core/status.hpp"

namespace attn::core {

// Checks the tensors of one call in order, then their aliases.
class TensorRules {
 public:
  explicit TensorRules(const char* function) : function_(function) {}

  // `use` and `because` as in Slot. The first given tensor determines the device of all.
  Status check(const char* name, const TensorView& view, const Shape& shape, bool written, Use use,
               const char* because = "");
  // Scratch memory that no tensor may touch.
  void add_workspace(const void* data, std::int64_t bytes);
  // `written` may be the same view as `read`.
  void allow_in_place(const TensorView& written, const TensorView& read);
  // Host tensors take no stream.
  Status check_stream(const std::optional<void*>& stream) const;
  // Must be called after all other checks.
  Status check_aliases() const;

 private:
  struct Entry {
    const char* name;
    const TensorView* view;
    ByteRange bytes;
    bool written;
  };
  struct Pair {
    const TensorView* written;
    const TensorView* read;
  };

  // Fast path for a given view of the right type: one pass over its dimensions. If this returns
  // false, the checks below decide and name the broken rule. Fills in `bytes`.
  [[nodiscard]] bool is_usual(const TensorView& view, const Shape& shape, bool written,
                              ByteRange& bytes) const;
  Status check_shape(const char* name, const TensorView& view, const Shape& shape) const;
  Status check_strides(const char* name, const TensorView& view, const Shape& shape, bool written,
                       ByteRange& bytes) const;
  Status check_memory(const char* name, const TensorView& view, const ByteRange& bytes) const;
  [[nodiscard]] bool in_place(const TensorView& written, const TensorView& read) const;

  const char* function_;
  const Entry* device_of_ = nullptr;
  std::array<Entry, kMaxSlots + 1> entries_;  // and the workspace; the first count_ are set
  std::size_t count_ = 0;
  std::array<Pair, 2> in_place_;
  std::size_t in_place_count_ = 0;
  TensorView workspace_{};
};

}  // namespace attn::core
