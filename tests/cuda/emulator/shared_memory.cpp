// Shared memory of a block: bounds, and which thread wrote a word since which fence.proxy.async.
#include <cstring>

#include "state.hpp"

namespace emulator {
namespace {

bool inside(const Block& block, u32 address, u32 bytes) {
  return address >= kSharedBase && address + bytes <= kSharedBase + block.bytes;
}
u32 first_word(u32 address) {
  return (address - kSharedBase) / 4;
}
u32 last_word(u32 address, u32 bytes) {
  return (address + bytes - 1 - kSharedBase) / 4;
}
u32 epoch(const Fiber& fiber) {
  return fiber.fence_epoch & 0xffff;
}

}  // namespace

u32 cluster_rank() {
  return current->block->rank;
}
u32 cluster_blocks() {
  return static_cast<u32>(current->block->cluster->blocks.size());
}
u32 map_shared(u32 address, u32 rank) {
  if (rank >= cluster_blocks())
    fail("mapa of block %u, the cluster has %u", rank, cluster_blocks());
  return address | (rank + 1) << kRankShift;
}

Block& block_of(u32& address) {
  const u32 rank = address >> kRankShift;
  if (rank == 0) return *current->block;
  address &= (1u << kRankShift) - 1;
  Block* const block = current->block->cluster->blocks[rank - 1];
  if (block == nullptr) fail("access to the shared memory of a block that has ended");
  return *block;
}

u8* access(u32 address, u32 bytes, bool write) {
  Block& block = block_of(address);
  if (!inside(block, address, bytes)) {
    fail("shared address %#x + %u is outside of [%#x, %#x)", address, bytes, kSharedBase,
         kSharedBase + block.bytes);
  }
  if (write) {
    // Fences of another block's thread are not followed.
    const bool own = &block == current->block;
    const u32 writer = own ? static_cast<u32>(current->thread + 1) << 16 | epoch(*current) : 0;
    for (u32 word = first_word(address); word <= last_word(address, bytes); ++word) {
      block.writer[word] = writer;
    }
  }
  return block.memory + (address - kSharedBase);
}

u8* shared_bytes(Block& block, u32 address, u32 bytes, const char* who) {
  if (!inside(block, address, bytes)) {
    fail("%s: shared address %#x + %u is outside", who, address, bytes);
  }
  return block.memory + (address - kSharedBase);
}

void check_fenced(Block& block, u32 address, u32 bytes, const char* who) {
  for (u32 word = first_word(address); word <= last_word(address, bytes); ++word) {
    const u32 writer = block.writer[word];
    if (writer == 0) continue;
    const Fiber& fiber = block.fibers[(writer >> 16) - 1];
    if (epoch(fiber) == (writer & 0xffff)) {
      fail("%s reads shared %#x, which thread %d wrote without fence.proxy.async since", who,
           kSharedBase + word * 4, fiber.thread);
    }
  }
}

void forget_writers(Block& block, u32 address, u32 bytes) {
  for (u32 word = first_word(address); word <= last_word(address, bytes); ++word) {
    block.writer[word] = 0;
  }
}

void* shared_static(const void* key, std::size_t bytes, std::size_t alignment) {
  Block& block = *current->block;
  const auto [place, fresh] = block.static_at.try_emplace(key, 0);
  if (fresh) {
    const std::size_t begin = (block.static_bytes + alignment - 1) / alignment * alignment;
    place->second = static_cast<u32>(begin);
    block.static_bytes = static_cast<u32>(begin + bytes);
    if (block.static_bytes > kMaxStaticBytes)
      fail("static shared memory above %u", kMaxStaticBytes);
  }
  return block.memory + place->second;
}

unsigned char* shared_dynamic() {
  const Block& block = *current->block;
  return block.memory + (block.dynamic_base - kSharedBase);
}

u32 shared_address(const void* pointer) {
  const Block& block = *current->block;
  const auto offset = static_cast<const u8*>(pointer) - block.memory;
  if (offset < 0 || offset > static_cast<long>(block.bytes)) fail("no shared pointer");
  return kSharedBase + static_cast<u32>(offset);
}

void cp_async(u32 to, u64 from, u32 bytes, u32 bytes_read) {
  u8* place = access(to, bytes, true);
  std::memset(place, 0, bytes);
  std::memcpy(place, reinterpret_cast<const void*>(from), bytes_read);
}

}  // namespace emulator
