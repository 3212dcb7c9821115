// Pipelines: built once, by many threads, and what is said of those that can't be built.
#include "support.hpp"

namespace attn::webgpu {
namespace {

using test::add_spec;
using test::fails;
using test::is_ok;

class PipelinesTest : public test::OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (device_ != nullptr) {
      pipelines_ = std::make_unique<Pipelines>(device(), test::sources());
    }
  }
  void TearDown() override { pipelines_.reset(); }
  void expect_factor(const Pipeline& pipeline, std::uint32_t factor) {
    test::Add add;
    ASSERT_TRUE(is_ok(add.create(device(), 100)));
    const BoundDispatch dispatch = add.dispatch(pipeline);
    ASSERT_TRUE(is_ok(submit(device(), {&dispatch, 1})));
    EXPECT_EQ(test::wrong(device(), add, factor), 0U);
  }

  std::unique_ptr<Pipelines> pipelines_;
  const Pipeline* pipeline_ = nullptr;
};

KernelSpec broken_spec() {
  KernelSpec spec;
  spec.source = "broken";
  spec.entry = "broken";
  spec.bindings = {Access::write};
  spec.num_bindings = 1;
  return spec;
}

TEST(KernelSpec, IsComparedAndHashedByContent) {
  const std::string source = "add";
  KernelSpec other = add_spec(2);
  other.source = source.c_str();
  EXPECT_EQ(add_spec(2), other);
  EXPECT_EQ(hash_value(add_spec(2)), hash_value(other));
  EXPECT_FALSE(add_spec(2) == add_spec(3));
  EXPECT_NE(hash_value(add_spec(2)), hash_value(add_spec(3)));
  other.bindings[0] = Access::write;
  EXPECT_FALSE(add_spec(2) == other);
  EXPECT_EQ(to_string(add_spec(2)), "add.wgsl add (FACTOR=2)");
}

TEST(ShaderLine, IsReadFromEitherCompiler) {
  EXPECT_EQ(shader_line("a.wgsl", "Shader 'a' parsing error\n  ┌─ wgsl:12:5\n"), "a.wgsl:12:5: ");
  EXPECT_EQ(shader_line("a.wgsl", "Error while parsing WGSL: :3:17 error: no"), "a.wgsl:3:17: ");
  EXPECT_EQ(shader_line("a.wgsl", "none: at all, 3:4"), "");
  EXPECT_EQ(shader_line("a.wgsl", "ends:12:"), "");
}

TEST_F(PipelinesTest, AreBuiltOnce) {
  const Pipeline* again = nullptr;
  EXPECT_EQ(pipelines_->find(add_spec(2)), nullptr);
  ASSERT_TRUE(is_ok(pipelines_->get(add_spec(2), pipeline_)));
  ASSERT_TRUE(is_ok(pipelines_->get(add_spec(2), again)));
  EXPECT_EQ(pipeline_, again);
  EXPECT_EQ(pipelines_->find(add_spec(2)), again);
  ASSERT_TRUE(is_ok(pipelines_->get(add_spec(5), again)));
  EXPECT_NE(pipeline_, again);
  expect_factor(*pipeline_, 2);
  expect_factor(*again, 5);
}

TEST_F(PipelinesTest, TellTheLineOfAnError) {
  EXPECT_TRUE(fails(pipelines_->get(broken_spec(), pipeline_), ErrorCode::device_error,
                    "webgpu: broken.wgsl:4:10: while compiling broken.wgsl"));
  EXPECT_EQ(pipeline_, nullptr);
  EXPECT_TRUE(
      fails(pipelines_->get(broken_spec(), pipeline_), ErrorCode::device_error, "broken.wgsl:4:10"))
      << "the second time";
  ASSERT_TRUE(is_ok(pipelines_->get(add_spec(), pipeline_))) << "others are as they were";
}

TEST_F(PipelinesTest, RefuseAMisspeltOverride) {
  KernelSpec spec = add_spec();
  spec.constants[0].name = "FACTR";
  EXPECT_TRUE(fails(pipelines_->get(spec, pipeline_), ErrorCode::device_error,
                    "while building add.wgsl add (FACTR=1)"));
}

TEST_F(PipelinesTest, RefuseAMisspeltEntry) {
  KernelSpec spec = add_spec();
  spec.entry = "ad";
  EXPECT_TRUE(
      fails(pipelines_->get(spec, pipeline_), ErrorCode::device_error, "building add.wgsl ad"));
}

TEST_F(PipelinesTest, RefuseOtherBindingsThanTheSource) {
  KernelSpec spec = add_spec();
  spec.bindings[2] = Access::read;
  EXPECT_FALSE(pipelines_->get(spec, pipeline_).ok());
  spec = add_spec();
  spec.num_bindings = 2;
  EXPECT_FALSE(pipelines_->get(spec, pipeline_).ok());
  EXPECT_EQ(pipeline_, nullptr);
}

TEST_F(PipelinesTest, RefuseASourceThatIsNotThere) {
  KernelSpec spec = add_spec();
  spec.source = "missing";
  EXPECT_TRUE(fails(pipelines_->get(spec, pipeline_), ErrorCode::internal, "no such source"));
  EXPECT_TRUE(fails(pipelines_->get_all({&spec, 1}, 2), ErrorCode::internal, "no such source"));
}

TEST_F(PipelinesTest, AreBuiltInParallel) {
  std::vector<KernelSpec> specs;
  for (int factor = 1; factor <= 12; ++factor) specs.push_back(add_spec(factor));
  specs.push_back(add_spec(1));
  ASSERT_TRUE(is_ok(pipelines_->get_all(specs, 4)));
  for (const KernelSpec& spec : specs) EXPECT_NE(pipelines_->find(spec), nullptr);
  expect_factor(*pipelines_->find(add_spec(7)), 7);
}

TEST_F(PipelinesTest, BuiltInParallelTellWhichFailed) {
  const std::vector<KernelSpec> specs{add_spec(1), broken_spec(), add_spec(2)};
  EXPECT_TRUE(
      fails(pipelines_->get_all(specs, 3), ErrorCode::device_error, "webgpu: broken.wgsl:4:10"));
  EXPECT_EQ(pipelines_->find(broken_spec()), nullptr);
  KernelSpec misspelt = add_spec();
  misspelt.constants[0].name = "FACTR";
  const std::vector<KernelSpec> others{add_spec(3), misspelt};
  EXPECT_TRUE(fails(pipelines_->get_all(others, 2), ErrorCode::device_error, "FACTR=1"));
  ASSERT_TRUE(is_ok(pipelines_->get(add_spec(3), pipeline_)));
  expect_factor(*pipeline_, 3);
}

TEST_F(PipelinesTest, OfTheLibraryAreSortedByName) {
  const std::span<const Source> sources = kernel_sources();
  ASSERT_FALSE(sources.empty());
  for (std::size_t i = 0; i < sources.size(); ++i) {
    EXPECT_EQ(sources[i].name.find(".wgsl"), std::string_view::npos);
    EXPECT_TRUE(i == 0 || sources[i - 1].name < sources[i].name) << sources[i].name;
  }
}

}  // namespace
}  // namespace attn::webgpu
