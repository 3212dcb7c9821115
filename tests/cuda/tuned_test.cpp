// Tiles that were measured: which are worth it, what is kept of them, and that plans take them.
#include "cuda/families/tuned.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "cuda/families/candidates.hpp"
#include "cuda/families/make_plan.hpp"
#include "cuda/families/sm80/plan.hpp"
#include "cuda/families/sm80/search_space.hpp"
#include "cuda/families/sm80/tiles_text.hpp"
#include "facts.hpp"
#include "folder.hpp"

namespace attn::cuda::test {
namespace {

using namespace sm80;  // tiles and their choice

const Problem kProblem =
    parse_problem("dtype=bf16 heads_q=2 heads_kv=2 len_q=512 len_kv=512 dim_qk=128 dim_vo=128");
const Tiles kTiles{128, 32, 8, 2, 1, false};

TEST(CudaTuned, TilesAsText) {
  const std::string text =
      "tile_q=128 tile_kv=32 warps=8 stages=2 blocks=1 q_in_registers=0 chunk=0 p_ds_in_smem=0 "
      "split_dk_dv=0 split_s_dp=0 "
      "kv_in_registers=0";
  EXPECT_EQ(to_string(kTiles), text);
  EXPECT_EQ(parse_tiles(text), kTiles);
  for (const char* bad : {"", "tile_q=128", "tile_q=128 tile_kv=32 warps=8 stages=2 blocks=1",
                          "tile_q=128 tile_kv=32 warps=8 stages=2 blocks=1 q_in_registers=2 "
                          "chunk=0 p_ds_in_smem=0 split_dk_dv=0 split_s_dp=0 kv_in_registers=0",
                          "tile_q=128 tile_kv=-2 warps=8 stages=2 blocks=1 q_in_registers=0 "
                          "chunk=0 p_ds_in_smem=0 split_dk_dv=0 split_s_dp=0 kv_in_registers=0",
                          "tile_q=12x tile_kv=32 warps=8 stages=2 blocks=1 q_in_registers=0 "
                          "chunk=0 p_ds_in_smem=0 split_dk_dv=0 split_s_dp=0 kv_in_registers=0",
                          "tile_kv=32 tile_q=128 warps=8 stages=2 blocks=1 q_in_registers=0 "
                          "chunk=0 p_ds_in_smem=0 split_dk_dv=0 split_s_dp=0 kv_in_registers=0"}) {
    EXPECT_EQ(parse_tiles(bad), std::nullopt) << bad;
  }
  EXPECT_EQ(parse_tiles(text + " more=1"), std::nullopt);
}

CudaPlan plan_of_sm80(const DeviceFacts& facts) {
  return make_plan(Pass::forward, kProblem, facts, core::Access::tma, FamilyChoice::sm80).value();
}

TEST(CudaTuned, PlansTakeWhatWasMeasured) {
  DeviceFacts facts = h200();
  const CudaPlan table = plan_of_sm80(facts);
  Tuned tuned("", facts.name);
  facts.tuned = &tuned;
  const Shape shape = shape_of(Pass::forward, kProblem);
  ASSERT_NE(choose_tiles(shape, facts), kTiles);
  tuned.use(to_string(shape), to_string(kTiles));
  EXPECT_EQ(choose_tiles(shape, facts), kTiles);
  const CudaPlan plan = plan_of_sm80(facts);
  EXPECT_EQ(plan.summary().tile_kv, 32);
  EXPECT_EQ(plan.kernels[0].threads, 256u);
  Problem softcap = kProblem;
  softcap.softcap = true;
  EXPECT_NE(choose_tiles(shape_of(Pass::forward, softcap), facts), kTiles) << "of another shape";
  // What does not fit (a file of another version) is passed over.
  tuned.use(to_string(shape), to_string(Tiles{128, 32, 8, 2, 9, false}));
  EXPECT_EQ(plan_of_sm80(facts).kernels[0], table.kernels[0]);
  tuned.use(to_string(shape), "");
  EXPECT_EQ(tuned.size(), 0u);
  EXPECT_EQ(plan_of_sm80(facts).kernels[0], table.kernels[0]);
}

// Tiles measured with a cache would else serve forwards of contiguous keys, which have its shape.
TEST(CudaTuned, CachesHaveNoKey) {
  const Problem f32 = parse_problem("dtype=f32 len_q=512 len_kv=512");
  EXPECT_EQ(family().tune_key(Pass::forward, f32), to_string(shape_of(Pass::forward, f32)));
  for (const char* cache : {" page_size=16", " dtype_kv=i8"}) {
    const Problem problem = parse_problem(std::string("dtype=f32 len_q=512 len_kv=512") + cache);
    EXPECT_EQ(family().tune_key(Pass::forward, problem), "") << cache;
  }
}

TEST(CudaTuned, IsKeptPerDevice) {
  const Folder folder;
  const std::string shape = to_string(shape_of(Pass::forward, kProblem));
  Tuned first(folder.path(), "NVIDIA H200");
  EXPECT_EQ(first.problem(), "");
  EXPECT_EQ(first.path(), folder.path() + "/cuda/tuned-NVIDIA_H200.txt");
  first.use(shape, to_string(kTiles));
  const core::Status stored = first.store();
  ASSERT_TRUE(stored.ok()) << stored.message;
  const Tuned second(folder.path(), "NVIDIA H200");
  EXPECT_EQ(second.problem(), "");
  EXPECT_EQ(second.find(shape), to_string(kTiles));
  EXPECT_EQ(Tuned(folder.path(), "NVIDIA A100").find(shape), std::nullopt);

  const std::string good = read_text(first.path());
  const auto problem_of = [&](const std::string& text) {
    write_text(first.path(), text);
    const Tuned read(folder.path(), "NVIDIA H200");
    EXPECT_EQ(read.size(), 0u) << text;
    EXPECT_EQ(read.problem().find(first.path() + " is not used: "), 0u) << read.problem();
    return read.problem().substr(std::min(read.problem().size(), first.path().size() + 14));
  };
  EXPECT_EQ(problem_of("junk"), "its first line is not 'attn-tuned 5'");
  EXPECT_EQ(problem_of("attn-tuned 5\ndevice=NVIDIA A100\n"), "it is not of NVIDIA H200");
  EXPECT_EQ(problem_of(good + "forward : tile_q=1\n"), "can't read 'forward : tile_q=1'");
  EXPECT_EQ(problem_of(good + "\n"), "can't read ''");
  std::filesystem::remove(first.path());
  std::filesystem::create_directory(first.path());
  const Tuned of_a_folder(folder.path(), "NVIDIA H200");
  EXPECT_NE(of_a_folder.problem().find("it is not a readable file of at most"), std::string::npos);
  EXPECT_EQ(first.store().code, ErrorCode::invalid_argument);
  write_text(folder.path() + "/file", "");
  const Tuned nowhere(folder.path() + "/file", "NVIDIA H200");
  EXPECT_EQ(nowhere.problem(), "");
  EXPECT_NE(nowhere.store().message.find("file/cuda: Not a directory"), std::string::npos)
      << nowhere.store().message;
  EXPECT_EQ(Tuned("", "NVIDIA H200").store().code, ErrorCode::invalid_argument);
}

TEST(CudaTuned, CandidatesFitTheDevice) {
  for (const DeviceFacts& facts : devices()) {
    for (const Pass pass : {Pass::forward}) {
      const Shape shape = shape_of(pass, kProblem);
      const std::vector<Tiles> list = candidate_tiles(shape, facts);
      EXPECT_GE(list.size(), 4u) << facts.name;
      EXPECT_LE(list.size(), 120u) << facts.name;
      for (const Tiles& tiles : list) EXPECT_EQ(misfit(shape, tiles, facts), "");
      const auto chosen = choose_tiles(shape, facts);
      EXPECT_NE(std::find(list.begin(), list.end(), *chosen), list.end())
          << facts.name << ": the heuristics' choice is among them: " << to_string(*chosen);
    }
  }
}

TEST(CudaTuned, CandidatesAreCompiled) {
  std::string reason;
  const Nvrtc* nvrtc = Nvrtc::get(0, reason);
  if (nvrtc == nullptr) GTEST_SKIP() << reason;
  DeviceFacts small = h200();  // few of them fit
  small.shared_per_block = 56 << 10;
  small.shared_per_sm = 57 << 10;
  small.registers_per_sm = 32768;
  Binaries binaries(Cache(""), 0, nvrtc, "");
  std::vector<TuneCandidate> candidates;
  const core::Status status =
      compile_candidates(family(), Pass::forward, kProblem, small, binaries, 0, candidates);
  ASSERT_TRUE(status.ok()) << status.message;
  ASSERT_FALSE(candidates.empty());
  bool some = false;
  for (const TuneCandidate& one : candidates) some = some || one.flaw.empty();
  EXPECT_TRUE(some) << candidates[0].flaw;
  // Where nothing can be compiled, that is the answer.
  Binaries none(Cache(""), 0, nullptr, "no NVRTC");
  candidates.clear();
  EXPECT_EQ(compile_candidates(family(), Pass::forward, kProblem, small, none, 0, candidates).code,
            ErrorCode::unsupported);
}

}  // namespace
}  // namespace attn::cuda::test
