// The element size of the matrix products' operands, for kernels and for the host's shared-memory
// plans.
#pragma once

namespace attn::device {

// Bytes of an element of q, k, v, dout, P and dS in shared memory: mma.sync and wgmma take f16 or
// bf16 operands, whatever type the bias, the statistics or the outputs have.
inline constexpr int kOperandBytes = 2;

}  // namespace attn::device
