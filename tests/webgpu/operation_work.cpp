// Operations as dispatches; see operation_work.hpp.
#include "operation_work.hpp"

#include <algorithm>
#include <attn/attn.hpp>
#include <cmath>
#include <limits>

#include "harness/throw_if_failed.hpp"
#include "harness/values.hpp"
#include "reference/reference.hpp"
#include "webgpu/passes/operations.hpp"

namespace attn::webgpu::test {
namespace {

using harness::fill_all;
using harness::store;
using Shape = std::vector<std::int64_t>;

constexpr std::int64_t kBatch = 2, kRows = 35, kHeads = 3, kDim = 20;
const Shape kRowShape{kBatch, kRows, kHeads, kDim};
const Shape kPackedShape{kBatch * kRows, kHeads, kDim};
const Shape kStatisticsShape{kBatch, kHeads, kRows};

void require(const std::string& problem) {
  if (!problem.empty()) throw Error(ErrorCode::internal, problem);
}

class Builder {
 public:
  Builder(std::string name, DType dtype) { it_.name = std::move(name) + " " + to_string(dtype); }

  TensorView empty(const std::string& name, DType dtype, const Shape& shape) {
    return it_.tensors.make(name, dtype, shape, harness::Memory::bshd, true);
  }
  TensorView normal(const std::string& name, DType dtype, const Shape& shape) {
    const TensorView view = empty(name, dtype, shape);
    const std::uint64_t stream = harness::stream_of(name);
    fill_all(view, [&](std::uint64_t n) { return harness::hash_normal(1, stream, n); });
    return view;
  }
  TensorView numbers(const std::string& name, DType dtype, const std::vector<double>& values) {
    const TensorView view = empty(name, dtype, {static_cast<std::int64_t>(values.size())});
    fill_all(view, [&](std::uint64_t n) { return values[n]; });
    return view;
  }

  // Where the reference writes what belongs into `view`, which may be in use as an input as well.
  TensorView expect(const std::string& name, const TensorView& view, double units = 4.0) {
    const auto rank = static_cast<std::ptrdiff_t>(view.rank);
    const Shape shape(view.shape.begin(), view.shape.begin() + rank);
    results_.push_back(expected_.make(name, DType::f64, shape, harness::Memory::bshd, true));
    it_.outputs.push_back({name, view, {}, {units * harness::unit_roundoff(view.dtype)}});
    return results_.back();
  }

  // `members`: the tensors of the arguments. After the reference was called.
  template <class A>
  Operation finish(A arguments, std::initializer_list<TensorView A::*> members,
                   const DeviceFacts& facts) {
    it_.run.add(it_.tensors);
    for (const auto member : members) arguments.*member = it_.run.moved(arguments.*member);
    harness::throw_if_failed(make_work(arguments, facts, it_.run.work));
    for (std::size_t n = 0; n < results_.size(); ++n) judge(it_.outputs[n], results_[n]);
    return std::move(it_);
  }

 private:
  // Relative to the tensor's largest value.
  static void judge(Output& output, const TensorView& result) {
    output.expected = harness::read_all(result);
    double largest = 0.0;
    for (const double x : output.expected) {
      if (std::isfinite(x)) largest = std::max(largest, std::fabs(x));
    }
    const auto width =
        static_cast<std::size_t>(output.view.shape[static_cast<std::size_t>(result.rank) - 1]);
    output.tolerances.assign(output.expected.size() / width, output.tolerances[0] * largest);
  }

  Operation it_;
  harness::TensorSet expected_;
  std::vector<TensorView> results_;
};

enum class Positions { rows, entries, tables };

Operation rope(Positions from, DType dtype, const DeviceFacts& facts) {
  const bool packed = from == Positions::entries;
  const char* names[] = {"rope rows", "rope entries inverse", "rope tables positions in place"};
  Builder builder(names[static_cast<int>(from)], dtype);
  const Shape& shape = packed ? kPackedShape : kRowShape;
  RopeArguments a;
  a.x = builder.normal("x", dtype, shape);
  a.out = from == Positions::tables ? a.x : builder.empty("out", dtype, shape);
  a.base = 500.0;
  if (packed) {
    a.style = Rope::interleaved;
    a.rot_dim = 14;
    a.inverse = true;
    a.pos_offset = 11;
    a.cu_len = builder.numbers("cu_len", DType::i32, {0, 1, 30, 70});
  } else if (from == Positions::tables) {
    a.cos = builder.normal("cos", DType::f32, {40, kDim / 2});
    a.sin = builder.normal("sin", DType::f32, {40, kDim / 2});
    a.positions = builder.empty("positions", DType::i32, {1, kRows});
    fill_all(a.positions, [](std::uint64_t n) { return static_cast<double>(n * 37 % 40); });
  }
  RopeArguments expected = a;
  expected.out = builder.expect("out", a.out);
  require(reference::rope(expected));
  using A = RopeArguments;
  return builder.finish(a, {&A::x, &A::out, &A::positions, &A::cu_len, &A::cos, &A::sin}, facts);
}

// Partial results with some rows without keys. Their o must not be read.
template <class A>
void give_partials(Builder& builder, DType dtype, A& a) {
  a.o1 = builder.normal("o1", DType::f32, kRowShape);
  a.o2 = builder.normal("o2", dtype, kRowShape);
  a.lse1 = builder.normal("lse1", DType::f32, kStatisticsShape);
  a.lse2 = builder.normal("lse2", DType::f32, kStatisticsShape);
  const auto empty = [](const TensorView& lse, const TensorView& o, std::int64_t row,
                        std::int64_t head) {
    store(lse, -std::numeric_limits<double>::infinity(), 1, head, row);
    for (std::int64_t d = 0; d < kDim; ++d) store(o, std::nan(""), 1, row, head, d);
  };
  empty(a.lse1, a.o1, 7, 0);
  empty(a.lse2, a.o2, 8, 1);
  empty(a.lse1, a.o1, 9, 2);
  empty(a.lse2, a.o2, 9, 2);
}

Operation merge(bool in_place, DType dtype, const DeviceFacts& facts) {
  Builder builder(in_place ? "merge in place" : "merge", dtype);
  MergeArguments a;
  give_partials(builder, dtype, a);
  a.o = in_place ? a.o1 : builder.empty("o", dtype, kRowShape);
  a.lse = in_place ? a.lse1 : builder.empty("lse", DType::f32, kStatisticsShape);
  MergeArguments expected = a;
  expected.o = builder.expect("o", a.o);
  expected.lse = builder.expect("lse", a.lse);
  require(reference::merge(expected));
  using A = MergeArguments;
  return builder.finish(a, {&A::o1, &A::o2, &A::lse1, &A::lse2, &A::o, &A::lse}, facts);
}

Operation merge_backward(DType dtype, const DeviceFacts& facts) {
  Builder builder("merge_backward", dtype);
  MergeBackwardArguments a;
  give_partials(builder, dtype, a);
  MergeArguments whole;
  whole.o1 = a.o1;
  whole.o2 = a.o2;
  whole.lse1 = a.lse1;
  whole.lse2 = a.lse2;
  whole.o = a.o = builder.empty("o", dtype, kRowShape);
  whole.lse = a.lse = builder.empty("lse", DType::f32, kStatisticsShape);
  require(reference::merge(whole));
  a.dout = builder.normal("dout", dtype, kRowShape);
  a.dlse = builder.normal("dlse", DType::f32, kStatisticsShape);
  a.dout1 = builder.empty("dout1", DType::f32, kRowShape);
  a.dout2 = builder.empty("dout2", dtype, kRowShape);
  a.dlse1 = builder.empty("dlse1", DType::f32, kStatisticsShape);
  a.dlse2 = builder.empty("dlse2", DType::f32, kStatisticsShape);
  MergeBackwardArguments expected = a;
  expected.dout1 = builder.expect("dout1", a.dout1);
  expected.dout2 = builder.expect("dout2", a.dout2);
  expected.dlse1 = builder.expect("dlse1", a.dlse1, 16.0);
  expected.dlse2 = builder.expect("dlse2", a.dlse2, 16.0);
  require(reference::merge_backward(expected));
  using A = MergeBackwardArguments;
  return builder.finish(a,
                        {&A::o1, &A::lse1, &A::o2, &A::lse2, &A::o, &A::lse, &A::dout, &A::dlse,
                         &A::dout1, &A::dlse1, &A::dout2, &A::dlse2},
                        facts);
}

}  // namespace

std::vector<Operation> operations(DType dtype, const DeviceFacts& facts) {
  std::vector<Operation> list;
  for (const auto from : {Positions::rows, Positions::entries, Positions::tables}) {
    list.push_back(rope(from, dtype, facts));
  }
  list.push_back(merge(false, dtype, facts));
  list.push_back(merge(true, dtype, facts));
  list.push_back(merge_backward(dtype, facts));
  return list;
}

}  // namespace attn::webgpu::test
