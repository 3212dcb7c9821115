// One row per field: its flag and help, or that the tensors determine it.
#include "cli/problem_flags.hpp"

#include <algorithm>
#include <concepts>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <type_traits>

#include "cli/failure.hpp"
#include "core/names.hpp"
#include "core/problem_fields.hpp"

namespace attn::cli {
namespace {

constexpr const char* kFromTensors = nullptr;

struct FieldRow {
  const char* field;
  const char* help;
  const char* flag = nullptr;  // if it is not the name of the field
};

constexpr FieldRow kRows[] = {
    {"dtype", kFromTensors},
    {"dtype_kv", kFromTensors},
    {"dtype_out", "type of o and do: that of q (default) or f32"},
    {"dtype_grad", "type of dq, dk, dv: that of q (default) or f32"},
    {"dtype_bias", kFromTensors},
    {"dtype_dbias", "type of dbias: that of bias (default) or f32"},
    {"precision", "how f32 products are made on CUDA tensor cores"},
    {"batch", kFromTensors},
    {"heads_q", kFromTensors},
    {"heads_kv", kFromTensors},
    {"len_q", "packed: the longest entry's queries (default: all rows)", "max-len-q"},
    {"len_kv", "packed: the longest entry's keys (default: all rows)", "max-len-kv"},
    {"dim_qk", kFromTensors},
    {"dim_vo", kFromTensors},
    {"layout_q", kFromTensors},
    {"layout_kv", kFromTensors},
    {"total_q", kFromTensors},
    {"total_kv", kFromTensors},
    {"lengths_q", kFromTensors},
    {"lengths_kv", kFromTensors},
    {"causal", "query i sees keys up to i + diag"},
    {"diagonal", "where diag lies: bottom_right is len_kv - len_q of the entry, top_left is 0"},
    {"window_left", "query i sees keys from i + diag - N"},
    {"window_right", "query i sees keys up to i + diag + N"},
    {"kv_begin", kFromTensors},
    {"kv_end", kFromTensors},
    {"mask", kFromTensors},
    {"softcap", kFromTensors},
    {"alibi", kFromTensors},
    {"bias", kFromTensors},
    {"sink", kFromTensors},
    {"dropout", kFromTensors},
    {"rope", "rotate q and k inside attention, pairs (2m, 2m+1) or (m, m + rot_dim/2)"},
    {"rot_dim", "leading dimensions that rotate, even (default: all)"},
    {"rope_tables", kFromTensors},
    {"rope_positions", kFromTensors},
    {"descale_rows", kFromTensors},
    {"page_size", kFromTensors},
    {"len_new", kFromTensors},
    {"split_keys", "--decode: cut every N keys; 0: the plan decides, -1: never"},
    {"lse", "don't write lse"},
    {"dlse", kFromTensors},
    {"delta", kFromTensors},
    {"dq", "--backward: don't write dq"},
    {"dk", "--backward: don't write dk"},
    {"dv", "--backward: don't write dv"},
    {"dbias", "--backward: write dbias, in the shape of bias"},
    {"dsink", "--backward: write dsink"},
    {"accumulate",
     "--backward: add to the gradients given as tensors dq0, dk0, dv0, dbias0, dsink0"},
    {"deterministic", "--backward: the same bits from run to run"},
    {"nonfinite_zero", "write 0 for non-finite elements of o and gradients, and count them"},
};

const FieldRow& row_of(std::string_view field) {
  const auto* row = std::find_if(std::begin(kRows), std::end(kRows),
                                 [&](const FieldRow& entry) { return entry.field == field; });
  if (row == std::end(kRows)) {
    throw std::logic_error("field " + std::string(field) + " has no row in the command's flags");
  }
  return *row;
}

std::string flag_of(const FieldRow& row) {
  std::string name = row.flag != nullptr ? row.flag : row.field;
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

template <class T>
std::string type_name() {
  if constexpr (std::is_enum_v<T>) {
    std::string names;
    for (const auto& entry : core::names_of(T{})) {
      if constexpr (std::same_as<T, DType>) {
        // u8 and i8 are left out too: i8 is a type of k and v only, which come from tensors.
        if (entry.value == DType::none || entry.value >= DType::i32) continue;
      }
      names += (names.empty() ? "" : "|");
      names += entry.name;
    }
    return names;
  } else {
    return "N";
  }
}

}  // namespace

void ProblemFlags::set(const std::string& word) {
  if (word.find_first_of(" \t\r\n") != word.npos) {
    throw BadInput("a value may not contain blanks: '" + word + "'");
  }
  words_ += " " + word;
}

void ProblemFlags::add_to(CLI::App& app) {
  core::visit_fields([&](const char* field, auto member) {
    const FieldRow& row = row_of(field);
    if (row.help == kFromTensors) return;
    const std::string name = field;
    using Value = std::remove_cvref_t<decltype(std::declval<Problem>().*member)>;
    CLI::Option* option = nullptr;
    if constexpr (std::same_as<Value, bool>) {
      const bool off = Problem{}.*member;
      option = app.add_flag_callback((off ? "--no-" : "--") + flag_of(row),
                                     [this, name, off] { set(name + (off ? "=off" : "")); });
      option->description(row.help);
    } else {
      option = app.add_option_function<std::string>(
          "--" + flag_of(row), [this, name](const std::string& text) { set(name + "=" + text); },
          row.help);
      option->type_name(type_name<Value>());
    }
    option->group("What is computed");
  });
}

}  // namespace attn::cli
