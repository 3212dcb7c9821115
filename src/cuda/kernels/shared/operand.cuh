// The size of the matrix products' operands, for kernels and the plans of their shared memory.
#pragma once

namespace attn::device {

// Bytes of an element of q, k, v, dout, P and dS in shared memory: mma.sync and wgmma take f16 or
// bf16 here, whatever type bias, statistics or outputs have.
inline constexpr int kOperandBytes = 2;

}  // namespace attn::device
