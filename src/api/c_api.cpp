// The C entry points: convert structs, and exceptions to error codes and a message per thread.
#include <attn/attn.h>

#include <algorithm>
#include <attn/attn.hpp>
#include <cstring>
#include <new>
#include <string>
#include <string_view>

#include "api/c_convert.hpp"
#include "api/xla.hpp"
#include "core/names.hpp"
#include "core/tensor.hpp"

struct attn_context {
  attn::Context context;
};

namespace {

using attn::Error;
using attn::ErrorCode;
using attn::api::check_struct_size;
using attn::api::from_c;
using attn::api::to_c;

std::string& last_error() {
  thread_local std::string message;
  return message;
}

std::int32_t fail(ErrorCode code, const char* message) noexcept {
  try {
    last_error() = message;
  } catch (const std::bad_alloc&) {
    last_error().clear();
  }
  return static_cast<std::int32_t>(code);
}

template <class Body>
std::int32_t guarded(Body body) noexcept {
  try {
    body();
    return ATTN_OK;
  } catch (const Error& error) {
    return fail(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::out_of_memory, "not enough memory");
  } catch (const std::exception& error) {
    return fail(ErrorCode::internal, error.what());
  } catch (...) {
    return fail(ErrorCode::internal, "an unknown exception");
  }
}

template <class T>
T& need(const char* name, T* pointer) {
  if (pointer == nullptr) {
    throw Error(ErrorCode::invalid_argument,
                std::string(name) + ": pointer: found NULL; accepted the address of one");
  }
  return *pointer;
}

attn::Pass pass_of(std::int32_t pass) {
  const auto result = static_cast<attn::Pass>(pass);
  if (attn::core::is_known(result)) return result;
  throw Error(ErrorCode::invalid_argument, "pass: found " + std::to_string(pass) +
                                               "; accepted ATTN_FORWARD, ATTN_BACKWARD, "
                                               "ATTN_DECODE");
}

attn::Device device_of(std::int32_t device) {
  const auto result = static_cast<attn::Device>(device);
  if (attn::core::is_known(result)) return result;
  throw Error(ErrorCode::invalid_argument, "device: found " + std::to_string(device) +
                                               "; accepted ATTN_HOST, ATTN_CUDA, ATTN_WEBGPU");
}

attn::Problem problem_of(const attn_problem* problem) {
  return from_c(need("attn_problem", problem));
}

template <std::size_t n>
void copy_text(const std::string& text, char (&buffer)[n]) {
  const std::size_t length = std::min(text.size(), n - 1);
  std::memcpy(buffer, text.data(), length);
  buffer[length] = '\0';
}

void copy_text(const std::string& text, char* buffer, std::size_t size, std::size_t* needed) {
  if (needed != nullptr) *needed = text.size() + 1;
  if (size == 0) return;
  need("buffer", buffer);
  const std::size_t length = std::min(text.size(), size - 1);
  std::memcpy(buffer, text.data(), length);
  buffer[length] = '\0';
}

// Checks the caller's size, sets all fields to zero, then the defaults that `fill` sets.
template <class Struct, class Fill>
std::int32_t init(const char* type, Struct* pointer, std::uint32_t struct_size,
                  Fill fill) noexcept {
  return guarded([&] {
    Struct& target = need(type, pointer);
    check_struct_size(type, struct_size, sizeof(Struct));
    target = Struct{};
    target.struct_size = sizeof(Struct);
    fill(target);
  });
}

using Call = void (*)(attn::Context&, const attn::Problem&, const attn::Arguments&);

std::int32_t call(Call function, attn_context* context, const attn_problem* problem,
                  const attn_arguments* arguments) noexcept {
  return guarded([&] {
    attn::Context& target = need("attn_context", context).context;
    const attn::Problem cpp_problem = problem_of(problem);
    function(target, cpp_problem, from_c(need("attn_arguments", arguments)));
  });
}

}  // namespace

extern "C" {

int32_t attn_tensor_contiguous(attn_tensor* tensor, uint32_t struct_size, void* data, int32_t dtype,
                               int32_t rank, const int64_t* shape) {
  return guarded([&] {
    attn_tensor& target = need("attn_tensor", tensor);
    check_struct_size("attn_tensor", struct_size, sizeof target);
    need("shape", shape);
    if (rank < 1 || rank > attn::kMaxRank) {
      throw Error(ErrorCode::invalid_argument, "attn_tensor_contiguous: rank: found " +
                                                   std::to_string(rank) + "; accepted 1 to 4");
    }
    attn::TensorView view;
    view.data = data;
    view.dtype = static_cast<attn::DType>(dtype);
    view.rank = rank;
    std::copy_n(shape, rank, view.shape.begin());
    attn::core::set_contiguous_strides(view);
    target = to_c(view);
  });
}

int32_t attn_problem_init(attn_problem* problem, uint32_t struct_size) {
  return init("attn_problem", problem, struct_size,
              [](attn_problem& target) { target = to_c(attn::Problem{}); });
}

int32_t attn_arguments_init(attn_arguments* arguments, uint32_t struct_size) {
  return init("attn_arguments", arguments, struct_size,
              [](attn_arguments& target) { target.rope_base = attn::Arguments{}.rope_base; });
}

int32_t attn_merge_arguments_init(attn_merge_arguments* arguments, uint32_t struct_size) {
  return init("attn_merge_arguments", arguments, struct_size, [](attn_merge_arguments&) {});
}

int32_t attn_merge_backward_arguments_init(attn_merge_backward_arguments* arguments,
                                           uint32_t struct_size) {
  return init("attn_merge_backward_arguments", arguments, struct_size,
              [](attn_merge_backward_arguments&) {});
}

int32_t attn_rope_arguments_init(attn_rope_arguments* arguments, uint32_t struct_size) {
  return init("attn_rope_arguments", arguments, struct_size, [](attn_rope_arguments& target) {
    const attn::RopeArguments defaults;
    target.style = static_cast<int32_t>(defaults.style);
    target.base = defaults.base;
  });
}

int32_t attn_context_options_init(attn_context_options* options, uint32_t struct_size) {
  return init("attn_context_options", options, struct_size, [](attn_context_options& target) {
    target.pool_bytes = attn::ContextOptions{}.pool_bytes;
  });
}

int32_t attn_cache_request_init(attn_cache_request* request, uint32_t struct_size) {
  return init("attn_cache_request", request, struct_size,
              [](attn_cache_request& target) { target.device = ATTN_CUDA; });
}

int32_t attn_context_create(const attn_context_options* options, attn_context** context) {
  return guarded([&] {
    attn_context*& target = need("attn_context", context);
    target = nullptr;
    target = options == nullptr ? new attn_context{attn::Context{}}
                                : new attn_context{attn::Context{from_c(*options)}};
  });
}

void attn_context_destroy(attn_context* context) {
  delete context;
}

int32_t attn_context_threads(const attn_context* context) {
  return context == nullptr ? 0 : context->context.threads();
}

int32_t attn_forward(attn_context* context, const attn_problem* problem,
                     const attn_arguments* arguments) {
  return call(attn::forward, context, problem, arguments);
}

int32_t attn_backward(attn_context* context, const attn_problem* problem,
                      const attn_arguments* arguments) {
  return call(attn::backward, context, problem, arguments);
}

int32_t attn_decode(attn_context* context, const attn_problem* problem,
                    const attn_arguments* arguments) {
  return call(attn::decode, context, problem, arguments);
}

int32_t attn_merge(attn_context* context, const attn_merge_arguments* arguments) {
  return guarded([&] {
    attn::merge(need("attn_context", context).context,
                from_c(need("attn_merge_arguments", arguments)));
  });
}

int32_t attn_merge_backward(attn_context* context, const attn_merge_backward_arguments* arguments) {
  return guarded([&] {
    attn::merge_backward(need("attn_context", context).context,
                         from_c(need("attn_merge_backward_arguments", arguments)));
  });
}

int32_t attn_rope(attn_context* context, const attn_rope_arguments* arguments) {
  return guarded([&] {
    attn::rope(need("attn_context", context).context,
               from_c(need("attn_rope_arguments", arguments)));
  });
}

int32_t attn_describe(const attn_arguments* arguments, attn_problem* problem) {
  return guarded([&] {
    attn_problem& target = need("attn_problem", problem);
    check_struct_size("attn_problem", target.struct_size, sizeof target);
    target = to_c(attn::describe(from_c(need("attn_arguments", arguments))));
  });
}

int32_t attn_validate(int32_t pass, const attn_problem* problem, const attn_arguments* arguments) {
  return guarded([&] {
    attn::validate(pass_of(pass), problem_of(problem), from_c(need("attn_arguments", arguments)));
  });
}

int32_t attn_xla_set_threads(int32_t threads) {
  return guarded([&] {
    if (threads < 0) {
      throw Error(ErrorCode::invalid_argument, "attn_xla_set_threads: threads: found " +
                                                   std::to_string(threads) +
                                                   "; accepted 0 or more");
    }
    attn::api::xla::set_threads(threads);
  });
}

int32_t attn_prepare(attn_context* context, int32_t pass, const attn_problem* problem,
                     int32_t device) {
  return guarded([&] {
    attn::prepare(need("attn_context", context).context, pass_of(pass), problem_of(problem),
                  device_of(device));
  });
}

int32_t attn_workspace_bytes(attn_context* context, int32_t pass, const attn_problem* problem,
                             int32_t device, int64_t* bytes) {
  return guarded([&] {
    need("bytes", bytes) =
        attn::workspace_bytes(need("attn_context", context).context, pass_of(pass),
                              problem_of(problem), device_of(device));
  });
}

int32_t attn_output_shapes(int32_t pass, const attn_problem* problem, attn_outputs* outputs) {
  return guarded([&] {
    attn_outputs& target = need("attn_outputs", outputs);
    check_struct_size("attn_outputs", target.struct_size, sizeof target);
    const attn::Outputs shapes = attn::output_shapes(pass_of(pass), problem_of(problem));
    target.o = to_c(shapes.o);
    target.lse = to_c(shapes.lse);
    target.dq = to_c(shapes.dq);
    target.dk = to_c(shapes.dk);
    target.dv = to_c(shapes.dv);
    target.dbias = to_c(shapes.dbias);
    target.dsink = to_c(shapes.dsink);
  });
}

int32_t attn_supports(attn_context* context, int32_t pass, const attn_problem* problem,
                      int32_t device, attn_verdict* verdict) {
  return guarded([&] {
    attn_verdict& target = need("attn_verdict", verdict);
    check_struct_size("attn_verdict", target.struct_size, sizeof target);
    const attn::Verdict result =
        attn::supports(need("attn_context", context).context, pass_of(pass), problem_of(problem),
                       device_of(device));
    target.supported = result.supported ? 1 : 0;
    copy_text(result.backend, target.backend);
    copy_text(result.reason, target.reason);
  });
}

int32_t attn_plan(attn_context* context, int32_t pass, const attn_problem* problem, int32_t device,
                  attn_plan_summary* summary) {
  return guarded([&] {
    attn_plan_summary& target = need("attn_plan_summary", summary);
    check_struct_size("attn_plan_summary", target.struct_size, sizeof target);
    const attn::PlanSummary result =
        attn::plan(need("attn_context", context).context, pass_of(pass), problem_of(problem),
                   device_of(device));
    copy_text(result.backend, target.backend);
    copy_text(result.kernel, target.kernel);
    copy_text(result.config, target.config);
    target.tile_q = result.tile_q;
    target.tile_kv = result.tile_kv;
    target.tasks = result.tasks;
    target.workspace_bytes = result.workspace_bytes;
  });
}

int32_t attn_backend_at(attn_context* context, int32_t index, attn_backend_info* info,
                        int32_t* count) {
  return guarded([&] {
    attn_backend_info& target = need("attn_backend_info", info);
    check_struct_size("attn_backend_info", target.struct_size, sizeof target);
    const auto list = attn::backends(need("attn_context", context).context);
    if (count != nullptr) *count = static_cast<int32_t>(list.size());
    if (index < 0 || static_cast<std::size_t>(index) >= list.size()) {
      throw Error(ErrorCode::invalid_argument, "attn_backend_at: index: found " +
                                                   std::to_string(index) + "; accepted 0 to " +
                                                   std::to_string(list.size() - 1));
    }
    const attn::BackendInfo& result = list[static_cast<std::size_t>(index)];
    target.built = result.built ? 1 : 0;
    target.usable = result.usable ? 1 : 0;
    copy_text(result.name, target.name);
    copy_text(result.detail, target.detail);
  });
}

int32_t attn_cache_build(attn_context* context, const attn_cache_request* request,
                         attn_cache_result* result) {
  return guarded([&] {
    attn::Context& target = need("attn_context", context).context;
    const attn_cache_request& asked = need("attn_cache_request", request);
    attn_cache_result& made = need("attn_cache_result", result);
    check_struct_size("attn_cache_result", made.struct_size, sizeof made);
    const attn::CacheResult cpp = attn::cache_build(target, from_c(asked), device_of(asked.device));
    made.binaries = cpp.binaries;
    made.compiled = cpp.compiled;
    made.refused = cpp.refused;
    copy_text(cpp.reason, made.reason);
  });
}

int32_t attn_cache_folder(attn_context* context, int32_t device, char* buffer, size_t size,
                          size_t* needed) {
  return guarded([&] {
    copy_text(attn::cache_folder(need("attn_context", context).context, device_of(device)), buffer,
              size, needed);
  });
}

int32_t attn_cache_list(attn_context* context, int32_t device, attn_cache_entry* entries,
                        int32_t capacity, int32_t* count) {
  return guarded([&] {
    const auto list = attn::cache_list(need("attn_context", context).context, device_of(device));
    if (capacity > 0) need("attn_cache_entry", entries);
    for (int32_t i = 0; i < capacity && static_cast<std::size_t>(i) < list.size(); ++i) {
      const attn::CacheEntry& entry = list[static_cast<std::size_t>(i)];
      attn_cache_entry& target = entries[i];
      check_struct_size("attn_cache_entry", target.struct_size, sizeof target);
      target.valid = entry.valid ? 1 : 0;
      target.bytes = entry.bytes;
      copy_text(entry.architecture, target.architecture);
      copy_text(entry.compiler, target.compiler);
      copy_text(entry.kernel, target.kernel);
      copy_text(entry.path, target.path);
    }
    if (count != nullptr) *count = static_cast<int32_t>(list.size());
  });
}

int32_t attn_cache_clear(attn_context* context, int32_t device, int64_t* removed) {
  return guarded([&] {
    const std::int64_t count =
        attn::cache_clear(need("attn_context", context).context, device_of(device));
    if (removed != nullptr) *removed = count;
  });
}

int32_t attn_explain(attn_context* context, int32_t pass, const attn_problem* problem,
                     int32_t device, char* buffer, size_t size, size_t* needed) {
  return guarded([&] {
    copy_text(attn::explain(need("attn_context", context).context, pass_of(pass),
                            problem_of(problem), device_of(device)),
              buffer, size, needed);
  });
}

int32_t attn_problem_print(const attn_problem* problem, char* buffer, size_t size, size_t* needed) {
  return guarded([&] { copy_text(attn::to_string(problem_of(problem)), buffer, size, needed); });
}

int32_t attn_problem_parse(const char* text, attn_problem* problem) {
  return guarded([&] {
    attn_problem& target = need("attn_problem", problem);
    check_struct_size("attn_problem", target.struct_size, sizeof target);
    need("text", text);
    target = to_c(attn::parse_problem(text));
  });
}

const char* attn_last_error(void) {
  return last_error().c_str();
}

const char* attn_version(void) {
  return attn::version();
}

const char* attn_error_name(int32_t code) {
  return attn::to_string(static_cast<ErrorCode>(code));
}

const char* attn_dtype_name(int32_t dtype) {
  return attn::to_string(static_cast<attn::DType>(dtype));
}

int64_t attn_dtype_size(int32_t dtype) {
  return attn::size_of(static_cast<attn::DType>(dtype));
}

}  // extern "C"
