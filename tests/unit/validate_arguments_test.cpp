// Every refusal of a call's tensors and numbers, with its message; and calls that are accepted.
#include <gtest/gtest.h>

#include <attn/attn.hpp>
#include <cmath>
#include <limits>

#include "allocations.hpp"
#include "call.hpp"
#include "core/validate.hpp"
#include "passes.hpp"

namespace attn {
namespace {

using test::CallMemory;
using test::make_call;

constexpr const char* kSmall = "batch=2 heads_q=4 heads_kv=2 len_q=3 len_kv=5 dim_qk=8 dim_vo=6";

template <class Change>
core::Status after(Pass pass, const std::string& words, Change change) {
  const Problem problem = parse_problem(std::string(kSmall) + " " + words);
  CallMemory call = make_call(pass, problem);
  const core::Status before = core::validate(pass, problem, call.arguments);
  EXPECT_TRUE(before.ok()) << words << ": " << before.message;
  change(call.arguments);
  return core::validate(pass, problem, call.arguments);
}

template <class Change>
void refuses(const std::string& message, Pass pass, const std::string& words, Change change) {
  const core::Status status = after(pass, words, change);
  EXPECT_EQ(status.code, ErrorCode::invalid_argument) << message;
  EXPECT_EQ(status.message, message);
}

template <class Change>
void accepts(Pass pass, const std::string& words, Change change) {
  const core::Status status = after(pass, words, change);
  EXPECT_TRUE(status.ok()) << words << ": " << status.message;
}

TEST(ValidateArguments, AcceptsCallsOfEveryKindWithoutAllocating) {
  const std::pair<Pass, const char*> good[] = {
      {kF, ""},
      {kF, "lse=off causal"},
      {kF, "bias=bhqk mask=qk alibi sink kv_begin kv_end lengths_q lengths_kv softcap dropout"},
      {kF, "layout_q=packed total_q=5 layout_kv=packed total_kv=9 kv_begin rope=half"},
      {kF, "page_size=2 lengths_kv rope=half rope_positions rope_tables nonfinite_zero"},
      {kD, "page_size=2 lengths_kv len_new=2 rope=interleaved rope_positions"},
      {kD, "lengths_kv rope=interleaved rope_positions"},
      {kB, "bias=hq dbias sink dsink dlse accumulate"},
      {kB, "delta dq=off dv=off"},
      {kB, "dtype=bf16 dtype_grad=f32 bias=k dtype_bias=bf16 dbias dtype_dbias=f32"},
      {kB, "dtype=f64 alibi sink dsink"},
      {kF, "dtype=f8e4m3 dtype_out=f16"}};
  for (const auto& [pass, words] : good) {
    const Problem problem = parse_problem(std::string(kSmall) + " " + words);
    const CallMemory call = make_call(pass, problem);
    const auto before = test::allocations().count;
    const core::Status status = core::validate(pass, problem, call.arguments);
    EXPECT_EQ(test::allocations().count, before) << words;
    EXPECT_TRUE(status.ok()) << words << ": " << status.message;
  }
}

TEST(ValidateArguments, PresenceAgreesWithTheProblem) {
  const auto drop = [](TensorView Arguments::* view) {
    return [view](Arguments& a) { a.*view = TensorView{}; };
  };
  refuses("forward: q is needed: found none; accepted f32[2, 3, 4, 8]", kF, "",
          drop(&Arguments::q));
  refuses("forward: lse is needed: found none with lse; accepted f32[2, 4, 3]", kF, "",
          drop(&Arguments::lse));
  refuses("backward: lse is needed: found none with lse; accepted f32[2, 4, 3]", kB, "lse=off",
          drop(&Arguments::lse));
  refuses("backward: o is needed: found none; accepted f32[2, 3, 4, 6]", kB, "",
          drop(&Arguments::o));
  refuses(
      "forward: bias is needed: found none with bias; accepted f32[1|2 of stride 0, 4, 3, 1|5 "
      "of stride 0]",
      kF, "bias=hq", drop(&Arguments::bias));
  refuses("forward: cu_len_kv is needed: found none with layout_kv=packed; accepted i32[3]", kF,
          "layout_kv=packed total_kv=9", drop(&Arguments::cu_len_kv));
  refuses("decode: block_table is needed: found none with page_size; accepted i32[2, >=3]", kD,
          "page_size=2", drop(&Arguments::block_table));
  refuses("decode: k_new is needed: found none with len_new; accepted f32[2, 1, 2, 8]", kD,
          "len_new=1 lengths_kv", drop(&Arguments::k_new));
  refuses("forward: alibi_slopes is needed: found none with alibi; accepted f32[4] or [2, 4]", kF,
          "alibi", drop(&Arguments::alibi_slopes));
  refuses("backward: dk is needed: found none with dk; accepted f32[2, 5, 2, 8]", kB, "",
          drop(&Arguments::dk));

  // Given, but the problem does not say so.
  struct Stray {
    Pass pass;
    TensorView Arguments::* view;
    const char* name;
    const char* because;
  };
  const Stray strays[] = {{kF, &Arguments::bias, "bias", "bias"},
                          {kF, &Arguments::mask, "mask", "mask"},
                          {kF, &Arguments::alibi_slopes, "alibi_slopes", "alibi"},
                          {kF, &Arguments::sinks, "sinks", "sink"},
                          {kF, &Arguments::len_q, "len_q", "lengths_q"},
                          {kF, &Arguments::len_kv, "len_kv", "lengths_kv"},
                          {kF, &Arguments::cu_len_q, "cu_len_q", "layout_q=packed"},
                          {kF, &Arguments::cu_len_kv, "cu_len_kv", "layout_kv=packed"},
                          {kF, &Arguments::kv_begin, "kv_begin", "kv_begin"},
                          {kF, &Arguments::kv_end, "kv_end", "kv_end"},
                          {kD, &Arguments::block_table, "block_table", "page_size"},
                          {kD, &Arguments::k_new, "k_new", "len_new"},
                          {kD, &Arguments::v_new, "v_new", "len_new"},
                          {kF, &Arguments::descale_q, "descale_q", "an f8 dtype"},
                          {kF, &Arguments::descale_k, "descale_k", "an 8-bit dtype_kv"},
                          {kF, &Arguments::descale_v, "descale_v", "an 8-bit dtype_kv"},
                          {kF, &Arguments::rope_cos, "rope_cos", "rope_tables"},
                          {kF, &Arguments::rope_sin, "rope_sin", "rope_tables"},
                          {kF, &Arguments::rope_pos_q, "rope_pos_q", "rope_positions"},
                          {kF, &Arguments::rope_pos_k, "rope_pos_k", "rope_positions"},
                          {kF, &Arguments::nonfinite_count, "nonfinite_count", "nonfinite_zero"},
                          {kB, &Arguments::dlse, "dlse", "dlse"},
                          {kB, &Arguments::delta, "delta", "delta"},
                          {kB, &Arguments::dbias, "dbias", "dbias"},
                          {kB, &Arguments::dsink, "dsink", "dsink"}};
  static float value[4];
  for (const Stray& stray : strays) {
    refuses(std::string(stray.pass == kF   ? "forward: "
                        : stray.pass == kB ? "backward: "
                                           : "decode: ") +
                stray.name + " goes with " + stray.because +
                ": found f32[4] strides [1] on host without " + stray.because +
                "; accepted both or neither",
            stray.pass, "",
            [&](Arguments& a) { a.*stray.view = TensorView::contiguous(value, DType::f32, {4}); });
  }
  // A forward does not look at what belongs to the backward.
  accepts(kF, "", [&](Arguments& a) { a.dq = TensorView::contiguous(value, DType::u8, {1}); });
}

TEST(ValidateArguments, TypesAndShapes) {
  refuses("forward: type of k: found f16; accepted f32", kF, "",
          [](Arguments& a) { a.k.dtype = DType::f16; });
  refuses("forward: type of k: found 77; accepted f32", kF, "",
          [](Arguments& a) { a.k.dtype = static_cast<DType>(77); });
  refuses("forward: type of mask: found i32; accepted u8", kF, "mask=qk",
          [](Arguments& a) { a.mask.dtype = DType::i32; });
  refuses("forward: type of len_q: found f32; accepted i32", kF, "lengths_q",
          [](Arguments& a) { a.len_q.dtype = DType::f32; });
  refuses("forward: type of lse: found f32; accepted f64", kF, "dtype=f64",
          [](Arguments& a) { a.lse.dtype = DType::f32; });
  refuses("backward: type of dout: found f32; accepted bf16", kB, "dtype=bf16",
          [](Arguments& a) { a.dout.dtype = DType::f32; });
  refuses("forward: rank of q: found 5; accepted 0 to 4", kF, "",
          [](Arguments& a) { a.q.rank = 5; });
  refuses("forward: rank of q: found -1; accepted 0 to 4", kF, "",
          [](Arguments& a) { a.q.rank = -1; });
  refuses(
      "forward: shape of q: found f32[2, 3, 4] strides [96, 32, 8] on host; accepted [2, 3, 4, "
      "8]",
      kF, "", [](Arguments& a) { a.q.rank = 3; });
  refuses(
      "forward: shape of v: found f32[2, 5, 2, 5] strides [60, 12, 6, 1] on host; accepted [2, "
      "5, 2, 6]",
      kF, "", [](Arguments& a) { a.v.shape[3] = 5; });
  refuses("decode: shape of block_table: found i32[2, 2] strides [3, 1] on host; accepted [2, >=3]",
          kD, "page_size=2", [](Arguments& a) { a.block_table.shape[1] = 2; });
  refuses("forward: shape of kv_end: found i32[3, 3] strides [3, 1] on host; accepted [1|2, 3]", kF,
          "kv_end", [](Arguments& a) { a.kv_end.shape[0] = 3; });
  refuses(
      "decode: shape of k: found f32[-1, 2, 2, 8] strides [32, 16, 8, 1] on host; accepted "
      "[any, 2, 2, 8]",
      kD, "page_size=2", [](Arguments& a) { a.k.shape[0] = -1; });
  accepts(kF, "kv_end", [](Arguments& a) { a.kv_end.shape[0] = 1; });
  accepts(kF, "kv_end", [](Arguments& a) { a.kv_end.strides[0] = 0; });
  accepts(kF, "alibi", [](Arguments& a) {
    a.alibi_slopes.rank = 1;
    a.alibi_slopes.shape[0] = 4;
    a.alibi_slopes.strides[0] = 1;
  });
  refuses(
      "forward: shape of rope_sin: found f32[1, 4] strides [4, 1] on host; accepted as many "
      "positions as rope_cos",
      kF, "rope=half rope_tables", [](Arguments& a) { a.rope_cos.shape[0] = 2; });
}

TEST(ValidateArguments, ExtentsOfBiasAndMask) {
  const auto expanded = [](Arguments& a) {
    a.bias.shape[0] = 2;
    a.bias.strides[0] = 0;
  };
  accepts(kF, "bias=hqk", expanded);
  refuses(
      "forward: shape of bias: found f32[2, 4, 3, 5] strides [0, 15, 5, 1] on host; accepted "
      "[2, 4, 3, 5]",
      kF, "bias=bhqk", expanded);
  refuses(
      "forward: shape of bias: found f32[2, 4, 3, 5] strides [15, 15, 5, 1] on host; accepted "
      "[1|2 of stride 0, 4, 3, 5]",
      kF, "bias=hqk", [](Arguments& a) {
        a.bias.shape[0] = 2;
        a.bias.strides[0] = 15;
      });
  accepts(kF, "mask=q", [](Arguments& a) {
    a.mask.shape[3] = 5;
    a.mask.strides[3] = 0;
  });
  refuses(
      "backward: shape of dbias: found f32[2, 4, 3, 5] strides [0, 15, 5, 1] on host; accepted "
      "[1, 4, 3, 5]",
      kB, "bias=hqk dbias", [](Arguments& a) {
        a.dbias.shape[0] = 2;
        a.dbias.strides[0] = 0;
      });
}

TEST(ValidateArguments, Strides) {
  refuses(
      "forward: strides of k: found f32[2, 5, 2, 8] strides [80, -16, 8, 1] on host; accepted "
      "strides of 0 and more",
      kF, "", [](Arguments& a) { a.k.strides[1] = -16; });
  refuses(
      "forward: last dimension of q: found f32[2, 3, 4, 8] strides [96, 32, 8, 2] on host; "
      "accepted a contiguous last dimension, of stride 1",
      kF, "", [](Arguments& a) { a.q.strides[3] = 2; });
  refuses(
      "forward: last dimension of q: found f32[2, 3, 4, 8] strides [96, 32, 8, 0] on host; "
      "accepted a contiguous last dimension, of stride 1",
      kF, "", [](Arguments& a) { a.q.strides[3] = 0; });
  refuses(
      "forward: strides of o: found f32[2, 3, 4, 6] strides [72, 0, 6, 1] on host with elements "
      "that overlap; accepted strides that keep the elements of an output apart",
      kF, "", [](Arguments& a) { a.o.strides[1] = 0; });
  refuses(
      "forward: strides of o: found f32[2, 3, 4, 6] strides [72, 24, 5, 1] on host with "
      "elements that overlap; accepted strides that keep the elements of an output apart",
      kF, "", [](Arguments& a) { a.o.strides[2] = 5; });
  refuses(
      "decode: strides of k: found f32[2, 5, 2, 8] strides [0, 16, 8, 1] on host with elements "
      "that overlap; accepted strides that keep the elements of an output apart",
      kD, "len_new=1 lengths_kv", [](Arguments& a) { a.k.strides[0] = 0; });
  refuses(
      "forward: extent of k: found f32[2, 5, 2, 8] strides [9223372036854775807, 16, 8, 1] on "
      "host; accepted at most 2^60 bytes",
      kF, "", [](Arguments& a) { a.k.strides[0] = std::numeric_limits<std::int64_t>::max(); });
  accepts(kD, "lengths_kv", [](Arguments& a) { a.k.strides[0] = a.k.strides[2] = 0; });
  accepts(kF, "", [](Arguments& a) {  // sliced, of heads before rows, and irrelevant strides
    a.o.shape = {2, 3, 4, 6};
    a.o.strides = {72, 6, 18, 1};
  });
}

TEST(ValidateArguments, Memory) {
  refuses(
      "forward: pointer of v: found null with f32[2, 5, 2, 6] strides [60, 12, 6, 1] on host; "
      "accepted memory for a tensor that is not empty",
      kF, "", [](Arguments& a) { a.v.data = nullptr; });
  refuses("forward: offset_bytes of v: found -4; accepted 0 and more", kF, "",
          [](Arguments& a) { a.v.offset_bytes = -4; });
  refuses("forward: alignment of v: found 0x1002; accepted a multiple of 4 bytes", kF, "",
          [](Arguments& a) { a.v.data = reinterpret_cast<void*>(0x1002); });
  refuses("forward: device of k: found 9; accepted host, cuda, webgpu", kF, "",
          [](Arguments& a) { a.k.device = static_cast<Device>(9); });
  refuses("forward: device of k: found cuda:0; accepted host, where q is", kF, "",
          [](Arguments& a) { a.k.device = Device::cuda; });
  refuses("forward: device of k: found cuda:2; accepted cuda:1, where q is", kF, "",
          [](Arguments& a) {
            for (TensorView* view : {&a.q, &a.k, &a.v, &a.o, &a.lse}) {
              view->device = Device::cuda;
              view->ordinal = 1;
            }
            a.k.ordinal = 2;
          });
  refuses(
      "forward: stream: found a stream with host tensors; accepted none: host work runs on the "
      "calling thread",
      kF, "", [](Arguments& a) { a.stream = nullptr; });
  // An empty tensor needs no memory.
  const Problem empty = parse_problem("batch=2 len_q=3 len_kv=0");
  CallMemory call = make_call(kF, empty);
  call.arguments.k.data = call.arguments.v.data = nullptr;
  EXPECT_TRUE(core::validate(kF, empty, call.arguments).ok());
}

TEST(ValidateArguments, Numbers) {
  const double nan = std::nan("");
  const double inf = std::numeric_limits<double>::infinity();
  refuses("forward: scale: found nan; accepted a finite number", kF, "",
          [&](Arguments& a) { a.scale = nan; });
  refuses("forward: scale: found -inf; accepted a finite number", kF, "",
          [&](Arguments& a) { a.scale = -inf; });
  accepts(kF, "", [](Arguments& a) { a.scale = -3.0; });
  accepts(kF, "", [](Arguments& a) { a.scale = 0.0; });
  refuses("forward: softcap: found -1.000000; accepted a finite number, 0 or more", kF, "softcap",
          [](Arguments& a) { a.softcap = -1.0; });
  refuses("forward: softcap: found nan; accepted a finite number, 0 or more", kF, "softcap",
          [&](Arguments& a) { a.softcap = nan; });
  refuses("forward: softcap: found inf; accepted a finite number, 0 or more", kF, "softcap",
          [&](Arguments& a) { a.softcap = inf; });
  refuses(
      "forward: softcap goes with Problem::softcap: found 0.000000 with the switch on; accepted "
      "more than 0",
      kF, "softcap", [](Arguments& a) { a.softcap = 0.0; });
  refuses("forward: softcap goes with Problem::softcap: found 5.000000 with it off; accepted 0", kF,
          "", [](Arguments& a) { a.softcap = 5.0; });
  refuses("forward: dropout_p: found 1.000000; accepted 0 to less than 1", kF, "dropout",
          [](Arguments& a) { a.dropout_p = 1.0; });
  refuses("forward: dropout_p: found -0.500000; accepted 0 to less than 1", kF, "dropout",
          [](Arguments& a) { a.dropout_p = -0.5; });
  refuses("forward: dropout_p: found nan; accepted 0 to less than 1", kF, "dropout",
          [&](Arguments& a) { a.dropout_p = nan; });
  refuses(
      "forward: dropout_p: found 0.001000; accepted 0, or at least 1/512: p is taken in steps "
      "of 1/256",
      kF, "dropout", [](Arguments& a) { a.dropout_p = 0.001; });
  refuses(
      "forward: dropout_p goes with Problem::dropout: found 0.500000 with the switch off; "
      "accepted 0",
      kF, "", [](Arguments& a) { a.dropout_p = 0.5; });
  accepts(kF, "dropout", [](Arguments& a) { a.dropout_p = 1.0 / 512.0; });
  accepts(kF, "dropout", [](Arguments& a) { a.dropout_p = 0.0; });
  refuses("forward: rope_base: found 0.000000; accepted a finite number above 0", kF, "rope=half",
          [](Arguments& a) { a.rope_base = 0.0; });
  refuses("forward: rope_pos_offset: found 9007199254740993; accepted -2^53 to 2^53", kF,
          "rope=half", [](Arguments& a) { a.rope_pos_offset = (std::int64_t{1} << 53) + 1; });
}

TEST(ValidateArguments, Placement) {
  refuses(
      "forward: diag goes with Problem::diagonal: found diag=3; accepted none, or "
      "diagonal=explicit",
      kF, "causal", [](Arguments& a) { a.diag = 3; });
  accepts(kF, "diagonal=explicit", [](Arguments& a) { a.diag = -(std::int64_t{1} << 62); });
  accepts(kF, "diagonal=explicit", [](Arguments& a) { a.origin = {1, 4, 100, 200, 8}; });
  refuses("forward: diag: found diag=4611686018427387905; accepted -2^62 to 2^62", kF,
          "diagonal=explicit", [](Arguments& a) { a.diag = (std::int64_t{1} << 62) + 1; });
  refuses("forward: diag: found diag=4611686018427387904; accepted -2^53 to 2^53 with rope", kF,
          "diagonal=explicit rope=half", [](Arguments& a) { a.diag = std::int64_t{1} << 62; });
  refuses("forward: origin: found origin.q=-1; accepted 0 to 2147483647", kF, "",
          [](Arguments& a) { a.origin.q = -1; });
  refuses(
      "forward: origin: found origin.heads_q=6 with origin.head=4; accepted 0, or at least "
      "origin.head + heads_q = 8",
      kF, "", [](Arguments& a) { a.origin = {0, 4, 0, 0, 6}; });
}

TEST(ValidateArguments, Workspace) {
  refuses("forward: workspace_size: found -1; accepted 0 and more", kF, "",
          [](Arguments& a) { a.workspace_size = -1; });
  refuses(
      "forward: workspace: found null with workspace_size=64; accepted memory, or a size of 0 "
      "for the Context's pool",
      kF, "", [](Arguments& a) { a.workspace_size = 64; });
  alignas(64) static char memory[256];
  refuses(
      "forward: workspace: found an address that leaves 8 when divided by 64; accepted 64-byte "
      "alignment",
      kF, "", [](Arguments& a) {
        a.workspace = memory + 8;
        a.workspace_size = 64;
      });
  refuses(
      "forward: aliases: found workspace, which is written, over memory of q; accepted outputs "
      "in memory of their own",
      kF, "", [](Arguments& a) {
        a.q.data = memory + 64;
        a.q.strides = {0, 0, 0, 1};
        a.workspace = memory;
        a.workspace_size = 128;
      });
}

TEST(ValidateArguments, Aliases) {
  refuses(
      "forward: aliases: found o, which is written, over memory of v; accepted outputs in "
      "memory of their own",
      kF, "dim_vo=8", [](Arguments& a) { a.v.data = a.o.data; });
  refuses(
      "backward: aliases: found dq, which is written, over memory of q; accepted outputs in "
      "memory of their own",
      kB, "", [](Arguments& a) { a.dq.data = a.q.data; });
  refuses(
      "backward: aliases: found dk, which is written, over memory of dv; accepted outputs in "
      "memory of their own",
      kB, "", [](Arguments& a) { a.dv.data = static_cast<char*>(a.dk.data) + 4; });
  refuses(
      "decode: aliases: found k, which is written, over memory of v; accepted outputs in memory "
      "of their own",
      kD, "len_new=1 lengths_kv dim_vo=8", [](Arguments& a) { a.v.data = a.k.data; });
  // Inputs may share memory: v as a slice of k.
  accepts(kF, "", [](Arguments& a) {
    a.v.data = a.k.data;
    a.v.strides = a.k.strides;
  });
}

// q, k, v in one buffer [b, n, 3, h, d], and their gradients in another.
TEST(ValidateArguments, AcceptsFusedTensors) {
  const Problem problem =
      parse_problem("batch=2 heads_q=4 heads_kv=4 len_q=5 len_kv=5 dim_qk=8 dim_vo=8");
  for (const bool per_head : {false, true}) {  // [b, n, 3, h, d] or [b, n, h, 3, d]
    CallMemory call = make_call(kB, problem);
    const auto fuse = [&](TensorView& x, TensorView& y, TensorView& z) {
      const TensorView whole = call.tensor(DType::f32, {2, 5, 12, 8});
      std::int64_t part = 0;
      for (TensorView* view : {&x, &y, &z}) {
        *view = whole;
        view->shape[2] = 4;
        view->strides[2] = per_head ? 24 : 8;
        view->offset_bytes = part++ * (per_head ? 8 : 32) * 4;
      }
    };
    fuse(call.arguments.q, call.arguments.k, call.arguments.v);
    fuse(call.arguments.dq, call.arguments.dk, call.arguments.dv);
    core::Status status = core::validate(kB, problem, call.arguments);
    EXPECT_TRUE(status.ok()) << status.message;
    call.arguments.dv.offset_bytes -= 4;  // one element into dk
    status = core::validate(kB, problem, call.arguments);
    EXPECT_EQ(
        status.message,
        "backward: aliases: found dk, which is written, over memory of dv; accepted outputs in "
        "memory of their own");
  }
}

}  // namespace
}  // namespace attn
