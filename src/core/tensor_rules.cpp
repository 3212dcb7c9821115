// Rules on tensors: presence, type, shape, device, strides, memory, aliases. See tensor_rules.hpp.
#include "core/tensor_rules.hpp"

#include <algorithm>
#include <string>

#include "core/element_size.hpp"
#include "core/names.hpp"
#include "core/refusal.hpp"

namespace attn::core {

namespace {

std::string rule(const char* what, const char* name) {
  return std::string(what) + " of " + name;
}

std::string place(const TensorView& view) {
  std::string text = to_string(view.device);
  if (view.device == Device::cuda) text.append(":").append(std::to_string(view.ordinal));
  return text;
}

bool fits(const Dim& dim, std::int64_t size, std::int64_t stride) {
  switch (dim.fit) {
    case Fit::exact: return size == dim.size;
    case Fit::any: return size >= 0;
    case Fit::at_least: return size >= dim.size;
    case Fit::one_or: return size == 1 || size == dim.size;
    case Fit::full: return size == dim.size && (size <= 1 || stride != 0);
    case Fit::reduced: return size == 1 || (size == dim.size && (size == 0 || stride == 0));
  }
  return false;
}

std::string address_of(const TensorView& view) {
  constexpr char kDigits[] = "0123456789abcdef";
  auto value =
      reinterpret_cast<std::uintptr_t>(view.data) + static_cast<std::uintptr_t>(view.offset_bytes);
  std::string text;
  do {
    text.insert(text.begin(), kDigits[value % 16]);
    value /= 16;
  } while (value != 0);
  return "0x" + text;
}

}  // namespace

Status TensorRules::check(const char* name, const TensorView& view, const Shape& shape,
                          bool written, Use use, const char* because) {
  if (use == Use::ignored) return {};
  if (view.rank < 0 || view.rank > kMaxRank) {
    return refuse(function_, rule("rank", name), std::to_string(view.rank), "0 to 4");
  }
  if (!view.given()) {
    if (use != Use::needed) return {};
    const std::string_view reason = because;
    return refuse(function_, std::string(name) + " is needed",
                  reason.empty() ? std::string("none") : "none with " + std::string(reason),
                  to_string(shape.dtype) + to_string(shape));
  }
  if (use == Use::absent) {
    return refuse(function_, std::string(name) + " goes with " + because,
                  to_string(view) + " without " + because, "both or neither");
  }
  if (view.dtype != shape.dtype) {
    return refuse(function_, rule("type", name),
                  is_known(view.dtype) ? std::string(to_string(view.dtype))
                                       : std::to_string(static_cast<std::int32_t>(view.dtype)),
                  to_string(shape.dtype));
  }
  Entry& entry = entries_[count_];
  entry = {name, &view, {}, written};
  if (!is_usual(view, shape, written, entry.bytes)) {
    if (Status status = check_shape(name, view, shape); !status.ok()) return status;
    if (Status status = check_strides(name, view, shape, written, entry.bytes); !status.ok()) {
      return status;
    }
    if (Status status = check_memory(name, view, entry.bytes); !status.ok()) return status;
  }
  if (device_of_ == nullptr) device_of_ = &entry;
  ++count_;
  return {};
}

bool TensorRules::is_usual(const TensorView& view, const Shape& shape, bool written,
                           ByteRange& bytes) const {
  const TensorView& first = device_of_ != nullptr ? *device_of_->view : view;
  if (view.rank != shape.rank || (view.device != Device::host && view.device != Device::cuda) ||
      view.device != first.device || view.ordinal != first.ordinal || view.offset_bytes < 0) {
    return false;
  }
  constexpr std::int64_t kMaxSpan = kMaxBytes / 8;  // in elements of up to 8 bytes
  std::int64_t span = 1;                            // elements spanned by the dimensions from d on
  bool empty = false;
  bool nests = true;  // dimensions don't interleave, so elements can't overlap
  for (int d = view.rank - 1; d >= 0; --d) {
    const auto at = static_cast<std::size_t>(d);
    const std::int64_t size = view.shape[at];
    const std::int64_t stride = view.strides[at];
    std::int64_t reach = 0;
    const Dim& dim = shape.dims[at];
    const bool is_exact = dim.fit == Fit::exact && size == dim.size;
    if (!(is_exact || fits(dim, size, stride)) || size < 0 || stride < 0 ||
        __builtin_mul_overflow(std::max<std::int64_t>(size, 1) - 1, stride, &reach) ||
        reach > kMaxSpan) {
      return false;
    }
    if (size > 1 && d == view.rank - 1 && stride != 1) return false;
    empty = empty || size == 0;
    nests = nests && (size == 1 || stride >= span);
    span += reach;
  }
  if (empty) return true;
  if (span > kMaxSpan || view.data == nullptr) return false;
  const std::int64_t element = element_size(view.dtype);
  bytes.begin = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(view.data));
  if (__builtin_add_overflow(bytes.begin, view.offset_bytes, &bytes.begin) ||
      __builtin_add_overflow(bytes.begin, span * element, &bytes.end)) {
    return false;
  }
  return (bytes.begin & (element - 1)) == 0 && (!written || nests || !overlaps_itself(view));
}

Status TensorRules::check_shape(const char* name, const TensorView& view,
                                const Shape& shape) const {
  const bool short_form = shape.first_optional && view.rank == shape.rank - 1;
  bool ok = view.rank == shape.rank || short_form;
  for (int d = 0; ok && d < view.rank; ++d) {
    const auto at = static_cast<std::size_t>(d);
    ok = fits(shape.dims[at + (short_form ? 1 : 0)], view.shape[at], view.strides[at]);
  }
  if (ok) return {};
  return refuse(function_, rule("shape", name), to_string(view), to_string(shape));
}

Status TensorRules::check_strides(const char* name, const TensorView& view, const Shape& shape,
                                  bool written, ByteRange& bytes) const {
  for (int d = 0; d < view.rank; ++d) {
    const auto at = static_cast<std::size_t>(d);
    if (view.strides[at] < 0) {
      return refuse(function_, rule("strides", name), to_string(view), "strides of 0 and more");
    }
  }
  const auto last = static_cast<std::size_t>(view.rank - 1);
  const bool reduced = shape.dims[static_cast<std::size_t>(shape.rank - 1)].fit == Fit::reduced;
  if (view.shape[last] > 1 && view.strides[last] != 1 && !(reduced && view.strides[last] == 0)) {
    return refuse(function_, rule("last dimension", name), to_string(view),
                  "a contiguous last dimension, of stride 1");
  }
  if (!byte_range(view, bytes)) {
    return refuse(function_, rule("extent", name), to_string(view), "at most 2^60 bytes");
  }
  if (written && overlaps_itself(view)) {
    return refuse(function_, rule("strides", name), to_string(view) + " with elements that overlap",
                  "strides that keep the elements of an output apart");
  }
  return {};
}

Status TensorRules::check_memory(const char* name, const TensorView& view,
                                 const ByteRange& bytes) const {
  if (!is_known(view.device)) {
    return refuse(function_, rule("device", name),
                  std::to_string(static_cast<std::int32_t>(view.device)), "host, cuda, webgpu");
  }
  if (device_of_ != nullptr &&
      (view.device != device_of_->view->device || view.ordinal != device_of_->view->ordinal)) {
    return refuse(function_, rule("device", name), place(view),
                  place(*device_of_->view) + ", where " + device_of_->name + " is");
  }
  if (view.offset_bytes < 0) {
    return refuse(function_, rule("offset_bytes", name), std::to_string(view.offset_bytes),
                  "0 and more");
  }
  if (bytes.begin == bytes.end) return {};
  if (view.data == nullptr) {
    return refuse(function_, rule("pointer", name), "null with " + to_string(view),
                  "memory for a tensor that is not empty");
  }
  if (bytes.begin % element_size(view.dtype) != 0) {
    return refuse(function_, rule("alignment", name), address_of(view),
                  "a multiple of " + std::to_string(element_size(view.dtype)) + " bytes");
  }
  return {};
}

void TensorRules::add_workspace(const void* data, std::int64_t bytes) {
  if (data == nullptr || bytes <= 0 || device_of_ == nullptr) return;
  workspace_ = TensorView::contiguous(data, DType::u8, {bytes});
  workspace_.device = device_of_->view->device;
  workspace_.ordinal = device_of_->view->ordinal;
  Entry entry{"workspace", &workspace_, {}, true};
  if (byte_range(workspace_, entry.bytes)) entries_[count_++] = entry;
}

void TensorRules::allow_in_place(const TensorView& written, const TensorView& read) {
  in_place_[in_place_count_++] = {&written, &read};
}

Status TensorRules::check_stream(const std::optional<void*>& stream) const {
  if (!stream || device_of_ == nullptr || device_of_->view->device != Device::host) return {};
  return refuse(function_, "stream", "a stream with host tensors",
                "none: host work runs on the calling thread");
}

bool TensorRules::in_place(const TensorView& written, const TensorView& read) const {
  for (std::size_t p = 0; p < in_place_count_; ++p) {
    if (in_place_[p].written == &written && in_place_[p].read == &read) {
      return same_view(written, read);
    }
  }
  return false;
}

Status TensorRules::check_aliases() const {
  for (std::size_t w = 0; w < count_; ++w) {
    const Entry& written = entries_[w];
    if (!written.written) continue;
    for (std::size_t r = 0; r < count_; ++r) {
      const Entry& other = entries_[r];
      if (r == w || (other.written && r < w)) continue;  // checks each pair of outputs once
      if (written.bytes.end <= other.bytes.begin || other.bytes.end <= written.bytes.begin) {
        continue;
      }
      if (!share_bytes(*written.view, *other.view)) continue;
      if (in_place(*written.view, *other.view)) continue;
      return refuse(function_, "aliases",
                    std::string(written.name) + ", which is written, over memory of " + other.name,
                    in_place_count_ == 0 ? "outputs in memory of their own"
                                         : "outputs in memory of their own, or exactly in place");
    }
  }
  return {};
}

}  // namespace attn::core
