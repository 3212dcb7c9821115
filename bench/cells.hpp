// Cells: the problems that are measured and how their inputs are filled. A cell with an option on
// names the plain cell that its speed is compared with.
#pragma once

#include <attn/attn.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace attn::bench {

// Content of a mask [queries, keys]. random: hides a quarter of the pairs. documents: hides pairs
// of different documents, which have equal lengths. causal: hides what causal hides.
enum class MaskFill { random, documents, causal };

struct Cell {
  std::string name;   // "option/softcap/bf16/fwd"; unique
  std::string suite;  // plain, options, decode, pair
  Pass pass = Pass::forward;
  Problem problem;

  // How the tensors are filled beyond hashed normal numbers.
  // Number of equal documents in kv_begin (and kv_end if on), or in the mask.
  std::int64_t documents = 0;
  MaskFill mask_fill = MaskFill::random;
  std::vector<std::int64_t> lengths;  // len_* or cu_len_* of each sequence; empty = the largest
  double softcap = 0.0;
  double dropout_p = 0.0;
  bool heads_first = false;  // memory [b, h, n, d] instead of [b, n, h, d]
  // Number of calls in one measurement, each on its own tensors, like a model's layers.
  std::int64_t layers = 1;

  std::string option;  // the option's name; empty for plain cells
  // The same amount of work without the option; null for plain cells.
  std::shared_ptr<const Cell> against;
};

// Every cell of the suites for a device, in measuring order. Suites: see
// BenchOptions::suite. Default types: f32, bf16 on the host; bf16 on CUDA; f16, f32 on WebGPU.
std::vector<Cell> cells(const std::string& suite, const std::vector<std::string>& dtypes,
                        const std::vector<std::string>& passes, Device device);
// A cell for a problem text of parse_problem(). Totals of packed tensors may be left out. Throws
// std::invalid_argument for a problem that is invalid, that has no work, or that needs tensors
// which only a caller has.
Cell custom_cell(const std::string& text, Pass pass);

// Divides the lengths and all sizes in keys by a factor, and adds the factor to the name.
Cell divided(Cell cell, std::int64_t by);

const char* pass_name(Pass pass);  // "fwd", "bwd", "decode"

}  // namespace attn::bench
