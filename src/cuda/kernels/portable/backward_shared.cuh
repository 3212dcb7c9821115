// Shared memory of portable/backward.cu: read by the host, which asks for it, and by the kernel.
#pragma once

namespace attn::device {

// Tiles of queries whose visits are listed at once.
inline constexpr int kBackwardWindow = 512;

// Offsets in bytes; tiles begin at multiples of 128.
struct BackwardShared {
  int k = 0;        // [tile_kv][dim_qk]; at the end dK, then dV take the place of all tiles
  int v = 0;        // [tile_kv][dim_vo]
  int q = 0;        // [stages][tile_q][dim_qk]
  int dout = 0;     // [stages][tile_q][dim_vo]
  int ds = 0;       // [tile_kv][tile_q]: dS transposed
  int p = 0;        // the same of P; only with exchange
  int bias = 0;     // [warps][queries of a warp][keys of a warp]
  int mask = 0;     // likewise, bytes
  int pairs = 0;    // [warps][keys of a warp][16] scores that warps exchange; only with exchange 3
  int stats = 0;    // [tile_q] {lse in units of log2, delta}
  int visited = 0;  // a bit for each tile of queries of the window: some row sees a key of ours
  int cut = 0;      // a bit likewise: not every row sees all of them
  int turn = 0;     // address of the turn that is given on next; only where deterministic
  int bytes = 0;
};

constexpr BackwardShared BackwardSharedOf(int tile_q, int tile_kv, int stages, int dim_qk,
                                          int dim_vo, int exchange, int warps, int bias_bytes,
                                          bool mask) {
  BackwardShared s;
  s.v = s.k + tile_kv * dim_qk * 2;
  s.q = s.v + tile_kv * dim_vo * 2;
  s.dout = s.q + stages * tile_q * dim_qk * 2;
  s.ds = s.dout + stages * tile_q * dim_vo * 2;
  s.p = s.ds + tile_kv * tile_q * 2;
  s.bias = s.p + (exchange > 0 ? tile_kv * tile_q * 2 : 0);
  s.mask = s.bias + tile_q * tile_kv * bias_bytes;
  s.pairs = s.mask + (mask ? tile_q * tile_kv : 0);
  s.stats = s.pairs + (exchange == 3 ? warps * 32 * 16 * 4 : 0);
  s.visited = s.stats + tile_q * 8;
  s.cut = s.visited + kBackwardWindow / 8;
  s.turn = s.cut + kBackwardWindow / 8;
  s.bytes = s.turn + 8;
  return s;
}

}  // namespace attn::device
