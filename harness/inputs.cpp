// Implements inputs.hpp.
#include "inputs.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numbers>
#include <numeric>

#include "values.hpp"

namespace attn::harness {
namespace {

using Shape = std::vector<std::int64_t>;

// Writes value(linear index) into the existing rows of a tensor [b, n, h, d] or [total, h, d].
template <class Value>
void fill_rows(const TensorView& view, const Rows& rows, Value value) {
  const std::int64_t heads = view.shape[rows.packed ? 1 : 2];
  const std::int64_t dim = view.shape[rows.packed ? 2 : 3];
  for (std::size_t b = 0; b < rows.length.size(); ++b) {
    const auto entry = static_cast<std::int64_t>(b);
    for (std::int64_t i = 0; i < rows.length[b]; ++i) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t d = 0; d < dim; ++d) {
          const std::int64_t index = (((entry << 24) + i) * heads + h) * dim + d;
          const double x = value(static_cast<std::uint64_t>(index));
          if (rows.packed) {
            store(view, x, rows.begin[b] + i, h, d);
          } else {
            store(view, x, entry, i, h, d);
          }
        }
      }
    }
  }
}

// Allocates and fills the tensors of a case.
class Maker {
 public:
  Maker(const Case& c, Inputs& inputs) : c_(c), p_(c.problem), in_(inputs), a_(inputs.arguments) {}

  void rows() {
    if (p_.page_size > 0) {
      a_.q = make("q", p_.dtype, row_shape(p_, true, p_.dim_qk));
      paged();
    } else if (c_.memory == Memory::fused_qkv) {
      const auto views =
          in_.tensors.make_fused("qkv", p_.dtype,
                                 {row_shape(p_, true, p_.dim_qk), row_shape(p_, false, p_.dim_qk),
                                  row_shape(p_, false, p_.dim_vo)});
      a_.q = views[0];
      a_.k = views[1];
      a_.v = views[2];
    } else {
      a_.q = make("q", p_.dtype, row_shape(p_, true, p_.dim_qk));
      a_.k = expand(make("k", p_.kv_type(), row_shape(p_, false, p_.dim_qk)));
      a_.v = expand(make("v", p_.kv_type(), row_shape(p_, false, p_.dim_vo)));
    }
    fill_rows(a_.q, in_.q, normal("q", c_.value_scale));
    if (p_.page_size == 0) {
      fill_rows(a_.k, in_.kv, normal("k", c_.value_scale * of_keys()));
      fill_rows(a_.v, in_.kv, normal("v", of_keys()));
    }
    descales();
    if (p_.len_new > 0) {
      a_.k_new = make("k_new", p_.kv_type(), {p_.batch, p_.len_new, p_.heads_kv, p_.dim_qk});
      a_.v_new = make("v_new", p_.kv_type(), {p_.batch, p_.len_new, p_.heads_kv, p_.dim_vo});
      fill_all(a_.k_new, normal("k_new", c_.value_scale * of_keys()));
      fill_all(a_.v_new, normal("v_new", of_keys()));
    }
  }

  // Half of the f8 cases have descales. i8 cases always do, because their values are large, and so
  // do cases with a factor per row or page.
  void descales() {
    const bool integers = p_.kv_type() == DType::i8;
    if ((c_.seed & 1u) != 0 && !integers && !p_.descale_rows) return;
    const double unit = integers ? 1.0 / kIntegers : 1.0;
    const auto value = [&](const std::string& name, std::uint64_t n) {
      return unit * (0.5 + hash_uniform(c_.seed, stream_of(name), n));
    };
    const auto give = [&](const std::string& name, DType dtype, TensorView& view) {
      if (!is_f8(dtype) && dtype != DType::i8) return;
      view = make(name, DType::f32, {p_.batch, p_.heads_kv}, false);
      fill_all(view, [&](std::uint64_t n) { return value(name, n); });
    };
    give("descale_q", p_.dtype, a_.descale_q);
    if (!p_.descale_rows) {
      give("descale_k", p_.kv_type(), a_.descale_k);
      give("descale_v", p_.kv_type(), a_.descale_v);
      return;
    }
    a_.descale_k = descale_rows("descale_k", value);
    if ((c_.seed & 4u) == 0) a_.descale_v = descale_rows("descale_v", value);
  }

  // [b, m|1, g] or [pages, page_size|1, g]. Elements that belong to no key are NaN.
  template <class Value>
  TensorView descale_rows(const std::string& name, const Value& value) {
    const bool paged = p_.page_size > 0;
    const bool each = (c_.seed & 2u) == 0;
    const std::int64_t pages = paged ? a_.k.shape[0] : p_.batch;
    const std::int64_t rows = paged ? p_.page_size : p_.len_kv;
    const TensorView view = make(name, DType::f32, {pages, each ? rows : 1, p_.heads_kv}, false);
    fill_all(view, [](std::uint64_t) { return std::numeric_limits<double>::quiet_NaN(); });
    for (std::int64_t b = 0; b < p_.batch; ++b) {
      const std::int64_t before = in_.kv.length[static_cast<std::size_t>(b)];
      for (std::int64_t j = 0; j < std::min(before + p_.len_new, p_.len_kv); ++j) {
        const auto at =
            paged ? static_cast<std::int64_t>(load(a_.block_table, b, j / p_.page_size)) : b;
        if (at < 0 || at >= pages) continue;
        const std::int64_t row = !each ? 0 : paged ? j % p_.page_size : j;
        for (std::int64_t g = 0; g < p_.heads_kv; ++g) {
          const std::int64_t n = ((at * rows) + row) * p_.heads_kv + g;
          store(view, value(name, static_cast<std::uint64_t>(n)), at, row, g);
        }
      }
    }
    return view;
  }

  void lengths() {
    if (p_.layout_q == Layout::packed) a_.cu_len_q = cumulative("cu_len_q", in_.q);
    if (p_.layout_kv == Layout::packed) a_.cu_len_kv = cumulative("cu_len_kv", in_.kv);
    if (p_.lengths_q) a_.len_q = stored("len_q", in_.q);
    if (p_.lengths_kv) a_.len_kv = stored("len_kv", in_.kv);
  }

  void ranges() {
    if (!p_.kv_begin && !p_.kv_end) return;
    const bool packed = in_.q.packed;
    const bool shared = !packed && (c_.seed & 1u) != 0 && p_.batch > 1;
    const Shape shape = packed ? Shape{p_.total_q} : Shape{shared ? 1 : p_.batch, p_.len_q};
    if (p_.kv_begin) a_.kv_begin = make("kv_begin", DType::i32, shape, false);
    if (p_.kv_end) a_.kv_end = make("kv_end", DType::i32, shape, false);
    for (std::int64_t b = 0; b < p_.batch; ++b) {
      const auto entry = static_cast<std::size_t>(b);
      for (std::int64_t i = 0; i < in_.q.length[entry]; ++i) {
        const auto [begin, end] = range(b, i);
        const std::int64_t at = packed ? in_.q.begin[entry] + i : (shared ? 0 : b);
        if (p_.kv_begin) store(a_.kv_begin, static_cast<double>(begin), at, packed ? 0 : i);
        if (p_.kv_end) store(a_.kv_end, static_cast<double>(end), at, packed ? 0 : i);
      }
    }
  }

  void score() {
    if (p_.mask.given) {
      a_.mask = extent("mask", DType::u8, p_.mask, [this](std::uint64_t n) {
        const bool attend = hash_uniform(c_.seed, stream_of("mask"), n) < c_.mask_density;
        // Odd seeds use 1 alone, as boolean tensors do.
        const std::uint64_t values = c_.seed % 2 == 0 ? 255 : 1;
        return attend ? static_cast<double>(1 + hash(c_.seed, stream_of("mask.value"), n) % values)
                      : 0;
      });
    }
    if (p_.bias.given) {
      a_.bias = extent("bias", p_.bias_type(), p_.bias, [this](std::uint64_t n) {
        return hash_uniform(c_.seed, stream_of("bias.hidden"), n) < c_.bias_hidden
                   ? -std::numeric_limits<double>::infinity()
                   : hash_normal(c_.seed, stream_of("bias"), n);
      });
    }
    const DType statistics = p_.statistics_type();
    if (p_.alibi) {
      const Shape shape = c_.slopes_per_batch ? Shape{p_.batch, p_.heads_q} : Shape{p_.heads_q};
      a_.alibi_slopes = make("alibi_slopes", statistics, shape, false);
      fill_all(a_.alibi_slopes, [this](std::uint64_t n) {
        return std::exp2(-8.0 * hash_uniform(c_.seed, stream_of("alibi_slopes"), n));
      });
    }
    if (p_.sink) {
      a_.sinks = make("sinks", statistics, {p_.heads_q}, false);
      fill_all(a_.sinks, [this](std::uint64_t n) {
        if (n % 2 == 0 && c_.sinks == Sinks::minus_inf) {
          return -std::numeric_limits<double>::infinity();
        }
        if (n % 2 == 0 && c_.sinks == Sinks::plus_inf) {
          return std::numeric_limits<double>::infinity();
        }
        return 1.0 + hash_normal(c_.seed, stream_of("sinks"), n);
      });
    }
  }

  void rope() {
    if (p_.rope == Rope::none) return;
    constexpr std::int64_t kTableRows = 97;
    if (p_.rope_tables) {
      const Shape shape{kTableRows, p_.rotary_dim() / 2};
      a_.rope_cos = make("rope_cos", p_.statistics_type(), shape, false);
      a_.rope_sin = make("rope_sin", p_.statistics_type(), shape, false);
      const auto angle = [this](std::uint64_t n) {
        return 2.0 * std::numbers::pi * hash_uniform(c_.seed, stream_of("angle"), n);
      };
      fill_all(a_.rope_cos, [&](std::uint64_t n) { return std::cos(angle(n)); });
      fill_all(a_.rope_sin, [&](std::uint64_t n) { return std::sin(angle(n)); });
    }
    if (!p_.rope_positions) return;
    a_.rope_pos_q = positions("rope_pos_q", in_.q, p_.len_q, p_.total_q);
    if (c_.pass == Pass::decode) {
      if (p_.len_new > 0) a_.rope_pos_k = positions("rope_pos_k", Rows{}, p_.len_new, 0);
    } else {
      a_.rope_pos_k = positions("rope_pos_k", in_.kv, p_.len_kv, p_.total_kv);
    }
  }

  void gradients() {
    if (p_.nonfinite_zero) {
      a_.nonfinite_count = make("nonfinite_count", DType::i32, {1}, false);
      store(a_.nonfinite_count, 5.0, 0);
    }
    if (c_.pass != Pass::backward) return;
    a_.dout = make("dout", p_.out_type(), row_shape(p_, true, p_.dim_vo));
    fill_rows(a_.dout, in_.q, normal("dout", 1.0));
    a_.lse = make("lse", p_.statistics_type(), stat_shape(p_), false);
    if (p_.dlse) {
      a_.dlse = make("dlse", p_.statistics_type(), stat_shape(p_), false);
      for (std::int64_t h = 0; h < p_.heads_q; ++h) {
        for (std::int64_t b = 0; b < p_.batch; ++b) {
          const auto entry = static_cast<std::size_t>(b);
          for (std::int64_t i = 0; i < in_.q.length[entry]; ++i) {
            const auto n = static_cast<std::uint64_t>(((b << 24) + i) * p_.heads_q + h);
            const double x = hash_normal(c_.seed, stream_of("dlse"), n);
            if (in_.q.packed) {
              store(a_.dlse, x, h, in_.q.begin[entry] + i);
            } else {
              store(a_.dlse, x, b, h, i);
            }
          }
        }
      }
    }
    if (p_.delta) {
      a_.delta = make("delta", p_.statistics_type(), stat_shape(p_), false);
    } else {
      a_.o = make("o", p_.out_type(), row_shape(p_, true, p_.dim_vo));
    }
  }

  void numbers() {
    a_.scale = c_.scale;
    a_.softcap = c_.softcap;
    a_.dropout_p = c_.dropout_p;
    if (p_.dropout) {
      a_.seed = Value<std::uint64_t>(hash(c_.seed, stream_of("dropout"), 0));
      a_.offset = Value<std::uint64_t>(hash(c_.seed, stream_of("dropout"), 1));
      if (c_.device_seed) {
        give_by_pointer("seed", a_.seed);
        give_by_pointer("offset", a_.offset);
      }
    }
    a_.diag = c_.diag;
    a_.origin = c_.origin;
    a_.rope_base = c_.rope_base;
    a_.rope_pos_offset = c_.rope_pos_offset;
  }

  void give_by_pointer(const std::string& name, Value<std::uint64_t>& value) {
    // Two i32 elements hold the 64 bits. Storage is always aligned.
    const TensorView view = in_.tensors.make(name, DType::i32, {2}, Memory::bshd, false);
    std::memcpy(view.address(), &value.host, sizeof value.host);
    value = static_cast<const std::uint64_t*>(view.address());
  }

  void plant() {
    if (c_.planted == Planted::none || p_.batch == 0) return;
    if (in_.q.length[0] == 0 || in_.kv.length[0] == 0) return;
    const std::int64_t i = in_.q.length[0] / 2;
    const std::int64_t j = in_.kv.length[0] / 2;
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const auto put = [](const TensorView& view, bool packed, std::int64_t row, double x) {
      if (packed) {
        store(view, x, row, 0, 0);
      } else {
        store(view, x, 0, row, 0, 0);
      }
    };
    switch (c_.planted) {
      case Planted::none: break;
      case Planted::nan_q: put(a_.q, in_.q.packed, i, nan); break;
      case Planted::nan_v: put(a_.v, in_.kv.packed, j, nan); break;
      case Planted::inf_k:
        put(a_.k, in_.kv.packed, j, std::numeric_limits<double>::infinity());
        break;
      case Planted::nan_dout:
        if (c_.pass == Pass::backward) put(a_.dout, in_.q.packed, i, nan);
        break;
    }
  }

 private:
  TensorView make(const std::string& name, DType dtype, const Shape& shape, bool rows = true) {
    return in_.tensors.make(name, dtype, shape, c_.memory, rows);
  }

  [[nodiscard]] TensorView expand(TensorView view) const {
    const bool packed = p_.layout_kv == Layout::packed;
    if (c_.expanded == Expanded::heads) view.strides[packed ? 1 : 2] = 0;
    if (c_.expanded == Expanded::batch && !packed) view.strides[0] = 0;
    return view;
  }

  // Standard deviation of i8 keys and values.
  static constexpr double kIntegers = 32.0;
  [[nodiscard]] double of_keys() const { return p_.kv_type() == DType::i8 ? kIntegers : 1.0; }

  [[nodiscard]] std::function<double(std::uint64_t)> normal(const std::string& name,
                                                            double deviation) const {
    return [seed = c_.seed, stream = stream_of(name), deviation](std::uint64_t n) {
      return deviation * hash_normal(seed, stream, n);
    };
  }

  TensorView cumulative(const std::string& name, const Rows& rows) {
    const TensorView view = make(name, DType::i32, {p_.batch + 1}, false);
    for (std::int64_t b = 0; b <= p_.batch; ++b) {
      const auto entry = static_cast<std::size_t>(b);
      store(view,
            static_cast<double>(b < p_.batch ? rows.begin[entry] : rows.total() - rows.behind), b);
    }
    return view;
  }

  TensorView stored(const std::string& name, const Rows& rows) {
    const TensorView view = make(name, DType::i32, {p_.batch}, false);
    fill_all(view, [&](std::uint64_t n) { return static_cast<double>(rows.stored[n]); });
    return view;
  }

  TensorView positions(const std::string& name, const Rows& rows, std::int64_t len,
                       std::int64_t total) {
    const bool shared = (c_.seed & 2u) != 0;
    const TensorView view = make(
        name, DType::i32, rows.packed ? Shape{total} : Shape{shared ? 1 : p_.batch, len}, false);
    fill_all(view, [&](std::uint64_t n) {
      return static_cast<double>(hash_range(c_.seed, stream_of(name), n, 0, 130));
    });
    return view;
  }

  // Mask and bias: a broadcast dimension has size 1, or stride 0 in expanded cases. Elements past
  // the length of all their sequences are NaN (in a mask: any value).
  template <class Value>
  TensorView extent(const std::string& name, DType dtype, const Extent& e, Value value) {
    const std::array<bool, 4> full{e.batch, e.head, e.q, e.kv};
    const std::array<std::int64_t, 4> size{p_.batch, p_.heads_q, p_.len_q, p_.len_kv};
    TensorView view = make(name, dtype, extent_shape(p_, e), false);
    for (std::int64_t n = 0; n < num_elements(view); ++n) {
      std::array<std::int64_t, 4> at{};
      std::int64_t rest = n;
      for (std::size_t dim = 4; dim-- > 0;) {
        at[dim] = rest % view.shape[dim];
        rest /= view.shape[dim];
      }
      const bool reached = (!full[2] || at[2] < most_of(in_.q, e, at[0])) &&
                           (!full[3] || at[3] < most_of(in_.kv, e, at[0]) + p_.len_new);
      if (reached) store(view, value(static_cast<std::uint64_t>(n)), at[0], at[1], at[2], at[3]);
    }
    for (std::size_t dim = 0; dim < 4; ++dim) {
      if (full[dim] || c_.expanded == Expanded::none) continue;
      view.strides[dim] = 0;
      view.shape[dim] = size[dim];
    }
    return view;
  }

  // The largest length of the sequences that share an entry of a bias or mask.
  static std::int64_t most_of(const Rows& rows, const Extent& extent, std::int64_t entry) {
    if (rows.length.empty()) return 0;
    const auto sequences = static_cast<std::int64_t>(rows.length.size());
    const auto begin = rows.length.begin() + entry * extent.sharers(sequences);
    return *std::max_element(begin, begin + extent.sharers(sequences));
  }

  // kv_begin and kv_end of query i of sequence b.
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> range(std::int64_t b, std::int64_t i) const {
    const auto n = static_cast<std::uint64_t>((b << 24) + i);
    const auto entry = static_cast<std::size_t>(b);
    const std::int64_t len_kv = in_.kv.length[entry] + p_.len_new;
    switch (c_.ranges) {
      case Ranges::random: {
        const std::int64_t begin = hash_range(c_.seed, stream_of("begin"), n, -9, len_kv + 5);
        return {begin, hash_range(c_.seed, stream_of("end"), n, begin - 3, len_kv + 9)};
      }
      case Ranges::empty:
        if (i % 2 == 0) return {len_kv / 2, len_kv / 2 - i % 3};
        [[fallthrough]];
      case Ranges::documents: break;
    }
    // Documents of up to 96 keys; the query at key i + len_kv - len_q is inside one.
    const std::int64_t place = std::clamp<std::int64_t>(i + len_kv - in_.q.length[entry], 0,
                                                        std::max<std::int64_t>(len_kv, 1));
    std::int64_t begin = 0;
    std::int64_t end = 0;
    for (std::uint64_t document = 0; end <= place; ++document) {
      begin = end;
      end += hash_range(c_.seed, stream_of("document"), document, 1, 96);
    }
    return {begin, end};
  }

  void paged() {
    const std::int64_t each = (p_.len_kv + p_.page_size - 1) / p_.page_size;
    const std::int64_t pages = p_.batch * each + 2;
    std::vector<std::int64_t> order(static_cast<std::size_t>(pages));
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [this](std::int64_t a, std::int64_t b) {
      const auto key = [this](std::int64_t page) {
        return hash(c_.seed, stream_of("pages"), static_cast<std::uint64_t>(page));
      };
      return key(a) < key(b);
    });
    a_.block_table = make("block_table", DType::i32, {p_.batch, each}, false);
    fill_all(a_.block_table, [&](std::uint64_t n) {
      if (hash_uniform(c_.seed, stream_of("missing"), n) < c_.pages_missing) {
        return n % 2 == 0 ? -1.0 : static_cast<double>(pages + 3);
      }
      return static_cast<double>(order[n]);
    });
    for (const bool keys : {true, false}) {
      const std::int64_t dim = keys ? p_.dim_qk : p_.dim_vo;
      const std::string name = keys ? "k" : "v";
      const TensorView view = make(name, p_.kv_type(), {pages, p_.page_size, p_.heads_kv, dim});
      const auto value = normal(name, (keys ? c_.value_scale : 1.0) * of_keys());
      for (std::int64_t b = 0; b < p_.batch; ++b) {
        for (std::int64_t j = 0; j < in_.kv.length[static_cast<std::size_t>(b)]; ++j) {
          const auto page = static_cast<std::int64_t>(load(a_.block_table, b, j / p_.page_size));
          if (page < 0 || page >= pages) continue;
          for (std::int64_t n = 0; n < p_.heads_kv * dim; ++n) {
            const auto index = static_cast<std::uint64_t>(((b << 24) + j) * p_.heads_kv * dim + n);
            store(view, value(index), page, j % p_.page_size, n / dim, n % dim);
          }
        }
      }
      (keys ? a_.k : a_.v) = view;
    }
  }

  const Case& c_;
  const Problem& p_;
  Inputs& in_;
  Arguments& a_;
};

}  // namespace

Inputs::Inputs(const Case& c) : q(rows_q(c)), kv(rows_kv(c)) {
  Maker maker(c, *this);
  maker.rows();
  maker.lengths();
  maker.ranges();
  maker.score();
  maker.rope();
  maker.gradients();
  maker.numbers();
  maker.plant();
}

void Inputs::give_forward(const std::vector<double>& o, const std::vector<double>& lse) {
  const auto put = [](const TensorView& view, std::int64_t n, double x) {
    store(view.dtype,
          static_cast<char*>(view.address()) + element_offset(view, n) * size_of(view.dtype), x);
  };
  const Arguments& a = arguments;
  const std::int64_t heads = a.q.shape[q.packed ? 1 : 2];
  const std::int64_t dim = a.dout.shape[q.packed ? 2 : 3];
  for (std::size_t b = 0; b < q.length.size(); ++b) {
    for (std::int64_t i = 0; i < q.length[b]; ++i) {
      for (std::int64_t h = 0; h < heads; ++h) {
        const auto entry = static_cast<std::int64_t>(b);
        const std::int64_t at = q.packed ? h * a.lse.shape[1] + q.begin[b] + i
                                         : (entry * heads + h) * a.lse.shape[2] + i;
        const std::int64_t row =
            q.packed ? (q.begin[b] + i) * heads + h : (entry * a.q.shape[1] + i) * heads + h;
        const double value = lse[static_cast<std::size_t>(at)];
        put(a.lse, at, value);
        double delta = 0.0;
        for (std::int64_t d = 0; d < dim; ++d) {
          const double element = o[static_cast<std::size_t>(row * dim + d)];
          if (a.o.given()) put(a.o, row * dim + d, element);
          delta += element *
                   (q.packed ? load(a.dout, q.begin[b] + i, h, d) : load(a.dout, entry, i, h, d));
        }
        if (a.delta.given()) put(a.delta, at, delta);
      }
    }
  }
}

}  // namespace attn::harness
