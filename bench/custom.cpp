// custom_cell: a cell for a problem that the user wrote, and what is refused as such.
#include <limits>
#include <stdexcept>
#include <string>

#include "bench/cells.hpp"
#include "core/refusal.hpp"
#include "core/validate.hpp"

namespace attn::bench {
namespace {

using core::assignment;

[[noreturn]] void refuse(const std::string& rule, const std::string& found,
                         const std::string& accepted) {
  throw std::invalid_argument(core::refuse("--problem", rule, found, accepted).message);
}

// Tensors that only a caller has.
void check_supplied(const Problem& p) {
  const auto check = [](const char* name, bool wanted, const char* accepted) {
    if (wanted) refuse(std::string("bench has no ") + name, name, accepted);
  };
  check("delta", p.delta, "a problem without it: the backward computes it from o");
  check("rope_tables", p.rope_tables, "rope alone, with angles from a base of 10000");
  check("rope_positions", p.rope_positions, "rope alone, with positions in order");
}

// The rows of a packed tensor: set if left out, else checked.
void settle_total(const char* name, Layout layout, std::int64_t batch, std::int64_t longest,
                  std::int64_t& total) {
  if (layout != Layout::packed) return;
  std::int64_t most = 0;
  if (__builtin_mul_overflow(batch, longest, &most))
    most = std::numeric_limits<std::int64_t>::max();
  if (total == 0) total = most;
  if (total <= most) return;
  refuse(std::string(name) + " is the sum of the lengths", assignment(name, total),
         "1 to " + std::to_string(most) + ", batch times the longest, or " + name + " left out");
}

void check_work(const Problem& p) {
  for (const auto& [name, size] :
       {std::pair{"batch", p.batch}, {"len_q", p.len_q}, {"len_kv", p.len_kv}}) {
    if (size != 0) continue;
    refuse("a problem without work can't be timed", assignment(name, size),
           "batch, len_q and len_kv of 1 or more");
  }
}

}  // namespace

Cell custom_cell(const std::string& text, Pass pass) {
  Cell cell;
  cell.suite = "custom";
  cell.pass = pass;
  cell.problem = parse_problem(text);
  Problem& p = cell.problem;
  const core::Status status = core::validate_problem(pass, p);
  if (status.code == ErrorCode::invalid_argument) throw std::invalid_argument(status.message);
  check_work(p);
  settle_total("total_q", p.layout_q, p.batch, p.len_q, p.total_q);
  settle_total("total_kv", p.layout_kv, p.batch, p.len_kv, p.total_kv);
  check_supplied(p);
  cell.option = to_string(p);
  cell.softcap = p.softcap ? 20.0 : 0.0;
  cell.dropout_p = p.dropout ? 0.1 : 0.0;
  cell.documents = p.kv_begin || p.kv_end ? 4 : 0;
  cell.name = std::string("custom/") + to_string(p.dtype) + "/" + pass_name(pass);
  return cell;
}

}  // namespace attn::bench
