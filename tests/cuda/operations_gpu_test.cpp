// attn_cuda_gpu_test: merge, its backward and rope on a GPU against the reference, elementwise, in
// every type, in contiguous, padded and unaligned layouts. Bytes between and around the rows of
// outputs must stay as they were. Skipped without a GPU; the emulator runs it too.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cuda/host/device.hpp"
#include "harness/device.hpp"
#include "harness/values.hpp"
#include "reference/reference.hpp"

namespace attn::cuda::test {
namespace {

using harness::fill_all;
using harness::num_elements;
using harness::store;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr unsigned char kPoison = 0xC3;

// contiguous: [b, n, h, d]. heads_first: the same as a view of [b, h, n, d]. odd: rows that begin
// one element after a multiple of 16 bytes, with gaps between them.
enum class Lie { contiguous, heads_first, odd };

struct Shape {
  std::int64_t batch, rows, heads, dim;
  bool packed;
};

// Tensors in host memory with a copy on the device.
class Tensors {
 public:
  explicit Tensors(harness::DeviceQueue& queue) : queue_(queue) {}
  ~Tensors() {
    for (const auto& [data, block] : blocks_) queue_.give_back(block.device);
  }
  Tensors(const Tensors&) = delete;
  Tensors& operator=(const Tensors&) = delete;

  TensorView rows(DType dtype, const Shape& s, Lie lie) {
    const std::int64_t gap = lie == Lie::odd ? 3 : 0;
    const std::int64_t dim = s.dim + gap;
    const std::int64_t batch = s.packed ? 1 : s.batch;
    const bool heads_first = lie == Lie::heads_first;
    const std::int64_t row = heads_first ? dim : s.heads * dim + gap;
    const std::int64_t head = heads_first ? s.rows * dim : dim;
    const std::int64_t whole = heads_first ? s.heads * head : s.rows * row;
    TensorView view = memory(dtype, batch * whole + gap + 1, lie == Lie::odd ? 1 : 0);
    view.rank = s.packed ? 3 : 4;
    if (s.packed) {
      view.shape = {s.rows, s.heads, s.dim, 0};
      view.strides = {row, head, 1, 0};
    } else {
      view.shape = {s.batch, s.rows, s.heads, s.dim};
      view.strides = {whole, row, head, 1};
    }
    return view;
  }
  TensorView statistics(const Shape& s) {
    const std::int64_t batch = s.packed ? 1 : s.batch;
    TensorView view = memory(DType::f32, batch * s.heads * s.rows, 0);
    view.rank = s.packed ? 2 : 3;
    if (s.packed) {
      view.shape = {s.heads, s.rows, 0, 0};
      view.strides = {s.rows, 1, 0, 0};
    } else {
      view.shape = {s.batch, s.heads, s.rows, 0};
      view.strides = {s.heads * s.rows, s.rows, 1, 0};
    }
    return view;
  }
  TensorView plain(DType dtype, std::initializer_list<std::int64_t> shape) {
    TensorView view = TensorView::contiguous(nullptr, dtype, shape);
    view.data = memory(dtype, num_elements(view), 0).data;
    return view;
  }
  static void fill(const TensorView& view, const std::string& name) {
    fill_all(view, [stream = harness::stream_of(name)](std::uint64_t n) {
      return harness::hash_normal(1, stream, n);
    });
  }

  // The view's copy on the device, with what the host memory holds now.
  TensorView on_device(TensorView view) {
    if (!view.given()) return view;
    Block& block = blocks_.at(view.data);
    queue_.upload(block.device, block.host.data(), static_cast<std::int64_t>(block.host.size()));
    block.before = block.host;
    view.data = static_cast<char*>(block.device) +
                (static_cast<const unsigned char*>(view.data) - block.host.data());
    view.device = Device::cuda;
    view.ordinal = queue_.ordinal();
    return view;
  }
  // Copies an output back. False if a byte that belongs to no element changed.
  bool download(const TensorView& view) {
    if (!view.given()) return true;
    Block& block = blocks_.at(view.data);
    queue_.download(block.host.data(), block.device, static_cast<std::int64_t>(block.host.size()));
    std::vector<unsigned char> expected = block.before;
    const std::int64_t size = size_of(view.dtype);
    const auto start = static_cast<const unsigned char*>(view.address()) - block.host.data();
    for (std::int64_t n = 0; n < num_elements(view); ++n) {
      const std::int64_t at = start + harness::element_offset(view, n) * size;
      std::memcpy(&expected[static_cast<std::size_t>(at)],
                  &block.host[static_cast<std::size_t>(at)], static_cast<std::size_t>(size));
    }
    return expected == block.host;
  }

 private:
  struct Block {
    std::vector<unsigned char> host, before;
    void* device = nullptr;
  };

  TensorView memory(DType dtype, std::int64_t elements, std::int64_t first) {
    constexpr std::int64_t kGuard = 64;
    Block block;
    const std::int64_t bytes = (elements + first) * size_of(dtype) + 2 * kGuard;
    block.host.assign(static_cast<std::size_t>(bytes), kPoison);
    block.device = queue_.take(bytes);
    TensorView view;
    view.dtype = dtype;
    view.data = block.host.data() + kGuard + first * size_of(dtype);
    blocks_.emplace(view.data, std::move(block));
    return view;
  }

  harness::DeviceQueue& queue_;
  std::map<const void*, Block> blocks_;
};

// Largest |got - want|, relative to the largest |want| but at least 1; infinite if non-finite
// elements differ.
double error_of(const TensorView& got, const TensorView& want) {
  const std::vector<double> a = harness::read_all(got);
  const std::vector<double> b = harness::read_all(want);
  double largest = 1.0;
  double error = 0.0;
  for (std::size_t n = 0; n < b.size(); ++n) {
    if (a[n] == b[n]) continue;
    if (!std::isfinite(a[n]) || !std::isfinite(b[n])) return kInf;
    largest = std::max(largest, std::fabs(b[n]));
    error = std::max(error, std::fabs(a[n] - b[n]));
  }
  return error / largest;
}

double allowed(DType dtype) {
  return 4.0 * harness::unit_roundoff(dtype);
}

class CudaOperationsGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    const Driver* driver = Driver::get(reason);
    if (driver == nullptr) GTEST_SKIP() << reason;
    queue.emplace(0);
    if (queue->device_name() == "Fake GPU") GTEST_SKIP() << "its kernels do nothing";
    ContextOptions options;
    options.backend = "cuda";
    context.emplace(options);
  }

  std::optional<harness::DeviceQueue> queue;
  std::optional<Context> context;
};

constexpr Shape kShapes[] = {{2, 35, 3, 20, false},  {1, 70, 3, 64, true}, {3, 5, 2, 128, false},
                             {2, 3, 33, 256, false}, {1, 41, 1, 7, true},  {40, 1, 2, 16, false}};

struct Types {
  DType one, two, out;
};
constexpr Types kTypes[] = {{DType::f32, DType::f32, DType::f32},
                            {DType::bf16, DType::bf16, DType::bf16},
                            {DType::f32, DType::f16, DType::f16},
                            {DType::bf16, DType::f32, DType::bf16}};

// Fills partial results. Every third row of one of them has no keys: its o is NaN and not read.
template <class Call>
void fill_partials(const Call& a, const Shape& s) {
  Tensors::fill(a.o1, "o1");
  Tensors::fill(a.o2, "o2");
  Tensors::fill(a.lse1, "lse1");
  Tensors::fill(a.lse2, "lse2");
  const auto empty = [&](const TensorView& lse, const TensorView& o, std::int64_t b, std::int64_t i,
                         std::int64_t h) {
    s.packed ? store(lse, -kInf, h, i) : store(lse, -kInf, b, h, i);
    for (std::int64_t d = 0; d < s.dim; ++d) {
      s.packed ? store(o, std::nan(""), i, h, d) : store(o, std::nan(""), b, i, h, d);
    }
  };
  for (std::int64_t n = 0; n < s.batch * s.rows * s.heads; n += 3) {
    const std::int64_t i = n % s.rows;
    const std::int64_t h = n / s.rows % s.heads;
    const std::int64_t b = n / s.rows / s.heads;
    if (n % 2 == 0) empty(a.lse1, a.o1, b, i, h);
    if (n % 4 < 2) empty(a.lse2, a.o2, b, i, h);
  }
}

TEST_F(CudaOperationsGpu, Merge) {
  for (const Shape& s : kShapes) {
    for (const Types& types : kTypes) {
      for (const Lie lie : {Lie::contiguous, Lie::heads_first, Lie::odd}) {
        for (const char* kind : {"apart", "in place", "sink"}) {
          const std::string form = kind;
          if (form == "in place" && types.one != types.out) continue;
          Tensors t(*queue);
          MergeArguments a;
          a.o1 = t.rows(types.one, s, lie);
          a.o2 = t.rows(types.two, s, Lie::contiguous);
          a.lse1 = t.statistics(s);
          a.lse2 = t.statistics(s);
          fill_partials(a, s);
          if (form == "sink") a.o2 = {};
          a.o = t.rows(types.out, s, lie);
          a.lse = t.statistics(s);
          MergeArguments expected = a;
          expected.o = t.rows(DType::f64, s, Lie::contiguous);
          ASSERT_EQ(reference::merge(expected), "");
          expected.lse = a.lse;
          a.lse = t.statistics(s);
          if (form == "in place") a.o = a.o1, a.lse = a.lse1;
          MergeArguments on = a;
          for (const auto member :
               {&MergeArguments::o1, &MergeArguments::o2, &MergeArguments::lse1,
                &MergeArguments::lse2, &MergeArguments::o, &MergeArguments::lse}) {
            on.*member = t.on_device(a.*member);
          }
          on.stream = queue->stream();
          merge(*context, on);
          EXPECT_TRUE(t.download(a.o)) << form;
          EXPECT_TRUE(t.download(a.lse)) << form;
          EXPECT_LE(error_of(a.o, expected.o), allowed(types.out)) << form << " dim " << s.dim;
          EXPECT_LE(error_of(a.lse, expected.lse), allowed(DType::f32)) << form;
        }
      }
    }
  }
}

constexpr TensorView MergeBackwardArguments::* kGradients[] = {
    &MergeBackwardArguments::dout1, &MergeBackwardArguments::dlse1, &MergeBackwardArguments::dout2,
    &MergeBackwardArguments::dlse2};

TEST_F(CudaOperationsGpu, MergeBackward) {
  for (const Shape& s : kShapes) {
    for (const Types& types : kTypes) {
      for (const Lie lie : {Lie::contiguous, Lie::odd}) {
        for (int wanted = 1; wanted < 16; wanted += 7) {  // 1: dout1, 8: dlse2, 15: all
          Tensors t(*queue);
          MergeBackwardArguments a;
          a.o1 = t.rows(types.one, s, Lie::contiguous);
          a.o2 = t.rows(types.two, s, lie);
          a.lse1 = t.statistics(s);
          a.lse2 = t.statistics(s);
          fill_partials(a, s);
          a.o = t.rows(types.out, s, lie);
          a.lse = t.statistics(s);
          MergeArguments whole{a.o1, a.lse1, a.o2, a.lse2, a.o, a.lse, {}};
          ASSERT_EQ(reference::merge(whole), "");
          a.dout = t.rows(types.out, s, Lie::heads_first);
          Tensors::fill(a.dout, "dout");
          if (wanted != 8) {
            a.dlse = t.statistics(s);
            Tensors::fill(a.dlse, "dlse");
          }
          MergeBackwardArguments expected = a;
          for (int n = 0; n < 4; ++n) {
            if ((wanted >> n & 1) == 0) continue;
            const bool rows = n % 2 == 0;
            const DType dtype = n == 0 ? types.one : types.two;
            a.*kGradients[n] = rows ? t.rows(dtype, s, lie) : t.statistics(s);
            expected.*kGradients[n] =
                rows ? t.rows(DType::f64, s, Lie::contiguous) : t.statistics(s);
          }
          ASSERT_EQ(reference::merge_backward(expected), "");
          MergeBackwardArguments on = a;
          for (const auto member : {&MergeBackwardArguments::o1, &MergeBackwardArguments::lse1,
                                    &MergeBackwardArguments::o2, &MergeBackwardArguments::lse2,
                                    &MergeBackwardArguments::o, &MergeBackwardArguments::lse,
                                    &MergeBackwardArguments::dout, &MergeBackwardArguments::dlse,
                                    kGradients[0], kGradients[1], kGradients[2], kGradients[3]}) {
            on.*member = t.on_device(a.*member);
          }
          on.stream = queue->stream();
          merge_backward(*context, on);
          for (int n = 0; n < 4; ++n) {
            const TensorView& got = a.*kGradients[n];
            if (!got.given()) continue;
            EXPECT_TRUE(t.download(got)) << n;
            const double most = (n % 2 == 0 ? 1 : 8) * allowed(got.dtype);
            EXPECT_LE(error_of(got, expected.*kGradients[n]), most) << n << " dim " << s.dim;
          }
        }
      }
    }
  }
}

struct Positions {
  const char* from;
  Rope style;
  bool inverse;
  std::int64_t rot_dim;  // 0: the dimension
};

// Fills the positions, tables or lengths of a call for x.
void fill_positions(Tensors& t, const Positions& by, const Shape& s, RopeArguments& a) {
  const std::string from = by.from;
  a.style = by.style;
  a.inverse = by.inverse;
  a.rot_dim = by.rot_dim;
  a.base = 500.0;
  a.pos_offset = (std::int64_t{1} << 20) - 100;
  if (from == "positions") {
    a.positions = s.packed ? t.plain(DType::i32, {s.rows}) : t.plain(DType::i32, {1, s.rows});
    fill_all(a.positions, [](std::uint64_t n) { return static_cast<double>(n * 37 % 900) - 5; });
  }
  if (from == "tables") {
    a.pos_offset = -3;  // positions are clamped to the table
    const std::int64_t half = (a.rot_dim == 0 ? s.dim : a.rot_dim) / 2;
    a.cos = t.plain(DType::f32, {s.rows - 1, half});
    a.sin = t.plain(DType::f32, {s.rows - 1, half});
    Tensors::fill(a.cos, "cos");
    Tensors::fill(a.sin, "sin");
  }
  if (from == "sequences") {
    a.cu_len = t.plain(DType::i32, {5});
    const double last = static_cast<double>(s.rows) - 3;  // the rows after it belong to none
    fill_all(a.cu_len, [last](std::uint64_t n) {
      return n == 0 ? 0.0 : n == 1 ? 1.0 : n < 4 ? std::floor(last / 2) : last;
    });
  }
}

TEST_F(CudaOperationsGpu, Rope) {
  for (const Shape& s : kShapes) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      for (const Lie lie : {Lie::contiguous, Lie::heads_first, Lie::odd}) {
        int number = 0;
        for (const Rope style : {Rope::half, Rope::interleaved}) {
          for (const char* from : {"rows", "positions", "tables", "sequences"}) {
            if (from == std::string("sequences") && !s.packed) continue;
            if (from == std::string("tables") && s.rows < 2) continue;
            const bool part = number++ % 3 != 0 || s.dim % 2 != 0;
            Tensors t(*queue);
            RopeArguments a;
            a.x = t.rows(dtype, s, lie);
            Tensors::fill(a.x, "x");
            fill_positions(t, {from, style, number % 2 == 0, part ? s.dim / 4 * 2 : 0}, s, a);
            if (a.rot_dim == 0 && part) continue;  // dims of 1
            const bool in_place = number % 4 == 1;
            a.out = in_place ? a.x : t.rows(dtype, s, Lie::contiguous);
            RopeArguments expected = a;
            expected.out = t.rows(DType::f64, s, Lie::contiguous);
            ASSERT_EQ(reference::rope(expected), "");
            RopeArguments on = a;
            for (const auto member :
                 {&RopeArguments::x, &RopeArguments::out, &RopeArguments::positions,
                  &RopeArguments::cu_len, &RopeArguments::cos, &RopeArguments::sin}) {
              on.*member = t.on_device(a.*member);
            }
            on.stream = queue->stream();
            rope(*context, on);
            EXPECT_TRUE(t.download(a.out)) << from;
            const double most = std::max(allowed(dtype), 1e-6);
            EXPECT_LE(error_of(a.out, expected.out), most)
                << from << " dim " << s.dim << " of " << a.rot_dim;
          }
        }
      }
    }
  }
}

// Cosines and sines are accurate to 1e-6 at positions up to 2^20.
TEST_F(CudaOperationsGpu, RopeIsRightFarOut) {
  const Shape s{1, 300, 1, 512, false};  // the most pairs
  for (const std::int64_t offset :
       {std::int64_t{0}, std::int64_t{1} << 16, (std::int64_t{1} << 20) - 300}) {
    Tensors t(*queue);
    RopeArguments a;
    a.x = t.rows(DType::f32, s, Lie::contiguous);
    a.out = t.rows(DType::f32, s, Lie::contiguous);
    fill_all(a.x, [](std::uint64_t n) { return n % 2 == 0 ? 1.0 : 0.0; });
    a.style = Rope::interleaved;
    a.pos_offset = offset;
    RopeArguments on = a;
    on.x = t.on_device(a.x);
    on.out = t.on_device(a.out);
    on.stream = queue->stream();
    rope(*context, on);
    EXPECT_TRUE(t.download(a.out));
    double error = 0.0;
    for (std::int64_t row = 0; row < s.rows; ++row) {
      for (std::int64_t m = 0; m < s.dim / 2; ++m) {
        const double angle = static_cast<double>(row + offset) *
                             std::pow(10000.0, -2.0 * static_cast<double>(m) / 512.0);
        error =
            std::max(error, std::fabs(harness::load(a.out, 0, row, 0, 2 * m) - std::cos(angle)));
        error = std::max(error,
                         std::fabs(harness::load(a.out, 0, row, 0, 2 * m + 1) - std::sin(angle)));
      }
    }
    EXPECT_LE(error, 1e-6) << offset;
    RecordProperty("error_at_" + std::to_string(offset), std::to_string(error));
  }
}

}  // namespace
}  // namespace attn::cuda::test
