// The list of a call's tensors: see signature.hpp.
#include "core/signature.hpp"

#include <string>

namespace attn::core {

namespace {

class Builder {
 public:
  Builder(Pass pass, const Problem& problem) : pass_(pass), p_(problem) {}

  Slots build() {
    inputs();
    scores();
    lengths();
    cache();
    rotary();
    results();
    if (pass_ == Pass::backward) gradients();
    return slots_;
  }

 private:
  void add(const char* name, TensorView Arguments::* view, Use use, const char* because,
           const Shape& shape, bool written = false) {
    slots_.items[static_cast<std::size_t>(slots_.count++)] =
        Slot{name, view, use, written, because, shape};
  }
  // The tensor must be given if and only if the switch is on.
  void agree(const char* name, TensorView Arguments::* view, bool on, const char* because,
             const Shape& shape, bool written = false) {
    add(name, view, on ? Use::needed : Use::absent, because, shape, written);
  }

  [[nodiscard]] bool packed_q() const { return p_.layout_q == Layout::packed; }
  [[nodiscard]] bool packed_kv() const { return p_.layout_kv == Layout::packed; }

  [[nodiscard]] Shape rows_q(DType dtype, std::int64_t dim) const {
    if (packed_q()) return {dtype, {{p_.total_q}, {p_.heads_q}, {dim}}};
    return {dtype, {{p_.batch}, {p_.len_q}, {p_.heads_q}, {dim}}};
  }
  [[nodiscard]] Shape rows_kv(DType dtype, std::int64_t dim) const {
    if (p_.page_size > 0) return {dtype, {{0, Fit::any}, {p_.page_size}, {p_.heads_kv}, {dim}}};
    if (packed_kv()) return {dtype, {{p_.total_kv}, {p_.heads_kv}, {dim}}};
    return {dtype, {{p_.batch}, {p_.len_kv}, {p_.heads_kv}, {dim}}};
  }
  [[nodiscard]] Shape descale_rows() const {
    const bool paged = p_.page_size > 0;
    return {DType::f32,
            {paged ? Dim{0, Fit::any} : Dim{p_.batch},
             {paged ? p_.page_size : p_.len_kv, Fit::one_or},
             {p_.heads_kv}}};
  }
  [[nodiscard]] Shape statistics() const {
    const DType dtype = p_.statistics_type();
    if (packed_q()) return {dtype, {{p_.heads_q}, {p_.total_q}}};
    return {dtype, {{p_.batch}, {p_.heads_q}, {p_.len_q}}};
  }
  [[nodiscard]] Shape per_query() const {
    if (packed_q()) return {DType::i32, {{p_.total_q}}};
    return {DType::i32, {{p_.batch, Fit::one_or}, {p_.len_q}}};
  }
  [[nodiscard]] Shape pairs(DType dtype, const Extent& extent) const {
    const auto dim = [](std::int64_t size, bool is_full) {
      return Dim{size, is_full ? Fit::full : Fit::reduced};
    };
    return {dtype,
            {dim(extent.batch ? extent.entries(p_.batch) : p_.batch, extent.batch),
             dim(p_.heads_q, extent.head), dim(p_.len_q, extent.q), dim(p_.len_kv, extent.kv)}};
  }

  void inputs() {
    const bool appends = p_.len_new > 0;
    add("q", &Arguments::q, Use::needed, "", rows_q(p_.dtype, p_.dim_qk));
    add("k", &Arguments::k, Use::needed, "", rows_kv(p_.kv_type(), p_.dim_qk), appends);
    add("v", &Arguments::v, Use::needed, "", rows_kv(p_.kv_type(), p_.dim_vo), appends);
    const Shape descale{DType::f32, {{p_.batch}, {p_.heads_kv}}};
    const Use of_q = is_f8(p_.dtype) ? Use::optional : Use::absent;
    const Use of_kv = is_8_bit(p_.kv_type()) ? Use::optional : Use::absent;
    add("descale_q", &Arguments::descale_q, of_q, "an f8 dtype", descale);
    const Shape of_keys = p_.descale_rows ? descale_rows() : descale;
    add("descale_k", &Arguments::descale_k, of_kv, "an 8-bit dtype_kv", of_keys);
    add("descale_v", &Arguments::descale_v, of_kv, "an 8-bit dtype_kv", of_keys);
  }

  void scores() {
    const DType stats = p_.statistics_type();
    agree("bias", &Arguments::bias, p_.bias.given, "bias", pairs(p_.bias_type(), p_.bias));
    agree("mask", &Arguments::mask, p_.mask.given, "mask", pairs(DType::u8, p_.mask));
    Shape slopes{stats, {{p_.batch}, {p_.heads_q}}};
    slopes.first_optional = true;
    agree("alibi_slopes", &Arguments::alibi_slopes, p_.alibi, "alibi", slopes);
    agree("sinks", &Arguments::sinks, p_.sink, "sink", {stats, {{p_.heads_q}}});
    agree("kv_begin", &Arguments::kv_begin, p_.kv_begin, "kv_begin", per_query());
    agree("kv_end", &Arguments::kv_end, p_.kv_end, "kv_end", per_query());
  }

  void lengths() {
    const Shape per_entry{DType::i32, {{p_.batch}}};
    const Shape cumulative{DType::i32, {{p_.batch + 1}}};
    agree("len_q", &Arguments::len_q, p_.lengths_q, "lengths_q", per_entry);
    agree("len_kv", &Arguments::len_kv, p_.lengths_kv, "lengths_kv", per_entry);
    agree("cu_len_q", &Arguments::cu_len_q, packed_q(), "layout_q=packed", cumulative);
    agree("cu_len_kv", &Arguments::cu_len_kv, packed_kv(), "layout_kv=packed", cumulative);
  }

  void cache() {
    const std::int64_t pages =
        p_.page_size > 0 ? p_.len_kv / p_.page_size + (p_.len_kv % p_.page_size != 0) : 0;
    agree("block_table", &Arguments::block_table, p_.page_size > 0, "page_size",
          {DType::i32, {{p_.batch}, {pages, Fit::at_least}}});
    const auto new_rows = [&](std::int64_t dim) {
      return Shape{p_.kv_type(), {{p_.batch}, {p_.len_new}, {p_.heads_kv}, {dim}}};
    };
    agree("k_new", &Arguments::k_new, p_.len_new > 0, "len_new", new_rows(p_.dim_qk));
    agree("v_new", &Arguments::v_new, p_.len_new > 0, "len_new", new_rows(p_.dim_vo));
  }

  void rotary() {
    const Shape table{p_.statistics_type(), {{1, Fit::at_least}, {p_.rotary_dim() / 2}}};
    agree("rope_cos", &Arguments::rope_cos, p_.rope_tables, "rope_tables", table);
    agree("rope_sin", &Arguments::rope_sin, p_.rope_tables, "rope_tables", table);
    agree("rope_pos_q", &Arguments::rope_pos_q, p_.rope_positions, "rope_positions", per_query());
    // Decode rotates only the keys that it appends.
    const bool decode = pass_ == Pass::decode;
    if (decode && p_.len_new == 0) return;
    const Shape per_key =
        !decode && packed_kv()
            ? Shape{DType::i32, {{p_.total_kv}}}
            : Shape{DType::i32, {{p_.batch, Fit::one_or}, {decode ? p_.len_new : p_.len_kv}}};
    agree("rope_pos_k", &Arguments::rope_pos_k, p_.rope_positions, "rope_positions", per_key);
  }

  void results() {
    const bool writes = pass_ != Pass::backward;
    const Shape o = rows_q(p_.out_type(), p_.dim_vo);
    if (writes || !p_.delta) add("o", &Arguments::o, Use::needed, "", o, writes);
    agree("lse", &Arguments::lse, p_.lse || !writes, "lse", statistics(), writes);
    agree("nonfinite_count", &Arguments::nonfinite_count, p_.nonfinite_zero, "nonfinite_zero",
          {DType::i32, {{1}}}, true);
  }

  void gradients() {
    add("dout", &Arguments::dout, Use::needed, "", rows_q(p_.out_type(), p_.dim_vo));
    agree("dlse", &Arguments::dlse, p_.dlse, "dlse", statistics());
    agree("delta", &Arguments::delta, p_.delta, "delta", statistics());
    const DType grad = p_.grad_type();
    agree("dq", &Arguments::dq, p_.dq, "dq", rows_q(grad, p_.dim_qk), true);
    agree("dk", &Arguments::dk, p_.dk, "dk", rows_kv(grad, p_.dim_qk), true);
    agree("dv", &Arguments::dv, p_.dv, "dv", rows_kv(grad, p_.dim_vo), true);
    const Extent& extent = p_.bias;
    const Shape dbias{p_.dbias_type(),
                      {{extent.entries(p_.batch)},
                       {extent.head ? p_.heads_q : 1},
                       {extent.q ? p_.len_q : 1},
                       {extent.kv ? p_.len_kv : 1}}};
    agree("dbias", &Arguments::dbias, p_.dbias, "dbias", dbias, true);
    const Shape dsink{p_.statistics_type(), {{p_.heads_q}}};
    agree("dsink", &Arguments::dsink, p_.dsink, "dsink", dsink, true);
  }

  Pass pass_;
  const Problem& p_;
  Slots slots_;
};

std::string to_string(const Dim& dim) {
  const std::string size = std::to_string(dim.size);
  switch (dim.fit) {
    case Fit::any: return "any";
    case Fit::at_least: return ">=" + size;
    case Fit::one_or: return dim.size == 1 ? "1" : "1|" + size;
    case Fit::reduced: return dim.size == 1 ? "1" : "1|" + size + " of stride 0";
    case Fit::exact:
    case Fit::full: break;
  }
  return size;
}

}  // namespace

std::string to_string(const Shape& shape) {
  const auto list = [&](std::int32_t first) {
    std::string text = "[";
    for (std::int32_t d = first; d < shape.rank; ++d) {
      if (d > first) text += ", ";
      text += to_string(shape.dims[static_cast<std::size_t>(d)]);
    }
    return text + "]";
  };
  return shape.first_optional ? list(1) + " or " + list(0) : list(0);
}

Slots slots_of(Pass pass, const Problem& problem) {
  return Builder(pass, problem).build();
}

}  // namespace attn::core
