// The handlers for XLA's foreign function interface on the CPU: what they read, compute and refuse.
#include <attn/attn.h>
#include <gtest/gtest.h>

#include <attn/attn.hpp>
#include <numeric>

#include "xla_frame.hpp"

namespace attn::api::xla::test {
namespace {

constexpr std::size_t kQ = 2 * 5 * 4 * 8;
constexpr std::size_t kKv = 2 * 7 * 2 * 8;

class Xla : public ::testing::Test {
 protected:
  Xla() {
    std::iota(q.begin(), q.end(), -100.0F);
    std::iota(kv.begin(), kv.end(), -99.0F);
    for (float& x : q) x /= 100.0F;
    for (float& x : kv) x /= 90.0F;
    arguments.q = TensorView::contiguous(q.data(), DType::f32, {2, 5, 4, 8});
    arguments.k = TensorView::contiguous(kv.data(), DType::f32, {2, 7, 2, 8});
    arguments.v = arguments.k;
    arguments.o = TensorView::contiguous(expected.data(), DType::f32, {2, 5, 4, 8});
    problem = describe(arguments);
    problem.lse = false;
    frame.input("q", DataType::f32, q.data(), {2, 5, 4, 8});
    frame.input("k", DataType::f32, kv.data(), {2, 7, 2, 8});
    frame.input("v", DataType::f32, kv.data(), {2, 7, 2, 8});
    frame.output("o", DataType::f32, found.data(), {2, 5, 4, 8});
  }

  Error* call() {
    frame.text("problem", to_string(problem));
    return frame.call(attn_xla_forward_host);
  }
  void expect_equal() {
    ASSERT_EQ(call(), nullptr) << Frame::last().message;
    attn::Context context;
    forward(context, problem, arguments);
    EXPECT_EQ(found, expected);
  }
  std::string refused() {
    EXPECT_EQ(call(), Frame::error());
    EXPECT_EQ(Frame::last().code, ErrorCode::invalid_argument);
    return Frame::last().message;
  }

  std::vector<float> q = std::vector<float>(kQ);
  std::vector<float> kv = std::vector<float>(kKv);
  std::vector<float> found = std::vector<float>(kQ, -7.0F);
  std::vector<float> expected = std::vector<float>(kQ);
  Arguments arguments;
  Problem problem;
  Frame frame;
};

TEST_F(Xla, AnswersTheQuestionForItsVersion) {
  Metadata metadata{sizeof(Metadata), {sizeof(Version), nullptr, -1, -1}, 77};
  MetadataExtension asked{{sizeof(MetadataExtension), ExtensionType::metadata, nullptr}, &metadata};
  EXPECT_EQ(frame.call(attn_xla_forward_host, Stage::execute, &asked.base), nullptr);
  EXPECT_EQ(metadata.version.major, 0);
  EXPECT_EQ(metadata.version.minor, 1);
  EXPECT_EQ(metadata.traits, 0U);
  EXPECT_EQ(found, std::vector<float>(kQ, -7.0F));
}

TEST_F(Xla, ComputesWhenItIsToExecute) {
  frame.text("problem", to_string(problem));
  EXPECT_EQ(frame.call(attn_xla_forward_host, Stage::initialize), nullptr);
  EXPECT_EQ(found, std::vector<float>(kQ, -7.0F));
  expect_equal();
}

TEST_F(Xla, ReadsNumbers) {
  problem.softcap = problem.causal = true;
  problem.diagonal = Diagonal::explicit_value;
  arguments.scale = 0.4;
  arguments.softcap = 1.5;
  arguments.diag = 1;
  frame.real("scale", 0.4);
  frame.real("softcap", 1.5);
  frame.integer("diag", 1);
  expect_equal();
}

TEST_F(Xla, ReadsSeedsAndTheOrigin) {
  std::uint64_t seed = (std::uint64_t{3} << 40) + 5;
  problem.dropout = true;
  arguments.dropout_p = 0.3;
  arguments.seed = seed;
  arguments.origin.head = 2;
  frame.input("seed", DataType::u32, &seed, {2});
  frame.real("dropout_p", 0.3);
  frame.integer("origin_head", 2);
  expect_equal();
}

TEST_F(Xla, UsesTheThreadsThatWereSet) {
  EXPECT_EQ(attn_xla_set_threads(3), ATTN_OK);
  expect_equal();
  EXPECT_EQ(attn_xla_set_threads(-1), ATTN_INVALID_ARGUMENT);
  EXPECT_STREQ(attn_last_error(), "attn_xla_set_threads: threads: found -1; accepted 0 or more");
  EXPECT_EQ(attn_xla_set_threads(0), ATTN_OK);
  expect_equal();
}

TEST_F(Xla, RefusesWhatItDoesNotKnow) {
  frame.integer("depth", 1);
  EXPECT_EQ(refused(),
            "xla: attribute: found 'depth'; accepted those of libattn.jax of this version");
}

TEST_F(Xla, RefusesATensorThatItDoesNotKnow) {
  frame.input("w", DataType::f32, q.data(), {1});
  EXPECT_EQ(refused(), "xla: tensor: found 'w'; accepted those of libattn.jax of this version");
}

TEST_F(Xla, RefusesTypesRanksAndShapes) {
  Frame other;
  other.text("problem", to_string(problem));
  other.input("q", DataType::s64, q.data(), {2, 5, 4, 8});
  EXPECT_EQ(other.call(attn_xla_forward_host), Frame::error());
  EXPECT_NE(Frame::last().message.find("xla: type of q: found type 5;"), std::string::npos);
  Frame flat;
  flat.text("problem", to_string(problem));
  flat.input("q", DataType::f32, q.data(), {});
  EXPECT_EQ(flat.call(attn_xla_forward_host), Frame::error());
  EXPECT_EQ(Frame::last().message, "xla: rank of q: found 0; accepted 1 to 4");
  problem.len_q = 6;
  EXPECT_NE(refused().find("forward: shape of q: found f32[2, 5, 4, 8]"), std::string::npos);
}

TEST_F(Xla, ReturnsErrorsOfXla) {
  frame.text("problem", to_string(problem));  // without a stream: not a GPU
  EXPECT_EQ(frame.call(attn_xla_forward_cuda), Frame::error());
  EXPECT_EQ(Frame::last().message, "");
}

TEST(Validate, AppliesTheRulesWithoutMemory) {
  Arguments a;
  const auto view = [](std::uintptr_t address) {
    return TensorView::contiguous(reinterpret_cast<void*>(address << 20), DType::f32, {2, 5, 4, 8});
  };
  a.q = view(1), a.k = view(2), a.v = view(3), a.o = view(4);
  Problem problem = describe(a);
  problem.lse = false;
  validate(Pass::forward, problem, a);
  a.o.shape[1] = 6;
  EXPECT_THROW(validate(Pass::forward, problem, a), attn::Error);
}

}  // namespace
}  // namespace attn::api::xla::test
