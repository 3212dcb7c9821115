// The tolerance for products with 16-bit operands, compared with an emulation of such a kernel:
// keys in tiles, P relative to the running maximum, rounded before the product.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "harness/compare.hpp"
#include "harness/inputs.hpp"
#include "harness/naive.hpp"
#include "harness/values.hpp"
#include "reference/reference.hpp"

namespace attn::harness {
namespace {

struct Emulation {
  std::int64_t tile = 32;
  bool drops_last_key = false;
  bool rounds_dout = true;
};

// One head, no option. o and lse are those in the case's arguments.
class Kernel {
 public:
  Kernel(const Case& c, const Inputs& inputs, Emulation how)
      : p_(c.problem),
        a_(inputs.arguments),
        how_(how),
        scale_(static_cast<float>(1.0 / std::sqrt(static_cast<double>(p_.dim_qk)))),
        keys_(p_.len_kv - (how.drops_last_key ? 1 : 0)),
        q_(rows(a_.q)),
        k_(rows(a_.k)),
        v_(rows(a_.v)) {
    if (c.pass != Pass::backward) return;
    o_ = rows(a_.o);
    dout_ = rows(a_.dout);
    operand_ = dout_;
    if (!how.rounds_dout) return;
    for (float& x : operand_) x = rounded(x);
  }

  std::vector<double> forward() const {
    std::vector<double> result;
    for (std::int64_t i = 0; i < p_.len_q; ++i) {
      float most = -std::numeric_limits<float>::infinity();
      float total = 0.0f;
      std::vector<float> o(static_cast<std::size_t>(p_.dim_vo), 0.0f);
      for (std::int64_t begin = 0; begin < keys_; begin += how_.tile) {
        const std::int64_t end = std::min(begin + how_.tile, keys_);
        float next = most;
        std::vector<float> scores;
        for (std::int64_t j = begin; j < end; ++j) {
          scores.push_back(score(i, j));
          next = std::max(next, scores.back());
        }
        const float rescale = std::exp(most - next);
        most = next;
        total *= rescale;
        for (float& x : o) x *= rescale;
        for (std::int64_t j = begin; j < end; ++j) {
          const float weight = std::exp(scores[static_cast<std::size_t>(j - begin)] - most);
          total += weight;
          const float p = rounded(weight);
          const float* v = &v_[size(j, p_.dim_vo)];
          for (std::size_t d = 0; d < o.size(); ++d) o[d] += p * v[d];
        }
      }
      for (const float x : o) result.push_back(round_to(p_.out_type(), x / total));
    }
    return result;
  }

  // dq, dk, dv, in the order of a backward's outputs.
  std::vector<std::vector<double>> backward() const {
    std::vector<double> dq(size(p_.len_q, p_.dim_qk)), dk(size(p_.len_kv, p_.dim_qk)),
        dv(size(p_.len_kv, p_.dim_vo));
    for (std::int64_t i = 0; i < p_.len_q; ++i) {
      const float* q = &q_[size(i, p_.dim_qk)];
      const float* dout = &operand_[size(i, p_.dim_vo)];
      const float delta = dot(&dout_[size(i, p_.dim_vo)], &o_[size(i, p_.dim_vo)], p_.dim_vo);
      const double lse = load(a_.lse, 0, 0, i);
      for (std::int64_t j = 0; j < keys_; ++j) {
        const float* k = &k_[size(j, p_.dim_qk)];
        const auto p = static_cast<float>(std::exp(score(i, j) - lse));
        const float rounded_p = rounded(p);
        const float ds = rounded(p * (dot(dout, &v_[size(j, p_.dim_vo)], p_.dim_vo) - delta));
        double* to_q = &dq[size(i, p_.dim_qk)];
        double* to_k = &dk[size(j, p_.dim_qk)];
        double* to_v = &dv[size(j, p_.dim_vo)];
        for (std::int64_t d = 0; d < p_.dim_qk; ++d) {
          to_q[d] += scale_ * ds * k[d];
          to_k[d] += scale_ * ds * q[d];
        }
        for (std::int64_t d = 0; d < p_.dim_vo; ++d) to_v[d] += rounded_p * dout[d];
      }
    }
    for (auto* all : {&dq, &dk, &dv}) {
      for (double& x : *all) x = round_to(p_.grad_type(), x);
    }
    return {dq, dk, dv};
  }

 private:
  static std::size_t size(std::int64_t rows, std::int64_t width) {
    return static_cast<std::size_t>(rows * width);
  }
  static std::vector<float> rows(const TensorView& view) {
    const std::vector<double> values = read_all(view);
    return {values.begin(), values.end()};
  }
  static float dot(const float* a, const float* b, std::int64_t count) {
    float sum = 0.0f;
    for (std::int64_t d = 0; d < count; ++d) sum += a[d] * b[d];
    return sum;
  }
  [[nodiscard]] float rounded(float x) const {
    return static_cast<float>(round_to(p_.dtype, static_cast<double>(x)));
  }
  [[nodiscard]] float score(std::int64_t i, std::int64_t j) const {
    return scale_ * dot(&q_[size(i, p_.dim_qk)], &k_[size(j, p_.dim_qk)], p_.dim_qk);
  }

  const Problem& p_;
  const Arguments& a_;
  Emulation how_;
  float scale_;
  std::int64_t keys_;
  std::vector<float> q_, k_, v_, o_, dout_;
  std::vector<float> operand_;  // dout as the products take it
};

// A case's inputs, the reference's results, and the naive evaluation.
struct Setting {
  Setting(const Case& of, DType operand_type)
      : c(of), inputs(c), outputs(c, DType::f64), operands(operand_type) {
    if (c.pass == Pass::backward) {
      Case forward = c;
      forward.pass = Pass::forward;
      Inputs before(forward);
      OutputSet results(forward, DType::f64);
      results.give(before.arguments);
      EXPECT_EQ(reference::forward(forward.problem, before.arguments), "");
      inputs.give_forward(read_all(*results.find("o")), read_all(*results.find("lse")));
    }
    naives = naive(c, inputs, outputs, operands);
    outputs.give(inputs.arguments);
    EXPECT_EQ(c.pass == Pass::backward ? reference::backward(c.problem, inputs.arguments)
                                       : reference::forward(c.problem, inputs.arguments),
              "");
    if (c.pass == Pass::backward) return;
    inputs.arguments.o = TensorView{};
  }

  Comparison judge(std::size_t output, const std::vector<double>& actual) const {
    const auto& [name, view] = outputs.views[output];
    Comparands x;
    x.name = name;
    x.shape.assign(view.shape.begin(), view.shape.begin() + view.rank);
    x.dtype = c.pass == Pass::backward ? c.problem.grad_type() : c.problem.out_type();
    x.actual = actual;
    x.expected = read_all(view);
    x.naive = naives[output].values;
    x.magnitude = naives[output].magnitude;
    x.operands = operands;
    x.deviation = naives[output].deviation;
    x.flushed = naives[output].flushed;
    return compare(x);
  }

  Case c;
  Inputs inputs;
  OutputSet outputs;
  DType operands;
  std::vector<NaiveOutput> naives;
};

Case case_of(Pass pass, DType dtype, std::int64_t len_kv, double value_scale,
             DType dtype_out = DType::none) {
  Case c;
  c.pass = pass;
  c.problem.dtype = dtype;
  c.problem.dtype_out = dtype_out;
  c.problem.len_q = 65;
  c.problem.len_kv = len_kv;
  c.problem.dim_qk = c.problem.dim_vo = 16;
  c.problem.lse = pass == Pass::backward;
  c.value_scale = value_scale;
  return c;
}

constexpr DType kNarrowTypes[] = {DType::f16, DType::bf16};

// f32 results show the operands' rounding; the rounding of 16-bit results would hide it.
TEST(Operands, AKernelThatRoundsPPasses) {
  for (const DType dtype : kNarrowTypes) {
    for (const DType out : {DType::none, DType::f32}) {
      for (const std::int64_t len : {1, 2, 7, 64, 301}) {
        for (const double scale : {0.1, 1.0, 3.0}) {
          const Case c = case_of(Pass::forward, dtype, len, scale, out);
          const Setting with(c, dtype);
          const Comparison result = with.judge(0, Kernel(c, with.inputs, {}).forward());
          EXPECT_TRUE(result.passed) << to_string(c) << " " << result.message;
          EXPECT_LT(result.worst_ratio, 0.9);
        }
      }
    }
  }
}

TEST(Operands, AKernelThatRoundsPAndDsPasses) {
  for (const DType dtype : kNarrowTypes) {
    for (const DType out : {DType::none, DType::f32}) {
      for (const std::int64_t len : {2, 64, 301}) {
        for (const double scale : {0.1, 1.0, 3.0}) {
          Case c = case_of(Pass::backward, dtype, len, scale, out);
          c.problem.dtype_grad = out;
          const Setting with(c, dtype);
          const auto gradients = Kernel(c, with.inputs, {}).backward();
          for (std::size_t n = 0; n < 3; ++n) {
            const Comparison result = with.judge(n, gradients[n]);
            EXPECT_TRUE(result.passed) << to_string(c) << " " << result.message;
            EXPECT_LT(result.worst_ratio, 0.9);
          }
        }
      }
    }
  }
}

TEST(Operands, TheToleranceIsNotTooWide) {
  for (const DType dtype : kNarrowTypes) {
    Emulation wrong;
    wrong.drops_last_key = true;
    Case c = case_of(Pass::forward, dtype, 301, 1.0);
    const Setting forward(c, dtype);
    EXPECT_FALSE(forward.judge(0, Kernel(c, forward.inputs, wrong).forward()).passed);
    c.pass = Pass::backward;
    c.problem.lse = true;
    const Setting backward(c, dtype);
    EXPECT_FALSE(backward.judge(0, Kernel(c, backward.inputs, wrong).backward()[0]).passed);
    // The share of the tolerance that a correct kernel uses.
    c = case_of(Pass::forward, dtype, 301, 1.0, DType::f32);
    const Setting wide(c, dtype);
    EXPECT_GT(wide.judge(0, Kernel(c, wide.inputs, {}).forward()).worst_ratio, 0.2);
  }
}

// The same results must fail under the tolerance of f32 products: a backend with f32 products may
// not round operands.
TEST(Operands, IsForThoseThatRoundAlone) {
  for (const DType dtype : kNarrowTypes) {
    const Case c = case_of(Pass::forward, dtype, 301, 1.0, DType::f32);
    const Setting without(c, DType::none);
    EXPECT_FALSE(without.judge(0, Kernel(c, without.inputs, {}).forward()).passed);
    for (const double deviation : without.naives[0].deviation) EXPECT_EQ(deviation, 0.0);
    for (const double flushed : without.naives[0].flushed) EXPECT_EQ(flushed, 0.0);
  }
  Problem problem;
  const auto type_of = [&](Device device, const char* kernel,
                           std::vector<std::string> kernels = {}) {
    PlanSummary plan;
    plan.kernel = kernel;
    plan.kernels = std::move(kernels);
    return operand_type(problem, device, plan);
  };
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
    problem.dtype = dtype;
    const bool is_16_bit = size_of(dtype) == 2;
    EXPECT_EQ(type_of(Device::host, "cpu_forward"), DType::none);
    EXPECT_EQ(type_of(Device::host, "cpu_forward_amx_bf16"), is_16_bit ? dtype : DType::none);
    EXPECT_EQ(type_of(Device::cuda, "cuda_forward"), is_16_bit ? dtype : DType::none);
  }
  problem.dtype = DType::f32;
  problem.precision = Precision::tf32;
  EXPECT_EQ(type_of(Device::cuda, "cuda_forward"), DType::f32) << "stands for tf32";
  EXPECT_EQ(type_of(Device::host, "cpu_forward"), DType::none);
  problem.precision = Precision::ieee;
  problem.dtype = DType::f8e5m2;
  EXPECT_EQ(type_of(Device::host, "cpu_forward"), DType::none);
  EXPECT_EQ(type_of(Device::cuda, "cuda_forward", {"attn_forward_sm90"}), DType::f8e4m3);
  EXPECT_EQ(type_of(Device::cuda, "cuda_decode", {"attn_rope", "attn_decode"}), DType::bf16);
  problem.dtype_out = DType::f16;
  EXPECT_EQ(type_of(Device::cuda, "cuda_decode", {"attn_rope", "attn_decode"}), DType::f16);
}

// delta uses the f32 dout, the products use the rounded one; the naive evaluation does the same.
TEST(Operands, AnF32DoutIsRoundedForProducts) {
  Case c = case_of(Pass::backward, DType::bf16, 64, 1.0, DType::f32);
  c.problem.dtype_grad = DType::f32;
  const Setting with(c, DType::bf16);
  const auto gradients = Kernel(c, with.inputs, {}).backward();
  std::vector<double> worst(2, 0.0);
  for (std::size_t n = 0; n < gradients[2].size(); ++n) {
    worst[0] = std::max(worst[0], std::fabs(gradients[2][n] - with.naives[2].values[n]));
  }
  Emulation exact;
  exact.rounds_dout = false;
  const auto unrounded = Kernel(c, with.inputs, exact).backward();
  for (std::size_t n = 0; n < unrounded[2].size(); ++n) {
    worst[1] = std::max(worst[1], std::fabs(unrounded[2][n] - with.naives[2].values[n]));
  }
  EXPECT_LT(8.0 * worst[0], worst[1]) << "P is rounded alike here, dout must be too";
}

// A kernel that multiplies 16-bit operands rounds q and k after the rotary embedding, which lse
// shows.
TEST(Operands, RotatedQAndKAreRounded) {
  for (const Rope style : {Rope::none, Rope::half}) {
    Case c = case_of(Pass::forward, DType::bf16, 64, 1.0, DType::f32);
    c.problem.rope = style;
    c.problem.lse = true;
    const Setting rounds(c, DType::bf16);
    const Setting exact(c, DType::none);
    double worst = 0.0;
    for (std::size_t n = 0; n < rounds.naives.size(); ++n) {
      if (rounds.naives[n].name != "lse") continue;
      for (std::size_t i = 0; i < rounds.naives[n].values.size(); ++i) {
        worst = std::max(worst, std::fabs(rounds.naives[n].values[i] - exact.naives[n].values[i]));
      }
    }
    EXPECT_EQ(worst > 1e-5, style == Rope::half) << worst;
  }
}

// Below 2^-14 f16 values are equally spaced. One key far above the others gives P of e^-12 and
// less.
TEST(Operands, SubnormalOperandsAreOffByTheirSpacing) {
  const Case c = case_of(Pass::forward, DType::f16, 301, 6.0, DType::f32);
  const Setting with(c, DType::f16);
  EXPECT_GT(*std::max_element(with.naives[0].flushed.begin(), with.naives[0].flushed.end()), 0.0);
  const Comparison result = with.judge(0, Kernel(c, with.inputs, {}).forward());
  EXPECT_TRUE(result.passed) << result.message;
  const Setting brain(case_of(Pass::forward, DType::bf16, 301, 6.0, DType::f32), DType::bf16);
  for (const double flushed : brain.naives[0].flushed) EXPECT_LT(flushed, 1e-30);
}

// The formula: six standard deviations and the flushed part are added to the rest.
TEST(Operands, AddToTheTolerance) {
  const RowFacts plain{1e-3, 1.0, 2.0, 0.0, 0.0};
  RowFacts rounded = plain;
  rounded.deviation = 1e-2;
  rounded.flushed = 5e-3;
  EXPECT_NEAR(row_tolerance(DType::f32, false, rounded) - row_tolerance(DType::f32, false, plain),
              0.065, 1e-12);
  EXPECT_DOUBLE_EQ(row_tolerance(DType::f32, false, plain),
                   2e-3 + 2.0 * 0x1p-24 + 8.0 * 0x1p-24 + 0x1p-110);
  // A wrong naive evaluation is still detected.
  EXPECT_LT(naive_limit(DType::f32, false, plain, DType::bf16), 2.0 * 2.0 * 0x1p-8 + 1e-5);
  EXPECT_EQ(naive_limit(DType::f32, false, plain, DType::none),
            naive_limit(DType::f32, false, plain));
}

}  // namespace
}  // namespace attn::harness
