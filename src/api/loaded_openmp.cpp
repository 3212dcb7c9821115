// Finds the process's OpenMP runtime and runs parallel regions in it, without linking to it.
//
// A second runtime in a process would mean twice as many threads as CPUs, spinning against each
// other, and with some pairs of runtimes an abort. GOMP_parallel is what compilers call for a
// parallel region in GNU's runtime; LLVM's and Intel's offer it too.
#include "api/loaded_openmp.hpp"

#include <atomic>
#include <string>
#include <string_view>

#include "api/threads.hpp"
#include "api/workers.hpp"
#include "platform/platform.hpp"

namespace attn::api {

namespace {

struct Runtime {
  void (*parallel)(void (*region)(void*), void* data, unsigned threads, unsigned flags);
  int (*thread_num)();
  int (*num_threads)();
  std::string path;
};

constinit Workers own_workers;

std::atomic<const Runtime*> bound{nullptr};  // never freed: the runtime stays loaded
std::atomic<std::uint64_t> adds_seen{0};

// "libgomp-a34b3233.so.1" and "libomp.so.5" are runtimes; "libomptarget.so" is not.
bool names_a_runtime(std::string_view path) {
  const std::string_view file = path.substr(path.rfind('/') + 1);
  for (const std::string_view stem : {"libgomp", "libomp", "libiomp5"}) {
    if (file.substr(0, stem.size()) == stem && file.size() > stem.size() &&
        (file[stem.size()] == '.' || file[stem.size()] == '-')) {
      return true;
    }
  }
  return false;
}

template <class Function>
bool look_up(void* library, const char* name, Function** function) {
  *function = reinterpret_cast<Function*>(platform::find_symbol(library, name));
  return *function != nullptr;
}

const Runtime* bind() {
  const std::string path = platform::find_loaded(names_a_runtime);
  if (path.empty()) return nullptr;
  void* library = platform::keep_loaded(path);
  if (library == nullptr) return nullptr;
  auto* runtime = new Runtime{nullptr, nullptr, nullptr, path};
  if (look_up(library, "GOMP_parallel", &runtime->parallel) &&
      look_up(library, "omp_get_thread_num", &runtime->thread_num) &&
      look_up(library, "omp_get_num_threads", &runtime->num_threads)) {
    const Runtime* other = nullptr;
    if (bound.compare_exchange_strong(other, runtime, std::memory_order_acq_rel)) return runtime;
    delete runtime;
    return other;
  }
  delete runtime;
  return nullptr;
}

// The runtime, or null. While there is none, searches again after each newly loaded library.
const Runtime* find() {
  if (const Runtime* runtime = bound.load(std::memory_order_acquire)) return runtime;
  const std::uint64_t adds = platform::libraries_added();
  if (adds == adds_seen.load(std::memory_order_relaxed)) return nullptr;
  const Runtime* runtime = bind();
  adds_seen.store(adds, std::memory_order_relaxed);
  return runtime;
}

struct Region {
  const Runtime* runtime;
  std::int32_t workers;
  void (*body)(void*, std::int32_t);
  void* body_data;
};

// What each thread of the team runs. The team may be smaller than requested.
void run_share(void* data) {
  const Region& region = *static_cast<const Region*>(data);
  const std::int32_t threads = region.runtime->num_threads();
  for (std::int32_t worker = region.runtime->thread_num(); worker < region.workers;
       worker += threads) {
    region.body(region.body_data, worker);
  }
}

// Resets own_workers in forked children, which do not inherit the helper threads. Returns true.
bool forget_helpers_in_children() {
  platform::at_fork_in_child([] { own_workers.forget(); });
  return true;
}

}  // namespace

void loaded_parallel_for(void*, std::int32_t workers, void (*body)(void*, std::int32_t),
                         void* body_data) {
  if (workers > 1 && !survived_a_fork()) {
    if (const Runtime* runtime = find()) {
      Region region{runtime, workers, body, body_data};
      runtime->parallel(run_share, &region, static_cast<unsigned>(workers), 0);
      return;
    }
  }
  [[maybe_unused]] static const bool watching = forget_helpers_in_children();
  own_workers.run(workers, body, body_data);
}

const char* loaded_openmp_path() {
  const Runtime* runtime = survived_a_fork() ? nullptr : find();
  return runtime == nullptr ? "" : runtime->path.c_str();
}

std::int32_t own_helpers() {
  return own_workers.helpers();
}

}  // namespace attn::api
