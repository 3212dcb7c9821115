// attn_webgpu_page FOLDER: writes what the page in this folder reads. page.json: the cases below as
// dispatches with the results that the reference gives, and kernels of the case list's calls that
// show every constant's values; page.bin: the bytes of buffers, parameters and results.
#include <algorithm>
#include <array>
#include <attn/attn.hpp>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "../case_work.hpp"
#include "../covering.hpp"
#include "../operation_work.hpp"
#include "webgpu/host/run.hpp"
#include "webgpu/host/sources.hpp"

namespace attn::webgpu::test {
namespace {

using Json = nlohmann::json;

// What every device has; kernels for more are those of other tiles.
constexpr std::uint32_t kWorkgroupBytes = 16384;

// Small, several tiles of queries and of keys each, and together every kernel and every option.
constexpr std::array kCases{
    "forward : heads_q=4 heads_kv=2 len_q=130 len_kv=97 dim_qk=64 dim_vo=64 causal lse",
    "forward softcap=2 : dtype=f16 heads_q=2 heads_kv=2 len_q=65 len_kv=97 dim_qk=128 dim_vo=128 "
    "window_left=40 window_right=7 softcap alibi sink lse",
    "forward lengths=varied dropout_p=0.25 : dtype=bf16 batch=2 heads_q=2 heads_kv=1 len_q=90 "
    "len_kv=70 dim_qk=64 dim_vo=64 layout_q=packed layout_kv=packed causal kv_begin dropout lse",
    "forward memory=padded : batch=2 len_q=33 len_kv=97 dim_qk=33 dim_vo=17 bias=hqk mask=bk lse",
    "forward dropout_p=0.25 origin_q=11 origin_kv=5 origin_heads_q=12 : dtype=f16 heads_q=2 "
    "heads_kv=1 len_q=20 len_kv=150 dim_qk=264 dim_vo=512 diagonal=explicit dropout rope=half lse",
    "decode : dtype=f16 batch=2 heads_q=4 heads_kv=2 len_q=1 len_kv=300 dim_qk=64 dim_vo=64 "
    "page_size=16 lse",
    "decode lengths=varied : dtype=bf16 batch=2 heads_q=2 heads_kv=2 len_q=3 len_kv=70 dim_qk=32 "
    "dim_vo=32 rope=half len_new=3 lengths_kv causal",
    "backward : heads_q=4 heads_kv=2 len_q=130 len_kv=97 dim_qk=64 dim_vo=64 causal",
    "backward softcap=2 : dtype=f16 heads_q=2 heads_kv=2 len_q=65 len_kv=97 dim_qk=128 "
    "dim_vo=128 softcap alibi bias=hqk sink dbias dsink dlse",
    "backward lengths=varied dropout_p=0.25 : dtype=bf16 batch=2 heads_q=2 heads_kv=1 len_q=90 "
    "len_kv=70 dim_qk=64 dim_vo=64 layout_q=packed layout_kv=packed causal kv_begin dropout "
    "accumulate",
    "backward dropout_p=0.25 origin_q=11 origin_kv=5 origin_heads_q=12 : heads_q=2 heads_kv=1 "
    "len_q=40 len_kv=70 dim_qk=512 dim_vo=264 diagonal=explicit dropout",
    "backward memory=padded : batch=2 len_q=33 len_kv=97 dim_qk=33 dim_vo=17 window_left=20 "
    "mask=bk bias=hqk dbias rope=interleaved rot_dim=16 nonfinite_zero",
};

class Writer {
 public:
  Json add_bytes(std::span<const std::byte> bytes) {
    const std::size_t at = data_.size();
    data_.insert(data_.end(), bytes.begin(), bytes.end());
    return {at, bytes.size()};
  }
  Json add_numbers(const std::vector<double>& numbers) {
    return add_bytes(std::as_bytes(std::span(numbers)));
  }

  // Its number.
  std::size_t add_kernel(const KernelSpec& spec) {
    const auto place = std::ranges::find(specs_, spec);
    if (place != specs_.end()) return static_cast<std::size_t>(place - specs_.begin());
    specs_.push_back(spec);
    Json bindings = Json::array();
    for (int n = 0; n < spec.num_bindings; ++n) {
      const bool reads = spec.bindings[static_cast<std::size_t>(n)] == Access::read;
      bindings.push_back(reads ? "read-only-storage" : "storage");
    }
    Json constants = Json::object();
    for (int n = 0; n < spec.num_constants; ++n) {
      const Constant& constant = spec.constants[static_cast<std::size_t>(n)];
      constants[constant.name] = constant.value;
    }
    kernels_.push_back({{"name", to_string(spec)},
                        {"source", spec.source},
                        {"entry", spec.entry},
                        {"bindings", bindings},
                        {"constants", constants}});
    return specs_.size() - 1;
  }
  [[nodiscard]] const std::vector<KernelSpec>& specs() const { return specs_; }

  void add(const std::string& name, const DryRun& run, const std::vector<Output>& outputs) {
    Json contents = Json::array();
    for (const auto& bytes : run.tensors()) contents.push_back(add_bytes(bytes));
    Json steps = Json::array();
    for (std::size_t n = 0; n < run.work.dispatches.size(); ++n) {
      Json bound = Json::array();
      for (const DryRun::Part& part : run.bound(n)) {
        bound.push_back({part.buffer, part.offset, part.size});
      }
      const Dispatch& dispatch = run.work.dispatches[n];
      steps.push_back(
          {{"kernel", add_kernel(dispatch.spec)}, {"bound", bound}, {"grid", dispatch.grid}});
    }
    Json results = Json::array();
    for (const Output& output : outputs) results.push_back(result_of(run, output));
    cases_.push_back({{"name", name},
                      {"sizes", run.sizes()},
                      {"tensors", contents},
                      {"parameters", add_bytes(parameters_of(run.work))},
                      {"steps", steps},
                      {"outputs", results}});
  }

  void write(const std::string& folder) const {
    Json sources = Json::array();
    for (const Source& source : kernel_sources()) sources.push_back(source.name);
    const Json page{{"workgroup_bytes", kWorkgroupBytes},
                    {"sources", sources},
                    {"kernels", kernels_},
                    {"cases", cases_}};
    std::ofstream json(folder + "/page.json");
    json << page;
    std::ofstream bin(folder + "/page.bin", std::ios::binary);
    bin.write(reinterpret_cast<const char*>(data_.data()),
              static_cast<std::streamsize>(data_.size()));
    json.close();
    bin.close();
    if (!json || !bin) throw Error(ErrorCode::internal, "can't write into " + folder);
    std::printf("%zu kernels, %zu cases, %zu KiB\n", kernels_.size(), cases_.size(),
                data_.size() / 1024);
  }

 private:
  Json result_of(const DryRun& run, const Output& output) {
    const TensorView& view = output.view;
    const auto rank = static_cast<std::ptrdiff_t>(view.rank);
    const DryRun::Part part = run.part_of(view);
    return {{"name", output.name},
            {"type", to_string(view.dtype)},
            {"buffer", part.buffer},
            {"offset", part.offset},
            {"shape", std::vector(view.shape.begin(), view.shape.begin() + rank)},
            {"strides", std::vector(view.strides.begin(), view.strides.begin() + rank)},
            {"expected", add_numbers(output.expected)},
            {"tolerances", add_numbers(output.tolerances)}};
  }

  std::vector<std::byte> data_;
  std::vector<KernelSpec> specs_;  // of kernels_
  Json kernels_ = Json::array();
  Json cases_ = Json::array();
};

void add_cases(Writer& writer, const DeviceFacts& facts) {
  for (const char* text : kCases) {
    harness::Case c = harness::parse_case(text);
    harness::set_totals(c);
    const CaseWork work(c, facts);
    writer.add(text, work.run, work.outputs(c));
  }
}

// Each in one type, which are taken in turn.
void add_operations(Writer& writer, const DeviceFacts& facts) {
  std::vector<std::vector<Operation>> all;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    all.push_back(operations(dtype, facts));
  }
  for (std::size_t n = 0; n < all[0].size(); ++n) {
    const Operation& operation = all[n % all.size()][n];
    writer.add(operation.name, operation.run, operation.outputs);
  }
}

int write_page(const std::string& folder) {
  try {
    const DeviceFacts facts = core_facts(kWorkgroupBytes);
    Writer writer;
    add_cases(writer, facts);
    add_operations(writer, facts);
    for (const DeviceFacts& on : {facts, with_subgroups(facts)}) {
      const std::vector<KernelSpec> more = covering(kernels_of_list(on), writer.specs());
      for (const KernelSpec& spec : more) writer.add_kernel(spec);
    }
    writer.write(folder);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "attn_webgpu_page: %s\n", error.what());
    return 1;
  }
}

}  // namespace
}  // namespace attn::webgpu::test

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: attn_webgpu_page FOLDER\n");
    return 2;
  }
  return attn::webgpu::test::write_page(argv[1]);
}
