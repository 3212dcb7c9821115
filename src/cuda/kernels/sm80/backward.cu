// Backward: dK and dV of one tile of keys, and its contribution to dQ, with mma.sync and cp.async
// (compute capability 8.0 and later). Algorithm: FlashAttention-2 (Dao 2023), section 3.1.2, with
// the options of docs/semantics.md that the Config enables.
//
// Grid: one block per (tile of keys, key head, sequence). Tiles of keys run from first to last, or
// from last to first if the call is deterministic. A block keeps K, V and f32 dK, dV of its keys
// and visits the tiles of queries that see them, for each query head of the key head, so dK and dV
// need no further sum over heads. S and dP are computed transposed (keys are rows), because P^T and
// dS^T, packed pairwise, are then the A fragments of dV += P^T dO and dK += dS^T Q. The Config
// decides how warps share the work:
//   p_ds_in_smem = 0  A warp owns 16 or 32 keys with all of their dims. Only dS passes through
//                     shared memory, for dQ. Scores are computed for one chunk of queries at a
//                     time, so that S and dP take few registers next to dK and dV.
//   p_ds_in_smem = 1  P and dS pass through shared memory, and warps divide the keys and dims of
//                     dK and dV. Used above dim 64, where dK and dV of 32 keys exceed a warp's
//                     registers. Above dim 256 tiles are small: only the first warps may have
//                     scores to compute, and the single stage is reloaded while dQ is computed.
//   split_dk_dv       Half of the warps accumulate dV, the others dK, of up to 64 keys each, so
//                     that each fragment feeds more products.
//   split_s_dp        S and dP are computed by different warps, for the same reason.
// After each tile of queries, its dQ is added to dq_accum in global memory, in the order of
// dq_semaphore if the call is deterministic (passes/backward_postprocess.cu converts dq_accum to
// dq). With bias_gradient, dS is added to dbias_accum (passes/bias_gradient_convert.cu), only for
// biases that do not need a fixed order of sums.
//
// Config: dtype; dim_qk, dim_vo (rounded up); tile_q, tile_kv, warps, stages, blocks; p_ds_in_smem,
// split_dk_dv, split_s_dp; chunk (queries per chunk of scores, 16 or 32); kv_in_registers (keeps K
// and V fragments; only without p_ds_in_smem); softcap, alibi, bias_type, bias_gradient, mask,
// shared_entries, dropout, element_access. Shared memory: backward_shared.cuh. Measurements:
// docs/kernels/sm80.md.
#include "config.cuh"
#include "ptx/grid.cuh"
#include "sm80/backward_accum.cuh"
#include "sm80/backward_epilogue.cuh"
#include "sm80/backward_queries.cuh"

namespace {

using namespace sm80;
using namespace sm80::backward;

// Accumulates dV before dP is computed, so that exponentials overlap with products. Used with
// softcap only: its extra arithmetic makes this 13 to 14 % faster; without softcap it changes
// nothing.
constexpr bool kEarlyDv = config::softcap != 0 && !kSplitSDp;

// Loads K and V of the block, once.
__device__ __forceinline__ void LoadKeys(const Arguments& a, const Block& block, unsigned base) {
  const Sequence& seq = block.seq;
  TileLoader<kDimQk, kTileKv, kThreads, kDtype>(
      a.k, a.dim_qk, RowAddress(a.k, seq.idx, seq.first_kv + block.j0, block.head_kv))
      .template Load<1>(base + kShared.k, 0, seq.len_kv - block.j0);
  TileLoader<kDimVo, kTileKv, kThreads, kDtype>(
      a.v, a.dim_vo, RowAddress(a.v, seq.idx, seq.first_kv + block.j0, block.head_kv))
      .template Load<1>(base + kShared.v, 0, seq.len_kv - block.j0);
  ptx::CopyCommit();
}

// Computes P and dS of the warp's part of a tile, one chunk of queries at a time. With p_ds_in_smem
// both are stored to shared memory. Otherwise the warp multiplies them into dv and dk at once and
// stores only dS, for dQ.
__device__ __forceinline__ void ComputeScores(const Arguments& a, const ScoreContext& context,
                                              const Sequence& seq, int head, unsigned base,
                                              unsigned q_tile, unsigned dout_tile,
                                              Accumulator<kPartQk>& dk, Accumulator<kPartVo>& dv) {
  const unsigned k_tile = base + kShared.k;
  const unsigned v_tile = base + kShared.v;
  const unsigned ds_tile = base + kShared.ds;
  const int score_key = context.key;
  const int score_query = context.query;
  if (kScoringWarps < kWarps && Warp() >= kScoringWarps) return;
  KvFragments kv;
  kv.Load(k_tile, v_tile, score_key);
#pragma unroll 1
  for (int query = 0; query < kScoreQueries; query += kChunk) {
    ChunkBits bits;
    GenerateChunkBits(context, query, bits);
    Scores s;
    Scores dp;
    LseDelta lse_delta;
    Fragments p_pairs;
    Fragments ds_pairs;
    if constexpr (kSplitSDp) {
      MultiplySplit(k_tile, v_tile, score_key, q_tile, dout_tile, score_query, base + kShared.swap,
                    s, dp);
    } else {
      MultiplyChunk<kDimQk>(kv.k, k_tile, score_key, q_tile, score_query + query, s);
    }
    if constexpr (!kEarlyDv && !kSplitSDp) {
      MultiplyChunk<kDimVo>(kv.v, v_tile, score_key, dout_tile, score_query + query, dp);
    }
    LoadLseDelta(context, query, lse_delta);
    ComputeP(a, context, query, lse_delta, bits, s, p_pairs);
    const auto consume_p = [&] {
      if constexpr (kPDsInSmem && kF32) {
        StoreTransposedF32([&](int m, int n, int e) { return p_pairs[m][n][e]; }, base + kShared.p,
                           score_key, score_query + query);
      } else if constexpr (kPDsInSmem) {
        StoreTransposed(p_pairs, base + kShared.p, score_key, score_query + query);
      } else {
        AccumulateChunk<kDimVo, kPartVo>(p_pairs, dout_tile, query, dv);
      }
    };
    if constexpr (kEarlyDv) {
      consume_p();
      MultiplyChunk<kDimVo>(kv.v, v_tile, score_key, dout_tile, score_query + query, dp);
      LoadLseDelta(context, query, lse_delta);
    }
    ComputeDs(a, context, query, lse_delta, bits, s, dp, ds_pairs);
    if constexpr (config::bias_gradient != 0) AddDbias(a, context, seq, head, query, dp);
    if constexpr (kF32) {
      StoreTransposedF32([&](int m, int n, int e) { return __float_as_uint(dp[m][n][e]); }, ds_tile,
                         score_key, score_query + query);
    } else {
      StoreTransposed(ds_pairs, ds_tile, score_key, score_query + query);
    }
    if constexpr (!kEarlyDv) consume_p();
    if constexpr (!kPDsInSmem) {
      AccumulateChunk<kDimQk, kPartQk>(ds_pairs, q_tile, query, dk);
    }
  }
}

// f32 with p_ds_in_smem: sums += X Y. X: the warp's keys, from `key`, in a tile [keys][queries]. Y:
// the dims of sums, from `dim`, in a tile [queries][dims].
__device__ __forceinline__ void AccumulateRowsF32(unsigned x_tile, int key, unsigned y_tile,
                                                  int dim, Accumulator<kPartQk>& sums) {
#pragma unroll 1
  for (int query = 0; query < kTileQ; query += 8 * kStepsF32) {
    unsigned x[kStepsF32][kBlocksM][kParts][4];
#pragma unroll
    for (int step = 0; step < kStepsF32; ++step)
#pragma unroll
      for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int column = query + 8 * step + Lane() % 4 * 2;
          const uint2 pair = ptx::LoadShared64(
              x_tile + PDsLayout::At(key + 16 * m + 8 * r + Lane() / 4, column / kChunkElements) +
              static_cast<unsigned>(column % kChunkElements * kElementBytes));
          unsigned parts[2][kParts];
          Split<kRoundsTiles>(__uint_as_float(pair.x), parts[0]);
          Split<kRoundsTiles>(__uint_as_float(pair.y), parts[1]);
#pragma unroll
          for (int part = 0; part < kParts; ++part) {
            x[step][m][part][r] = parts[0][part];
            x[step][m][part][r + 2] = parts[1][part];
          }
        }
    MultiplyStepsF32<kDimQk, kRoundsTiles>(x, y_tile, query, dim, sums);
  }
}

// With p_ds_in_smem: dV += P^T dO and dK += dS^T Q, with P and dS from shared memory. With
// split_dk_dv a warp accumulates only one of the two, in `dk`.
__device__ __forceinline__ void AccumulateDkDv(unsigned base, unsigned q_tile, unsigned dout_tile,
                                               Accumulator<kPartQk>& dk, Accumulator<kPartVo>& dv) {
  const unsigned p_tile = base + kShared.p;
  const unsigned ds_tile = base + kShared.ds;
  const auto lane = FragmentLane<kTileQ>::RowsFirst();
  const int key = DkDvWarp() / kDkDvParts * kDkDvKeys;
  const int part = DkDvWarp() % kDkDvParts;
  const unsigned x_tile = AccumulatesDv() ? p_tile : ds_tile;
  const unsigned y_tile = AccumulatesDv() ? dout_tile : q_tile;
  if constexpr (kF32) return AccumulateRowsF32(x_tile, key, y_tile, part * kPartQk, dk);
#pragma unroll
  for (int k = 0; k < kTileQ / 16; ++k) {
    unsigned x[kBlocksM][4];
#pragma unroll
    for (int m = 0; m < kBlocksM; ++m) {
      ptx::LoadMatrix(x[m], lane.At(kSplitDkDv ? x_tile : p_tile, key + 16 * m, 2 * k));
    }
    if constexpr (kSplitDkDv) {
      Accumulate<kDimQk, kPartQk>(x, y_tile, 16 * k, part, dk);
    } else {
      Accumulate<kDimVo, kPartVo>(x, dout_tile, 16 * k, part, dv);
#pragma unroll
      for (int m = 0; m < kBlocksM; ++m) {
        ptx::LoadMatrix(x[m], lane.At(ds_tile, key + 16 * m, 2 * k));
      }
      Accumulate<kDimQk, kPartQk>(x, q_tile, 16 * k, part, dk);
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, config::blocks)
    attn_backward(const __grid_constant__ Arguments a) {
  ptx::WaitForPrimary();
  extern __shared__ __align__(1024) unsigned char memory[];
  const Block block = BlockOf(a);
  const Sequence& seq = block.seq;
  if (block.j0 >= seq.rows_kv) return;
  const unsigned base = ptx::SharedAddress(memory);
  const TilesToVisit tiles(a, block, memory);
  LoadKeys(a, block, base);
  ScoreContext context(block.j0, base);
  QueryPipeline pipeline(a, block, base);
  char* dq_accum = nullptr;  // of the sequence
  if (a.dq_accum.base != nullptr) {
    dq_accum = RowAddress(a.dq_accum, seq.idx, DqAccumFirstRow(a, seq), 0);
  }
  const DqSemaphore semaphore(a, memory);
  Accumulator<kPartQk> dk{};  // with split_dk_dv: dV in the first half of the warps
  Accumulator<kPartVo> dv{};
  const long long first_row = a.packed_q != 0 ? seq.first_q : 1ll * seq.idx * a.max_len_q;

  for (int window = 0; window < tiles.num_tiles(); window += attn::device::kBackwardWindow) {
    const int count = min(attn::device::kBackwardWindow, tiles.num_tiles() - window);
    tiles.List(window, count);
    // Visits all tiles of the window for one query head, then for the next one.
    int head = block.head_kv * a.heads_per_kv;
    const int head_end = head + a.heads_per_kv;
    int tile = tiles.Next(0, count);
    if (tile == count) continue;
    pipeline.LoadScoreInputs(a, context, head, window + tile, head < head_end);
    pipeline.Load(a, head, window + tile, 0, head < head_end);
    for (int stage = 0; head < head_end; stage ^= kStages - 1) {
      int next_tile = tiles.Next(tile + 1, count);
      int next_head = head;
      if (next_tile == count) {
        next_tile = tiles.Next(0, count);
        ++next_head;
      }
      pipeline.Wait(stage);
      __syncthreads();  // the tile has arrived; the next stage and the last dS are free
      pipeline.LoadIfStages<2>(a, next_head, window + next_tile, stage ^ 1, next_head < head_end);
      const int i0 = (window + tile) * kTileQ;
      const unsigned q_tile = pipeline.QTile(stage);
      const unsigned dout_tile = pipeline.DoutTile(stage);
      context.SetTile(a, seq, head, i0, first_row, base, tiles.IsPartial(tile));
      ComputeScores(a, context, seq, head, base, q_tile, dout_tile, dk, dv);
      semaphore.Fence();
      __syncthreads();  // all dS (and P) are stored; the last step's sums are visible
      semaphore.Release();
      pipeline.LoadScoreInputs(a, context, next_head, window + next_tile, next_head < head_end);
      const auto load_next = [&] {
        pipeline.LoadIfStages<1>(a, next_head, window + next_tile, 0, next_head < head_end);
      };
      if constexpr (!kPDsInSmem) load_next();
      ptx::CopyCommit();
      if constexpr (kPDsInSmem) AccumulateDkDv(base, q_tile, dout_tile, dk, dv);
      if constexpr (kPDsInSmem && kStages == 1) __syncthreads();  // all warps have read Q and dO
      if constexpr (kPDsInSmem) load_next();
      if (dq_accum != nullptr) {
        float* const accum = reinterpret_cast<float*>(dq_accum + i0 * (kDimQk * 4ll) +
                                                      head * a.dq_accum.stride_head);
        AddDqOfTile(base, accum, seq.len_q - i0, [&] {
          if (!semaphore.enabled()) return;
          // Blocks of later key tiles that see these queries add first.
          semaphore.Acquire(
              a.dq_semaphore + (1ll * seq.idx * a.heads_q + head) * tiles.num_tiles() + window +
                  tile,
              static_cast<unsigned>(tiles.NumKeyTiles(window + tile) - 1 - block.tile_idx));
        });
      }
      head = next_head;
      tile = next_tile;
    }
  }
  ptx::CopyWait<0>();
  semaphore.Fence();
  __syncthreads();  // K has been read for the last dQ
  semaphore.Release();
  WriteKeyGradients(a, seq, block.j0, block.head_kv, dk, dv, base);
}
