// The calls that compute: validate -> plan -> workspace -> launch.
#include <attn/attn.hpp>
#include <string>

#include "api/state.hpp"
#include "core/validate.hpp"

namespace attn {

namespace {

void launch(Context::State& state, const Arguments& arguments, const api::Planned& planned) {
  core::Executor executor = state.executor_on(api::place_of(arguments.q));
  if (arguments.should_stop == nullptr) {
    return api::check(planned.backend->launch(*planned.plan, arguments, executor));
  }
  core::Interrupt interrupt(arguments.should_stop, arguments.should_stop_user);
  executor.interrupt = &interrupt;
  const core::Status status = planned.backend->launch(*planned.plan, arguments, executor);
  if (interrupt.stopped()) {
    throw Error(ErrorCode::interrupted,
                std::string(to_string(planned.plan->pass)) +
                    ": interrupted by should_stop: what it writes is unspecified");
  }
  api::check(status);
}

void launch_from_pool(Context::State& state, const Arguments& arguments,
                      const api::Planned& planned) {
  const std::int64_t bytes = planned.plan->workspace_bytes;
  if (planned.backend->device() != Device::host) return launch(state, arguments, planned);
  const api::Pool::Lease lease(state.pool, bytes);
  if (bytes > 0 && lease.data() == nullptr) {
    throw Error(ErrorCode::out_of_memory, std::string(to_string(planned.plan->pass)) +
                                              ": workspace: " + std::to_string(bytes) +
                                              " bytes can't be allocated");
  }
  Arguments with_workspace = arguments;
  with_workspace.workspace = lease.data();
  with_workspace.workspace_size = bytes;
  launch(state, with_workspace, planned);
}

void run(Context& context, Pass pass, const Problem& problem, const Arguments& arguments) {
  Context::State& state = context.state();
  const api::Place place = api::place_of(arguments.q);
  const core::Access access = core::access_of(pass, problem, arguments);
  auto known = state.plans.find({pass, place.device, problem, place.ordinal, access});
  if (known == nullptr) {
    api::check(core::validate(pass, problem, arguments));
    known = state.planned(pass, problem, place, access);
  } else {  // plans exist only for problems that validate_problem() accepted
    api::check(core::validate_arguments(pass, problem, known->slots, arguments));
  }
  const api::Planned& planned = *known;
  if (arguments.workspace == nullptr) {
    return launch_from_pool(state, arguments, planned);
  }
  const std::int64_t needed = planned.plan->workspace_bytes;
  if (arguments.workspace_size < needed) {
    throw Error(ErrorCode::invalid_argument, std::string(to_string(pass)) + ": workspace: found " +
                                                 std::to_string(arguments.workspace_size) +
                                                 " bytes; accepted at least " +
                                                 std::to_string(needed));
  }
  launch(state, arguments, planned);
}

}  // namespace

void forward(Context& context, const Problem& problem, const Arguments& arguments) {
  run(context, Pass::forward, problem, arguments);
}

void backward(Context& context, const Problem& problem, const Arguments& arguments) {
  run(context, Pass::backward, problem, arguments);
}

void decode(Context& context, const Problem& problem, const Arguments& arguments) {
  run(context, Pass::decode, problem, arguments);
}

void merge(Context& context, const MergeArguments& arguments) {
  api::check(core::validate(arguments));
  Context::State& state = context.state();
  const api::Place place = api::place_of(arguments.o);
  api::check(state.backend_for("merge", place).merge(arguments, state.executor_on(place)));
}

void merge_backward(Context& context, const MergeBackwardArguments& arguments) {
  api::check(core::validate(arguments));
  Context::State& state = context.state();
  const api::Place place = api::place_of(arguments.o);
  api::check(state.backend_for("merge_backward", place)
                 .merge_backward(arguments, state.executor_on(place)));
}

void rope(Context& context, const RopeArguments& arguments) {
  api::check(core::validate(arguments));
  Context::State& state = context.state();
  const api::Place place = api::place_of(arguments.x);
  api::check(state.backend_for("rope", place).rope(arguments, state.executor_on(place)));
}

}  // namespace attn
