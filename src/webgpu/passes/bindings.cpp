// Bindings and parameters that the kernels of all passes share.
#include <algorithm>

#include "webgpu/passes/attention.hpp"

namespace attn::webgpu {
namespace {

void bind_scores(const PreparedCall& prepared, Dispatch& dispatch, std::string_view name,
                 const View& view, const Extent& extent, const Block& block, StridedTensor& place,
                 U32& stride_kv) {
  const Block entries = block_of_entries(extent, block);
  bind_tensor(prepared, dispatch, name, view, entries, size_of(view.dtype), place);
  if (extent.per_entry > 1) place.batch = 0;
  if (view.given()) stride_kv = static_cast<U32>(view.stride_dim);
}

}  // namespace

Block block_of_entries(const Extent& extent, const Block& block) {
  if (extent.per_entry == 1) return block;
  return {extent.entry_of(block.batch), 1, block.head, block.heads};
}

AttentionParameters parameters_of(const PreparedCall& prepared, const Chunk& chunk,
                                  const Tiles& tiles) {
  const Problem& problem = prepared.problem();
  AttentionParameters p = prepared.common;
  p.first_batch = static_cast<U32>(chunk.q.batch);
  p.first_head_q = static_cast<U32>(chunk.q.head);
  p.first_head_kv = static_cast<U32>(chunk.kv.head);
  p.tiles_at = tiles.tiles_at;
  p.keys_at = tiles.keys_at;
  p.tiles_q = tiles.count_q(problem);
  p.tiles_kv = tiles.count_kv(problem);
  return p;
}

Binding bind(const PreparedCall& prepared, const View& view, const Block& block,
             std::int64_t unit) {
  return bind(view, block, unit, prepared.facts().storage_alignment);
}

Operand stand_in(const PreparedCall& prepared) {
  View any = rows_view(prepared.arguments.q);
  if (!any.given()) any = rows_view(prepared.arguments.k);
  Operand operand = bind(prepared, any, {}, 4).operand;
  operand.size = std::min<std::uint64_t>(operand.size, 16);
  return operand;
}

void bind_tensor(const PreparedCall& prepared, Dispatch& dispatch, std::string_view name,
                 const View& view, const Block& block, std::int64_t unit, StridedTensor& place) {
  if (!view.given()) return dispatch.bind(name, stand_in(prepared));
  const Binding binding = bind(prepared, view, block, unit);
  dispatch.bind(name, binding.operand);
  place = binding.place;
}

void bind_qkv(const PreparedCall& prepared, const Block& queries, const Block& keys,
              Dispatch& dispatch, AttentionParameters& p) {
  bind_tensor(prepared, dispatch, "q", prepared.q, queries, 16, p.q);
  bind_tensor(prepared, dispatch, "k", prepared.k, keys, 16, p.k);
  bind_tensor(prepared, dispatch, "v", prepared.v, keys, 16, p.v);
  dispatch.bind("info", prepared.info);
}

void bind_bias(const PreparedCall& prepared, const Block& block, Dispatch& dispatch,
               AttentionParameters& p) {
  bind_scores(prepared, dispatch, "bias", prepared.bias, prepared.problem().bias, block, p.bias,
              p.bias_kv);
}

void bind_mask(const PreparedCall& prepared, const Block& block, Dispatch& dispatch,
               AttentionParameters& p) {
  bind_scores(prepared, dispatch, "mask", prepared.mask, prepared.problem().mask, block, p.mask,
              p.mask_kv);
}

}  // namespace attn::webgpu
