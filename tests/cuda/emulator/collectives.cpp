// Instructions in which the lanes of a warp meet.
#include <cmath>
#include <cstring>
#include <iterator>

#include "state.hpp"

namespace emulator {

u32 Warp::alive() const {
  u32 mask = 0;
  for (int i = 0; i < 32; ++i) {
    if (lanes[i] != nullptr && lanes[i]->wait != Wait::kExited) mask |= 1u << i;
  }
  return mask;
}

bool enter_collective(u32 mask, const char* kind, const void* slot) {
  Warp& warp = *current->warp;
  const u32 needed = mask & warp.alive();
  if (warp.kind != nullptr && std::strcmp(warp.kind, kind) != 0) {
    fail("lanes of a warp meet in %s and %s", warp.kind, kind);
  }
  warp.kind = kind;
  warp.slots[current->lane] = slot;
  warp.arrived |= 1u << current->lane;
  return (warp.arrived & needed) == needed;
}

void leave_collective(u32 mask, const char* kind, u32 lanes) {
  Warp& warp = *current->warp;
  std::fill(std::begin(warp.slots), std::end(warp.slots), nullptr);
  for (int i = 0; i < 32; ++i) {
    if ((lanes >> i & 1) != 0 && warp.lanes[i] != current) warp.lanes[i]->woken = true;
  }
  ++progress;
  // Lanes leave together.
  if (!lanes_apart) yield(Wait::kReady, kind, mask);
}

void sync_warp(u32 mask) {
  collective(mask, "__syncwarp", nullptr, [](Warp&, u64*) {});
}

u64 shuffle(u32 mask, u64 value, int source) {
  const Warp& warp = *current->warp;
  const int generation = collective(mask, "shfl", &value, [](Warp& warp, u64* results) {
    for (int i = 0; i < 32; ++i) {
      if (warp.slots[i] != nullptr) results[i] = *static_cast<const u64*>(warp.slots[i]);
    }
  });
  return warp.results[generation][source & 31];
}

u32 ballot(u32 mask, bool value) {
  const Warp& warp = *current->warp;
  const int generation = collective(mask, "vote", &value, [mask](Warp& warp, u64* results) {
    results[0] = 0;
    for (int i = 0; i < 32; ++i) {
      if ((mask >> i & 1) != 0 && *static_cast<const bool*>(warp.slots[i])) results[0] |= 1u << i;
    }
  });
  return static_cast<u32>(warp.results[generation][0]);
}

u64 reduce(u32 mask, u64 value, u64 (*combine)(u64, u64)) {
  const Warp& warp = *current->warp;
  const int generation = collective(mask, "reduce", &value, [&](Warp& warp, u64* results) {
    bool first = true;
    for (int i = 0; i < 32; ++i) {
      if ((mask >> i & 1) == 0) continue;
      const u64 x = *static_cast<const u64*>(warp.slots[i]);
      results[0] = first ? x : combine(results[0], x);
      first = false;
    }
  });
  return warp.results[generation][0];
}

void ldmatrix(u32** registers, int count, bool transposed, u32 address) {
  struct Slot {
    u32** registers;
    u32 address;
  } mine{registers, address};
  collective(~0u, "ldmatrix", &mine, [&](Warp& warp, u64*) {
    const auto slot = [&](int lane) { return static_cast<const Slot*>(warp.slots[lane]); };
    for (int matrix = 0; matrix < count; ++matrix) {
      u16 tile[8][8];
      for (int i = 0; i < 8; ++i) {
        const u32 row = slot(8 * matrix + i)->address;
        if (row % 16 != 0) fail("ldmatrix: misaligned %#x", row);
        std::memcpy(tile[i], access(row, 16, false), 16);
      }
      for (int lane = 0; lane < 32; ++lane) {
        const int row = lane / 4;
        const int column = lane % 4 * 2;
        const u32 low = transposed ? tile[column][row] : tile[row][column];
        const u32 high = transposed ? tile[column + 1][row] : tile[row][column + 1];
        *slot(lane)->registers[matrix] = low | high << 16;
      }
    }
  });
}

void stmatrix(const u32* registers, int count, bool transposed, u32 address) {
  struct Slot {
    const u32* registers;
    u32 address;
  } mine{registers, address};
  Fiber* last = current;
  collective(~0u, "stmatrix", &mine, [&](Warp& warp, u64*) {
    const auto slot = [&](int lane) { return static_cast<const Slot*>(warp.slots[lane]); };
    for (int matrix = 0; matrix < count; ++matrix) {
      u16 tile[8][8];
      for (int lane = 0; lane < 32; ++lane) {
        const int row = lane / 4;
        const int column = lane % 4 * 2;
        const u32 pair = slot(lane)->registers[matrix];
        (transposed ? tile[column][row] : tile[row][column]) = static_cast<u16>(pair);
        (transposed ? tile[column + 1][row] : tile[row][column + 1]) = static_cast<u16>(pair >> 16);
      }
      // Several lanes hold a row. The lane that names its address counts as its writer.
      for (int i = 0; i < 8; ++i) {
        const u32 row = slot(8 * matrix + i)->address;
        if (row % 16 != 0) fail("stmatrix: misaligned %#x", row);
        current = warp.lanes[8 * matrix + i];
        std::memcpy(access(row, 16, true), tile[i], 16);
        current = last;
      }
    }
  });
}

// Tensor cores add 4 products and the sum at once and cut the result off, towards zero.
float add_products(const float* a, const float* b, float sum) {
  double exact = sum;
  for (int k = 0; k < 4; ++k) exact += static_cast<double>(a[k]) * static_cast<double>(b[k]);
  const auto rounded = static_cast<float>(exact);
  return std::fabs(static_cast<double>(rounded)) > std::fabs(exact) ? std::nextafter(rounded, 0.0f)
                                                                    : rounded;
}

void mma_m16n8k8_tf32(float** d, const u32* a, const u32* b, const float* c) {
  struct Slot {
    float** d;
    const u32 *a, *b;
    const float* c;
  } mine{d, a, b, c};
  collective(~0u, "mma.sync", &mine, [&](Warp& warp, u64*) {
    const auto slot = [&](int lane) { return static_cast<const Slot*>(warp.slots[lane]); };
    // The hardware ignores the bits that tf32 lacks.
    const auto number = [](u32 word) { return bits<float>(word & ~0x1fffu); };
    float tile_a[16][8];
    float tile_b[8][8];
    for (int lane = 0; lane < 32; ++lane) {
      for (int r = 0; r < 4; ++r) {
        tile_a[lane / 4 + r % 2 * 8][lane % 4 + r / 2 * 4] = number(slot(lane)->a[r]);
      }
      for (int r = 0; r < 2; ++r) tile_b[lane / 4][lane % 4 + r * 4] = number(slot(lane)->b[r]);
    }
    for (int lane = 0; lane < 32; ++lane) {
      for (int e = 0; e < 4; ++e) {
        const float* row = tile_a[lane / 4 + e / 2 * 8];
        const float* column = tile_b[lane % 4 * 2 + e % 2];
        const float half = add_products(row, column, slot(lane)->c[e]);
        *slot(lane)->d[e] = add_products(row + 4, column + 4, half);
      }
    }
  });
}

// In f32: devices convert to f16, whose products are exact.
void mma_m16n8k32(bool e5m2_a, bool e5m2_b, float** d, const u32* a, const u32* b, const float* c) {
  struct Slot {
    float** d;
    const u32 *a, *b;
    const float* c;
  } mine{d, a, b, c};
  collective(~0u, "mma.sync", &mine, [&](Warp& warp, u64*) {
    const auto slot = [&](int lane) { return static_cast<const Slot*>(warp.slots[lane]); };
    const Element type_a = e5m2_a ? Element::e5m2 : Element::e4m3;
    const Element type_b = e5m2_b ? Element::e5m2 : Element::e4m3;
    float tile_a[16][32];
    float tile_b[8][32];
    for (int lane = 0; lane < 32; ++lane) {
      const int row = lane / 4;
      const int column = lane % 4 * 4;
      for (int e = 0; e < 4; ++e) {
        for (int r = 0; r < 4; ++r) {
          tile_a[row + r % 2 * 8][column + r / 2 * 16 + e] =
              to_float(type_a, slot(lane)->a[r] >> 8 * e);
        }
        for (int r = 0; r < 2; ++r) {
          tile_b[row][column + r * 16 + e] = to_float(type_b, slot(lane)->b[r] >> 8 * e);
        }
      }
    }
    for (int lane = 0; lane < 32; ++lane) {
      for (int e = 0; e < 4; ++e) {
        const float* row = tile_a[lane / 4 + e / 2 * 8];
        const float* column = tile_b[lane % 4 * 2 + e % 2];
        float sum = slot(lane)->c[e];
        for (int k = 0; k < 32; ++k) sum += row[k] * column[k];
        *slot(lane)->d[e] = sum;
      }
    }
  });
}

void mma_m16n8k16(bool bf16, float** d, const u32* a, const u32* b, const float* c) {
  struct Slot {
    float** d;
    const u32 *a, *b;
    const float* c;
  } mine{d, a, b, c};
  collective(~0u, "mma.sync", &mine, [&](Warp& warp, u64*) {
    const auto slot = [&](int lane) { return static_cast<const Slot*>(warp.slots[lane]); };
    float tile_a[16][16];
    float tile_b[8][16];
    for (int lane = 0; lane < 32; ++lane) {
      const int row = lane / 4;
      const int column = lane % 4 * 2;
      for (int e = 0; e < 2; ++e) {
        for (int r = 0; r < 4; ++r) {
          tile_a[row + r % 2 * 8][column + r / 2 * 8 + e] =
              to_float(bf16, slot(lane)->a[r] >> 16 * e);
        }
        for (int r = 0; r < 2; ++r) {
          tile_b[row][column + r * 8 + e] = to_float(bf16, slot(lane)->b[r] >> 16 * e);
        }
      }
    }
    for (int lane = 0; lane < 32; ++lane) {
      for (int e = 0; e < 4; ++e) {
        const int row = lane / 4 + e / 2 * 8;
        const int column = lane % 4 * 2 + e % 2;
        float sum = slot(lane)->c[e];
        for (int k = 0; k < 16; ++k) sum = std::fmaf(tile_a[row][k], tile_b[column][k], sum);
        *slot(lane)->d[e] = sum;
      }
    }
  });
}

}  // namespace emulator
