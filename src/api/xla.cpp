// Handlers for XLA's foreign function interface, which libattn.jax registers: attn_xla_*.
//
// A call's attributes:
//   problem            string: the Problem, as to_string(Problem) prints it
//   inputs, outputs    string: names of the tensors in Arguments, in the order of the buffers
//   scale, softcap, dropout_p, rope_base                           f64
//   diag, rope_pos_offset, origin_batch, _head, _q, _kv, _heads_q  i64
// Absent numbers keep their defaults. seed and offset are input buffers of 8 bytes each.
//
// On CUDA the work is queued on XLA's stream, and the workspace comes from XLA's allocator.
#include "api/xla.hpp"

#include <attn/attn.h>

#include <algorithm>
#include <attn/attn.hpp>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "api/xla_abi.hpp"

namespace attn::api::xla {

namespace {

constexpr std::pair<std::string_view, TensorView Arguments::*> kTensors[] = {
    {"q", &Arguments::q},
    {"k", &Arguments::k},
    {"v", &Arguments::v},
    {"o", &Arguments::o},
    {"lse", &Arguments::lse},
    {"bias", &Arguments::bias},
    {"mask", &Arguments::mask},
    {"alibi_slopes", &Arguments::alibi_slopes},
    {"sinks", &Arguments::sinks},
    {"len_q", &Arguments::len_q},
    {"len_kv", &Arguments::len_kv},
    {"cu_len_q", &Arguments::cu_len_q},
    {"cu_len_kv", &Arguments::cu_len_kv},
    {"kv_begin", &Arguments::kv_begin},
    {"kv_end", &Arguments::kv_end},
    {"descale_q", &Arguments::descale_q},
    {"descale_k", &Arguments::descale_k},
    {"descale_v", &Arguments::descale_v},
    {"rope_cos", &Arguments::rope_cos},
    {"rope_sin", &Arguments::rope_sin},
    {"rope_pos_q", &Arguments::rope_pos_q},
    {"rope_pos_k", &Arguments::rope_pos_k},
    {"dout", &Arguments::dout},
    {"dlse", &Arguments::dlse},
    {"dq", &Arguments::dq},
    {"dk", &Arguments::dk},
    {"dv", &Arguments::dv},
    {"dbias", &Arguments::dbias},
    {"dsink", &Arguments::dsink},
};
constexpr std::pair<std::string_view, double Arguments::*> kReals[] = {
    {"softcap", &Arguments::softcap},
    {"dropout_p", &Arguments::dropout_p},
    {"rope_base", &Arguments::rope_base},
};
constexpr std::pair<std::string_view, std::int64_t Origin::*> kOrigin[] = {
    {"origin_batch", &Origin::batch},
    {"origin_head", &Origin::head},
    {"origin_q", &Origin::q},
    {"origin_kv", &Origin::kv},
    {"origin_heads_q", &Origin::heads_q},
};

[[noreturn]] void refuse(std::string_view rule, const std::string& found,
                         std::string_view accepted) {
  throw attn::Error(
      attn::ErrorCode::invalid_argument,
      "xla: " + std::string(rule) + ": found " + found + "; accepted " + std::string(accepted));
}

template <class Table>
auto* find(const Table& table, std::string_view name) {
  for (const auto& entry : table) {
    if (entry.first == name) return &entry.second;
  }
  return static_cast<decltype(&table[0].second)>(nullptr);
}

// State shared by all calls. Never destroyed: XLA's threads may run until the process ends.
struct Shared {
  std::mutex mutex{};
  std::int32_t threads = 0;
  std::shared_ptr<attn::Context> context{};  // made by the first call
  // Parsed problems by their text, because parsing is slow compared with a call of 10 us.
  std::unordered_map<std::string, Problem> problems{};
};

Shared& shared() {
  static Shared& instance = *new Shared;
  return instance;
}

std::shared_ptr<attn::Context> context_of_calls() {
  Shared& all = shared();
  const std::lock_guard lock(all.mutex);
  if (all.context == nullptr) {
    ContextOptions options;
    options.threads = all.threads;
    all.context = std::make_shared<attn::Context>(options);
  }
  return all.context;
}

Problem problem_of(std::string_view text) {
  constexpr std::size_t kMost = 1024;
  std::string key(text);
  Shared& all = shared();
  const std::lock_guard lock(all.mutex);
  const auto found = all.problems.find(key);
  if (found != all.problems.end()) return found->second;
  const Problem problem = parse_problem(key);
  if (all.problems.size() >= kMost) all.problems.clear();
  all.problems.emplace(std::move(key), problem);
  return problem;
}

DType dtype_of(std::string_view name, DataType dtype) {
  switch (dtype) {
    case DataType::f32: return DType::f32;
    case DataType::f16: return DType::f16;
    case DataType::bf16: return DType::bf16;
    case DataType::f64: return DType::f64;
    case DataType::f8e4m3fn: return DType::f8e4m3;
    case DataType::f8e5m2: return DType::f8e5m2;
    case DataType::s32: return DType::i32;
    case DataType::s8: return DType::i8;
    case DataType::u8:
    case DataType::pred: return DType::u8;
    case DataType::s64:
    case DataType::u32:
    case DataType::u64: break;
  }
  refuse("type of " + std::string(name), "type " + std::to_string(static_cast<int>(dtype)),
         "f32, f16, bf16, f64, f8e4m3fn, f8e5m2, s32, s8, u8 or pred");
}

TensorView view_of(std::string_view name, const Buffer& buffer, Device device,
                   std::int32_t ordinal) {
  if (buffer.rank < 1 || buffer.rank > kMaxRank) {
    refuse("rank of " + std::string(name), std::to_string(buffer.rank), "1 to 4");
  }
  TensorView view;
  view.data = buffer.data;
  view.dtype = dtype_of(name, buffer.dtype);
  view.device = device;
  view.ordinal = ordinal;
  view.rank = static_cast<std::int32_t>(buffer.rank);
  std::int64_t stride = 1;
  for (std::size_t d = static_cast<std::size_t>(buffer.rank); d-- > 0;) {
    view.shape[d] = buffer.dims[d];
    view.strides[d] = stride;
    stride *= buffer.dims[d] > 0 ? buffer.dims[d] : 1;
  }
  return view;
}

// The attributes of a call.
class Reader {
 public:
  explicit Reader(const Attributes& attributes) {
    for (std::int64_t i = 0; i < attributes.size; ++i) {
      const std::string_view name(attributes.names[i]->data, attributes.names[i]->size);
      if (attributes.types[i] == AttributeType::string) {
        read(name, *static_cast<const Text*>(attributes.items[i]));
      } else if (attributes.types[i] == AttributeType::scalar) {
        read(name, *static_cast<const Scalar*>(attributes.items[i]));
      } else {
        refuse("attribute " + std::string(name), "an array or a dictionary", "a text or a number");
      }
    }
  }

  std::string_view problem{}, inputs{}, outputs{};
  Arguments arguments{};

 private:
  void read(std::string_view name, const Text& text) {
    const std::string_view value(text.data, text.size);
    if (name == "problem") {
      problem = value;
    } else if (name == "inputs") {
      inputs = value;
    } else if (name == "outputs") {
      outputs = value;
    } else {
      unknown(name);
    }
  }

  void read(std::string_view name, const Scalar& scalar) {
    if (scalar.dtype == DataType::f64) {
      const double value = *static_cast<const double*>(scalar.value);
      if (name == "scale") {
        arguments.scale = value;
      } else if (const auto* member = find(kReals, name)) {
        arguments.*(*member) = value;
      } else {
        unknown(name);
      }
    } else if (scalar.dtype == DataType::s64) {
      const std::int64_t value = *static_cast<const std::int64_t*>(scalar.value);
      if (name == "diag") {
        arguments.diag = value;
      } else if (name == "rope_pos_offset") {
        arguments.rope_pos_offset = value;
      } else if (const auto* member = find(kOrigin, name)) {
        arguments.origin.*(*member) = value;
      } else {
        unknown(name);
      }
    } else {
      refuse("type of attribute " + std::string(name),
             "type " + std::to_string(static_cast<int>(scalar.dtype)), "f64 or s64");
    }
  }

  [[noreturn]] static void unknown(std::string_view name) {
    refuse("attribute", "'" + std::string(name) + "'", "those of libattn.jax of this version");
  }
};

void place(std::string_view name, const Buffer& buffer, Device device, std::int32_t ordinal,
           Arguments& arguments) {
  if (name == "seed" || name == "offset") {
    const auto* value = static_cast<const std::uint64_t*>(buffer.data);
    (name == "seed" ? arguments.seed : arguments.offset) = value;
    return;
  }
  const auto* member = find(kTensors, name);
  if (member == nullptr) {
    refuse("tensor", "'" + std::string(name) + "'", "those of libattn.jax of this version");
  }
  arguments.*(*member) = view_of(name, buffer, device, ordinal);
}

// Assigns buffers to the tensors of these names. `names` is separated by spaces.
void place(std::string_view names, const Buffers& buffers, Device device, std::int32_t ordinal,
           Arguments& arguments) {
  const auto count = names.empty() ? 0 : 1 + std::count(names.begin(), names.end(), ' ');
  if (count != buffers.size) {
    refuse("buffers", std::to_string(buffers.size) + " for '" + std::string(names) + "'",
           "one for each name");
  }
  for (std::int64_t i = 0; i < buffers.size; ++i) {
    const std::size_t end = std::min(names.find(' '), names.size());
    place(names.substr(0, end), *static_cast<const Buffer*>(buffers.items[i]), device, ordinal,
          arguments);
    names.remove_prefix(std::min(end + 1, names.size()));
  }
}

ErrorCode code_of(attn::ErrorCode code) {
  switch (code) {
    case attn::ErrorCode::invalid_argument: return ErrorCode::invalid_argument;
    case attn::ErrorCode::unsupported: return ErrorCode::unimplemented;
    case attn::ErrorCode::out_of_memory: return ErrorCode::resource_exhausted;
    case attn::ErrorCode::device_error: return ErrorCode::unavailable;
    case attn::ErrorCode::interrupted: return ErrorCode::aborted;
    case attn::ErrorCode::internal:
    case attn::ErrorCode::ok: break;
  }
  return ErrorCode::internal;
}

Error* fail(const Api& api, ErrorCode code, const char* message) {
  ErrorArguments arguments{sizeof(ErrorArguments), nullptr, message, code};
  return api.create_error(&arguments);
}

// An error of one of XLA's functions. The handler returns it to XLA unchanged.
struct Failed {
  Error* error;
};

void check(Error* error) {
  if (error != nullptr) throw Failed{error};
}

// Memory of XLA's allocator for one call. The allocator reuses it only after the work queued on the
// stream.
class Workspace {
 public:
  Workspace(const CallFrame& frame, std::int64_t bytes)
      : api_(*frame.api),
        context_(frame.context),
        size_(bytes > 0 ? static_cast<std::size_t>(bytes) : 0) {
    if (size_ == 0) return;
    AllocateArguments arguments{sizeof(AllocateArguments), nullptr, context_, size_, 64, nullptr};
    check(api_.allocate(&arguments));
    data_ = arguments.data;
  }
  ~Workspace() {
    if (data_ == nullptr) return;
    FreeArguments arguments{sizeof(FreeArguments), nullptr, context_, size_, data_};
    Error* error = api_.free(&arguments);
    if (error == nullptr) return;
    DestroyArguments destroyed{sizeof(DestroyArguments), nullptr, error};
    api_.destroy_error(&destroyed);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  [[nodiscard]] void* data() const { return data_; }

 private:
  const Api& api_;
  Context* context_;
  std::size_t size_;
  void* data_ = nullptr;
};

// The CUDA device that runs this call. Assumes device 0 if XLA lacks get_ordinal.
std::int32_t ordinal_of(const CallFrame& frame) {
  if (frame.api->struct_size < offsetof(Api, get_ordinal) + sizeof(frame.api->get_ordinal)) {
    return 0;
  }
  OrdinalArguments arguments{sizeof(OrdinalArguments), nullptr, frame.context, 0};
  check(frame.api->get_ordinal(&arguments));
  return arguments.ordinal;
}

void* stream_of(const CallFrame& frame) {
  StreamArguments arguments{sizeof(StreamArguments), nullptr, frame.context, nullptr};
  check(frame.api->get_stream(&arguments));
  return arguments.stream;
}

void run(const CallFrame& frame, Pass pass, Device device) {
  Reader reader(frame.attributes);
  const Problem problem = problem_of(reader.problem);
  Arguments& arguments = reader.arguments;
  const bool on_cuda = device == Device::cuda;
  const std::int32_t ordinal = on_cuda ? ordinal_of(frame) : 0;
  place(reader.inputs, frame.arguments, device, ordinal, arguments);
  place(reader.outputs, frame.results, device, ordinal, arguments);
  const std::shared_ptr<attn::Context> context = context_of_calls();
  const auto call = pass == Pass::forward ? &attn::forward : &attn::backward;
  if (!on_cuda) return call(*context, problem, arguments);
  arguments.stream = stream_of(frame);
  const std::int64_t bytes = attn::workspace_bytes(*context, pass, problem, device);
  const Workspace workspace(frame, bytes);
  if (bytes > 0) {
    arguments.workspace = workspace.data();
    arguments.workspace_size = bytes;
  }
  call(*context, problem, arguments);
}

Error* handle(CallFrame& frame, Pass pass, Device device) noexcept {
  for (Extension* one = frame.extension; one != nullptr; one = one->next) {
    if (one->type != ExtensionType::metadata) continue;
    Metadata& metadata = *reinterpret_cast<MetadataExtension*>(one)->metadata;
    metadata.version.major = kMajor;
    metadata.version.minor = kMinor;
    // No trait that lets XLA record the call in a CUDA graph: the first call may compile kernels.
    metadata.traits = 0;
    return nullptr;
  }
  if (frame.stage != Stage::execute) return nullptr;
  try {
    run(frame, pass, device);
    return nullptr;
  } catch (const Failed& failed) {
    return failed.error;
  } catch (const attn::Error& error) {
    return fail(*frame.api, code_of(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return fail(*frame.api, ErrorCode::resource_exhausted, "not enough memory");
  } catch (const std::exception& error) {
    return fail(*frame.api, ErrorCode::internal, error.what());
  } catch (...) {
    return fail(*frame.api, ErrorCode::internal, "an unknown exception");
  }
}

void* handle(void* frame, Pass pass, Device device) noexcept {
  return handle(*static_cast<CallFrame*>(frame), pass, device);
}

}  // namespace

void set_threads(std::int32_t threads) {
  Shared& all = shared();
  const std::lock_guard lock(all.mutex);
  all.threads = threads;
  all.context.reset();  // running calls hold a reference to the old one
}

}  // namespace attn::api::xla

extern "C" {

void* attn_xla_forward_host(void* call_frame) {
  return attn::api::xla::handle(call_frame, attn::Pass::forward, attn::Device::host);
}

void* attn_xla_backward_host(void* call_frame) {
  return attn::api::xla::handle(call_frame, attn::Pass::backward, attn::Device::host);
}

void* attn_xla_forward_cuda(void* call_frame) {
  return attn::api::xla::handle(call_frame, attn::Pass::forward, attn::Device::cuda);
}

void* attn_xla_backward_cuda(void* call_frame) {
  return attn::api::xla::handle(call_frame, attn::Pass::backward, attn::Device::cuda);
}

}  // extern "C"
