// The case list itself: its coverage, and that every case parses back from its printed form.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "harness/case.hpp"
#include "harness/inputs.hpp"
#include "harness/options.hpp"

namespace attn::harness {
namespace {

std::vector<Case> of(Pass pass) {
  Filter filter;
  filter.pass = pass;
  return case_list(filter);
}

TEST(List, HasTwoThousandProblemsForwardAndBackward) {
  std::set<std::string> forward;
  for (const Case& c : of(Pass::forward)) forward.insert(to_string(c.problem) + to_string(c));
  EXPECT_GE(forward.size(), 2000u);
  std::set<std::string> backward;
  for (const Case& c : of(Pass::backward)) backward.insert(to_string(c.problem) + to_string(c));
  EXPECT_GE(backward.size(), 2000u);
}

TEST(List, HasEveryOptionAloneInEveryType) {
  for (const Pass pass : {Pass::forward, Pass::backward, Pass::decode}) {
    std::map<std::string, std::set<DType>> types;
    for (const Case& c : of(pass)) types[c.name].insert(c.problem.dtype);
    for (const Option& option : options()) {
      if (!serves(option, pass)) continue;
      // 8-bit types too, but in a backward and where the option itself is such a type.
      const bool f8 = pass != Pass::backward && option.group != std::string_view("cache type");
      EXPECT_EQ(types[option.name].size(), f8 ? 6u : 4u)
          << attn::to_string(pass) << " " << option.name;
    }
  }
}

// A pair may be missing only if settle() rejects the combination.
TEST(List, HasEveryPairOfOptions) {
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    std::set<std::string> names;
    for (const Case& c : of(pass)) names.insert(c.name);
    std::size_t missing = 0;
    std::size_t pairs = 0;
    for (std::size_t a = 0; a < options().size(); ++a) {
      for (std::size_t b = a + 1; b < options().size(); ++b) {
        const Option& first = options()[a];
        const Option& second = options()[b];
        if (!compatible(first, second, pass)) continue;
        ++pairs;
        if (names.contains(std::string(first.name) + "+" + second.name)) continue;
        ++missing;
        Case c;
        c.pass = pass;
        c.problem.dtype = DType::bf16;
        c.problem.len_q = c.problem.len_kv = 257;
        Draw draw(1);
        first.apply(c, draw);
        second.apply(c, draw);
        EXPECT_FALSE(settle(c)) << first.name << " " << second.name;
      }
    }
    EXPECT_LT(missing * 20, pairs);
  }
}

TEST(List, FilledByTypesPairWise) {
  Filter filter;
  filter.pass = Pass::forward;
  filter.every_type = true;
  std::map<std::string, std::set<DType>> types;
  for (const Case& c : case_list(filter)) types[c.name].insert(c.problem.dtype);
  EXPECT_GE(types["causal+dropout"].size(), 3u);
  EXPECT_GE(types["window+sink"].size(), 3u);
}

TEST(List, SurvivesBeingPrintedAndRead) {
  for (const Case& c : case_list()) {
    const std::string text = to_string(c);
    Case back;
    ASSERT_NO_THROW(back = parse_case(text)) << text;
    EXPECT_EQ(back.problem, c.problem) << text;
    EXPECT_EQ(to_string(back), text);
  }
}

TEST(List, NamesTheWordItCannotRead) {
  const auto message = [](const std::string& text) -> std::string {
    try {
      parse_case(text);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      return error.what();
    }
    return "accepted";
  };
  const std::string problem = " : dtype=f32 len_q=1 len_kv=1";
  EXPECT_NE(message("forward sedd=1" + problem).find("\"sedd=1\""), std::string::npos);
  EXPECT_NE(message("forward seed=x" + problem).find("\"seed=x\""), std::string::npos);
  EXPECT_NE(message("forward memory=odd" + problem).find("bhsd"), std::string::npos);
  EXPECT_NE(message("sideways" + problem).find("\"sideways\""), std::string::npos);
  EXPECT_NE(message("seed=1" + problem).find("pass"), std::string::npos);
  EXPECT_NE(message("forward seed=1").find("problem"), std::string::npos);
}

TEST(List, SlicesAreTheWhole) {
  const std::vector<Case> all = of(Pass::decode);
  std::size_t count = 0;
  for (int slice = 0; slice < 3; ++slice) {
    Filter filter;
    filter.pass = Pass::decode;
    filter.shard = slice;
    filter.shards = 3;
    count += case_list(filter).size();
  }
  EXPECT_EQ(count, all.size());
  Filter few;
  few.limit = 10;
  EXPECT_EQ(case_list(few).size(), 10u);
  Filter named;
  named.option = "causal";
  for (const Case& c : case_list(named)) EXPECT_TRUE(c.problem.causal);
}

TEST(List, EveryOptionChangesTheCase) {
  for (const OptionInfo& option : option_list()) {
    EXPECT_FALSE(option.what.empty());
    for (const Option& known : options()) {
      if (known.name != option.name) continue;
      const Pass pass = serves(known, Pass::backward) ? Pass::backward : Pass::decode;
      Case with = option_case(option.name, pass, DType::bf16);
      Case without = option_case("", pass, DType::bf16);
      with.name = without.name;
      EXPECT_NE(to_string(with), to_string(without)) << option.name;
    }
  }
  EXPECT_THROW(option_case("no such", Pass::forward, DType::f32), Error);
}

}  // namespace
}  // namespace attn::harness
