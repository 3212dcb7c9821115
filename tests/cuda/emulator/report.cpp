// Errors and deadlocks, with source lines of the kernel.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "state.hpp"

namespace emulator {
namespace {

constexpr int kErrorStatus = 97;
constexpr int kDeadlockStatus = 98;
constexpr int kMaxFrames = 10;

// Prints the source lines of an address, if it is in a translated kernel.
void print_line(void* address) {
  Dl_info info{};
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return;
  if (std::strstr(info.dli_fname, "module") == nullptr) return;
  const long offset = static_cast<char*>(address) - static_cast<char*>(info.dli_fbase);
  char command[600];
  std::snprintf(command, sizeof command, "addr2line -i -s -e %s %#lx | head -8 | tr '\\n' ' '",
                info.dli_fname, offset - 1);
  std::fprintf(stderr, "      ");
  std::fflush(stderr);
  if (std::system(command) != 0) std::fprintf(stderr, "%#lx (no addr2line)", offset);
  std::fprintf(stderr, "\n");
}

// Follows frame pointers.
void print_stack(void** frame, void* address) {
  for (int i = 0; i < kMaxFrames && address != nullptr; ++i) {
    print_line(address);
    if (reinterpret_cast<std::uintptr_t>(frame) < 4096) return;
    auto** next = static_cast<void**>(frame[0]);
    address = frame[1];
    if (next <= frame) return;
    frame = next;
  }
}

void print_warp(const Warp& warp) {
  // Lanes that wait for the same, and one of them.
  std::map<std::string, std::pair<u32, const Fiber*>> waits;
  for (int lane = 0; lane < 32; ++lane) {
    const Fiber* fiber = warp.lanes[lane];
    if (fiber == nullptr) continue;
    char text[100];
    std::snprintf(text, sizeof text, "%s %#x %u",
                  fiber->wait == Wait::kExited ? "exited" : fiber->what, fiber->wait_a,
                  fiber->wait_b);
    auto& [lanes, example] = waits[text];
    lanes |= 1u << lane;
    example = fiber;
  }
  for (const auto& [text, wait] : waits) {
    const auto& [lanes, fiber] = wait;
    std::fprintf(stderr, "  warp %d lanes %08x: %s\n", warp.index, lanes, text.c_str());
    if (fiber->wait == Wait::kExited || fiber->wait == Wait::kReady) continue;
    // What attn_emulator_switch pushed: rbp is the sixth word, then the return address.
    auto** saved = static_cast<void**>(fiber->stack_pointer);
    print_stack(static_cast<void**>(saved[5]), saved[6]);
  }
}

void print_block(const Block& block) {
  std::fprintf(stderr, "block %u: %d live, dynamic shared at %#x\n", block.ids.block.x, block.live,
               block.dynamic_base);
  for (const auto& [address, barrier] : block.mbarriers) {
    std::fprintf(stderr,
                 "  mbarrier %#x (dynamic + %u): expected %u pending %u bytes %lld phase %u\n",
                 address, address - block.dynamic_base, barrier.expected, barrier.pending,
                 barrier.bytes, barrier.phase);
  }
  for (const Warp& warp : block.warps) print_warp(warp);
}

}  // namespace

void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::fprintf(stderr, "emulator: ");
  std::vfprintf(stderr, format, arguments);
  std::fprintf(stderr, "\n");
  va_end(arguments);
  if (current != nullptr) {
    std::fprintf(stderr, "  %s, block %u thread %d (warp %d lane %d)\n", current_launch->name,
                 current->ids.block.x, current->thread, current->thread / 32, current->lane);
    print_stack(static_cast<void**>(__builtin_frame_address(0)), __builtin_return_address(0));
  }
  std::fflush(stderr);
  _exit(kErrorStatus);
}

void report_deadlock() {
  std::fprintf(stderr, "emulator: deadlock in %s\n", current_launch->name);
  for (const auto& block : blocks) print_block(*block);
  std::fflush(stderr);
  _exit(kDeadlockStatus);
}

}  // namespace emulator
