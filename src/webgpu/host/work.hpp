// Work: the dispatches of a call before memory is assigned. A tensor is identified by its buffer,
// scratch memory by an offset in one of the scratch buffers. Pure values.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/divide_up.hpp"
#include "webgpu/host/parameters.hpp"
#include "webgpu/host/pipelines.hpp"

namespace attn::webgpu {

// The memory of an operand. There are three scratch buffers because no dispatch may both read and
// write a buffer. The first kernels of a call write `info` (prepare.wgsl) and `prepared` (inputs in
// another layout); later kernels only read them. `staged` holds results before they are copied out.
// `constants` come from the host and follow the parameters. `spare` replaces absent outputs.
enum class Memory { tensor, info, prepared, staged, constants, spare };

struct Operand {
  Memory memory = Memory::tensor;
  void* buffer = nullptr;  // of Memory::tensor
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
};

constexpr std::int64_t kMaxGrid = 65535;  // workgroups along a dimension

struct Dispatch {
  KernelSpec spec;
  std::array<Operand, kMaxBindings> operands{};  // the first spec.num_bindings
  std::array<std::byte, kParameterBytes> parameters{};
  std::array<std::uint32_t, 3> grid{1, 1, 1};
  double flops = 0.0;  // a rough count, for the division into submissions

  // The default entry point has the name of the source.
  explicit Dispatch(const char* source, const char* entry = nullptr);
  // Runs a planned kernel; nothing is bound yet.
  explicit Dispatch(const KernelSpec& kernel) : spec(kernel) {}

  template <class T>
  void set_parameters(const T& value) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kParameterBytes);
    std::memcpy(parameters.data(), &value, sizeof(T));
  }
  void add_constant(const char* name, double value) { spec.add_constant(name, value); }
  // One workgroup per `lines_per_group` lines. The grid has two dimensions, because one may be too
  // small.
  void set_lines(std::int64_t lines, std::int64_t lines_per_group, std::int64_t batches) {
    const std::int64_t groups = core::divide_up(lines, lines_per_group);
    const std::int64_t high = core::divide_up(groups, kMaxGrid);
    grid = {static_cast<std::uint32_t>(core::divide_up(groups, high)),
            static_cast<std::uint32_t>(high), static_cast<std::uint32_t>(batches)};
  }
  // One thread per element, 64 per workgroup, in rows of kMaxGrid workgroups.
  void set_elements(std::int64_t elements) {
    const std::int64_t groups = core::divide_up(elements, 64);
    grid = {static_cast<std::uint32_t>(std::min(groups, kMaxGrid)),
            static_cast<std::uint32_t>(core::divide_up(groups, kMaxGrid)), 1};
  }
  // Binds an operand to the variable of that name in the source. An unknown name makes the dispatch
  // invalid: Pipelines refuses it.
  void bind(std::string_view name, const Operand& operand);
};

// "source:entry", as plans print it.
inline std::string name_of(const KernelSpec& spec) {
  return std::string(spec.source).append(":").append(spec.entry);
}

// A call: its dispatches in order, and how much scratch memory they use.
struct Work {
  std::vector<Dispatch> dispatches;
  std::uint64_t info_bytes = 0;
  std::uint64_t prepared_bytes = 0;
  std::uint64_t staged_bytes = 0;
  std::vector<std::byte> constants;

  // Adds bytes that the host computed, at a multiple of 256 bytes.
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
  // Reserves a part of a scratch buffer, at a multiple of 256 bytes.
  Operand reserve(Memory memory, std::uint64_t bytes) {
    std::uint64_t& end = memory == Memory::info       ? info_bytes
                         : memory == Memory::prepared ? prepared_bytes
                                                      : staged_bytes;
    const Operand part{memory, nullptr, end, (bytes + 15) / 16 * 16};
    end = (end + bytes + 255) / 256 * 256;
    return part;
  }
};

}  // namespace attn::webgpu
