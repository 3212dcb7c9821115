// Cells: what is measured. One list of problems with how their inputs are filled; a cell with an
// option on names the plain cell whose speed it is held against.
#pragma once

#include <attn/attn.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace attn::bench {

struct Cell {
  std::string name;   // "option/softcap/bf16/fwd"; unique
  std::string suite;  // plain, options, decode
  Pass pass = Pass::forward;
  Problem problem;

  // How the tensors are filled beyond hashed normal numbers.
  std::int64_t documents = 0;         // kv_begin (and kv_end where on): so many equal documents
  std::vector<std::int64_t> lengths;  // len_* or cu_len_* of each batch entry; empty = the largest
  double softcap = 0.0;
  double dropout_p = 0.0;
  bool heads_first = false;  // memory [b, h, n, d] instead of [b, n, h, d]
  // So many calls on tensors of their own, as of a model's layers, are one measurement.
  std::int64_t layers = 1;

  std::string option;  // what is on, in words; empty for plain cells
  // The same amount of work without the option; null for plain cells.
  std::shared_ptr<const Cell> against;
};

// Every cell of the suites for a device, in the order they are measured. Suites: see
// BenchOptions::suite. No types: f32 and bf16 on the host, bf16 on CUDA, f16 and f32 on WebGPU.
std::vector<Cell> cells(const std::string& suite, const std::vector<std::string>& dtypes,
                        const std::vector<std::string>& passes, Device device);
// A cell for any problem text of parse_problem(); `decode` for the decode pass.
Cell custom_cell(const std::string& text, Pass pass);

// The cell with lengths, and what is counted in keys, divided; its name says by how much.
Cell divided(Cell cell, std::int64_t by);

const char* pass_name(Pass pass);  // "fwd", "bwd", "decode"

}  // namespace attn::bench
