// Binds operands by the names in the kernel source; see work.hpp.
#include "webgpu/host/work.hpp"

namespace attn::webgpu {

Dispatch::Dispatch(const char* source, const char* entry) {
  spec.source = source;
  spec.entry = entry == nullptr ? source : entry;
}

void Dispatch::bind(std::string_view name, const Operand& operand) {
  const std::span<const BindingName> names = binding_names();
  const std::string_view source = spec.source;
  auto found = std::ranges::lower_bound(names, source, {}, &BindingName::source);
  while (found != names.end() && found->source == source && found->name != name) ++found;
  if (found == names.end() || found->source != source) {
    spec.num_bindings = kMaxBindings + 1;
    return;
  }
  const auto at = static_cast<std::size_t>(found->number - 1);
  spec.bindings[at] = found->access;
  operands[at] = operand;
  spec.num_bindings = std::max(spec.num_bindings, found->number);
}

}  // namespace attn::webgpu
