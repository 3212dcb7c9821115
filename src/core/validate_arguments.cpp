// The rules on a call's tensors and numbers: see validate.hpp.
#include <cmath>
#include <string>
#include <tuple>

#include "core/refusal.hpp"
#include "core/signature.hpp"
#include "core/tensor_rules.hpp"
#include "core/validate.hpp"

namespace attn::core {

namespace {

// Keeps i + diag - j within 64 bits for all lengths.
constexpr std::int64_t kMaxDiag = std::int64_t{1} << 62;
constexpr std::int64_t kMaxOrigin = std::int64_t{0x7FFFFFFF};

// Checks numbers, and that softcap and dropout agree with their switches in Problem.
Status check_numbers(const char* f, const Problem& p, const Arguments& a) {
  if (a.scale && !std::isfinite(*a.scale)) {
    return refuse(f, "scale", std::to_string(*a.scale), "a finite number");
  }
  if (!(a.softcap >= 0.0) || std::isinf(a.softcap)) {
    return refuse(f, "softcap", std::to_string(a.softcap), "a finite number, 0 or more");
  }
  if (p.softcap != (a.softcap > 0.0)) {
    return refuse(f, "softcap goes with Problem::softcap",
                  std::to_string(a.softcap) + (p.softcap ? " with the switch on" : " with it off"),
                  p.softcap ? "more than 0" : "0");
  }
  if (!(a.dropout_p >= 0.0 && a.dropout_p < 1.0)) {
    return refuse(f, "dropout_p", std::to_string(a.dropout_p), "0 to less than 1");
  }
  if (a.dropout_p > 0.0 && a.dropout_p < 1.0 / 512.0) {
    return refuse(f, "dropout_p", std::to_string(a.dropout_p),
                  "0, or at least 1/512: p is taken in steps of 1/256");
  }
  if (a.dropout_p > 0.0 && !p.dropout) {
    return refuse(f, "dropout_p goes with Problem::dropout",
                  std::to_string(a.dropout_p) + " with the switch off", "0");
  }
  return {};
}

Status check_placement(const char* f, const Problem& p, const Arguments& a) {
  if (a.diag && p.diagonal != Diagonal::explicit_value) {
    return refuse(f, "diag goes with Problem::diagonal", assignment("diag", *a.diag),
                  "none, or diagonal=explicit");
  }
  const std::int64_t limit = p.rope == Rope::none ? kMaxDiag : kMaxPosition;
  if (a.diag && (*a.diag > limit || *a.diag < -limit)) {
    return refuse(f, "diag", assignment("diag", *a.diag),
                  p.rope == Rope::none ? "-2^62 to 2^62" : "-2^53 to 2^53 with rope");
  }
  for (const auto& [name, value] : {std::pair{"origin.batch", a.origin.batch},
                                    {"origin.head", a.origin.head},
                                    {"origin.q", a.origin.q},
                                    {"origin.kv", a.origin.kv},
                                    {"origin.heads_q", a.origin.heads_q}}) {
    if (value < 0 || value > kMaxOrigin) {
      return refuse(f, "origin", assignment(name, value), "0 to " + std::to_string(kMaxOrigin));
    }
  }
  if (a.origin.heads_q != 0 && a.origin.heads_q < a.origin.head + p.heads_q) {
    return refuse(
        f, "origin",
        assignment("origin.heads_q", a.origin.heads_q) + " with " +
            assignment("origin.head", a.origin.head),
        "0, or at least origin.head + heads_q = " + std::to_string(a.origin.head + p.heads_q));
  }
  if (p.rope == Rope::none) return {};
  if (!p.rope_tables && !(std::isfinite(a.rope_base) && a.rope_base > 0.0)) {
    return refuse(f, "rope_base", std::to_string(a.rope_base), "a finite number above 0");
  }
  if (a.rope_pos_offset > kMaxPosition || a.rope_pos_offset < -kMaxPosition) {
    return refuse(f, "rope_pos_offset", std::to_string(a.rope_pos_offset), "-2^53 to 2^53");
  }
  return {};
}

Status check_workspace(const char* f, const Arguments& a) {
  if (a.workspace_size < 0) {
    return refuse(f, "workspace_size", std::to_string(a.workspace_size), "0 and more");
  }
  if (a.workspace == nullptr && a.workspace_size > 0) {
    return refuse(f, "workspace", "null with " + assignment("workspace_size", a.workspace_size),
                  "memory, or a size of 0 for the Context's pool");
  }
  if (reinterpret_cast<std::uintptr_t>(a.workspace) % 64 != 0 && a.q.device != Device::webgpu) {
    return refuse(f, "workspace",
                  "an address that leaves " +
                      std::to_string(reinterpret_cast<std::uintptr_t>(a.workspace) % 64) +
                      " when divided by 64",
                  "64-byte alignment");
  }
  return {};
}

// The block table indexes the pages of k, v and their descale factors, so they must be equally
// many.
Status check_pages(const char* f, const Problem& p, const Arguments& a) {
  if (p.page_size == 0) return {};
  for (const auto& [name, view, paged] :
       {std::tuple{"v", &a.v, true}, std::tuple{"descale_k", &a.descale_k, p.descale_rows},
        std::tuple{"descale_v", &a.descale_v, p.descale_rows}}) {
    if (!paged || !view->given() || view->shape[0] == a.k.shape[0]) continue;
    return refuse(f, std::string("pages of ") + name, std::to_string(view->shape[0]),
                  std::to_string(a.k.shape[0]) + ", as k has");
  }
  return {};
}

}  // namespace

Status validate_arguments(Pass pass, const Problem& problem, const Arguments& arguments) {
  const Slots slots = slots_of(pass, problem);
  return validate_arguments(pass, problem, {slots.begin(), slots.end()}, arguments);
}

Status validate_arguments(Pass pass, const Problem& problem, std::span<const Slot> slots,
                          const Arguments& arguments) {
  const char* f = to_string(pass);
  TensorRules rules(f);
  for (const Slot& slot : slots) {
    const TensorView& view = arguments.*slot.view;
    if (slot.use != Use::needed && view.rank == 0) continue;
    Status status = rules.check(slot.name, view, slot.shape, slot.written, slot.use, slot.because);
    if (!status.ok()) return status;
  }
  if (problem.rope_tables && arguments.rope_cos.shape[0] != arguments.rope_sin.shape[0]) {
    return refuse(f, "shape of rope_sin", to_string(arguments.rope_sin),
                  "as many positions as rope_cos");
  }
  if (Status status = check_pages(f, problem, arguments); !status.ok()) return status;
  if (Status status = check_numbers(f, problem, arguments); !status.ok()) return status;
  if (Status status = check_placement(f, problem, arguments); !status.ok()) return status;
  if (Status status = check_workspace(f, arguments); !status.ok()) return status;
  if (Status status = rules.check_stream(arguments.stream); !status.ok()) return status;
  rules.add_workspace(arguments.workspace, arguments.workspace_size);
  return rules.check_aliases();
}

Status validate(Pass pass, const Problem& problem, const Arguments& arguments) {
  Status status = validate_problem(pass, problem);
  return status.ok() ? validate_arguments(pass, problem, arguments) : status;
}

}  // namespace attn::core
