// The declarations of driver_abi.hpp against the toolkit's cuda.h.
#include <cuda.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cuda/host/driver_abi.hpp"

namespace attn::cuda {
namespace {

// Passed the same way: both pointers, or both integers (or enumerations) of one size.
template <class Ours, class Theirs>
constexpr bool kSameParameter =
    std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> && sizeof(Ours) == sizeof(Theirs);

template <class Ours, class Theirs>
constexpr bool kSameSignature = false;
template <class... Ours, class... Theirs>
constexpr bool kSameSignature<abi::Result(Ours...), CUresult(Theirs...)> = [] {
  if constexpr (sizeof...(Ours) != sizeof...(Theirs))
    return false;
  else
    return (kSameParameter<Ours, Theirs> && ...);
}();

#define SAME_SIGNATURE(symbol, parameters) \
  static_assert(kSameSignature<abi::Result parameters, decltype(::symbol)>);
ATTN_CUDA_DRIVER_FUNCTIONS(SAME_SIGNATURE)

#define SAME(ours, theirs) static_assert(static_cast<int>(abi::ours) == static_cast<int>(theirs))
SAME(kSuccess, CUDA_SUCCESS);
SAME(kInvalidValue, CUDA_ERROR_INVALID_VALUE);
SAME(kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
SAME(kNotInitialized, CUDA_ERROR_NOT_INITIALIZED);
SAME(kStubLibrary, CUDA_ERROR_STUB_LIBRARY);
SAME(kNoDevice, CUDA_ERROR_NO_DEVICE);
SAME(kInvalidDevice, CUDA_ERROR_INVALID_DEVICE);
SAME(kInvalidImage, CUDA_ERROR_INVALID_IMAGE);
SAME(kNoBinaryForGpu, CUDA_ERROR_NO_BINARY_FOR_GPU);
SAME(kNotFound, CUDA_ERROR_NOT_FOUND);
SAME(kIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS);
SAME(kLaunchOutOfResources, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
SAME(kMultiprocessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(kL2CacheSize, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
SAME(kMaxThreadsPerMultiprocessor, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
SAME(kComputeCapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(kComputeCapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(kMaxSharedMemoryPerMultiprocessor, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
SAME(kMaxRegistersPerMultiprocessor, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
SAME(kMaxSharedMemoryPerBlockOptin, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
SAME(kPointerMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME(kPointerIsManaged, CU_POINTER_ATTRIBUTE_IS_MANAGED);
SAME(kPointerDeviceOrdinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME(kMemoryHost, CU_MEMORYTYPE_HOST);
SAME(kMemoryDevice, CU_MEMORYTYPE_DEVICE);
SAME(kFunctionMaxThreads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
SAME(kFunctionStaticSharedBytes, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
SAME(kFunctionLocalBytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
SAME(kFunctionRegisters, CU_FUNC_ATTRIBUTE_NUM_REGS);
SAME(kFunctionMaxDynamicSharedBytes, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME(kFunctionNonPortableClusterAllowed, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED);
SAME(kLaunchCooperative, CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
SAME(kLaunchClusterDimension, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
SAME(kLaunchProgrammaticSerialization, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
SAME(kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
SAME(kCaptureNone, CU_STREAM_CAPTURE_STATUS_NONE);
SAME(kCaptureActive, CU_STREAM_CAPTURE_STATUS_ACTIVE);
SAME(kCaptureModeRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME(kTensorMapU8, CU_TENSOR_MAP_DATA_TYPE_UINT8);
SAME(kTensorMapF16, CU_TENSOR_MAP_DATA_TYPE_FLOAT16);
SAME(kTensorMapF32, CU_TENSOR_MAP_DATA_TYPE_FLOAT32);
SAME(kTensorMapBf16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
SAME(kTensorMapInterleaveNone, CU_TENSOR_MAP_INTERLEAVE_NONE);
SAME(kTensorMapSwizzleNone, CU_TENSOR_MAP_SWIZZLE_NONE);
SAME(kTensorMapSwizzle32, CU_TENSOR_MAP_SWIZZLE_32B);
SAME(kTensorMapSwizzle64, CU_TENSOR_MAP_SWIZZLE_64B);
SAME(kTensorMapSwizzle128, CU_TENSOR_MAP_SWIZZLE_128B);
SAME(kTensorMapPromotion256, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
SAME(kTensorMapFillZero, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);

static_assert(sizeof(abi::LaunchAttribute) == sizeof(CUlaunchAttribute));
static_assert(offsetof(abi::LaunchAttribute, value) == offsetof(CUlaunchAttribute, value));
static_assert(sizeof(abi::LaunchConfig) == sizeof(CUlaunchConfig));
static_assert(offsetof(abi::LaunchConfig, block_x) == offsetof(CUlaunchConfig, blockDimX));
static_assert(offsetof(abi::LaunchConfig, shared_bytes) ==
              offsetof(CUlaunchConfig, sharedMemBytes));
static_assert(offsetof(abi::LaunchConfig, stream) == offsetof(CUlaunchConfig, hStream));
static_assert(offsetof(abi::LaunchConfig, attributes) == offsetof(CUlaunchConfig, attrs));
static_assert(offsetof(abi::LaunchConfig, num_attributes) == offsetof(CUlaunchConfig, numAttrs));
using TheirNode = CUDA_KERNEL_NODE_PARAMS_v2;
static_assert(sizeof(abi::KernelNodeParams) == sizeof(TheirNode));
static_assert(offsetof(abi::KernelNodeParams, function) == offsetof(TheirNode, func));
static_assert(offsetof(abi::KernelNodeParams, grid_x) == offsetof(TheirNode, gridDimX));
static_assert(offsetof(abi::KernelNodeParams, grid_z) == offsetof(TheirNode, gridDimZ));
static_assert(offsetof(abi::KernelNodeParams, block_x) == offsetof(TheirNode, blockDimX));
static_assert(offsetof(abi::KernelNodeParams, block_z) == offsetof(TheirNode, blockDimZ));
static_assert(offsetof(abi::KernelNodeParams, shared_bytes) == offsetof(TheirNode, sharedMemBytes));
static_assert(offsetof(abi::KernelNodeParams, parameters) == offsetof(TheirNode, kernelParams));
static_assert(offsetof(abi::KernelNodeParams, extra) == offsetof(TheirNode, extra));
static_assert(offsetof(abi::KernelNodeParams, kernel) == offsetof(TheirNode, kern));
static_assert(offsetof(abi::KernelNodeParams, context) == offsetof(TheirNode, ctx));
static_assert(sizeof(abi::TensorMap) == sizeof(CUtensorMap));

TEST(CudaAbi, LaunchAttributesLieWhereTheDriverReadsThem) {
  CUlaunchAttributeValue theirs{};
  theirs.clusterDim.z = 3;
  abi::LaunchAttributeValue ours{};
  ours.cluster.z = 3;
  EXPECT_EQ(std::memcmp(&theirs, &ours, sizeof ours), 0);
  theirs = {};
  ours = {};
  theirs.programmaticStreamSerializationAllowed = 1;
  ours.flag = 1;
  EXPECT_EQ(std::memcmp(&theirs, &ours, sizeof ours), 0);
}

TEST(CudaAbi, TheHandleThatIsAStreamOfEachThread) {
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(CU_STREAM_PER_THREAD), abi::kStreamPerThread);
}

}  // namespace
}  // namespace attn::cuda
