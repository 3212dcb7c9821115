// What the plan takes and refuses, without a device; and the checks of a call's pointers.
#include "cuda/families/sm80/plan.hpp"

#include <unordered_set>

#include "core/validate.hpp"
#include "cuda/call.hpp"
#include "cuda/families/make_plan.hpp"
#include "cuda/families/sm80/heuristics.hpp"
#include "cuda/families/sm90/family.hpp"
#include "facts.hpp"
#include "fake.hpp"
#include "harness/case.hpp"

namespace attn::cuda::test {
namespace {

using namespace sm80;  // tiles and their choice

std::string reason(const char* problem, const DeviceFacts& facts = h200(),
                   Pass pass = Pass::forward) {
  const Problem parsed = parse_problem(problem);
  const core::Status status = core::validate_problem(pass, parsed);
  EXPECT_TRUE(status.ok()) << status.message;
  const core::Result<CudaPlan> plan = make_plan(pass, parsed, facts);
  EXPECT_EQ(plan.ok(), plan.reason().empty());
  return plan.reason();
}

TEST(CudaPlan, RefusesWithReasons) {
  EXPECT_EQ(reason("dtype=f8e4m3 dtype_out=bf16 len_q=8 len_kv=8"), "");
  EXPECT_EQ(reason("dtype=f8e4m3 len_q=8 len_kv=8", *typical_facts(80)), "");
  EXPECT_EQ(reason("dtype=bf16 dtype_kv=f8e4m3 len_q=100 len_kv=100"), "");
  EXPECT_EQ(reason("dtype=bf16 dtype_kv=f8e4m3 len_q=1 len_kv=64 dropout", h200(), Pass::decode),
            "");
  EXPECT_EQ(reason("dtype=bf16 dtype_kv=f8e5m2 len_q=1 len_kv=64 rope=half"), "");
  EXPECT_EQ(reason("dtype=f64 len_q=8 len_kv=8"),
            "no kernel for f64 on CUDA; f32, f16 and bf16 are supported");
  EXPECT_EQ(reason("dtype=bf16 len_q=1 len_kv=64 page_size=16 dropout", h200(), Pass::decode), "");
  DeviceFacts turing = h200();
  turing.name = "Tesla T4";
  turing.major = 7;
  turing.minor = 5;
  EXPECT_EQ(reason("dtype=f16 len_q=8 len_kv=8", turing),
            "needs compute capability 8.0 or later, cuda:0 is Tesla T4 (7.5, 132 SMs, 140.0 GiB)");
}

TEST(CudaPlan, RefusesWhatNoGridHolds) {
  EXPECT_EQ(reason("dtype=bf16 len_q=1073741823 len_kv=1073741823"), "");
  EXPECT_EQ(reason("dtype=bf16 len_q=8 len_kv=1073741824"),
            "found len_q=8 len_kv=1073741824; kernels on CUDA take lengths below 2^30");
  EXPECT_EQ(reason("dtype=bf16 batch=32767 heads_q=65536 heads_kv=65536 len_q=1 len_kv=1"), "");
  EXPECT_EQ(reason("dtype=bf16 batch=32768 heads_q=65536 heads_kv=65536 len_q=1 len_kv=1"),
            "found 2147483648 blocks of attn_decode; a grid has fewer than 2^31 of them");
  EXPECT_EQ(
      reason("dtype=bf16 batch=32768 heads_q=65536 heads_kv=1 len_q=1 len_kv=1", h200(),
             Pass::backward),
      "found 2147483648 blocks of attn_backward_preprocess; a grid has fewer than 2^31 of them");
  DeviceFacts small = h200();
  small.shared_per_block = small.shared_per_sm = 48 << 10;
  EXPECT_EQ(reason("dtype=bf16 len_q=80 len_kv=8 dim_qk=256 dim_vo=256", small),
            "no tiles fit cuda:0, NVIDIA H200 (9.0, 132 SMs, 140.0 GiB), with 49152 bytes of "
            "shared memory for a block");
}

TEST(CudaPlan, NamesItsFamily) {
  const Problem problem = parse_problem("dtype=bf16 len_q=64 len_kv=64");
  const CudaPlan plan = make_plan(Pass::forward, problem, *typical_facts(80)).value();
  EXPECT_EQ(plan.family, &sm80::family());
  EXPECT_EQ(plan.summary().family, "sm80");
  const CudaPlan hopper = make_plan(Pass::forward, problem, h200()).value();
  EXPECT_EQ(hopper.family, &sm90::family());
  EXPECT_EQ(hopper.summary().family, "sm90");
  EXPECT_EQ(hopper.summary().refusals, "");
}

// Narrow heads with a bias have tiles of sm80, which forwards take on every device. The gradient of
// a bias that many sequences share is apart.
TEST(CudaPlan, PairBiases) {
  const auto plan_of = [](const std::string& problem, Pass pass,
                          FamilyChoice choice = FamilyChoice::automatic) {
    const Problem parsed = parse_problem("dtype=bf16 heads_q=4 heads_kv=4 " + problem);
    return make_plan(pass, parsed, h200(), core::best_access(pass, parsed), choice).value();
  };
  const std::string pair = "batch=256 len_q=256 len_kv=256 bias=hqk dtype_bias=bf16 ";
  for (const char* dims : {"dim_qk=32 dim_vo=32", "dim_qk=16 dim_vo=16"}) {
    const CudaPlan forward = plan_of(pair + dims, Pass::forward);
    EXPECT_STREQ(forward.family_name, "sm80") << dims;
    EXPECT_EQ(forward.kernels[forward.main].config.get("dim_qk"), 32) << dims;
    EXPECT_STREQ(plan_of(pair + dims + " dbias", Pass::backward).family_name, "sm90") << dims;
    EXPECT_STREQ(plan_of(pair + dims, Pass::backward).family_name, "sm90") << dims;
    const CudaPlan backward = plan_of(pair + dims + " dbias", Pass::backward, FamilyChoice::sm80);
    EXPECT_EQ(backward.kernels[backward.main].config.get("dim_qk"), 32) << dims;
    EXPECT_EQ(backward.workspace.dbias_accum.bytes, 0) << dims;
  }
  const std::string few = "batch=2 len_q=256 len_kv=256 bias=bqk dim_qk=32 dim_vo=32 dbias";
  const CudaPlan summed = plan_of(few, Pass::backward, FamilyChoice::sm80);
  EXPECT_EQ(summed.workspace.dbias_accum.bytes, 2 * 256 * 256 * 4);
  EXPECT_STREQ(plan_of(pair + "dim_qk=32 dim_vo=32 softcap", Pass::forward).family_name, "sm90");
  EXPECT_STREQ(plan_of("dtype=f8e4m3 dtype_out=bf16 len_q=512 len_kv=512 bias=hqk dtype_bias=bf16 "
                       "dim_qk=32 dim_vo=32",
                       Pass::forward)
                   .family_name,
               "sm90");
}

// Such calls have Configs of their own, in every family.
TEST(CudaPlan, EntriesThatSequencesShare) {
  const auto shared_entries = [](const std::string& text, Pass pass) {
    const Problem problem = parse_problem("dtype=bf16 batch=4 dim_qk=64 dim_vo=64 " + text);
    const CudaPlan plan = make_plan(pass, problem, h200()).value();
    return plan.kernels[plan.main].config.get("shared_entries").value_or(-1);
  };
  const std::string rows = "len_q=256 len_kv=256 ";
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    EXPECT_EQ(shared_entries(rows + "bias=b/2qk", pass), 1);
    EXPECT_EQ(shared_entries(rows + "bias=qk mask=b/4k", pass), 1);
    EXPECT_EQ(shared_entries(rows + "bias=bqk mask=bk", pass), 0);
    EXPECT_EQ(shared_entries(rows, pass), 0);
  }
  EXPECT_EQ(shared_entries("len_q=1 len_kv=64 mask=b/2k", Pass::decode), 1);
  EXPECT_EQ(shared_entries("len_q=1 len_kv=64", Pass::decode), 0);
  const auto backward = [](const std::string& text, FamilyChoice choice) {
    const Problem problem = parse_problem("dtype=bf16 len_q=256 len_kv=256 dbias " + text);
    return make_plan(Pass::backward, problem, h200(), core::best_access(Pass::backward, problem),
                     choice)
        .value();
  };
  const CudaPlan summed = backward("batch=6 bias=b/3qk", FamilyChoice::sm80);
  EXPECT_EQ(summed.workspace.dbias_accum.bytes, 2 * 256 * 256 * 4);
  EXPECT_EQ(backward("batch=6 bias=b/3qk", FamilyChoice::automatic).workspace.dbias_accum.bytes, 0);
}

// What a kernel is launched with is what its Config was compiled for.
void expect_consistent(const CudaPlan& plan, const std::string& what) {
  ASSERT_GE(plan.num_kernels, 1u) << what;
  const auto main = std::find_if(plan.specs().begin(), plan.specs().end(), [](const auto& spec) {
    const std::string_view entry = spec.entry;
    return entry == "attn_forward" || entry == "attn_forward_cache" || entry == "attn_decode" ||
           entry == "attn_backward";
  });
  ASSERT_NE(main, plan.specs().end()) << what;
  EXPECT_EQ(main->threads, 32 * main->config.get("warps").value_or(0)) << what;
  const PlanSummary summary = plan.summary();
  EXPECT_EQ(summary.tile_q, main->config.get("tile_q")) << what;
  EXPECT_EQ(summary.tile_kv, main->config.get("tile_kv")) << what;
  EXPECT_EQ(summary.tasks, plan.blocks[static_cast<std::size_t>(main - plan.specs().begin())]);
}

TEST(CudaPlan, FitsEveryDeviceInEveryShape) {
  for (const DeviceFacts& facts : devices()) {
    std::size_t shapes = 0;
    for (const int dim_qk : {64, 96, 128, 192, 256}) {
      for (const int dim_vo : {64, 96, 128, 192, 256}) {
        for (const int bias_bytes : {0, 2, 4}) {
          for (const bool mask : {false, true}) {
            const Shape shape{Pass::forward, dim_qk, dim_vo, bias_bytes, mask, true, true, true};
            const auto tiles = choose_tiles(shape, facts);
            const std::string what = to_string(facts) + " " + std::to_string(dim_qk) + "x" +
                                     std::to_string(dim_vo) + " bias " +
                                     std::to_string(bias_bytes) + (mask ? " mask" : "");
            ASSERT_TRUE(tiles) << what;
            const int shared = shared_bytes_of(shape, *tiles);
            EXPECT_LE(shared, facts.shared_per_block) << what;
            EXPECT_LE(tiles->blocks * (shared + 1024), facts.shared_per_sm) << what;
            EXPECT_LE(tiles->blocks * tiles->warps * 32, facts.threads_per_sm) << what;
            // Accumulators of S and O, f32, over the threads.
            const int accumulators =
                tiles->tile_q * (tiles->tile_kv + dim_vo) / (32 * tiles->warps);
            EXPECT_LE(accumulators, 200) << what;
            EXPECT_LE((accumulators + 40) * tiles->warps * 32 * tiles->blocks,
                      facts.registers_per_sm)
                << what;
            ++shapes;
          }
        }
      }
    }
    EXPECT_EQ(shapes, 150u);
  }
}

// The same of the backward; the largest dims leave no tiles that fit the smallest shared memory.
TEST(CudaPlan, BackwardFitsDevicesInTheirShapes) {
  for (const DeviceFacts& facts : devices()) {
    int refused = 0;
    for (const int dim_qk : {64, 96, 128, 192, 256}) {
      for (const int dim_vo : {64, 96, 128, 192, 256}) {
        for (const char* options : {"", " bias=k dtype_bias=bf16", " bias=k mask=k", " mask=k"}) {
          const std::string text = "dtype=bf16 len_q=8 len_kv=8 dim_qk=" + std::to_string(dim_qk) +
                                   " dim_vo=" + std::to_string(dim_vo) + options;
          const Problem problem = parse_problem(text);
          const auto tiles = choose_tiles(shape_of(Pass::backward, problem), facts);
          if (!tiles) {
            EXPECT_NE(reason(text.c_str(), facts, Pass::backward).find("no tiles fit"),
                      std::string::npos);
            EXPECT_GT(std::max(dim_qk, dim_vo), 128) << facts.name << " " << text;
            ++refused;
            continue;
          }
          const CudaPlan plan =
              make_plan(Pass::backward, problem, facts, core::Access::tma, FamilyChoice::sm80)
                  .value();
          expect_consistent(plan, text);
          for (const KernelSpec& spec : plan.specs()) {
            EXPECT_LE(spec.shared_bytes, facts.shared_per_block) << facts.name << " " << text;
          }
        }
      }
    }
    EXPECT_LE(refused, facts.shared_per_block > 100 << 10 ? 0 : 28) << facts.name;
  }
}

// Shared memory that is all used is easily lost to one more array: these are the edges.
TEST(CudaPlan, TilesOfTheUsualShapes) {
  const auto tiles = [](const char* problem, const DeviceFacts& facts) {
    return choose_tiles(shape_of(Pass::forward, parse_problem(problem)), facts).value_or(Tiles{});
  };
  const Tiles small{128, 64, 4, 2, 2, true};
  const Tiles large{128, 64, 4, 1, 2, false};
  const Tiles largest{64, 64, 4, 1, 2, false};
  for (const DeviceFacts& facts : devices()) {
    EXPECT_EQ(tiles("dtype=bf16 dim_qk=64 dim_vo=64", facts), small) << facts.name;
    EXPECT_EQ(tiles("dtype=bf16 dim_qk=17 dim_vo=1", facts), small) << facts.name;
  }
  EXPECT_EQ(tiles("dtype=bf16 dim_qk=65 dim_vo=64", h200()), large);
  EXPECT_EQ(tiles("dtype=bf16 dim_qk=128 dim_vo=128", h200()), large);
  EXPECT_EQ(tiles("dtype=bf16 dim_qk=64 dim_vo=64 bias=hqk", h200()),
            (Tiles{128, 64, 4, 2, 2, true}));
  EXPECT_EQ(tiles("dtype=bf16 dim_qk=64 dim_vo=64 bias=hqk softcap", h200()),
            (Tiles{128, 64, 4, 2, 2, false}));
  EXPECT_EQ(tiles("dtype=bf16 dim_qk=128 dim_vo=128 mask=qk", h200()),
            (Tiles{128, 64, 4, 2, 2, false}));
  EXPECT_EQ(tiles("dtype=bf16 dim_qk=128 dim_vo=128 mask=qk bias=qk", h200()),
            (Tiles{128, 32, 4, 2, 2, false}));
  EXPECT_EQ(tiles("dtype=bf16 dim_qk=128 dim_vo=128 mask=qk alibi", h200()),
            (Tiles{64, 64, 4, 2, 2, true}));
  EXPECT_EQ(tiles("dtype=bf16 dim_qk=256 dim_vo=256", h200()), largest);
  EXPECT_EQ(tiles("dtype=bf16 dim_qk=256 dim_vo=256 bias=qk mask=qk", h200()),
            (Tiles{128, 32, 8, 2, 1, false}));
}

// The f32 kernels of sm80 take one rounded dim for q, k and v. Their tiles fit every device with
// every option.
TEST(CudaPlan, F32HasKernelsOfItsOwn) {
  const std::string options = " bias=hqk dtype_bias=f32 mask=qk softcap alibi dropout";
  for (const DeviceFacts& facts : devices()) {
    for (const int dim : {8, 64, 65, 96, 128, 129, 192, 256}) {
      for (const std::string& with : {std::string(), options}) {
        const Problem problem = parse_problem(
            "dtype=f32 len_q=80 len_kv=80 dim_qk=" + std::to_string(dim) + " dim_vo=8" + with);
        const core::Result<CudaPlan> plan =
            make_plan(Pass::forward, problem, facts, core::best_access(Pass::forward, problem),
                      FamilyChoice::sm80);
        const std::string what = facts.name + " " + to_string(problem);
        ASSERT_TRUE(plan.ok()) << what << ": " << plan.reason();
        expect_consistent(plan.value(), what);
        const KernelSpec& main = plan.value().kernels[plan.value().main];
        EXPECT_EQ(main.config.get("dim_qk"), main.config.get("dim_vo")) << what;
        EXPECT_GE(main.config.get("dim_qk"), dim) << what;
        EXPECT_LE(main.shared_bytes, facts.shared_per_block) << what;
      }
    }
  }
}

// The backward's tiles of dims above 128 fit devices with large shared memory alone.
TEST(CudaPlan, F32BackwardFitsDevicesInItsShapes) {
  const std::string options = " bias=hqk dtype_bias=f32 dbias mask=qk softcap alibi dropout";
  for (const DeviceFacts& facts : devices()) {
    for (const int dim : {8, 64, 65, 128, 192, 256}) {
      for (const std::string& with : {std::string(), options}) {
        const Problem problem =
            parse_problem("dtype=f32 dq dk dv len_q=80 len_kv=80 dim_qk=" + std::to_string(dim) +
                          " dim_vo=" + std::to_string(dim) + with);
        const core::Result<CudaPlan> plan = make_plan(Pass::backward, problem, facts);
        const std::string what = facts.name + " " + to_string(problem);
        EXPECT_TRUE(plan.ok() || (dim > 128 && facts.shared_per_sm < 164 << 10)) << what;
        if (!plan.ok()) continue;
        expect_consistent(plan.value(), what);
        EXPECT_LE(plan.value().kernels[plan.value().main].shared_bytes, facts.shared_per_block);
      }
    }
  }
}

TEST(CudaPlan, F32OfFewQueriesIsAForward) {
  const CudaPlan plan =
      make_plan(Pass::decode, parse_problem("dtype=f32 len_q=1 len_kv=640"), h200()).value();
  EXPECT_EQ(plan.summary().kernel, "cuda_forward");
}

// Pages, new rows and int8 have a kernel of their own; its tiles fit every device.
TEST(CudaPlan, F32CachesHaveAForward) {
  for (const DeviceFacts& facts : devices()) {
    for (const char* dims : {"", " dim_qk=128 dim_vo=72", " dim_qk=7 dim_vo=256"}) {
      for (const char* cache :
           {" page_size=16", " dtype_kv=i8", " dtype_kv=i8 descale_rows page_size=3",
            " page_size=16 dropout softcap alibi mask=bhqk bias=bhqk"}) {
        const std::string text = std::string("dtype=f32 len_q=3 len_kv=640") + dims + cache;
        const CudaPlan plan = make_plan(Pass::forward, parse_problem(text), facts).value();
        expect_consistent(plan, text);
        EXPECT_STREQ(plan.kernels[plan.main].entry, "attn_forward_cache") << text;
        EXPECT_LE(plan.kernels[plan.main].shared_bytes, facts.shared_per_block) << text;
      }
    }
  }
  const Problem appended = parse_problem("dtype=f32 len_q=1 len_kv=640 lengths_kv len_new=5");
  const CudaPlan plan = make_plan(Pass::decode, appended, h200()).value();
  ASSERT_EQ(plan.num_kernels, 2u);
  EXPECT_STREQ(plan.kernels[0].entry, "attn_append_rows");
  EXPECT_STREQ(plan.kernels[1].entry, "attn_forward_cache");
}

TEST(CudaPlan, PrecisionIsAConstantOfF32) {
  const auto precision = [](const char* problem) {
    const CudaPlan plan = make_plan(Pass::forward, parse_problem(problem), h200(),
                                    core::Access::tma, FamilyChoice::sm80)
                              .value();
    return plan.kernels[plan.main].config.get("precision").value_or(-1);
  };
  EXPECT_EQ(precision("dtype=f32 len_q=80 len_kv=80"), static_cast<int>(Precision::tf32x3));
  EXPECT_EQ(precision("dtype=f32 len_q=80 len_kv=80 precision=tf32"),
            static_cast<int>(Precision::tf32));
  EXPECT_EQ(precision("dtype=f32 len_q=80 len_kv=80 precision=ieee"),
            static_cast<int>(Precision::ieee));
  EXPECT_EQ(precision("dtype=bf16 len_q=80 len_kv=80 precision=ieee"),
            precision("dtype=bf16 len_q=80 len_kv=80"))
      << "one kernel";
}

// 32 rows a warp spill in the loop with a mask.
TEST(CudaPlan, BiasGradientsWithAMask) {
  const auto tile_q = [](const char* problem, const DeviceFacts& facts) {
    return choose_bias_gradient_tiles(shape_of(Pass::backward, parse_problem(problem)), facts)
        .tile_q;
  };
  const char* const plain = "dtype=bf16 dim_qk=64 dim_vo=64 bias=hqk dbias dq dk dv";
  const char* const masked = "dtype=bf16 dim_qk=64 dim_vo=64 bias=hqk mask=qk dbias dq dk dv";
  EXPECT_EQ(tile_q(plain, *typical_facts(80)), 128);
  EXPECT_EQ(tile_q(masked, *typical_facts(80)), 64);
  EXPECT_EQ(tile_q(masked, h200()), 64);
}

TEST(CudaPlan, MisfitsSayWhy) {
  const Shape shape{};
  EXPECT_EQ(misfit(shape, {128, 64, 4, 2, 2, true}, h200()), "");
  EXPECT_EQ(misfit(shape, {128, 64, 2, 2, 2, true}, h200()), "a warp has 16 or 32 queries");
  EXPECT_EQ(misfit(shape, {128, 64, 0, 2, 2, true}, h200()), "a warp has 16 or 32 queries");
  EXPECT_EQ(misfit(shape, {128, 64, 4, 1, 2, true}, h200()), "");
  EXPECT_EQ(misfit(shape, {128, 64, 4, 0, 2, true}, h200()), "the ring has at least 1 stage");
  EXPECT_EQ(misfit(shape, {128, 48, 4, 2, 2, true}, h200()), "tile_kv is a multiple of 32");
  EXPECT_EQ(misfit({Pass::forward, 96, 64}, {128, 32, 8, 2, 1, false}, h200()),
            "a tile of 32 rows of 96 is no whole number of loads of 256 threads");
  EXPECT_EQ(misfit(shape, {128, 256, 4, 4, 1, false}, h200()),
            "needs 279552 bytes of shared memory, a block has 232448");
  EXPECT_EQ(misfit(shape, {128, 64, 4, 2, 5, false}, h200()),
            "5 blocks of 50176 bytes of shared memory are not in the 233472 of an SM");
  EXPECT_EQ(misfit(shape, {128, 64, 4, 2, 4, false}, h200()),
            "needs about 168 registers of a thread, which has 128");
}

TEST(CudaPlan, SplitsSayWhyNot) {
  Shape shape{Pass::backward, 128, 128};
  Tiles tiles{.tile_q = 64,
              .tile_kv = 128,
              .warps = 8,
              .stages = 2,
              .blocks = 1,
              .chunk = 32,
              .p_ds_in_smem = true,
              .split_dk_dv = true};
  EXPECT_EQ(misfit(shape, tiles, h200()), "");
  tiles.split_s_dp = true;
  EXPECT_EQ(misfit(shape, tiles, h200()), "S and dP by different warps are of 16 queries each");
  const char* const needs = "split_dk_dv needs p_ds_in_smem, split_s_dp needs split_dk_dv";
  tiles.split_dk_dv = false;
  EXPECT_EQ(misfit(shape, tiles, h200()), needs);
  tiles.split_s_dp = false;
  tiles.split_dk_dv = true;
  shape.dim_vo = 64;
  EXPECT_EQ(misfit(shape, tiles, h200()), "dK and dV by different warps are of the same dims");
  shape = {Pass::backward, 256, 256};
  tiles.tile_kv = 64;
  tiles.chunk = 16;
  tiles.split_s_dp = true;
  EXPECT_EQ(misfit(shape, tiles, h200()), "");
  tiles.split_s_dp = false;
  tiles.tile_kv = 32;
  tiles.warps = 4;
  EXPECT_EQ(misfit(shape, tiles, h200()), "half of the warps share out 64 keys and whole 16 dims");
  tiles = {.tile_q = 64, .tile_kv = 64, .warps = 4, .stages = 2, .blocks = 1, .chunk = 32};
  shape = {Pass::backward, 64, 64};
  EXPECT_EQ(misfit(shape, tiles, h200()), "");
  tiles.split_dk_dv = true;
  EXPECT_EQ(misfit(shape, tiles, h200()), needs);
}

// Few kernels: nothing of a call but what changes code is a constant.
TEST(CudaPlan, CaseListNeedsFewConfigs) {
  for (const DeviceFacts& facts : devices()) {
    std::unordered_set<Config> configs;
    std::unordered_set<Config> configs_f32;
    int planned = 0;
    for (const harness::Case& c : harness::case_list()) {
      // Tensors that lie oddly are loaded by elements.
      const core::Access access =
          c.memory == harness::Memory::padded ? core::Access::element : core::Access::tma;
      const core::Result<CudaPlan> plan =
          make_plan(c.pass, c.problem, facts, access, FamilyChoice::sm80);
      if (!plan.ok()) continue;
      expect_consistent(plan.value(), to_string(c));
      for (const KernelSpec& spec : plan.value().specs()) {
        const bool f32 = spec.config.get("dtype") == static_cast<int>(DType::f32);
        (f32 ? configs_f32 : configs).insert(spec.config);
      }
      ++planned;
    }
    EXPECT_GE(planned, 500) << facts.name;
    EXPECT_LE(configs.size(), 490u) << facts.name;
    EXPECT_LE(configs_f32.size(), 177u) << facts.name;
    RecordProperty(std::string(facts.name) + " f32", static_cast<int>(configs_f32.size()));
    RecordProperty(facts.name, static_cast<int>(configs.size()));
  }
}

class CudaPointers : public WithFakeDriver {
 protected:
  CudaPointers() {
    Arguments& a = arguments;
    for (TensorView* view : {&a.q, &a.k, &a.v, &a.o}) {
      *view = TensorView::contiguous(reinterpret_cast<void*>(kDeviceMemory), DType::bf16,
                                     {1, 8, 2, 64});
      view->device = Device::cuda;
    }
    problem = describe(a);
    problem.lse = false;
  }
  [[nodiscard]] core::Status check() const {
    return check_pointers(fake_driver(), make_plan(Pass::forward, problem, h200()).value(),
                          arguments, 0);
  }

  Arguments arguments;
  Problem problem;
};

TEST_F(CudaPointers, AreOfTheDevice) {
  EXPECT_TRUE(check().ok()) << check().message;
  arguments.v.data = reinterpret_cast<void*>(4096);
  EXPECT_EQ(check().code, ErrorCode::invalid_argument);
  EXPECT_EQ(check().message,
            "cuda: data of v: found a pointer that CUDA doesn't know (host memory?); accepted "
            "memory of cuda:0");
  arguments.v.offset_bytes = static_cast<std::int64_t>(kDeviceMemory);
  EXPECT_TRUE(check().ok()) << "the address counts, not the base";
  arguments.workspace = reinterpret_cast<void*>(2 * kDeviceMemory);
  EXPECT_EQ(check().message,
            "cuda: data of workspace: found memory of cuda:1; accepted memory of cuda:0");
  arguments.workspace = nullptr;
  arguments.dropout_p = 0.5;
  const std::uint64_t on_host = 1;
  arguments.seed = &on_host;
  EXPECT_TRUE(check().ok()) << "not read without dropout";
  problem.dropout = true;
  EXPECT_EQ(check().code, ErrorCode::invalid_argument);
}

TEST_F(CudaPointers, OfEmptyTensorsAreNotAsked) {
  arguments.k.shape[1] = 0;
  arguments.v.shape[1] = 0;
  arguments.k.data = nullptr;
  arguments.v.data = nullptr;
  problem.len_kv = 0;
  EXPECT_TRUE(check().ok());
}

}  // namespace
}  // namespace attn::cuda::test
