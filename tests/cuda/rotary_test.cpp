// Rotary embedding inside attention: the passes that plans have around a family's kernels, their
// copies in the workspace, and what a call gives them.
#include "cuda/families/rotary.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "core/validate.hpp"
#include "cuda/call.hpp"
#include "cuda/families/make_plan.hpp"
#include "facts.hpp"
#include "fake.hpp"

namespace attn::cuda::test {
namespace {

using device::rope::Params;
using Names = std::vector<std::string>;

CudaPlan rotary_plan_of(Pass pass, const char* text, FamilyChoice choice = FamilyChoice::sm80) {
  const core::Result<CudaPlan> made =
      make_plan(pass, parse_problem(text), h200(), core::Access::tma, choice);
  EXPECT_TRUE(made.ok()) << made.reason();
  return made.value();
}

TEST(CudaRotary, PassesAreAroundTheFamilysKernels) {
  EXPECT_EQ(
      rotary_plan_of(Pass::forward, "dtype=bf16 len_q=512 len_kv=512 rope=half").summary().kernels,
      (Names{"attn_rope", "attn_forward"}));
  EXPECT_EQ(rotary_plan_of(Pass::forward, "dtype=bf16 len_q=512 len_kv=512 rope=half",
                           FamilyChoice::automatic)
                .summary()
                .kernels,
            (Names{"attn_rope", "attn_tile_counter", "attn_forward_sm90"}));
  EXPECT_EQ(
      rotary_plan_of(Pass::backward, "dtype=bf16 len_q=512 len_kv=512 rope=half").summary().kernels,
      (Names{"attn_rope", "attn_backward_preprocess", "attn_backward", "attn_backward_postprocess",
             "attn_rope"}));
  EXPECT_EQ(
      rotary_plan_of(Pass::backward,
                     "dtype=bf16 batch=64 len_q=64 len_kv=64 rope=half sink dsink bias=qk dbias "
                     "layout_kv=packed total_kv=900 deterministic")
          .num_kernels,
      9u);
  EXPECT_EQ(
      rotary_plan_of(Pass::decode,
                     "dtype=bf16 len_q=1 len_kv=64 page_size=16 len_new=1 lengths_kv rope=half")
          .summary()
          .kernels,
      (Names{"attn_rope", "attn_append_rows", "attn_decode"}));
  EXPECT_EQ(rotary_plan_of(Pass::decode,
                           "dtype=f32 dtype_kv=i8 len_q=1 len_kv=64 len_new=1 lengths_kv rope=half")
                .summary()
                .kernels,
            (Names{"attn_rope", "attn_append_rows", "attn_forward_cache"}));
}

// sm90's main kernel stores a dbias that is no sum. With rotary embedding it could neither add to
// it nor replace what is not finite, so another family computes it.
TEST(CudaRotary, OptionsOfGradientsApplyToDbiasToo) {
  const std::string problem =
      "dtype=bf16 batch=2 len_q=512 len_kv=512 bias=bhqk dtype_bias=bf16 dbias rope=half ";
  const auto family_of = [&](const std::string& option) {
    return std::string(
        rotary_plan_of(Pass::backward, (problem + option).c_str(), FamilyChoice::automatic)
            .family_name);
  };
  EXPECT_EQ(family_of(""), "sm90");
  EXPECT_EQ(family_of("accumulate"), "sm80");
  EXPECT_EQ(family_of("nonfinite_zero"), "sm80");
  EXPECT_EQ(family_of("accumulate softcap"), "sm90") << "dbias has its own kernel";
}

TEST(CudaRotary, TheSummaryIsOfTheMainKernelAndTheProblemAsGiven) {
  const CudaPlan plan = rotary_plan_of(Pass::forward, "dtype=bf16 len_q=512 len_kv=512 rope=half");
  const CudaPlan plain = rotary_plan_of(Pass::forward, "dtype=bf16 len_q=512 len_kv=512");
  EXPECT_EQ(plan.problem.rope, Rope::half);
  EXPECT_EQ(plan.summary().config, plain.summary().config);
  EXPECT_EQ(plan.summary().tile_q, plain.summary().tile_q);
  EXPECT_EQ(plan.summary().tasks, plain.summary().tasks);
}

TEST(CudaRotary, CopiesAreInTheWorkspace) {
  const std::int64_t q = 2 * 8 * 512 * 64;
  const std::int64_t k = 2 * 2 * 700 * 64;
  const std::string sizes = "dtype=bf16 batch=2 heads_q=8 heads_kv=2 len_q=512 len_kv=700";
  const auto bytes = [&](Pass pass, const char* options) {
    return rotary_plan_of(pass, (sizes + options).c_str()).workspace_bytes;
  };
  EXPECT_EQ(bytes(Pass::forward, " rope=half"), 2 * (q + k));
  const std::int64_t plain = bytes(Pass::backward, " ");
  EXPECT_EQ(bytes(Pass::backward, " rope=half"), plain + (2 + 4) * (q + k));
  EXPECT_EQ(bytes(Pass::backward, " rope=half accumulate"), plain + (2 + 4) * (q + k) + 4 * k)
      << "and dv";
  EXPECT_EQ(bytes(Pass::decode, " rope=half") - bytes(Pass::decode, " "), 2 * q)
      << "cached keys are rotated already";
  const char* appends = " lengths_kv len_new=3 dtype_kv=f8e5m2";
  EXPECT_EQ(bytes(Pass::decode, (std::string(" rope=half") + appends).c_str()) -
                bytes(Pass::decode, appends),
            2 * q + 2 * 3 * 2 * 64)
      << "new keys in their type";
}

TEST(CudaRotary, RefusesWithReasons) {
  const auto reason = [](Pass pass, const char* text) {
    return make_plan(pass, parse_problem(text), h200()).reason();
  };
  EXPECT_EQ(reason(Pass::forward, "dtype=bf16 len_q=8 len_kv=64 page_size=16 rope=half"),
            "no forward with rotary embedding on a paged cache on CUDA; decode takes its keys as "
            "rotated");
  EXPECT_NE(reason(Pass::forward, "dtype=f64 len_q=8 len_kv=64 rope=half"), "") << "the family's";
  EXPECT_EQ(
      reason(Pass::forward, "dtype=bf16 heads_q=8388609 heads_kv=1 len_q=8 len_kv=8 rope=half"),
      "rotary embedding on CUDA: found 8388609 heads; accepted up to 2^23");
}

TEST(CudaRotary, FrequenciesAreTurnsIn64Bits) {
  Params params;
  set_rotation({Rope::interleaved, 64, 10000.0, 7, {}, {}}, params);
  EXPECT_EQ(params.interleaved, 1);
  EXPECT_EQ(params.offset, 7);
  EXPECT_EQ(params.cosines, nullptr);
  constexpr double kTwoPi = 6.283185307179586;
  for (int m = 0; m < 32; ++m) {
    const double turns = std::pow(10000.0, -2.0 * m / 64.0) / kTwoPi;
    EXPECT_NEAR(std::ldexp(static_cast<double>(params.frequency[m]), -64), turns, 1e-16) << m;
  }
  EXPECT_EQ(params.frequency[32], 0u);
}

// Tensors that nobody follows, and what run() launches for them.
class CudaRotaryCall : public WithFakeDriver {
 protected:
  TensorView make(DType dtype, std::initializer_list<std::int64_t> shape) {
    next_ += 1 << 24;
    TensorView view = TensorView::contiguous(reinterpret_cast<void*>(next_), dtype, shape);
    view.device = Device::cuda;
    return view;
  }

  // The parameters of the launched kernels, by the plan's order.
  std::vector<std::vector<unsigned char>> launched(Pass pass, const Problem& problem,
                                                   const Arguments& arguments) {
    const core::Status valid = core::validate(pass, problem, arguments);
    EXPECT_TRUE(valid.ok()) << valid.message;
    plan_ = make_plan(pass, problem, h200(), core::Access::tma, FamilyChoice::sm80).value();
    const CurrentContext context(fake_driver(), 0);
    std::vector<Kernel> kernels(plan_.num_kernels);
    const core::Executor executor;
    DeviceCall call{
        context, arguments, plan_, executor, {}, nullptr, reinterpret_cast<void*>(kWorkspace)};
    fake().launched.clear();
    fake().parameter_bytes = sizeof(device::Arguments);
    for (std::size_t i = 0; i < plan_.num_kernels; ++i) {
      kernels[i].spec = plan_.kernels[i];
      kernels[i].function = reinterpret_cast<abi::Function>(i + 1);
      call.kernels[i] = &kernels[i];
      if (std::string_view(plan_.kernels[i].entry) == "attn_rope") {
        fake().parameter_bytes_of[i + 1] = sizeof(Params);
      }
    }
    const core::Status status = run(call);
    EXPECT_TRUE(status.ok()) << status.message;
    std::vector<std::vector<unsigned char>> list;
    for (std::size_t i = 0; i < fake().launched.size(); ++i) {
      EXPECT_EQ(fake().launched[i].blocks, plan_.blocks[fake().launched[i].function - 1]);
      list.push_back(fake().launched[i].parameters);
    }
    return list;
  }
  template <class Parameters>
  static Parameters as(const std::vector<unsigned char>& bytes) {
    Parameters parameters;
    EXPECT_EQ(bytes.size(), sizeof parameters);
    std::memcpy(static_cast<void*>(&parameters), bytes.data(), sizeof parameters);
    return parameters;
  }
  [[nodiscard]] static char* at(const Part& part) {
    return reinterpret_cast<char*>(kWorkspace + static_cast<std::uintptr_t>(part.offset));
  }

  static constexpr std::uintptr_t kWorkspace = kDeviceMemory + (std::uintptr_t{1} << 36);
  CudaPlan plan_;

 private:
  std::uintptr_t next_ = kDeviceMemory;
};

TEST_F(CudaRotaryCall, ABackwardRotatesCopiesAndTheirGradients) {
  Arguments a;
  for (TensorView* view : {&a.q, &a.o, &a.dout, &a.dq}) *view = make(DType::bf16, {2, 300, 4, 64});
  for (TensorView* view : {&a.k, &a.v, &a.dk, &a.dv}) *view = make(DType::bf16, {2, 200, 2, 64});
  a.lse = make(DType::f32, {2, 4, 300});
  a.rope_pos_offset = 5;
  a.nonfinite_count = make(DType::i32, {1});
  Problem problem = describe(a);
  problem.rope = Rope::half;
  problem.rot_dim = 32;
  problem.accumulate = true;
  problem.nonfinite_zero = true;
  const auto list = launched(Pass::backward, problem, a);
  ASSERT_EQ(list.size(), 5u);
  const auto before = as<Params>(list[0]);
  EXPECT_EQ(before.jobs[0].from.base, a.q.data);
  EXPECT_EQ(before.jobs[0].to.base, at(plan_.rotary.q));
  EXPECT_EQ(before.jobs[0].to.stride_row, 64 * 2) << "rows of a head are adjacent";
  EXPECT_EQ(before.jobs[0].to.vector, 1);
  EXPECT_EQ(before.jobs[0].pairs, 16);
  EXPECT_EQ(before.jobs[0].kind, device::rope::kQueries);
  EXPECT_EQ(before.jobs[1].from.base, a.k.data);
  EXPECT_EQ(before.jobs[1].kind, device::rope::kKeys);
  EXPECT_EQ(before.jobs[2].blocks, 0u);
  EXPECT_EQ(before.offset, 5);
  EXPECT_EQ(before.gradients, 0);
  const auto main = as<device::Arguments>(list[2]);
  EXPECT_EQ(main.q.base, at(plan_.rotary.q));
  EXPECT_EQ(main.dk.base, at(plan_.rotary.dk));
  EXPECT_EQ(main.dv.base, at(plan_.rotary.dv));
  EXPECT_EQ(main.dv.type, static_cast<int>(DType::f32));
  EXPECT_EQ(main.accumulate, 0) << "the last pass adds";
  EXPECT_EQ(main.nonfinite_count, nullptr);
  const auto after = as<Params>(list[4]);
  EXPECT_EQ(after.inverse, 1);
  EXPECT_EQ(after.gradients, 1);
  EXPECT_EQ(after.common.accumulate, 1);
  EXPECT_EQ(static_cast<void*>(after.common.nonfinite_count), a.nonfinite_count.data);
  EXPECT_EQ(after.jobs[0].to.base, a.dq.data);
  EXPECT_EQ(after.jobs[1].from.base, at(plan_.rotary.dk));
  EXPECT_EQ(after.jobs[2].to.base, a.dv.data);
  EXPECT_EQ(after.jobs[2].pairs, 0) << "dv does not turn";
  // The parts end with the workspace.
  EXPECT_EQ(plan_.rotary.dv.offset + plan_.rotary.dv.bytes, plan_.workspace_bytes);
}

TEST_F(CudaRotaryCall, ADecodeRotatesQueriesAndNewKeys) {
  Arguments a;
  for (TensorView* view : {&a.q, &a.o}) *view = make(DType::bf16, {2, 1, 4, 64});
  for (TensorView* view : {&a.k, &a.v}) *view = make(DType::bf16, {2, 200, 2, 64});
  for (TensorView* view : {&a.k_new, &a.v_new}) *view = make(DType::bf16, {2, 3, 2, 64});
  a.len_kv = make(DType::i32, {2});
  a.rope_cos = a.rope_sin = make(DType::f32, {1000, 32});
  Problem problem = describe(a);
  problem.lse = false;
  problem.rope = Rope::interleaved;
  problem.split_keys = kSplitNone;
  fake().parameter_bytes_of[2] = 64;
  const auto list = launched(Pass::decode, problem, a);
  ASSERT_EQ(list.size(), 3u);
  const auto before = as<Params>(list[0]);
  EXPECT_EQ(before.jobs[0].from.base, a.q.data);
  EXPECT_EQ(before.jobs[1].from.base, a.k_new.data);
  EXPECT_EQ(before.jobs[1].kind, device::rope::kNewKeys);
  EXPECT_EQ(before.len_new, 3);
  EXPECT_EQ(before.cosines, a.rope_cos.data);
  EXPECT_EQ(before.cosines_stride, 32 * 4);
  EXPECT_EQ(before.table_rows, 1000);
  EXPECT_EQ(before.interleaved, 1);
}

}  // namespace
}  // namespace attn::cuda::test
