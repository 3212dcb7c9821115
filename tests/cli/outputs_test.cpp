// The outputs of attn run: which names are accepted, and what is left alone.
#include <fstream>
#include <iterator>

#include "command.hpp"
#include "files/npy.hpp"

namespace attn::cli::test {
namespace {

namespace fs = std::filesystem;

std::string content(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

class CliOutputs : public Cli {
 protected:
  CliOutputs() { tensors_.attention(1, 4, 4, 2, 2, 8); }
  // The line of a run on q, k, v and do.
  [[nodiscard]] std::string line() const {
    return "run --input " + tensors_.save(path("in.safetensors")) + " ";
  }
  TensorFile tensors_;
};

TEST_F(CliOutputs, OtherNamesAreRefused) {
  for (const char* name : {"q.npy", "newfolder", "out.SAFETENSORS", "newfolder/"}) {
    expect_refused(2, line() + "--output " + path(name),
                   "accepted a name that ends in .safetensors, or an existing folder");
    EXPECT_FALSE(fs::exists(path(name)));
  }
  write("kept.npy", "mine");
  expect_refused(2, line() + "--output " + path("kept.npy"), "accepted a name that ends in");
  EXPECT_EQ(content(path("kept.npy")), "mine");
}

TEST_F(CliOutputs, TypesOfNpyAreCheckedFirst) {
  fs::create_directory(path("folder"));
  expect_refused(2, line() + "--dtype bf16 --dtype-out f32 --backward --output " + path("folder"),
                 ".npy has no type BF16, the type of dq");
  EXPECT_TRUE(fs::is_empty(path("folder")));
}

TEST_F(CliOutputs, NeighboursAreLeftAlone) {
  const std::string out = path("x.safetensors");
  write("x.safetensors.part", "mine");
  fs::create_directory(path("x.safetensors.part1"));
  run_json(line() + "--output " + out);
  EXPECT_EQ(values_of(out, "o").size(), 64u);
  EXPECT_EQ(content(out + ".part"), "mine");
  EXPECT_TRUE(fs::is_directory(path("x.safetensors.part1")));
  EXPECT_FALSE(fs::exists(path("x.safetensors.part2")));
}

TEST_F(CliOutputs, TheTargetOfALinkIsWritten) {
  write("old.safetensors", "old");
  fs::create_symlink("old.safetensors", path("to_old.safetensors"));
  fs::create_symlink("to_old.safetensors", path("link.safetensors"));
  fs::create_symlink(path("new.safetensors"), path("dangling.safetensors"));
  for (const auto& [link, target] : {std::pair{"link.safetensors", "old.safetensors"},
                                     {"dangling.safetensors", "new.safetensors"}}) {
    run_json(line() + "--output " + path(link));
    EXPECT_TRUE(fs::is_symlink(path(link)));
    EXPECT_FALSE(fs::is_symlink(path(target)));
    EXPECT_EQ(values_of(path(target), "o").size(), 64u);
  }
}

TEST_F(CliOutputs, JsonOfANameThatIsNotUtf8) {
  const Result result = run(line() + "--json --output \"" + path("\xff.safetensors") + "\"");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(nlohmann::json::parse(result.out)["output"].is_string());
}

TEST_F(CliOutputs, StartsOfGradientsThatAreNotWritten) {
  ASSERT_EQ(files::write_npy(path("q.npy"), tensors_["q"]), "");
  const std::string backward = line() + "--backward --accumulate ";
  expect_refused(2, backward + "--no-dq --dq0 " + path("q.npy"), "found --dq0 in a run without dq");
  expect_refused(2, backward + "--dsink0 " + path("q.npy"),
                 "found --dsink0 in a run without dsink");
  EXPECT_EQ(run(backward + "--dq0 " + path("q.npy")).code, 0);
}

TEST_F(CliOutputs, ExpectedTensorsByFlagAreCompared) {
  ASSERT_EQ(files::write_npy(path("o.npy"), tensors_["do"]), "");
  EXPECT_EQ(run(line() + "--check --o " + path("o.npy")).code, 1);
}

TEST_F(CliOutputs, ManySequencesWithoutRows) {
  const auto npy = [&](const std::string& name) {
    std::string header =
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2147483647, 0, 4, 8), }";
    header.resize(117, ' ');
    write(name, std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(header.size() + 1) + '\0' +
                    header + '\n');
    return path(name);
  };
  const auto report = run_json("run --q " + npy("q.npy") + " --k " + npy("k.npy") + " --v " +
                               npy("v.npy") + " --layout bshd");
  EXPECT_EQ(report["passes"][0]["flop"], 0.0);
}

}  // namespace
}  // namespace attn::cli::test
