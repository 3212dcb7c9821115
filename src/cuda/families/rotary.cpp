// Rotary embedding inside attention and copies of f8 queries; see rotary.hpp.
#include "cuda/families/rotary.hpp"

#include <algorithm>
#include <limits>
#include <string_view>

#include "core/divide_up.hpp"
#include "core/signature.hpp"
#include "cuda/families/cache_params.hpp"

namespace attn::cuda {
namespace {

constexpr std::int64_t kAlignment = 256;

// A tensor [batch, rows, heads, dim], or packed [rows, heads, dim].
struct Size {
  bool packed = false;
  std::int64_t batch = 0;
  std::int64_t rows = 0;
  std::int64_t heads = 0;
  std::int64_t dim = 0;

  [[nodiscard]] std::int64_t elements() const { return (packed ? 1 : batch) * rows * heads * dim; }
  [[nodiscard]] std::int64_t blocks() const { return rope_blocks(packed ? 1 : batch, rows, heads); }
};

Size queries_of(const Problem& p) {
  const bool packed = p.layout_q == Layout::packed;
  return {packed, p.batch, packed ? p.total_q : p.len_q, p.heads_q, p.dim_qk};
}
// The keys, in decode the appended ones. For values, `dim` is dim_vo.
Size keys_of(Pass pass, const Problem& p, std::int64_t dim) {
  if (pass == Pass::decode) return {false, p.batch, p.len_new, p.heads_kv, dim};
  const bool packed = p.layout_kv == Layout::packed;
  return {packed, p.batch, packed ? p.total_kv : p.len_kv, p.heads_kv, dim};
}

// Whether the forward's k and v are copied, in the type of q: attention on a cache does not rotate
// its keys.
bool copies_cache(Pass pass, const Problem& p) {
  return pass == Pass::forward && p.rope != Rope::none &&
         (p.page_size > 0 || p.kv_type() != p.dtype || core::is_f8(p.dtype));
}
// The type of the copies of q, and of a cache. A 16-bit q must have the type of o, unless o is f32.
// bf16 and f16 hold every value of f8; bf16 also holds its products with descales.
DType type_of_copies(const Problem& p) {
  if (!core::is_f8(p.dtype)) return p.dtype;
  return p.out_type() == DType::f16 ? DType::f16 : DType::bf16;
}

// Dims above this are run by kernels that round k times its descale to the type of q.
constexpr std::int64_t kMaxExactDim = 256;

// Whether descale_q becomes a factor of descale_k, so that the copy of f8 queries is exact. Not
// with a factor for each row of a page, because sequences may share pages.
bool folds_descale_q(const Problem& p) {
  return core::is_f8(p.dtype) && p.rope == Rope::none &&
         std::max(p.dim_qk, p.dim_vo) <= kMaxExactDim && !(p.page_size > 0 && p.descale_rows);
}
// The products of descale_q and descale_k: [batch, rows, heads_kv].
Size descales_of(const Problem& p) {
  return {false, p.batch, p.descale_rows ? p.len_kv : 1, p.heads_kv, 1};
}
// Descale factors [batch, heads] or [batch, rows, heads] as rows of dim 1.
TensorView rows_of_descales(const TensorView& view) {
  TensorView rows = view;
  const bool per_row = view.rank == 3;
  rows.rank = 4;
  rows.shape = {view.shape[0], per_row ? view.shape[1] : 1, view.shape[per_row ? 2 : 1], 1};
  rows.strides = {view.strides[0], per_row ? view.strides[1] : 0, view.strides[per_row ? 2 : 1], 1};
  return rows;
}
// Rows of a page of the copy. A page that is longer than the sequences is shortened.
std::int64_t copied_page_size(const Problem& p) {
  return std::min(p.page_size, std::max<std::int64_t>(p.len_kv, 1));
}
std::int64_t pages_per_sequence(const Problem& p) {
  return core::divide_up(p.len_kv, copied_page_size(p));
}
// The copy of k or v. A page counts as a sequence.
Size copied_keys_of(Pass pass, const Problem& p, std::int64_t dim) {
  if (p.page_size == 0) return keys_of(pass, p, dim);
  return {false, p.batch * pages_per_sequence(p), copied_page_size(p), p.heads_kv, dim};
}
// The products of descale_q and descale_k, in the shape of descale_k.
TensorView products_at(void* address, const TensorView& descale_k) {
  const auto& shape = descale_k.shape;
  return descale_k.rank == 2
             ? TensorView::contiguous(address, DType::f32, {shape[0], shape[1]})
             : TensorView::contiguous(address, DType::f32, {shape[0], shape[1], shape[2]});
}

std::int64_t rotated_dim(const Problem& p) {
  return p.rope == Rope::none ? 0 : p.rotary_dim();
}

// Whether the last pass writes dv too, because it accumulates gradients or replaces non-finite
// elements.
bool last_pass_stores_dv(const Problem& p) {
  return p.dv && (p.accumulate || p.nonfinite_zero);
}

bool has_last_pass(Pass pass, const Problem& p) {
  return pass == Pass::backward && (p.dq || p.dk || last_pass_stores_dv(p));
}

// A copy in the workspace, [batch, heads, rows, dim] in memory, so that rows of a head are
// adjacent.
TensorView copy_at(void* workspace, const Part& part, DType dtype, const Size& size,
                   const TensorView& like) {
  TensorView view;
  view.data = static_cast<char*>(workspace) + part.offset;
  view.dtype = dtype;
  view.device = like.device;
  view.ordinal = like.ordinal;
  const std::int64_t head = size.rows * size.dim;
  if (size.packed) {
    view.rank = 3;
    view.shape = {size.rows, size.heads, size.dim, 0};
    view.strides = {size.dim, head, 1, 0};
  } else {
    view.rank = 4;
    view.shape = {size.batch, size.rows, size.heads, size.dim};
    view.strides = {size.heads * head, size.dim, head, 1};
  }
  return view;
}

}  // namespace

std::string rotary_refusal(Pass pass, const Problem& p) {
  if (copies_cache(pass, p) && p.page_size > 0 &&
      p.batch * pages_per_sequence(p) > std::numeric_limits<std::int32_t>::max()) {
    return "rotary embedding of a paged cache on CUDA: found " +
           std::to_string(p.batch * pages_per_sequence(p)) +
           " pages of all sequences; accepted fewer than 2^31";
  }
  const std::int64_t heads = std::max(p.heads_q, p.heads_kv);
  if (heads <= device::rope::kMaxHeads) return {};
  const std::string what = p.rope != Rope::none ? "rotary embedding" : "f8 queries";
  return what + " on CUDA: found " + std::to_string(heads) + " heads; accepted up to 2^23";
}

Problem problem_on_copies(Pass pass, const Problem& p) {
  Problem plain = p;
  plain.rope = Rope::none;
  plain.rot_dim = 0;
  plain.rope_tables = false;
  plain.rope_positions = false;
  if (core::is_f8(p.dtype)) {
    plain.dtype = type_of_copies(p);
    plain.dtype_kv = p.kv_type();
    plain.dtype_out = p.out_type();
  }
  if (copies_cache(pass, p)) {
    plain.dtype_kv = DType::none;
    plain.descale_rows = false;
    if (p.page_size > 0) plain.page_size = copied_page_size(p);
  }
  if (pass == Pass::backward) {
    plain.dtype_grad = DType::f32;
    plain.accumulate = false;
    plain.nonfinite_zero = false;
  }
  return plain;
}

void add_rotary(Pass pass, const Problem& p, CudaPlan& plan) {
  const Size queries = queries_of(p);
  const Size keys = keys_of(pass, p, p.dim_qk);
  std::int64_t bytes = plan.workspace_bytes;
  const auto add = [&](const Size& size, DType dtype) {
    bytes = core::round_up(bytes, kAlignment);
    const Part part{bytes, size.elements() * size_of(dtype)};
    bytes += part.bytes;
    return part;
  };
  RotaryParts& parts = plan.rotary;
  parts.q = add(queries, type_of_copies(p));
  const bool rotates = p.rope != Rope::none;
  const bool copies = copies_cache(pass, p);
  if (copies) {
    parts.k = add(copied_keys_of(pass, p, p.dim_qk), type_of_copies(p));
    parts.v = add(copied_keys_of(pass, p, p.dim_vo), type_of_copies(p));
    if (p.page_size > 0) {
      parts.table = add({false, p.batch, pages_per_sequence(p), 1, 1}, DType::i32);
    }
  } else if (rotates) {
    parts.k = add(keys, p.kv_type());
  }
  if (folds_descale_q(p)) parts.descales = add(descales_of(p), DType::f32);
  if (pass == Pass::backward) {
    if (p.dq) parts.dq = add(queries, DType::f32);
    if (p.dk) parts.dk = add(keys, DType::f32);
    if (last_pass_stores_dv(p)) parts.dv = add(keys_of(pass, p, p.dim_vo), DType::f32);
  }
  plan.workspace_bytes = bytes;
  plan.on_copies = plan.problem;
  plan.problem = p;
  plan.runs_on_copies = true;
  const std::int64_t key_blocks = (copies ? 2 : rotates ? 1 : 0) * keys.blocks();
  const std::int64_t descale_blocks = folds_descale_q(p) ? descales_of(p).blocks() : 0;
  plan.add_first(rope_kernel(), queries.blocks() + key_blocks + descale_blocks);
  if (!has_last_pass(pass, p)) return;
  const std::int64_t blocks = (p.dq ? queries.blocks() : 0) + (p.dk ? keys.blocks() : 0) +
                              (last_pass_stores_dv(p) ? keys.blocks() : 0);
  const KernelSpec kernel = rope_kernel();
  plan.add(kernel.config.source(), kernel.entry, kernel.threads, blocks);
}

RotaryCall::RotaryCall(const CudaPlan& plan, const Arguments& arguments, void* workspace)
    : plan_(plan), given_(arguments), tensors_(arguments) {
  const Problem& p = plan.problem;
  const RotaryParts& parts = plan.rotary;
  const auto copy = [&](const Part& part, DType dtype, const Size& size) {
    return copy_at(workspace, part, dtype, size, arguments.q);
  };
  const Size queries = queries_of(p);
  const Size keys = keys_of(plan.pass, p, p.dim_qk);
  const DType type = type_of_copies(p);
  tensors_.q = copy(parts.q, type, queries);
  tensors_.descale_q = {};
  if (copies_cache(plan.pass, p)) {
    tensors_.k = copy(parts.k, type, copied_keys_of(plan.pass, p, p.dim_qk));
    tensors_.v = copy(parts.v, type, copied_keys_of(plan.pass, p, p.dim_vo));
    tensors_.descale_k = tensors_.descale_v = {};
    if (p.page_size > 0) {
      tensors_.block_table =
          TensorView::contiguous(static_cast<char*>(workspace) + parts.table.offset, DType::i32,
                                 {p.batch, pages_per_sequence(p)});
    }
  } else if (p.rope == Rope::none) {
    if (folds_descale_q(p) && arguments.descale_q.given()) {
      tensors_.descale_k = arguments.descale_q;
      if (arguments.descale_k.given()) {
        tensors_.descale_k =
            products_at(static_cast<char*>(workspace) + parts.descales.offset, arguments.descale_k);
      }
    }
  } else if (plan.pass != Pass::decode) {
    tensors_.k = copy(parts.k, p.kv_type(), keys);
  } else if (p.len_new > 0) {
    tensors_.k_new = copy(parts.k, p.kv_type(), keys);
  }
  if (plan.pass != Pass::backward) return;
  if (p.dq) tensors_.dq = copy(parts.dq, DType::f32, queries);
  if (p.dk) tensors_.dk = copy(parts.dk, DType::f32, keys);
  if (last_pass_stores_dv(p)) {
    tensors_.dv = copy(parts.dv, DType::f32, keys_of(plan.pass, p, p.dim_vo));
  }
}

void RotaryCall::take_gradients(device::Arguments& common) {
  common_ = common;
  if (plan_.pass != Pass::backward) return;
  common.accumulate = 0;
  common.nonfinite_count = nullptr;
}

// The jobs that copy the cache: keys rotated, values not.
void RotaryCall::set_cache_jobs() {
  using device::rope::Job;
  const Problem& p = plan_.problem;
  const Arguments& a = given_;
  Job& keys = before_.jobs[1];
  Job& values = before_.jobs[2];
  keys = rope_job(a.k, tensors_.k, a.rope_pos_k, p.rope, rotated_dim(p), device::rope::kKeys);
  values = rope_job(a.v, tensors_.v, {}, p.rope, 0, device::rope::kKeys);
  keys.descale = descale_of(a.descale_k);
  values.descale = descale_of(a.descale_v);
  keys.descale_rows = values.descale_rows = p.descale_rows ? 1 : 0;
  if (p.page_size == 0) return;
  before_.cache = cache_of(p, a);
  keys.new_table = static_cast<int*>(tensors_.block_table.address());
  for (Job* job : {&keys, &values}) {
    job->num_rows = p.len_kv;
    job->blocks = static_cast<unsigned>(rope_blocks(p.batch, p.len_kv, p.heads_kv));
  }
}

// descale_q: a factor of descale_k, or of q's copy.
void RotaryCall::set_queries_descale(std::span<KernelLaunch> launches) {
  using device::rope::Job;
  const Problem& p = plan_.problem;
  const Arguments& a = given_;
  Job& queries = before_.jobs[0];
  if (!folds_descale_q(p)) {
    queries.descale = descale_of(a.descale_q);
    queries.heads_per_descale = static_cast<int>(p.heads_q / p.heads_kv);
    return;
  }
  Job& products = before_.jobs[1];
  if (a.descale_q.given() && a.descale_k.given()) {
    products = rope_job(rows_of_descales(a.descale_k), rows_of_descales(tensors_.descale_k), {},
                        Rope::none, 0, device::rope::kNewKeys);
    products.from.vector = products.to.vector = 0;
    products.descale = descale_of(a.descale_q);
  }
  launches.front().grid = {queries.blocks + products.blocks};
}

void RotaryCall::set_parameters(std::span<KernelLaunch> launches) {
  using device::rope::Job;
  const Problem& p = plan_.problem;
  const Arguments& a = given_;
  const auto job = [&](const TensorView& from, const TensorView& to, bool of_queries) {
    const bool is_new = plan_.pass == Pass::decode;
    return rope_job(from, to, of_queries ? a.rope_pos_q : a.rope_pos_k, p.rope, rotated_dim(p),
                    of_queries ? device::rope::kQueries
                    : is_new   ? device::rope::kNewKeys
                               : device::rope::kKeys);
  };
  before_.common = common_;
  before_.len_new = static_cast<int>(p.len_new);
  set_rotation({p.rope, rotated_dim(p), a.rope_base, a.rope_pos_offset, a.rope_cos, a.rope_sin},
               before_);
  if (has_last_pass(plan_.pass, p)) {
    after_ = before_;
    after_.inverse = 1;
    after_.gradients = 1;
    Job* next = after_.jobs;
    if (p.dq) *next++ = job(tensors_.dq, a.dq, true);
    if (p.dk) *next++ = job(tensors_.dk, a.dk, false);
    if (last_pass_stores_dv(p)) {
      *next = rope_job(tensors_.dv, a.dv, {}, p.rope, 0, device::rope::kKeys);
    }
    launches.back().parameters = block_of(after_);
  }
  before_.jobs[0] = job(a.q, tensors_.q, true);
  if (copies_cache(plan_.pass, p)) {
    set_cache_jobs();
  } else if (p.rope == Rope::none) {
    // k is not copied.
  } else if (plan_.pass != Pass::decode) {
    before_.jobs[1] = job(a.k, tensors_.k, false);
  } else if (p.len_new > 0) {
    before_.jobs[1] = job(a.k_new, tensors_.k_new, false);
  }
  if (core::is_f8(p.dtype)) set_queries_descale(launches);
  launches.front().parameters = block_of(before_);
  if (plan_.pass != Pass::backward) return;
  for (KernelLaunch& launch : launches) {
    const std::string_view entry = launch.kernel->spec.entry;
    if (entry.starts_with("attn_bias_gradient") || entry.starts_with("attn_sink_gradient")) {
      launch.parameters = block_of(common_);
    }
  }
}

}  // namespace attn::cuda
