// Calls and times of a cell; see cell_run.hpp.
#include "bench/cell_run.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "bench/timer.hpp"
#include "harness/mirror.hpp"

namespace attn::bench {
namespace {

Problem problem_of(const Cell& cell, Pass pass) {
  Problem problem = cell.problem;
  if (pass != cell.pass) problem.lse = true;  // the forward of a backward
  return problem;
}

void call(Context& context, const Cell& cell, Pass pass, const Arguments& arguments) {
  const Problem problem = problem_of(cell, pass);
  switch (pass) {
    case Pass::forward: return forward(context, problem, arguments);
    case Pass::backward: return backward(context, problem, arguments);
    case Pass::decode: return decode(context, problem, arguments);
  }
}

class HostRun final : public CellRun {
 public:
  HostRun(Context& context, const Cell& cell, const Inputs& inputs)
      : context_(context), cell_(cell), inputs_(inputs) {}

  void call_once() override {
    if (cell_.pass == Pass::backward) call(context_, cell_, Pass::forward, inputs_.arguments);
    call(context_, cell_, cell_.pass, inputs_.arguments);
  }

  void sample(double budget, std::vector<double>& out) override {
    constexpr int kLeastCalls = 2;
    bench::sample([this] { call(context_, cell_, cell_.pass, inputs_.arguments); }, budget,
                  kLeastCalls, out);
  }

  std::int64_t extra_bytes() const override {
    return workspace_bytes(context_, cell_.pass, cell_.problem);
  }

 private:
  Context& context_;
  const Cell& cell_;
  const Inputs& inputs_;
};

// Number of sets of `bytes` that cover this much memory: 2 to 64, and one per layer.
std::int64_t num_sets(const Cell& cell, std::int64_t covered, std::int64_t bytes) {
  const std::int64_t sets = covered / std::max<std::int64_t>(bytes, 1) + 1;
  return std::max(std::clamp<std::int64_t>(sets, 2, 64), cell.layers);
}

// Calls rotate over several sets of tensors, enough that L2 has evicted a set before it is used
// again.
class DeviceRun final : public CellRun {
 public:
  DeviceRun(Context& context, const Cell& cell, const Inputs& inputs, harness::DeviceQueue& queue)
      : context_(context), cell_(cell), queue_(queue), current_(queue.current()) {
    workspace_size_ = workspace_bytes(context_, cell.pass, cell.problem, Device::cuda);
    workspace_ = queue_.take(workspace_size_);
    std::int64_t wanted = 1;
    for (std::int64_t n = 0; n < wanted; ++n) {
      add_set(inputs.arguments);
      wanted = num_sets(cell, kCovered * queue_.l2_bytes(), sets_[0]->bytes());
    }
  }

  ~DeviceRun() override { queue_.give_back(workspace_); }

  void call_once() override {
    for (std::size_t n = sets_.size(); n-- > 0;) {
      if (cell_.pass == Pass::backward) {
        call(context_, cell_, Pass::forward, forwards_[n]);
      }
      call(context_, cell_, cell_.pass, arguments_[n]);
      queue_.synchronize();
    }
    // Kernels are loaded now, so any further memory belongs to the call.
    const std::int64_t free = queue_.free_bytes();
    next();
    queue_.synchronize();
    kept_bytes_ = std::max<std::int64_t>(0, free - queue_.free_bytes());
    sets_[0]->download();
  }

  void sample(double budget, std::vector<double>& out) override {
    // Short calls are timed in groups: an event itself takes about 2 us.
    constexpr double kLeastSpan = 1e-3;
    constexpr double kMostCalls = 1000.0;  // queued at once
    const double once = std::max(spans(1, 3).back(), 1e-6);
    const double batch = std::clamp(std::ceil(kLeastSpan / once), 1.0, 200.0);
    const double count =
        std::clamp(budget / (once * batch), 5.0, std::max(5.0, kMostCalls / batch));
    for (double spent = 0.0; spent == 0.0 || spent < budget;) {
      for (const double seconds : spans(static_cast<int>(batch), static_cast<int>(count))) {
        out.push_back(seconds);
        spent += seconds * batch;
      }
    }
  }

  std::int64_t extra_bytes() const override { return workspace_size_ + kept_bytes_; }

 private:
  static constexpr std::int64_t kCovered = 4;  // times L2

  void add_set(const Arguments& host) {
    auto& set = *sets_.emplace_back(std::make_unique<harness::Mirror>(queue_));
    const auto moved = [&](Pass pass) {
      const Problem problem = problem_of(cell_, pass);
      set.add_tensors(pass, problem, host);
      Arguments arguments = set.arguments(pass, problem, host);
      return arguments;
    };
    if (cell_.pass == Pass::backward) forwards_.push_back(moved(Pass::forward));
    arguments_.push_back(moved(cell_.pass));
    arguments_.back().workspace = workspace_;
    arguments_.back().workspace_size = workspace_size_;
  }

  void next() {
    call(context_, cell_, cell_.pass, arguments_[turn_]);
    turn_ = (turn_ + 1) % arguments_.size();
  }

  // `count` times, each the mean of `batch` calls, in seconds per call. Calls before the first
  // event keep the device busy until the host has queued more.
  std::vector<double> spans(int batch, int count) {
    for (int n = 0; n < 2 * batch; ++n) next();
    queue_.mark();
    for (int n = 0; n < count; ++n) {
      for (int m = 0; m < batch; ++m) next();
      queue_.mark();
    }
    std::vector<double> seconds = queue_.spans();
    for (double& x : seconds) x /= batch;
    return seconds;
  }

  Context& context_;
  const Cell& cell_;
  harness::DeviceQueue& queue_;
  std::shared_ptr<const void> current_;
  void* workspace_ = nullptr;
  std::int64_t workspace_size_ = 0;
  std::int64_t kept_bytes_ = 0;
  std::vector<std::unique_ptr<harness::Mirror>> sets_;
  std::vector<Arguments> forwards_;  // for a backward, one per set
  std::vector<Arguments> arguments_;
  std::size_t turn_ = 0;
};

// The same through WebGPU, which does not report the size of L2.
class WebgpuRun final : public CellRun {
 public:
  WebgpuRun(const Cell& cell, const Inputs& inputs, harness::WebgpuQueue& queue) : queue_(queue) {
    std::vector<std::pair<Pass, Problem>> calls;
    if (cell.pass == Pass::backward) {
      calls.emplace_back(Pass::forward, problem_of(cell, Pass::forward));
    }
    calls.emplace_back(cell.pass, cell.problem);
    std::int64_t wanted = 1;
    for (std::int64_t n = 0; n < wanted; ++n) {
      sets_.push_back(std::make_unique<harness::WebgpuCalls>(queue, inputs.arguments, calls));
      wanted = num_sets(cell, queue.uncached_bytes(), sets_[0]->bytes());
    }
  }

  void call_once() override {
    for (const auto& set : sets_) set->run();
    sets_[0]->download();
  }

  void sample(double budget, std::vector<double>& out) override {
    // Clocks fall while a device waits for the host. With spans of 2 ms an H200's clock, and with
    // it the bandwidth of decode, fell to a fifth.
    constexpr double kLeastSpan = 40e-3;
    constexpr double kMostCalls = 1000.0;  // recorded at once
    queue_.warm_up();
    const double once = std::max(span(1), 1e-6);
    const auto batch =
        static_cast<std::int64_t>(std::clamp(std::ceil(kLeastSpan / once), 1.0, kMostCalls));
    for (double spent = 0.0; spent == 0.0 || spent < budget;) {
      out.push_back(span(batch));
      spent += out.back() * static_cast<double>(batch);
    }
  }

  std::int64_t extra_bytes() const override { return sets_[0]->extra_bytes(); }

 private:
  // Mean seconds per call over `count` calls.
  double span(std::int64_t count) {
    std::vector<const harness::WebgpuCalls*> turns;
    for (std::int64_t n = 0; n < count; ++n) {
      turns.push_back(sets_[turn_].get());
      turn_ = (turn_ + 1) % sets_.size();
    }
    return queue_.seconds(turns) / static_cast<double>(count);
  }

  harness::WebgpuQueue& queue_;
  std::vector<std::unique_ptr<harness::WebgpuCalls>> sets_;
  std::size_t turn_ = 0;
};

}  // namespace

Opened::Opened(const harness::Place& place) : device(harness::device_of_tensors(place)) {
  if (place.device == Device::cuda) cuda = std::make_unique<harness::DeviceQueue>(place.ordinal);
  if (place.device == Device::webgpu) webgpu = std::make_unique<harness::WebgpuQueue>();
}

std::unique_ptr<CellRun> ready(Context& context, const Cell& cell, const Inputs& inputs,
                               const Opened& opened) {
  if (opened.webgpu) return std::make_unique<WebgpuRun>(cell, inputs, *opened.webgpu);
  if (opened.cuda) return std::make_unique<DeviceRun>(context, cell, inputs, *opened.cuda);
  return std::make_unique<HostRun>(context, cell, inputs);
}

}  // namespace attn::bench
