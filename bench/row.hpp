// Row: one measured cell as a JSON line. The fields are those of bench/README.md.
#pragma once

#include <fstream>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>

#include "bench/cells.hpp"
#include "bench/machine.hpp"
#include "bench/rates.hpp"
#include "bench/verify.hpp"
#include "bench/work.hpp"

namespace attn::bench {

struct Measurement {
  PlanSummary plan;
  Work work;
  Error error;
  bool verified = false;
  std::int32_t threads = 1;
  double seconds = 0.0;                 // median of one call
  std::int64_t extra_bytes = 0;         // memory used in addition to the tensors
  double gflops_against = 0.0;          // of the plain cell, in the same run; 0 = none
  std::map<std::string, double> peers;  // GFLOP/s, counted the same way

  [[nodiscard]] double gflops() const { return seconds > 0 ? work.flop / seconds * 1e-9 : 0.0; }
  [[nodiscard]] double gbps() const { return seconds > 0 ? work.kv_bytes / seconds * 1e-9 : 0.0; }
};

// The speed of a cell divided by the rate of the machine that bounds it: decode by the rate of
// reading memory, other passes by the best matrix product. 0 without that rate.
double share_of_rate(const Rates& rates, const Cell& cell, const Measurement& measurement);

nlohmann::json row_of(const Machine& machine, const Rates& rates, const Cell& cell,
                      const Measurement& measurement);

// `out`, or bench/results/<device>/<backend>.jsonl if it is "auto".
std::string row_path(const std::string& out, const Machine& machine, const std::string& backend);

// A file of rows that can't be written.
class WriteError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Appends rows to a file; does nothing for an empty path. Throws WriteError.
class RowFile {
 public:
  explicit RowFile(const std::string& path);
  void append(const std::string& row);

 private:
  std::string path_;
  std::ofstream file_;
};

// The rates as a line of text; "" if none was measured.
std::string rates_line(const Rates& rates, std::int32_t threads);

// One line of the table: name, time, speed, ratios, extra memory.
std::string table_line(const Rates& rates, const Cell& cell, const Measurement& measurement);
std::string table_head();

}  // namespace attn::bench
