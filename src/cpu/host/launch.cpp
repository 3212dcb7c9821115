// Resolves a call and runs the steps of its plan in order.
#include "cpu/host/launch.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu/host/plan.hpp"
#include "cpu/host/shared_keys.hpp"
#include "cpu/host/tasks.hpp"
#include "cpu/host/workspace.hpp"
#include "cpu/kernels/kernels.hpp"

namespace attn::cpu {
namespace {

constexpr std::int64_t kRowsOfTask = 64;  // rows of a rotary or merge task

// Contiguous rows [rows, heads, dim] of the workspace.
StridedTensor workspace_rows(char* memory, DType dtype, Layout layout, std::int64_t len,
                             std::int64_t heads, std::int64_t dim) {
  StridedTensor rows;
  rows.base = memory;
  rows.dtype = dtype;
  rows.packed = layout == Layout::packed;
  rows.workspace = true;
  rows.stride_head = dim * core::element_size(dtype);
  rows.stride_row = rows.stride_head * heads;
  rows.stride_batch = rows.packed ? 0 : rows.stride_row * len;
  return rows;
}

RotaryJob rotary_job(const Call& call, const StridedTensor& in, const StridedTensor& out,
                     std::int64_t heads) {
  RotaryJob job;
  job.in = in;
  job.out = out;
  job.heads = heads;
  job.dim = call.problem.dim_qk;
  job.style = call.problem.rope;
  job.rot_dim = call.problem.rotary_dim();
  job.base = call.rope_base;
  job.cos = call.rope_cos;
  job.sin = call.rope_sin;
  job.cos_stride = call.rope_cos_stride;
  job.sin_stride = call.rope_sin_stride;
  job.table_dtype = call.problem.statistics_type();
  job.table_rows = call.rope_table_rows;
  return job;
}

// Runs a job over all sequences. rows_of(b, entry) fills in the RotaryEntry and returns the number
// of rows.
template <class RowsOf>
void run_rotary(const Call& call, const RotaryJob& job, const core::Executor& executor,
                std::int64_t batch, std::int64_t most_rows, RowsOf&& rows_of) {
  const std::int64_t blocks = divide_up(most_rows, kRowsOfTask);
  run_tasks(executor, batch * blocks, [&](std::int64_t task, std::int32_t) {
    RotaryEntry entry;
    const std::int64_t rows = rows_of(task / blocks, entry);
    const std::int64_t begin = task % blocks * kRowsOfTask;
    rotate_rows(call, job, entry, begin, std::min(rows, begin + kRowsOfTask));
  });
}

// For run_rotary: a sequence's rows of q (or k). `all` includes the padding.
std::int64_t query_rows(const Call& call, std::int64_t b, bool all, RotaryEntry& rotary) {
  const Entry entry = entry_of(call, b);
  rotary = {b, entry.first_q, entry.first_q, 0, entry.diag + call.rope_pos_offset};
  return all ? entry.rows_q : entry.len_q;
}
std::int64_t key_rows(const Call& call, std::int64_t b, bool all, RotaryEntry& rotary) {
  const Entry entry = entry_of(call, b);
  rotary = {b, entry.first_kv, entry.first_kv, 0, call.rope_pos_offset};
  return all ? entry.rows_kv : entry.len_kv;
}

// Appends the new rows to the cache. Rows that exceed its capacity are dropped.
void append(const Call& call, const core::Executor& executor) {
  const Problem& p = call.problem;
  const auto rows_of = [&](std::int64_t b, RotaryEntry& rotary) {
    const Entry entry = entry_of(call, b);
    rotary = {b, 0, 0, entry.len_cached, entry.len_cached + call.rope_pos_offset};
    return entry.len_kv - entry.len_cached;
  };
  RotaryJob job = rotary_job(call, call.k_new, call.k, p.heads_kv);
  job.positions = call.pos_k;
  run_rotary(call, job, executor, p.batch, p.len_new, rows_of);
  job.in = call.v_new;
  job.out = call.v;
  job.dim = p.dim_vo;
  job.style = Rope::none;
  job.positions = {};
  run_rotary(call, job, executor, p.batch, p.len_new, rows_of);
}

// Scans the mask in tasks of about 256 KiB.
void find_mask_rows(const Call& call, const core::Executor& executor) {
  const std::int64_t rows = mask_rows(call.problem);
  const std::int64_t of_task = std::max<std::int64_t>(
      (std::int64_t{256} << 10) / std::max<std::int64_t>(call.problem.len_kv, 1), 1);
  run_tasks(executor, divide_up(rows, of_task), [&](std::int64_t task, std::int32_t) {
    scan_mask(call, task * of_task, std::min(rows, (task + 1) * of_task));
  });
}

// Calls gap(begin, end) for each run of rows of a packed tensor that belongs to no sequence.
template <class Gap>
void each_gap(const Call& call, bool queries, std::int64_t total, Gap&& gap) {
  std::int64_t covered = 0;
  for (std::int64_t b = 0; b < call.problem.batch; ++b) {
    const Entry entry = entry_of(call, b);
    const std::int64_t first = queries ? entry.first_q : entry.first_kv;
    if (first > covered) gap(covered, first);
    covered = std::max(covered, first + (queries ? entry.rows_q : entry.rows_kv));
  }
  if (covered < total) gap(covered, total);
}

void zero_gap(const Call& call, const StridedTensor& rows, std::int64_t heads, std::int64_t dim,
              std::int64_t begin, std::int64_t end) {
  for (std::int64_t r = begin; r < end; ++r) {
    for (std::int64_t head = 0; head < heads; ++head) {
      std::memset(row_address(call, rows, 0, 0, r, head), 0,
                  static_cast<std::size_t>(dim * size_of(rows.dtype)));
    }
  }
}

// Rows of no sequence are written like padding: o = 0, lse = -inf.
template <class T>
void write_query_gaps(const Call& call) {
  const Problem& p = call.problem;
  if (p.layout_q != Layout::packed) return;
  each_gap(call, true, p.total_q, [&](std::int64_t begin, std::int64_t end) {
    zero_gap(call, call.o, p.heads_q, p.dim_vo, begin, end);
    for (std::int64_t r = begin; call.lse.given() && r < end; ++r) {
      for (std::int64_t head = 0; head < p.heads_q; ++head) {
        *reinterpret_cast<T*>(stat_address(call.lse, 0, 0, r, head)) =
            -std::numeric_limits<T>::infinity();
      }
    }
  });
}

// Gradients of rows of no sequence: 0, or unchanged when accumulating.
void write_gradient_gaps(const Call& call) {
  const Problem& p = call.problem;
  if (p.accumulate) return;
  if (p.layout_q == Layout::packed && p.dq) {
    each_gap(call, true, p.total_q, [&](std::int64_t begin, std::int64_t end) {
      zero_gap(call, call.dq, p.heads_q, p.dim_qk, begin, end);
    });
  }
  if (p.layout_kv == Layout::packed) {
    each_gap(call, false, p.total_kv, [&](std::int64_t begin, std::int64_t end) {
      if (p.dk) zero_gap(call, call.dk, p.heads_kv, p.dim_qk, begin, end);
      if (p.dv) zero_gap(call, call.dv, p.heads_kv, p.dim_vo, begin, end);
    });
  }
}

// Rotates dq or dk of a rotated input back into the caller's gradient.
RotaryJob gradient_job(const Call& call, const StridedTensor& in, const StridedTensor& out,
                       std::int64_t heads, const core::StridedTensor& positions) {
  RotaryJob job = rotary_job(call, in, out, heads);
  job.positions = positions;
  job.inverse = true;
  job.accumulate = call.problem.accumulate;
  job.zero_nonfinite = call.problem.nonfinite_zero;
  return job;
}

// q or k of a call with rope, and its rotated copy in the workspace.
template <class T>
struct RotatedInput {
  StridedTensor& tensor;  // the call's
  StridedTensor& gradient;
  const core::StridedTensor& positions;
  Layout layout;
  std::int64_t len, heads;
  char* rotated;
  T* rotated_gradient;  // null: there is none
  std::int64_t (*rows)(const Call& call, std::int64_t b, bool all, RotaryEntry& rotary);
  StridedTensor caller_gradient = {};
};

// Runs one call. In `call_`, rotated inputs and their gradients replace the caller's.
template <class T>
class Launch {
 public:
  Launch(const CpuPlan& plan, const Arguments& arguments, const core::Executor& executor)
      : plan_(plan),
        config_(plan.config),
        executor_(executor),
        call_(resolve(plan.pass, plan.problem, arguments)),
        w_(lay_out<T>(plan.pass, plan.problem, plan.config, plan.scratch_bytes, plan.threads,
                      static_cast<char*>(arguments.workspace))),
        q_{call_.q,
           call_.dq,
           call_.pos_q,
           plan.problem.layout_q,
           plan.problem.len_q,
           plan.problem.heads_q,
           w_.rotated_q,
           w_.gradient_q,
           query_rows},
        k_{call_.k,
           call_.dk,
           call_.pos_k,
           plan.problem.page_size > 0 ? Layout::padded : plan.problem.layout_kv,
           plan.problem.len_kv,
           plan.problem.heads_kv,
           w_.rotated_k,
           w_.gradient_k,
           key_rows} {
    call_.interrupt = executor.interrupt;
  }

  void run() {
    for (const Step step : plan_.steps()) {
      if (executor_.observer != nullptr) executor_.report_launch(to_string(step));
      run(step);
    }
  }

 private:
  void run(Step step) {
    const Problem& p = plan_.problem;
    const std::int64_t groups = p.batch * p.heads_kv;
    const Config& config = config_;
    const bool is_float = config.engine == Engine::float_simd;
    switch (step) {
      case Step::append: return append(call_, executor_);
      case Step::rotate_q: return rotate(q_);
      case Step::rotate_k: return rotate(k_);
      case Step::scan_mask:
        if (call_.mask.stride_kv != 1) return;  // scan_mask() needs contiguous keys
        call_.mask_rows = w_.mask_rows;
        call_.mask_bits = w_.mask_bits;
        return find_mask_rows(call_, executor_);
      case Step::fill_gaps:
        if (plan_.pass == Pass::backward) return write_gradient_gaps(call_);
        return write_query_gaps<T>(call_);
      case Step::pack_keys:
        if (!pack_or_shrink_tiles(call_, config_)) {
          w_.forward.packed = {};
          return;
        }
        return run(is_float ? forward_kernels<T>().pack_keys : forward_kernels<T>().pack_keys_bf16,
                   w_.forward, config, groups * key_tiles(p, config));
      case Step::forward:
        if (config.small) {
          return run_small(is_float ? small_forward_kernel() : small_forward_bf16_kernel(),
                           w_.forward);
        }
        if (config.pairs_of_task > 1) return run_pairs_forward();
        return run(is_float ? forward_kernels<T>().forward : forward_kernels<T>().forward_bf16,
                   w_.forward, config, forward_tasks(p, config));
      case Step::merge_splits:
        return run(forward_kernels<T>().merge_splits, w_.forward, config, p.batch * p.heads_q);
      case Step::row_sums: return run_row_sums();
      case Step::backward_kv:
      case Step::backward_qkv:
        if (config.small) return run_small(small_backward_kernel(), w_.sums);
        if (config.pairs_of_task > 1) return run_pairs_backward();
        return run_backward();
      case Step::backward_q:
        return run(backward_kernels<T>().queries, w_.sums, config, groups * row_tiles(p, config));
      case Step::bias_gradient:
        return run(backward_kernels<T>().bias, w_.sums, config, bias_grid(p, config).tasks());
      case Step::sink_gradient: return run(backward_kernels<T>().sinks, w_.sums, config, p.heads_q);
      case Step::rotate_dq: return rotate_gradient(q_);
      case Step::rotate_dk: return rotate_gradient(k_);
    }
  }

  template <class Kernel, class Shared>
  void run(Kernel kernel, const Shared& shared, const Config& config, std::int64_t tasks) {
    run(call_, kernel, shared, config, tasks);
  }
  template <class Kernel, class Shared>
  void run(const Call& call, Kernel kernel, const Shared& shared, const Config& config,
           std::int64_t tasks) {
    run_tasks(executor_, tasks, [&](std::int64_t task, std::int32_t worker) {
      kernel(call, config, shared, w_.scratch + worker * w_.scratch_bytes, task);
    });
  }

  // A small problem is f32, bf16 or f16.
  template <class Kernel, class Shared>
  void run_small(Kernel kernel, const Shared& shared) {
    if constexpr (std::is_same_v<T, float>) {
      const Problem& p = plan_.problem;
      run(kernel, shared, plan_.config,
          divide_up(p.batch * p.heads_kv, plan_.config.pairs_of_task));
    }
  }

  // Calls pair(index, scratch) for every (batch, key head); each task has config.pairs_of_task.
  template <class Pair>
  void run_pairs(Pair&& pair) {
    const std::int64_t pairs = plan_.problem.batch * plan_.problem.heads_kv;
    const std::int64_t of_task = plan_.config.pairs_of_task;
    run_tasks(executor_, divide_up(pairs, of_task), [&](std::int64_t task, std::int32_t worker) {
      const std::int64_t end = std::min((task + 1) * of_task, pairs);
      for (std::int64_t index = task * of_task; index < end; ++index) {
        if (core::interrupted(call_.interrupt)) return;
        pair(index, w_.scratch + worker * w_.scratch_bytes);
      }
    });
  }
  void run_pairs_forward() {
    const bool is_float = plan_.config.engine == Engine::float_simd;
    const auto kernel = is_float ? forward_kernels<T>().forward : forward_kernels<T>().forward_bf16;
    run_pairs([&](std::int64_t index, char* scratch) {
      kernel(call_, plan_.config, w_.forward, scratch, index);
    });
  }
  // The call as row_sums and backward_kv compute it; see tasks_problem().
  Call call_of_tasks() const {
    Call call = call_;
    call.problem = tasks_problem(plan_.problem, plan_.config);
    call.numbers.heads_per_kv = call.problem.heads_q / call.problem.heads_kv;
    return call;
  }
  void run_row_sums() {
    const Call call = call_of_tasks();
    run(call, backward_kernels<T>().row_sums, w_.sums, keys_config(plan_.config),
        call.problem.batch * call.problem.heads_kv);
  }
  void run_backward() {
    const bool is_float = plan_.config.engine == Engine::float_simd;
    const auto kernel = is_float ? backward_kernels<T>().keys : backward_kernels<T>().keys_bf16;
    const Call call = call_of_tasks();
    const Problem& p = call.problem;
    const Config config = keys_config(plan_.config);
    const std::int64_t tasks = p.batch * p.heads_kv * key_tasks(p, config) / config.terms_of_task;
    run_tasks(executor_, tasks, [&](std::int64_t n, std::int32_t worker) {
      each_key_task(p, config, n, [&](std::int64_t task) {
        kernel(call, config, w_.sums, w_.scratch + worker * w_.scratch_bytes, task);
      });
    });
  }
  void run_pairs_backward() {
    const bool is_float = plan_.config.engine == Engine::float_simd;
    const auto kernel = is_float ? backward_kernels<T>().keys : backward_kernels<T>().keys_bf16;
    const auto row_sums = backward_kernels<T>().row_sums;
    const Config config = keys_config(plan_.config);
    run_pairs([&](std::int64_t index, char* scratch) {
      row_sums(call_, config, w_.sums, scratch, index);
      kernel(call_, config, w_.sums, scratch, index);
    });
  }

  StridedTensor in_workspace(const RotatedInput<T>& x, char* memory, DType dtype) const {
    return workspace_rows(memory, dtype, x.layout, x.len, x.heads, plan_.problem.dim_qk);
  }

  // After this the kernels read the rotated copy and write the copy's gradient to the workspace.
  void rotate(RotatedInput<T>& x) {
    const StridedTensor rotated =
        in_workspace(x, x.rotated, rotated_type(plan_.problem, plan_.config));
    RotaryJob job = rotary_job(call_, x.tensor, rotated, x.heads);
    job.positions = x.positions;
    run_rotary(
        call_, job, executor_, plan_.problem.batch, x.len,
        [&](std::int64_t b, RotaryEntry& rotary) { return x.rows(call_, b, false, rotary); });
    x.tensor = rotated;
    x.caller_gradient = x.gradient;
    if (x.rotated_gradient == nullptr) return;
    x.gradient = in_workspace(x, reinterpret_cast<char*>(x.rotated_gradient),
                              plan_.problem.statistics_type());
  }

  // Padding becomes 0, or is unchanged when accumulating.
  void rotate_gradient(const RotatedInput<T>& x) {
    const RotaryJob job = gradient_job(call_, x.gradient, x.caller_gradient, x.heads, x.positions);
    const bool all = !plan_.problem.accumulate;
    run_rotary(call_, job, executor_, plan_.problem.batch, x.len,
               [&](std::int64_t b, RotaryEntry& rotary) { return x.rows(call_, b, all, rotary); });
  }

  const CpuPlan& plan_;
  Config config_;  // the plan's, with tiles for this call
  const core::Executor& executor_;
  Call call_;
  Workspace<T> w_;
  RotatedInput<T> q_, k_;
};

// Runs block(begin, end) over all rows (batch x len, or total) of a tensor [b, n, h, d] or [total,
// h, d].
template <class Block>
void run_row_blocks(const TensorView& o, const core::Executor& executor, Block&& block) {
  const std::int64_t rows = o.rank == 3 ? o.shape[0] : o.shape[0] * o.shape[1];
  run_tasks(executor, divide_up(rows, kRowsOfTask), [&](std::int64_t task, std::int32_t) {
    block(task * kRowsOfTask, std::min(rows, (task + 1) * kRowsOfTask));
  });
}

}  // namespace

void launch(const CpuPlan& plan, const Arguments& arguments, const core::Executor& executor) {
  if (plan.problem.dtype == DType::f64) {
    Launch<double>(plan, arguments, executor).run();
  } else {
    Launch<float>(plan, arguments, executor).run();
  }
}

void launch_merge(const MergeArguments& arguments, const core::Executor& executor) {
  run_row_blocks(arguments.o, executor,
                 [&](std::int64_t begin, std::int64_t end) { merge_rows(arguments, begin, end); });
}

void launch_merge_backward(const MergeBackwardArguments& arguments,
                           const core::Executor& executor) {
  run_row_blocks(arguments.o, executor, [&](std::int64_t begin, std::int64_t end) {
    merge_backward_rows(arguments, begin, end);
  });
}

void launch_rope(const RopeArguments& a, const core::Executor& executor) {
  const bool packed = a.x.rank == 3;
  // rotate_rows() reads its geometry from a call, so this builds one without attention.
  Problem problem;
  problem.layout_q = packed ? Layout::packed : Layout::padded;
  problem.layout_kv = Layout::padded;  // there are no keys, and so no cu_len_kv
  problem.batch = packed ? (a.cu_len.given() ? a.cu_len.shape[0] - 1 : 1) : a.x.shape[0];
  problem.len_q = packed ? a.x.shape[0] : a.x.shape[1];
  problem.total_q = packed ? a.x.shape[0] : 0;
  problem.dtype = a.x.dtype;
  problem.heads_q = a.x.shape[packed ? 1 : 2];
  problem.dim_qk = a.x.shape[packed ? 2 : 3];
  problem.rope = a.style;
  problem.rot_dim = a.rot_dim;
  problem.diagonal = Diagonal::top_left;
  Arguments arguments;
  arguments.q = a.x;
  arguments.o = a.out;
  arguments.rope_pos_q = a.positions;
  arguments.rope_cos = a.cos;
  arguments.rope_sin = a.sin;
  arguments.rope_base = a.base;
  arguments.rope_pos_offset = a.pos_offset;
  const std::int32_t whole[2] = {0, static_cast<std::int32_t>(problem.total_q)};
  arguments.cu_len_q = a.cu_len.given() ? a.cu_len : TensorView::contiguous(whole, DType::i32, {2});
  const Call call = resolve(Pass::forward, problem, arguments);

  RotaryJob job = rotary_job(call, call.q, call.o, problem.heads_q);
  job.inverse = a.inverse;
  job.positions = call.pos_q;
  const auto rows_of = [&](std::int64_t b, RotaryEntry& rotary) {
    return query_rows(call, b, true, rotary);
  };
  run_rotary(call, job, executor, problem.batch, problem.len_q, rows_of);
  if (!packed) return;
  // Rows of no sequence count from the start of the tensor.
  const RotaryEntry whole_tensor{.position0 = a.pos_offset};
  each_gap(call, true, problem.total_q, [&](std::int64_t begin, std::int64_t end) {
    run_tasks(executor, divide_up(end - begin, kRowsOfTask), [&](std::int64_t n, std::int32_t) {
      const std::int64_t first = begin + n * kRowsOfTask;
      rotate_rows(call, job, whole_tensor, first, std::min(end, first + kRowsOfTask));
    });
  });
}

}  // namespace attn::cpu
