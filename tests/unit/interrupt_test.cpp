// Interruption: a call ends when should_stop says so, alone, soon, and without a trace in later
// ones.
#include "core/interrupt.hpp"

#include <attn/attn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <attn/attn.hpp>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace attn {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// What should_stop is asked: a flag, and what the test wants to know of the questions.
struct Flag {
  std::atomic<bool> set{false};
  std::atomic<std::int64_t> asked{0};
  std::thread::id caller = std::this_thread::get_id();
  std::atomic<bool> from_other_thread{false};

  static std::int32_t read(void* user) {
    Flag& flag = *static_cast<Flag*>(user);
    ++flag.asked;
    if (std::this_thread::get_id() != flag.caller) flag.from_other_thread = true;
    return flag.set ? 1 : 0;
  }
};

// A call of `len` queries and keys. Outputs of the backward hold q, k and v of their own.
struct Tensors {
  explicit Tensors(std::int64_t len, std::int64_t heads_kv = 2) {
    problem =
        parse_problem("dtype=f32 heads_q=2 dim_qk=64 dim_vo=64 len_q=" + std::to_string(len) +
                      " len_kv=" + std::to_string(len) + " heads_kv=" + std::to_string(heads_kv));
    const auto tensor = [&](std::initializer_list<std::int64_t> shape, float value) {
      std::int64_t elements = 1;
      for (const std::int64_t size : shape) elements *= size;
      memory.emplace_back(static_cast<std::size_t>(elements), value);
      return TensorView::contiguous(memory.back().data(), DType::f32, shape);
    };
    memory.reserve(16);
    Arguments& a = arguments;
    a.q = tensor({1, len, 2, 64}, 0.1f);
    a.k = tensor({1, len, heads_kv, 64}, 0.2f);
    a.v = tensor({1, len, heads_kv, 64}, 0.3f);
    a.o = tensor({1, len, 2, 64}, 0.0f);
    a.lse = tensor({1, 2, len}, 0.0f);
    a.dout = tensor({1, len, 2, 64}, 0.5f);
    a.dq = tensor({1, len, 2, 64}, 0.0f);
    a.dk = tensor({1, len, heads_kv, 64}, 0.0f);
    a.dv = tensor({1, len, heads_kv, 64}, 0.0f);
  }
  // The arguments that a pass takes.
  [[nodiscard]] Arguments of(Pass pass) const {
    Arguments a = arguments;
    if (pass != Pass::backward) a.dout = a.dq = a.dk = a.dv = {};
    return a;
  }
  void watch(Flag& flag) {
    arguments.should_stop = Flag::read;
    arguments.should_stop_user = &flag;
  }

  Problem problem;
  Arguments arguments;
  std::vector<std::vector<float>> memory;
};

void call(Context& context, Pass pass, const Tensors& tensors) {
  const Arguments arguments = tensors.of(pass);
  if (pass == Pass::backward) return backward(context, tensors.problem, arguments);
  if (pass == Pass::decode) return decode(context, tensors.problem, arguments);
  forward(context, tensors.problem, arguments);
}

ErrorCode code_of(Context& context, Pass pass, const Tensors& tensors, std::string& message) {
  try {
    call(context, pass, tensors);
  } catch (const Error& error) {
    message = error.what();
    return error.code();
  }
  return ErrorCode::ok;
}

// Sizes that take far longer than the test allows, so that only the flag ends them.
class InterruptedPass : public testing::TestWithParam<std::tuple<const char*, Pass>> {};

TEST_P(InterruptedPass, EndsSoonAfterTheFlagAndLeavesLaterCallsAlone) {
  const auto [backend, pass] = GetParam();
  ContextOptions options;
  options.threads = 2;
  options.backend = backend;
  Context context(options);
  Tensors huge(std::string(backend) == "cpu" ? 1 << 16 : 1 << 14);
  Flag flag;
  huge.watch(flag);
  std::atomic<double> set_at{0.0};
  const Clock::time_point begin = Clock::now();
  std::thread setter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    set_at = seconds_since(begin);
    flag.set = true;
  });
  std::string message;
  const ErrorCode code = code_of(context, pass, huge, message);
  const double end = seconds_since(begin);
  setter.join();
  EXPECT_EQ(code, ErrorCode::interrupted);
  EXPECT_EQ(message, std::string(to_string(pass)) +
                         ": interrupted by should_stop: what it writes is unspecified");
  EXPECT_LT(end - set_at, 2.0) << "seconds; the limit is wide for sanitizers and busy machines";
  EXPECT_FALSE(flag.from_other_thread);

  Tensors small(40);
  call(context, Pass::forward, small);
  for (const float o : small.memory[3]) ASSERT_NEAR(o, 0.3f, 1e-6f);
}

INSTANTIATE_TEST_SUITE_P(Passes, InterruptedPass,
                         testing::Combine(testing::Values("cpu", "reference"),
                                          testing::Values(Pass::forward, Pass::backward,
                                                          Pass::decode)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" +
                                  to_string(std::get<1>(info.param));
                         });

// Tasks of query heads that share a key head wait for each other.
TEST(Interrupt, EndsWaitsForOtherQueryHeads) {
  for (const std::int32_t threads : {2, 8}) {
    ContextOptions options;
    options.threads = threads;
    Context context(options);
    Tensors huge(1 << 16, 1);
    Flag flag;
    huge.watch(flag);
    std::thread setter([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      flag.set = true;
    });
    std::string message;
    EXPECT_EQ(code_of(context, Pass::backward, huge, message), ErrorCode::interrupted);
    setter.join();
  }
}

TEST(Interrupt, OneCallAloneIsStopped) {
  ContextOptions options;
  options.threads = 2;
  Context context(options);
  Flag stop;
  Flag go_on;
  stop.set = true;
  Tensors stopped(1 << 16);
  stopped.watch(stop);
  // Emulators and sanitizers take as long for a sixteenth of the work.
  Tensors other(std::getenv("ATTN_CASE_LIMIT") == nullptr ? 1 << 11 : 1 << 9);
  ErrorCode other_code = ErrorCode::internal;
  std::thread thread([&] {
    go_on.caller = std::this_thread::get_id();
    other.watch(go_on);
    std::string message;
    other_code = code_of(context, Pass::forward, other, message);
  });
  std::string message;
  EXPECT_EQ(code_of(context, Pass::forward, stopped, message), ErrorCode::interrupted);
  thread.join();
  EXPECT_EQ(other_code, ErrorCode::ok);
  for (const float o : other.memory[3]) ASSERT_NEAR(o, 0.3f, 1e-5f);
}

// On a busy machine even a short call can take longer than kInterval, but not every time.
TEST(Interrupt, ShortCallsDoNotAsk) {
  Context context;
  Flag flag;
  Tensors small(8);
  small.watch(flag);
  bool asked = true;
  for (int attempt = 0; attempt < 50 && asked; ++attempt) {
    flag.asked = 0;
    call(context, Pass::forward, small);
    asked = flag.asked != 0;
  }
  EXPECT_FALSE(asked);
}

// The caller waits for the long task of another worker: it goes on asking.
TEST(Interrupt, WaitingForAnotherWorkerAsksToo) {
  Flag flag;
  core::Interrupt interrupt(Flag::read, &flag);
  EXPECT_FALSE(interrupt.poll());
  EXPECT_EQ(flag.asked, 0) << "the first question comes after kInterval";
  std::this_thread::sleep_for(2 * core::Interrupt::kInterval);
  std::thread([&] { EXPECT_FALSE(interrupt.poll()); }).join();
  EXPECT_EQ(flag.asked, 0) << "other threads never ask";
  EXPECT_FALSE(interrupt.poll());
  EXPECT_EQ(flag.asked, 1);
  EXPECT_TRUE(interrupt.is_long());
  flag.set = true;
  EXPECT_FALSE(interrupt.poll()) << "not before the next interval";
  std::this_thread::sleep_for(2 * core::Interrupt::kInterval);
  EXPECT_TRUE(interrupt.poll());
  flag.set = false;
  EXPECT_TRUE(interrupt.poll()) << "stopped stays stopped";
  std::thread([&] { EXPECT_TRUE(interrupt.poll()); }).join();
  EXPECT_EQ(flag.asked, 2);
}

TEST(Interrupt, FromC) {
  static_assert(static_cast<int>(ErrorCode::interrupted) == ATTN_INTERRUPTED);
  attn_context* context = nullptr;
  ASSERT_EQ(attn_context_create(nullptr, &context), ATTN_OK);
  constexpr std::int64_t kLen = 1 << 18;
  const std::int64_t shape[4] = {1, kLen, 1, 32};
  std::vector<float> memory(kLen * 32, 0.1f);
  std::vector<float> out(kLen * 32);
  attn_tensor in{};
  attn_tensor o{};
  ASSERT_EQ(attn_tensor_contiguous(&in, sizeof in, memory.data(), ATTN_F32, 4, shape), ATTN_OK);
  ASSERT_EQ(attn_tensor_contiguous(&o, sizeof o, out.data(), ATTN_F32, 4, shape), ATTN_OK);
  attn_arguments arguments;
  attn_problem problem;
  ASSERT_EQ(ATTN_INIT(attn_arguments, &arguments), ATTN_OK);
  ASSERT_EQ(ATTN_INIT(attn_problem, &problem), ATTN_OK);
  arguments.q = arguments.k = arguments.v = &in;
  arguments.o = &o;
  ASSERT_EQ(attn_describe(&arguments, &problem), ATTN_OK);
  problem.lse = 0;
  Flag flag;
  flag.set = true;
  arguments.should_stop = Flag::read;
  arguments.should_stop_user = &flag;
  EXPECT_EQ(attn_forward(context, &problem, &arguments), ATTN_INTERRUPTED) << attn_last_error();
  EXPECT_STREQ(attn_error_name(ATTN_INTERRUPTED), "interrupted");
  EXPECT_EQ(flag.asked, 1);
  attn_context_destroy(context);
}

}  // namespace
}  // namespace attn
