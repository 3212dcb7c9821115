// The rules on single tensors and on memory that tensors share, for every function alike.
#pragma once

#include <array>
#include <attn/tensor.hpp>
#include <cstdint>
#include <optional>

#include "core/overlap.hpp"
#include "core/signature.hpp"
#include "core/status.hpp"

namespace attn::core {

// Checks the tensors of one call, one after the other, then what they share.
class TensorRules {
 public:
  explicit TensorRules(const char* function) : function_(function) {}

  // `use` and `because` as in Slot. The first given tensor settles the device for all.
  Status check(const char* name, const TensorView& view, const Shape& shape, bool written, Use use,
               const char* because = "");
  // Scratch memory that no tensor may touch.
  void add_workspace(const void* data, std::int64_t bytes);
  // `written` may be the very view `read`.
  void allow_in_place(const TensorView& written, const TensorView& read);
  // Host tensors take no stream.
  Status check_stream(const std::optional<void*>& stream) const;
  // To be asked last.
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

  // Whether a given view of the right type keeps all rules, decided in one pass over its
  // dimensions. Where the answer is no, the rules below are checked one by one. Fills in `bytes`.
  [[nodiscard]] bool is_usual(const TensorView& view, const Shape& shape, bool written,
                              ByteRange& bytes) const;
  Status check_shape(const char* name, const TensorView& view, const Shape& shape) const;
  Status check_strides(const char* name, const TensorView& view, const Shape& shape, bool written,
                       ByteRange& bytes) const;
  Status check_memory(const char* name, const TensorView& view, const ByteRange& bytes) const;
  [[nodiscard]] bool in_place(const TensorView& written, const TensorView& read) const;

  const char* function_;
  const Entry* device_of_ = nullptr;
  std::array<Entry, 42> entries_;  // the first count_ are set
  std::size_t count_ = 0;
  std::array<Pair, 2> in_place_;
  std::size_t in_place_count_ = 0;
  TensorView workspace_{};
};

}  // namespace attn::core
