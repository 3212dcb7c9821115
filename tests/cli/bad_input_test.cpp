// Bad input: one line on stderr, nothing on stdout, nothing written, the documented exit code.
#include "command.hpp"
#include "files/npy.hpp"

namespace attn::cli::test {
namespace {

TEST_F(Cli, Usage) {
  expect_refused(2, "run", "no q: give --input FILE.safetensors or --q FILE.npy");
  expect_refused(2, "run --layout sbhd", "sbhd not in");
  expect_refused(2, "run --threads -1", "--threads");
  for (const char* command : {"run", "check --limit 1", "bench --list", "tune --device host"}) {
    expect_refused(2, std::string(command) + " --threads 4097", "4097 not in range");
  }
  expect_refused(2, "run --repeat 0", "--repeat");
  expect_refused(2, "run --scale much", "--scale");
  expect_refused(2, "run --origin 1,2", "--origin");
  expect_refused(2, "run --seed -1", "--seed");
  expect_refused(2, "run --seed 18446744073709551616", "--seed");
  expect_refused(2, "run --scale 1x", "--scale");
  expect_refused(2, "check --case x", "parse_case");
  const std::string packed =
      "layout_q=packed layout_kv=packed total_kv=257 batch=2 len_q=271 len_kv=257";
  expect_refused(2, "check --case 'forward seed=3 lengths=zero : total_q=1 " + packed + "'",
                 "total_q: found 1; the lengths that seed 3 draws come to");
  expect_refused(2, "check --case 'forward memory=fused_qkv : len_q=5 len_kv=7'",
                 "found len_q=5 len_kv=7; accepted len_q == len_kv");
  expect_refused(2,
                 "check --case 'forward memory=fused_qkv : len_q=5 len_kv=5 dtype_kv=f8e4m3 "
                 "dtype=bf16'",
                 "accepted k and v of q's type");
  expect_refused(2, "info --explain words", "'words'");
  expect_refused(2, "info --explain causal --pass up", "--pass");
}

TEST_F(Cli, Files) {
  expect_refused(2, "run --input /nowhere/x.safetensors", "/nowhere/x.safetensors: no such file");
  expect_refused(2, "run --input /", "/: not a regular file");
  expect_refused(2, "run --input x.npy", "--input takes a .safetensors file");
  write("short.safetensors", "abc");
  expect_refused(2, "run --input " + path("short.safetensors"), "truncated");
  write("huge.safetensors", std::string("\xff\xff\xff\xff\xff\xff\xff\x7f{}", 10));
  expect_refused(2, "run --input " + path("huge.safetensors"),
                 "9223372036854775807 bytes, 2 follow");
  const std::string lie = R"({"q":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4]}})";
  write("lie.safetensors",
        std::string(1, static_cast<char>(lie.size())) + std::string(7, '\0') + lie + "1234");
  expect_refused(2, "run --input " + path("lie.safetensors"), "needs 4398046511104 bytes");
  write("junk.npy", "\xff\xfe some junk");
  expect_refused(2, "run --q " + path("junk.npy"), "junk.npy: not a .npy file");
  expect_refused(2, "run --q x.safetensors", "q takes a .npy file");
  expect_refused(2, "run --len-q 1,x", "len_q is neither a .npy file nor a list of numbers: '1,x'");
  TensorFile tensors;
  tensors.attention(1, 4, 4, 2, 2, 8);
  const std::string in = tensors.save(path("in.safetensors"));
  expect_refused(2, "run --input " + in + " --output /nowhere/out.safetensors",
                 "a file in a folder that does not exist");
  expect_refused(2, "run --input " + in + " --output /dev/full", "/dev/full: can't write");
}

TEST_F(Cli, FortranOrderAndPickles) {
  const auto npy = [&](const std::string& name, const std::string& header) {
    write(name, std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(header.size()) + '\0' +
                    header + std::string(16, '\0'));
    return "run --q " + path(name);
  };
  expect_refused(2, npy("f.npy", "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2), }"),
                 "Fortran order is not accepted");
  expect_refused(2, npy("o.npy", "{'descr': '|O', 'fortran_order': False, 'shape': (2,), }"),
                 "pickled Python objects, which are never loaded");
  expect_refused(2, npy("b.npy", "{'descr': '>f4', 'fortran_order': False, 'shape': (4,), }"),
                 "big-endian");
}

TEST_F(Cli, Tensors) {
  const auto refused = [&](const TensorFile& tensors, const std::string& flags,
                           const std::string& what) {
    expect_refused(2, "run --input " + tensors.save(path("in.safetensors")) + " " + flags, what);
  };
  TensorFile plain;
  plain.attention(1, 4, 4, 2, 2, 8);
  refused(plain, "--layout packed --cu-len-q 0,4", "cu_len");
  refused(plain, "--dtype f31", "--dtype is one of f32, f16, bf16, f64");
  refused(plain, "--window-left -3", "window_left=-3");
  refused(plain, "--rope half --rot-dim 7", "rot_dim");
  refused(plain, "--rope 'half causal'", "may not contain blanks");
  refused(plain, "--rope third", "'rope=third'");
  refused(plain, "--scale nan", "scale");
  refused(plain, "--dropout 1.5", "dropout");
  refused(plain, "--softcap -1", "softcap");
  refused(plain, "--dbias --backward", "dbias without bias");
  refused(plain, "--backward --no-lse", "--backward needs lse");
  refused(plain, "--sinks 1,2,3", "sinks");
  refused(plain, "--diagonal explicit --diag 99999999999999999999", "--diag");
  TensorFile heads;
  heads.random("q", {1, 4, 3, 8}).random("k", {1, 4, 2, 8}).random("v", {1, 4, 2, 8});
  refused(heads, "", "heads_q is a multiple of heads_kv");
  refused(heads, "--backward", "--backward needs the gradient of o");
  TensorFile ranks;
  ranks.random("q", {4, 2, 8}).random("k", {4, 2, 8}).random("v", {4, 2, 8});
  refused(ranks, "",
          "tensor 'q' is F32[4, 2, 8]; accepted are 4 dimensions, or 3 with --layout packed");
  TensorFile types;
  types.add("q", {1, 1, 1, 1}, {1}, "I64").add("k", {1, 1, 1, 1}, {1}, "I64");
  refused(types, "", "tensor 'q' has type I64, which the library does not take");
  TensorFile lengths;
  lengths.attention(1, 4, 4, 2, 2, 8).add("len_kv", {1}, {4294967296.0}, "I64");
  refused(lengths, "",
          "element 0 of tensor 'len_kv' doesn't fit I32: found 4294967296; accepted -2147483648 to "
          "2147483647");
  TensorFile floats;
  floats.attention(1, 4, 4, 2, 2, 8).random("mask", {1, 1, 4, 4});
  refused(
      floats, "",
      "tensor 'mask' of type F32 can't be converted to U8; accepted BOOL, and integers from 0 to "
      "255");
  TensorFile large;
  large.attention(1, 4, 4, 2, 2, 8).add("mask", {1, 1, 1, 4}, {300, 1, 1, 1}, "I32");
  refused(large, "", "doesn't fit U8: found 300; accepted 0 to 255");
}

TEST_F(Cli, UnsupportedIsThree) {
  TensorFile tensors;
  tensors.attention(1, 4, 4, 2, 2, 8);
  const std::string in = tensors.save(path("in.safetensors"));
  // f64 on the GPU is what no machine does.
  expect_refused(3, "run --backend webgpu --dtype f64 --input " + in, "webgpu");
  expect_refused(2, "run --device webgpu --backend cpu --input " + in, "accepted webgpu");
  EXPECT_EQ(run("info --pass backward --explain 'dtype=f8e4m3 len_q=4 len_kv=4'").code, 3);
}

}  // namespace
}  // namespace attn::cli::test
