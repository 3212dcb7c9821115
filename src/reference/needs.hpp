// What a call must bring so that reading and writing it is defined: tensors present, in host
// memory, of a type that can be read, sizes that divide.
#pragma once

#include <attn/arguments.hpp>
#include <attn/problem.hpp>
#include <initializer_list>
#include <string>

namespace attn::reference {

struct Need {
  const char* name;
  const TensorView& view;
  int rank = 0;        // 0: any
  bool needed = true;  // otherwise it may be absent
};
// "", or what is wrong with the first tensor that can't be used.
std::string check(const char* function, std::initializer_list<Need> needs);

std::string check_forward(const Problem& problem, const Arguments& arguments);
std::string check_backward(const Problem& problem, const Arguments& arguments);

}  // namespace attn::reference
