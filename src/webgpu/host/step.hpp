// Step: one dispatch of a call before it has memory of its own: tensors by their buffers, what the
// call keeps for itself by the place in one of its two scratch buffers. Pure values.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "core/divide_up.hpp"
#include "webgpu/host/parameters.hpp"
#include "webgpu/host/pipelines.hpp"

namespace attn::webgpu {

// Where an operand is. Three scratch buffers, because no buffer may be read and written in one
// dispatch: `info` (prepare.wgsl) and then `prepared` (inputs in another layout) are written by the
// first kernels of a call and only read by the others, `staged` holds results on their way out.
// `constants` are made by the host and lie behind the parameters; `spare` stands for outputs that
// are not asked for.
enum class Memory { tensor, info, prepared, staged, constants, spare };

struct Operand {
  Memory memory = Memory::tensor;
  void* buffer = nullptr;  // of Memory::tensor
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
};

constexpr std::int64_t kMaxGrid = 65535;  // workgroups along a dimension

struct Step {
  KernelSpec spec;
  std::array<Operand, kMaxBindings> operands{};  // the first spec.num_bindings
  std::array<std::byte, kParameterBytes> parameters{};
  std::array<std::uint32_t, 3> grid{1, 1, 1};
  double flops = 0.0;  // of a rough count, by which submissions are cut

  template <class T>
  void set_parameters(const T& value) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kParameterBytes);
    std::memcpy(parameters.data(), &value, sizeof(T));
  }
  void add_constant(const char* name, double value) {
    spec.constants[static_cast<std::size_t>(spec.num_constants++)] = {name, value};
  }
  // A workgroup for each `each` of so many lines, in two dimensions, as one may be too short.
  void set_lines(std::int64_t lines, std::int64_t each, std::int64_t batches) {
    const std::int64_t groups = core::divide_up(lines, each);
    const std::int64_t high = core::divide_up(groups, kMaxGrid);
    grid = {static_cast<std::uint32_t>(core::divide_up(groups, high)),
            static_cast<std::uint32_t>(high), static_cast<std::uint32_t>(batches)};
  }
  // A thread for each element, 64 a workgroup, in rows of kMaxGrid workgroups.
  void set_elements(std::int64_t elements) {
    const std::int64_t groups = core::divide_up(elements, 64);
    grid = {static_cast<std::uint32_t>(std::min(groups, kMaxGrid)),
            static_cast<std::uint32_t>(core::divide_up(groups, kMaxGrid)), 1};
  }
  void bind(Access access, const Operand& operand) {
    const auto at = static_cast<std::size_t>(spec.num_bindings++);
    spec.bindings[at] = access;
    operands[at] = operand;
  }
};

// "source:entry", as plans print it.
inline std::string name_of(const KernelSpec& spec) {
  return std::string(spec.source).append(":").append(spec.entry);
}

// A call: its steps in order, and how much scratch memory they use.
struct Work {
  std::vector<Step> steps;
  std::uint64_t info_bytes = 0;
  std::uint64_t prepared_bytes = 0;
  std::uint64_t staged_bytes = 0;
  std::vector<std::byte> constants;

  // Bytes that the host made, at a multiple of 256 bytes.
  template <class T>
  Operand add_constants(const std::vector<T>& values) {
    const std::size_t at = (constants.size() + 255) / 256 * 256;
    const std::size_t bytes = values.size() * sizeof(T);
    constants.resize(at + (bytes + 15) / 16 * 16);
    std::memcpy(constants.data() + at, values.data(), bytes);
    return {Memory::constants, nullptr, at, constants.size() - at};
  }
  [[nodiscard]] std::uint64_t scratch_bytes() const {
    return info_bytes + prepared_bytes + staged_bytes;
  }
  // A part of a scratch buffer, at a multiple of 256 bytes.
  Operand take(Memory memory, std::uint64_t bytes) {
    std::uint64_t& end = memory == Memory::info       ? info_bytes
                         : memory == Memory::prepared ? prepared_bytes
                                                      : staged_bytes;
    const Operand part{memory, nullptr, end, (bytes + 15) / 16 * 16};
    end = (end + bytes + 255) / 256 * 256;
    return part;
  }
};

}  // namespace attn::webgpu
