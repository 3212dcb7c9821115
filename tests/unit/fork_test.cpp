// Use after fork: the parent has used threads, so has the library's OpenMP; the child uses them
// too.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <attn/attn.hpp>
#include <cmath>
#include <thread>

#include "call.hpp"
#include "sanitizer.hpp"

namespace attn {
namespace {

constexpr const char* kProblemText =
    "batch=2 heads_q=8 heads_kv=8 len_q=256 len_kv=256 dim_qk=16 dim_vo=16";

// Uniform v = 1 gives o = 1.
bool computes(Context& context) {
  const Problem problem = parse_problem(kProblemText);
  test::CallMemory call = test::make_call(Pass::forward, problem);
  auto* v = static_cast<float*>(call.arguments.v.data);
  auto* o = static_cast<float*>(call.arguments.o.data);
  for (int i = 0; i < 2 * 256 * 8 * 16; ++i) v[i] = 1.0f;
  forward(context, problem, call.arguments);
  for (int i = 0; i < 2 * 256 * 8 * 16; ++i) {
    if (!(std::abs(o[i] - 1.0f) < 1e-5f)) return false;
  }
  return true;
}

// Runs body in a child that is killed when it hangs. The child's exit status.
template <class Body>
int in_child(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(body() ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

class Fork : public testing::Test {
 protected:
  Fork()
      : context_([] {
          ContextOptions options;
          options.threads = 4;
          return options;
        }()) {}
  void SetUp() override {
    if (test::kThreadSanitizer) GTEST_SKIP() << "not under the thread sanitizer";
  }
  Context context_;
};

TEST_F(Fork, ChildComputesWithThreads) {
  ASSERT_TRUE(computes(context_));
  EXPECT_EQ(in_child([&] { return computes(context_) && computes(context_); }), 0);
  EXPECT_TRUE(computes(context_));
}

TEST_F(Fork, GrandchildToo) {
  ASSERT_TRUE(computes(context_));
  EXPECT_EQ(in_child([&] {
              return computes(context_) && in_child([&] { return computes(context_); }) == 0;
            }),
            0);
}

TEST_F(Fork, NewThreadsOfTheChildToo) {
  ASSERT_TRUE(computes(context_));
  EXPECT_EQ(in_child([&] {
              bool ok = false;
              std::thread([&] { ok = computes(context_); }).join();
              return ok && computes(context_);
            }),
            0);
}

TEST_F(Fork, ForkFromASecondThread) {
  ASSERT_TRUE(computes(context_));
  int status = -1;
  std::thread([&] {
    EXPECT_TRUE(computes(context_));
    status = in_child([&] { return computes(context_); });
  }).join();
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace attn
