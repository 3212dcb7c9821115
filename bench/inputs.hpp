// Inputs: the memory of one cell, filled with hashed normal numbers (never zeros), as Arguments.
#pragma once

#include <attn/attn.hpp>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <vector>

#include "bench/cells.hpp"

namespace attn::bench {

class Inputs {
 public:
  explicit Inputs(const Cell& cell);

  // The forward's outputs o and lse exist for every pass. For the backward they are zero until the
  // caller has run the forward.
  Arguments arguments;
  // Length of each sequence, for any layout; for decode after the append.
  std::vector<std::int64_t> lengths_q;
  std::vector<std::int64_t> lengths_kv;

 private:
  enum class Fill { zeros, normal, mask };
  TensorView make(DType dtype, std::initializer_list<std::int64_t> shape, Fill fill,
                  double scale = 1.0);
  TensorView make_rows(DType dtype, bool packed, std::int64_t len, std::int64_t total,
                       std::int64_t heads, std::int64_t dim, Fill fill, double scale = 1.0);
  TensorView make_i32(std::initializer_list<std::int64_t> shape,
                      const std::vector<std::int64_t>& values);
  void make_cache(const Cell& cell);
  void make_lengths(const Cell& cell);
  void make_options(const Cell& cell);
  void make_gradients(const Cell& cell);

  struct Free {
    void operator()(void* memory) const;
  };
  std::vector<std::unique_ptr<void, Free>> memory_;
  std::int64_t batch_ = 1;
  bool heads_first_ = false;
  std::uint64_t stream_ = 0;
};

}  // namespace attn::bench
