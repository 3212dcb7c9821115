// Decode: o and lse of few queries that attend to many keys, contiguous or in pages, by mma.sync
// and cp.async (8.0 and later). Bound by the memory that holds K and V, which are read once.
//
// Grid: one block for each (tile of rows, split of the keys, key head, sequence). The queries of a
// key head's group of query heads are the rows of one tile (decode_rows.cuh). A block's groups of
// warps take tiles of keys in turn, each with a softmax and a ring of its own (decode_keys.cuh). At
// the end the groups' results are merged, and by the last block the splits' (decode_merge.cuh).
//
// Config: dtype; kv_type, of K and V in memory: dtype or an 8-bit type (decode_cache.cuh);
// descale_rows: a factor for each row of K and V; dim_qk =
// dim_vo (rounded up; columns past the tensor's are zeros); tile_q rows; tile_kv keys; warps,
// stages, blocks (per SM); paged; options (decode_rows.cuh; alibi, bias_type and shared_entries, of
// shared/score.cuh, go with it), softcap, dropout (with options); element_access (see
// sm80/tile.cuh). Shared memory: decode_params.cuh. docs/kernels/decode.md.
#include "config.cuh"
#include "ptx/grid.cuh"
#include "sm80/decode_dropout.cuh"
#include "sm80/decode_keys.cuh"
#include "sm80/decode_merge.cuh"
#include "sm80/decode_scores.cuh"

namespace {

using namespace sm80;
using namespace sm80::decode;

// The group's tiles of the span, one after the other.
__device__ __forceinline__ void VisitKeys(const DecodeParams& p, const Block& block,
                                          const Span& span, const Visibility& visibility,
                                          unsigned base, OnlineSoftmax& softmax,
                                          ValueUnit& value_unit, Output& o) {
  constexpr int kStep = kGroups * kTileKv;  // from one tile of the group to its next
  KeyStream stream(p, block, base);
  const int first = FirstKey(span) + GroupIdx() * kTileKv;
  int j_load = first;
  int stage_load = 0;
  // Commits one group per tile, empty past the last, so that the count of groups says which tiles
  // have arrived.
  const auto load_next = [&] {
    if (j_load < span.end) stream.Load(j_load, stage_load);
    ptx::CopyCommit();
    j_load += kStep;
    stage_load = stage_load + 1 == kStages ? 0 : stage_load + 1;
    stream.LookUp(j_load);
  };
  stream.LookUp(j_load);
#pragma unroll 1
  for (int ahead = 0; ahead < kStages - 1; ++ahead) load_next();

  QFragments q;
  const QueryUnits units = LoadQ(p.common, block, base, q);
  const ScoreInputs inputs(p, block, units);
  const RowDropout dropout(p.common, block);
  int stage = 0;
#pragma unroll 1
  for (int j0 = first; j0 < span.end; j0 += kStep) {
    ptx::CopyWait<kStages - 2>();
    SyncGroup();  // the tile has arrived, and all have left the one that the next load replaces
    load_next();
    Scores s;
    ComputeScores(p.common, inputs, q, base, stream.KTile(stage), stream.ScalesAt(stage), j0, s);
    if constexpr (kPaged) stream.HideMissing(stage, s);
    if (visibility.IsPartial(j0)) visibility.Hide(j0, s);
    softmax.Update(s, o);
    dropout.Apply(p.common, j0, s);
    if constexpr (kDescaleRows) value_unit.Apply(stream.ScalesAt(stage) + kTileKv * 4, s, o);
    MultiplyPV(s, stream.VTile(stage), o);
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
  ptx::CopyWait<0>();
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, config::blocks)
    attn_decode(const __grid_constant__ DecodeParams p) {
  ptx::WaitForPrimary();
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned base = ptx::SharedAddress(memory);
  const Block block = BlockOf(p);
  if (block.num_rows <= 0) return;
  Visibility visibility(p, block);
  const Span span = SpanOf(p, block.split, visibility.tile);
  if (span.split >= span.num_splits) return;
  visibility.Clip(span);

  Output o{};
  OnlineSoftmax softmax(p.common);
  ValueUnit value_unit;
  VisitKeys(p, block, span, visibility, base, softmax, value_unit, o);
  __syncthreads();  // all warps have left the tiles, which o replaces
  const float factor_v = kDescaleRows ? value_unit.OfOutput() : DescaleOf(p.descale_v, block);
  StageRows(p.common, base, softmax, factor_v, o);
  __syncthreads();
  Finish(p, block, span, base);
}
