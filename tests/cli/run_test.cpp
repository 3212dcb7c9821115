// attn run on real input, in every layout and file format.
#include <cmath>
#include <fstream>

#include "command.hpp"
#include "files/npy.hpp"

namespace attn::cli::test {
namespace {

const std::string kMinilm = std::string("--input ") + ATTN_MINILM_FILE + " --layout bhsd";

TEST_F(Cli, MinilmLayerMatchesItsFloat64Results) {
  const auto report =
      expect_checked("run " + kMinilm + " --backward --output " + path("out.safetensors"));
  EXPECT_EQ(report["checks"].size(), 10u);  // o, lse, dq, dk, dv against reference and file
  for (const auto& check : report["checks"]) {
    EXPECT_LE(check["relative_error"].get<double>(), 2e-6) << check.dump();
  }
  ASSERT_EQ(report["passes"].size(), 2u);
  for (const auto& pass : report["passes"]) {
    EXPECT_GT(pass["seconds"].get<double>(), 0.0);
    EXPECT_GT(pass["gflops"].get<double>(), 0.0);
    EXPECT_NE(pass["kernel"], "");
  }
  EXPECT_EQ(report["unused"].size(), 0u);
  const auto written = files::SafetensorsFile::read(path("out.safetensors"));
  ASSERT_TRUE(written) << written.error();
  EXPECT_EQ(files::describe(*written->find("dk")), "F32[2, 12, 256, 32]");
  EXPECT_EQ(files::describe(*written->find("lse")), "F32[2, 12, 256]");
  EXPECT_EQ(written->metadata().count("problem"), 1u);
}

TEST_F(Cli, RowsPastTheLengthsAreEmptyRows) {
  const std::string out = path("out.safetensors");
  run_json("run " + kMinilm + " --backward --output " + out);
  const auto lengths = values_of(ATTN_MINILM_FILE, "lengths");
  const auto o = values_of(out, "o");
  const auto lse = values_of(out, "lse");
  const auto dk = values_of(out, "dk");
  std::size_t padding = 0;
  for (std::size_t row = 0; row < lse.size(); ++row) {
    if (static_cast<double>(row % 256) < lengths[row / (12 * 256)]) continue;
    ++padding;
    EXPECT_EQ(lse[row], -INFINITY);
    for (std::size_t d = 0; d < 32; ++d) {
      EXPECT_EQ(o[row * 32 + d], 0.0);
      EXPECT_EQ(dk[row * 32 + d], 0.0);
    }
  }
  EXPECT_GT(padding, 0u);
}

TEST_F(Cli, ReferenceBackendAndTextReport) {
  const Result result = run("run " + kMinilm + " --backend reference --check");
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  for (const char* word : {"problem   batch=2 heads_q=12", "forward   reference", "GFLOP/s",
                           "extra memory", "check     o     ok against file"}) {
    EXPECT_NE(result.out.find(word), std::string::npos) << word << "\n" << result.out;
  }
}

TEST_F(Cli, WrongExpectationEndsWithOne) {
  TensorFile tensors;
  tensors.attention(1, 4, 4, 2, 2, 8).random("o", {1, 4, 2, 8});
  const std::string file = tensors.save(path("in.safetensors"));
  const Result text = run("run --input " + file + " --check");
  EXPECT_EQ(text.code, 1) << text.out << text.err;
  EXPECT_NE(text.out.find("FAILED against file"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("ok against reference"), std::string::npos) << text.out;
  const Result json = run("run --input " + file + " --check --json");
  EXPECT_EQ(json.code, 1);
  EXPECT_EQ(nlohmann::json::parse(json.out)["passed"], false);
  EXPECT_EQ(run("run --input " + file + " --check --ignore o").code, 0);
}

TEST_F(Cli, ExpectedTensorOfAnotherShapeFails) {
  TensorFile tensors;
  tensors.attention(1, 4, 4, 2, 2, 8).random("o", {1, 4, 2, 7});
  const Result result = run("run --check --input " + tensors.save(path("in.safetensors")));
  EXPECT_EQ(result.code, 1);
  EXPECT_NE(result.out.find("written F32[1, 4, 2, 8], expected F32[1, 4, 2, 7]"), std::string::npos)
      << result.out;
}

TEST_F(Cli, NpyFilesGiveTheSameBits) {
  TensorFile tensors;
  tensors.attention(2, 5, 7, 4, 2, 16);
  std::string flags;
  for (const char* name : {"q", "k", "v"}) {
    const std::string file = path(std::string(name) + ".npy");
    ASSERT_EQ(files::write_npy(file, tensors[name]), "");
    flags += std::string(" --") + name + " " + file;
  }
  std::filesystem::create_directory(path("out"));
  run_json("run --causal" + flags + " --output " + path("out"));
  run_json("run --causal --input " + tensors.save(path("in.safetensors")) + " --output " +
           path("out.safetensors"));
  const auto o = files::NpyFile::read(path("out/o.npy"));
  ASSERT_TRUE(o) << o.error();
  EXPECT_EQ(values_of(o->tensor()), values_of(path("out.safetensors"), "o"));
}

TEST_F(Cli, LayoutsAgree) {
  TensorFile tensors;
  tensors.attention(1, 1, 6, 3, 3, 8);  // one query: o has the same bytes in both
  TensorFile swapped;
  for (const char* name : {"q", "do"}) {
    swapped.add(name, {1, 3, 1, 8}, values_of(tensors[name]), "F32");
  }
  for (const char* name : {"k", "v"}) {
    const auto in = values_of(tensors[name]);
    std::vector<double> out(in.size());
    for (std::size_t j = 0; j < 6; ++j) {
      for (std::size_t h = 0; h < 3; ++h) {
        for (std::size_t d = 0; d < 8; ++d) out[(h * 6 + j) * 8 + d] = in[(j * 3 + h) * 8 + d];
      }
    }
    swapped.add(name, {1, 3, 6, 8}, out, "F32");
  }
  run_json("run --input " + tensors.save(path("a.safetensors")) + " --output " +
           path("oa.safetensors"));
  run_json("run --layout bhsd --input " + swapped.save(path("b.safetensors")) + " --output " +
           path("ob.safetensors"));
  EXPECT_EQ(values_of(path("oa.safetensors"), "o"), values_of(path("ob.safetensors"), "o"));
}

TEST_F(Cli, PackedSequencesAreSequencesOnTheirOwn) {
  TensorFile packed;
  packed.random("q", {9, 2, 8})
      .random("k", {9, 2, 8})
      .random("v", {9, 2, 8})
      .random("do", {9, 2, 8});
  expect_checked(
      "run --layout packed --cu-len-q 0,5,9 --cu-len-kv 0,5,9 --causal --backward --input " +
      packed.save(path("packed.safetensors")) + " --output " + path("out.safetensors"));
  TensorFile first;
  for (const char* name : {"q", "k", "v"}) {
    auto values = values_of(packed[name]);
    values.resize(5 * 2 * 8);
    first.add(name, {1, 5, 2, 8}, values, "F32");
  }
  run_json("run --causal --input " + first.save(path("first.safetensors")) + " --output " +
           path("alone.safetensors"));
  auto together = values_of(path("out.safetensors"), "o");
  together.resize(5 * 2 * 8);
  const auto alone = values_of(path("alone.safetensors"), "o");
  for (std::size_t n = 0; n < alone.size(); ++n) EXPECT_NEAR(together[n], alone[n], 1e-6);
}

TEST_F(Cli, ConvertsTypes) {
  TensorFile tensors;
  tensors.attention(1, 6, 6, 2, 2, 16);
  const std::string file = tensors.save(path("in.safetensors"));
  for (const char* dtype : {"f64", "f32", "f16", "bf16"}) {
    const auto report = expect_checked(std::string("run --backward --dtype ") + dtype +
                                       " --input " + file + " --output " + path("out.safetensors"));
    EXPECT_EQ(values_of(path("out.safetensors"), "dq").size(), 6u * 2 * 16);
    const auto written = files::SafetensorsFile::read(path("out.safetensors"));
    ASSERT_TRUE(written) << written.error();
    EXPECT_EQ(std::string(files::file_type(files::library_type(written->find("o")->dtype))),
              written->find("o")->dtype);
    EXPECT_EQ(written->find("lse")->dtype, std::string(dtype) == "f64" ? "F64" : "F32");
  }
  std::filesystem::create_directory(path("folder"));
  expect_refused(2, "run --dtype bf16 --input " + file + " --output " + path("folder"),
                 ".npy has no type BF16, the type of o; accepted a name that ends in .safetensors");
}

TEST_F(Cli, NamesAndLeftOutTensors) {
  TensorFile tensors;
  tensors.random("x.q", {1, 4, 2, 8}).random("x.k", {1, 4, 2, 8}).random("v", {1, 4, 2, 8});
  tensors.random("bias", {1, 1, 4, 4}).random("other", {3});
  const std::string file = tensors.save(path("in.safetensors"));
  const auto report = expect_checked("run --name q=x.q --name k=x.k --ignore bias --input " + file);
  EXPECT_EQ(report["unused"], nlohmann::json::array({"other"}));
  EXPECT_EQ(report["problem"].get<std::string>().find("bias"), std::string::npos);
  expect_refused(2, "run --name q=x.q --input " + file, "has no tensor 'k'; give --name k=NAME");
  expect_refused(2, "run --name q=x.y --input " + file, "has no tensor");
  expect_refused(2, "run --name query=x.q --input " + file, "--name: found 'query'");
  expect_refused(2, "run --name q --input " + file, "--name takes NAME=TENSOR");
}

TEST_F(Cli, ProgressGoesToStderrWhenAsked) {
  TensorFile tensors;
  tensors.attention(1, 8, 8, 1, 1, 16);
  const std::string line =
      "run --backend reference --input " + tensors.save(path("in.safetensors"));
  const Result shown = run(line + " --progress");
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_EQ(shown.err.substr(0, 20), "forward on reference") << shown.err;
  EXPECT_EQ(run(line).err, "");
}

}  // namespace
}  // namespace attn::cli::test
