// A reader of the one form that NumPy writes: {'descr': '<f4', 'fortran_order': False, 'shape':
// (2, 3), } with the keys in any order, padded by white space.
#include "files/npy_header.hpp"

#include <limits>
#include <utility>

#include "files/buffer.hpp"
#include "files/safetensors_header.hpp"

namespace attn::files {
namespace {

struct NpyType {
  const char* descr;  // without the byte order
  const char* dtype;
};
constexpr NpyType kNpyTypes[] = {
    {"f2", "F16"}, {"f4", "F32"}, {"f8", "F64"}, {"i1", "I8"},  {"i2", "I16"}, {"i4", "I32"},
    {"i8", "I64"}, {"u1", "U8"},  {"u2", "U16"}, {"u4", "U32"}, {"u8", "U64"}, {"b1", "BOOL"},
};

class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}

  void skip_space() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != text_.npos) ++at_;
  }
  // Skips white space, then takes `word` when it stands there.
  bool take(std::string_view word) {
    skip_space();
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }
  // A quoted string without escapes.
  bool take_string(std::string& out) {
    skip_space();
    if (at_ == text_.size() || (text_[at_] != '\'' && text_[at_] != '"')) return false;
    const std::size_t end = text_.find(text_[at_], at_ + 1);
    if (end == text_.npos) return false;
    out = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return out.find('\\') == out.npos;
  }
  // A decimal integer in [0, 2^63).
  bool take_extent(std::int64_t& out) {
    constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
    skip_space();
    const std::size_t begin = at_;
    out = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      const std::int64_t digit = text_[at_] - '0';
      if (out > (kMax - digit) / 10) return false;
      out = out * 10 + digit;
    }
    return at_ > begin;
  }
  [[nodiscard]] bool at_end() {
    skip_space();
    return at_ == text_.size();
  }
  [[nodiscard]] std::size_t position() const { return at_; }

 private:
  std::string_view text_;
  std::size_t at_ = 0;
};

// The type, or the reason why it is not accepted.
std::string read_type(const std::string& descr, std::string& dtype) {
  const std::string shown = "type " + printable(descr) + " ";
  if (descr.find('O') != descr.npos) {
    return shown + "means pickled Python objects, which are never loaded";
  }
  if (!descr.empty() && descr[0] == '>') {
    return shown + "is big-endian; only little-endian files are accepted";
  }
  for (const NpyType& row : kNpyTypes) {
    const std::string_view name = row.descr;
    if (descr.size() == 3 && descr.substr(1) == name &&
        (descr[0] == '<' || (descr[0] == '|' && name[1] == '1'))) {
      dtype = row.dtype;
      return "";
    }
  }
  if (descr.find('V') != descr.npos) {
    return shown + "is raw bytes; .npy has no bfloat16 and no f8, use .safetensors for them";
  }
  return shown + "is not one of f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8 b1, little-endian";
}

// "(2, 3)", "(2,)", "()"
std::string read_shape(Cursor& cursor, std::vector<std::int64_t>& shape) {
  if (!cursor.take("(")) return "shape is not a tuple";
  while (!cursor.take(")")) {
    std::int64_t extent = 0;
    if (!cursor.take_extent(extent)) return "a dimension is not an integer in [0, 2^63)";
    if (shape.size() == kMaxFileRank) {
      return "more than " + std::to_string(kMaxFileRank) + " dimensions";
    }
    shape.push_back(extent);
    if (cursor.take(",")) continue;
    if (shape.size() == 1 || !cursor.take(")")) return "shape is not a tuple";
    break;
  }
  return "";
}

}  // namespace

Result<NpyHeader> parse_npy_header(std::string_view text) {
  using Failure = Result<NpyHeader>;
  NpyHeader header;
  Cursor cursor(text);
  const auto malformed = [&] {
    return Failure::failure("the header is not a .npy dictionary at byte " +
                            std::to_string(cursor.position()));
  };
  bool descr_seen = false;
  bool order_seen = false;
  bool shape_seen = false;
  const auto repeated = [](bool& seen) { return std::exchange(seen, true); };
  if (!cursor.take("{")) return malformed();
  while (!cursor.take("}")) {
    std::string key;
    if (!cursor.take_string(key) || !cursor.take(":")) return malformed();
    std::string problem;
    bool twice = false;
    if (key == "descr") {
      twice = repeated(descr_seen);
      std::string descr;
      if (cursor.take("[")) {
        problem = "structured types are not accepted";
      } else if (!cursor.take_string(descr)) {
        return malformed();
      } else {
        problem = read_type(descr, header.dtype);
      }
    } else if (key == "fortran_order") {
      twice = repeated(order_seen);
      if (cursor.take("True")) {
        problem = "Fortran order is not accepted; save numpy.ascontiguousarray(x)";
      } else if (!cursor.take("False")) {
        return malformed();
      }
    } else if (key == "shape") {
      twice = repeated(shape_seen);
      if (!twice) problem = read_shape(cursor, header.shape);
    } else {
      problem = "the header has the unknown key " + printable(key);
    }
    if (twice) problem = "the header has " + key + " twice";
    if (!problem.empty()) return Failure::failure(std::move(problem));
    if (cursor.take(",")) continue;
    if (!cursor.take("}")) return malformed();
    break;
  }
  if (!cursor.at_end()) return malformed();
  if (!descr_seen || !order_seen || !shape_seen) {
    return Failure::failure(std::string("the header lacks ") + (!descr_seen   ? "descr"
                                                                : !order_seen ? "fortran_order"
                                                                              : "shape"));
  }
  return header;
}

std::string npy_header_text(const NpyHeader& header) {
  std::string descr;
  for (const NpyType& row : kNpyTypes) {
    if (header.dtype != row.dtype) continue;
    descr += row.descr[1] == '1' ? '|' : '<';
    descr += row.descr;
  }
  if (descr.empty()) return "";
  std::string shape = "(";
  for (std::size_t d = 0; d < header.shape.size(); ++d) {
    if (d > 0) shape += ", ";
    shape += std::to_string(header.shape[d]);
  }
  shape += header.shape.size() == 1 ? ",)" : ")";
  return "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }";
}

}  // namespace attn::files
