// The reference: docs/semantics.md in float64, naive, three loops, one thread. Tests compare every
// backend with it, so it shares no code with any of them: visibility, diagonal, Philox, number
// formats, rotation and paging are its own, written for comparison with that page by eye.
//
// Inputs may have any type; each output is rounded once, to the type of its view. With f64 views
// the full precision is seen, whatever the types of the inputs. Tensors are in host memory.
//
// Every function returns "" or, in one line, why it computed nothing. core/validate checks the
// rules of a valid problem; these functions check only what would be undefined behaviour.
#pragma once

#include <attn/arguments.hpp>
#include <attn/problem.hpp>
#include <string>

#include "core/interrupt.hpp"

namespace attn::reference {

// `interrupt` (null = none) is asked before each query; once it says stop, the function returns ""
// with outputs unspecified.

// o and, where the problem wants it, lse. With len_new > 0 this is decode().
std::string forward(const Problem& problem, const Arguments& arguments,
                    core::Interrupt* interrupt = nullptr);

// The forward against a KV cache: k_new and v_new are appended first, and with rope the cached keys
// count as already rotated (the forward rotates every key).
std::string decode(const Problem& problem, const Arguments& arguments,
                   core::Interrupt* interrupt = nullptr);

// The gradients that the problem wants, from q, k, v, lse, dout and o (or delta).
std::string backward(const Problem& problem, const Arguments& arguments,
                     core::Interrupt* interrupt = nullptr);

std::string merge(const MergeArguments& arguments);
std::string merge_backward(const MergeBackwardArguments& arguments);
std::string rope(const RopeArguments& arguments);

}  // namespace attn::reference
