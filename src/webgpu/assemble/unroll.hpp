// Unroll: loops of a WGSL source, written out.
//
// Arrays of a thread stay in registers only where every index is a constant, and drivers do not
// unroll all loops that would make it one. So a loop like
//
//   for (var n = 0u; n < LIMIT; n += 1u) {  // unrolled to 4
//
// becomes four copies of `if (0u < LIMIT) { const n = 0u; ... }`. Where LIMIT is a number such as
// 4u,
// `// unrolled` will do and the copies have no condition. Bodies without break and continue. The
// text is valid, and means the same, with its loops.
#pragma once

#include <string>
#include <string_view>

namespace attn::webgpu {

// Copies after the first stand in one line, so that lines keep their numbers in what compilers say.
std::string unrolled(std::string_view source);

}  // namespace attn::webgpu
