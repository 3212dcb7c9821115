// The backward (docs/semantics.md, "Backward").
#include <cmath>

#include "reference/dropout.hpp"
#include "reference/elements.hpp"
#include "reference/entry.hpp"
#include "reference/needs.hpp"
#include "reference/reference.hpp"
#include "reference/results.hpp"
#include "reference/rotary.hpp"
#include "reference/score.hpp"

namespace attn::reference {

namespace {

// Sums that run over batch entries or heads, in the tensors' contiguous order; written at the end.
struct Sums {
  Row dbias;  // [b|b/s|1, h|1, n|1, m|1]
  Row dsink;  // [heads_q]
};

TensorView sums_view(const Problem& problem, Row& memory) {
  const Extent& full = problem.bias;
  const std::int64_t batch = full.batch ? problem.batch / full.per_entry : 1;
  const std::int64_t heads = full.head ? problem.heads_q : 1;
  const std::int64_t len_q = full.q ? problem.len_q : 1;
  const std::int64_t len_kv = full.kv ? problem.len_kv : 1;
  memory.assign(static_cast<std::size_t>(batch * heads * len_q * len_kv), 0.0);
  TensorView view;
  view.data = memory.data();
  view.dtype = DType::f64;
  view.rank = 4;
  view.shape = {batch, heads, len_q, len_kv};
  view.strides = {heads * len_q * len_kv, len_q * len_kv, len_kv, 1};
  return view;
}

double delta_of(const Problem& problem, const Arguments& arguments, const Entry& entry,
                std::int64_t head_q, std::int64_t i, const Row& dout) {
  const auto statistic = [&](const TensorView& view) {
    return read(view, statistic_at(problem, view, entry, head_q, i));
  };
  if (problem.delta) return statistic(arguments.delta);
  const Row o =
      read_row(arguments.o, query_row(problem, arguments.o, entry, i, head_q), problem.dim_vo);
  const double dlse = problem.dlse ? statistic(arguments.dlse) : 0.0;
  return dot(dout.data(), o.data(), problem.dim_vo) - dlse;
}

void add_scaled(double factor, const double* from, double* to, std::int64_t count) {
  for (std::int64_t c = 0; c < count; ++c) to[c] += factor * from[c];
}

class Backward {
 public:
  Backward(const Problem& problem, const Arguments& arguments, core::Interrupt* interrupt)
      : problem_(problem),
        arguments_(arguments),
        interrupt_(interrupt),
        results_(problem, arguments),
        rotation_(rotation_of(problem, arguments)),
        scale_(scale_of(problem, arguments)) {}

  void run() {
    if (problem_.dq) results_.clear_gradient(arguments_.dq);
    if (problem_.dk) results_.clear_gradient(arguments_.dk);
    if (problem_.dv) results_.clear_gradient(arguments_.dv);
    if (problem_.dbias) dbias_view_ = sums_view(problem_, sums_.dbias);
    sums_.dsink.assign(static_cast<std::size_t>(problem_.heads_q), 0.0);

    for (std::int64_t b = 0; b < problem_.batch; ++b) {
      const Entry entry = entry_of(problem_, arguments_, b);
      for (std::int64_t g = 0; g < problem_.heads_kv; ++g) run_head_kv(entry, g);
    }
    if (problem_.dbias) write_dbias();
    if (problem_.dsink) write_dsink();
    results_.finish();
  }

 private:
  void run_head_kv(const Entry& entry, std::int64_t head_kv) {
    const KeysAndValues keys = load_keys_and_values(problem_, arguments_, entry, head_kv, true);
    dk_.assign(keys.k.size(), 0.0);
    dv_.assign(keys.v.size(), 0.0);
    const std::int64_t group = problem_.heads_q / problem_.heads_kv;
    for (std::int64_t h = head_kv * group; h < (head_kv + 1) * group; ++h) {
      for (std::int64_t i = 0; i < entry.len_q; ++i) {
        if (core::interrupted(interrupt_)) return;
        run_query(entry, keys, h, i);
      }
    }
    for (std::int64_t j = 0; j < entry.len_kv; ++j) write_key(entry, head_kv, j);
  }

  void run_query(const Entry& entry, const KeysAndValues& keys, std::int64_t h, std::int64_t i) {
    const std::int64_t dim_qk = problem_.dim_qk;
    const std::int64_t dim_vo = problem_.dim_vo;
    const double lse = read(arguments_.lse, statistic_at(problem_, arguments_.lse, entry, h, i));
    Row dq(static_cast<std::size_t>(dim_qk), 0.0);
    if (lse != -kInfinity) {  // otherwise an empty row
      const Row q = load_query(problem_, arguments_, entry, h, i);
      const Row dout =
          read_row(arguments_.dout, query_row(problem_, arguments_.dout, entry, i, h), dim_vo);
      const double delta = delta_of(problem_, arguments_, entry, h, i, dout);
      const double sink = sink_of(problem_, arguments_, h);
      if (sink != -kInfinity) {
        sums_.dsink[static_cast<std::size_t>(h)] -= std::exp(sink - lse) * delta;
      }

      visible_pairs(problem_, arguments_, entry, h, i, q, keys, pairs_);
      for (const Pair& pair : pairs_) {
        const double* k = keys.k.data() + pair.j * dim_qk;
        const double* v = keys.v.data() + pair.j * dim_vo;
        const double drop = drop_factor(problem_, arguments_, entry, h, i, pair.j);
        const double p = std::exp(pair.score - lse);
        const double dp = dot(dout.data(), v, dim_vo);
        const double ds = p * (drop * dp - delta);
        const double draw = ds * pair.slope;
        add_scaled(scale_ * draw, k, dq.data(), dim_qk);
        add_scaled(scale_ * draw, q.data(), dk_.data() + pair.j * dim_qk, dim_qk);
        add_scaled(drop * p, dout.data(), dv_.data() + pair.j * dim_vo, dim_vo);
        if (problem_.dbias) {
          const std::int64_t at = pair_at(problem_.bias, dbias_view_, entry, h, i, pair.j);
          sums_.dbias[static_cast<std::size_t>(at)] += ds;
        }
      }
      // The gradient passes through the transpose of the rotation: the rotation by the negative
      // angle.
      rotate(rotation_, query_position(problem_, arguments_, entry, i), true, dq.data());
    }
    if (problem_.dq) {
      std::int64_t at = query_row(problem_, arguments_.dq, entry, i, h);
      for (const double value : dq) results_.write_gradient(arguments_.dq, at++, value);
    }
  }

  void write_key(const Entry& entry, std::int64_t head_kv, std::int64_t j) {
    double* dk = dk_.data() + j * problem_.dim_qk;
    const double* dv = dv_.data() + j * problem_.dim_vo;
    rotate(rotation_, key_position(problem_, arguments_, entry, j), true, dk);
    if (problem_.dk) write_row(arguments_.dk, entry, head_kv, j, dk, problem_.dim_qk);
    if (problem_.dv) write_row(arguments_.dv, entry, head_kv, j, dv, problem_.dim_vo);
  }

  void write_row(const TensorView& view, const Entry& entry, std::int64_t head_kv, std::int64_t j,
                 const double* row, std::int64_t count) {
    const auto at = key_row(problem_, arguments_, view, entry, j, head_kv);
    if (!at) return;
    for (std::int64_t c = 0; c < count; ++c) results_.write_gradient(view, *at + c, row[c]);
  }

  void write_dbias() {
    const std::array<std::int64_t, kMaxRank> sizes = dbias_view_.shape;
    const TensorView& dbias = arguments_.dbias;
    for (std::int64_t b = 0; b < sizes[0]; ++b) {
      for (std::int64_t h = 0; h < sizes[1]; ++h) {
        for (std::int64_t i = 0; i < sizes[2]; ++i) {
          for (std::int64_t j = 0; j < sizes[3]; ++j) {
            const double sum = read(dbias_view_, position_of(dbias_view_, {b, h, i, j}));
            results_.write_gradient(dbias, position_of(dbias, {b, h, i, j}), sum);
          }
        }
      }
    }
  }

  void write_dsink() {
    for (std::int64_t h = 0; h < problem_.heads_q; ++h) {
      results_.write_gradient(arguments_.dsink, position_of(arguments_.dsink, {h}),
                              sums_.dsink[static_cast<std::size_t>(h)]);
    }
  }

  const Problem& problem_;
  const Arguments& arguments_;
  core::Interrupt* const interrupt_;
  Results results_;
  const Rotation rotation_;
  const double scale_;
  Sums sums_;
  TensorView dbias_view_;
  Row dk_, dv_;  // of the current entry and head_kv
  std::vector<Pair> pairs_;
};

}  // namespace

std::string backward(const Problem& problem, const Arguments& arguments,
                     core::Interrupt* interrupt) {
  std::string found = check_backward(problem, arguments);
  if (!found.empty()) return found;
  Backward(problem, arguments, interrupt).run();
  return "";
}

}  // namespace attn::reference
