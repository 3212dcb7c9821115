// Arguments: everything that may change from call to call without a new plan.
//
// Symbols: b batch, h heads_q, g heads_kv, n len_q, m len_kv. Padded tensors are [b, len, heads,
// dim] in any stride order, packed ones [total, heads, dim]; the last dimension is contiguous.
// Statistics (lse, dlse, delta, sinks, slopes) are f32, or f64 with f64 inputs. A view of rank 0 is
// "not given".
#pragma once

#include <attn/export.h>

#include <attn/context.hpp>
#include <attn/problem.hpp>
#include <attn/tensor.hpp>
#include <cstdint>
#include <optional>

namespace attn {

// A number that the host passes with the call, or that the kernel reads from device memory when it
// runs, so that a replayed graph sees a new value. With host tensors, the pointer is to host
// memory.
template <class T>
struct Value {
  T host{};
  const T* device = nullptr;
  constexpr Value() = default;
  constexpr Value(T value) : host(value) {}               // NOLINT: implicit on purpose
  constexpr Value(const T* pointer) : device(pointer) {}  // NOLINT: implicit on purpose
};

// Position of a call that computes one chunk of a larger problem: the indices of its first
// sequence, head, query and key in that problem. Dropout adds them to its own indices. With
// Diagonal::explicit_value, diag defaults to q - kv.
struct Origin {
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t q = 0;
  std::int64_t kv = 0;
  std::int64_t heads_q = 0;  // heads of the larger problem; 0 = those of this call
};

struct Arguments {
  // forward, decode and backward
  TensorView q{};    // [b, n, h, dim_qk]
  TensorView k{};    // [b, m, g, dim_qk]; paged: [pages, page_size, g, dim_qk]
  TensorView v{};    // [b, m, g, dim_vo]; paged: [pages, page_size, g, dim_vo]
  TensorView o{};    // [b, n, h, dim_vo]: output of the forward, input of the backward
  TensorView lse{};  // [b, h, n], packed [h, total_q]; natural log: output, then input

  // options
  TensorView bias{};          // [b|b/s|1, h|1, n|1, m|1]
  TensorView mask{};          // the same shape, u8: non-zero = may attend
  TensorView alibi_slopes{};  // [h] or [b, h]
  TensorView sinks{};         // [h]; -inf = no sink for that head
  TensorView len_q{};         // i32 [b], padded layouts
  TensorView len_kv{};        // i32 [b], padded and paged; before the append
  TensorView cu_len_q{};      // i32 [b + 1], packed layouts
  TensorView cu_len_kv{};     // i32 [b + 1], packed layouts
  TensorView kv_begin{};      // i32 [b|1, n], packed [total_q]: first visible key of each query
  TensorView kv_end{};        // i32 [b|1, n], packed [total_q]: one past the last visible key
  TensorView block_table{};   // i32 [b, pages per sequence]; negative or out of range = no page
  TensorView k_new{};         // [b, len_new, g, dim_qk]: rows to append to the cache
  TensorView v_new{};         // [b, len_new, g, dim_vo]
  TensorView descale_q{};     // f32 [b, g], f8 types
  // f32 [b, g]; with Problem::descale_rows [b, m|1, g], paged [pages, page_size|1, g].
  TensorView descale_k{};
  TensorView descale_v{};
  TensorView rope_cos{};    // [positions, rot_dim / 2], statistics type
  TensorView rope_sin{};    // the same shape
  TensorView rope_pos_q{};  // i32 [b|1, n], packed [total_q]
  TensorView rope_pos_k{};  // i32 [b|1, m], packed [total_kv]; decode [b|1, len_new]
  // u32 counter in an i32 tensor [1]. With nonfinite_zero, the number of replaced elements is
  // added.
  TensorView nonfinite_count{};

  // backward
  TensorView dout{};   // gradient of o, shaped like o
  TensorView dlse{};   // gradient of lse, shaped like lse
  TensorView delta{};  // dot(dout, o) - dlse by the caller, shaped like lse
  TensorView dq{};     // outputs, shaped like q, k, v
  TensorView dk{};
  TensorView dv{};
  TensorView dbias{};  // [b|b/s|1, h|1, n|1, m|1]: the broadcast shape of bias
  TensorView dsink{};  // [h], statistics type

  // numbers
  std::optional<double> scale{};  // default 1 / sqrt(dim_qk); any finite number
  double softcap = 0.0;           // > 0 with Problem::softcap
  double dropout_p = 0.0;         // 0 or [1/512, 1) with Problem::dropout; in steps of 1/256
  Value<std::uint64_t> seed{};
  Value<std::uint64_t> offset{};
  std::optional<std::int64_t> diag{};  // with Diagonal::explicit_value
  Origin origin{};
  double rope_base = 10000.0;
  std::int64_t rope_pos_offset = 0;

  // Scratch memory on the device of the tensors, at least workspace_bytes() long, 64-byte aligned.
  // If null, the call takes memory from the Context's pool.
  void* workspace = nullptr;
  std::int64_t workspace_size = 0;
  // CUDA: the stream to queue on (0 is a valid stream). Must be empty for host tensors.
  std::optional<void*> stream{};

  // Interrupts a long call on the CPU or the reference backend. The call runs should_stop(user)
  // on the calling thread, first after 20 ms and then about every 20 ms. If it returns a value
  // other than 0, the call throws Error with ErrorCode::interrupted within milliseconds. All memory
  // that the call writes is then unspecified: outputs, accumulated gradients, rows appended to a
  // cache, counters. The next call is not affected.
  //   - should_stop must not throw. It may make other calls on the same Context.
  //   - If parallel_for runs no worker on the calling thread, should_stop runs only between phases.
  //   - CUDA calls return when their work is queued, and WebGPU calls wait in the driver, so they
  //     never run should_stop. Neither do merge and rope, which take linear time.
  ShouldStop should_stop = nullptr;  // null = never stop
  void* should_stop_user = nullptr;
};

// The Problem that these tensors and numbers determine: types, sizes, which options are on. The
// caller sets the rest: causal, diagonal, window, rope, deterministic, accumulate, split, and the
// maximum lengths of packed tensors, which default to the totals.
ATTN_API Problem describe(const Arguments& arguments);

// Combines two partial results over disjoint keys. o*: [b, n, h, dim] or [total, h, dim], f32 or
// the type of o; lse*: [b, h, n] or [h, total].
//   lse = logaddexp(lse1, lse2), o = exp(lse1 - lse) o1 + exp(lse2 - lse) o2
// If the lse of a partial result is -inf, its o is not read. If o2 is not given, it counts as
// zeros: this merges a sink last. o and lse may be the same views as o1 and lse1 (in place).
struct MergeArguments {
  TensorView o1{}, lse1{}, o2{}, lse2{};  // inputs
  TensorView o{}, lse{};                  // outputs; lse may be left out
  std::optional<void*> stream{};
};

// The gradients of merge. dlse is optional (zeros); each output is optional.
//   do_n = w_n do, dlse_n = w_n (dlse + dot(do, o_n - o)), w_n = exp(lse_n - lse)
struct MergeBackwardArguments {
  TensorView o1{}, lse1{}, o2{}, lse2{}, o{}, lse{}, dout{}, dlse{};  // inputs
  TensorView dout1{}, dlse1{}, dout2{}, dlse2{};                      // outputs
  std::optional<void*> stream{};
};

// Rotary embedding (Su et al. 2021, RoFormer, section 3.2.2): pairs rotate by
// position * base^(-2m / rot_dim). x and out: [b, n, h, dim] or [total, h, dim]; out may be x.
struct RopeArguments {
  TensorView x{}, out{};
  Rope style = Rope::half;
  std::int64_t rot_dim = 0;  // even, <= dim; 0 = dim; the rest is copied
  double base = 10000.0;
  bool inverse = false;         // rotate by the negative angle: the gradient
  std::int64_t pos_offset = 0;  // position = row + pos_offset ...
  TensorView positions{};       // ... or explicit i32 [b|1, n] or [total]
  // Packed: i32 [b + 1]. Rows are counted within each sequence, those of no sequence from the start
  // of x.
  TensorView cu_len{};
  TensorView cos{}, sin{};  // [positions, rot_dim / 2] instead of base; positions are clamped
  std::optional<void*> stream{};
};

}  // namespace attn
