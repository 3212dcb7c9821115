// Measured tiles of the CPU backend: their text, which fit, and that plans take them.
#include <gtest/gtest.h>

#include <attn/attn.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "cpu/host/plan.hpp"

namespace attn::cpu {
namespace {

constexpr Engine kEngines[] = {Engine::float_simd, Engine::bf16_dot, Engine::bf16_mmla,
                               Engine::amx_bf16};
const Problem kProblem =
    parse_problem("heads_q=2 heads_kv=2 len_q=512 len_kv=512 dim_qk=64 dim_vo=64 causal");
const Tiles kTiles{96, 24, 128, 0};

TEST(CpuTuned, TilesAsText) {
  const std::string text = "tile_rows=96 strip_rows=24 tile_kv=128 block_kv=0";
  EXPECT_EQ(to_string(kTiles), text);
  EXPECT_EQ(parse_tiles(text), kTiles);
  for (const char* bad : {"", "tile_rows=96", "tile_rows=96 strip_rows=24 tile_kv=128",
                          "tile_rows=96 strip_rows=-24 tile_kv=128 block_kv=0",
                          "tile_rows=96 strip_rows=24x tile_kv=128 block_kv=0",
                          "strip_rows=24 tile_rows=96 tile_kv=128 block_kv=0",
                          "tile_rows=96 strip_rows=24 tile_kv=128 block_kv=0 more=1"}) {
    EXPECT_EQ(parse_tiles(bad), std::nullopt) << bad;
  }
}

// Which kernel a call of few rows has on each engine: the products of tile_ops/bf16_decode.hpp take
// bf16 caches with dims that are multiples of 32. AMX leaves single rows to f32 arithmetic.
TEST(CpuDecodePlan, KernelOfEachEngine) {
  const std::string cache = "heads_kv=8 len_kv=4096 dtype=bf16 causal ";
  const std::string plain = cache + "dim_qk=128 dim_vo=128 heads_q=32 ";
  struct {
    std::string problem;
    const char* amx;
    const char* dot;
  } const cases[] = {
      {plain + "len_q=1", "cpu_forward_gemv_amx_bf16", "cpu_forward_gemv_bf16_dot"},
      {plain + "len_q=4", "cpu_forward_gemv_amx_bf16", "cpu_forward_gemv_bf16_dot"},
      {plain + "len_q=5", "cpu_forward_amx_bf16", "cpu_forward_bf16_dot"},
      {plain + "len_q=1 rope=half", "cpu_forward_gemv_amx_bf16", "cpu_forward_gemv_bf16_dot"},
      {cache + "dim_qk=288 dim_vo=256 heads_q=32 len_q=1", "cpu_forward_gemv_amx_bf16",
       "cpu_forward_gemv_bf16_dot"},
      {cache + "dim_qk=128 dim_vo=128 heads_q=8 len_q=1", "cpu_forward_gemv",
       "cpu_forward_gemv_bf16_dot"},
      {cache + "dim_qk=80 dim_vo=128 heads_q=32 len_q=1", "cpu_forward_gemv", "cpu_forward_gemv"},
      {plain + "len_q=1 dtype_kv=f8e4m3", "cpu_forward_gemv", "cpu_forward_gemv"},
  };
  for (const auto& x : cases) {
    const auto kernel = [&](Engine engine, std::int32_t threads) {
      return CpuPlan(Pass::decode, parse_problem(x.problem), threads, engine).summary().kernel;
    };
    for (const std::int32_t threads : {1, 16}) {
      EXPECT_EQ(kernel(Engine::amx_bf16, threads), x.amx) << x.problem;
      EXPECT_EQ(kernel(Engine::bf16_dot, threads), x.dot) << x.problem;
      const bool few = x.problem.find("len_q=5") == std::string::npos;
      EXPECT_EQ(kernel(Engine::float_simd, threads), few ? "cpu_forward_gemv" : "cpu_forward");
    }
  }
}

// The rules' own tiles fit, and so do all that are measured. Scratch memory is laid out for them.
TEST(CpuTuned, CandidatesFit) {
  for (const Engine engine : kEngines) {
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      Problem p = kProblem;
      if (engine != Engine::float_simd) p.dtype = DType::bf16;
      const Config rules = CpuPlan(pass, p, 1, engine).config;
      EXPECT_EQ(
          misfit(pass, engine, {rules.tile_rows, rules.strip_rows, rules.tile_kv, rules.block_kv}),
          "");
      const std::vector<Tiles> list = candidate_tiles(pass, p, engine);
      EXPECT_GE(list.size(), 10u);
      EXPECT_LE(list.size(), 80u);
      for (const Tiles& tiles : list) {
        EXPECT_EQ(misfit(pass, engine, tiles), "") << to_string(tiles);
        const CpuPlan plan(pass, p, 2, engine, tiles);
        EXPECT_TRUE(plan.tuned);
        EXPECT_EQ(plan.config.tile_kv, tiles.tile_kv);
        EXPECT_EQ(plan.config.strip_rows, tiles.strip_rows);
        EXPECT_NE(plan.summary().config.find(" tuned=1"), std::string::npos);
      }
    }
  }
}

TEST(CpuTuned, TilesThatDoNotFitArePassedOver) {
  const struct {
    Pass pass;
    Engine engine;
    Tiles tiles;
  } cases[] = {
      {Pass::forward, Engine::float_simd, {96, 24, 256, 0}},      // dropout's bytes have 128 keys
      {Pass::forward, Engine::float_simd, {96, 24, 72, 0}},       // no whole vectors
      {Pass::forward, Engine::float_simd, {96, 1, 64, 0}},        // 96 strips
      {Pass::forward, Engine::float_simd, {96, 192, 64, 0}},      // a strip of two tiles
      {Pass::forward, Engine::float_simd, {0, 0, 0, 0}},          //
      {Pass::forward, Engine::float_simd, {96, 24, 64, 64}},      // no blocks
      {Pass::forward, Engine::bf16_dot, {96, 24, 64, 0}},         // an AMX tile has 16 rows
      {Pass::forward, Engine::amx_bf16, {96, 16, 48, 0}},         // steps of depth are 32
      {Pass::forward, Engine::amx_bf16, {96, 48, 64, 0}},         // its softmax takes 32 rows
      {Pass::backward, Engine::float_simd, {384, 48, 64, 64}},    // the backward has 192 rows
      {Pass::backward, Engine::float_simd, {192, 48, 64, 96}},    // no whole tiles
      {Pass::backward, Engine::float_simd, {192, 48, 16, 2048}},  // 128 tiles of a block
      {Pass::backward, Engine::amx_bf16, {192, 48, 64, 64}},      // its strips have 32
  };
  for (const auto& [pass, engine, tiles] : cases) {
    Problem p = kProblem;
    if (engine != Engine::float_simd) p.dtype = DType::bf16;
    EXPECT_NE(misfit(pass, engine, tiles), "") << to_string(tiles);
    const CpuPlan plan(pass, p, 1, engine, tiles);
    EXPECT_FALSE(plan.tuned) << to_string(tiles);
    EXPECT_EQ(plan.summary().config, CpuPlan(pass, p, 1, engine).summary().config);
  }
}

TEST(CpuTuned, RulesForNarrowWindows) {
  const auto tiles = [](const std::string& changes) {
    const Problem p = parse_problem("len_q=4096 len_kv=4096 " + changes);
    const Config c = CpuPlan(Pass::forward, p, 1, Engine::float_simd).config;
    return Tiles{c.tile_rows, c.strip_rows, c.tile_kv, 0};
  };
  const std::string d64 = "heads_q=12 heads_kv=12 dim_qk=64 dim_vo=64 ";
  const std::string d128 = "heads_q=12 heads_kv=12 dim_qk=128 dim_vo=128 ";
  EXPECT_EQ(tiles(d64 + "causal window_left=256"), (Tiles{384, 24, 128, 0}));
  EXPECT_EQ(tiles(d64 + "window_left=256 window_right=256"), (Tiles{384, 24, 128, 0}));
  EXPECT_EQ(tiles(d128 + "causal window_left=256"), (Tiles{192, 24, 64, 0}));
  const std::int64_t keys = fuses_softmax() ? 64 : 128;
  for (const char* wide : {"", "causal", "causal window_left=1024", "window_left=256",
                           "window_left=256 window_right=257"}) {
    EXPECT_EQ(tiles(d64 + wide), (Tiles{192, 48, keys, 0})) << wide;
  }
  EXPECT_EQ(tiles("heads_q=2 heads_kv=2 dim_qk=64 dim_vo=64 causal window_left=256"),
            (Tiles{192, 24, 64, 0}));  // few tasks
}

// Without the kernel of one pass, forwards have tiles of 128 keys.
TEST(CpuTuned, KeysOfATile) {
  const auto keys = [](Pass pass, const std::string& changes) {
    const Problem p = parse_problem("len_q=512 len_kv=512 dim_qk=64 dim_vo=64 " + changes);
    return CpuPlan(pass, p, 1, Engine::float_simd).config.tile_kv;
  };
  const std::int64_t most = fuses_softmax() ? 64 : 128;
  EXPECT_EQ(keys(Pass::forward, ""), most);
  EXPECT_EQ(keys(Pass::forward, "dtype=bf16 causal alibi dropout mask=qk"), most);
  EXPECT_EQ(keys(Pass::forward, "bias=hqk"), 64);
  EXPECT_EQ(keys(Pass::forward, "causal window_left=256"), 64);
  EXPECT_EQ(keys(Pass::forward, "dtype=f64"), 64);
  EXPECT_EQ(keys(Pass::backward, ""), 64);
}

TEST(CpuTuned, TilesAreCutToTheProblem) {
  Problem p = kProblem;
  p.len_q = 40;
  p.len_kv = 70;
  const Config config =
      CpuPlan(Pass::forward, p, 1, Engine::float_simd, Tiles{768, 96, 128, 0}).config;
  EXPECT_EQ(config.tile_rows, 42);
  EXPECT_EQ(config.strip_rows, 42);
  EXPECT_EQ(config.tile_kv, 80);
}

// What tiles are measured for; the number of threads is no part of it.
TEST(CpuTuned, Keys) {
  const auto key = [](const std::string& changes, Pass pass = Pass::forward) {
    return tune_key(pass, parse_problem("heads_q=4 heads_kv=2 dim_qk=64 dim_vo=64 " + changes),
                    Engine::float_simd);
  };
  EXPECT_EQ(key("len_q=500 len_kv=500 causal window_left=200"),
            "forward engine=f32 dtype=f32 dtype_kv=f32 dim_qk=64 dim_vo=64 heads=2 rows=1024 "
            "keys=512 causal=1 window=256 bias_bytes=0 mask=0 softcap=0 alibi=0 dropout=0");
  EXPECT_EQ(key("len_q=500 len_kv=500"), key("len_q=400 len_kv=300"));
  for (const char* other :
       {"len_q=500 len_kv=600", "len_q=600 len_kv=500", "batch=2 len_q=500 len_kv=500",
        "len_q=500 len_kv=500 causal", "len_q=500 len_kv=500 window_left=9",
        "len_q=500 len_kv=500 softcap", "len_q=500 len_kv=500 dropout",
        "len_q=500 len_kv=500 dtype=f16", "len_q=500 len_kv=500 bias=hqk",
        "len_q=500 len_kv=500 mask=qk", "len_q=500 len_kv=500 alibi"}) {
    EXPECT_NE(key("len_q=500 len_kv=500"), key(other)) << other;
  }
  EXPECT_NE(key("len_q=500 len_kv=500", Pass::backward),
            key("len_q=500 len_kv=500 dq=off", Pass::backward));
}

TEST(CpuTuned, CallsUseThem) {
  ContextOptions options;
  options.backend = "cpu";
  options.threads = 1;
  Context context(options);
  const std::string rules = plan(context, Pass::forward, kProblem).config;
  const auto uses = [&](const std::string& tiles) {
    tune_use(context, Pass::forward, kProblem, tiles, Device::host);
    return plan(context, Pass::forward, kProblem).config;
  };
  const std::string tuned = uses(to_string(kTiles));
  EXPECT_NE(tuned.find("tile_rows=96 strip_rows=24 tile_kv=128"), std::string::npos) << tuned;
  EXPECT_NE(explain(context, Pass::forward, kProblem).find(" tuned=1"), std::string::npos);
  EXPECT_THROW(uses("tile_rows=96"), Error);
  EXPECT_THROW(uses("tile_rows=96 strip_rows=24 tile_kv=72 block_kv=0"), Error);
  EXPECT_EQ(uses(""), rules);
  // Few rows: dot products, no tiles.
  Problem few = kProblem;
  few.len_q = 1;
  EXPECT_THROW(static_cast<void>(tune_key(context, Pass::forward, few, Device::host)), Error);
  EXPECT_THROW(static_cast<void>(tune_candidates(context, Pass::forward, few, Device::host)),
               Error);
}

}  // namespace
}  // namespace attn::cpu
