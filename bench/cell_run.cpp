// Calls and times of a cell; see cell_run.hpp.
#include "bench/cell_run.hpp"

#include <algorithm>
#include <cmath>

#include "bench/timer.hpp"
#include "cases/mirror.hpp"

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

// Calls take sets of the same tensors in turn, so many that the device's L2 has dropped a set when
// its turn comes again.
class DeviceRun final : public CellRun {
 public:
  DeviceRun(Context& context, const Cell& cell, const Inputs& inputs, cases::DeviceQueue& queue)
      : context_(context), cell_(cell), queue_(queue), current_(queue.current()) {
    workspace_size_ = workspace_bytes(context_, cell.pass, cell.problem, Device::cuda);
    workspace_ = queue_.take(workspace_size_);
    std::int64_t wanted = kLeastSets;
    for (std::int64_t n = 0; n < wanted; ++n) {
      add_set(inputs.arguments);
      const std::int64_t covers = kCovered * queue_.l2_bytes() / std::max(sets_[0]->bytes(), 1l);
      wanted = std::clamp<std::int64_t>(covers + 1, kLeastSets, kMostSets);
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
    // Kernels are loaded now: what a call still takes and keeps is its own.
    const std::int64_t free = queue_.free_bytes();
    next();
    queue_.synchronize();
    kept_bytes_ = std::max<std::int64_t>(0, free - queue_.free_bytes());
    sets_[0]->download();
  }

  void sample(double budget, std::vector<double>& out) override {
    // Events around many calls where one is so short that their own time, about 2 us, would count.
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
  static constexpr std::int64_t kLeastSets = 2;
  static constexpr std::int64_t kMostSets = 64;
  static constexpr std::int64_t kCovered = 4;  // times L2

  void add_set(const Arguments& host) {
    auto& set = *sets_.emplace_back(std::make_unique<cases::Mirror>(queue_));
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

  // Seconds of a call, `count` times, each the mean of `batch` calls. Calls ahead of the first
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
  cases::DeviceQueue& queue_;
  std::shared_ptr<const void> current_;
  void* workspace_ = nullptr;
  std::int64_t workspace_size_ = 0;
  std::int64_t kept_bytes_ = 0;
  std::vector<std::unique_ptr<cases::Mirror>> sets_;
  std::vector<Arguments> forwards_;  // of a backward's sets
  std::vector<Arguments> arguments_;
  std::size_t turn_ = 0;
};

}  // namespace

std::unique_ptr<CellRun> ready(Context& context, const Cell& cell, const Inputs& inputs,
                               cases::DeviceQueue* device) {
  if (device == nullptr) return std::make_unique<HostRun>(context, cell, inputs);
  return std::make_unique<DeviceRun>(context, cell, inputs, *device);
}

}  // namespace attn::bench
