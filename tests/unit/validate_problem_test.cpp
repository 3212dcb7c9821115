// Every refusal of a Problem, with its message, and neighbours that are accepted.
#include <gtest/gtest.h>

#include <attn/attn.hpp>

#include "allocations.hpp"
#include "core/validate.hpp"
#include "passes.hpp"

namespace attn {
namespace {

struct Refusal {
  Pass pass;
  const char* problem;
  const char* message;
};

const Refusal kRefusals[] = {
    // types
    {kF, "dtype=i32", "forward: dtype: found i32; accepted f32, f16, bf16, f64, f8e4m3, f8e5m2"},
    {kF, "dtype=none", "forward: dtype: found none; accepted f32, f16, bf16, f64, f8e4m3, f8e5m2"},
    {kF, "dtype=f32 dtype_kv=bf16",
     "forward: dtype_kv: found bf16 with dtype=f32; accepted the type of q, f8 types with a "
     "16-bit or f8 q, or i8 with a 16-bit or f32 q"},
    {kF, "dtype=f32 dtype_kv=f8e4m3",
     "forward: dtype_kv: found f8e4m3 with dtype=f32; accepted the type of q, f8 types with a "
     "16-bit or f8 q, or i8 with a 16-bit or f32 q"},
    {kD, "dtype=f8e4m3 dtype_kv=i8",
     "decode: dtype_kv: found i8 with dtype=f8e4m3; accepted the type of q, f8 types with a 16-bit "
     "or f8 q, or i8 with a 16-bit or f32 q"},
    {kD, "dtype=i8", "decode: dtype: found i8; accepted f32, f16, bf16, f64, f8e4m3, f8e5m2"},
    {kD, "descale_rows",
     "decode: descale_rows: found dtype_kv=f32; accepted f8e4m3, f8e5m2 or i8 with it"},
    {kF, "dtype_kv=i8 descale_rows layout_kv=packed",
     "forward: descale_rows: found descale_rows with layout_kv=packed; accepted layout_kv=padded "
     "or "
     "pages"},
    {kF, "dtype=bf16 dtype_out=f16",
     "forward: dtype_out: found f16 with dtype=bf16; accepted the type of q, or f32"},
    {kF, "dtype=f8e4m3 dtype_out=f8e4m3",
     "forward: dtype_out: found f8e4m3 with dtype=f8e4m3; accepted f32, f16 or bf16 with f8 "
     "inputs"},
    {kF, "bias=qk dtype_bias=f64",
     "forward: dtype_bias: found f64 with dtype=f32; accepted f32, f16, bf16, and f64 with f64 "
     "inputs"},
    {kB, "dtype=bf16 bias=qk dtype_bias=bf16 dtype_dbias=f16",
     "backward: dtype_dbias: found f16 with a bias of bf16; accepted the bias's type, or f32"},
    {kB, "dtype=f16 dtype_grad=bf16",
     "backward: dtype_grad: found bf16 with dtype=f16; accepted the type of q, or f32"},
    // sizes
    {kF, "batch=-1", "forward: size: found batch=-1; accepted 0 to 2147483647"},
    {kF, "heads_q=0", "forward: size: found heads_q=0; accepted 1 to 2147483647"},
    {kF, "heads_kv=0", "forward: size: found heads_kv=0; accepted 1 to 2147483647"},
    {kF, "len_q=-3", "forward: size: found len_q=-3; accepted 0 to 2147483647"},
    {kF, "len_kv=2147483648", "forward: size: found len_kv=2147483648; accepted 0 to 2147483647"},
    {kF, "dim_qk=0", "forward: size: found dim_qk=0; accepted 1 to 512"},
    {kB, "dim_vo=513", "backward: size: found dim_vo=513; accepted 1 to 512"},
    {kF, "layout_q=packed total_q=-1", "forward: size: found total_q=-1; accepted 0 to 2147483647"},
    {kF, "layout_kv=packed total_kv=-1",
     "forward: size: found total_kv=-1; accepted 0 to 2147483647"},
    {kD, "page_size=-1", "decode: size: found page_size=-1; accepted 0 to 2147483647"},
    {kD, "len_new=-1", "decode: size: found len_new=-1; accepted 0 to 2147483647"},
    {kD, "split_keys=-2", "decode: size: found split_keys=-2; accepted -1 to 2147483647"},
    {kF, "heads_q=6 heads_kv=4",
     "forward: heads_q is a multiple of heads_kv: found heads_q=6 heads_kv=4; accepted a heads_kv "
     "that divides heads_q"},
    {kF, "batch=2000000000 len_q=2000000000 heads_q=2000000000",
     "forward: number of elements: found q and o of 2000000000 x 2000000000 x 2000000000 x 64; "
     "accepted at most 2^57"},
    {kF, "batch=2000000000 len_kv=2000000000",
     "forward: number of elements: found k and v of 2000000000 x 2000000000 x 1 x 64; accepted at "
     "most 2^57"},
    {kD, "batch=2000000000 lengths_kv len_new=2000000000",
     "decode: number of elements: found k_new and v_new of 2000000000 x 2000000000 x 1 x 64; "
     "accepted at most 2^57"},
    {kF, "layout_q=packed batch=2000000000 len_q=2000000000",
     "forward: number of elements: found scores' rows of 2000000000 x 2000000000 x 1 x 1; accepted "
     "at most 2^57"},
    {kF, "heads_q=2 len_q=1000000000 len_kv=1000000000 bias=hqk",
     "forward: number of elements: found bias of 1 x 2 x 1000000000 x 1000000000; accepted at most "
     "2^57"},
    {kF, "len_q=1000000000 len_kv=1000000000 mask=qk",
     "forward: number of elements: found mask of 1 x 1 x 1000000000 x 1000000000; accepted at most "
     "2^57"},
    // layouts
    {kF, "total_q=4",
     "forward: total_q is for layout_q=packed: found total_q=4; accepted 0 with layout_q=padded"},
    {kF, "total_kv=4",
     "forward: total_kv is for layout_kv=packed: found total_kv=4; accepted 0 with "
     "layout_kv=padded"},
    {kF, "layout_q=packed lengths_q",
     "forward: lengths of a packed layout: found lengths_q with layout_q=packed; accepted cu_len_q "
     "alone"},
    {kF, "layout_kv=packed lengths_kv",
     "forward: lengths of a packed layout: found lengths_kv with layout_kv=packed; accepted "
     "cu_len_kv alone"},
    {kB, "page_size=16",
     "backward: paged k and v: found page_size=16; accepted page_size=0; pages are for forward and "
     "decode"},
    {kD, "page_size=16 layout_kv=packed",
     "decode: paged k and v: found page_size with layout_kv=packed; accepted layout_kv=padded"},
    {kF, "len_new=1 lengths_kv",
     "forward: append: found len_new=1; accepted len_new=0; decode appends"},
    {kD, "len_new=1",
     "decode: append: found len_new without lengths_kv; accepted layout_kv=padded or pages, with "
     "lengths_kv"},
    {kD, "len_new=1 layout_kv=packed",
     "decode: append: found len_new with layout_kv=packed; accepted layout_kv=padded or pages, "
     "with "
     "lengths_kv"},
    {kF, "split_keys=64",
     "forward: split: found split_keys=64; accepted split_keys=0; decode splits"},
    // options
    {kF, "window_left=-1", "forward: window: found window_left=-1; accepted none, or 0 and more"},
    {kF, "window_right=-7", "forward: window: found window_right=-7; accepted none, or 0 and more"},
    {kF, "rope_tables",
     "forward: rotary embedding: found rope_tables with rope=none; accepted rope=interleaved or "
     "rope=half with it"},
    {kF, "rope_positions",
     "forward: rotary embedding: found rope_positions with rope=none; accepted rope=interleaved or "
     "rope=half with it"},
    {kF, "rot_dim=32",
     "forward: rotary embedding: found rot_dim with rope=none; accepted rope=interleaved or "
     "rope=half with it"},
    {kF, "rope=half rot_dim=7", "forward: rot_dim: found rot_dim=7; accepted even, 2 to dim_qk=64"},
    {kF, "rope=half dim_qk=33",
     "forward: rot_dim: found rot_dim=33; accepted even, 2 to dim_qk=33"},
    {kF, "rope=interleaved rot_dim=66",
     "forward: rot_dim: found rot_dim=66; accepted even, 2 to dim_qk=64"},
    {kF, "rope=interleaved rot_dim=-2",
     "forward: rot_dim: found rot_dim=-2; accepted even, 2 to dim_qk=64"},
    // gradients
    {kB, "delta dlse",
     "backward: delta: found delta with dlse; accepted one of them: delta already contains dlse"},
    {kB, "dbias", "backward: dbias: found dbias without bias; accepted bias with it"},
    {kB, "dsink", "backward: dsink: found dsink without sink; accepted sink with it"},
};

TEST(ValidateProblem, Refuses) {
  for (const Refusal& refusal : kRefusals) {
    const core::Status status =
        core::validate_problem(refusal.pass, parse_problem(refusal.problem));
    EXPECT_EQ(status.code, ErrorCode::invalid_argument) << refusal.problem;
    EXPECT_EQ(status.message, refusal.message) << refusal.problem;
  }
}

TEST(ValidateProblem, RefusesWhatNoTextCanSay) {
  const auto message = [](auto change) {
    Problem problem;
    change(problem);
    return core::validate_problem(kF, problem).message;
  };
  const std::string types = "none, f32, f16, bf16, f64, f8e4m3, f8e5m2, i32, u8, i8";
  EXPECT_EQ(message([](Problem& p) { p.dtype = static_cast<DType>(42); }),
            "forward: value of dtype: found 42; accepted " + types);
  EXPECT_EQ(message([](Problem& p) { p.dtype_kv = static_cast<DType>(-1); }),
            "forward: value of dtype_kv: found -1; accepted " + types);
  EXPECT_EQ(message([](Problem& p) { p.dtype_out = static_cast<DType>(10); }),
            "forward: value of dtype_out: found 10; accepted " + types);
  EXPECT_EQ(message([](Problem& p) { p.dtype_grad = static_cast<DType>(10); }),
            "forward: value of dtype_grad: found 10; accepted " + types);
  EXPECT_EQ(message([](Problem& p) { p.dtype_bias = static_cast<DType>(10); }),
            "forward: value of dtype_bias: found 10; accepted " + types);
  EXPECT_EQ(message([](Problem& p) { p.dtype_dbias = static_cast<DType>(10); }),
            "forward: value of dtype_dbias: found 10; accepted " + types);
  EXPECT_EQ(message([](Problem& p) { p.precision = static_cast<Precision>(3); }),
            "forward: value of precision: found 3; accepted tf32x3, tf32, ieee");
  EXPECT_EQ(message([](Problem& p) { p.layout_q = static_cast<Layout>(2); }),
            "forward: value of layout_q: found 2; accepted padded, packed");
  EXPECT_EQ(message([](Problem& p) { p.layout_kv = static_cast<Layout>(2); }),
            "forward: value of layout_kv: found 2; accepted padded, packed");
  EXPECT_EQ(message([](Problem& p) { p.diagonal = static_cast<Diagonal>(3); }),
            "forward: value of diagonal: found 3; accepted bottom_right, top_left, explicit");
  EXPECT_EQ(message([](Problem& p) { p.rope = static_cast<Rope>(3); }),
            "forward: value of rope: found 3; accepted none, interleaved, half");
  EXPECT_EQ(message([](Problem& p) { p.bias.q = true; }),
            "forward: extent: found full dimensions in bias, which is not given; accepted "
            "bias.given, or no full dimensions");
  EXPECT_EQ(message([](Problem& p) { p.mask.head = true; }),
            "forward: extent: found full dimensions in mask, which is not given; accepted "
            "mask.given, or no full dimensions");
  EXPECT_EQ(
      message([](Problem& p) { p.bias = {true, false, true, true, true, 2}; }),
      "forward: extent: found per_entry=2 in bias without a batch; accepted per_entry=1, or a "
      "full batch dimension");
  const auto groups = [](std::int64_t batch, std::int64_t per_entry) {
    Problem p;
    p.batch = batch;
    p.len_q = p.len_kv = 1;
    p.mask = {true, true, false, false, true, per_entry};
    return core::validate_problem(Pass::forward, p).message;
  };
  EXPECT_EQ(groups(6, 3), "");
  EXPECT_EQ(groups(0, 3), "");
  for (const std::int64_t per_entry : {0, -2, 4, 12}) {
    EXPECT_EQ(groups(6, per_entry),
              "forward: extent: found per_entry=" + std::to_string(per_entry) +
                  " in mask; accepted 1 and more, a divisor of batch=6");
  }
  EXPECT_EQ(core::validate_problem(static_cast<Pass>(7), Problem{}).message,
            "validate: value of pass: found 7; accepted forward, backward, decode");
}

TEST(ValidateProblem, BackwardOf8BitTypesIsUnsupported) {
  for (const char* text :
       {"dtype=f8e4m3 dtype_out=bf16", "dtype=bf16 dtype_kv=f8e5m2", "dtype=f32 dtype_kv=i8"}) {
    const core::Status status = core::validate_problem(kB, parse_problem(text));
    EXPECT_EQ(status.code, ErrorCode::unsupported) << text;
    EXPECT_TRUE(status.message.starts_with("backward: 8-bit inputs: found ")) << status.message;
    EXPECT_TRUE(status.message.ends_with("; accepted f32, f16, bf16, f64")) << status.message;
  }
}

TEST(ValidateProblem, AcceptsWithoutAllocating) {
  const std::pair<Pass, const char*> good[] = {
      {kF, ""},
      {kF, "batch=0 len_q=0 len_kv=0"},
      {kF, "dtype=f64 dtype_out=f32 bias=bhqk dtype_bias=f64"},
      {kF, "dtype=bf16 dtype_out=f32 bias=1 dtype_bias=f16"},
      {kF, "dtype=f8e4m3 dtype_kv=f8e5m2 dtype_out=bf16"},
      {kD, "dtype=bf16 dtype_kv=f8e4m3"},
      {kD, "dtype=f32 dtype_kv=i8 descale_rows page_size=16"},
      {kF, "heads_q=12 heads_kv=4 dim_qk=256 dim_vo=1 len_q=2147483647 len_kv=2147483647"},
      {kF, "layout_q=packed total_q=10 len_q=20 lengths_kv"},
      {kF, "layout_q=packed total_q=10 page_size=1 lengths_kv len_kv=7"},
      {kD, "page_size=16 len_new=4 lengths_kv split_keys=64 len_kv=64"},
      {kD, "split_keys=-1"},
      {kF, "causal window_left=0 window_right=0 diagonal=explicit"},
      {kF, "rope=half rot_dim=64 rope_tables rope_positions"},
      {kF, "delta dlse dbias dsink"},  // the forward does not look at them
      {kB, "delta bias=qk dbias sink dsink dq=off dk=off dv=off accumulate deterministic"}};
  for (const auto& [pass, text] : good) {
    const Problem problem = parse_problem(text);
    const auto before = test::allocations().count;
    const core::Status status = core::validate_problem(pass, problem);
    EXPECT_EQ(test::allocations().count, before) << text;
    EXPECT_TRUE(status.ok()) << text << ": " << status.message;
  }
}

}  // namespace
}  // namespace attn
