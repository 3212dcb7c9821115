// Decode: o and lse of few queries that attend to many keys, in a contiguous or paged cache, with
// mma.sync and cp.async (compute capability 8.0 and later). Bound by memory bandwidth: K and V are
// read once.
//
// Grid: one block per (tile of rows, split of the keys, key head, sequence). The rows of a tile are
// the queries of all query heads that share the key head (decode_rows.cuh). The warps of a block
// form groups. Each group has its own ring of stages and its own softmax, and processes every
// kGroups-th tile of keys (decode_keys.cuh). At the end the groups' results are merged in the
// block; the last block to finish merges the splits (decode_merge.cuh).
//
// Config: dtype; kv_type (of K and V in memory: dtype or an 8-bit type, decode_cache.cuh);
// descale_rows (a factor for each row of K and V); dim_qk = dim_vo (rounded up; columns past the
// end of the tensor are zeros); tile_q rows; tile_kv keys; warps, stages, blocks (per SM); paged;
// options (decode_rows.cuh; requires alibi, bias_type and shared_entries of shared/score.cuh),
// softcap, dropout (requires options); element_access (see sm80/tile.cuh). Shared memory:
// decode_params.cuh. Measurements: docs/kernels/decode.md.
#include "config.cuh"
#include "ptx/grid.cuh"
#include "sm80/decode_dropout.cuh"
#include "sm80/decode_keys.cuh"
#include "sm80/decode_merge.cuh"
#include "sm80/decode_scores.cuh"

namespace {

using namespace sm80;
using namespace sm80::decode;

// The main loop: visits the group's tiles of the span in order.
__device__ __forceinline__ void VisitKeys(const DecodeParams& p, const Block& block,
                                          const Span& span, const Visibility& visibility,
                                          unsigned base, OnlineSoftmax& softmax,
                                          ValueUnit& value_unit, Output& o) {
  constexpr int kStep = kGroups * kTileKv;  // keys between two tiles of a group
  KeyStream stream(p, block, base);
  const int first = FirstKey(span) + GroupIdx() * kTileKv;
  int j_load = first;
  int stage_load = 0;
  // Commits one group of copies per tile, empty past the last tile, so that the number of pending
  // groups tells which tiles have arrived.
  const auto load_next = [&] {
    if (j_load < span.end) stream.Load(j_load, stage_load);
    ptx::CopyCommit();
    j_load += kStep;
    stage_load = stage_load + 1 == kStages ? 0 : stage_load + 1;
    stream.LookUp(j_load);
  };
  stream.LoadTable(span, base);
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
    SyncGroup();  // the tile has arrived; all warps have read the tile that is replaced next
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
  __syncthreads();  // all warps have read the tiles; o overlays them
  const float factor_v = kDescaleRows ? value_unit.OutputFactor() : DescaleOf(p.descale_v, block);
  StageRows(p.common, base, softmax, factor_v, o);
  __syncthreads();
  Finish(p, block, span, base);
}
