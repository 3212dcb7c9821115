// The arguments of a case: hashed values in guarded memory. Whatever the call must not read (gaps,
// rows past a length, unused pages) holds NaN. Making them twice gives the same values.
#pragma once

#include <attn/attn.hpp>
#include <memory>
#include <string>
#include <vector>

#include "case.hpp"
#include "storage.hpp"

namespace attn::harness {

// Rows of each batch entry: padded entry b has rows (b, 0..length), packed ones lie one after the
// other. Lengths are before an append.
struct Rows {
  bool packed = false;
  std::vector<std::int64_t> begin;   // packed: first row of the entry
  std::vector<std::int64_t> length;  // after clamping
  std::vector<std::int64_t> stored;  // as written in the lengths tensor
  std::int64_t behind = 0;           // packed: rows after the last entry
  [[nodiscard]] std::int64_t total() const;
};
Rows rows_q(const Case& c);
Rows rows_kv(const Case& c);

// Sets total_q and total_kv of packed problems from the lengths that the case draws.
void set_totals(Case& c);

// Tensors by name, each in guarded memory of its own (fused ones share theirs).
class TensorSet {
 public:
  TensorView make(const std::string& name, DType dtype, const std::vector<std::int64_t>& shape,
                  Memory memory, bool rows);
  // Several tensors [.., heads, dim] over the same rows, their columns one after the other.
  std::vector<TensorView> make_fused(const std::string& name, DType dtype,
                                     const std::vector<std::vector<std::int64_t>>& shapes);
  // Notes the state before the call; writable tensors may change in their elements only.
  void seal(const std::vector<TensorView>& writable);
  // Empty, or which tensor was written where it must not be.
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
  Arguments arguments;  // inputs and numbers; o, lse, delta of a backward hold NaN until given
  Rows q, kv;

  // Backward: what a forward gave, in row-major order of the shapes of o and lse.
  void give_forward(const std::vector<double>& o, const std::vector<double>& lse);
};

// Where the outputs of the case go: dtype none = the problem's own types, else that type for all.
// Elements hold NaN, or hashed values (the same for every type asked) where they are added to.
struct OutputSet {
  OutputSet(const Case& c, DType dtype);
  TensorSet tensors;
  std::vector<std::pair<std::string, TensorView>> views;  // by name of the Arguments member
  void give(Arguments& arguments) const;
  [[nodiscard]] const TensorView* find(const std::string& name) const;
};

// Shapes as the API wants them: [b, len, heads, dim] or [total, heads, dim]; of lse; of a bias or
// mask.
std::vector<std::int64_t> row_shape(const Problem& problem, bool queries, std::int64_t dim);
std::vector<std::int64_t> stat_shape(const Problem& problem);
std::vector<std::int64_t> extent_shape(const Problem& problem, const Extent& extent);

}  // namespace attn::harness
