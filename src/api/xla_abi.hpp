// The part of XLA's foreign function interface (FFI) that the handlers in xla.cpp use: structures
// in the layout of its C ABI, version 0.1, and the values of its enumerations.
//
// XLA calls a handler with a CallFrame. A non-null Error tells XLA that the call failed. Later
// minor versions only append fields, and struct_size shows which fields exist. So a handler that
// reports 0.1 and reads these fields runs in every later 0.x. python/tests/jax/test_jax_abi.py
// compares each offset and value with the header in jaxlib (xla/ffi/api/c_api.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace attn::api::xla {

inline constexpr int kMajor = 0;
inline constexpr int kMinor = 1;

struct Error;    // opaque
struct Context;  // opaque; of one invocation

enum class ErrorCode : int {
  invalid_argument = 3,
  resource_exhausted = 8,
  aborted = 10,
  unimplemented = 12,
  internal = 13,
  unavailable = 14,
};
enum class DataType : int {
  pred = 1,
  s8 = 2,
  s32 = 4,
  s64 = 5,
  u8 = 6,
  u32 = 8,
  u64 = 9,
  f16 = 10,
  f32 = 11,
  f64 = 12,
  bf16 = 16,
  f8e5m2 = 19,
  f8e4m3fn = 20,
};
enum class ArgumentType : int { buffer = 1 };
enum class AttributeType : int { array = 1, dictionary = 2, scalar = 3, string = 4 };
enum class ExtensionType : int { metadata = 1 };
enum class Stage : int { instantiate = 0, prepare = 1, initialize = 2, execute = 3 };

struct Extension {
  std::size_t struct_size;
  ExtensionType type;
  Extension* next;
};

struct Version {
  std::size_t struct_size;
  Extension* extension;
  int major;
  int minor;
};

struct Metadata {
  std::size_t struct_size;
  Version version;
  std::uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct Text {
  const char* data;
  std::size_t size;
};

struct Scalar {
  DataType dtype;
  const void* value;
};

struct Buffer {
  std::size_t struct_size;
  Extension* extension;
  DataType dtype;
  void* data;
  std::int64_t rank;
  const std::int64_t* dims;  // [rank]; elements are row-major
};

// Arguments and results of a call.
struct Buffers {
  std::size_t struct_size;
  Extension* extension;
  std::int64_t size;
  const ArgumentType* types;  // [size]
  void* const* items;         // [size]: Buffer*
};

struct Attributes {
  std::size_t struct_size;
  Extension* extension;
  std::int64_t size;
  const AttributeType* types;  // [size]
  const Text* const* names;    // [size]
  void* const* items;          // [size]: Scalar* or Text*
};

struct ErrorArguments {
  std::size_t struct_size;
  Extension* extension;
  const char* message;
  ErrorCode code;
};

struct StreamArguments {
  std::size_t struct_size;
  Extension* extension;
  Context* context;
  void* stream;  // set by XLA: a CUstream
};

struct AllocateArguments {
  std::size_t struct_size;
  Extension* extension;
  Context* context;
  std::size_t size;
  std::size_t alignment;
  void* data;  // set by XLA
};

struct FreeArguments {
  std::size_t struct_size;
  Extension* extension;
  Context* context;
  std::size_t size;
  void* data;
};

struct OrdinalArguments {
  std::size_t struct_size;
  Extension* extension;
  Context* context;
  std::int32_t ordinal;  // set by XLA
};

struct DestroyArguments {
  std::size_t struct_size;
  Extension* extension;
  Error* error;
};

// XLA's functions. Those that libattn does not use have type const void*.
struct Api {
  std::size_t struct_size;
  Extension* extension;
  Version version;
  const void* internal;

  Error* (*create_error)(ErrorArguments*);
  const void* get_error_details;
  void (*destroy_error)(DestroyArguments*);
  const void* register_handler;
  Error* (*get_stream)(StreamArguments*);
  const void* register_type;
  const void* get_execution_context;
  const void* set_state;
  const void* get_state;
  Error* (*allocate)(AllocateArguments*);
  Error* (*free)(FreeArguments*);
  const void* schedule;
  const void* count_threads;
  const void* create_future;
  const void* set_future;
  const void* set_future_error;
  const void* get_run_id;
  Error* (*get_ordinal)(OrdinalArguments*);  // since 0.2: struct_size shows whether it exists
};

struct CallFrame {
  std::size_t struct_size;
  Extension* extension;
  const Api* api;
  Context* context;
  Stage stage;
  Buffers arguments;
  Buffers results;
  Attributes attributes;
};

}  // namespace attn::api::xla
