// sm80/decode.cu: loads K and V. Each group of warps has its own ring of kStages tiles, and each
// warp loads its own kSlice keys of a tile, so groups never wait for each other.
#pragma once
#include "sm80/decode_rows.cuh"

namespace sm80::decode {

static_assert(kGroups == 1 || kWarpsM <= 2);
// Barrier of the warps of a group.
__device__ __forceinline__ void SyncGroup() {
  if constexpr (kWarpsM == 1) {
    __syncwarp();
  } else if constexpr (kGroups == 1) {
    __syncthreads();
  } else {
    ptx::SyncTwoWarps(1 + GroupIdx());
  }
}

class KeyStream {
 public:
  __device__ __forceinline__ KeyStream(const DecodeParams& p, const Block& block, unsigned base)
      : p_(p), seq_idx_(block.seq.idx), len_kv_(block.seq.len_kv) {
    const int ring = GroupIdx() * kStages;
    k_ring_ = base + kShared.k + static_cast<unsigned>(ring * kTileBytes);
    v_ring_ = base + kShared.v + static_cast<unsigned>(ring * kTileBytes);
    present_ = base + kShared.present + static_cast<unsigned>(ring * kWarpsM * 4);
    scales_ = base + kShared.scales + static_cast<unsigned>(ring * kScalesBytes);
    if constexpr (kDescaleRows) {
      k_scale_ = p.descale_k.base + block.head_kv * p.descale_k.stride_head;
      v_scale_ = p.descale_v.base + block.head_kv * p.descale_v.stride_head;
    }
    const int of = kPaged ? 0 : seq_idx_;
    k_from_ = RowAddress(p.common.k, of, block.seq.first_kv, block.head_kv);
    v_from_ = RowAddress(p.common.v, of, block.seq.first_kv, block.head_kv);
  }

  // Pages: starts to load the span's part of the block table into L1, for LookUp(). Later, it would
  // wait behind the loads of K and V. The copies of single words in shared memory are not used.
  // They overlay the statistics, which are written after the loop.
  __device__ __forceinline__ void LoadTable(const Span& span, unsigned base) const {
    if constexpr (kPaged) {
      constexpr int kSectorEntries = 8;  // in 32 bytes
      if (span.begin >= span.end || (kOptions && p_.cache.table == nullptr)) return;
      const int thread = static_cast<int>(threadIdx.x);
      const int column = span.begin / p_.cache.page_size + thread * kSectorEntries;
      if (column > (span.end - 1) / p_.cache.page_size) return;
      ptx::CopyAsyncSmall<4>(base + static_cast<unsigned>(kShared.stats + 4 * thread),
                             EntryAt(column), true);
    }
  }

  // Pages: looks up the page of this lane's key of the tile from j0. Called before Load() of that
  // tile, so that the lookup's latency is hidden.
  __device__ __forceinline__ void LookUp(int j0) {
    if constexpr (kPaged) {
      const int j = j0 + WarpM() * kSlice + LaneIdx();
      page_ = -1;
      slot_ = 0;
      if (LaneIdx() >= kSlice || j >= len_kv_) return;
      if (kOptions && p_.cache.table == nullptr) {
        page_ = seq_idx_;
        slot_ = j;
        return;
      }
      const int column = j / p_.cache.page_size;
      slot_ = j - column * p_.cache.page_size;
      const int page = *EntryAt(column);
      if (page >= 0 && page < p_.cache.num_pages) page_ = page;
    }
  }

  // Starts to load the tile of keys from j0. Keys past the length or without a page become zeros,
  // and so do columns past the end of the tensor. The caller commits.
  __device__ __forceinline__ void Load(int j0, int stage) {
    const unsigned to = static_cast<unsigned>(stage * kTileBytes) +
                        static_cast<unsigned>(WarpM() * kSlice * Layout::kRowBytes);
    if constexpr (kPaged) {
      const unsigned present = __ballot_sync(~0u, page_ >= 0);
      if (LaneIdx() == 0) ptx::StoreShared32(PresentAt(stage, WarpM()), present);
    }
    if constexpr (kDescaleRows) {
      LoadScale(p_.descale_k, k_scale_, j0, ScalesAt(stage));
      LoadScale(p_.descale_v, v_scale_, j0, ScalesAt(stage) + kTileKv * 4);
    }
    if constexpr (config::element_access != 0) {
      LoadElements(k_ring_ + to, p_.common.k, k_from_, p_.common.dim_qk, j0);
      LoadElements(v_ring_ + to, p_.common.v, v_from_, p_.common.dim_vo, j0);
    } else {
      LoadChunks(k_ring_ + to, p_.common.k, k_from_, p_.common.dim_qk, j0);
      LoadChunks(v_ring_ + to, p_.common.v, v_from_, p_.common.dim_vo, j0);
    }
  }

  __device__ __forceinline__ unsigned KTile(int stage) const {
    return k_ring_ + static_cast<unsigned>(stage * kTileBytes);
  }
  __device__ __forceinline__ unsigned VTile(int stage) const {
    return v_ring_ + static_cast<unsigned>(stage * kTileBytes);
  }
  // kDescaleRows: address of the tile's factors of K; those of V follow.
  __device__ __forceinline__ unsigned ScalesAt(int stage) const {
    return scales_ + static_cast<unsigned>(stage * kScalesBytes);
  }
  // Sets the scores of keys that have no page to -inf.
  __device__ __forceinline__ void HideMissing(int stage, Scores& s) const {
#pragma unroll
    for (int w = 0; w < kWarpsM; ++w) {
      const unsigned present = ptx::LoadShared32(PresentAt(stage, w));
      constexpr unsigned kAll = kSlice == 32 ? ~0u : (1u << kSlice % 32) - 1;
      if (present == kAll) continue;
#pragma unroll
      for (int n = 0; n < kSlice / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int bit = 8 * n + LaneIdx() % 4 * 2 + e % 2;
          if ((present >> bit & 1u) == 0) s[0][w * kSlice / 8 + n][e] = -kInfinity;
        }
    }
  }

 private:
  static_assert(kGroups * kTileQ * 8 >= kThreads * 4);  // LoadTable()
  using Layout = KvLayout;
  static constexpr int kChunkColumns = 16 / kKvBytes;
  static constexpr int kTileBytes = kTileKv * Layout::kRowBytes;
  static constexpr int kScalesBytes = kTileKv * 8;
  static constexpr int kLanesPerRow = Layout::kChunks < 32 ? Layout::kChunks : 32;
  static constexpr int kStep = 32 / kLanesPerRow;  // rows per pass
  static_assert(Layout::kChunks == kLanesPerRow && kSlice % kStep == 0 &&
                (Layout::kWide || kStep == 8));

  __device__ __forceinline__ unsigned PresentAt(int stage, int warp) const {
    return present_ + static_cast<unsigned>((stage * kWarpsM + warp) * 4);
  }

  // The entry of the block table for the sequence's pages.
  __device__ __forceinline__ const int* EntryAt(int column) const {
    return p_.cache.table + seq_idx_ * p_.cache.table_stride_batch +
           column * p_.cache.table_stride_page;
  }

  // Loads the descale factor of this lane's key of the tile; 0 if there is no such key.
  __device__ __forceinline__ void LoadScale(const attn::device::Descale& descale, const float* from,
                                            int j0, unsigned to) const {
    if (LaneIdx() >= kSlice) return;
    const int j = j0 + WarpM() * kSlice + LaneIdx();
    const unsigned at = to + static_cast<unsigned>((WarpM() * kSlice + LaneIdx()) * 4);
    if (descale.base == nullptr) {
      ptx::StoreShared32(at, 1.0f);
      return;
    }
    const bool exists = kPaged ? page_ >= 0 : j < len_kv_;
    const float* source = from + (kPaged ? page_ : seq_idx_) * descale.stride_batch +
                          (kPaged ? slot_ : j) * descale.stride_row;
    ptx::CopyAsyncSmall<4>(at, exists ? source : descale.base, exists);
  }

  // Address of row r of the warp's slice of the tile from j0; null if there is no such key. All
  // lanes of the warp must call it.
  __device__ __forceinline__ const char* SourceOf(const StridedTensor& tensor, const char* from,
                                                  int j0, int r) const {
    if constexpr (kPaged) {
      const int page = __shfl_sync(~0u, page_, r);
      const int slot = __shfl_sync(~0u, slot_, r);
      const char* at = from + page * tensor.stride_batch + slot * tensor.stride_row;
      return page >= 0 ? at : nullptr;
    } else {
      const int j = j0 + WarpM() * kSlice + r;
      return j < len_kv_ ? from + j * tensor.stride_row : nullptr;
    }
  }

  __device__ __forceinline__ void LoadChunks(unsigned to, const StridedTensor& tensor,
                                             const char* from, const int& dim, int j0) const {
    const int row = LaneIdx() / kLanesPerRow;
    const int chunk = LaneIdx() % kLanesPerRow;
    const unsigned own = Layout::At(row, chunk);
    const bool inside = chunk * kChunkColumns < dim;
#pragma unroll
    for (int pass = 0; pass < kSlice / kStep; ++pass) {
      const char* source = SourceOf(tensor, from, j0, pass * kStep + row);
      const bool exists = inside && source != nullptr;
      // Applies the swizzle of row r + kStep * pass by an XOR, because kStep divides 8. Narrow rows
      // have a kStep of 8, and thus the same swizzle in all passes.
      const unsigned at = to + static_cast<unsigned>(pass * kStep * Layout::kRowBytes) +
                          (own ^ Layout::Swizzle(pass * kStep));
      ptx::CopyAsync(at, exists ? source + chunk * 16 : tensor.base, exists ? 16 : 0);
    }
  }

  __device__ __forceinline__ void LoadElements(unsigned to, const StridedTensor& tensor,
                                               const char* from, const int& dim, int j0) const {
#pragma unroll 1
    for (int r = 0; r < kSlice; ++r) {
      const char* source = SourceOf(tensor, from, j0, r);
#pragma unroll 1
      for (int column = LaneIdx(); column < kDim; column += 32) {
        const bool exists = source != nullptr && column < dim;
        const unsigned at =
            to + Layout::At(r, column / kChunkColumns) + column % kChunkColumns * kKvBytes;
        if constexpr (kQuantized) {
          ptx::StoreShared8(at,
                            exists ? *reinterpret_cast<const unsigned char*>(source + column) : 0);
        } else {
          ptx::StoreShared16(
              at,
              exists ? *reinterpret_cast<const unsigned short*>(source + column * kKvBytes) : 0);
        }
      }
    }
  }

  const DecodeParams& p_;
  int seq_idx_;
  int len_kv_;
  unsigned k_ring_, v_ring_, present_, scales_;
  const float* k_scale_ = nullptr;  // of the key head
  const float* v_scale_ = nullptr;
  const char* k_from_;  // key 0 of the sequence; kPaged: of page 0 or sequence 0
  const char* v_from_;
  int page_ = -1;  // page (or sequence) of this lane's key of the next tile; -1: none
  int slot_ = 0;
};

}  // namespace sm80::decode
