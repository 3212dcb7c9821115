// The cache of compiled kernels: calls the backend of a device, even if it can't run here.
#include <attn/cache.hpp>
#include <string>

#include "api/state.hpp"
#include "core/validate.hpp"

namespace attn {

namespace {

const core::Backend& backend_of(const Context::State& state, Device device) {
  for (const core::Backend* backend : state.backends) {
    if (backend->device() == device) return *backend;
  }
  throw Error(ErrorCode::unsupported, "no backend of this device");
}

}  // namespace

CacheResult cache_build(Context& context, const CacheRequest& request, Device device) {
  const Context::State& state = context.state();
  if (request.threads < 0) {
    throw Error(
        ErrorCode::invalid_argument,
        "cache_build: threads: found " + std::to_string(request.threads) + "; accepted 0 and more");
  }
  for (const CacheRequest::Call& call : request.calls) {
    api::check(core::validate_problem(call.pass, call.problem));
  }
  CacheResult result;
  api::check(
      backend_of(state, device).cache_build(request, state.executor_on({device, 0}), result));
  return result;
}

std::string cache_folder(Context& context, Device device) {
  const Context::State& state = context.state();
  std::string folder;
  api::check(backend_of(state, device).cache_list(state.executor_on({device, 0}), folder, nullptr));
  return folder;
}

std::vector<CacheEntry> cache_list(Context& context, Device device) {
  const Context::State& state = context.state();
  std::string folder;
  std::vector<CacheEntry> entries;
  api::check(
      backend_of(state, device).cache_list(state.executor_on({device, 0}), folder, &entries));
  return entries;
}

std::int64_t cache_clear(Context& context, Device device) {
  const Context::State& state = context.state();
  std::int64_t removed = 0;
  api::check(backend_of(state, device).cache_clear(state.executor_on({device, 0}), removed));
  return removed;
}

}  // namespace attn
