// The choice of a backend: see registry.hpp.
#include "core/registry.hpp"

namespace attn::core {

namespace {

// Whether the backend runs on the tensors' device, or was requested by name and copies them.
bool reaches(const Backend& backend, const Demand& demand) {
  return backend.device() == demand.device ||
         (demand.device == Device::host && demand.forced == backend.name() &&
          backend.copies_host_tensors());
}

Answer ask(const Backend& backend, const Demand& demand) {
  Answer answer{&backend, false, {}, nullptr};
  if (demand.forced.empty() && !backend.automatic()) {
    answer.reason = "only runs when it is requested by name";
    return answer;
  }
  if (!demand.forced.empty() && demand.forced != backend.name()) {
    answer.reason = "the context asks for " + std::string(demand.forced);
    return answer;
  }
  if (!backend.usable(answer.reason)) return answer;
  if (!reaches(backend, demand)) {
    answer.reason = std::string("works on ") + to_string(backend.device()) +
                    " memory, the tensors are on " + to_string(demand.device);
    return answer;
  }
  if (demand.request != nullptr) {
    const PlanRequest& request = *demand.request;
    Result<PlanPointer> planned =
        backend.plan(request.pass, request.problem, request.access, request.executor);
    if (!planned.ok()) {
      answer.reason = planned.reason();
      return answer;
    }
    answer.plan = std::move(planned).value();
  }
  answer.can = true;
  return answer;
}

}  // namespace

Answer choose(Backends backends, const Demand& demand) {
  for (const Backend* backend : backends) {
    if (!reaches(*backend, demand)) continue;
    Answer answer = ask(*backend, demand);
    if (answer.can) return answer;
  }
  return {};
}

std::vector<Answer> ask_all(Backends backends, const Demand& demand) {
  std::vector<Answer> answers;
  answers.reserve(backends.size());
  for (const Backend* backend : backends) answers.push_back(ask(*backend, demand));
  return answers;
}

std::string reasons(Backends backends, const Demand& demand) {
  std::string text;
  for (const Answer& answer : ask_all(backends, demand)) {
    if (!text.empty()) text += "; ";
    text += std::string(answer.backend->name()) + ": " +
            (answer.can ? std::string("can") : answer.reason);
  }
  return text;
}

const Backend* find(Backends backends, std::string_view name) {
  for (const Backend* backend : backends) {
    if (name == backend->name()) return backend;
  }
  return nullptr;
}

std::string names(Backends backends) {
  std::string text;
  for (const Backend* backend : backends) {
    if (!text.empty()) text += ", ";
    text += backend->name();
  }
  return text;
}

}  // namespace attn::core
