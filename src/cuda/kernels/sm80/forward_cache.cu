// Forward on a cache that sm80/forward.cu can't read: pages, appended rows, and 8-bit k and v with
// descale factors. It also serves decode. In f32, and in 16-bit types for dims above 256, which
// sm80/decode.cu does not have. sm80/forward.cu describes the algorithm and the grid. The
// differences: K and V are loaded from the cache (cache_stream.cuh), and keys without a page are
// hidden.
//
// 8-bit elements are converted and multiplied by their factor when they are loaded, so the products
// are those of q's type. In 16-bit types this rounds them.
//
// Config: that of sm80/forward.cu; kv_type, dtype or an 8-bit type (f32: only i8).
#include "config.cuh"
#include "ptx/grid.cuh"
#include "sm80/cache_stream.cuh"
#include "sm80/forward_block.cuh"
#include "sm80/forward_cache_params.cuh"

namespace {

using namespace sm80;
using namespace sm80::forward;

using attn::device::ForwardCacheParams;

static_assert(!kLazyRescale && kTileKv % 32 == 0);

// Sets the scores of keys that have no page to -inf, in the tile from j0.
__device__ __forceinline__ void HideMissing(const Cache& cache, const Sequence& seq, int j0,
                                            Scores& s) {
  if (cache.table == nullptr) return;
#pragma unroll
  for (int n0 = 0; n0 < kBlocksN; n0 += 4) {
    const int j = j0 + 8 * n0 + static_cast<int>(threadIdx.x) % 32;
    const bool present = j >= seq.len_kv || CacheRowOf(cache, seq.idx, j).block >= 0;
    const unsigned all = __ballot_sync(~0u, present);
    if (all == ~0u) continue;
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if ((all >> (ColumnOf(n) + e % 2) & 1u) == 0) s[m][n0 + n][e] = -kInfinity;
        }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, config::blocks)
    attn_forward_cache(const __grid_constant__ ForwardCacheParams p) {
  ptx::WaitForPrimary();
  extern __shared__ __align__(1024) unsigned char memory[];
  const Arguments& a = p.common;
  Block block = BlockOf(a);
  block.seq = WithNewRows(a, p.cache, block.seq);
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
  using KStream = CacheStream<config::dim_qk, kTileKv, kThreads>;
  using VStream = CacheStream<config::dim_vo, kTileKv, kThreads>;
  KvPipeline pipeline(block, visibility, base,
                      KStream(p.cache, seq, head_kv, a.k, a.dim_qk, p.descale_k, p.descale_rows),
                      VStream(p.cache, seq, head_kv, a.v, a.dim_vo, p.descale_v, p.descale_rows));
  const ScoreInputs inputs(a, seq, block.head, block.q0, warp, base);
  const int i0 = block.q0 + warp * kRows;
  const auto load_inputs = [&](int tile) {
    inputs.Load(a, seq, block.head, i0, tile * kTileKv, tile < visibility.tile_end);
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
  for (int tile = visibility.tile_begin; tile < visibility.tile_end; ++tile) {
    pipeline.Advance(tile);
    const int j0 = tile * kTileKv;
    TileBits<kTileKv / 16> bits;
    Scores s;
    ComputeScores(a, inputs, q, q_tile, KTile(base, tile), i0, j0, bits, s);
    pipeline.AfterScores(tile);
    if constexpr (kHasBias || kHasMask) {
      __syncwarp();  // all lanes have read bias and mask
      load_inputs(tile + 1);
    }
    if (visibility.IsPartial(j0)) HideByRange(visibility.ranges + warp * kRows, j0, s);
    HideMissing(p.cache, seq, j0, s);
    PackedP weights;
    softmax.Update(s, o);
    PackP(s, inputs.dropout, bits, 0, weights);
    MultiplyPV(weights, VTile(base, tile), o);
  }

  ptx::CopyWait<0>();
  __syncthreads();  // all warps have read the tiles, which O overlays
  FinalizeRows(a, block, i0, softmax, o);
  WriteOutput(a, block, i0, warp, base, o);
}
