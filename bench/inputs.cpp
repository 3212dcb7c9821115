// Allocates and fills a cell's tensors; see inputs.hpp.
#include "bench/inputs.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>

#include "harness/values.hpp"

namespace attn::bench {
namespace {

constexpr std::uint64_t kSeed = 20240607;
constexpr std::size_t kAlignment = 64;

DType statistics(const Problem& problem) {
  return problem.statistics_type();
}

std::int64_t dim_of(bool full, std::int64_t size) {
  return full ? size : 1;
}

// A pool of 65536 normal numbers from which tensors of 8 and 16 bits are drawn. A GPU's tensors are
// large, and computing a normal number takes ten times as long as drawing one.
constexpr std::size_t kNormals = 1 << 16;
std::vector<std::uint16_t> normals(DType dtype, double scale) {
  std::vector<std::uint16_t> out(kNormals);
  for (std::size_t i = 0; i < kNormals; ++i) {
    harness::store(dtype, &out[i], scale * harness::hash_normal(kSeed, 0, i));
  }
  return out;
}

// Runs body(begin, end) over ranges of [0, count), on all processors if there is enough work.
template <class Body>
void in_parallel(std::int64_t count, Body body) {
  constexpr std::int64_t kWorthAThread = 1 << 20;
  const std::int64_t parts = std::clamp<std::int64_t>(
      count / kWorthAThread, 1, std::max(1u, std::thread::hardware_concurrency()));
  std::vector<std::thread> threads;
  for (std::int64_t part = 1; part < parts; ++part) {
    threads.emplace_back(body, count * part / parts, count * (part + 1) / parts);
  }
  body(std::int64_t{0}, count / parts);
  for (std::thread& thread : threads) thread.join();
}

// Lengths of `batch` sequences that sum to `total` and differ by at most 1.
std::vector<std::int64_t> spread(std::int64_t total, std::int64_t batch) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t b = 0; b < batch; ++b) {
    lengths.push_back(total / batch + (b < total % batch ? 1 : 0));
  }
  return lengths;
}

void fill_mask(const Cell& cell, const TensorView& mask) {
  auto* at = static_cast<std::uint8_t*>(mask.address());
  const std::int64_t documents = std::max<std::int64_t>(cell.documents, 1);
  const std::int64_t size = (mask.shape[3] + documents - 1) / documents;
  for (std::int64_t i = 0; i < mask.shape[2]; ++i) {
    for (std::int64_t j = 0; j < mask.shape[3]; ++j, ++at) {
      const bool seen = cell.mask_fill == MaskFill::causal ? j <= i : j / size == i / size;
      *at = seen ? 1 : 0;
    }
  }
}

}  // namespace

void Inputs::Free::operator()(void* memory) const {
  ::operator delete(memory, std::align_val_t{kAlignment});
}

TensorView Inputs::make(DType dtype, std::initializer_list<std::int64_t> shape, Fill fill,
                        double scale) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  const auto bytes = static_cast<std::size_t>(std::max<std::int64_t>(count, 1) * size_of(dtype));
  void* data = ::operator new(bytes, std::align_val_t{kAlignment});
  memory_.emplace_back(data);
  std::memset(data, 0, bytes);
  const std::uint64_t stream = ++stream_;
  auto* at = static_cast<unsigned char*>(data);
  const std::int64_t step = size_of(dtype);
  const bool from_table = fill == Fill::normal && step <= 2;
  const std::vector<std::uint16_t> table =
      from_table ? normals(dtype, scale) : std::vector<std::uint16_t>{};
  in_parallel(fill == Fill::zeros ? 0 : count, [=, &table](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto index = static_cast<std::uint64_t>(i);
      if (fill == Fill::mask) {
        at[i] = harness::hash(kSeed, stream, index) % 4 != 0 ? 1 : 0;
      } else if (from_table) {
        const std::uint16_t value = table[harness::hash(kSeed, stream, index) % kNormals];
        std::memcpy(at + step * i, &value, static_cast<std::size_t>(step));
      } else {
        harness::store(dtype, at + i * step, scale * harness::hash_normal(kSeed, stream, index));
      }
    }
  });
  return TensorView::contiguous(data, dtype, shape);
}

TensorView Inputs::make_rows(DType dtype, bool packed, std::int64_t len, std::int64_t total,
                             std::int64_t heads, std::int64_t dim, Fill fill, double scale) {
  if (packed) return make(dtype, {total, heads, dim}, fill, scale);
  if (heads_first_) return make(dtype, {batch_, heads, len, dim}, fill, scale).transposed(1, 2);
  return make(dtype, {batch_, len, heads, dim}, fill, scale);
}

TensorView Inputs::make_i32(std::initializer_list<std::int64_t> shape,
                            const std::vector<std::int64_t>& values) {
  const TensorView view = make(DType::i32, shape, Fill::zeros);
  auto* out = static_cast<std::int32_t*>(view.address());
  for (std::size_t i = 0; i < values.size(); ++i) out[i] = static_cast<std::int32_t>(values[i]);
  return view;
}

void Inputs::make_lengths(const Cell& cell) {
  const Problem& p = cell.problem;
  lengths_q.assign(static_cast<std::size_t>(batch_), p.len_q);
  lengths_kv.assign(static_cast<std::size_t>(batch_), p.len_kv);
  if (!cell.lengths.empty()) {
    if (p.lengths_q || p.layout_q == Layout::packed) lengths_q = cell.lengths;
    if (p.lengths_kv || p.layout_kv == Layout::packed) lengths_kv = cell.lengths;
  }
  if (cell.lengths.empty()) {
    if (p.layout_q == Layout::packed) lengths_q = spread(p.total_q, p.batch);
    if (p.layout_kv == Layout::packed) lengths_kv = spread(p.total_kv, p.batch);
  }
  const auto cumulative = [](const std::vector<std::int64_t>& lengths) {
    std::vector<std::int64_t> out{0};
    for (const std::int64_t length : lengths) out.push_back(out.back() + length);
    return out;
  };
  if (p.lengths_q) arguments.len_q = make_i32({batch_}, lengths_q);
  if (p.lengths_kv) arguments.len_kv = make_i32({batch_}, lengths_kv);
  if (p.layout_q == Layout::packed) {
    arguments.cu_len_q = make_i32({batch_ + 1}, cumulative(lengths_q));
  }
  if (p.layout_kv == Layout::packed) {
    arguments.cu_len_kv = make_i32({batch_ + 1}, cumulative(lengths_kv));
  }
  for (std::int64_t& length : lengths_kv) length = std::min(length + p.len_new, p.len_kv);
}

// k and v, contiguous or in pages. Pages are in hashed order, as in a cache after some use.
void Inputs::make_cache(const Cell& cell) {
  const Problem& p = cell.problem;
  const bool packed = p.layout_kv == Layout::packed;
  const double spread = p.kv_type() == DType::i8 ? 32.0 : 1.0;  // standard deviation of the values
  if (p.page_size == 0) {
    arguments.k = make_rows(p.kv_type(), packed, p.len_kv, p.total_kv, p.heads_kv, p.dim_qk,
                            Fill::normal, spread);
    arguments.v = make_rows(p.kv_type(), packed, p.len_kv, p.total_kv, p.heads_kv, p.dim_vo,
                            Fill::normal, spread);
  } else {
    const std::int64_t width = (p.len_kv + p.page_size - 1) / p.page_size;
    const std::int64_t pages = batch_ * width;
    arguments.k =
        make(p.kv_type(), {pages, p.page_size, p.heads_kv, p.dim_qk}, Fill::normal, spread);
    arguments.v =
        make(p.kv_type(), {pages, p.page_size, p.heads_kv, p.dim_vo}, Fill::normal, spread);
    std::vector<std::int64_t> table(static_cast<std::size_t>(pages));
    for (std::size_t i = 0; i < table.size(); ++i) {
      table[i] = static_cast<std::int64_t>(i);
      std::swap(table[i], table[harness::hash(kSeed, 77, i) % (i + 1)]);
    }
    arguments.block_table = make_i32({batch_, width}, table);
  }
  if (p.len_new > 0) {
    arguments.k_new =
        make(p.kv_type(), {batch_, p.len_new, p.heads_kv, p.dim_qk}, Fill::normal, spread);
    arguments.v_new =
        make(p.kv_type(), {batch_, p.len_new, p.heads_kv, p.dim_vo}, Fill::normal, spread);
  }
  if (p.kv_type() != DType::i8 && !p.descale_rows) return;
  for (TensorView* view : {&arguments.descale_k, &arguments.descale_v}) {
    const std::int64_t rows = p.page_size > 0 ? 1 : p.len_kv;  // a factor per page, or per row
    *view = p.descale_rows ? make(DType::f32, {arguments.k.shape[0], rows, p.heads_kv}, Fill::zeros)
                           : make(DType::f32, {batch_, p.heads_kv}, Fill::zeros);
    auto* out = static_cast<float*>(view->address());
    const std::int64_t count = p.descale_rows ? view->shape[0] * rows : batch_;
    for (std::int64_t n = 0; n < count * p.heads_kv; ++n) {
      const double value = 0.5 + harness::hash_uniform(kSeed, 78, static_cast<std::uint64_t>(n));
      out[n] = static_cast<float>(value / spread);
    }
  }
}

void Inputs::make_options(const Cell& cell) {
  const Problem& p = cell.problem;
  const auto extent = [&](const Extent& e, DType dtype, Fill fill) {
    return make(dtype,
                {e.entries(p.batch), dim_of(e.head, p.heads_q), dim_of(e.q, p.len_q),
                 dim_of(e.kv, p.len_kv)},
                fill);
  };
  if (p.bias.given) arguments.bias = extent(p.bias, p.bias_type(), Fill::normal);
  if (p.mask.given) arguments.mask = extent(p.mask, DType::u8, Fill::mask);
  if (p.mask.given && cell.mask_fill != MaskFill::random) fill_mask(cell, arguments.mask);
  if (p.sink) arguments.sinks = make(statistics(p), {p.heads_q}, Fill::normal);
  if (p.alibi) {
    arguments.alibi_slopes = make(statistics(p), {p.heads_q}, Fill::zeros);
    for (std::int64_t h = 0; h < p.heads_q; ++h) {  // Press et al. 2021, section 3
      harness::store(arguments.alibi_slopes,
                     std::exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(p.heads_q)),
                     h);
    }
  }
  if (p.kv_begin || p.kv_end) {
    const std::int64_t rows = p.layout_q == Layout::packed ? p.total_q : p.len_q;
    const std::int64_t documents = std::max<std::int64_t>(cell.documents, 1);
    const std::int64_t size = (p.len_kv + documents - 1) / documents;
    std::vector<std::int64_t> begin, end;
    for (std::int64_t i = 0; i < rows; ++i) {
      begin.push_back(i / size * size);
      end.push_back(std::min(begin.back() + size, p.len_kv));
    }
    const bool packed = p.layout_q == Layout::packed;
    if (p.kv_begin) {
      arguments.kv_begin = packed ? make_i32({rows}, begin) : make_i32({1, rows}, begin);
    }
    if (p.kv_end) arguments.kv_end = packed ? make_i32({rows}, end) : make_i32({1, rows}, end);
  }
  if (p.nonfinite_zero) arguments.nonfinite_count = make_i32({1}, {0});
  if (p.softcap) arguments.softcap = cell.softcap;
  if (p.dropout) {
    arguments.dropout_p = cell.dropout_p;
    arguments.seed = std::uint64_t{0x1234567890ABCDEF};
    arguments.offset = std::uint64_t{42};
  }
}

void Inputs::make_gradients(const Cell& cell) {
  const Problem& p = cell.problem;
  const bool packed_q = p.layout_q == Layout::packed;
  const bool packed_kv = p.layout_kv == Layout::packed;
  arguments.dout =
      make_rows(p.out_type(), packed_q, p.len_q, p.total_q, p.heads_q, p.dim_vo, Fill::normal);
  const DType type = p.grad_type();
  if (p.dq) {
    arguments.dq = make_rows(type, packed_q, p.len_q, p.total_q, p.heads_q, p.dim_qk, Fill::zeros);
  }
  if (p.dk) {
    arguments.dk =
        make_rows(type, packed_kv, p.len_kv, p.total_kv, p.heads_kv, p.dim_qk, Fill::zeros);
  }
  if (p.dv) {
    arguments.dv =
        make_rows(type, packed_kv, p.len_kv, p.total_kv, p.heads_kv, p.dim_vo, Fill::zeros);
  }
  if (p.dbias) {
    const TensorView& bias = arguments.bias;
    arguments.dbias = make(
        p.dbias_type(), {bias.shape[0], bias.shape[1], bias.shape[2], bias.shape[3]}, Fill::zeros);
  }
  if (p.dsink) arguments.dsink = make(statistics(p), {p.heads_q}, Fill::zeros);
  if (p.dlse) {
    arguments.dlse = packed_q ? make(statistics(p), {p.heads_q, p.total_q}, Fill::normal)
                              : make(statistics(p), {batch_, p.heads_q, p.len_q}, Fill::normal);
  }
}

Inputs::Inputs(const Cell& cell) : batch_(cell.problem.batch), heads_first_(cell.heads_first) {
  const Problem& p = cell.problem;
  const bool packed = p.layout_q == Layout::packed;
  make_lengths(cell);
  arguments.q = make_rows(p.dtype, packed, p.len_q, p.total_q, p.heads_q, p.dim_qk, Fill::normal);
  make_cache(cell);
  arguments.o =
      make_rows(p.out_type(), packed, p.len_q, p.total_q, p.heads_q, p.dim_vo, Fill::zeros);
  if (p.lse || cell.pass == Pass::backward) {
    arguments.lse = packed ? make(statistics(p), {p.heads_q, p.total_q}, Fill::zeros)
                           : make(statistics(p), {batch_, p.heads_q, p.len_q}, Fill::zeros);
  }
  make_options(cell);
  if (cell.pass == Pass::backward) make_gradients(cell);
}

}  // namespace attn::bench
