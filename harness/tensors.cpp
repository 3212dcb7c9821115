// Rows, shapes, guarded tensors and outputs of a case; see inputs.hpp.
#include <algorithm>
#include <limits>

#include "inputs.hpp"
#include "values.hpp"

namespace attn::harness {
namespace {

using Shape = std::vector<std::int64_t>;

// Uncovered rows after the last sequence: few, or as many as a buffer of a fixed size may have.
std::int64_t draw_rows_behind(const Case& c, bool queries) {
  constexpr std::int64_t kFew = 3;
  constexpr std::int64_t kManyOfSequence = 300;
  const bool many = hash_range(c.seed, stream_of("behind"), queries ? 0 : 1, 0, 1) == 1;
  return many ? kManyOfSequence * c.problem.batch : kFew;
}

Rows draw_rows(const Case& c, bool queries) {
  const Problem& p = c.problem;
  const Layout layout = queries ? p.layout_q : p.layout_kv;
  const std::int64_t largest = queries ? p.len_q : p.len_kv;
  const bool alike = c.memory == Memory::fused_qkv;  // one buffer: rows of one length
  const std::uint64_t stream = stream_of(queries && !alike ? "len_q" : "len_kv");
  const bool appends = !queries && p.len_new > 0;
  const bool drawn = layout == Layout::packed || (queries ? p.lengths_q : p.lengths_kv);
  const std::int64_t room = appends ? std::max<std::int64_t>(largest - p.len_new, 0) : largest;
  Rows rows;
  rows.packed = layout == Layout::packed;
  const bool gaps = rows.packed && c.lengths == Lengths::gaps;
  std::int64_t begin = gaps ? 2 : 0;
  rows.behind = gaps ? draw_rows_behind(c, queries && !alike) : 0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    std::int64_t value = drawn ? room : largest;
    if (drawn && c.lengths != Lengths::full && b > 0) {
      value = hash_range(c.seed, stream, static_cast<std::uint64_t>(b), 0, room);
    }
    if (drawn && c.lengths == Lengths::zero && b == p.batch - 1) value = 0;
    if (appends && b == 2) value = room + 1;  // its last new row exceeds the capacity
    if (drawn && c.lengths == Lengths::hostile && !rows.packed) {
      if (b == 1) value = -3;
      if (b != 1) value = std::numeric_limits<std::int32_t>::max() - b;
    }
    rows.stored.push_back(value);
    rows.length.push_back(std::clamp<std::int64_t>(value, 0, largest));
    rows.begin.push_back(begin);
    begin += rows.length.back();
  }
  return rows;
}

}  // namespace

Shape row_shape(const Problem& p, bool queries, std::int64_t dim) {
  const std::int64_t heads = queries ? p.heads_q : p.heads_kv;
  if (queries ? p.layout_q == Layout::packed : p.layout_kv == Layout::packed) {
    return {queries ? p.total_q : p.total_kv, heads, dim};
  }
  return {p.batch, queries ? p.len_q : p.len_kv, heads, dim};
}

Shape stat_shape(const Problem& p) {
  if (p.layout_q == Layout::packed) return {p.heads_q, p.total_q};
  return {p.batch, p.heads_q, p.len_q};
}

std::int64_t Rows::total() const {
  return begin.empty() ? 0 : begin.back() + length.back() + behind;
}

Rows rows_q(const Case& c) {
  return draw_rows(c, true);
}
Rows rows_kv(const Case& c) {
  return draw_rows(c, false);
}

void set_totals(Case& c) {
  if (c.problem.layout_q == Layout::packed) c.problem.total_q = rows_q(c).total();
  if (c.problem.layout_kv == Layout::packed) c.problem.total_kv = rows_kv(c).total();
}

TensorView TensorSet::make(const std::string& name, DType dtype, const Shape& shape, Memory memory,
                           bool rows) {
  const Placement placement = place(shape, memory, rows);
  TensorView view = shaped(dtype, shape);
  std::copy(placement.strides.begin(), placement.strides.end(), view.strides.begin());
  auto storage = std::make_unique<Storage>(placement.span * size_of(dtype));
  view.data = storage->begin();
  view.offset_bytes = placement.skip * size_of(dtype);
  entries_.push_back({name, std::move(storage), {view}});
  return view;
}

std::vector<TensorView> TensorSet::make_fused(const std::string& name, DType dtype,
                                              const std::vector<Shape>& shapes) {
  std::int64_t width = 0;
  std::int64_t rows = 1;
  for (const Shape& shape : shapes) width += shape[shape.size() - 2] * shape[shape.size() - 1];
  for (std::size_t dim = 0; dim + 2 < shapes[0].size(); ++dim) rows *= shapes[0][dim];
  auto storage = std::make_unique<Storage>(rows * width * size_of(dtype));
  std::vector<TensorView> views;
  std::int64_t column = 0;
  for (const Shape& shape : shapes) {
    TensorView view = shaped(dtype, shape);
    const std::size_t rank = shape.size();
    view.data = storage->begin();
    view.offset_bytes = column * size_of(dtype);
    view.strides[rank - 3] = width;
    if (rank == 4) view.strides[0] = shape[1] * width;
    column += shape[rank - 2] * shape[rank - 1];
    views.push_back(view);
  }
  entries_.push_back({name, std::move(storage), views});
  return views;
}

void TensorSet::seal(const std::vector<TensorView>& writable) {
  for (Entry& entry : entries_) {
    std::vector<TensorView> views;
    for (const TensorView& view : entry.views) {
      const bool written = std::any_of(writable.begin(), writable.end(), [&](const TensorView& w) {
        return w.given() && w.address() == view.address();
      });
      if (written) views.push_back(view);
    }
    entry.storage->seal(std::move(views));
  }
}

std::string TensorSet::changed() const {
  for (const Entry& entry : entries_) {
    const std::string where = entry.storage->changed();
    if (!where.empty()) return entry.name + ": outside of what may be written, " + where;
  }
  return {};
}

OutputSet::OutputSet(const Case& c, DType dtype) {
  const Problem& p = c.problem;
  const auto type = [dtype](DType own) { return dtype == DType::none ? own : dtype; };
  const auto add = [&](const std::string& name, DType own, const Shape& shape, bool rows) {
    views.emplace_back(name, tensors.make(name, type(own), shape,
                                          dtype == DType::none ? c.memory : Memory::bshd, rows));
  };
  if (c.pass != Pass::backward) {
    add("o", p.out_type(), row_shape(p, true, p.dim_vo), true);
    if (p.lse) add("lse", p.statistics_type(), stat_shape(p), false);
  } else {
    const bool fused =
        c.memory == Memory::fused_qkv && dtype == DType::none && p.dq && p.dk && p.dv;
    if (fused) {
      const auto made =
          tensors.make_fused("dqkv", p.grad_type(),
                             {row_shape(p, true, p.dim_qk), row_shape(p, false, p.dim_qk),
                              row_shape(p, false, p.dim_vo)});
      views = {{"dq", made[0]}, {"dk", made[1]}, {"dv", made[2]}};
    } else {
      if (p.dq) add("dq", p.grad_type(), row_shape(p, true, p.dim_qk), true);
      if (p.dk) add("dk", p.grad_type(), row_shape(p, false, p.dim_qk), true);
      if (p.dv) add("dv", p.grad_type(), row_shape(p, false, p.dim_vo), true);
    }
    if (p.dbias) add("dbias", p.dbias_type(), extent_shape(p, p.bias), false);
    if (p.dsink) add("dsink", p.statistics_type(), {p.heads_q}, false);
  }
  if (c.pass != Pass::backward || !p.accumulate) return;
  for (const auto& [name, view] : views) {
    const DType own = name == "dbias"   ? p.dbias_type()
                      : name == "dsink" ? p.statistics_type()
                                        : p.grad_type();
    fill_all(view, [&, stream = stream_of("old." + name)](std::uint64_t n) {
      return round_to(own, hash_normal(c.seed, stream, n));
    });
  }
}

void OutputSet::give(Arguments& arguments) const {
  for (const auto& [name, view] : views) {
    if (name == "o") arguments.o = view;
    if (name == "lse") arguments.lse = view;
    if (name == "dq") arguments.dq = view;
    if (name == "dk") arguments.dk = view;
    if (name == "dv") arguments.dv = view;
    if (name == "dbias") arguments.dbias = view;
    if (name == "dsink") arguments.dsink = view;
  }
}

const TensorView* OutputSet::find(const std::string& name) const {
  for (const auto& [key, view] : views) {
    if (key == name) return &view;
  }
  return nullptr;
}

std::vector<std::int64_t> extent_shape(const Problem& p, const Extent& e) {
  return {e.entries(p.batch), e.head ? p.heads_q : 1, e.q ? p.len_q : 1, e.kv ? p.len_kv : 1};
}

}  // namespace attn::harness
