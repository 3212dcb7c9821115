// The table of options: each is a name, what it switches on in a case, and which others exclude it.
// Adding an option to the library adds a row here; the case list, the support table and the
// documentation follow.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "case.hpp"

namespace attn::harness {

// Numbers drawn for one case, one after the other.
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
  // At most one option of a group is on; "" is no group.
  const char* group;
  Passes passes;
  std::function<void(Case&, Draw&)> apply;
};
const std::vector<Option>& options();

bool serves(const Option& option, Pass pass);
// Whether the two may be on together in this pass.
bool compatible(const Option& a, const Option& b, Pass pass);
// What follows from several options together (fused rows need equal lengths, rotary pairs an even
// dimension, ...): run after the last apply(). False: they can't be together after all.
bool settle(Case& c);

}  // namespace attn::harness
