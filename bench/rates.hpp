// Rates: what this machine reaches in the same run, on as many threads as the cells, in an f32
// matrix product and in reading memory. The speed of cells on the host is divided by them.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace attn::bench {

class TorchPeer;

struct Rates {
  // GFLOP/s of an f32 matrix product by library: "openblas", "torch". Empty: not measured.
  std::map<std::string, double> gemm;
  double read_gbps = 0.0;  // of memory; 0: not measured

  // The largest of them; 0: none.
  [[nodiscard]] double best_gemm() const;
};

// Measures each rate for `seconds`, but at most 0.3 s; with 0 on small inputs. `peer` may be null.
// A rate that can't be measured (no OpenBLAS, threads or memory that the system refuses) is left
// out, and stderr has the reason.
Rates measure_rates(std::int32_t threads, double seconds, TorchPeer* peer);

}  // namespace attn::bench
