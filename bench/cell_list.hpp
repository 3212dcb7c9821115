// Builders for the lists of cells; see cells.hpp.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/cells.hpp"

namespace attn::bench {

struct Shape {
  std::int64_t batch, heads_q, heads_kv, len, dim;
};

Problem problem_of(const Shape& shape, DType dtype, bool causal);
// "b1-h12-n512-d64-causal"
std::string shape_name(const Problem& problem);
// "/bf16/fwd"
std::string tail(DType dtype, Pass pass);
Cell plain_cell(const Shape& shape, DType dtype, Pass pass, bool causal);
// One query per sequence.
Cell decode_cell(const char* option, const Shape& shape, DType dtype);

// Adds option cells of one type and pass to a list.
class OptionList {
 public:
  // `suffix` is appended to the options' names.
  OptionList(DType dtype, Pass pass, std::string suffix, std::vector<Cell>& out)
      : dtype_(dtype), pass_(pass), suffix_(std::move(suffix)), out_(out) {}

  // `change` turns the option on; the cell is compared with the plain cell `against`.
  template <class Change>
  void add(const char* option, const Shape& shape, bool causal, const Shape& against,
           Change change) {
    Cell cell;
    cell.suite = "options";
    cell.pass = pass_;
    cell.option = option;
    cell.problem = problem_of(shape, dtype_, causal);
    change(cell);
    cell.name = std::string("option/") + option + suffix_ + tail(dtype_, pass_);
    cell.against =
        std::make_shared<const Cell>(plain_cell(against, dtype_, pass_, cell.problem.causal));
    out_.push_back(std::move(cell));
  }

 private:
  DType dtype_;
  Pass pass_;
  std::string suffix_;
  std::vector<Cell>& out_;
};

// The lists for a GPU (device_cells.cpp), one type and pass. WebGPU uses the same option cells.
void add_device_plain(DType dtype, Pass pass, std::vector<Cell>& out);
void add_device_options(DType dtype, Pass pass, std::vector<Cell>& out);
void add_device_decode(DType dtype, std::vector<Cell>& out);
// The suite pair (pair_cells.cpp), for any device.
void add_pair(Device device, DType dtype, Pass pass, std::vector<Cell>& out);
// The lists for WebGPU (webgpu_cells.cpp).
void add_webgpu_plain(DType dtype, Pass pass, std::vector<Cell>& out);
void add_webgpu_decode(DType dtype, std::vector<Cell>& out);

}  // namespace attn::bench
