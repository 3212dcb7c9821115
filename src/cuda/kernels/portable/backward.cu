// The backward: dK and dV of a tile of keys, and its part of dQ, by mma.sync and cp.async (8.0 and
// later). FlashAttention-2 (Dao 2023), section 3.1.2, with every option of docs/semantics.md that a
// Config switches on.
//
// Grid: one block for each (tile of keys, key head, batch entry), the first tile first, or last
// where deterministic. A block keeps K, V and f32 dK, dV of its keys and walks over the tiles of
// queries that see them, for each query head of the group: no sum over heads is left for later.
// S and dP are computed transposed (keys are rows), because then P^T and dS^T, packed pairwise, are
// A fragments of dV += P^T dO and dK += dS^T Q as they stand. Two ways to share the work:
//   direct    a warp owns 16 or 32 keys with all of their dims; only dS goes through shared memory,
//             for dQ. A chunk of queries at a time, so that S and dP take few registers beside dK
//             and dV.
//   exchange  P and dS go through shared memory and the warps share out keys and dims: where dK and
//             dV of 32 keys don't fit a warp's registers (dims above 64). With `exchange` 2 half of
//             the warps have dV and the others dK, of 64 keys each, so that a fragment that is read
//             feeds more products; with 3 also S and dP are of different warps.
// dQ of each step is added to f32 sums in global memory (finish.cu makes dq of them), four of a
// lane an instruction; deterministic: by the tiles of keys in turn, from the last to the first,
// which under a causal mask is the order in which they reach a tile of queries.
// dbias, where each element is of a tile of its own and sums need no order: ds is added to f32 sums
// likewise (bias_gradient_finish.cu makes dbias of them).
// Which tiles of queries are visited, and which of those need the ranges of their rows, is read off
// q_ranges (prepare.cu) into two bit sets first.
//
// Config: dtype; dim_qk, dim_vo (rounded up); tile_q, tile_kv, warps, stages, blocks; exchange (0:
// direct); chunk (queries whose scores are computed at once, 16 or 32); kv_in_registers (direct: K
// and V fragments); softcap, alibi, bias_type, bias_gradient (dbias_sum is there), mask, dropout,
// by_elements. Shared memory: backward_shared.cuh. Measured: docs/kernels/portable.md.
#include "config.cuh"
#include "portable/backward_scores.cuh"
#include "portable/backward_sums.cuh"
#include "ptx/memory.cuh"
#include "shared/output.cuh"

namespace {

using namespace backward;

// P is handed out before dP is computed, so that exponentials and products overlap: worth it where
// softcap makes more of those.
constexpr bool kEarlyP = config::softcap != 0 && !kScoresApart;

// Apart: each half of the threads writes the result that it has, so that the code is there once,
// 3 % of short rows' time. Not with bias or mask, where that spills in the loop.
constexpr bool kHalves = kApart && !kHasBias && !kHasMask;

// The warp's place among those that share out dK or dV.
__device__ __forceinline__ int OutWarp() {
  return kApart ? Warp() % (kWarps / 2) : Warp();
}
// Apart: whether it has dV.
__device__ __forceinline__ bool HasDv() {
  return Warp() < kWarps / 2;
}

// What the warp has of dK or dV, if it is its `mine`, times `factor`, to rows in shared memory.
template <int kPart, int kColumns, class Staged>
__device__ __forceinline__ void PutKeyGradient(const float (&sums)[kBlocksM][kColumns][4],
                                               float factor, bool mine, const Staged& staged) {
  static_assert(kColumns == kPart / 8);
  if (!mine) return;
  const auto part = staged.template PartAt<kPart>(OutWarp() / kOutParts * kOutKeys,
                                                  OutWarp() % kOutParts * kPart);
#pragma unroll
  for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int d = 0; d < kPart / 8; ++d) {
        part.Put(16 * m + 8 * r, 8 * d, sums[m][d][2 * r] * factor, sums[m][d][2 * r + 1] * factor);
      }
}

// The first bit set from `from` on, or `count`.
__device__ __forceinline__ int NextBit(const unsigned* words, int from, int count) {
  while (from < count) {
    const unsigned rest = words[from / 32] >> (from % 32);
    if (rest != 0) return from + __ffs(static_cast<int>(rest)) - 1;
    from = (from | 31) + 1;
  }
  return count;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, config::blocks)
    attn_backward(const __grid_constant__ Arguments a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned tiles = static_cast<unsigned>((a.max_len_kv + kTileKv - 1) / kTileKv);
  // Tiles count fastest, before them entries that share the sums of a bias's gradient, so that L2
  // has what they add to.
  const bool share = config::bias_gradient != 0 && a.dbias_sum_stride_batch == 0;
  const unsigned sharing = share ? static_cast<unsigned>(a.batch) : 1;
  const unsigned place = blockIdx.x / sharing % tiles;
  const unsigned heads = blockIdx.x / sharing / tiles;
  const int tile_idx = static_cast<int>(a.turns != nullptr ? tiles - 1 - place : place);
  const int j0 = tile_idx * kTileKv;
  const int head_kv = static_cast<int>(heads % static_cast<unsigned>(a.heads_kv));
  const Entry entry = EntryOf(
      a, static_cast<int>(heads / static_cast<unsigned>(a.heads_kv) + blockIdx.x % sharing));
  if (j0 >= entry.rows_kv) return;

  const unsigned base = ptx::SharedAddress(memory);
  auto* visited = reinterpret_cast<unsigned*>(memory + kShared.visited);
  auto* cut = reinterpret_cast<unsigned*>(memory + kShared.cut);
  const unsigned k_tile = base + kShared.k;
  const unsigned v_tile = base + kShared.v;
  const unsigned ds_tile = base + kShared.ds;
  const unsigned p_tile = base + kShared.p;
  const int num_q_tiles = (a.max_len_q + kTileQ - 1) / kTileQ;
  const int4* q_ranges = reinterpret_cast<const int4*>(a.q_ranges) + 1ll * entry.b * num_q_tiles;
  // Of the first window, asked for before the tiles that are long under way.
  const int4 first_range =
      static_cast<int>(threadIdx.x) < num_q_tiles ? q_ranges[threadIdx.x] : int4{};
  TileLoader<kDimQk, kTileKv, kThreads, kDtype>(
      a.k, a.dim_qk, RowAddress(a.k, entry.b, entry.first_kv + j0, head_kv))
      .template Load<1>(k_tile, 0, entry.len_kv - j0);
  TileLoader<kDimVo, kTileKv, kThreads, kDtype>(
      a.v, a.dim_vo, RowAddress(a.v, entry.b, entry.first_kv + j0, head_kv))
      .template Load<1>(v_tile, 0, entry.len_kv - j0);
  ptx::CopyCommit();

  const int score_key = Warp() % kScoreWarps * kScoreKeys;  // of the tile
  const int score_query = Warp() / kScoreWarps * kScoreQueries;
  Step step;
  step.bias =
      base + kShared.bias + static_cast<unsigned>(Warp() * kScoreQueries * kScoreKeys * kBiasBytes);
  step.mask = base + kShared.mask + static_cast<unsigned>(Warp() * kScoreQueries * kScoreKeys);
  step.j0 = j0 + score_key;
  // This thread's places in query 0 of head 0; a visit adds its tile's and head's.
  const TileLoader<kDimQk, kTileQ, kThreads, kDtype> q_loader(
      a.q, a.dim_qk, RowAddress(a.q, entry.b, entry.first_q, 0));
  const TileLoader<kDimVo, kTileQ, kThreads, kDtype> dout_loader(
      a.dout, a.dim_vo, RowAddress(a.dout, entry.b, entry.first_q, 0));
  const char* stats = RowAddress(a.stats, entry.b, entry.first_q, 0);
  char* dq_sum = nullptr;  // of the entry; rows lie one after the other
  if (a.dq_sum.base != nullptr) dq_sum = RowAddress(a.dq_sum, entry.b, FirstSumOf(a, entry), 0);

  // Turns of a deterministic sum: each warp waits for the block's, which is given on a step later,
  // when the sums are long in memory and nobody waits for them.
  auto** given = reinterpret_cast<unsigned**>(memory + kShared.turn);
  if (threadIdx.x == 0) *given = nullptr;
  const auto give_turn = [&] {
    if (a.turns == nullptr || threadIdx.x != 0 || *given == nullptr) return;
    ptx::AddRelease(*given, 1);
    *given = nullptr;
  };

  Sums<kPartQk> dk{};  // apart: or dV
  Sums<kPartVo> dv{};
  // Row r of an entry's queries has its range at row_ranges + 2 * (first_row + r).
  const long long first_row = a.packed_q != 0 ? entry.first_q : 1ll * entry.b * a.max_len_q;

  for (int window = 0; window < num_q_tiles; window += attn::device::kBackwardWindow) {
    const int count = min(attn::device::kBackwardWindow, num_q_tiles - window);
    // The bits of the window before have been read.
    __syncthreads();
    // Rolled where that leaves less to spill; direct, it spills more.
#pragma unroll(kExchange ? 1 : attn::device::kBackwardWindow / kThreads)
    for (int n = static_cast<int>(threadIdx.x); n < (count + 31) / 32 * 32; n += kThreads) {
      bool sees = false;
      bool sees_all = true;
      if (n < count) {
        const int4 tile = window + n < kThreads ? first_range : q_ranges[window + n];
        sees = tile.x < j0 + kTileKv && tile.y > j0;
        sees_all = tile.z <= j0 && tile.w >= j0 + kTileKv;
      }
      const unsigned sees_bits = __ballot_sync(~0u, sees);
      const unsigned cut_bits = __ballot_sync(~0u, !sees_all);
      if (Lane() == 0) {
        visited[n / 32] = sees_bits;
        cut[n / 32] = cut_bits;
      }
    }
    __syncthreads();

    // Visits: query heads of the group outside, tiles inside. `stage` alternates.
    int head = head_kv * a.group;
    const int last_head = head + a.group;
    int tile = NextBit(visited, 0, count);
    if (tile == count) continue;
    int stage = 0;
    const auto is_cut = [&](int at_tile) { return (cut[at_tile / 32] >> (at_tile % 32) & 1) != 0; };
    const auto fetch = [&](int at_head, int at_tile, int to_stage) {
      if (at_head < last_head) {
        const int i = (window + at_tile) * kTileQ;
        const int left = entry.len_q - i;
        q_loader.Load(base + kShared.q + static_cast<unsigned>(to_stage * kTileQ * kDimQk * 2),
                      i * a.q.stride_row + at_head * a.q.stride_head, left);
        dout_loader.Load(
            base + kShared.dout + static_cast<unsigned>(to_stage * kTileQ * kDimVo * 2),
            i * a.dout.stride_row + at_head * a.dout.stride_head, left);
      }
      ptx::CopyCommit();
    };
    // What only scores are made of: there is one place for it, free when all have their scores.
    const auto fetch_stats = [&](int at_head, int at_tile) {
      const int row = static_cast<int>(threadIdx.x);
      if (at_head < last_head && row < kTileQ) {
        const int i = (window + at_tile) * kTileQ;
        const bool there = i + row < entry.len_q;
        ptx::CopyAsyncSmall<8>(
            base + kShared.stats + static_cast<unsigned>(8 * row),
            there ? stats + (i + row) * 8ll + at_head * a.stats.stride_head : a.stats.base, there);
      }
    };
    const auto fetch_pairs = [&](int at_head, int at_tile) {
      if constexpr (kHasBias || kHasMask) {
        if (at_head < last_head) {
          const int i = (window + at_tile) * kTileQ + score_query;
          if constexpr (kHasBias) {
            BiasTile::Load(step.bias, a.bias, PairAddress(a.bias, entry.b, at_head, i, step.j0),
                           entry.len_q - i, entry.len_kv - step.j0);
          }
          if constexpr (kHasMask) {
            MaskTile::Load(step.mask, a.mask, PairAddress(a.mask, entry.b, at_head, i, step.j0),
                           entry.len_q - i, entry.len_kv - step.j0);
          }
        }
      }
    };
    fetch_stats(head, tile);
    fetch_pairs(head, tile);
    fetch(head, tile, 0);

    while (head < last_head) {
      int next_tile = NextBit(visited, tile + 1, count);
      int next_head = head;
      if (next_tile == count) {
        next_tile = NextBit(visited, 0, count);
        ++next_head;
      }
      ptx::CopyWait<0>();
      __syncthreads();  // the tile is there, and the stage and dS of the step before are free
      fetch(next_head, next_tile, stage ^ 1);

      const int i0 = (window + tile) * kTileQ;
      const unsigned q_tile = base + kShared.q + static_cast<unsigned>(stage * kTileQ * kDimQk * 2);
      const unsigned dout_tile =
          base + kShared.dout + static_cast<unsigned>(stage * kTileQ * kDimVo * 2);
      step.scale = ScoreScaleOf(a, entry.b, head);
      if constexpr (config::dropout != 0) step.dropout = DropoutOf(a, entry.b, head);
      step.stats = base + kShared.stats + static_cast<unsigned>(8 * score_query);
      step.ranges = reinterpret_cast<const int2*>(a.row_ranges) + first_row + i0 + score_query;
      step.left = entry.len_q - i0 - score_query;
      step.i0 = i0 + score_query;
      step.first = static_cast<float>(step.i0 + entry.diag - step.j0);
      step.cut = is_cut(tile);

      constexpr bool kKeep = !kExchange && config::kv_in_registers != 0;
      unsigned k_kept[kKeep ? kDimQk / 16 : 1][kBlocksS][4];
      unsigned v_kept[kKeep ? kDimVo / 16 : 1][kBlocksS][4];
      if constexpr (kKeep) {
        const auto k_lane = FragmentLane<kDimQk>::RowsFirst();
        const auto v_lane = FragmentLane<kDimVo>::RowsFirst();
#pragma unroll
        for (int m = 0; m < kBlocksS; ++m) {
#pragma unroll
          for (int k = 0; k < kDimQk / 16; ++k) {
            ptx::LoadMatrix(k_kept[k][m], k_lane.At(k_tile, score_key + 16 * m, 2 * k));
          }
#pragma unroll
          for (int k = 0; k < kDimVo / 16; ++k) {
            ptx::LoadMatrix(v_kept[k][m], v_lane.At(v_tile, score_key + 16 * m, 2 * k));
          }
        }
      }
#pragma unroll 1
      for (int query = 0; query < kScoreQueries; query += kChunk) {
        ChunkDraws draws;
        DrawChunk(step, query, draws);
        Scores s;
        Scores dp;
        Stats stats;
        Fragments p_pairs;
        Fragments ds_pairs;
        if constexpr (kScoresApart) {
          MultiplyApart(k_tile, v_tile, score_key, q_tile, dout_tile, score_query,
                        base + kShared.pairs, s, dp);
        } else {
          MultiplyChunk<kDimQk>(k_kept, k_tile, score_key, q_tile, score_query + query, s);
        }
        if constexpr (!kEarlyP && !kScoresApart) {
          MultiplyChunk<kDimVo>(v_kept, v_tile, score_key, dout_tile, score_query + query, dp);
        }
        LoadStats(step, query, stats);
        Exponentiate(a, step, query, stats, draws, s, p_pairs);
        const auto hand_out_p = [&] {
          if constexpr (kExchange) {
            StoreTransposed(p_pairs, p_tile, score_key, score_query + query);
          } else {
#pragma unroll
            for (int k = 0; k < kBlocksN / 2; ++k) {
              Accumulate<kDimVo, kPartVo>(p_pairs[k], dout_tile, query + 16 * k, 0, dv);
            }
          }
        };
        if constexpr (kEarlyP) {
          hand_out_p();
          MultiplyChunk<kDimVo>(v_kept, v_tile, score_key, dout_tile, score_query + query, dp);
          LoadStats(step, query, stats);
        }
        Differentiate(a, step, query, stats, draws, s, dp, ds_pairs);
        if constexpr (config::bias_gradient != 0) {
          AddBias(a, step, entry, head, query, dp);
        }
        StoreTransposed(ds_pairs, ds_tile, score_key, score_query + query);
        if constexpr (!kEarlyP) hand_out_p();
        if constexpr (!kExchange) {
#pragma unroll
          for (int k = 0; k < kBlocksN / 2; ++k) {
            Accumulate<kDimQk, kPartQk>(ds_pairs[k], q_tile, query + 16 * k, 0, dk);
          }
        }
      }
      if (a.turns != nullptr) __threadfence();
      __syncthreads();  // dS (and P) of all keys are there, and the sums of the step before
      give_turn();
      fetch_stats(next_head, next_tile);
      fetch_pairs(next_head, next_tile);
      ptx::CopyCommit();

      float* const sums =
          reinterpret_cast<float*>(dq_sum + i0 * (kDimQk * 4ll) + head * a.dq_sum.stride_head);
      const auto enter = [&] {
        if (a.turns == nullptr) return;
        // The tiles of keys behind this one that see the queries come first.
        const int num_seen = (q_ranges[window + tile].y + kTileKv - 1) / kTileKv;
        const auto mine = static_cast<unsigned>(num_seen - 1 - tile_idx);
        unsigned* turn = a.turns + (1ll * entry.b * a.heads_q + head) * num_q_tiles + window + tile;
        if (Lane() == 0) {
          while (ptx::LoadAcquire(turn) != mine) {
          }
        }
        __syncwarp();
        if (threadIdx.x == 0) *given = turn;
      };
      if constexpr (kExchange) {
        constexpr int kSteps = kTileQ / 16;
        const auto lane = FragmentLane<kTileQ>::RowsFirst();
        const int key = OutWarp() / kOutParts * kOutKeys;
        const int part = OutWarp() % kOutParts;
        const unsigned x_tile = HasDv() ? p_tile : ds_tile;
        const unsigned y_tile = HasDv() ? dout_tile : q_tile;
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
          unsigned x[kBlocksM][4];
#pragma unroll
          for (int m = 0; m < kBlocksM; ++m) {
            ptx::LoadMatrix(x[m], lane.At(kApart ? x_tile : p_tile, key + 16 * m, 2 * k));
          }
          if constexpr (kApart) {
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
      if (dq_sum != nullptr) {
        QuerySums dq;
        MultiplyQuery(ds_tile, k_tile, dq);
        enter();
        AddQuery(sums, entry.len_q - i0, dq);
      }
      head = next_head;
      tile = next_tile;
      stage ^= 1;
    }
  }

  ptx::CopyWait<0>();
  if (a.turns != nullptr) __threadfence();
  __syncthreads();  // K has been read for the last dQ
  give_turn();
  const float dv_factor = config::dropout != 0 ? a.keep_scale * kDropped<kDtype> : 1.0f;
  const int num_rows = min(kTileKv, entry.rows_kv - j0);
  const bool plain = (a.dk.base == nullptr || IsPlain<kDtype>(a, a.dk, a.accumulate != 0)) &&
                     (a.dv.base == nullptr || IsPlain<kDtype>(a, a.dv, a.accumulate != 0));
  if constexpr (kHalves) {
    constexpr int kHalf = kThreads / 2;
    const int thread = ptx::ThreadAnew();
    const bool of_dv = thread < kHalf;
    const Rows& rows = of_dv ? a.dv : a.dk;
    const bool wanted = rows.base != nullptr;
    const float factor = of_dv ? dv_factor : a.scale;
    const int dim = of_dv ? a.dim_vo : a.dim_qk;
    char* const to = RowAddress(rows, entry.b, entry.first_kv + j0, head_kv);
    if (plain) {
      const PackedRows<kDimQk, kDtype, kTileKv, kHalf> packed{of_dv ? v_tile : k_tile};
      PutKeyGradient<kPartQk>(dk, factor, wanted, packed);
      __syncthreads();
      if (wanted) packed.Write(rows.stride_row, to, num_rows, dim, thread % kHalf);
    } else {
      const StagedRows<kDimQk, kDtype> staged{base + (of_dv ? kTileKv * kDimQk * 4 : 0)};
      PutKeyGradient<kPartQk>(dk, factor, wanted, staged);
      __syncthreads();
      if (wanted) {
        staged.Write(a, rows, to, num_rows, dim, a.accumulate != 0, thread % kHalf, kHalf);
      }
    }
    return;
  }
  const bool has_dk = a.dk.base != nullptr && (!kApart || !HasDv());
  const bool has_dv = a.dv.base != nullptr && (!kApart || HasDv());
  const auto& dv_sums = [&]() -> const auto& {
    if constexpr (kApart) {
      return dk;
    } else {
      return dv;
    }
  }();
  char* const dk_rows = RowAddress(a.dk, entry.b, entry.first_kv + j0, head_kv);
  char* const dv_rows = RowAddress(a.dv, entry.b, entry.first_kv + j0, head_kv);
  const int thread = static_cast<int>(threadIdx.x);
  if (plain) {
    const PackedRows<kDimQk, kDtype, kTileKv, kThreads> packed_dk{k_tile};
    const PackedRows<kDimVo, kDtype, kTileKv, kThreads> packed_dv{v_tile};
    PutKeyGradient<kPartQk>(dk, a.scale, has_dk, packed_dk);
    PutKeyGradient<kPartVo>(dv_sums, dv_factor, has_dv, packed_dv);
    __syncthreads();
    if (a.dk.base != nullptr) packed_dk.Write(a.dk.stride_row, dk_rows, num_rows, a.dim_qk, thread);
    if (a.dv.base != nullptr) packed_dv.Write(a.dv.stride_row, dv_rows, num_rows, a.dim_vo, thread);
    return;
  }
  const StagedRows<kDimQk, kDtype> staged_dk{base};
  const StagedRows<kDimVo, kDtype> staged_dv{base};
  PutKeyGradient<kPartQk>(dk, a.scale, has_dk, staged_dk);
  __syncthreads();
  if (a.dk.base != nullptr) {
    staged_dk.Write(a, a.dk, dk_rows, num_rows, a.dim_qk, a.accumulate != 0, thread, kThreads);
  }
  __syncthreads();
  PutKeyGradient<kPartVo>(dv_sums, dv_factor, has_dv, staged_dv);
  __syncthreads();
  if (a.dv.base != nullptr) {
    staged_dv.Write(a, a.dv, dv_rows, num_rows, a.dim_vo, a.accumulate != 0, thread, kThreads);
  }
}
