// The flags of attn run.
#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>
#include <type_traits>

#include "cli/commands.hpp"
#include "cli/run.hpp"

namespace attn::cli {
namespace {

constexpr const char* kComputed = "What is computed";
constexpr const char* kRunExamples = R"(
Examples:
  attn run --input layer.safetensors --causal --output out.safetensors
      o and lse of the tensors q, k, v [batch, len, heads, dim] in the file.
  attn run --input layer.safetensors --layout bhsd --backward --check
      Forward and backward (needs the tensor do) of [batch, heads, len, dim] tensors; compares with
      the float64 reference and with tensors o, lse, dq, dk, dv of the file.
  attn run --q q.npy --k k.npy --v v.npy --window-left 255 --window-right 0 --output folder
      From .npy files into folder/o.npy and folder/lse.npy (the folder must exist).
  attn run --input packed.safetensors --layout packed --cu-len-q 0,5,9 --cu-len-kv 0,5,9
      Two sequences of 5 and 4 rows, packed: q, k, v are [9, heads, dim].
  attn run --input cache.safetensors --decode --name q=query --name len_kv=fill
      One step against a KV cache; with block_table it is paged, with k_new, v_new it appends.
  attn run --input x.safetensors --dtype bf16 --dropout 0.1 --seed 7 --backward --json

Tensors go by the names of their flags (do for the gradient of o; lengths for len_q and len_kv,
cu_len for both cumulative ones). A tensor that is in the file is used: leave it out with --ignore.
.npy has no bf16: convert with --dtype bf16, or use .safetensors. Integers are converted to i32, and
lse, dlse, delta, slopes, sinks to f32 (f64 with f64 inputs). A list that begins with a minus is
written --sinks=-inf,0.
GFLOP/s: 2 (dim_qk + dim_vo) per visible pair forward, 6 dim_qk + 4 dim_vo backward; plain square
causal counts half the square.)";

void add_tensor_flags(CLI::App& app, RunOptions& options) {
  for (const Slot& slot : slots()) {
    const std::string& name = slot.names[0];
    std::string flag = name;
    std::replace(flag.begin(), flag.end(), '_', '-');
    app.add_option_function<std::string>(
           "--" + flag,
           [&options, name](const std::string& value) { options.input.given[name] = value; },
           slot.help)
        ->type_name(slot.listed ? "FILE|1,2,.." : "FILE")
        ->group("Tensors from .npy files");
  }
}

// All of the text, or a usage error: CLI11 would saturate what is too large.
template <class T>
T number(const char* flag, const std::string& text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc{} || result.ptr != end) {
    throw CLI::ValidationError(
        flag, (std::is_same_v<T, double> ? "no number: " : "no whole number in range: ") +
                  files::printable(text));
  }
  return value;
}

template <class T>
void add_number(CLI::App& app, const char* flag, std::optional<T>& value, const char* help,
                const char* type) {
  app.add_option_function<std::string>(
         flag, [&value, flag](const std::string& text) { value = number<T>(flag, text); }, help)
      ->type_name(type)
      ->group(kComputed);
}

void add_number_flags(CLI::App& app, RunNumbers& n) {
  add_number(app, "--scale", n.scale, "factor of q.k (default 1/sqrt(dim_qk))", "X");
  add_number(app, "--softcap", n.softcap, "score = X tanh(score / X)", "X");
  add_number(app, "--dropout", n.dropout, "probability to drop, in steps of 1/256", "P");
  add_number(app, "--seed", n.seed, "of dropout", "N");
  add_number(app, "--offset", n.offset, "of dropout", "N");
  add_number(app, "--diag", n.diag, "query i stands at key i + N (sets --diagonal explicit)", "N");
  app.add_option_function<std::vector<std::string>>(
         "--origin",
         [&n](const std::vector<std::string>& texts) {
           for (const auto& text : texts) {
             n.origin.push_back(number<std::int64_t>("--origin", text));
           }
         },
         "batch,head,q,kv[,heads_q] of this chunk in a larger problem")
      ->delimiter(',')
      ->expected(4, 5)
      ->type_name("N,..")
      ->group(kComputed);
  add_number(app, "--rope-base", n.rope_base, "base of the rotary angles", "X");
  add_number(app, "--rope-pos-offset", n.rope_pos_offset, "added to every position", "N");
}

}  // namespace

Command add_run(CLI::App& root) {
  auto options = std::make_shared<RunOptions>();
  RunOptions& o = *options;
  CLI::App& app = *root.add_subcommand("run", "Attention on tensors from files");
  app.footer(kRunExamples);

  app.add_option("-i,--input", o.input.file, "a .safetensors file with q, k, v, ...")
      ->type_name("FILE");
  app.add_option("-o,--output", o.output, "a .safetensors file, or a folder for .npy files")
      ->type_name("FILE");
  app.add_option("--name", o.input.renames, "the tensor to take for a name: q=blocks.0.q")
      ->type_name("NAME=TENSOR")
      ->take_all();
  app.add_option("--ignore", o.input.ignored, "a tensor of the file to leave out")
      ->type_name("TENSOR")
      ->take_all();
  app.add_option_function<std::string>(
         "--layout",
         [&o](const std::string& value) {
           o.input.layout_given = true;
           o.input.layout = value == "bhsd"     ? FileLayout::bhsd
                            : value == "packed" ? FileLayout::packed
                                                : FileLayout::bshd;
         },
         "dimensions of q, k, v, o in the files: [batch, len, heads, dim] (default), [batch, "
         "heads, len, dim] or [total, heads, dim]")
      ->check(CLI::IsMember({"bshd", "bhsd", "packed"}).description(""))
      ->type_name("bshd|bhsd|packed");
  app.add_option("--dtype", o.input.dtype, "convert q, k, v, do and bias on load")
      ->type_name("f32|f16|bf16|f64");

  app.add_flag("--backward", o.backward, "forward, then the gradients (needs the tensor do)");
  CLI::Option* decode =
      app.add_flag("--decode", o.decode, "attend against a KV cache, after appending k_new, v_new");
  app.add_flag("--saved-forward", o.saved_forward,
               "--backward: take o and lse from the file instead of running the forward");
  app.get_option("--backward")->excludes(decode);
  app.get_option("--saved-forward")->needs(app.get_option("--backward"));

  app.add_flag(
      "--check", o.check,
      "compare with the float64 reference and with tensors of the file named like outputs; "
      "exit code 1 on a mismatch");
  app.add_option("--tolerance", o.tolerance,
                 "of --check: largest error / largest value (default by type: 2e-6 for f32)")
      ->type_name("X");
  app.add_option("--backend", o.backend, "cpu, reference, ... (default: by device)")
      ->type_name("NAME");
  app.add_option("--device", o.device, "where it runs (default: where --backend works)")
      ->type_name("host|cuda|cuda:N|webgpu");
  app.add_option("--threads", o.threads, "of the CPU backend (default: all)")
      ->check(thread_count())
      ->type_name("N");
  app.add_option("--repeat", o.repeat, "run N times; the median time is shown")
      ->check(from_to(1, 1000000))
      ->type_name("N");
  app.add_flag("--json", o.json, "what was done as one JSON object on stdout");
  app.add_flag_callback(
      "--progress", [&o] { o.progress = ShowProgress::always; },
      "show progress on stderr even when it is no terminal");

  o.problem.add_to(app);
  add_number_flags(app, o.numbers);
  add_tensor_flags(app, o);
  return [options] { return run(*options); };
}

}  // namespace attn::cli
