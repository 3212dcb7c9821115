// Plan: what a backend will launch for a problem on a device. Made once for many calls, printable.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

namespace attn::core {

struct ConfigEntry {
  const char* name = nullptr;
  std::int64_t value = 0;
};

struct Plan {
  const char* kernel = "";
  std::array<ConfigEntry, 24> config{};  // ends at the first entry without a name
  std::int64_t tile_q = 0;
  std::int64_t tile_kv = 0;
  std::int64_t tasks = 0;  // independent pieces of work
  std::int64_t workspace_bytes = 0;
  std::shared_ptr<const void> own;  // what else the backend made, so that calls need not look it up
};

}  // namespace attn::core
