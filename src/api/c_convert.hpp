// Conversions between the structs of the C ABI and C++ values. Each pair of fields is listed once.
// from_c() throws Error (invalid_argument) on a wrong struct_size or a non-zero reserved field.
#pragma once

#include <attn/attn.h>

#include <attn/attn.hpp>

namespace attn::api {

// Throws unless found == expected; `type` names the struct.
void check_struct_size(const char* type, std::uint32_t found, std::size_t expected);

TensorView from_c(const char* name, const attn_tensor* tensor);  // null: not given
Problem from_c(const attn_problem& problem);
Arguments from_c(const attn_arguments& arguments);
MergeArguments from_c(const attn_merge_arguments& arguments);
MergeBackwardArguments from_c(const attn_merge_backward_arguments& arguments);
RopeArguments from_c(const attn_rope_arguments& arguments);
ContextOptions from_c(const attn_context_options& options);
CacheRequest from_c(const attn_cache_request& request);  // without its device

attn_tensor to_c(const TensorView& view);
attn_problem to_c(const Problem& problem);

}  // namespace attn::api
