// The table of tensors.
#include "cli/slots.hpp"

#include <array>

namespace attn::cli {

std::span<const Slot> slots() {
  using A = Arguments;
  using enum Kind;
  using enum When;
  constexpr const char* kDescale = "8-bit k, v: [b, heads_kv] or [b, len_kv|1, heads_kv]";
  static const std::vector<Slot> kSlots = {
      {&A::q, rows, always, {"q"}, "queries [b, len_q, heads_q, dim_qk]"},
      {&A::k, rows, always, {"k"}, "keys; paged: [pages, page_size, heads_kv, dim_qk]"},
      {&A::v, rows, always, {"v"}, "values; paged like k"},
      {&A::len_q, indices, always, {"len_q", "lengths"}, "queries of each entry [b]", true},
      {&A::len_kv, indices, always, {"len_kv", "lengths"}, "keys of each entry [b]", true},
      {&A::cu_len_q, indices, always, {"cu_len_q", "cu_len"}, "packed: cumulative [b + 1]", true},
      {&A::cu_len_kv, indices, always, {"cu_len_kv", "cu_len"}, "packed: cumulative [b + 1]", true},
      {&A::kv_begin, indices, always, {"kv_begin"}, "first visible key [b|1, len_q]"},
      {&A::kv_end, indices, always, {"kv_end"}, "end of the visible keys [b|1, len_q]"},
      {&A::mask, bytes, always, {"mask"}, "[b|b/s|1, h|1, len_q|1, len_kv|1], not 0: may attend"},
      {&A::bias, values, always, {"bias"}, "[b|b/s|1, h|1, len_q|1, len_kv|1], added to scores"},
      {&A::alibi_slopes, statistics, always, {"alibi_slopes"}, "[heads_q] or [b, heads_q]", true},
      {&A::sinks, statistics, always, {"sinks"}, "[heads_q]; -inf: none for that head", true},
      {&A::rope_cos, statistics, always, {"rope_cos"}, "with --rope: [positions, rot_dim / 2]"},
      {&A::rope_sin, statistics, always, {"rope_sin"}, "with --rope: [positions, rot_dim / 2]"},
      {&A::rope_pos_q, indices, always, {"rope_pos_q"}, "with --rope: [b|1, len_q]"},
      {&A::rope_pos_k, indices, always, {"rope_pos_k"}, "[b|1, len_kv], decode [b|1, len_new]"},
      {&A::descale_q, statistics, always, {"descale_q"}, "f8 types: [b, heads_kv]"},
      {&A::descale_k, statistics, always, {"descale_k"}, kDescale},
      {&A::descale_v, statistics, always, {"descale_v"}, kDescale},
      {&A::block_table, indices, always, {"block_table"}, "pages of each entry [b, pages]"},
      {&A::k_new, rows, decode, {"k_new"}, "rows to append [b, len_new, heads_kv, dim_qk]"},
      {&A::v_new, rows, decode, {"v_new"}, "rows to append [b, len_new, heads_kv, dim_vo]"},
      {&A::dout, out_rows, backward, {"do", "dout"}, "gradient of o"},
      {&A::dlse, statistics, backward, {"dlse"}, "gradient of lse"},
      {&A::delta, statistics, backward, {"delta"}, "dot(do, o) - dlse, made elsewhere"},
      {&A::o, out_rows, saved_forward, {"o"}, "with --saved-forward: of an earlier forward"},
      {&A::lse, statistics, saved_forward, {"lse"}, "with --saved-forward: of an earlier forward"},
      {&A::dq, rows, accumulate, {"dq0"}, "with --accumulate: what dq is added to"},
      {&A::dk, rows, accumulate, {"dk0"}, "with --accumulate: what dk is added to"},
      {&A::dv, rows, accumulate, {"dv0"}, "with --accumulate: what dv is added to"},
      {&A::dbias, values, accumulate, {"dbias0"}, "with --accumulate: what dbias is added to"},
      {&A::dsink, statistics, accumulate, {"dsink0"}, "with --accumulate: what dsink is added to"},
  };
  return kSlots;
}

std::span<const OutputSlot> output_slots() {
  using A = Arguments;
  static constexpr std::array<OutputSlot, 7> kSlots{{{"o", &A::o, true},
                                                     {"lse", &A::lse, false},
                                                     {"dq", &A::dq, true},
                                                     {"dk", &A::dk, true},
                                                     {"dv", &A::dv, true},
                                                     {"dbias", &A::dbias, false},
                                                     {"dsink", &A::dsink, false}}};
  return kSlots;
}

}  // namespace attn::cli
