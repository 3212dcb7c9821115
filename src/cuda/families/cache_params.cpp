// Parameters of caches; see cache_params.hpp.
#include "cuda/families/cache_params.hpp"

#include "core/divide_up.hpp"
#include "cuda/host/arguments.hpp"

namespace attn::cuda {

void add_append(CudaPlan& plan, const Problem& p) {
  if (p.len_new == 0) return;
  plan.add("passes/append_rows.cu", kAppendEntry, device::append_rows::kThreads,
           core::divide_up(p.batch * p.len_new * p.heads_kv, device::append_rows::kRows));
}

device::Cache cache_of(const Problem& p, const Arguments& tensors) {
  device::Cache cache;
  if (p.page_size > 0) {
    const TensorView& table = tensors.block_table;
    cache.table = static_cast<const int*>(table.address());
    cache.table_stride_batch = table.strides[0];
    cache.table_stride_page = table.strides[1];
    cache.page_size = static_cast<int>(p.page_size);
    cache.num_pages = static_cast<int>(tensors.k.shape[0]);
  }
  if (p.len_new > 0) {
    cache.len_new = static_cast<int>(p.len_new);
    cache.k_new = device_rows(tensors.k_new);
    cache.v_new = device_rows(tensors.v_new);
  }
  return cache;
}

device::Descale descale_of(const TensorView& view) {
  if (!view.given()) return {};
  const auto* base = static_cast<const float*>(view.address());
  if (view.rank == 2) return {base, view.strides[0], 0, view.strides[1]};
  return {base, view.strides[0], view.shape[1] == 1 ? 0 : view.strides[1], view.strides[2]};
}

}  // namespace attn::cuda
