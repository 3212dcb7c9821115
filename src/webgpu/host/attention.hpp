// Attention: what the steps of forward, decode and backward share: the parameters that don't
// depend on the dispatch, `info` and the kernels that prepare it, aligned inputs, results on their
// way out, and the cutting into pieces that a device can take.
#pragma once

#include <attn/arguments.hpp>
#include <attn/problem.hpp>
#include <initializer_list>
#include <vector>

#include "core/status.hpp"
#include "webgpu/host/copy.hpp"
#include "webgpu/host/geometry.hpp"
#include "webgpu/host/step.hpp"

namespace attn::webgpu {

// Arguments were validated; tensors are on the device.
struct Call {
  Pass pass;
  const Problem& problem;
  const Arguments& arguments;
  const DeviceFacts& facts;
};

// Tiles that parts of `info` are about (prepare.wgsl, `tiles` and `keys`), and where they are.
struct Tiles {
  std::uint32_t q = 0;
  std::uint32_t kv = 0;  // 0: no `keys`
  U32 tiles_at = 0;
  U32 keys_at = 0;

  [[nodiscard]] U32 count_q(const Problem& p) const { return count(p.len_q, q); }
  [[nodiscard]] U32 count_kv(const Problem& p) const { return kv == 0 ? 0 : count(p.len_kv, kv); }

 private:
  static U32 count(std::int64_t len, std::uint32_t tile) {
    return static_cast<U32>((len + tile - 1) / tile);
  }
};

// Entries, heads and tiles that one dispatch does.
struct Piece {
  Block q, kv;  // the same entries; heads of queries, and those of keys that they look at
  std::int64_t first_tile = 0;
  std::int64_t tiles = 0;
  std::int64_t first_visit = 0;
  std::int64_t visits = 1;
  double flops = 0.0;
};

// Whether decode.wgsl makes it: few rows a key head, a paged cache, or cuts of the caller's.
bool takes_decode(const Problem& problem);

// What is cut: whose blocks must be within the device's bindings, and how much there is to do.
struct Whole {
  std::vector<const View*> of_queries;  // by heads of queries
  std::vector<const View*> of_keys;     // by heads of keys
  std::int64_t tiles = 0;
  double flops = 0.0;
  std::int64_t groups_per_entry = 1;  // workgroups along the grid's third dimension
  std::int64_t visits = 1;     // turns of a workgroup's loop; more than 1 where it can be cut
  bool entries_apart = false;  // a piece has one entry
};

class AttentionWork {
 public:
  AttentionWork(const Call& call, Work& work);

  // Lays `info` out and adds the steps that fill it; sets where `tiles` are (null: not needed).
  // `stats`: with room for the backward's.
  void prepare(bool stats, std::initializer_list<Tiles*> tiles);
  // Inputs as main kernels take them: rows of 16-byte units, rotated where the problem says so;
  // copied where they are not. Appends to the cache first. After prepare().
  core::Status take_inputs();

  // Where a kernel writes an output: the tensor itself, or a part of `staged` in f32 from which
  // finish() takes it: where elements can't be written by whole words, the tensor shares a buffer
  // with an input, or its values need more than writing.
  View place_output(const View& tensor);
  // `which` rows of a packed tensor were written; `rotates`: as gradients of what was rotated.
  core::Status finish_output(const View& tensor, const View& written, Copy::Which which,
                             bool rotates = false);
  // The same for lse, which may be left out, beside the output it is written with.
  View place_statistics(const View& tensor, const View& beside);
  core::Status finish_statistics(const View& tensor, const View& written);
  // Of a kernel that reads `staged`: lse itself or, where it shares a buffer with the output beside
  // it, a part of `prepared`.
  View place_combined_statistics(const View& tensor, const View& beside);

  // Rows of packed outputs that no entry has become results of empty rows; gradients there 0.
  void fill_uncovered();
  // Elements of the `which` rows of a tensor that no entry has, all without entries, become
  // `value`, given by its bits.
  void fill(const View& tensor, Copy::Which which, U32 value);

  // Pieces whose bindings the device takes and whose work is within a submission. Those of the same
  // workgroups follow each other, in the order of their loops.
  core::Status cut(const Whole& whole, std::vector<Piece>& pieces) const;

  // What kernels that read q, k, v and pairs compute: types and options. After take_inputs().
  void add_constants(Step& step) const;
  // OPTIONS of kernels that make scores: 0: none that act on them, 1: softcap or ALiBi alone, 2:
  // any.
  [[nodiscard]] std::uint32_t options_of_scores() const;
  // The parameters of a piece; rows of tensors are left to its kernel.
  [[nodiscard]] Parameters parameters_of(const Piece& piece, const Tiles& tiles) const;
  // Binds a block of a tensor and says in `rows` where it is, in units of `unit` bytes.
  void bind_rows(Step& step, Access access, const View& view, const Block& block, std::int64_t unit,
                 Rows& rows) const;
  // Bind bias, and bias and mask, or what stands for them.
  void bind_bias(Step& step, Parameters& p, const Block& block) const;
  void bind_pairs(Step& step, Parameters& p, const Block& block) const;
  [[nodiscard]] Binding bound(const View& view, const Block& block, std::int64_t unit) const;
  // 2 per visible pair, dimension and product of the two dims, at most. After prepare().
  [[nodiscard]] double flops(double products_qk, double products_vo) const;

  const Call& call;
  const Problem& problem;
  const Arguments& arguments;
  Work& work;
  View q, k, v, dout, bias, mask;
  bool gathered = false;  // k and v: out of a paged cache, in order
  Operand info;
  Parameters common;

 private:
  [[nodiscard]] Operand stand_in() const;  // for inputs that are not given: what is read anyway
  void add_prepare(const char* entry, std::int64_t threads, Prepare& p);
  [[nodiscard]] double visible_pairs() const;
  [[nodiscard]] bool is_read(const View& tensor) const;
  // Bias or mask; `kv`: from key to key.
  void bind_one(Step& step, const View& view, const Block& block, Rows& rows, U32& kv) const;
  View scratch_statistics(Memory memory);
  core::Status append();
  core::Status take_input(View& view, const Copy& how, DType type);
  [[nodiscard]] Copy out_of_pages(Copy copy) const;
  // How queries and keys are rotated, or their gradients back.
  [[nodiscard]] Copy rotated(Copy::Which which) const;

  Prepare prepare_;
};

// Adds the steps of a pass.
core::Status add_forward(AttentionWork& attention);
core::Status add_decode(AttentionWork& attention);
core::Status add_backward(AttentionWork& attention);

// The steps of a call. unsupported: what the device can't bind, with the reason.
core::Status make_work(const Call& call, Work& work);

}  // namespace attn::webgpu
