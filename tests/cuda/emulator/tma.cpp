// Bulk and tensor copies. A load writes 0xff at once and its data at a random later time. A store
// reads shared memory at a random later time, and writes global memory later still.
#include <algorithm>
#include <cstring>

#include "state.hpp"

namespace emulator {
namespace {

// Calls visit(offset in shared memory, place in global memory or null) for each element of the box.
template <class Visit>
void visit_box(const TensorMap& map, const int* coordinates, Visit visit) {
  u32 elements = 1;
  for (int i = 0; i < map.rank; ++i) elements *= map.box[i];
  for (u32 element = 0; element < elements; ++element) {
    u32 rest = element;
    bool inside = true;
    u64 address = map.address;
    for (int i = 0; i < map.rank; ++i) {
      const long long x = static_cast<long long>(coordinates[i]) + rest % map.box[i];
      rest /= map.box[i];
      inside = inside && x >= 0 && x < static_cast<long long>(map.dims[i]);
      if (!inside) break;
      address += static_cast<u64>(x) * (i > 0 ? map.strides[i - 1] : map.element_bytes);
    }
    visit(element * map.element_bytes, inside ? reinterpret_cast<u8*>(address) : nullptr);
  }
}

u32 box_bytes(const TensorMap& map) {
  u32 bytes = map.element_bytes;
  for (int i = 0; i < map.rank; ++i) bytes *= map.box[i];
  return bytes;
}

void check_map(const TensorMap& map, int rank, u32 address) {
  if (map.rank != rank || map.address == 0) {
    fail("tensor map of rank %d used with rank %d", map.rank, rank);
  }
  if (address % 128 != 0 || (map.swizzle == 3 && address % 1024 != 0)) {
    fail("TMA: misaligned shared address %#x", address);
  }
}

void check_bulk(u32 shared, u64 global, u32 bytes) {
  if (shared % 16 != 0 || global % 16 != 0 || bytes % 16 != 0) fail("bulk copy: misaligned");
}

void begin_load(Block& block, u32 to, u32 bytes, u32 barrier, const char* who) {
  std::memset(shared_bytes(block, to, bytes, who), 0xff, bytes);
  forget_writers(block, to, bytes);
  find_mbarrier(block, barrier);
}

u8* shared_at(const Block& block, u32 address) {
  return block.memory + (address - kSharedBase);
}

void open_group(Fiber& fiber) {
  if (fiber.open_read != nullptr) return;
  fiber.open_read = std::make_shared<int>(0);
  fiber.open_all = std::make_shared<int>(0);
}

// read() returns the bytes; write(bytes) stores them.
template <class Read, class Write>
void store_later(u32 from, u32 bytes, Read read, Write write) {
  Block* block = current->block;
  shared_bytes(*block, from, bytes, "TMA store");
  check_fenced(*block, from, bytes, "TMA store");
  open_group(*current);
  const Counter reads = current->open_read;
  const Counter writes = current->open_all;
  ++*reads;
  ++*writes;
  const auto do_read = [=] {
    const auto data = std::make_shared<std::vector<u8>>(read());
    --*reads;
    ++progress;
    const auto do_write = [=] {
      write(*data);
      --*writes;
      ++progress;
    };
    copies.push_back({block, do_write});
  };
  copies.push_back({block, do_read});
}

void add_f32(u8* to, const u8* from) {
  float x;
  float sum;
  std::memcpy(&x, from, sizeof x);
  std::memcpy(&sum, to, sizeof sum);
  sum += x;
  std::memcpy(to, &sum, sizeof sum);
}

}  // namespace

// mode: 0 none, 1 to 3 for rows of 32, 64 and 128 bytes.
u32 swizzled(u32 address, int mode) {
  const u32 mask = (1u << mode) - 1;
  return address ^ (address >> 7 & mask) << 4;
}

void tma_load(u32 to, u64 map_address, const int* coordinates, int rank, u32 barrier) {
  const TensorMap map = *reinterpret_cast<const TensorMap*>(map_address);
  check_map(map, rank, to);
  Block* block = current->block;
  const u32 bytes = box_bytes(map);
  begin_load(*block, to, bytes, barrier, "TMA load");
  const std::vector<int> at(coordinates, coordinates + rank);
  const auto load = [=] {
    visit_box(map, at.data(), [&](u32 offset, const u8* global) {
      u8* shared = shared_at(*block, swizzled(to + offset, map.swizzle));
      if (global != nullptr) {
        std::memcpy(shared, global, map.element_bytes);
      } else {
        std::memset(shared, 0, map.element_bytes);
      }
    });
    complete_bytes(*block, barrier, bytes);
  };
  copies.push_back({block, load});
}

void bulk_load(u32 to, u64 from, u32 bytes, u32 barrier) {
  check_bulk(to, from, bytes);
  Block* block = current->block;
  begin_load(*block, to, bytes, barrier, "bulk load");
  const auto load = [=] {
    std::memcpy(shared_at(*block, to), reinterpret_cast<const void*>(from), bytes);
    complete_bytes(*block, barrier, bytes);
  };
  copies.push_back({block, load});
}

void store_async(u32 to, const void* values, u32 bytes, u32 barrier) {
  if (to % bytes != 0) fail("misaligned asynchronous store %#x", to);
  Block* block = &block_of(to);
  if (block != &block_of(barrier)) fail("st.async to one block, with the mbarrier of another");
  shared_bytes(*block, to, bytes, "st.async");
  std::vector<u8> stored(static_cast<const u8*>(values), static_cast<const u8*>(values) + bytes);
  copies.push_back({block, [=] {
                      std::memcpy(shared_at(*block, to), stored.data(), bytes);
                      complete_bytes(*block, barrier, bytes);
                    }});
}

void tma_store(u64 map_address, u32 from, const int* coordinates, int rank, bool add) {
  const TensorMap map = *reinterpret_cast<const TensorMap*>(map_address);
  check_map(map, rank, from);
  if (add && map.element_bytes != 4) fail("a TMA reduction of other elements than f32");
  if (map.dims[0] * map.element_bytes % 16 != 0) {
    fail("a TMA store writes multiples of 16 bytes; rows have %llu elements of %d bytes",
         static_cast<unsigned long long>(map.dims[0]), static_cast<int>(map.element_bytes));
  }
  const Block* block = current->block;
  const u32 bytes = box_bytes(map);
  const std::vector<int> at(coordinates, coordinates + rank);
  const auto read = [=] {
    std::vector<u8> data(bytes);
    for (u32 offset = 0; offset < bytes; offset += map.element_bytes) {
      std::memcpy(&data[offset], shared_at(*block, swizzled(from + offset, map.swizzle)),
                  map.element_bytes);
    }
    return data;
  };
  const auto write = [=](const std::vector<u8>& data) {
    visit_box(map, at.data(), [&](u32 offset, u8* global) {
      if (global == nullptr) return;
      if (add) {
        add_f32(global, &data[offset]);
      } else {
        std::memcpy(global, &data[offset], map.element_bytes);
      }
    });
  };
  store_later(from, bytes, read, write);
}

void bulk_store(u64 to, u32 from, u32 bytes, bool add) {
  check_bulk(from, to, bytes);
  const Block* block = current->block;
  const auto read = [=] {
    const u8* begin = shared_at(*block, from);
    return std::vector<u8>(begin, begin + bytes);
  };
  const auto write = [=](const std::vector<u8>& data) {
    u8* global = reinterpret_cast<u8*>(to);
    if (!add) {
      std::memcpy(global, data.data(), bytes);
      return;
    }
    for (u32 offset = 0; offset < bytes; offset += 4) add_f32(global + offset, &data[offset]);
  };
  store_later(from, bytes, read, write);
}

void bulk_commit() {
  Fiber& fiber = *current;
  open_group(fiber);
  fiber.groups_read.push_back(fiber.open_read);
  fiber.groups_all.push_back(fiber.open_all);
  fiber.open_read = nullptr;
  fiber.open_all = nullptr;
}

// wait_a: groups that may be in flight. wait_b: whether it waits for their reads only.
bool bulk_ready(const Fiber& fiber) {
  const auto& groups = fiber.wait_b != 0 ? fiber.groups_read : fiber.groups_all;
  for (std::size_t i = 0; i + fiber.wait_a < groups.size(); ++i) {
    if (*groups[i] > 0) return false;
  }
  return true;
}

void bulk_wait(int in_flight, bool read) {
  current->wait_a = static_cast<u32>(in_flight);
  current->wait_b = read ? 1 : 0;
  if (!bulk_ready(*current)) yield(Wait::kBulk, "bulk wait", current->wait_a, current->wait_b);
}

void fence_proxy_async() {
  ++current->fence_epoch;
}

}  // namespace emulator
