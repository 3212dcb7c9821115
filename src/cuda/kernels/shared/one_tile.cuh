// Key ranges that one tile of keys holds, for host and device.
#pragma once

namespace attn::device {

// Whether keys [begin, end) are all in one tile of `tile` keys. Not if there are none.
constexpr bool InOneTile(int begin, int end, int tile) {
  return begin < end && begin / tile == (end - 1) / tile;
}

}  // namespace attn::device
