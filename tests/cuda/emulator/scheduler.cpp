// Fibers and their order. A fiber runs until it waits. Which warp runs next, and when an
// asynchronous copy happens, is random, from ATTN_EMULATOR_SEED.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "state.hpp"

namespace emulator {

ThreadIds* ids;
Fiber* current;
const Launch* current_launch;
std::vector<AsyncCopy> copies;
std::vector<std::unique_ptr<Block>> blocks;
std::mt19937 random_bits;
bool lanes_apart;
long progress;

namespace {

constexpr std::size_t kStackBytes = 256 << 10;
constexpr std::size_t kGuardBytes = 4096;
// Rounds without progress that mean a deadlock: when polls go on, and when nothing can run.
constexpr long kMaxIdlePolls = 200000;
constexpr long kMaxIdleRounds = 5000;

void* scheduler_stack;
std::vector<u8*> free_stacks;

}  // namespace

// Saves the registers that a callee keeps, and continues on another stack.
extern "C" void attn_emulator_switch(void** from, void* to);
asm(R"(
.globl attn_emulator_switch
attn_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

void yield(Wait wait, const char* what, u32 a, u32 b) {
  Fiber* fiber = current;
  fiber->wait = wait;
  fiber->what = what;
  fiber->wait_a = a;
  fiber->wait_b = b;
  fiber->woken = false;
  attn_emulator_switch(&fiber->stack_pointer, scheduler_stack);
}

void poll() {
  yield(Wait::kPoll, "poll");
}

namespace {

// Where a fiber begins.
void enter_fiber() {
  Fiber* fiber = current;
  current_launch->call(current_launch->parameter);
  fiber->wait = Wait::kExited;
  --fiber->block->live;
  leave_cluster_barrier(*fiber->block->cluster);
  attn_emulator_switch(&fiber->stack_pointer, scheduler_stack);
  std::abort();
}

u8* take_stack() {
  if (free_stacks.empty()) {
    void* memory =
        mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail("no memory for the stack of a fiber");
    mprotect(memory, kGuardBytes, PROT_NONE);
    free_stacks.push_back(static_cast<u8*>(memory));
  }
  u8* stack = free_stacks.back();
  free_stacks.pop_back();
  return stack;
}

void prepare_fiber(Block& block, u32 thread) {
  Fiber& fiber = block.fibers[thread];
  fiber.block = &block;
  fiber.warp = &block.warps[thread / 32];
  fiber.thread = static_cast<int>(thread);
  fiber.lane = static_cast<int>(thread % 32);
  fiber.ids = block.ids;
  fiber.ids.thread = {thread, 0, 0};
  fiber.warp->lanes[fiber.lane] = &fiber;
  fiber.stack = take_stack();
  // What attn_emulator_switch pops: six registers and the return address.
  auto** top = reinterpret_cast<void**>(fiber.stack + kStackBytes - 64);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(enter_fiber);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  fiber.stack_pointer = top;
}

std::unique_ptr<Block> make_block(const Launch& launch, u32 index) {
  auto block = std::make_unique<Block>();
  block->threads = launch.threads;
  block->live = static_cast<int>(launch.threads);
  block->ids.block = {index % launch.grid_x, index / launch.grid_x % launch.grid_y,
                      index / launch.grid_x / launch.grid_y};
  block->ids.block_dim = {launch.threads, 1, 1};
  block->ids.grid_dim = {launch.grid_x, launch.grid_y, launch.grid_z};
  block->dynamic_base = kSharedBase + kMaxStaticBytes;
  block->bytes = kMaxStaticBytes + (launch.shared_bytes + 15) / 16 * 16;
  // Shared memory begins as NaN.
  block->storage.assign(block->bytes + 1024, 0xff);
  const auto begin = reinterpret_cast<std::uintptr_t>(block->storage.data());
  block->memory = reinterpret_cast<u8*>((begin + 1023) / 1024 * 1024);
  block->writer.assign(block->bytes / 4, 0);
  block->fibers.resize(launch.threads);
  block->warps.resize((launch.threads + 31) / 32);
  for (std::size_t w = 0; w < block->warps.size(); ++w) {
    block->warps[w].block = block.get();
    block->warps[w].index = static_cast<int>(w);
  }
  for (u32 thread = 0; thread < launch.threads; ++thread) prepare_fiber(*block, thread);
  return block;
}

// Starts the blocks of the next cluster.
void add_cluster(const Launch& launch, u32 first) {
  const auto cluster = std::make_shared<Cluster>();
  for (u32 rank = 0; rank < launch.cluster; ++rank) {
    blocks.push_back(make_block(launch, first + rank));
    blocks.back()->cluster = cluster;
    blocks.back()->rank = rank;
    cluster->blocks.push_back(blocks.back().get());
  }
}

bool is_ready(const Fiber& fiber) {
  switch (fiber.wait) {
    case Wait::kReady:
    case Wait::kPoll: return true;
    case Wait::kMbarrier: return find_mbarrier(*fiber.block, fiber.wait_a).phase != fiber.wait_b;
    case Wait::kCollective: return fiber.woken;
    case Wait::kBulk: return bulk_ready(fiber);
    case Wait::kExited: return false;
  }
  return false;
}

void run_random_copy() {
  const std::size_t i = random_bits() % copies.size();
  const AsyncCopy copy = std::move(copies[i]);
  copies.erase(copies.begin() + static_cast<long>(i));
  current = nullptr;
  copy.run();
  ++progress;
}

void run_fiber(Fiber& fiber) {
  const bool polled = fiber.wait == Wait::kPoll;
  fiber.wait = Wait::kReady;
  current = &fiber;
  ids = &fiber.ids;
  attn_emulator_switch(&scheduler_stack, fiber.stack_pointer);
  current = nullptr;
  if (!polled || fiber.wait != Wait::kPoll) ++progress;
}

// Runs the lanes of a warp that are ready. Whether there was one.
bool run_warp(Warp& warp) {
  bool ran = false;
  const int first = static_cast<int>(random_bits() % 32);
  for (int i = 0; i < 32; ++i) {
    Fiber* fiber = warp.lanes[(first + i) % 32];
    if (fiber == nullptr || !is_ready(*fiber)) continue;
    if (lanes_apart && random_bits() % 4 != 0) continue;
    run_fiber(*fiber);
    ran = true;
  }
  return ran;
}

// Runs one warp of the block that is ready, from a random one on. After a copy in the same round,
// it tries that one alone.
bool run_block(Block& block, bool copied) {
  const std::size_t start = random_bits() % block.warps.size();
  for (std::size_t k = 0; k < block.warps.size() && !(copied && k > 0); ++k) {
    if (run_warp(block.warps[(start + k) % block.warps.size()])) return true;
  }
  return false;
}

// setmaxnreg only redistributes the registers that the launch allocated: to acquire more waits
// forever.
void check_registers(const Block& block) {
  const u32 each = std::min<u32>(65536 / block.threads / 8 * 8, 255);
  u32 registers = 0;
  for (const Warp& warp : block.warps) registers += warp.registers > 0 ? warp.registers : each;
  if (registers <= each * block.warps.size()) return;
  fail("%s: setmaxnreg acquires %u registers for the warps' threads, the launch allocated %zu",
       current_launch->name, registers, each * block.warps.size());
}

// Removes a block when its threads have ended and its copies have happened.
bool retire(std::size_t index) {
  Block& block = *blocks[index];
  if (block.live > 0) return false;
  for (const AsyncCopy& copy : copies) {
    if (copy.block == &block) return false;
  }
  for (const Warp& warp : block.warps) {
    if (!warp.operations.empty()) fail("%s: wgmma in flight at the end", current_launch->name);
  }
  check_registers(block);
  block.cluster->blocks[block.rank] = nullptr;
  for (const Fiber& fiber : block.fibers) free_stacks.push_back(fiber.stack);
  blocks.erase(blocks.begin() + static_cast<long>(index));
  return true;
}

// One step of the launch. Whether anything ran.
bool run_round() {
  bool ran = false;
  if (!copies.empty() && random_bits() % 3 == 0) {
    run_random_copy();
    ran = true;
  }
  if (!blocks.empty()) {
    const std::size_t index = random_bits() % blocks.size();
    ran = run_block(*blocks[index], ran) || ran;
    ran = retire(index) || ran;
  }
  if (!ran && !copies.empty()) {
    run_random_copy();
    ran = true;
  }
  return ran;
}

unsigned setting(const char* name, unsigned fallback) {
  const char* value = std::getenv(name);
  return value != nullptr ? static_cast<unsigned>(std::atoi(value)) : fallback;
}

}  // namespace

void run(const Launch& launch) {
  static u32 launches = 0;
  current_launch = &launch;
  random_bits.seed(setting("ATTN_EMULATOR_SEED", 1) * 7919 + launches++);
  lanes_apart = setting("ATTN_EMULATOR_LANES", 0) != 0;
  const std::size_t resident = setting("ATTN_EMULATOR_RESIDENT", 3);
  const u32 total = launch.grid_x * launch.grid_y * launch.grid_z;
  if (launch.grid_x % launch.cluster != 0) {
    fail("%s: %u blocks along x in clusters of %u", launch.name, launch.grid_x, launch.cluster);
  }
  if (setting("ATTN_EMULATOR_VERBOSE", 0) != 0) {
    std::fprintf(stderr, "emulator: %s %u x %u x %u blocks, %u threads, %u bytes\n", launch.name,
                 launch.grid_x, launch.grid_y, launch.grid_z, launch.threads, launch.shared_bytes);
  }
  u32 next = 0;
  long idle = 0;
  long last_progress = progress;
  while (next < total || !blocks.empty() || !copies.empty()) {
    for (; blocks.size() < resident && next < total; next += launch.cluster) {
      add_cluster(launch, next);
    }
    const bool ran = run_round();
    if (progress != last_progress) {
      last_progress = progress;
      idle = 0;
      continue;
    }
    ++idle;
    if (idle > kMaxIdlePolls || (!ran && !lanes_apart && idle > kMaxIdleRounds)) report_deadlock();
  }
}

}  // namespace emulator
