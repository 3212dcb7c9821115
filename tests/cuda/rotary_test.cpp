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
#include "cuda/kernels/passes/append_rows.cuh"
#include "cuda/kernels/sm80/decode_params.cuh"
#include "cuda/kernels/sm80/forward_cache_params.cuh"
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
  EXPECT_EQ(rotary_plan_of(Pass::forward, "dtype=bf16 batch=99 len_q=512 len_kv=512 rope=half",
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

// A forward rotates the keys of a cache, so it copies paged and 8-bit k and v in the type of q. The
// family then plans a call on the copies.
TEST(CudaRotary, ForwardsOnCachesAreAroundCopies) {
  const auto plan_of = [](const char* text, FamilyChoice choice = FamilyChoice::sm80) {
    return rotary_plan_of(Pass::forward, text, choice);
  };
  const CudaPlan paged =
      plan_of("dtype=bf16 dtype_kv=i8 len_q=99 len_kv=99 page_size=16 descale_rows rope=half");
  EXPECT_EQ(paged.summary().kernels, (Names{"attn_rope", "attn_decode"}));
  EXPECT_EQ(paged.kernels[paged.main].config.get("kv_type"), static_cast<int>(DType::bf16));
  EXPECT_EQ(paged.kernels[paged.main].config.get("descale_rows"), 0);
  EXPECT_EQ(plan_of("len_q=99 len_kv=99 page_size=16 rope=half").summary().kernels,
            (Names{"attn_rope", "attn_forward_cache"}));
  EXPECT_EQ(
      plan_of("dtype=f16 dtype_kv=f8e5m2 len_q=99 len_kv=99 rope=half", FamilyChoice::automatic)
          .summary()
          .kernels,
      (Names{"attn_rope", "attn_forward_sm90"}));
  EXPECT_EQ(plan_of("dtype_kv=i8 len_q=99 len_kv=99 rope=half").summary().kernels,
            (Names{"attn_rope", "attn_forward"}));
  EXPECT_EQ(plan_of("dtype=bf16 dim_qk=512 dim_vo=512 len_q=9 len_kv=99 page_size=3 rope=half")
                .summary()
                .kernels,
            (Names{"attn_rope", "attn_forward_cache", "attn_forward_cache"}));
}

// sm90's main kernel stores a dbias that is no sum. With rotary embedding it could neither add to
// it nor replace what is not finite, so another family computes it.
TEST(CudaRotary, OptionsOfGradientsApplyToDbiasToo) {
  const std::string problem =
      "dtype=bf16 batch=2 len_q=512 len_kv=512 bias=bhqk dtype_bias=bf16 dbias rope=half ";
  const auto family_of = [&](const std::string& option) {
    return std::string(
        rotary_plan_of(Pass::backward, (problem + option).c_str(), FamilyChoice::sm90).family_name);
  };
  EXPECT_EQ(family_of(""), "sm90");
  EXPECT_EQ(family_of("accumulate"), "sm80");
  EXPECT_EQ(family_of("nonfinite_zero"), "sm80");
  EXPECT_EQ(family_of("accumulate softcap"), "sm90") << "dbias has its own kernel";
  EXPECT_EQ(family_of("accumulate bias=hqk"), "sm80") << "sm90's own kernel of dbias";
  EXPECT_EQ(family_of("accumulate bias=hqk batch=7"), "sm90") << "a kernel adds partial sums";
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
  const std::int64_t v = k;
  EXPECT_EQ(bytes(Pass::forward, " rope=half dtype_kv=f8e4m3 descale_rows"), 2 * (q + k + v));
  // 44 pages of 16 rows for a sequence, and a block table, each part at a multiple of 256 bytes.
  const std::int64_t pool = 2 * 2 * 44 * 16 * 64;
  EXPECT_EQ(bytes(Pass::forward, " rope=half page_size=16 dtype_kv=i8 ") -
                bytes(Pass::forward, " page_size=16 "),
            2 * (q + pool + pool) + 4 * 2 * 44 +
                (256 - bytes(Pass::forward, " page_size=16 ") % 256) % 256);
  EXPECT_EQ(bytes(Pass::forward, " rope=half page_size=1000000 ") -
                bytes(Pass::forward, " page_size=700 "),
            2 * (q + k + v) + 4 * 2)
      << "a page of the copy is no longer than the sequences";
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
  EXPECT_EQ(reason(Pass::forward, "dtype=f8e4m3 len_q=8 len_kv=64 rope=half"), "");
  EXPECT_EQ(reason(Pass::decode, "dtype=f8e4m3 heads_q=8388609 heads_kv=1 len_q=8 len_kv=8"),
            "f8 queries on CUDA: found 8388609 heads; accepted up to 2^23");
  EXPECT_EQ(
      reason(Pass::forward, "dtype=bf16 batch=4096 len_q=8 len_kv=1048576 page_size=1 rope=half"),
      "rotary embedding of a paged cache on CUDA: found 4294967296 pages of all sequences; "
      "accepted fewer than 2^31");
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
      const std::string_view entry = plan_.kernels[i].entry;
      if (entry == "attn_rope") fake().parameter_bytes_of[i + 1] = sizeof(Params);
      if (entry == "attn_append_rows") {
        fake().parameter_bytes_of[i + 1] = sizeof(device::append_rows::Params);
      }
      if (entry == "attn_decode") {
        fake().parameter_bytes_of[i + 1] = sizeof(device::DecodeParams);
      }
      if (entry == "attn_forward_cache") {
        fake().parameter_bytes_of[i + 1] = sizeof(device::ForwardCacheParams);
      }
    }
    const core::Status status = run(call);
    EXPECT_TRUE(status.ok()) << status.message;
    std::vector<std::vector<unsigned char>> list;
    for (std::size_t i = 0; i < fake().launched.size(); ++i) {
      const std::int64_t planned = plan_.blocks[fake().launched[i].function - 1];
      if (expects_all_blocks_) {
        EXPECT_EQ(fake().launched[i].blocks, planned);
      }
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
  bool expects_all_blocks_ = true;

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

// An f8 q is copied in bf16. Its factors become those of the keys, unless the kernel rounds the
// keys times their factors.
TEST_F(CudaRotaryCall, QueriesOfF8AreCopied) {
  Arguments a;
  a.q = make(DType::f8e4m3, {2, 3, 4, 64});
  a.o = make(DType::bf16, {2, 3, 4, 64});
  for (TensorView* view : {&a.k, &a.v}) *view = make(DType::f8e5m2, {2, 70, 2, 64});
  a.descale_q = a.descale_k = make(DType::f32, {2, 2});
  Problem problem = describe(a);
  problem.lse = false;
  problem.split_keys = kSplitNone;
  auto list = launched(Pass::decode, problem, a);
  ASSERT_EQ(list.size(), 2u);
  auto before = as<Params>(list[0]);
  EXPECT_EQ(before.jobs[0].from.base, a.q.data);
  EXPECT_EQ(before.jobs[0].to.base, at(plan_.rotary.q));
  EXPECT_EQ(before.jobs[0].to.type, static_cast<int>(DType::bf16));
  EXPECT_EQ(before.jobs[0].pairs, 0);
  EXPECT_EQ(before.jobs[0].descale.base, nullptr);
  const device::rope::Job& products = before.jobs[1];
  EXPECT_EQ(products.from.base, a.descale_k.data);
  EXPECT_EQ(static_cast<const void*>(products.descale.base), a.descale_q.data);
  EXPECT_EQ(products.to.base, at(plan_.rotary.descales));
  EXPECT_EQ(products.heads, 2);
  EXPECT_EQ(products.num_rows, 1);
  EXPECT_EQ(products.dim, 1);
  EXPECT_EQ(products.kind, device::rope::kNewKeys) << "also where no key is cached";
  EXPECT_EQ(before.jobs[2].blocks, 0u);
  auto main = as<device::DecodeParams>(list[1]);
  EXPECT_EQ(main.common.q.base, at(plan_.rotary.q));
  EXPECT_EQ(main.common.k.base, a.k.data);
  EXPECT_EQ(reinterpret_cast<const char*>(main.descale_k.base), at(plan_.rotary.descales));

  a.descale_k = {};
  expects_all_blocks_ = false;
  list = launched(Pass::decode, problem, a);
  EXPECT_EQ(fake().launched[0].blocks, plan_.blocks[0] - 2) << "no products";
  main = as<device::DecodeParams>(list[1]);
  EXPECT_EQ(static_cast<const void*>(main.descale_k.base), a.descale_q.data);

  problem.rope = Rope::half;
  list = launched(Pass::decode, problem, a);
  before = as<Params>(list[0]);
  EXPECT_EQ(before.jobs[0].pairs, 32);
  EXPECT_EQ(static_cast<const void*>(before.jobs[0].descale.base), a.descale_q.data);
  EXPECT_EQ(before.jobs[0].heads_per_descale, 2);
  EXPECT_EQ(as<device::DecodeParams>(list[1]).descale_k.base, nullptr);
}

TEST_F(CudaRotaryCall, AForwardCopiesAPagedCache) {
  Arguments a;
  for (TensorView* view : {&a.q, &a.o}) *view = make(DType::f32, {2, 9, 4, 64});
  for (TensorView* view : {&a.k, &a.v}) *view = make(DType::i8, {30, 16, 2, 64});
  for (TensorView* view : {&a.descale_k, &a.descale_v}) *view = make(DType::f32, {30, 1, 2});
  a.block_table = make(DType::i32, {2, 5});
  Problem problem = describe(a);
  problem.lse = false;
  problem.rope = Rope::half;
  problem.len_kv = 70;
  const auto list = launched(Pass::forward, problem, a);
  ASSERT_EQ(list.size(), 2u);
  const auto before = as<Params>(list[0]);
  EXPECT_EQ(static_cast<const void*>(before.cache.table), a.block_table.data);
  EXPECT_EQ(before.cache.num_pages, 30);
  const device::rope::Job& keys = before.jobs[1];
  const device::rope::Job& values = before.jobs[2];
  EXPECT_EQ(keys.from.base, a.k.data);
  EXPECT_EQ(keys.to.base, at(plan_.rotary.k));
  EXPECT_EQ(keys.num_rows, 70);
  EXPECT_EQ(keys.blocks, 2u * 9) << "8 rows each";
  EXPECT_EQ(keys.pairs, 32);
  EXPECT_EQ(static_cast<const void*>(keys.descale.base), a.descale_k.data);
  EXPECT_EQ(keys.descale.stride_row, 0) << "one factor for a page";
  EXPECT_EQ(keys.descale_rows, 1);
  EXPECT_EQ(reinterpret_cast<char*>(keys.new_table), at(plan_.rotary.table));
  EXPECT_EQ(values.from.base, a.v.data);
  EXPECT_EQ(values.to.base, at(plan_.rotary.v));
  EXPECT_EQ(values.pairs, 0);
  EXPECT_EQ(values.blocks, keys.blocks);
  EXPECT_EQ(values.new_table, nullptr) << "one job writes it";
  const auto main = as<device::ForwardCacheParams>(list[1]);
  EXPECT_EQ(main.common.k.base, at(plan_.rotary.k));
  EXPECT_EQ(main.common.v.base, at(plan_.rotary.v));
  EXPECT_EQ(main.common.v.type, static_cast<int>(DType::f32));
  EXPECT_EQ(reinterpret_cast<const char*>(main.cache.table), at(plan_.rotary.table));
  EXPECT_EQ(main.cache.table_stride_batch, 5);
  EXPECT_EQ(main.cache.num_pages, 2 * 5);
  EXPECT_EQ(main.descale_k.base, nullptr) << "the copy has the factors";
  EXPECT_EQ(main.descale_rows, 0);
  EXPECT_EQ(plan_.rotary.table.offset + plan_.rotary.table.bytes, plan_.workspace_bytes);
}

// Above dim 256: new keys are rotated and appended once, then each launch has 256 columns of v.
TEST_F(CudaRotaryCall, AWideDecodeAppendsRotatedKeys) {
  Arguments a;
  for (TensorView* view : {&a.q, &a.o}) *view = make(DType::bf16, {2, 1, 4, 320});
  for (TensorView* view : {&a.k, &a.v}) *view = make(DType::i8, {30, 16, 2, 320});
  for (TensorView* view : {&a.k_new, &a.v_new}) *view = make(DType::i8, {2, 3, 2, 320});
  a.descale_v = make(DType::f32, {2, 2});
  a.block_table = make(DType::i32, {2, 5});
  a.len_kv = make(DType::i32, {2});
  a.lse = make(DType::f32, {2, 4, 1});
  Problem problem = describe(a);
  problem.rope = Rope::half;
  const auto list = launched(Pass::decode, problem, a);
  ASSERT_EQ(list.size(), 4u);
  const auto appended = as<device::append_rows::Params>(list[1]);
  EXPECT_EQ(appended.cache.k_new.base, at(plan_.rotary.k));
  EXPECT_EQ(appended.common.v.base, a.v.data);
  EXPECT_EQ(appended.common.dim_vo, 320);
  for (std::size_t n = 0; n < 2; ++n) {
    const auto slice = as<device::ForwardCacheParams>(list[2 + n]);
    EXPECT_EQ(slice.common.dim_vo, n == 0 ? 256 : 64);
    EXPECT_EQ(slice.common.k.base, a.k.data);
    EXPECT_EQ(slice.common.v.base, static_cast<char*>(a.v.data) + n * 256);
    EXPECT_EQ(slice.common.o.base, static_cast<char*>(a.o.data) + n * 512);
    EXPECT_EQ(slice.common.lse.base, n == 0 ? a.lse.data : nullptr);
    EXPECT_EQ(slice.cache.len_new, 3);
    EXPECT_EQ(static_cast<const void*>(slice.descale_v.base), a.descale_v.data);
    EXPECT_EQ(slice.descale_k.base, nullptr);
  }
}

}  // namespace
}  // namespace attn::cuda::test
