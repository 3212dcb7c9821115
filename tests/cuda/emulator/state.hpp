// The state of a launch: blocks, warps, and one fiber for each thread. All fibers run on one thread
// of the host and leave it only in yield(), so nothing here needs a lock.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <unordered_map>
#include <vector>

#include "runtime.hpp"

namespace emulator {

struct Block;
struct Warp;

enum class Wait { kReady, kMbarrier, kCollective, kBulk, kPoll, kExited };

// Copies of a bulk group that have not read their source, or have not written.
using Counter = std::shared_ptr<int>;

struct Fiber {
  void* stack_pointer = nullptr;
  u8* stack = nullptr;
  Block* block = nullptr;
  Warp* warp = nullptr;
  ThreadIds ids;
  int thread = 0;
  int lane = 0;
  // What it waits for: `wait_a` and `wait_b` depend on `wait`.
  Wait wait = Wait::kReady;
  const char* what = "";
  u32 wait_a = 0;
  u32 wait_b = 0;
  bool woken = false;
  // Bulk groups in order of their commit, and the open one.
  std::vector<Counter> groups_read, groups_all;
  Counter open_read, open_all;
  // Rises with each fence.proxy.async.
  u32 fence_epoch = 1;
  long wgmmas_issued = 0;
  bool wgmma_fenced = false;
};

// An accumulator of wgmma in flight: its rows of this warp [16, n]. The registers hold kPoison.
struct Accumulator {
  int n;
  std::vector<float*> registers[32];
  std::vector<float> values;
};

// A wgmma in flight, as one warp sees it.
struct Operation {
  Wgmma instruction;
  int accumulator = -1;
  bool a_in_registers = false;
  u32 a_registers[32][4];
  int lanes = 0;
  int group = -1;  // -1 before the commit
  bool done = false;
};

struct Warp {
  Block* block = nullptr;
  int index = 0;
  u32 registers = 0;  // of a thread after setmaxnreg; 0: those of the launch
  Fiber* lanes[32]{};
  // The collective in which lanes meet. Results of two generations: a fast lane may enter the next
  // collective before a slow one has read its result.
  u32 arrived = 0;
  const void* slots[32]{};
  u64 results[2][32];
  int generation = 0;
  const char* kind = nullptr;
  // wgmma in flight.
  std::deque<Operation> operations;
  std::deque<Accumulator> accumulators;
  std::map<float*, int> accumulator_of[32];  // by the first register
  long first_operation = 0;
  int groups = 0;
  [[nodiscard]] u32 alive() const;
};

struct Mbarrier {
  u32 expected;
  u32 pending;
  long long bytes;
  u32 phase;
};

struct NamedBarrier {
  u32 count = 0;
  u32 threads = 0;
  std::vector<Fiber*> waiting;
};

// Blocks that run at the same time and reach each other's shared memory.
struct Cluster {
  std::vector<Block*> blocks;   // nullptr: has ended
  std::vector<Fiber*> waiting;  // in barrier.cluster
};

struct Block {
  std::shared_ptr<Cluster> cluster;
  u32 rank = 0;  // in the cluster
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  ThreadIds ids;
  u32 threads = 0;
  int live = 0;
  // Shared memory, static first: kSharedBase is the address of memory[0].
  std::vector<u8> storage;
  u8* memory = nullptr;
  u32 bytes = 0;
  u32 static_bytes = 0;
  std::map<const void*, u32> static_at;
  u32 dynamic_base = 0;
  // For each word, who wrote it last: thread + 1 in the upper half, its fence epoch in the lower.
  // 0: nobody, or an asynchronous copy.
  std::vector<u32> writer;
  std::unordered_map<u32, Mbarrier> mbarriers;
  NamedBarrier named_barriers[16];
  int votes[3] = {};
  int vote_results[2][3] = {};
  int vote_generation = 0;
};

// An asynchronous copy that will happen at a random later time.
struct AsyncCopy {
  Block* block;
  std::function<void()> run;
};

constexpr u32 kPoison = 0x7fbad0adu;  // a NaN that arithmetic never returns
constexpr u32 kSharedBase = 1024;
constexpr u32 kMaxStaticBytes = 32768;
// Bits of addresses from map_shared() above those of an offset: the rank in the cluster, plus 1.
constexpr u32 kRankShift = 24;

// scheduler.cpp
extern Fiber* current;
extern const Launch* current_launch;
extern std::vector<AsyncCopy> copies;
extern std::vector<std::unique_ptr<Block>> blocks;
extern std::mt19937 random_bits;
extern bool lanes_apart;  // lanes of a warp run on their own
extern long progress;     // rises when something happens: a launch without it is a deadlock
void yield(Wait wait, const char* what, u32 a = 0, u32 b = 0);

// report.cpp
[[noreturn]] void report_deadlock();

// shared_memory.cpp. The block that an address of map_shared() is of, and the address there.
Block& block_of(u32& address);
// No access of a fiber, so no writer is noted.
u8* shared_bytes(Block& block, u32 address, u32 bytes, const char* who);
void check_fenced(Block& block, u32 address, u32 bytes, const char* who);
void forget_writers(Block& block, u32 address, u32 bytes);

// barriers.cpp
void leave_cluster_barrier(Cluster& cluster);
Mbarrier& find_mbarrier(Block& block, u32 address);
void complete_bytes(Block& block, u32 address, u32 bytes);

// tma.cpp
bool bulk_ready(const Fiber& fiber);
u32 swizzled(u32 address, int mode);

// arithmetic.cpp
float to_float(bool bf16, u32 x);        // the low half
float to_float(Element element, u32 x);  // the low half or byte
inline bool is_8_bit(Element element) {
  return element >= Element::e4m3;
}

// collectives.cpp
bool enter_collective(u32 mask, const char* kind, const void* slot);
void leave_collective(u32 mask, const char* kind, u32 lanes);

// Lanes meet: the last to arrive runs action(warp, results) for all. Returns the index into
// Warp::results.
template <class Action>
int collective(u32 mask, const char* kind, const void* slot, Action action) {
  Warp& warp = *current->warp;
  const int generation = warp.generation & 1;
  if (!enter_collective(mask, kind, slot)) {
    yield(Wait::kCollective, kind, mask);
    return generation;
  }
  const u32 lanes = warp.arrived;
  warp.kind = nullptr;
  warp.arrived = 0;
  ++warp.generation;
  action(warp, warp.results[generation]);
  leave_collective(mask, kind, lanes);
  return generation;
}

}  // namespace emulator
