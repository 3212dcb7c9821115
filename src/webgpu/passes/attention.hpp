// Shared by the passes of attention. A plan and the call's arguments become a PreparedCall (plain
// values) and a list of dispatches (Work). The plan has already chosen the kernels. This code
// decides what depends on the tensors of a call: copies of those that kernels cannot read or write
// in place, and chunks that fit the device's bindings. Every function is pure: it reads its
// arguments and appends to `work`.
#pragma once

#include <attn/arguments.hpp>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "core/call_numbers.hpp"
#include "core/status.hpp"
#include "webgpu/host/plan.hpp"
#include "webgpu/host/work.hpp"
#include "webgpu/passes/attention_plan.hpp"
#include "webgpu/passes/copy.hpp"
#include "webgpu/passes/geometry.hpp"

namespace attn::webgpu {

// What the kernels of a call read. Kernels read q, k, v and dout in units of 16 bytes, so these
// views may point to copies in scratch memory.
struct PreparedCall {
  const WebGpuPlan& plan;
  const Arguments& arguments;  // validated; tensors are on the device
  View q, k, v, dout, bias, mask;
  core::CallNumbers numbers{};
  bool gathered = false;         // k and v are contiguous copies of a paged cache
  Operand info{};                // lengths, key ranges and more, written by prepare.wgsl
  AttentionParameters common{};  // parameters that are the same for every dispatch

  [[nodiscard]] const Problem& problem() const { return plan.problem; }
  [[nodiscard]] const AttentionPlan& attention() const { return plan.attention; }
  [[nodiscard]] const DeviceFacts& facts() const { return plan.attention.facts; }
};

// inputs.cpp

PreparedCall prepared_call(const WebGpuPlan& plan, const Arguments& arguments);
// Adds the dispatches that fill `info`.
void add_prepare(PreparedCall& prepared, Work& work);
// Appends to the cache, then copies inputs that kernels cannot read in place: rows that are not in
// units of 16 bytes, rotated q and k, pages where k is rotated. After add_prepare().
core::Status add_inputs(PreparedCall& prepared, Work& work);
// How the `which` rows are rotated; no rotation if the problem has none.
Copy rotation_of(const PreparedCall& prepared, Copy::Which which);

// outputs.cpp

// Where a kernel writes an output: the tensor itself, or an f32 part of `staged`. It is staged if
// its elements do not fill whole words, if it shares a buffer with an input, or if its values need
// more than a store (sums, rotation, zeros for non-finite values).
View place_output(const PreparedCall& prepared, const View& tensor, Work& work);
// Adds the copy from `written` to the tensor if they differ. `which` rows of a packed tensor were
// written; `rotates`: the gradients are rotated back.
core::Status finish_output(const PreparedCall& prepared, const View& tensor, const View& written,
                           Copy::Which which, bool rotates, Work& work);
// The same for lse, which may be absent. `output` is what the same kernel writes.
View place_lse(const PreparedCall& prepared, const View& lse, const View& output, Work& work);
core::Status finish_lse(const PreparedCall& prepared, const View& lse, const View& written,
                        Work& work);
// For a kernel that reads `staged`: lse itself, or a part of `prepared` if lse shares a buffer with
// the output.
View place_combined_lse(const PreparedCall& prepared, const View& lse, const View& output,
                        Work& work);
// Fills the rows of packed outputs that belong to no sequence: o with 0, lse with -inf, gradients
// with 0.
void add_fill_uncovered(const PreparedCall& prepared, Work& work);
// Fills the `which` rows of a tensor that belong to no sequence; `value` holds the bits of an
// element.
void add_fill(const PreparedCall& prepared, const View& tensor, Copy::Which which, U32 value,
              Work& work);

// chunks.cpp

// The sequences, heads and tiles of one dispatch.
struct Chunk {
  Block q, kv;  // the same sequences; query heads, and the key heads that these read
  std::int64_t first_tile = 0;
  std::int64_t tiles = 0;
  std::int64_t first_visit = 0;
  std::int64_t visits = 1;
  double flops = 0.0;
};

// What is divided into chunks: the tensors that must fit the bindings, and the amount of work.
struct Workload {
  std::vector<const View*> by_heads_q;
  std::vector<const View*> by_heads_kv;
  std::int64_t tiles = 0;
  double flops = 0.0;
  std::int64_t groups_per_sequence = 1;  // workgroups along the grid's third dimension
  std::int64_t visits = 1;       // iterations of a workgroup's loop; above 1 if it can be split
  bool sequences_apart = false;  // a chunk has only one sequence
};

// Chunks with bindings that the device accepts and work that fits a submission. Chunks of the same
// workgroups are consecutive, in the order of their loops. If sequences share an entry of the bias
// or mask, all sequences of a chunk share the same entry.
core::Status cut(const PreparedCall& prepared, const Workload& workload,
                 std::vector<Chunk>& chunks);
// An upper bound: 2 per visible pair, dimension and matrix product over dim_qk or dim_vo.
double flops_of(const PreparedCall& prepared, double products_qk, double products_vo);

// bindings.cpp

// The parameters of a chunk, without the positions of its tensors.
AttentionParameters parameters_of(const PreparedCall& prepared, const Chunk& chunk,
                                  const Tiles& tiles);
// The block of a bias, mask or dbias. If sequences share an entry, cut() keeps those of different
// entries in different chunks.
Block block_of_entries(const Extent& extent, const Block& block);
Binding bind(const PreparedCall& prepared, const View& view, const Block& block, std::int64_t unit);
// Binds a block of a tensor under the kernel's name for it; `place` receives its position in units
// of `unit` bytes. An absent input is replaced by bytes that the kernel never uses.
void bind_tensor(const PreparedCall& prepared, Dispatch& dispatch, std::string_view name,
                 const View& view, const Block& block, std::int64_t unit, StridedTensor& place);
// Binds q, k and v (`keys` are the block of k and v), then `info`.
void bind_qkv(const PreparedCall& prepared, const Block& queries, const Block& keys,
              Dispatch& dispatch, AttentionParameters& p);
void bind_bias(const PreparedCall& prepared, const Block& block, Dispatch& dispatch,
               AttentionParameters& p);
void bind_mask(const PreparedCall& prepared, const Block& block, Dispatch& dispatch,
               AttentionParameters& p);
// Replaces absent inputs: some bytes of one of the caller's inputs, because the dispatch may write
// scratch memory.
Operand stand_in(const PreparedCall& prepared);

// The passes.

core::Status add_forward(const PreparedCall& prepared, Work& work);
core::Status add_decode(const PreparedCall& prepared, Work& work);
core::Status add_backward(const PreparedCall& prepared, Work& work);

// The dispatches of a call. unsupported: the device cannot bind a tensor; the message says which
// limit.
core::Status make_work(const WebGpuPlan& plan, const Arguments& arguments, Work& work);

}  // namespace attn::webgpu
