// The table of options: name, effect on a case, and excluded options. A new option of the library
// is a new row here; the case list, the support table and the documentation follow from it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "case.hpp"

namespace attn::harness {

// The stream of random numbers of one case.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : seed_(seed) {}
  std::int64_t range(std::int64_t low, std::int64_t high);
  std::int64_t of(std::initializer_list<std::int64_t> choices);
  bool chance(double p);

 private:
  std::uint64_t seed_;
  std::uint64_t next_ = 0;
};

enum class Passes : std::int32_t { any, forward_backward, forward_decode, backward, decode };

struct Option {
  const char* name;
  const char* what;
  // At most one option of a group is on; "" = no group.
  const char* group;
  Passes passes;
  std::function<void(Case&, Draw&)> apply;
};
const std::vector<Option>& options();

bool serves(const Option& option, Pass pass);
// True if both may be on together in this pass.
bool compatible(const Option& a, const Option& b, Pass pass);
// Adjusts the case to combinations of options (fused rows need equal lengths, rotary pairs an even
// dimension, ...). Runs after the last apply(). False: the options cannot be combined.
bool settle(Case& c);

}  // namespace attn::harness
