// wgmma, warp by warp: a warp computes its 16 of 64 rows. The operands in shared memory are read at
// the commit or at the wait, at random. Until the wait, the registers of an accumulator hold a NaN.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <utility>

#include "state.hpp"

namespace emulator {
namespace {

// Where register i of a lane is in the tile [16, n].
std::size_t tile_index(int lane, int i, int n) {
  const int row = lane / 4 + i / 2 % 2 * 8;
  const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
  return static_cast<std::size_t>(row * n + column);
}

// The address of element (mn, k), of `size` bytes, by a matrix descriptor.
u32 operand_address(u64 descriptor, bool transposed, int mn, int k, u32 size) {
  const u32 start = static_cast<u32>(descriptor & 0x3fff) << 4;
  const u32 leading = static_cast<u32>(descriptor >> 16 & 0x3fff) << 4;
  const u32 stride = static_cast<u32>(descriptor >> 32 & 0x3fff) << 4;
  const int mode = static_cast<int>(descriptor >> 62);
  const u32 m = static_cast<u32>(mn);
  const u32 d = static_cast<u32>(k);
  if (size == 1) {  // K-major
    if (mode == 0) fail("wgmma of 8-bit elements without swizzle");
    return swizzled(start + m / 8 * stride + m % 8 * (128u >> (mode - 1)) + d, 4 - mode);
  }
  if (mode == 0) {  // core matrices of 8 x 16 bytes
    const u32 core = start + m / 8 * stride + d / 8 * leading;
    return transposed ? core + d % 8 * 16 + m % 8 * 2 : core + m % 8 * 16 + d % 8 * 2;
  }
  // Rows of 128, 64 or 32 bytes. The leading offset of K-major operands is ignored.
  const u32 pitch = 128u >> (mode - 1);
  const u32 columns = pitch / 2;
  const u32 address =
      transposed ? start + m / columns * leading + d / 8 * stride + d % 8 * pitch + m % columns * 2
                 : start + m / 8 * stride + m % 8 * pitch + d * 2;
  return swizzled(address, 4 - mode);
}

float element(Block& block, Element type, u64 descriptor, bool transposed, int mn, int k) {
  const u32 size = is_8_bit(type) ? 1 : 2;
  const u32 address = operand_address(descriptor, transposed, mn, k, size);
  u16 value = 0;
  std::memcpy(&value, shared_bytes(block, address, size, "wgmma"), size);
  check_fenced(block, address, size, "wgmma");
  return to_float(type, value);
}

// Elements of K that one instruction takes.
int depth(const Wgmma& w) {
  return is_8_bit(w.type_a) ? 32 : 16;
}

// Products are added with 14 bits (8-bit elements) or 26 (16-bit elements): they and the sum are
// cut off, towards zero, at 2^-13 or 2^-25 of the largest one's power of 2.
float add_products(const float* a, const float (*b)[256], int n, float sum, int depth, int bits) {
  double largest = std::fabs(static_cast<double>(sum));
  double exact = static_cast<double>(sum);
  for (int k = 0; k < depth; ++k) {
    const double product = static_cast<double>(a[k]) * static_cast<double>(b[k][n]);
    largest = std::max(largest, std::fabs(product));
    exact += product;
  }
  if (!(largest > 0.0) || !std::isfinite(exact)) return static_cast<float>(exact);
  const double unit = std::ldexp(1.0, std::ilogb(largest) + 1 - bits);
  double units = std::trunc(static_cast<double>(sum) / unit);
  for (int k = 0; k < depth; ++k) {
    units += std::trunc(static_cast<double>(a[k]) * static_cast<double>(b[k][n]) / unit);
  }
  const double cut = units * unit;
  const auto rounded = static_cast<float>(cut);
  if (!std::isfinite(rounded)) return rounded;
  return std::fabs(static_cast<double>(rounded)) > std::fabs(cut) ? std::nextafter(rounded, 0.0f)
                                                                  : rounded;
}

void load_a(const Warp& warp, const Operation& operation, float tile[16][32]) {
  const Wgmma& w = operation.instruction;
  if (!operation.a_in_registers) {
    for (int i = 0; i < 16; ++i) {
      for (int k = 0; k < depth(w); ++k) {
        tile[i][k] =
            element(*warp.block, w.type_a, w.a, w.transpose_a != 0, warp.index % 4 * 16 + i, k);
      }
    }
    return;
  }
  const int per_register = depth(w) / 8;  // elements
  for (int lane = 0; lane < 32; ++lane) {
    for (int r = 0; r < 4; ++r) {
      for (int e = 0; e < per_register; ++e) {
        const int k = (lane % 4 + r / 2 * 4) * per_register + e;
        tile[lane / 4 + r % 2 * 8][k] =
            to_float(w.type_a, operation.a_registers[lane][r] >> 32 / per_register * e);
      }
    }
  }
}

void execute(Warp& warp, Operation& operation) {
  const Wgmma& w = operation.instruction;
  Accumulator& accumulator = warp.accumulators[static_cast<std::size_t>(operation.accumulator)];
  float a[16][32];
  static float b[32][256];
  load_a(warp, operation, a);
  for (int k = 0; k < depth(w); ++k) {
    for (int n = 0; n < w.n; ++n) {
      b[k][n] = w.scale_b * element(*warp.block, w.type_b, w.b, w.transpose_b != 0, n, k);
    }
  }
  for (int i = 0; i < 16; ++i) {
    float* row = &accumulator.values[static_cast<std::size_t>(i * w.n)];
    if (!w.accumulate) std::fill(row, row + w.n, 0.0f);
    for (int k = 0; k < depth(w); ++k) a[i][k] *= w.scale_a;
    const int bits = is_8_bit(w.type_a) ? 14 : 26;
    for (int n = 0; n < w.n; ++n) row[n] = add_products(a[i], b, n, row[n], depth(w), bits);
  }
  operation.done = true;
}

// The operation that this lane issues: its warp's next, or one that other lanes issued before.
Operation& issue(Warp& warp, const Wgmma& instruction, bool a_in_registers) {
  const auto place = static_cast<std::size_t>(current->wgmmas_issued - warp.first_operation);
  if (place == warp.operations.size()) {
    Operation operation{};
    operation.instruction = instruction;
    operation.a_in_registers = a_in_registers;
    warp.operations.push_back(operation);
  }
  ++current->wgmmas_issued;
  Operation& operation = warp.operations[place];
  ++operation.lanes;
  const Wgmma& issued = operation.instruction;
  if (issued.n != instruction.n || issued.a != instruction.a || issued.b != instruction.b ||
      issued.accumulate != instruction.accumulate) {
    fail("lanes of a warp issue different wgmma");
  }
  return operation;
}

// Moves a lane's registers into the accumulator, and poisons them.
void take_registers(Accumulator& accumulator, float** d) {
  const int lane = current->lane;
  const int n = accumulator.n;
  accumulator.registers[lane].assign(d, d + n / 2);
  for (int i = 0; i < n / 2; ++i) {
    accumulator.values[tile_index(lane, i, n)] = *d[i];
    std::memcpy(d[i], &kPoison, sizeof kPoison);
  }
}

void write_registers(const Accumulator& accumulator) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < accumulator.n / 2; ++i) {
      float* place = accumulator.registers[lane][static_cast<std::size_t>(i)];
      if (bits<u32>(*place) != kPoison) {
        fail("an accumulator was written while wgmma was in flight (lane %d, register %d)", lane,
             i);
      }
      *place = accumulator.values[tile_index(lane, i, accumulator.n)];
    }
  }
}

// Writes the accumulators that no operation uses, and renumbers the others.
void finish_accumulators(Warp& warp) {
  std::vector<bool> in_use(warp.accumulators.size());
  for (const Operation& operation : warp.operations) {
    in_use[static_cast<std::size_t>(operation.accumulator)] = true;
  }
  std::vector<int> renumbered(warp.accumulators.size(), -1);
  std::deque<Accumulator> rest;
  for (std::size_t i = 0; i < warp.accumulators.size(); ++i) {
    if (!in_use[i]) {
      write_registers(warp.accumulators[i]);
      continue;
    }
    renumbered[i] = static_cast<int>(rest.size());
    rest.push_back(std::move(warp.accumulators[i]));
  }
  warp.accumulators.swap(rest);
  const auto renumber = [&](int i) { return renumbered[static_cast<std::size_t>(i)]; };
  for (Operation& operation : warp.operations) {
    operation.accumulator = renumber(operation.accumulator);
  }
  for (auto& of_lane : warp.accumulator_of) {
    for (auto it = of_lane.begin(); it != of_lane.end();) {
      it->second = renumber(it->second);
      it = it->second < 0 ? of_lane.erase(it) : std::next(it);
    }
  }
}

}  // namespace

void wgmma(const Wgmma& instruction, float** d, const u32* a_registers) {
  Warp& warp = *current->warp;
  const int n = instruction.n;
  if (!current->wgmma_fenced) {
    fail("wgmma without wgmma.fence since the last access to its registers (wait)");
  }
  Operation& operation = issue(warp, instruction, a_registers != nullptr);
  if (a_registers != nullptr) std::memcpy(operation.a_registers[current->lane], a_registers, 16);
  const auto [found, fresh] = warp.accumulator_of[current->lane].try_emplace(d[0], -1);
  if (fresh) {
    const int count = static_cast<int>(warp.accumulators.size());
    found->second = operation.accumulator >= 0 ? operation.accumulator : count;
    if (found->second == count) {
      Accumulator& accumulator = warp.accumulators.emplace_back();
      accumulator.n = n;
      accumulator.values.resize(static_cast<std::size_t>(16 * n));
    }
    take_registers(warp.accumulators[static_cast<std::size_t>(found->second)], d);
  }
  if (operation.accumulator >= 0 && operation.accumulator != found->second) {
    fail("wgmma: accumulators differ between lanes");
  }
  operation.accumulator = found->second;
  if (warp.accumulators[static_cast<std::size_t>(found->second)].n != n) {
    fail("wgmma: one accumulator with two shapes");
  }
}

void wgmma_fence() {
  current->wgmma_fenced = true;
}

void wgmma_commit() {
  const bool eager = (random_bits() & 1) != 0;
  collective(~0u, "wgmma.commit", nullptr, [&](Warp& warp, u64*) {
    const int group = warp.groups++;
    for (Operation& operation : warp.operations) {
      if (operation.group >= 0) continue;
      operation.group = group;
      if (operation.lanes != 32) fail("wgmma by %d lanes", operation.lanes);
      if (!eager) continue;
      for (Operation& earlier : warp.operations) {
        if (!earlier.done) execute(warp, earlier);
      }
    }
  });
}

void wgmma_wait(int in_flight) {
  current->wgmma_fenced = false;
  collective(~0u, "wgmma.wait", nullptr, [&](Warp& warp, u64*) {
    const int complete = warp.groups - in_flight;
    const auto finished = [&](const Operation& operation) {
      return operation.group >= 0 && operation.group < complete;
    };
    for (Operation& operation : warp.operations) {
      if (finished(operation) && !operation.done) execute(warp, operation);
    }
    while (!warp.operations.empty() && finished(warp.operations.front())) {
      warp.operations.pop_front();
      ++warp.first_operation;
    }
    finish_accumulators(warp);
  });
}

}  // namespace emulator
