// The part of the CUDA driver's stable ABI that libattn uses, declared here so that building needs
// no cuda.h; tests/cuda/abi_test.cpp compares every value, size and signature with cuda.h's.
// Semantics: CUDA Driver API reference. Enumerations are passed as int, as the ABI does.
#pragma once

#include <cstddef>
#include <cstdint>

namespace attn::cuda::abi {

using Result = int;
using Device = int;  // the ordinal
using DevicePointer = unsigned long long;
using Context = struct ContextHandle*;
using Module = struct ModuleHandle*;
using Function = struct FunctionHandle*;
using Stream = struct StreamHandle*;
using Event = struct EventHandle*;
using Graph = struct GraphHandle*;
using GraphNode = struct GraphNodeHandle*;
using GraphExec = struct GraphExecHandle*;

inline constexpr Result kSuccess = 0;
inline constexpr Result kInvalidValue = 1;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kNotInitialized = 3;
inline constexpr Result kStubLibrary = 34;
inline constexpr Result kNoDevice = 100;
inline constexpr Result kInvalidDevice = 101;
inline constexpr Result kInvalidImage = 200;
inline constexpr Result kNoBinaryForGpu = 209;
inline constexpr Result kNotFound = 500;
inline constexpr Result kIllegalAddress = 700;
inline constexpr Result kLaunchOutOfResources = 701;

// CUdevice_attribute
inline constexpr int kMultiprocessorCount = 16;
inline constexpr int kL2CacheSize = 38;
inline constexpr int kMaxThreadsPerMultiprocessor = 39;
inline constexpr int kComputeCapabilityMajor = 75;
inline constexpr int kComputeCapabilityMinor = 76;
inline constexpr int kMaxSharedMemoryPerMultiprocessor = 81;
inline constexpr int kMaxRegistersPerMultiprocessor = 82;
inline constexpr int kMaxSharedMemoryPerBlockOptin = 97;

// CUpointer_attribute, CUmemorytype
inline constexpr int kPointerMemoryType = 2;
inline constexpr int kPointerIsManaged = 8;
inline constexpr int kPointerDeviceOrdinal = 9;
inline constexpr unsigned kMemoryHost = 1;
inline constexpr unsigned kMemoryDevice = 2;

// CUfunction_attribute
inline constexpr int kFunctionMaxThreads = 0;
inline constexpr int kFunctionStaticSharedBytes = 1;
inline constexpr int kFunctionLocalBytes = 3;
inline constexpr int kFunctionRegisters = 4;
inline constexpr int kFunctionMaxDynamicSharedBytes = 8;
inline constexpr int kFunctionNonPortableClusterAllowed = 14;

// CUlaunchAttributeID
inline constexpr int kLaunchCooperative = 2;
inline constexpr int kLaunchClusterDimension = 4;
inline constexpr int kLaunchProgrammaticSerialization = 6;

// CUstream_flags
inline constexpr unsigned kStreamNonBlocking = 1;

// CUstreamCaptureStatus, CUstreamCaptureMode
inline constexpr int kCaptureNone = 0;
inline constexpr int kCaptureActive = 1;
inline constexpr int kCaptureModeRelaxed = 2;

// CU_STREAM_PER_THREAD: the same handle means a different stream in each thread.
inline constexpr std::uintptr_t kStreamPerThread = 2;

union LaunchAttributeValue {
  char pad[64];
  int flag;  // cooperative, programmaticStreamSerializationAllowed
  struct {
    unsigned x, y, z;
  } cluster;
};

struct LaunchAttribute {
  int id;
  char pad[4];
  LaunchAttributeValue value;
};

struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned num_attributes;
};

// CUDA_KERNEL_NODE_PARAMS_v2
struct KernelNodeParams {
  Function function;
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_bytes;
  void** parameters;
  void** extra;
  void* kernel;     // used if function is null
  Context context;  // likewise
};

// 128 bytes, passed to a kernel as __grid_constant__.
struct alignas(64) TensorMap {
  std::uint64_t opaque[16];
};

// CUtensorMapDataType, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
// CUtensorMapFloatOOBfill
inline constexpr int kTensorMapU8 = 0;
inline constexpr int kTensorMapF16 = 6;
inline constexpr int kTensorMapF32 = 7;
inline constexpr int kTensorMapBf16 = 9;
inline constexpr int kTensorMapInterleaveNone = 0;
inline constexpr int kTensorMapSwizzleNone = 0;
inline constexpr int kTensorMapSwizzle32 = 1;
inline constexpr int kTensorMapSwizzle64 = 2;
inline constexpr int kTensorMapSwizzle128 = 3;
inline constexpr int kTensorMapPromotion256 = 3;
inline constexpr int kTensorMapFillZero = 0;

}  // namespace attn::cuda::abi

// X(symbol, parameters): the functions of the driver. Each returns abi::Result. A symbol has the
// suffix (_v2) that cuda.h adds to the function's name.
#define ATTN_CUDA_DRIVER_FUNCTIONS(X)                                                              \
  X(cuInit, (unsigned flags))                                                                      \
  X(cuDriverGetVersion, (int* version))                                                            \
  X(cuGetErrorName, (abi::Result result, const char** name))                                       \
  X(cuGetErrorString, (abi::Result result, const char** text))                                     \
  X(cuDeviceGetCount, (int* count))                                                                \
  X(cuDeviceGet, (abi::Device * device, int ordinal))                                              \
  X(cuDeviceGetName, (char* name, int length, abi::Device device))                                 \
  X(cuDeviceGetAttribute, (int* value, int attribute, abi::Device device))                         \
  X(cuDeviceTotalMem_v2, (std::size_t* bytes, abi::Device device))                                 \
  X(cuDevicePrimaryCtxRetain, (abi::Context * context, abi::Device device))                        \
  X(cuCtxGetCurrent, (abi::Context * context))                                                     \
  X(cuCtxGetDevice, (abi::Device * device))                                                        \
  X(cuCtxGetId, (abi::Context context, unsigned long long* id))                                    \
  X(cuCtxPushCurrent_v2, (abi::Context context))                                                   \
  X(cuCtxPopCurrent_v2, (abi::Context * context))                                                  \
  X(cuPointerGetAttributes,                                                                        \
    (unsigned count, int* attributes, void** values, abi::DevicePointer pointer))                  \
  X(cuModuleLoadData, (abi::Module * module, const void* image))                                   \
  X(cuModuleUnload, (abi::Module module))                                                          \
  X(cuModuleGetFunction, (abi::Function * function, abi::Module module, const char* name))         \
  X(cuFuncGetAttribute, (int* value, int attribute, abi::Function function))                       \
  X(cuFuncSetAttribute, (abi::Function function, int attribute, int value))                        \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor,                                                   \
    (int* blocks, abi::Function function, int threads, std::size_t shared_bytes))                  \
  X(cuLaunchKernelEx,                                                                              \
    (const abi::LaunchConfig* config, abi::Function function, void** parameters, void** extra))    \
  X(cuStreamIsCapturing, (abi::Stream stream, int* status))                                        \
  X(cuStreamGetCtx, (abi::Stream stream, abi::Context * context))                                  \
  X(cuThreadExchangeStreamCaptureMode, (int* mode))                                                \
  X(cuGraphCreate, (abi::Graph * graph, unsigned flags))                                           \
  X(cuGraphAddKernelNode_v2,                                                                       \
    (abi::GraphNode * node, abi::Graph graph, const abi::GraphNode* dependencies,                  \
     std::size_t num_dependencies, const abi::KernelNodeParams* params))                           \
  X(cuGraphKernelNodeSetAttribute,                                                                 \
    (abi::GraphNode node, int attribute, const abi::LaunchAttributeValue* value))                  \
  X(cuGraphInstantiateWithFlags,                                                                   \
    (abi::GraphExec * exec, abi::Graph graph, unsigned long long flags))                           \
  X(cuGraphUpload, (abi::GraphExec exec, abi::Stream stream))                                      \
  X(cuGraphExecKernelNodeSetParams_v2,                                                             \
    (abi::GraphExec exec, abi::GraphNode node, const abi::KernelNodeParams* params))               \
  X(cuGraphLaunch, (abi::GraphExec exec, abi::Stream stream))                                      \
  X(cuGraphExecDestroy, (abi::GraphExec exec))                                                     \
  X(cuGraphDestroy, (abi::Graph graph))                                                            \
  X(cuMemAllocAsync, (abi::DevicePointer * pointer, std::size_t bytes, abi::Stream stream))        \
  X(cuMemFreeAsync, (abi::DevicePointer pointer, abi::Stream stream))                              \
  X(cuMemsetD8Async,                                                                               \
    (abi::DevicePointer pointer, unsigned char value, std::size_t count, abi::Stream stream))      \
  X(cuMemAlloc_v2, (abi::DevicePointer * pointer, std::size_t bytes))                              \
  X(cuMemFree_v2, (abi::DevicePointer pointer))                                                    \
  X(cuMemGetInfo_v2, (std::size_t* free, std::size_t* total))                                      \
  X(cuMemcpyHtoDAsync_v2,                                                                          \
    (abi::DevicePointer to, const void* from, std::size_t bytes, abi::Stream stream))              \
  X(cuMemcpyDtoHAsync_v2,                                                                          \
    (void* to, abi::DevicePointer from, std::size_t bytes, abi::Stream stream))                    \
  X(cuStreamCreate, (abi::Stream * stream, unsigned flags))                                        \
  X(cuStreamSynchronize, (abi::Stream stream))                                                     \
  X(cuStreamDestroy_v2, (abi::Stream stream))                                                      \
  X(cuEventCreate, (abi::Event * event, unsigned flags))                                           \
  X(cuEventRecord, (abi::Event event, abi::Stream stream))                                         \
  X(cuEventSynchronize, (abi::Event event))                                                        \
  X(cuEventElapsedTime, (float* milliseconds, abi::Event start, abi::Event end))                   \
  X(cuEventDestroy_v2, (abi::Event event))                                                         \
  X(cuTensorMapEncodeTiled,                                                                        \
    (abi::TensorMap * map, int type, std::uint32_t rank, void* address, const std::uint64_t* dims, \
     const std::uint64_t* strides, const std::uint32_t* box, const std::uint32_t* element_strides, \
     int interleave, int swizzle, int promotion, int fill))
