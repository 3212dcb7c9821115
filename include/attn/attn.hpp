// libattn: exact softmax attention, forward, backward and decode, in linear memory.
//
//   attn::Context context;
//   attn::Arguments a;  // q, k, v, o: views of the caller's memory
//   a.q = attn::TensorView::contiguous(q, attn::DType::f32, {batch, len, heads, dim});
//   attn::Problem p = attn::describe(a);
//   p.causal = true;
//   attn::forward(context, p, a);
//
// docs/semantics.md defines what is computed. Every function throws attn::Error on bad input, or
// when no backend supports the call, before it launches anything. Nothing here prints, exits,
// synchronizes a device or picks a stream.
#pragma once

#include <attn/export.h>

#include <attn/arguments.hpp>
#include <attn/cache.hpp>
#include <attn/context.hpp>
#include <attn/problem.hpp>
#include <attn/tensor.hpp>
#include <attn/tune.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace attn {

// Computes o (and lse) from q, k, v: FlashAttention-2 (Dao 2023), section 3.1, with the options of
// docs/semantics.md.
ATTN_API void forward(Context& context, const Problem& problem, const Arguments& arguments);
// Computes dq, dk, dv (dbias, dsink) from the forward's inputs, o, lse and dout: FlashAttention-2,
// section 3.1.2.
ATTN_API void backward(Context& context, const Problem& problem, const Arguments& arguments);
// The forward against a KV cache. If len_new > 0, it appends k_new and v_new first.
ATTN_API void decode(Context& context, const Problem& problem, const Arguments& arguments);

ATTN_API void merge(Context& context, const MergeArguments& arguments);
ATTN_API void merge_backward(Context& context, const MergeBackwardArguments& arguments);
// Applies rotary embedding, or its inverse with `inverse`.
ATTN_API void rope(Context& context, const RopeArguments& arguments);

// Compiles and loads what a call of this pass and problem needs, so that the call does not wait.
ATTN_API void prepare(Context& context, Pass pass, const Problem& problem,
                      Device device = Device::host);

// Throws the error that such a call would throw if the problem, a tensor's type or shape, or a
// number breaks a rule. Launches nothing and reads no tensor's data.
ATTN_API void validate(Pass pass, const Problem& problem, const Arguments& arguments);

// Bytes of scratch memory that the call uses in total.
ATTN_API std::int64_t workspace_bytes(Context& context, Pass pass, const Problem& problem,
                                      Device device = Device::host);

// Shape, type and contiguous strides of each output, without memory; rank 0 for absent outputs.
struct Outputs {
  TensorView o{}, lse{}, dq{}, dk{}, dv{}, dbias{}, dsink{};
};
ATTN_API Outputs output_shapes(Pass pass, const Problem& problem);

// Whether a backend supports the call, and if not, why not.
struct Verdict {
  bool supported = false;
  std::string backend{};  // the backend that would run the call
  std::string reason{};   // why not, for each backend; empty when supported
};
ATTN_API Verdict supports(Context& context, Pass pass, const Problem& problem,
                          Device device = Device::host);

// Describes what would run, for callers that print it or assert on it.
struct PlanSummary {
  std::string backend{};
  std::string kernel{};
  std::string config{};  // "tile_q=256 tile_kv=64 ..."
  std::int64_t tile_q = 0;
  std::int64_t tile_kv = 0;
  std::int64_t tasks = 0;  // number of independent tasks
  std::int64_t workspace_bytes = 0;
  std::vector<std::string> kernels{};  // names of all launched kernels, in order
  std::string family{};                // kernel family, if the backend has several ("sm80")
  std::string refusals{};              // why preferred families don't run it: "sm90: ..."
};
ATTN_API PlanSummary plan(Context& context, Pass pass, const Problem& problem,
                          Device device = Device::host);

// How a call is dispatched, in a few lines of text: validation, verdict of each backend, plan.
ATTN_API std::string explain(Context& context, Pass pass, const Problem& problem,
                             Device device = Device::host);

struct BackendInfo {
  std::string name{};
  bool built = false;
  bool usable = false;
  std::string detail{};  // device and instruction set, or why it is not usable
};
ATTN_API std::vector<BackendInfo> backends(Context& context);

// "0.1.0"
ATTN_API const char* version();

}  // namespace attn
