// A call of a handler for XLA's foreign function interface, as XLA makes it, with functions of
// XLA's that write down what they are asked.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "api/xla_abi.hpp"

namespace attn::api::xla::test {

// Tensors by name; attributes are sorted by name, as XLA sorts them.
class Frame {
 public:
  Frame() {
    api_.struct_size = sizeof(Api);
    api_.create_error = [](ErrorArguments* given) {
      last().code = given->code;
      last().message = given->message;
      return error();
    };
    api_.destroy_error = [](DestroyArguments*) { last().destroyed++; };
    api_.get_stream = [](StreamArguments* given) -> Error* {
      if (last().stream == nullptr) return error();
      given->stream = last().stream;
      return nullptr;
    };
    api_.allocate = [](AllocateArguments* given) -> Error* {
      if (last().memory == nullptr) return error();
      last().allocated = given->size;
      given->data = last().memory;
      return nullptr;
    };
    api_.free = [](FreeArguments* given) -> Error* {
      last().freed = given->size;
      return given->data == last().memory ? nullptr : error();
    };
    api_.get_ordinal = [](OrdinalArguments* given) -> Error* {
      given->ordinal = last().ordinal;
      return nullptr;
    };
    last() = {};
  }

  // What XLA's functions give and have seen, in the current test.
  struct Seen {
    ErrorCode code{};
    std::string message{};
    void* stream = nullptr;
    void* memory = nullptr;
    std::int32_t ordinal = 0;
    std::size_t allocated = 0;
    std::size_t freed = 0;
    int destroyed = 0;
  };
  static Seen& last() {
    static Seen seen;
    return seen;
  }
  // The one error that these functions return.
  static Error* error() {
    static int place;
    return reinterpret_cast<Error*>(&place);
  }

  void input(const std::string& name, DataType dtype, void* data, std::vector<std::int64_t> dims) {
    add(inputs_, inputs_text_, name, dtype, data, std::move(dims));
  }
  void output(const std::string& name, DataType dtype, void* data, std::vector<std::int64_t> dims) {
    add(outputs_, outputs_text_, name, dtype, data, std::move(dims));
  }
  void text(const std::string& name, const std::string& value) { texts_[name] = value; }
  void real(const std::string& name, double value) { reals_[name] = value; }
  void integer(const std::string& name, std::int64_t value) { integers_[name] = value; }

  // The handler's result: null, or an error.
  Error* call(void* (*handler)(void*), Stage stage = Stage::execute,
              Extension* extension = nullptr) {
    text("inputs", inputs_text_);
    text("outputs", outputs_text_);
    std::map<std::string, std::pair<AttributeType, void*>> sorted;
    std::deque<Text> spans;
    std::deque<Scalar> scalars;
    for (auto& [name, value] : texts_) {
      sorted[name] = {AttributeType::string, &spans.emplace_back(value.data(), value.size())};
    }
    for (auto& [name, value] : reals_) {
      sorted[name] = {AttributeType::scalar, &scalars.emplace_back(DataType::f64, &value)};
    }
    for (auto& [name, value] : integers_) {
      sorted[name] = {AttributeType::scalar, &scalars.emplace_back(DataType::s64, &value)};
    }
    std::vector<AttributeType> types;
    std::deque<Text> name_spans;
    std::vector<const Text*> names;
    std::vector<void*> items;
    for (auto& [name, item] : sorted) {
      types.push_back(item.first);
      names.push_back(&name_spans.emplace_back(name.data(), name.size()));
      items.push_back(item.second);
    }
    const std::vector<ArgumentType> kinds(64, ArgumentType::buffer);
    const std::vector<void*> given = addresses(inputs_);
    const std::vector<void*> made = addresses(outputs_);
    CallFrame frame{};
    frame.struct_size = sizeof(CallFrame);
    frame.extension = extension;
    frame.api = &api_;
    frame.stage = stage;
    frame.arguments = {sizeof(Buffers), nullptr, std::int64_t(given.size()), kinds.data(),
                       given.data()};
    frame.results = {sizeof(Buffers), nullptr, std::int64_t(made.size()), kinds.data(),
                     made.data()};
    frame.attributes = {sizeof(Attributes), nullptr,      std::int64_t(items.size()),
                        types.data(),       names.data(), items.data()};
    return static_cast<Error*>(handler(&frame));
  }

 private:
  struct Held {
    std::vector<std::int64_t> dims;
    Buffer buffer;
  };

  static void add(std::deque<Held>& list, std::string& names, const std::string& name,
                  DataType dtype, void* data, std::vector<std::int64_t> dims) {
    Held& held = list.emplace_back(std::move(dims), Buffer{});
    held.buffer = {sizeof(Buffer),  nullptr, dtype, data, std::int64_t(held.dims.size()),
                   held.dims.data()};
    names += (names.empty() ? "" : " ") + name;
  }
  static std::vector<void*> addresses(std::deque<Held>& list) {
    std::vector<void*> found;
    for (Held& held : list) found.push_back(&held.buffer);
    return found;
  }

  Api api_{};
  std::deque<Held> inputs_{};
  std::deque<Held> outputs_{};
  std::string inputs_text_{};
  std::string outputs_text_{};
  std::map<std::string, std::string> texts_{};
  std::map<std::string, double> reals_{};
  std::map<std::string, std::int64_t> integers_{};
};

}  // namespace attn::api::xla::test
