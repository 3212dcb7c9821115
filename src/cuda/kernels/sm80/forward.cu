// Forward: o and lse of one tile of queries, with mma.sync and cp.async (compute capability 8.0 and
// later). Algorithm: FlashAttention-2 (Dao 2023), section 3.1, with the options of
// docs/semantics.md that the Config enables.
//
// Grid: one block per (tile of queries, query head, sequence). The last tiles come first, because
// under a causal mask they have the most keys. Sequences that share a broadcast bias are scheduled
// consecutively, so all but the first hit in L2. A warp owns 16 or 32 of the block's queries. Warps
// share only the tiles of K and V, which pass through a ring of config::stages in shared memory.
// With 32 queries per warp each fragment of K and V feeds two products. With 16, shared-memory
// bandwidth bounds the kernel (docs/kernels/sm80.md).
//
// Config: dtype; dim_qk, dim_vo (rounded up; columns past the end of the tensor are zeros); tile_q,
// tile_kv, warps, stages, blocks (per SM, for the register budget), q_in_registers; precision (of
// f32); softcap, alibi, bias_type, mask, shared_entries, dropout; element_access (see
// sm80/tile.cuh). Shared memory: forward_shared.cuh. Measurements: docs/kernels/sm80.md.
#include "config.cuh"
#include "ptx/grid.cuh"
#include "sm80/forward_block.cuh"

using namespace sm80;
using namespace sm80::forward;

namespace {

// Address of the first key of the first tile that the block visits.
__device__ __forceinline__ const char* FirstRow(const StridedTensor& tensor, const Block& block,
                                                int head_kv, const Visibility& visibility) {
  return RowAddress(tensor, block.seq.idx,
                    block.seq.first_kv + 1ll * visibility.tile_begin * kTileKv, head_kv);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, config::blocks)
    attn_forward(const __grid_constant__ Arguments a) {
  ptx::WaitForPrimary();
  extern __shared__ __align__(1024) unsigned char memory[];
  const Block block = BlockOf(a);
  const Sequence& seq = block.seq;
  if (block.q0 >= seq.rows_q) return;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int head_kv = block.head / a.heads_per_kv;
  const unsigned base = ptx::SharedAddress(memory);
  const TileLoader<config::dim_qk, kTileQ, kThreads, kDtype> q_loader(
      a.q, a.dim_qk, RowAddress(a.q, seq.idx, seq.first_q + block.q0, block.head));
  q_loader.Load<kRolled>(base + kShared.q, 0, seq.len_q - block.q0);
  ptx::CopyCommit();

  const Visibility visibility(a, block, warp, reinterpret_cast<KeyRange*>(memory + kShared.ranges));
  const int tile_end = visibility.tile_end;
  using KStream = TileStream<config::dim_qk, kTileKv, kThreads, kDtype>;
  using VStream = TileStream<config::dim_vo, kTileKv, kThreads, kDtype>;
  KvPipeline pipeline(block, visibility, base,
                      KStream(a.k, a.dim_qk, FirstRow(a.k, block, head_kv, visibility)),
                      VStream(a.v, a.dim_vo, FirstRow(a.v, block, head_kv, visibility)));
  const ScoreInputs inputs(a, seq, block.head, block.q0, warp, base);
  const auto load_inputs = [&](int tile) {
    inputs.Load(a, seq, block.head, block.q0 + warp * kRows, tile * kTileKv, tile < tile_end);
  };
  load_inputs(visibility.tile_begin);
  pipeline.Start(visibility.tile_begin);
  const unsigned q_tile =
      base + kShared.q + static_cast<unsigned>(warp * kRows * QLayout::kRowBytes);
  QFragments q{};
  pipeline.WaitForQ();
  LoadQFragments(a, q_tile, q);

  Output o{};
  OnlineSoftmax softmax(a);
  for (int tile = visibility.tile_begin; tile < tile_end; ++tile) {
    pipeline.Advance(tile);
    const int i0 = block.q0 + warp * kRows;
    const int j0 = tile * kTileKv;
    const bool visible = visibility.IsVisible(j0);
    const bool partial = visibility.IsPartial(j0);
    TileBits<kTileKv / 16> bits;
    Scores s;
    PackedP p;
    const auto exponentiate = [&] {
      if (partial) HideByRange(visibility.ranges + warp * kRows, j0, s);
      softmax.Update(s, o);
      PackP(s, inputs.dropout, bits, 0, p);
    };
    if (visible) {
      bool done = false;
      if (kLazyRescale && softmax.all_rows_seen && !partial) {
        done = softmax.UpdateLazily(a, inputs, q, q_tile, KTile(base, tile), i0, j0, p);
      }
      if (!done) {
        ComputeScores(a, inputs, q, q_tile, KTile(base, tile), i0, j0, bits, s);
        // Exponentiating after the barrier would need separate registers for s and for the p of
        // UpdateLazily().
        if constexpr (kLazyRescale) exponentiate();
      }
    }
    pipeline.AfterScores(tile);
    if constexpr (kHasBias || kHasMask) {
      __syncwarp();  // all lanes have read bias and mask
      load_inputs(tile + 1);
    }
    if (visible) {
      if constexpr (!kLazyRescale) exponentiate();
      MultiplyPV(p, VTile(base, tile), o);
    }
  }

  ptx::CopyWait<0>();
  __syncthreads();  // all warps have read the tiles, which O overlays
  const int i0 = block.q0 + warp * kRows;
  FinalizeRows(a, block, i0, softmax, o);
  WriteOutput(a, block, i0, warp, base, o);
}
