// Includes: kernels are assembled from parts, because WGSL has no include of its own.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace attn::webgpu {

// Returns the text of a part, or nullopt if there is no part of that name.
using ReadPart = std::function<std::optional<std::string>(std::string_view name)>;

// Replaces each line `//! include NAME` of a source by the part's text, depth first. Each part is
// included once: later lines that name it are dropped. Nothing else is interpreted. On failure the
// result is empty and `error` names the source and the line.
std::string assembled(std::string_view name, std::string_view source, const ReadPart& read_part,
                      std::string& error);

}  // namespace attn::webgpu
