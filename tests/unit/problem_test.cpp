// Problem as text and as a key: every field goes there and back, and changes the hash.
#include <gtest/gtest.h>

#include <attn/attn.hpp>
#include <set>
#include <type_traits>
#include <unordered_set>
#include <utility>

#include "core/problem_fields.hpp"
#include "other_than.hpp"

namespace attn {
namespace {

// Converts to any type that a field may have, so that aggregate initialization counts the fields.
struct Anything {
  template <class T>
    requires(std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_same_v<T, Extent>)
  operator T() const {  // NOLINT: implicit on purpose
    return T{};
  }
};

template <std::size_t... at>
constexpr bool takes(std::index_sequence<at...>) {
  return requires { Problem{((void)at, Anything{})...}; };
}

constexpr int count_fields() {
  int count = 0;
  core::visit_fields([&](const char*, auto) { ++count; });
  return count;
}

static_assert(takes(std::make_index_sequence<count_fields()>{}));
static_assert(!takes(std::make_index_sequence<count_fields() + 1>{}),
              "a field of Problem is missing in visit_fields");

TEST(Problem, DefaultsPrintNothing) {
  EXPECT_EQ(to_string(Problem{}), "");
  EXPECT_EQ(parse_problem(""), Problem{});
}

TEST(Problem, EveryFieldGoesThereAndBack) {
  Problem all;
  core::visit_fields([&](const char* name, auto member) {
    Problem one;
    one.*member = all.*member = other_than(one.*member);
    const std::string text = to_string(one);
    EXPECT_EQ(text.rfind(name, 0), 0u) << text;
    EXPECT_EQ(text.find(' '), std::string::npos) << text;
    EXPECT_EQ(parse_problem(text), one) << text;
    EXPECT_NE(one, Problem{}) << name;
  });
  EXPECT_EQ(parse_problem(to_string(all)), all) << to_string(all);
}

TEST(Problem, EveryFieldChangesTheHash) {
  std::set<std::size_t> seen{hash_value(Problem{})};
  core::visit_fields([&](const char* name, auto member) {
    Problem one;
    one.*member = other_than(one.*member);
    EXPECT_TRUE(seen.insert(hash_value(one)).second) << name;
    EXPECT_EQ(hash_value(one), hash_value(Problem(one))) << name;
  });
  std::unordered_set<Problem> problems;
  problems.insert(Problem{});
  EXPECT_EQ(problems.count(Problem{}), 1u);
}

TEST(Problem, ReadsAsDocumented) {
  const std::string text =
      "dtype=bf16 batch=2 heads_q=8 heads_kv=2 len_q=128 len_kv=256 causal window_left=64 bias=hqk";
  const Problem problem = parse_problem(text);
  EXPECT_EQ(problem.dtype, DType::bf16);
  EXPECT_EQ(problem.window_left, 64);
  EXPECT_EQ(problem.window_right, std::nullopt);
  EXPECT_TRUE(problem.causal);
  EXPECT_EQ(problem.bias, (Extent{true, false, true, true, true}));
  EXPECT_EQ(to_string(problem), text);
}

TEST(Problem, SequencesOfAnEntryGoThereAndBack) {
  const Problem problem = parse_problem("batch=12 mask=b/3k bias=b/4hqk");
  EXPECT_EQ(problem.mask, (Extent{true, true, false, false, true, 3}));
  EXPECT_EQ(problem.bias, (Extent{true, true, true, true, true, 4}));
  EXPECT_EQ(to_string(problem), "batch=12 mask=b/3k bias=b/4hqk");
  EXPECT_NE(hash_value(problem), hash_value(parse_problem("batch=12 mask=b/3k bias=b/2hqk")));
  EXPECT_EQ(problem.bias.entries(12), 3);
  EXPECT_EQ(problem.bias.sharers(12), 4);
  EXPECT_EQ(problem.bias.entry_of(11), 2);
  for (const char* text : {"bias=b/", "bias=b/x", "bias=/4", "bias=h/4", "bias=b/4/4", "bias=b/-1",
                           "bias=b/99999999999999999999", "bias=b/0hqk"}) {
    EXPECT_THROW(static_cast<void>(parse_problem(text)), Error) << text;
  }
}

TEST(Problem, ExtremesGoThereAndBack) {
  Problem problem;
  problem.len_q = std::numeric_limits<std::int64_t>::max();
  problem.split_keys = std::numeric_limits<std::int64_t>::min();
  problem.bias = {true, false, false, false, false};
  EXPECT_EQ(parse_problem(to_string(problem)), problem);
  EXPECT_NE(to_string(problem).find("bias=1"), std::string::npos);
}

TEST(Problem, SwitchesTakeValues) {
  EXPECT_FALSE(parse_problem("lse=off").lse);
  EXPECT_TRUE(parse_problem("lse=on").lse);
  EXPECT_TRUE(parse_problem("\t causal=1\n").causal);
  EXPECT_FALSE(parse_problem("causal causal=0").causal);
  EXPECT_EQ(parse_problem("window_left=none bias=none"), Problem{});
}

TEST(Problem, RefusalsNameTheWord) {
  const std::pair<const char*, const char*> bad[] = {
      {"batch=2 hat=3", "parse_problem: word 'hat=3': is not a field of Problem"},
      {"batch", "parse_problem: word 'batch': has no value; accepted batch=a whole number"},
      {"batch=2x", "parse_problem: word 'batch=2x': can't be read; accepted a whole number"},
      {"batch=", "parse_problem: word 'batch=': can't be read; accepted a whole number"},
      {"batch=9223372036854775808",
       "parse_problem: word 'batch=9223372036854775808': can't be read; accepted a whole number"},
      {"causal=maybe", "parse_problem: word 'causal=maybe': can't be read; accepted on or off"},
      {"dtype=f31",
       "parse_problem: word 'dtype=f31': can't be read; accepted none, f32, f16, bf16, "
       "f64, f8e4m3, f8e5m2, i32, u8, i8"},
      {"bias=qq",
       "parse_problem: word 'bias=qq': can't be read; accepted letters of bhqk, b/N for b, 1 or "
       "none"},
      {"mask=",
       "parse_problem: word 'mask=': can't be read; accepted letters of bhqk, b/N for b, 1 or "
       "none"},
      {"window_left=x",
       "parse_problem: word 'window_left=x': can't be read; accepted a whole number or none"}};
  for (const auto& [text, message] : bad) {
    try {
      parse_problem(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_STREQ(error.what(), message);
    }
  }
}

}  // namespace
}  // namespace attn
