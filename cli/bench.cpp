// attn bench: its flags. The benchmark itself is in bench/.
#include <memory>

#include "bench/command.hpp"
#include "cli/commands.hpp"

namespace attn::cli {
namespace {

constexpr const char* kBenchExamples = R"(
Examples:
  attn bench --suite quick                         a few cells, in a minute
  attn bench --suite options --dtype bf16 --pass fwd
  attn bench --filter d64-causal --peer /opt/torch/bin/python --out auto
      Plain cells in turns with PyTorch; rows are appended under bench/results/.
  attn bench --problem "heads_q=8 heads_kv=8 len_q=4096 len_kv=4096 causal" --json
  attn bench --device cuda --suite plain --out auto
  attn bench --device cuda --latency --peer python3
      In a process that has done nothing else; next to PyTorch's host time.
  attn bench --device webgpu --suite plain --dtype f16 --out auto

Every cell's output is compared with the float64 reference before it is timed. Exit codes: 0 all
measured and right, 1 a result was wrong or a cell failed, 2 bad options.)";

}  // namespace

Command add_bench(CLI::App& root) {
  auto options = std::make_shared<bench::BenchOptions>();
  bench::BenchOptions& o = *options;
  CLI::App& app = *root.add_subcommand("bench", "Time cases; JSON lines out");
  app.footer(kBenchExamples);
  app.add_option("--suite", o.suite, "which cells (default: all)")
      ->type_name("all|plain|options|decode|pair|quick");
  app.add_option("--filter", o.filter, "only cells whose name contains one of these")
      ->type_name("TEXT,TEXT");
  app.add_option("--dtype", o.dtypes,
                 "types (default: f32 and bf16; CUDA: bf16; WebGPU: f16 and f32)")
      ->delimiter(',')
      ->type_name("f32,bf16,f16,f64,f8e4m3,f8e5m2");
  app.add_option("--pass", o.passes, "passes (default: all)")
      ->delimiter(',')
      ->type_name("fwd,bwd,decode");
  app.add_option("--problem", o.problems, "time this problem instead of a suite")
      ->take_all()
      ->type_name("PROBLEM");
  app.add_option("--device", o.device, "where it runs (default: where --backend works)")
      ->type_name("host|cuda|cuda:N|webgpu");
  app.add_option("--backend", o.backend, "cpu, reference, ... (default: by device)")
      ->type_name("NAME");
  app.add_option("--threads", o.threads, "default: all")->check(thread_count())->type_name("N");
  app.add_option("--divide", o.divide, "a suite's lengths by so much: to try it on something slow")
      ->check(from_to(1, 1 << 20))
      ->type_name("N");
  app.add_option("--seconds", o.seconds, "spent on each measurement (default: 0.5)")
      ->check(from_to(0.0, 86400.0))
      ->type_name("N");
  app.add_flag_callback(
      "--no-verify", [&o] { o.verify = false; }, "don't compare with the reference first");
  app.add_option("--peer", o.peer_python,
                 "a Python with torch to time in turns (A B A B), or next to --latency")
      ->type_name("PYTHON");
  app.add_flag("--latency", o.latency,
               "of a GPU: start-up, first calls, cached first calls, the host's time for a call");
  app.add_flag("--list", o.list, "print the names of the cells and stop");
  app.add_flag("--json", o.json, "JSON lines on stdout instead of a table");
  app.add_option("--out", o.out, "append JSON lines to this file; auto: under bench/results/")
      ->type_name("FILE");
  return [options] { return bench::run_bench_command(*options); };
}

}  // namespace attn::cli
