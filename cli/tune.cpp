// attn tune: its flags. The tuner itself is in bench/.
#include "bench/tune.hpp"

#include <memory>
#include <stdexcept>

#include "cli/commands.hpp"
#include "cli/failure.hpp"

namespace attn::cli {
namespace {

constexpr const char* kTuneExamples = R"(
Examples:
  attn tune                                    every kernel of the benchmark's cells, in bf16
  attn tune --pass fwd --filter d128
  attn tune --problem "dtype=f16 heads_q=8 heads_kv=8 len_q=4096 len_kv=4096 dim_qk=96 dim_vo=96"
  attn tune --print-table --dry-run            prints rules for the heuristics; stores nothing
  attn tune --device host --threads 8 --problem "dtype=bf16 heads_q=8 heads_kv=8 len_q=4096 len_kv=4096 causal"
      For the CPU, with as many threads as the calls will have.

On a GPU, attn tune compiles all tiles that fit the device and leaves out those that spill too much. It compares
the results of the others with the float64 reference and times them, then times the fastest few again on more
cells. The tiles that it chooses are stored in ATTN_CACHE_DIR or the user's cache folder. Every process that uses
the device loads them, and they take precedence over the built-in rules (attn info reports this). Exit codes:
0 measured and stored, 1 some tiles gave a wrong result, 2 bad options, 3 no such device.)";

int tune(const bench::TuneOptions& options) {
  try {
    return bench::run_tune_command(options);
  } catch (const std::invalid_argument& error) {
    throw BadInput(error.what());
  }
}

}  // namespace

Command add_tune(CLI::App& root) {
  auto options = std::make_shared<bench::TuneOptions>();
  bench::TuneOptions& o = *options;
  o.cells.device = "cuda";
  CLI::App& app = *root.add_subcommand("tune", "Choose the tiles of kernels by measuring");
  app.footer(kTuneExamples);
  app.add_option("--device", o.cells.device, "default: cuda")->type_name("cuda|cuda:N|host");
  app.add_option("--threads", o.cells.threads, "of --device host (default: all)")
      ->check(thread_count())
      ->type_name("N");
  app.add_option("--suite", o.cells.suite, "which cells (default: all)")
      ->type_name("all|plain|options|decode|pair|quick");
  app.add_option("--filter", o.cells.filter, "only cells whose name contains one of these")
      ->type_name("TEXT,TEXT");
  app.add_option("--dtype", o.cells.dtypes, "types (default: bf16; host: f32 and bf16)")
      ->delimiter(',')
      ->type_name("f32,bf16,f16");
  app.add_option("--pass", o.cells.passes, "passes (default: all)")
      ->delimiter(',')
      ->type_name("fwd,bwd,decode");
  app.add_option("--problem", o.cells.problems, "for this problem instead of a suite")
      ->take_all()
      ->type_name("PROBLEM");
  app.add_option("--seconds", o.seconds, "spent on each measurement (default: 0.02; host: 0.1)")
      ->check(from_to(0.0, 86400.0))
      ->type_name("N");
  app.add_option("--cells", o.most_cells, "measured for one kernel at most (default: 3)")
      ->check(from_to(1, 1000))
      ->type_name("N");
  app.add_flag_callback("--dry-run", [&o] { o.keep = false; }, "keep nothing");
  app.add_flag("--print-table", o.print_table,
               "print the tiles as C++ for the families' heuristics");
  return [options] { return tune(*options); };
}

}  // namespace attn::cli
