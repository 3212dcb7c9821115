// Device memory, a stream and timers over the driver; see device.hpp.
#include "device.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <string_view>

#include "cuda/host/binaries.hpp"
#include "cuda/host/device.hpp"
#include "throw_if_failed.hpp"

namespace attn::harness {
namespace {

constexpr std::int64_t kAllocationAlignment = 256;  // alignment of cuMemAlloc
constexpr std::int64_t kMostKept = 64ll << 20;      // larger blocks are freed at once

const cuda::Driver& driver_of_process() {
  std::string reason;
  const cuda::Driver* driver = cuda::Driver::get(reason);
  if (driver == nullptr) throw Error(ErrorCode::unsupported, "cuda: " + reason);
  return *driver;
}

cuda::abi::DevicePointer number(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

}  // namespace

struct DeviceQueue::State {
  State(std::int32_t device, bool exact_pieces)
      : driver(driver_of_process()), ordinal(device), exact(exact_pieces) {}

  const cuda::Driver& driver;
  std::int32_t ordinal;
  bool exact;
  const cuda::DeviceFacts* facts = nullptr;
  cuda::abi::Stream stream = nullptr;
  std::multimap<std::int64_t, void*> idle;  // by capacity
  std::map<void*, std::int64_t> taken;      // value: capacity
  std::vector<cuda::abi::Event> events;
  std::size_t marks = 0;  // number of events since spans() was called

  void call(cuda::abi::Result result, std::string_view name, const std::string& tried) const {
    throw_if_failed(driver.status(result, name, tried + " on cuda:" + std::to_string(ordinal)));
  }
};

DeviceQueue::DeviceQueue(std::int32_t ordinal, bool exact)
    : state_(std::make_unique<State>(ordinal, exact)) {
  State& s = *state_;
  throw_if_failed(cuda::device_facts(s.driver, ordinal, s.facts));
  const auto here = current();
  s.call(s.driver.api().cuStreamCreate(&s.stream, cuda::abi::kStreamNonBlocking), "cuStreamCreate",
         "making a stream");
}

DeviceQueue::~DeviceQueue() {
  State& s = *state_;
  const cuda::CurrentContext here(s.driver, s.ordinal);
  const cuda::DriverApi& api = s.driver.api();
  api.cuStreamSynchronize(s.stream);
  for (const auto& [memory, bytes] : s.taken) api.cuMemFree_v2(number(memory));
  for (const auto& [bytes, memory] : s.idle) api.cuMemFree_v2(number(memory));
  for (cuda::abi::Event event : s.events) api.cuEventDestroy_v2(event);
  api.cuStreamDestroy_v2(s.stream);
}

std::int32_t DeviceQueue::ordinal() const {
  return state_->ordinal;
}

bool DeviceQueue::exact() const {
  return state_->exact;
}

void* DeviceQueue::stream() const {
  return state_->stream;
}

std::string DeviceQueue::device_name() const {
  return state_->facts->name;
}

std::string DeviceQueue::driver_version() const {
  return cuda::version_text(state_->driver.version());
}

std::int64_t DeviceQueue::l2_bytes() const {
  return state_->facts->l2_bytes;
}

std::int64_t DeviceQueue::free_bytes() const {
  const auto here = current();
  std::size_t free = 0;
  std::size_t total = 0;
  state_->call(state_->driver.api().cuMemGetInfo_v2(&free, &total), "cuMemGetInfo",
               "asking for the free memory");
  return static_cast<std::int64_t>(free);
}

std::shared_ptr<const void> DeviceQueue::current() const {
  auto context = std::make_shared<const cuda::CurrentContext>(state_->driver, state_->ordinal);
  throw_if_failed(context->status());
  return context;
}

void* DeviceQueue::take(std::int64_t bytes) {
  State& s = *state_;
  std::int64_t capacity = std::max<std::int64_t>(bytes, 1);
  if (!s.exact) {
    capacity = (capacity + kAllocationAlignment - 1) / kAllocationAlignment * kAllocationAlignment;
    // Not a much larger block, so that a small tensor does not occupy a large one's memory.
    const auto found = s.idle.lower_bound(capacity);
    if (found != s.idle.end() && found->first <= 2 * capacity) {
      void* memory = found->second;
      s.taken.emplace(memory, found->first);
      s.idle.erase(found);
      return memory;
    }
  }
  const auto here = current();
  cuda::abi::DevicePointer pointer = 0;
  s.call(s.driver.api().cuMemAlloc_v2(&pointer, static_cast<std::size_t>(capacity)), "cuMemAlloc",
         "taking " + std::to_string(capacity) + " bytes");
  auto* memory = reinterpret_cast<void*>(pointer);  // NOLINT
  s.taken.emplace(memory, capacity);
  return memory;
}

void DeviceQueue::give_back(void* memory) {
  State& s = *state_;
  const auto found = s.taken.find(memory);
  if (found == s.taken.end()) return;
  const std::int64_t capacity = found->second;
  s.taken.erase(found);
  if (!s.exact && capacity <= kMostKept) {
    s.idle.emplace(capacity, memory);
    return;
  }
  const cuda::CurrentContext here(s.driver, s.ordinal);
  s.driver.api().cuStreamSynchronize(s.stream);
  s.driver.api().cuMemFree_v2(number(memory));
}

void DeviceQueue::upload(void* to, const void* from, std::int64_t bytes) {
  if (bytes <= 0) return;
  const auto here = current();
  // From pageable memory: returns after the bytes were read.
  state_->call(state_->driver.api().cuMemcpyHtoDAsync_v2(
                   number(to), from, static_cast<std::size_t>(bytes), state_->stream),
               "cuMemcpyHtoDAsync", "copying " + std::to_string(bytes) + " bytes");
}

void DeviceQueue::download(void* to, const void* from, std::int64_t bytes) {
  if (bytes <= 0) return;
  const auto here = current();
  // To pageable memory: returns after the bytes were written.
  state_->call(state_->driver.api().cuMemcpyDtoHAsync_v2(
                   to, number(from), static_cast<std::size_t>(bytes), state_->stream),
               "cuMemcpyDtoHAsync", "copying " + std::to_string(bytes) + " bytes back");
}

void DeviceQueue::synchronize() {
  const auto here = current();
  state_->call(state_->driver.api().cuStreamSynchronize(state_->stream), "cuStreamSynchronize",
               "waiting for the work");
}

double DeviceQueue::pointer_seconds(const void* pointer) const {
  using Clock = std::chrono::steady_clock;
  constexpr int kQuestions = 1000;
  const auto here = current();
  const auto start = Clock::now();
  for (int n = 0; n < kQuestions; ++n) {
    throw_if_failed(cuda::check_pointer(state_->driver, "q", pointer, state_->ordinal));
  }
  return std::chrono::duration<double>(Clock::now() - start).count() / kQuestions;
}

void DeviceQueue::mark() {
  State& s = *state_;
  const auto here = current();
  if (s.marks == s.events.size()) {
    cuda::abi::Event event = nullptr;
    s.call(s.driver.api().cuEventCreate(&event, 0), "cuEventCreate", "making an event");
    s.events.push_back(event);
  }
  s.call(s.driver.api().cuEventRecord(s.events[s.marks], s.stream), "cuEventRecord",
         "recording an event");
  ++s.marks;
}

std::vector<double> DeviceQueue::spans() {
  State& s = *state_;
  synchronize();
  const auto here = current();
  std::vector<double> seconds;
  for (std::size_t n = 1; n < s.marks; ++n) {
    float milliseconds = 0.0f;
    s.call(s.driver.api().cuEventElapsedTime(&milliseconds, s.events[n - 1], s.events[n]),
           "cuEventElapsedTime", "timing");
    seconds.push_back(1e-3 * static_cast<double>(milliseconds));
  }
  s.marks = 0;
  return seconds;
}

StartUp time_start_up(std::int32_t ordinal) {
  using Clock = std::chrono::steady_clock;
  auto start = Clock::now();
  const auto lap = [&start] {
    const auto now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - start).count();
    start = now;
    return seconds;
  };
  StartUp result;
  const cuda::Driver& driver = driver_of_process();
  result.driver = lap();
  const cuda::CurrentContext context(driver, ordinal);
  throw_if_failed(context.status());
  result.context = lap();
  const cuda::DeviceFacts* facts = nullptr;
  throw_if_failed(cuda::device_facts(driver, ordinal, facts));
  lap();
  std::string reason;
  const cuda::Nvrtc* nvrtc = cuda::Nvrtc::get(driver.version(), reason);
  if (nvrtc == nullptr) throw Error(ErrorCode::unsupported, "cuda: " + reason);
  const std::string architecture =
      cuda::choose_architecture(facts->capability(), nvrtc->capabilities());
  const cuda::Unit empty{{"empty.cu", "extern \"C\" __global__ void empty() {}"}, {}, ""};
  throw_if_failed(
      nvrtc->compile(empty, "namespace config {}\n", cuda::compile_options(), architecture).status);
  result.compiler = lap();
  result.compiler_version = cuda::version_text(nvrtc->version());
  return result;
}

}  // namespace attn::harness
