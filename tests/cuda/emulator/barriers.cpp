// mbarriers, named barriers and __syncthreads().
#include <cstring>

#include "state.hpp"

namespace emulator {
namespace {

void complete_phase(Mbarrier& barrier) {
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  barrier.phase ^= 1;
  barrier.pending = barrier.expected;
  ++progress;
}

void release(NamedBarrier& barrier) {
  barrier.count = 0;
  barrier.threads = 0;
  for (Fiber* fiber : barrier.waiting) fiber->woken = true;
  barrier.waiting.clear();
  ++progress;
}

void enter_named(u32 id, u32 threads, bool wait) {
  if (id > 15) fail("named barrier %u", id);
  Block& block = *current->block;
  NamedBarrier& barrier = block.named_barriers[id];
  if (threads % 32 != 0 || threads > block.threads) {
    fail("named barrier %u of %u threads, the block has %u", id, threads, block.threads);
  }
  if (barrier.threads != 0 && barrier.threads != threads) {
    fail("named barrier %u: %u threads, others say %u", id, threads, barrier.threads);
  }
  barrier.threads = threads;
  ++barrier.count;
  if (barrier.count == threads) return release(barrier);
  if (!wait) return;
  barrier.waiting.push_back(current);
  yield(Wait::kCollective, "named barrier", id, threads);
}

}  // namespace

Mbarrier& find_mbarrier(Block& block, u32 address) {
  const auto found = block.mbarriers.find(address);
  if (found == block.mbarriers.end()) {
    fail("mbarrier %#x (dynamic + %d) is not initialized", address,
         static_cast<int>(address - block.dynamic_base));
  }
  return found->second;
}

void complete_bytes(Block& block, u32 address, u32 bytes) {
  Mbarrier& barrier = find_mbarrier(block, address);
  barrier.bytes -= bytes;
  complete_phase(barrier);
}

void mbarrier_init(u32 address, u32 count) {
  if (address % 8 != 0) fail("misaligned mbarrier");
  access(address, 8, true);
  current->block->mbarriers[address] = {count, count, 0, 0};
}

void mbarrier_arrive(u32 address, u32 count) {
  Block& block = block_of(address);
  Mbarrier& barrier = find_mbarrier(block, address);
  if (barrier.pending < count) fail("mbarrier %#x: more arrivals than expected", address);
  barrier.pending -= count;
  complete_phase(barrier);
}

void mbarrier_expect(u32 address, u32 bytes, bool arrive) {
  find_mbarrier(*current->block, address).bytes += bytes;
  if (arrive) mbarrier_arrive(address, 1);
}

bool mbarrier_wait(u32 address, u32 parity) {
  const Mbarrier& barrier = find_mbarrier(*current->block, address);
  if (barrier.phase == (parity & 1)) yield(Wait::kMbarrier, "mbarrier wait", address, parity & 1);
  return true;
}

void barrier_sync(u32 id, u32 threads) {
  enter_named(id, threads != 0 ? threads : current->block->threads, true);
}

void barrier_arrive(u32 id, u32 threads) {
  enter_named(id, threads, false);
}

// Threads that have ended do not count.
void set_registers(u32 registers) {
  current->warp->registers = registers;
}

void sync_threads() {
  Block& block = *current->block;
  NamedBarrier& barrier = block.named_barriers[0];
  ++barrier.count;
  if (static_cast<int>(barrier.count) >= block.live) return release(barrier);
  barrier.waiting.push_back(current);
  yield(Wait::kCollective, "__syncthreads");
}

// Threads that have ended do not count.
void leave_cluster_barrier(Cluster& cluster) {
  std::size_t live = 0;
  for (const Block* block : cluster.blocks) {
    if (block != nullptr) live += static_cast<std::size_t>(block->live);
  }
  if (cluster.waiting.empty() || cluster.waiting.size() < live) return;
  for (Fiber* fiber : cluster.waiting) fiber->woken = true;
  cluster.waiting.clear();
  ++progress;
}

void sync_cluster() {
  Cluster& cluster = *current->block->cluster;
  cluster.waiting.push_back(current);
  current->woken = false;
  leave_cluster_barrier(cluster);
  if (!current->woken) yield(Wait::kCollective, "barrier.cluster");
}

int sync_threads_vote(Vote vote, int value) {
  Block& block = *current->block;
  const int generation = block.vote_generation & 1;
  NamedBarrier& barrier = block.named_barriers[0];
  int& any = block.votes[static_cast<int>(Vote::kOr)];
  int& all = block.votes[static_cast<int>(Vote::kAnd)];
  int& count = block.votes[static_cast<int>(Vote::kCount)];
  if (barrier.count == 0) {
    any = 0;
    all = 1;
    count = 0;
  }
  any |= value != 0;
  all &= value != 0;
  count += value != 0;
  if (static_cast<int>(++barrier.count) >= block.live) {
    std::memcpy(block.vote_results[generation], block.votes, sizeof block.votes);
    ++block.vote_generation;
    release(barrier);
  } else {
    barrier.waiting.push_back(current);
    yield(Wait::kCollective, "__syncthreads with a vote");
  }
  return block.vote_results[generation][static_cast<int>(vote)];
}

}  // namespace emulator
