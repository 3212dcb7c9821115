// Pool: scratch memory of a Context, one block for each call in flight, each exactly as long as the
// largest call that it has served.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace attn::api {

inline constexpr std::size_t kWorkspaceAlignment = 64;

class Pool {
 public:
  // Idle blocks are kept up to `limit` bytes in all.
  explicit Pool(std::int64_t limit);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  struct Block {
    void* data = nullptr;
    std::int64_t bytes = 0;
  };

  // A block while it is in use. Without data: there was not enough memory (or bytes was 0).
  class Lease {
   public:
    Lease(Pool& pool, std::int64_t bytes) : pool_(pool), block_(pool.take(bytes)) {}
    ~Lease() { pool_.put(block_); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    [[nodiscard]] void* data() const { return block_.data; }

   private:
    Pool& pool_;
    Block block_;
  };

 private:
  Block take(std::int64_t bytes);
  void put(Block block);

  std::mutex mutex_;
  std::vector<Block> idle_;  // with room for kMaxIdle: never grows
  std::int64_t idle_bytes_ = 0;
  std::int64_t limit_;
};

}  // namespace attn::api
