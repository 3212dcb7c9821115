// Unrolls marked loops of a WGSL source.
//
// Private arrays stay in registers only if every index is a constant, and drivers do not unroll all
// loops that would make it one. So a loop such as
//
//   for (var n = 0u; n < LIMIT; n += 1u) {  // unrolled to 4
//
// becomes four copies of `if (0u < LIMIT) { const n = 0u; ... }`. If LIMIT is a number such as 4u,
// the mark `// unrolled` is enough and the copies have no condition. Loop bodies must not contain
// break or continue. The source is also valid, with the same meaning, if its loops are not
// unrolled.
#pragma once

#include <string>
#include <string_view>

namespace attn::webgpu {

// The copies after the first are in one line, so that line numbers in compiler messages stay valid.
std::string unrolled(std::string_view source);

}  // namespace attn::webgpu
