// Programmatic dependent launch (compute capability 9.0): one function per instruction. The
// functions do nothing on older devices, where kernels of a stream never overlap.
#pragma once

namespace ptx {

// Lets the next kernel of the stream start, if it was launched with programmatic dependent launch.
__device__ __forceinline__ void LaunchDependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Waits until the kernels before this one in the stream have ended and their writes are visible.
// Returns at once if this kernel was launched without the attribute.
__device__ __forceinline__ void WaitForPrimary() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace ptx
