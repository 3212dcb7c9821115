// The arguments of a case: hashed values in guarded memory. Memory that the call must not read
// (gaps, rows past a length, unused pages) holds NaN. The values depend on the case only.
#pragma once

#include <attn/attn.hpp>
#include <memory>
#include <string>
#include <vector>

#include "case.hpp"
#include "storage.hpp"

namespace attn::harness {

// Rows of each sequence: padded sequence b has rows (b, 0..length); packed sequences are
// contiguous. Lengths are those before an append.
struct Rows {
  bool packed = false;
  std::vector<std::int64_t> begin;   // packed: first row of the sequence
  std::vector<std::int64_t> length;  // after clamping
  std::vector<std::int64_t> stored;  // value in the lengths tensor
  std::int64_t behind = 0;           // packed: rows after the last sequence
  [[nodiscard]] std::int64_t total() const;
};
Rows rows_q(const Case& c);
Rows rows_kv(const Case& c);

// Sets total_q and total_kv of packed problems from the case's lengths.
void set_totals(Case& c);

// Tensors by name, each in its own guarded memory (fused tensors share one block).
class TensorSet {
 public:
  TensorView make(const std::string& name, DType dtype, const std::vector<std::int64_t>& shape,
                  Memory memory, bool rows);
  // Several tensors [.., heads, dim] over the same rows, stored as adjacent column ranges.
  std::vector<TensorView> make_fused(const std::string& name, DType dtype,
                                     const std::vector<std::vector<std::int64_t>>& shapes);
  // Records the state before the call. Only the elements of writable tensors may change.
  void seal(const std::vector<TensorView>& writable);
  // Empty, or the name of the tensor that was written outside its elements.
  [[nodiscard]] std::string changed() const;
  template <class Visit>
  void each_storage(Visit visit) {
    for (Entry& entry : entries_) visit(*entry.storage);
  }

 private:
  struct Entry {
    std::string name;
    std::unique_ptr<Storage> storage;
    std::vector<TensorView> views;
  };
  std::vector<Entry> entries_;
};

struct Inputs {
  explicit Inputs(const Case& c);

  TensorSet tensors;
  // Inputs and numbers. A backward's o, lse and delta are NaN until give_forward().
  Arguments arguments;
  Rows q, kv;

  // Backward: the forward's outputs, row-major in the shapes of o and lse.
  void give_forward(const std::vector<double>& o, const std::vector<double>& lse);
};

// The outputs of a case: dtype none = the problem's own types, else this type for all. Elements
// hold NaN; accumulated outputs hold hashed values (the same for every requested type).
struct OutputSet {
  OutputSet(const Case& c, DType dtype);
  TensorSet tensors;
  std::vector<std::pair<std::string, TensorView>> views;  // keyed by the Arguments member's name
  void give(Arguments& arguments) const;
  [[nodiscard]] const TensorView* find(const std::string& name) const;
};

// Shapes in the API's order: [b, len, heads, dim] or [total, heads, dim]; lse; bias or mask.
std::vector<std::int64_t> row_shape(const Problem& problem, bool queries, std::int64_t dim);
std::vector<std::int64_t> stat_shape(const Problem& problem);
std::vector<std::int64_t> extent_shape(const Problem& problem, const Extent& extent);

}  // namespace attn::harness
