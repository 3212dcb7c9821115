// The C ABI: every field passes through, errors are codes with a message, sizes are checked.
#include <attn/attn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "api/c_convert.hpp"
#include "core/problem_fields.hpp"
#include "other_than.hpp"

extern "C" int attn_test_from_c(void);

namespace attn {
namespace {

static_assert(static_cast<int>(ErrorCode::internal) == ATTN_INTERNAL);
static_assert(static_cast<int>(ErrorCode::out_of_memory) == ATTN_OUT_OF_MEMORY);
static_assert(static_cast<int>(DType::bf16) == ATTN_BF16 && static_cast<int>(DType::u8) == ATTN_U8);
static_assert(static_cast<int>(DType::f8e5m2) == ATTN_F8E5M2);
static_assert(static_cast<int>(DType::i8) == ATTN_I8);
static_assert(static_cast<int>(Device::webgpu) == ATTN_WEBGPU);
static_assert(static_cast<int>(Pass::decode) == ATTN_DECODE);
static_assert(static_cast<int>(Layout::packed) == ATTN_PACKED);
static_assert(static_cast<int>(Diagonal::explicit_value) == ATTN_EXPLICIT);
static_assert(static_cast<int>(Precision::ieee) == ATTN_IEEE);
static_assert(static_cast<int>(Rope::half) == ATTN_ROPE_HALF);
static_assert(kSplitNone == ATTN_SPLIT_NONE);

TEST(CApi, WorksFromC) {
  EXPECT_EQ(attn_test_from_c(), 0) << attn_last_error();
}

TEST(CApi, EveryFieldOfProblemPassesThrough) {
  Problem all;
  core::visit_fields([&](const char* name, auto member) {
    Problem one;
    one.*member = all.*member = other_than(one.*member);
    EXPECT_EQ(api::from_c(api::to_c(one)), one) << name;
    // And through the C text functions.
    attn_problem c;
    ASSERT_EQ(ATTN_INIT(attn_problem, &c), ATTN_OK);
    ASSERT_EQ(attn_problem_parse(to_string(one).c_str(), &c), ATTN_OK) << attn_last_error();
    char text[256];
    size_t needed = 0;
    ASSERT_EQ(attn_problem_print(&c, text, sizeof text, &needed), ATTN_OK);
    EXPECT_EQ(text, to_string(one));
    EXPECT_EQ(needed, std::strlen(text) + 1);
  });
  EXPECT_EQ(api::from_c(api::to_c(all)), all);
}

TEST(CApi, EveryBitOfExtentsPassesThrough) {
  for (std::uint32_t bits = 0; bits < 32; ++bits) {
    attn_problem c = api::to_c(Problem{});
    c.bias = bits;
    c.mask = 31 - bits;
    const Problem problem = api::from_c(c);
    EXPECT_EQ(problem.bias.given, (bits & ATTN_EXTENT_GIVEN) != 0);
    EXPECT_EQ(problem.bias.batch, (bits & ATTN_EXTENT_BATCH) != 0);
    EXPECT_EQ(problem.bias.head, (bits & ATTN_EXTENT_HEAD) != 0);
    EXPECT_EQ(problem.bias.q, (bits & ATTN_EXTENT_Q) != 0);
    EXPECT_EQ(problem.bias.kv, (bits & ATTN_EXTENT_KV) != 0);
    EXPECT_EQ(problem.mask.given, (bits & ATTN_EXTENT_GIVEN) == 0);
    EXPECT_EQ(api::to_c(problem).bias, bits);
    EXPECT_EQ(api::to_c(problem).mask, 31 - bits);
  }
  attn_problem c = api::to_c(Problem{});
  c.mask = 32;
  char text[8];
  EXPECT_EQ(attn_problem_print(&c, text, sizeof text, nullptr), ATTN_INVALID_ARGUMENT);
}

// The tensor pointers of a C struct stand together: each gets a tensor with its own number.
template <class Struct, class From, class To>
void check_tensors(Struct& c, const attn_tensor** first, const attn_tensor** last,
                   const From& convert, const To& views) {
  std::vector<attn_tensor> tensors(static_cast<std::size_t>(last - first) + 1);
  for (std::size_t at = 0; at < tensors.size(); ++at) {
    tensors[at] = api::to_c(TensorView::contiguous(&c, DType::f32, {std::int64_t(at) + 1}));
    first[at] = &tensors[at];
  }
  const auto converted = convert(c);
  std::size_t at = 0;
  for (const TensorView* view : views(converted)) {
    EXPECT_EQ(view->shape[0], static_cast<std::int64_t>(++at));
    EXPECT_TRUE(view->given());
  }
  EXPECT_EQ(at, tensors.size());
}

TEST(CApi, EveryTensorPassesThrough) {
  attn_arguments a;
  ASSERT_EQ(ATTN_INIT(attn_arguments, &a), ATTN_OK);
  check_tensors(
      a, &a.q, &a.dsink, [](const attn_arguments& c) { return api::from_c(c); },
      [](const Arguments& r) {
        std::vector<const TensorView*> views;
        for (const TensorView* view = &r.q; view <= &r.dsink; ++view) views.push_back(view);
        return views;
      });
  attn_merge_arguments m;
  ASSERT_EQ(ATTN_INIT(attn_merge_arguments, &m), ATTN_OK);
  check_tensors(
      m, &m.o1, &m.lse, [](const attn_merge_arguments& c) { return api::from_c(c); },
      [](const MergeArguments& r) {
        return std::vector{&r.o1, &r.lse1, &r.o2, &r.lse2, &r.o, &r.lse};
      });
  attn_merge_backward_arguments b;
  ASSERT_EQ(ATTN_INIT(attn_merge_backward_arguments, &b), ATTN_OK);
  check_tensors(
      b, &b.o1, &b.dlse2, [](const attn_merge_backward_arguments& c) { return api::from_c(c); },
      [](const MergeBackwardArguments& r) {
        return std::vector{&r.o1,   &r.lse1, &r.o2,    &r.lse2,  &r.o,     &r.lse,
                           &r.dout, &r.dlse, &r.dout1, &r.dlse1, &r.dout2, &r.dlse2};
      });
  attn_rope_arguments p;
  ASSERT_EQ(ATTN_INIT(attn_rope_arguments, &p), ATTN_OK);
  check_tensors(
      p, &p.x, &p.sin, [](const attn_rope_arguments& c) { return api::from_c(c); },
      [](const RopeArguments& r) {
        return std::vector{&r.x, &r.out, &r.positions, &r.cu_len, &r.cos, &r.sin};
      });
}

TEST(CApi, EveryNumberOfArgumentsPassesThrough) {
  attn_arguments c;
  ASSERT_EQ(ATTN_INIT(attn_arguments, &c), ATTN_OK);
  const Arguments defaults = api::from_c(c);
  EXPECT_FALSE(defaults.scale || defaults.diag || defaults.stream);
  EXPECT_EQ(defaults.rope_base, Arguments{}.rope_base);
  std::uint64_t numbers[2] = {1, 2};
  c.has_scale = c.has_diag = c.has_stream = 1;
  c.scale = 0.25;
  c.softcap = 30.0;
  c.dropout_p = 0.5;
  c.seed = 11;
  c.offset = 12;
  c.seed_pointer = &numbers[0];
  c.offset_pointer = &numbers[1];
  c.diag = -3;
  c.origin_batch = 1;
  c.origin_head = 2;
  c.origin_q = 3;
  c.origin_kv = 4;
  c.origin_heads_q = 5;
  c.rope_base = 500.0;
  c.rope_pos_offset = 6;
  c.workspace = numbers;
  c.workspace_size = 16;
  c.stream = &c;
  c.should_stop = [](void*) { return std::int32_t{1}; };
  c.should_stop_user = &c;
  const Arguments a = api::from_c(c);
  EXPECT_EQ(a.should_stop, c.should_stop);
  EXPECT_EQ(a.should_stop_user, &c);
  EXPECT_EQ(a.scale, 0.25);
  EXPECT_EQ(a.softcap, 30.0);
  EXPECT_EQ(a.dropout_p, 0.5);
  EXPECT_EQ(a.seed.host, 11u);
  EXPECT_EQ(a.seed.device, &numbers[0]);
  EXPECT_EQ(a.offset.host, 12u);
  EXPECT_EQ(a.offset.device, &numbers[1]);
  EXPECT_EQ(a.diag, -3);
  EXPECT_EQ(a.origin.batch, 1);
  EXPECT_EQ(a.origin.head, 2);
  EXPECT_EQ(a.origin.q, 3);
  EXPECT_EQ(a.origin.kv, 4);
  EXPECT_EQ(a.origin.heads_q, 5);
  EXPECT_EQ(a.rope_base, 500.0);
  EXPECT_EQ(a.rope_pos_offset, 6);
  EXPECT_EQ(a.workspace, numbers);
  EXPECT_EQ(a.workspace_size, 16);
  EXPECT_EQ(a.stream, &c);
  c.stream = nullptr;  // a valid stream
  EXPECT_EQ(api::from_c(c).stream, std::optional<void*>(nullptr));
}

TEST(CApi, OtherStructsPassThrough) {
  attn_rope_arguments r;
  ASSERT_EQ(ATTN_INIT(attn_rope_arguments, &r), ATTN_OK);
  EXPECT_EQ(api::from_c(r).style, Rope::half);
  EXPECT_EQ(api::from_c(r).base, 10000.0);
  r.has_stream = r.inverse = 1;
  r.style = ATTN_ROPE_INTERLEAVED;
  r.rot_dim = 6;
  r.pos_offset = 7;
  r.base = 8.0;
  const RopeArguments rope = api::from_c(r);
  EXPECT_EQ(rope.style, Rope::interleaved);
  EXPECT_TRUE(rope.inverse);
  EXPECT_EQ(rope.rot_dim, 6);
  EXPECT_EQ(rope.pos_offset, 7);
  EXPECT_EQ(rope.base, 8.0);
  EXPECT_TRUE(rope.stream.has_value());
  attn_merge_arguments m;
  ASSERT_EQ(ATTN_INIT(attn_merge_arguments, &m), ATTN_OK);
  EXPECT_FALSE(api::from_c(m).stream.has_value());
  m.has_stream = 1;
  EXPECT_TRUE(api::from_c(m).stream.has_value());
  attn_merge_backward_arguments b;
  ASSERT_EQ(ATTN_INIT(attn_merge_backward_arguments, &b), ATTN_OK);
  b.has_stream = 1;
  EXPECT_TRUE(api::from_c(b).stream.has_value());

  attn_context_options o;
  ASSERT_EQ(ATTN_INIT(attn_context_options, &o), ATTN_OK);
  EXPECT_EQ(api::from_c(o).pool_bytes, ContextOptions{}.pool_bytes);
  o.threads = 2;
  o.parallel_for = [](void*, std::int32_t, void (*)(void*, std::int32_t), void*) {};
  o.parallel_for_user = &o;
  o.backend = "cpu";
  o.cache_dir = "/tmp/x";
  o.pool_bytes = 5;
  const ContextOptions options = api::from_c(o);
  EXPECT_EQ(options.threads, 2);
  EXPECT_EQ(options.parallel_for, o.parallel_for);
  EXPECT_EQ(options.parallel_for_user, &o);
  EXPECT_EQ(options.backend, "cpu");
  EXPECT_EQ(options.cache_dir, "/tmp/x");
  EXPECT_EQ(options.pool_bytes, 5);

  TensorView view = TensorView::contiguous(&o, DType::bf16, {2, 3}).transposed(0, 1);
  view.offset_bytes = 8;
  view.device = Device::cuda;
  view.ordinal = 3;
  const attn_tensor tensor = api::to_c(view);
  EXPECT_EQ(to_string(api::from_c("t", &tensor)), to_string(view));
  EXPECT_EQ(api::from_c("t", &tensor).offset_bytes, 8);
  EXPECT_EQ(api::from_c("t", &tensor).data, &o);
}

TEST(CApi, WrongSizesAndReservedFields) {
  attn_problem problem;
  EXPECT_EQ(attn_problem_init(&problem, 12), ATTN_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(attn_last_error()), "attn_problem: struct_size: found 12; accepted " +
                                                std::to_string(sizeof(attn_problem)) +
                                                ", as its init sets it");
  ASSERT_EQ(ATTN_INIT(attn_problem, &problem), ATTN_OK);
  EXPECT_EQ(attn_problem_init(nullptr, sizeof problem), ATTN_INVALID_ARGUMENT);
  attn_context* context = nullptr;
  ASSERT_EQ(attn_context_create(nullptr, &context), ATTN_OK);
  attn_arguments arguments;
  ASSERT_EQ(ATTN_INIT(attn_arguments, &arguments), ATTN_OK);
  attn_tensor q{};
  arguments.q = &q;
  EXPECT_EQ(attn_forward(context, &problem, &arguments), ATTN_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(attn_last_error()), "q: struct_size: found 0; accepted " +
                                                std::to_string(sizeof q) + ", as its init sets it");
  q.struct_size = sizeof q;
  q.reserved = 1;
  EXPECT_EQ(attn_forward(context, &problem, &arguments), ATTN_INVALID_ARGUMENT);
  EXPECT_STREQ(attn_last_error(), "q: reserved: found a field that is not 0; accepted 0");
  arguments.reserved[1] = 1;
  EXPECT_EQ(attn_forward(context, &problem, &arguments), ATTN_INVALID_ARGUMENT);
  EXPECT_STREQ(attn_last_error(),
               "attn_arguments: reserved: found a field that is not 0; accepted 0");
  problem.reserved[0] = 1;
  EXPECT_EQ(attn_forward(context, &problem, &arguments), ATTN_INVALID_ARGUMENT);
  EXPECT_STREQ(attn_last_error(),
               "attn_problem: reserved: found a field that is not 0; accepted 0");
  EXPECT_EQ(attn_forward(context, nullptr, &arguments), ATTN_INVALID_ARGUMENT);
  EXPECT_STREQ(attn_last_error(), "attn_problem: pointer: found NULL; accepted the address of one");
  EXPECT_EQ(attn_backward(nullptr, &problem, &arguments), ATTN_INVALID_ARGUMENT);
  EXPECT_EQ(attn_decode(context, &problem, nullptr), ATTN_INVALID_ARGUMENT);
  EXPECT_EQ(attn_merge(context, nullptr), ATTN_INVALID_ARGUMENT);
  EXPECT_EQ(attn_merge_backward(context, nullptr), ATTN_INVALID_ARGUMENT);
  EXPECT_EQ(attn_rope(context, nullptr), ATTN_INVALID_ARGUMENT);
  attn_context_destroy(context);
  attn_context_destroy(nullptr);

  attn_context_options options{};
  EXPECT_EQ(attn_context_create(&options, &context), ATTN_INVALID_ARGUMENT);
  EXPECT_EQ(context, nullptr);
  ASSERT_EQ(ATTN_INIT(attn_context_options, &options), ATTN_OK);
  options.backend = "abacus";
  EXPECT_EQ(attn_context_create(&options, &context), ATTN_INVALID_ARGUMENT);
  EXPECT_STREQ(attn_last_error(),
               "Context: backend: found 'abacus'; accepted cuda, webgpu, cpu, reference");
}

class CContext : public testing::Test {
 protected:
  CContext() {
    attn_context_options options;
    ATTN_INIT(attn_context_options, &options);
    options.threads = 1;
    EXPECT_EQ(attn_context_create(&options, &context_), ATTN_OK);
    ATTN_INIT(attn_problem, &problem_);
    EXPECT_EQ(
        attn_problem_parse("batch=2 heads_q=4 heads_kv=2 len_q=3 len_kv=5 dim_qk=8", &problem_),
        ATTN_OK);
  }
  ~CContext() override { attn_context_destroy(context_); }
  attn_context* context_ = nullptr;
  attn_problem problem_;
};

TEST_F(CContext, Questions) {
  EXPECT_EQ(attn_context_threads(context_), 1);
  EXPECT_EQ(attn_context_threads(nullptr), 0);
  attn_outputs outputs{};
  outputs.struct_size = sizeof outputs;
  ASSERT_EQ(attn_output_shapes(ATTN_BACKWARD, &problem_, &outputs), ATTN_OK);
  EXPECT_EQ(outputs.o.rank, 0);
  EXPECT_EQ(outputs.lse.rank, 0);
  EXPECT_EQ(outputs.dq.shape[2], 4);
  EXPECT_EQ(outputs.dk.shape[1], 5);
  EXPECT_EQ(outputs.dv.shape[3], 64);
  EXPECT_EQ(outputs.dbias.rank, 0);
  EXPECT_EQ(outputs.dsink.rank, 0);
  attn_verdict verdict{};
  EXPECT_EQ(attn_supports(context_, ATTN_FORWARD, &problem_, ATTN_HOST, &verdict),
            ATTN_INVALID_ARGUMENT);
  verdict.struct_size = sizeof verdict;
  ASSERT_EQ(attn_supports(context_, ATTN_FORWARD, &problem_, ATTN_HOST, &verdict), ATTN_OK);
  EXPECT_EQ(verdict.supported, 1);
  EXPECT_STREQ(verdict.backend, "cpu");
  EXPECT_STREQ(verdict.reason, "");
  ASSERT_EQ(attn_supports(context_, ATTN_FORWARD, &problem_, ATTN_WEBGPU, &verdict), ATTN_OK);
  if (verdict.supported != 0) {
    EXPECT_STREQ(verdict.backend, "webgpu");
  } else {
    EXPECT_NE(std::string(verdict.reason).find("webgpu: "), std::string::npos);
  }
  attn_plan_summary summary{};
  summary.struct_size = sizeof summary;
  ASSERT_EQ(attn_plan(context_, ATTN_FORWARD, &problem_, ATTN_HOST, &summary), ATTN_OK);
  EXPECT_STREQ(summary.backend, "cpu");
  EXPECT_STRNE(summary.kernel, "");
  EXPECT_GT(summary.tasks, 0);
  std::int64_t bytes = -1;
  ASSERT_EQ(attn_workspace_bytes(context_, ATTN_FORWARD, &problem_, ATTN_HOST, &bytes), ATTN_OK);
  EXPECT_EQ(bytes, summary.workspace_bytes);
  EXPECT_EQ(attn_prepare(context_, ATTN_FORWARD, &problem_, ATTN_HOST), ATTN_OK);
  attn_backend_info info{};
  info.struct_size = sizeof info;
  std::int32_t count = 0;
  ASSERT_EQ(attn_backend_at(context_, 0, &info, &count), ATTN_OK);
  ASSERT_STREQ(info.name, "cuda");
  EXPECT_EQ(attn_prepare(context_, ATTN_FORWARD, &problem_, ATTN_CUDA),
            info.usable != 0 ? ATTN_OK : ATTN_UNSUPPORTED);
  ASSERT_EQ(attn_backend_at(context_, 2, &info, &count), ATTN_OK);
  EXPECT_EQ(count, 4);
  EXPECT_STREQ(info.name, "cpu");
  EXPECT_EQ(info.usable, 1);
  EXPECT_EQ(attn_backend_at(context_, 4, &info, nullptr), ATTN_INVALID_ARGUMENT);
  EXPECT_STREQ(attn_last_error(), "attn_backend_at: index: found 4; accepted 0 to 3");
  EXPECT_EQ(attn_prepare(context_, 9, &problem_, ATTN_HOST), ATTN_INVALID_ARGUMENT);
  EXPECT_STREQ(attn_last_error(),
               "pass: found 9; accepted ATTN_FORWARD, ATTN_BACKWARD, ATTN_DECODE");
  EXPECT_EQ(attn_prepare(context_, ATTN_FORWARD, &problem_, 9), ATTN_INVALID_ARGUMENT);
  EXPECT_STREQ(attn_last_error(), "device: found 9; accepted ATTN_HOST, ATTN_CUDA, ATTN_WEBGPU");
}

TEST_F(CContext, TextIsCutAndItsLengthTold) {
  size_t needed = 0;
  ASSERT_EQ(attn_explain(context_, ATTN_FORWARD, &problem_, ATTN_HOST, nullptr, 0, &needed),
            ATTN_OK);
  EXPECT_GT(needed, 100u);
  char small[9];
  ASSERT_EQ(
      attn_explain(context_, ATTN_FORWARD, &problem_, ATTN_HOST, small, sizeof small, &needed),
      ATTN_OK);
  EXPECT_STREQ(small, "problem:");
  std::vector<char> whole(needed);
  ASSERT_EQ(
      attn_explain(context_, ATTN_FORWARD, &problem_, ATTN_HOST, whole.data(), needed, nullptr),
      ATTN_OK);
  EXPECT_EQ(std::strlen(whole.data()) + 1, needed);
  EXPECT_EQ(attn_problem_print(&problem_, nullptr, 4, nullptr), ATTN_INVALID_ARGUMENT);
}

TEST_F(CContext, MergeAndRope) {
  float o1[8], o2[8], o[8], out[8];
  float lse1[1] = {0.0f}, lse2[1] = {0.0f}, lse[1];
  for (int i = 0; i < 8; ++i) o1[i] = 1.0f, o2[i] = 3.0f;
  const std::int64_t shape[4] = {1, 1, 1, 8};
  attn_tensor t[7];
  const auto make = [&](attn_tensor& tensor, float* data, std::int32_t rank) {
    EXPECT_EQ(attn_tensor_contiguous(&tensor, sizeof tensor, data, ATTN_F32, rank, shape), ATTN_OK);
  };
  make(t[0], o1, 4);
  make(t[1], o2, 4);
  make(t[2], o, 4);
  make(t[3], lse1, 3);
  make(t[4], lse2, 3);
  make(t[5], lse, 3);
  make(t[6], out, 4);
  attn_merge_arguments m;
  ASSERT_EQ(ATTN_INIT(attn_merge_arguments, &m), ATTN_OK);
  m.o1 = &t[0];
  m.o2 = &t[1];
  m.o = &t[2];
  m.lse1 = &t[3];
  m.lse2 = &t[4];
  m.lse = &t[5];
  ASSERT_EQ(attn_merge(context_, &m), ATTN_OK) << attn_last_error();
  EXPECT_NEAR(o[7], 2.0f, 1e-6f);
  attn_merge_backward_arguments b;
  ASSERT_EQ(ATTN_INIT(attn_merge_backward_arguments, &b), ATTN_OK);
  b.o1 = &t[0];
  b.o2 = &t[1];
  b.o = b.dout = &t[2];
  b.lse1 = &t[3];
  b.lse2 = &t[4];
  b.lse = &t[5];
  b.dout1 = &t[6];
  ASSERT_EQ(attn_merge_backward(context_, &b), ATTN_OK) << attn_last_error();
  EXPECT_NEAR(out[0], 1.0f, 1e-6f);
  attn_rope_arguments r;
  ASSERT_EQ(ATTN_INIT(attn_rope_arguments, &r), ATTN_OK);
  r.x = r.out = &t[0];
  r.pos_offset = 1;
  ASSERT_EQ(attn_rope(context_, &r), ATTN_OK) << attn_last_error();
  EXPECT_NEAR(o1[0], std::cos(1.0) - std::sin(1.0), 1e-6);
}

TEST(CApi, NamesAndSizes) {
  EXPECT_STREQ(attn_version(), "0.1.0");
  EXPECT_STREQ(attn_error_name(ATTN_UNSUPPORTED), "unsupported");
  EXPECT_STREQ(attn_error_name(77), "?");
  EXPECT_STREQ(attn_dtype_name(ATTN_BF16), "bf16");
  EXPECT_EQ(attn_dtype_size(ATTN_F64), 8);
  EXPECT_EQ(attn_dtype_size(99), 0);
  attn_tensor tensor;
  const std::int64_t shape[1] = {3};
  EXPECT_EQ(attn_tensor_contiguous(&tensor, sizeof tensor, nullptr, ATTN_F32, 5, shape),
            ATTN_INVALID_ARGUMENT);
  EXPECT_STREQ(attn_last_error(), "attn_tensor_contiguous: rank: found 5; accepted 1 to 4");
  EXPECT_EQ(attn_tensor_contiguous(&tensor, 4, nullptr, ATTN_F32, 1, shape), ATTN_INVALID_ARGUMENT);
  attn_problem problem;
  ASSERT_EQ(ATTN_INIT(attn_problem, &problem), ATTN_OK);
  EXPECT_EQ(attn_problem_parse("hat=3", &problem), ATTN_INVALID_ARGUMENT);
  EXPECT_EQ(attn_problem_parse(nullptr, &problem), ATTN_INVALID_ARGUMENT);
  attn_arguments arguments;
  ASSERT_EQ(ATTN_INIT(attn_arguments, &arguments), ATTN_OK);
  EXPECT_EQ(attn_describe(&arguments, &problem), ATTN_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace attn
