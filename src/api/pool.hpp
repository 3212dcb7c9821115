// Pool: scratch memory of a Context, one block per concurrent call. A block is as large as the
// largest workspace that it has served.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace attn::api {

inline constexpr std::size_t kWorkspaceAlignment = 64;

class Pool {
 public:
  // Keeps idle blocks of up to `limit` bytes in total.
  explicit Pool(std::int64_t limit);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  struct Block {
    void* data = nullptr;
    std::int64_t bytes = 0;
  };

  // A block in use. data() is null if there was not enough memory, or bytes was 0.
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
  std::vector<Block> idle_;  // capacity kMaxIdle, so push_back never allocates
  std::int64_t idle_bytes_ = 0;
  std::int64_t limit_;
};

}  // namespace attn::api
