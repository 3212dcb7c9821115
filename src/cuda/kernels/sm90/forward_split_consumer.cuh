// A consumer warpgroup of sm90/forward.cu for f32: 64 queries of each tile.
//
// Each operand is the sum of three or two bf16 parts, and each product is computed as six or three
// products of parts (bf16_parts.cuh). Tensor cores truncate their sums, so a sum inside them covers
// one tile of keys; an f32 addition adds its P V to O.
//
// A turn issues P V of tile i and S of tile i + 1. With kOverlap both are in flight together;
// otherwise (dim 128) the registers of P are free before S is written. The softmax and the
// splitting of P overlap with the products of the other warpgroups.
#pragma once
#include "sm90/forward_consumer.cuh"
#include "sm90/forward_splitter.cuh"

namespace sm90 {

struct SplitConsumer : ConsumerState {
  SlotCursor issued;    // the next slot of the ring to read
  SlotCursor released;  // the next slot to release

  using ConsumerState::ConsumerState;

  // Computes `softmax` and `o` of the tile of queries.
  __device__ __forceinline__ void Compute(const QueryTile& tile) {
    Begin(tile);
    softmax.Clear();
#pragma unroll
    for (int n = 0; n < kDimVo / 2; ++n) o[n] = 0.0f;
    // All warpgroups must take one turn more than the block visits tiles of keys, whichever tiles
    // they skip.
#pragma unroll 1
    for (int i = kv; i < first; ++i) {
      BeginTurn();
      EndTurn();
      PassTile();
    }
    if (first <= last) {
      SplitQueries(tile);
      ComputeTiles(tile);
    } else {
      BeginTurn();
      EndTurn();
    }
    if constexpr (kLeftBound) {
#pragma unroll 1
      for (int i = last + 1; i < kv + tile.kv_count; ++i) {
        PassTile();
        BeginTurn();
        EndTurn();
      }
    }
  }

  // ZeroRowsPastEnd() is not needed: the splitter writes rows past the end as zeros.
  __device__ __forceinline__ unsigned VTile(int /*i*/) const { return 0; }

 private:
  using SplitP = unsigned[kBf16Parts][kTileKv / 4];
  Output product;  // P V of a tile
  SplitP parts;    // P

  __device__ __forceinline__ void BeginTurn() const {
    if constexpr (kPingPong) ptx::NamedBarrierWait(1 + warpgroup, 256);
  }
  __device__ __forceinline__ void EndTurn() const {
    if constexpr (kPingPong) ptx::NamedBarrierArrive(1 + (warpgroup + 1) % kWarpgroups, 256);
  }

  __device__ __forceinline__ unsigned TakeSlot() {
    barriers.Wait(ForwardBarriers::kKReady + issued.stage, issued.phase);
    const unsigned at = base + kShared.k + issued.Offset();
    issued.Next();
    return at;
  }
  template <int slots>
  __device__ __forceinline__ void ReleaseSlots() {
#pragma unroll
    for (int n = 0; n < slots; ++n) {
      Release(ForwardBarriers::kKFree + released.stage);
      released.Next();
    }
  }
  // Releases a tile that only other warpgroups see. The slots hold little more than one tile at dim
  // 128, so no warpgroup may wait for a turn while it keeps a tile that another needs to have
  // released before it can end that turn. Before `first`, another warpgroup issues S of a tile in
  // the same turn and needs the next tile one turn later. After `last`, this warpgroup is one turn
  // behind, because the last P V took one: it releases the tile first.
  __device__ __forceinline__ void PassTile() {
#pragma unroll 1
    for (int n = 0; n < kKSlots + kVSlots; ++n) {
      TakeSlot();
      ReleaseSlots<1>();
    }
  }

  // Re-reads %tid.x: otherwise the descriptors of all parts of Q are kept live through the loop and
  // spill.
  __device__ __forceinline__ unsigned QTile() const {
    const unsigned group = static_cast<unsigned>(ptx::RereadThreadIdx()) / 128 - 1;
    return base + kShared.q + group * (64 * 128);
  }
  // The first barrier waits until every warp has completed its products with the previous tile's
  // rows.
  __device__ __forceinline__ void SplitQueries(const QueryTile& tile) const {
    const attn::device::Arguments& a = p.common;
    const int row = tile.row + 64 * warpgroup;
    const char* const at = shared::RowAddress(a.q, tile.seq.idx, tile.seq.first_q + row, tile.head);
    const int thread = 32 * warp + lane;
    ptx::NamedBarrierWait(1 + kMaxWarpgroups + warpgroup, 128);
#pragma unroll
    for (int c = 0; c < kKSlots; ++c) {
      RowBlock<64> block;
      block.Load(at + c * 256, a.q.stride_row, tile.seq.len_q - row, a.dim_qk - 64 * c, thread);
      block.Hide(tile.seq.len_q - row, a.dim_qk - 64 * c, thread);
      block.Store(QTile() + static_cast<unsigned>(c * kTileQ * 128), kQPartBytes, thread);
    }
    ptx::FenceAsyncProxy();
    ptx::NamedBarrierWait(1 + kMaxWarpgroups + warpgroup, 128);
  }

  // s = Q K^T
  __device__ __forceinline__ void IssueScores() {
    unsigned slots[kKSlots];
#pragma unroll
    for (int c = 0; c < kKSlots; ++c) slots[c] = TakeSlot();
    const ptx::MatrixDescriptor q(QTile(), 16);
    ptx::WgmmaFence();
#pragma unroll
    for (int n = kFirstProduct; n < kPartProducts; ++n)
#pragma unroll
      for (int c = 0; c < kKSlots; ++c) {
        const ptx::MatrixDescriptor k(slots[c], 16);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          ptx::WgmmaShared<config::bf16, kTileKv>(
              s, q.At(kPartOfA[n] * kQPartBytes + c * kTileQ * 128 + j * 32),
              k.At(kPartOfB[n] * kPartBytes + j * 32), n > kFirstProduct || c > 0 || j > 0);
        }
      }
    ptx::WgmmaCommit();
  }

  // product = P V
  __device__ __forceinline__ void IssueOutput() {
    unsigned slots[kVSlots];
#pragma unroll
    for (int c = 0; c < kVSlots; ++c) slots[c] = TakeSlot();
    ptx::WgmmaFence();
#pragma unroll
    for (int n = kFirstProduct; n < kPartProducts; ++n)
#pragma unroll
      for (int c = 0; c < kVSlots; ++c) {
        const ptx::MatrixDescriptor v(slots[c], kVSlotKeys * 128);
#pragma unroll
        for (int j = 0; j < kVSlotKeys / 16; ++j) {
          ptx::WgmmaRegisters<config::bf16, kDimVo>(
              product, parts[kPartOfA[n]] + c * (kVSlotKeys / 4) + 4 * j,
              v.At(kPartOfB[n] * kPartBytes + j * 2048), n > kFirstProduct || c > 0 || j > 0);
        }
      }
    ptx::WgmmaCommit();
  }
  __device__ __forceinline__ void AddProduct() {
#pragma unroll
    for (int n = 0; n < kDimVo / 2; ++n) o[n] += product[n];
  }

  // Turns the complete S of tile i into P, and rescales O.
  __device__ __forceinline__ void UpdateSoftmax(const QueryTile& tile, int i, bool partial) {
    RepeatNan(tile, i);
    modifiers.Modify<false>(Key(i), 0, softmax.max, s);
    if (partial) modifiers.Hide(Key(i), s);
    float alpha[2];
    if (softmax.Raise(modifiers.unit, s, alpha)) {
#pragma unroll
      for (int n = 0; n < kDimVo / 2; ++n) o[n] *= alpha[n / 2 % 2];
    }
    softmax.Update(modifiers.unit, s);
    softmax.AddTile();
    modifiers.Drop(Key(i), s);
#pragma unroll
    for (int n = 0; n < kTileKv / 4; ++n) {
      unsigned pairs[kBf16Parts];
      SplitPair(s[2 * n], s[2 * n + 1], pairs);
#pragma unroll
      for (int part = 0; part < kBf16Parts; ++part) parts[part][n] = pairs[part];
    }
  }

  // An infinite operand is not a sum of parts (inf - inf is NaN), so scores that became NaN are
  // computed again in f32. One test of the sum of all scores finds out whether there are any.
  __device__ __forceinline__ void RepeatNan(const QueryTile& tile, int i) {
    float all = 0.0f;
#pragma unroll
    for (int n = 0; n < kTileKv / 2; ++n) all = fmaf(s[n], 0.0f, all);
    if (all == 0.0f) return;
    const attn::device::Arguments& a = p.common;
    // Re-read, so that it is not kept in registers through the loop over keys.
    const Sequence seq = shared::SequenceOf(a, tile.seq.idx);
    const char* const q = shared::RowAddress(a.q, seq.idx, seq.first_q + modifiers.row, tile.head);
    const char* const k =
        shared::RowAddress(a.k, seq.idx, seq.first_kv, tile.head / a.heads_per_kv);
#pragma unroll 1
    for (int n = 0; n < kTileKv / 2; ++n) {
      const int row = n / 2 % 2 * 8;
      const int key = Key(i) + n / 4 * 8 + ScoreModifiers::Column() + n % 2;
      float score = 0.0f;
#pragma unroll
      for (int m = 0; m < kTileKv / 2; ++m) score = m == n ? s[m] : score;
      // Rows past the end must not be read, and their scores are not used.
      if (score == score || modifiers.row + row >= seq.len_q || key >= seq.len_kv) {
        continue;
      }
      const float* const x = reinterpret_cast<const float*>(q + row * a.q.stride_row);
      const float* const y = reinterpret_cast<const float*>(k + key * a.k.stride_row);
      score = 0.0f;
#pragma unroll 1
      for (int c = 0; c < a.dim_qk; ++c) score = fmaf(x[c], y[c], score);
#pragma unroll
      for (int m = 0; m < kTileKv / 2; ++m) s[m] = m == n ? score : s[m];
    }
  }

  __device__ __forceinline__ void ComputeTiles(const QueryTile& tile) {
    BeginTurn();
    IssueScores();
    EndTurn();
    ptx::WgmmaWait<0>();
    ReleaseSlots<kKSlots>();
    if constexpr (kOverlap) {
      ComputeOverlapped(tile);
    } else {
      ComputeInOrder(tile);
    }
  }

  __device__ __forceinline__ void ComputeOverlapped(const QueryTile& tile) {
#pragma unroll 1
    for (int i = first; i < last; ++i) {
      UpdateSoftmax(tile, i, IsPartial(i));
      BeginTurn();
      IssueOutput();
      IssueScores();
      EndTurn();
      ptx::WgmmaWait<1>();
      ReleaseSlots<kVSlots>();
      AddProduct();
      ptx::WgmmaWait<0>();
      ReleaseSlots<kKSlots>();
    }
    UpdateSoftmax(tile, last, IsPartial(last));
    BeginTurn();
    IssueOutput();
    EndTurn();
    ptx::WgmmaWait<0>();
    ReleaseSlots<kVSlots>();
    AddProduct();
  }

  // One copy of the softmax: no product is in flight where the loop ends.
  __device__ __forceinline__ void ComputeInOrder(const QueryTile& tile) {
#pragma unroll 1
    for (int i = first;; ++i) {
      UpdateSoftmax(tile, i, IsPartial(i));
      BeginTurn();
      IssueOutput();
      ptx::WgmmaWait<0>();
      ReleaseSlots<kVSlots>();
      if (i == last) break;
      IssueScores();
      EndTurn();
      AddProduct();
      ptx::WgmmaWait<0>();
      ReleaseSlots<kKSlots>();
    }
    EndTurn();
    AddProduct();
  }
};

}  // namespace sm90
