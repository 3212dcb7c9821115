// The forward: o and lse of a tile of queries, by mma.sync and cp.async (8.0 and later).
// FlashAttention-2 (Dao 2023), section 3.1, with every option of docs/semantics.md that a Config
// switches on.
//
// Grid: one block for each (tile of queries, query head, batch entry), the last tile first, as
// those have most keys under a causal mask. Entries that share a bias are neighbours, so that L2
// has it for all but the first. A block's warps own 16 or 32 of its queries each and
// never exchange anything but the tiles of K and V, which come through a ring of config::stages in
// shared memory (of one: K is loaded while P V is computed, V while S is). S and P stay in
// registers: the accumulators of S, packed pairwise, are the A fragments of P V. With 32 queries a
// warp, each fragment of K and V that is read feeds two products, without which shared memory
// bounds the kernel (docs/kernels/portable.md).
//
// Config: dtype; dim_qk, dim_vo (rounded up; columns beyond the tensor's are zeros); tile_q,
// tile_kv, warps, stages, blocks (of an SM, for the register budget), q_in_registers; softcap,
// alibi, bias_type, mask, dropout;
// by_elements (see shared/tile.cuh).
// Shared memory: forward_shared.cuh. Measured: docs/kernels/portable.md.
#include "config.cuh"
#include "portable/forward_scores.cuh"
#include "ptx/memory.cuh"
#include "shared/entry.cuh"
#include "shared/output.cuh"
#include "shared/product.cuh"

namespace {

using namespace forward;

static_assert(kTileQ * StagedRows<config::dim_vo, kDtype>::kRowBytes <= kShared.bytes);

// Once the tile of Q is there: the warp's fragments, where they are kept in registers.
__device__ __forceinline__ void TakeQ(const Arguments& a, unsigned q_tile, QFragments& q) {
  if (!kModified && a.negative != 0) {
    // Maxima are of raw products, so the sign of the scale goes to Q.
    for (int n = static_cast<int>(threadIdx.x) % 32; n < kRows * QLayout::kRowBytes / 4; n += 32) {
      const unsigned at = q_tile + static_cast<unsigned>(4 * n);
      ptx::StoreShared32(at, ptx::LoadShared32(at) ^ 0x80008000u);
    }
    __syncwarp();
  }
  if constexpr (config::q_in_registers != 0) {
#pragma unroll
    for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
      for (int k = 0; k < kBlocksK; ++k) LoadQ(q_tile, m, k, q[m][k]);
  }
}

// o += P V.
__device__ __forceinline__ void MultiplyPV(const PackedP& p, unsigned v_tile, Output& o) {
  const auto v_lane = FragmentLane<config::dim_vo>::RowsFirst();
#pragma unroll
  for (int k = 0; k < kTileKv / 16; ++k) {
    unsigned a[kBlocksM][4];
#pragma unroll
    for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
      for (int e = 0; e < 4; ++e) a[m][e] = p[m][k][e];
    Multiply<kDtype>(a, v_lane, v_tile, 16 * k, 0, o);
  }
}

// How often a fetch's passes are unrolled: in the loop altogether, before it not at all, as code
// that runs once is slow to come by.
template <int times>
struct Unroll {};

// Takes the sink in, makes o whole and lse of maximum and sum.
__device__ __forceinline__ void Finish(const Arguments& a, float unit, int head, float& max,
                                       float& sum, float& factor, float& lse) {
  sum += __shfl_xor_sync(~0u, sum, 1);
  sum += __shfl_xor_sync(~0u, sum, 2);
  // With a scale of 0 `unit` is the smallest number, so that hidden scores stay -inf.
  if (max > -kInfinity) max *= a.scale == 0.0f && !kModified ? 0.0f : unit;
  factor = 1.0f;
  if (a.sinks != nullptr) {
    const float sink = kLog2E * *reinterpret_cast<const float*>(
                                    reinterpret_cast<const char*>(a.sinks) + head * a.sinks_stride);
    const float top = fmaxf(max, sink);
    if (top > -kInfinity) {
      factor = ptx::Exp2(max - top);
      sum = sum * factor + ptx::Exp2(sink - top);
      max = top;
    }
  }
  // Not "sum > 0", which a NaN would fail.
  factor = sum == 0.0f ? 0.0f : factor / sum;
  lse = sum == 0.0f ? -kInfinity : max * kLn2 + logf(sum);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, config::blocks)
    attn_forward(const __grid_constant__ Arguments a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned tiles = static_cast<unsigned>((a.max_len_q + kTileQ - 1) / kTileQ);
  const unsigned heads = blockIdx.x / tiles;
  const int q0 = static_cast<int>(tiles - 1 - blockIdx.x % tiles) * kTileQ;
  const bool entries_first = kHasBias && a.bias.stride_batch == 0;
  const unsigned neighbours = static_cast<unsigned>(entries_first ? a.batch : a.heads_q);
  const int inner = static_cast<int>(heads % neighbours);
  const int outer = static_cast<int>(heads / neighbours);
  const int head = entries_first ? outer : inner;
  const Entry entry = EntryOf(a, entries_first ? inner : outer);
  if (q0 >= entry.rows_q) return;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int head_kv = head / a.group;

  const unsigned base = ptx::SharedAddress(memory);
  auto* ranges = reinterpret_cast<KeyRange*>(memory + kShared.ranges);
  const TileLoader<config::dim_qk, kTileQ, kThreads, kDtype> q_loader(
      a.q, a.dim_qk, RowAddress(a.q, entry.b, entry.first_q + q0, head));
  q_loader.Load<1>(base + kShared.q, 0, entry.len_q - q0);
  ptx::CopyCommit();

  TileRange mine;
  KeyRange keys;  // of its own row; past the length whatever, as it is written as an empty one
  const int thread = static_cast<int>(threadIdx.x);
  // Of 32 rows a warp these are one number; with dropout either spills where the other does not.
  const int own_row = kRows == 32 && !kOneStage ? thread : warp * kRows + thread % 32;
  const bool owns = kRows == 32 || thread % 32 < kRows;
  if (owns && q0 + own_row < entry.len_q) {
    keys = KeysOf(a, entry, q0 + own_row);
    Join(mine, keys);
  }
  const TileRange own = JoinWarp(mine);
  const TileRange range = JoinBlock<kWarps>(own, reinterpret_cast<int*>(ranges));
  __syncthreads();  // all have read what the warps joined, whose place the ranges take
  if (owns) ranges[own_row] = keys;
  const int first = range.first / kTileKv;
  const int last = (range.last + kTileKv - 1) / kTileKv;

  TileStream<config::dim_qk, kTileKv, kThreads, kDtype> k_stream(
      a.k, a.dim_qk, RowAddress(a.k, entry.b, entry.first_kv + 1ll * first * kTileKv, head_kv));
  TileStream<config::dim_vo, kTileKv, kThreads, kDtype> v_stream(
      a.v, a.dim_vo, RowAddress(a.v, entry.b, entry.first_kv + 1ll * first * kTileKv, head_kv));
  const auto stage = [&](int tile) { return tile % kStages; };
  const auto k_tile = [&](int tile) {
    return base + kShared.k + static_cast<unsigned>(stage(tile) * kTileKv * QLayout::kRowBytes);
  };
  const auto v_tile = [&](int tile) {
    return base + kShared.v + static_cast<unsigned>(stage(tile) * kTileKv * VLayout::kRowBytes);
  };
  // One group a tile, empty ones behind the last, so that the count of groups says what is there.
  // With one stage K and V are groups of their own.
  const auto fetch = [&]<int unroll>(int tile, Unroll<unroll>, bool k = true, bool v = true) {
    if (tile < last) {
      if (k) k_stream.template Load<unroll>(k_tile(tile), entry.len_kv - tile * kTileKv);
      if (v) v_stream.template Load<unroll>(v_tile(tile), entry.len_kv - tile * kTileKv);
    }
    ptx::CopyCommit();
  };

  Options options;
  options.scale = ScoreScaleOf(a, entry.b, head);
  options.bias_tile =
      base + kShared.bias + static_cast<unsigned>(warp * kRows * kTileKv * kBiasBytes);
  options.mask_tile = base + kShared.mask + static_cast<unsigned>(warp * kRows * kTileKv);
  options.first = static_cast<float>(q0 + warp * kRows + entry.diag);
  if constexpr (config::dropout != 0) options.dropout = DropoutOf(a, entry.b, head);
  if constexpr (kExchanged) {
    const int row = q0 + warp * kRows + RowOf(0, 0);
    options.dropout_row =
        PhiloxRowOf(options.dropout, options.dropout.row + static_cast<unsigned>(row));
  }
  const auto fetch_pairs = [&](int tile) {
    if constexpr (kHasBias || config::mask != 0) {
      const int i = q0 + warp * kRows;
      const int j = tile * kTileKv;
      if (tile < last) {
        if constexpr (kHasBias) {
          BiasTile::Load(options.bias_tile, a.bias, PairAddress(a.bias, entry.b, head, i, j),
                         entry.len_q - i, entry.len_kv - j);
        }
        if constexpr (config::mask != 0) {
          MaskTile::Load(options.mask_tile, a.mask, PairAddress(a.mask, entry.b, head, i, j),
                         entry.len_q - i, entry.len_kv - j);
        }
      }
      ptx::CopyCommit();
    }
  };

  fetch_pairs(first);
#pragma unroll 1
  for (int ahead = 0; ahead < kStages - 1; ++ahead) fetch(first + ahead, Unroll<1>());
  if constexpr (kOneStage) fetch(first, Unroll<1>(), true, false);
  const unsigned q_tile =
      base + kShared.q + static_cast<unsigned>(warp * kRows * QLayout::kRowBytes);
  QFragments q{};
  ptx::CopyWait<kOneStage ? 1 : kStages - 1>();
  __syncthreads();
  TakeQ(a, q_tile, q);

  Output o{};
  Softmax row;
#pragma unroll
  for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      row.max[m][r] = -kInfinity;
      row.sum[m][r] = 0.0f;
    }
  const float unit = kModified ? 1.0f : a.scale_log2;
  bool all_seen = false;  // all rows have seen a key

  for (int tile = first; tile < last; ++tile) {
    // The tile is there (pairs are fetched one ahead, so that nothing but the stages beyond may be
    // under way), and all warps have left the stage that is filled next.
    ptx::CopyWait<kHasBias || config::mask != 0 || kOneStage ? 0 : kStages - 2>();
    __syncthreads();
    if constexpr (kOneStage) {
      fetch(tile, Unroll<64>(), false, true);  // V, while S is computed
    } else {
      fetch(tile + kStages - 1, Unroll<64>());
    }

    const int i0 = q0 + warp * kRows;
    const int j0 = tile * kTileKv;
    const bool sees = !kLeavesOut || (j0 < own.last && j0 + kTileKv > own.first);
    const TileRange& rows = kOwnCuts ? own : range;
    const bool cut = j0 < rows.all_first || j0 + kTileKv > rows.all_last;
    TileDraws<kTileKv / 16> draws;
    Scores s;
    PackedP p;
    const auto make_p = [&] {
      if (cut) HideByRange(ranges + warp * kRows, j0, s);
      all_seen = Exponentiate(unit, s, row, o);
      Pack(s, options.dropout, draws, 0, p);
    };
    if (sees) {
      bool is_made = false;
      if (kQuick && all_seen && !cut) {
        is_made = TakeQuickly(a, options, q, q_tile, k_tile(tile), i0, j0, unit, row, p);
      }
      if (!is_made) {
        if constexpr (config::dropout != 0) {
          DrawTile(options.dropout, options.dropout_row, i0, j0, draws);
        }
        MultiplyQK(q, q_tile, k_tile(tile), 0, s);
        if constexpr (kModified) {
          if (IsInSeries(a, s)) {
            ScoreTile<true>(a, options, j0, 0, s);
          } else {
            ScoreTile<false>(a, options, j0, 0, s);
          }
        }
        if constexpr (config::mask != 0) HideByMask(options.mask_tile, 0, s);
        // Behind the barrier s and the p of TakeQuickly() would need registers of their own.
        if constexpr (kQuick) make_p();
      }
    }
    if constexpr (kOneStage) {
      ptx::CopyWait<0>();
      __syncthreads();  // V is there, and all warps have left K
      fetch(tile + 1, Unroll<64>(), true, false);
    }
    if constexpr (kHasBias || config::mask != 0) {
      __syncwarp();  // all lanes have read the pairs
      fetch_pairs(tile + 1);
    }
    if (sees) {
      if constexpr (!kQuick) make_p();
      MultiplyPV(p, v_tile(tile), o);
    }
  }

  ptx::CopyWait<0>();
  __syncthreads();  // all warps have read the tiles, whose place O takes
  const int i0 = q0 + warp * kRows;
  float factors[kBlocksM][2];
#pragma unroll
  for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = i0 + RowOf(m, r);
      float lse;
      Finish(a, unit, head, row.max[m][r], row.sum[m][r], factors[m][r], lse);
      if (config::dropout != 0) factors[m][r] *= a.keep_scale * kDropped<kDtype>;
      if (i < entry.rows_q && a.lse.base != nullptr && threadIdx.x % 4 == 0) {
        *reinterpret_cast<float*>(RowAddress(a.lse, entry.b, entry.first_q + i, head)) =
            i < entry.len_q ? lse : -kInfinity;
      }
    }
  // Rows past the length are zeros, whatever came of them.
#pragma unroll
  for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool there = i0 + RowOf(m, r) < entry.len_q;
#pragma unroll
      for (int d = 0; d < kBlocksD; ++d)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& value = o[m][d][2 * r + e];
          value = there ? value * factors[m][r] : 0.0f;
        }
    }
  // A warp's own rows, in shared memory of its own.
  const auto put = [&](const auto& part) {
#pragma unroll
    for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int d = 0; d < kBlocksD; ++d) {
          part.Put(16 * m + 8 * r, 8 * d, o[m][d][2 * r], o[m][d][2 * r + 1]);
        }
    __syncwarp();
  };
  char* const to = RowAddress(a.o, entry.b, entry.first_q + i0, head);
  const int num_rows = min(kRows, entry.rows_q - i0);
  const int lane = ptx::ThreadAnew() % 32;  // the other would be kept through the loop
  if (IsPlain<kDtype>(a, a.o, false)) {
    using Packed = PackedRows<config::dim_vo, kDtype, kRows, 32>;
    const Packed packed{base + static_cast<unsigned>(warp * Packed::kBytes)};
    put(packed.template PartAt<config::dim_vo>(0, 0));
    packed.Write(a.o.stride_row, to, num_rows, a.dim_vo, lane, Exchanged);
  } else {
    using Staged = StagedRows<config::dim_vo, kDtype>;
    const Staged staged{base + static_cast<unsigned>(warp * kRows * Staged::kRowBytes)};
    put(staged.template PartAt<config::dim_vo>(0, 0));
    staged.Write(a, a.o, to, num_rows, a.dim_vo, false, lane, 32, Exchanged);
  }
}
