// What the build step reads from a kernel for the host: structures of parameters and bindings.
#include "webgpu/assemble/interface.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "case_work.hpp"
#include "webgpu/host/sources.hpp"
#include "webgpu/host/work.hpp"

namespace attn::webgpu {
namespace {

constexpr std::string_view kSource = R"(
struct Inner {
  a: u32,  // one
  b: u32,
  c: u32,
  d: f32,
}
struct Outer {
  inner: Inner,
  x: vec2<u32>,
  y: i32,  // two: u32,
  z: f32,
  w: vec4<u32>,
}
@group(0) @binding(0) var<uniform> p: Outer;
@group(0) @binding(2) var<storage, read_write> to: array<atomic<u32>>;
@group(0) @binding(1) var<storage, read> from: array<vec4<u32>>;
)";

std::string error_of_members(std::string_view members) {
  std::string error;
  const Interface interface =
      interface_of("struct Inner {\n  a: u32,\n}\nstruct P {\n" + std::string(members) +
                       "}\n@group(0) @binding(0) var<uniform> p: P;\n",
                   error);
  EXPECT_EQ(error, "");
  EXPECT_EQ(cpp_struct("P", interface, error), "");
  return error;
}

TEST(Interface, IsReadFromTheSource) {
  std::string error;
  const Interface interface = interface_of(kSource, error);
  EXPECT_EQ(error, "");
  EXPECT_EQ(interface.parameters, "Outer");
  ASSERT_EQ(interface.bindings.size(), 2u);
  EXPECT_EQ(interface.bindings[0].name, "to");
  EXPECT_EQ(interface.bindings[0].number, 2);
  EXPECT_TRUE(interface.bindings[0].writes);
  EXPECT_EQ(interface.bindings[1].name, "from");
  EXPECT_FALSE(interface.bindings[1].writes);
}

TEST(Interface, BecomesACppStructure) {
  std::string error;
  const std::string text = cpp_struct("Outer", interface_of(kSource, error), error);
  EXPECT_EQ(error, "");
  for (const std::string_view line :
       {"  Inner inner{};\n", "  std::array<std::uint32_t, 2> x{};\n", "  std::int32_t y{};\n",
        "static_assert(offsetof(Outer, x) == 16);\n", "static_assert(offsetof(Outer, y) == 24);\n",
        "static_assert(offsetof(Outer, w) == 32);\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
}

TEST(Interface, RefusesWhatCppWouldLayOutDifferently) {
  EXPECT_EQ(error_of_members("  a: u32,\n  b: vec2<u32>,\n"),
            "P.b needs a spare member before it: its offset is 4, its alignment 8");
  EXPECT_EQ(error_of_members("  a: u32,\n  b: vec4<u32>,\n"),
            "P.b needs a spare member before it: its offset is 4, its alignment 16");
  EXPECT_EQ(error_of_members("  a: Inner,\n"),
            "P.a needs a spare member before it: its offset is 0, its alignment 16");
  EXPECT_EQ(error_of_members("  a: mat2x2<f32>,\n"),
            "has a member of a type that the host does not know: mat2x2<f32>");
}

TEST(Interface, NeedsParameters) {
  std::string error;
  interface_of("struct P {\n  a: u32,\n}\n", error);
  EXPECT_EQ(error, "has no structure of parameters at binding 0");
}

TEST(BindingNames, AreSortedBySource) {
  EXPECT_TRUE(std::ranges::is_sorted(binding_names(), {}, &BindingName::source));
}

TEST(Dispatch, BindsByName) {
  Dispatch dispatch("bias_gradient_sum");
  dispatch.bind("dbias", {Memory::staged, nullptr, 256, 16});
  EXPECT_EQ(dispatch.spec.num_bindings, 1);
  EXPECT_EQ(dispatch.spec.bindings[0], Access::write);
  EXPECT_EQ(dispatch.operands[0].offset, 256u);
}

TEST(Dispatch, IsInvalidAfterAnUnknownName) {
  Dispatch dispatch("bias_gradient_sum");
  dispatch.bind("nothing", {});
  EXPECT_GT(dispatch.spec.num_bindings, kMaxBindings);
}

// Each binding of each dispatch has an operand: no kernel of the list leaves one out.
TEST(Dispatch, BindsEveryBufferOfItsEntryPoint) {
  for (const KernelSpec& spec : test::kernels_of_list(test::core_facts(16384))) {
    if (std::string_view(spec.source) == "prepare") continue;  // entry points use some of them
    const auto names = std::ranges::count(binding_names(), spec.source, &BindingName::source);
    EXPECT_EQ(spec.num_bindings, names) << to_string(spec);
  }
}

}  // namespace
}  // namespace attn::webgpu
