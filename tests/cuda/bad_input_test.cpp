// Bad input on the device path as callers of the library see it: each is an attn::Error that says
// what was found, launches nothing, and leaves the next call as good as any.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <attn/attn.hpp>
#include <attn/cache.hpp>
#include <filesystem>
#include <functional>

#include "cuda/host/nvrtc.hpp"
#include "fake.hpp"
#include "folder.hpp"

namespace attn::cuda::test {
namespace {

constexpr std::int32_t kOrdinal = 1;  // and not the one that nobody asks for

ContextOptions options_of(const std::string& cache_dir) {
  ContextOptions options;
  options.backend = "cuda";
  options.cache_dir = cache_dir;
  return options;
}

// A forward and a backward of device memory that nobody follows.
struct BackwardCall {
  BackwardCall() {
    for (TensorView* view : {&a.q, &a.k, &a.v, &a.o, &a.dout, &a.dq, &a.dk, &a.dv}) {
      *view = make(DType::bf16, {1, 64, 1, 16});
    }
    a.lse = make(DType::f32, {1, 1, 64});
    problem = describe(a);
  }
  TensorView make(DType dtype, std::initializer_list<std::int64_t> shape) {
    next += 1 << 20;
    TensorView view = TensorView::contiguous(reinterpret_cast<void*>(next), dtype, shape);
    view.device = Device::cuda;
    view.ordinal = kOrdinal;
    return view;
  }

  std::uintptr_t next = (kOrdinal + 1) * kDeviceMemory;
  Arguments a;
  Problem problem;
};

class CudaBadInput : public WithFakeDriver {
 protected:
  void SetUp() override {
    WithFakeDriver::SetUp();
    std::string reason;
    if (Nvrtc::get(0, reason) == nullptr) GTEST_SKIP() << reason;
    context_.emplace(options_of(ATTN_TEST_CACHE));  // kept: what is not compiled is quick
  }

  void run(const BackwardCall& call) { backward(*context_, call.problem, call.a); }
  // The message of what a call throws that `change` made bad; the next one works.
  std::string refused(ErrorCode code, const std::function<void(BackwardCall&)>& change) {
    BackwardCall call;
    change(call);
    const int launches = fake().launches;
    std::string message = "nothing was thrown";
    try {
      run(call);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      message = error.what();
    }
    EXPECT_EQ(fake().launches, launches) << message;
    fake().failing = nullptr;
    EXPECT_NO_THROW(run(BackwardCall())) << "after: " << message;
    EXPECT_EQ(fake().launches, launches + 3) << message;
    return message;
  }

  std::optional<Context> context_;
};

TEST_F(CudaBadInput, Addresses) {
  const auto at = [](TensorView Arguments::* view, std::uintptr_t address) {
    return [view, address](BackwardCall& call) {
      (call.a.*view).data = reinterpret_cast<void*>(address);
    };
  };
  static const int on_host = 0;
  const auto host = reinterpret_cast<std::uintptr_t>(&on_host);
  const std::string accepted = "; accepted memory of cuda:1";
  for (const auto& [name, view] :
       {std::pair{"q", &Arguments::q}, {"lse", &Arguments::lse}, {"dv", &Arguments::dv}}) {
    const std::string data = std::string("cuda: data of ") + name + ": found ";
    EXPECT_EQ(refused(ErrorCode::invalid_argument, at(view, host)),
              data + "a pointer that CUDA doesn't know (host memory?)" + accepted);
    EXPECT_EQ(refused(ErrorCode::invalid_argument, at(view, kPinnedMemory)),
              data + "page-locked host memory" + accepted);
    EXPECT_EQ(refused(ErrorCode::invalid_argument, at(view, kDeviceMemory)),
              data + "memory of cuda:0" + accepted);
    EXPECT_NE(refused(ErrorCode::invalid_argument, at(view, 0)).find(name), std::string::npos);
  }
  EXPECT_NE(refused(ErrorCode::invalid_argument,
                    [](BackwardCall& call) {
                      call.a.k.data = reinterpret_cast<char*>(call.a.k.data) + 1;
                    })
                .find("alignment of k"),
            std::string::npos);
  // A multiple of the element's size is enough, on a path of its own.
  BackwardCall shifted;
  shifted.a.k.data = reinterpret_cast<char*>(shifted.a.k.data) + 2;
  EXPECT_NO_THROW(run(shifted));
  BackwardCall managed;
  managed.a.k.data = reinterpret_cast<void*>(kManagedMemory);
  EXPECT_NO_THROW(run(managed));
}

TEST_F(CudaBadInput, Devices) {
  EXPECT_NE(refused(ErrorCode::invalid_argument, [](BackwardCall& call) { call.a.v.ordinal = 0; })
                .find("device of v: found cuda:0; accepted cuda:1, where q is"),
            std::string::npos);
  const auto all = [](Device device, std::int32_t ordinal) {
    return [=](BackwardCall& call) {
      Arguments& a = call.a;
      for (TensorView* view : {&a.q, &a.k, &a.v, &a.o, &a.lse, &a.dout, &a.dq, &a.dk, &a.dv}) {
        view->device = device;
        view->ordinal = ordinal;
      }
    };
  };
  for (const std::int32_t ordinal : {2, -1, 1 << 30}) {
    EXPECT_NE(refused(ErrorCode::unsupported, all(Device::cuda, ordinal))
                  .find("cuda:" + std::to_string(ordinal) + "; accepted cuda:0 to cuda:1"),
              std::string::npos);
  }
  EXPECT_NE(refused(ErrorCode::unsupported, all(Device::host, 0)).find("cuda"), std::string::npos);
}

TEST_F(CudaBadInput, WorkspaceAndNumbers) {
  const std::int64_t needed =
      workspace_bytes(*context_, Pass::backward, BackwardCall().problem, Device::cuda);
  const auto workspace = [&](std::uintptr_t address, std::int64_t bytes) {
    return [address, bytes](BackwardCall& call) {
      call.a.workspace = reinterpret_cast<void*>(address);
      call.a.workspace_size = bytes;
    };
  };
  const std::uintptr_t there = 2 * kDeviceMemory + (1 << 30);
  EXPECT_NE(refused(ErrorCode::invalid_argument, workspace(there, needed - 1))
                .find("workspace: found " + std::to_string(needed - 1) + " bytes; accepted"),
            std::string::npos);
  EXPECT_NE(refused(ErrorCode::invalid_argument, workspace(there + 8, needed)).find("64-byte"),
            std::string::npos);
  EXPECT_EQ(refused(ErrorCode::invalid_argument, workspace(kDeviceMemory, needed)),
            "cuda: data of workspace: found memory of cuda:0; accepted memory of cuda:1");
  EXPECT_NE(refused(ErrorCode::invalid_argument,
                    workspace(reinterpret_cast<std::uintptr_t>(BackwardCall().a.dq.data), needed))
                .find("aliases"),
            std::string::npos);
  const std::uint64_t on_host = 7;
  const auto seed = [&on_host](BackwardCall& call) {
    call.problem.dropout = true;
    call.a.dropout_p = 0.5;
    call.a.seed = &on_host;
  };
  EXPECT_NE(refused(ErrorCode::invalid_argument, seed).find("data of seed: found a pointer"),
            std::string::npos);
}

TEST_F(CudaBadInput, OutOfMemory) {
  run(BackwardCall());  // loaded
  const auto failing = [](const char* function, int result) {
    return [=](BackwardCall&) {
      fake().failing = function;
      fake().failing_result = result;
    };
  };
  EXPECT_NE(refused(ErrorCode::out_of_memory, failing("cuMemAllocAsync", abi::kOutOfMemory))
                .find("while taking a workspace of "),
            std::string::npos);
  EXPECT_EQ(fake().allocations, 0) << "the allocation is freed after the failure";
  // The kernels together, and one by one as where a stream captures.
  for (const auto& [launching, capture] :
       {std::pair{"cuGraphLaunch", abi::kCaptureNone}, {"cuLaunchKernelEx", abi::kCaptureActive}}) {
    fake().capturing = capture;
    EXPECT_NE(refused(ErrorCode::out_of_memory, failing(launching, abi::kOutOfMemory))
                  .find("while launching attn_backward_preprocess"),
              std::string::npos);
    EXPECT_NE(refused(ErrorCode::device_error, failing(launching, abi::kIllegalAddress))
                  .find("can't be used any more"),
              std::string::npos);
  }
  fake().capturing = abi::kCaptureNone;
  EXPECT_NE(refused(ErrorCode::device_error, failing("cuCtxGetCurrent", abi::kNotInitialized))
                .find("a process forked after CUDA was initialized"),
            std::string::npos);
  EXPECT_EQ(fake().allocations, 0);
  const std::function<void(BackwardCall&)> unloaded = [](BackwardCall& call) {
    call.problem.causal = true;
    call.problem.window_left = 3;
    call.problem.softcap = true;
    call.a.softcap = 9.0;
    fake().failing = "cuModuleLoadData";
    fake().failing_result = abi::kOutOfMemory;
  };
  const std::string message = refused(ErrorCode::out_of_memory, unloaded);
  EXPECT_NE(message.find("while loading sm90/backward.cu"), std::string::npos) << message;
}

// What the folder of compiled kernels may be, and what a first call then does.
class CudaBadCache : public CudaBadInput {
 protected:
  // Whether a new process's calls work with this folder; root becomes somebody else, whom files'
  // modes stop.
  static bool works(const std::string& cache_dir, bool as_root = false) {
    const pid_t child = ::fork();
    if (child == 0) {
      if (!as_root && ::geteuid() == 0 && ::seteuid(65534) != 0) ::_exit(2);
      try {
        Context context(options_of(cache_dir));
        BackwardCall call;
        // Runs as one kernel, on every device: in f32 by FFMA.
        for (TensorView* view : {&call.a.q, &call.a.k, &call.a.v, &call.a.o}) {
          *view = call.make(DType::f32, {1, 64, 1, 16});
        }
        call.problem = describe(call.a);
        call.problem.precision = Precision::ieee;
        const int launches = fake().launches;
        forward(context, call.problem, call.a);
        ::_exit(fake().launches == launches + 1 ? 0 : 3);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        ::_exit(1);
      }
    }
    int status = -1;
    return ::waitpid(child, &status, 0) == child && status == 0;
  }
  static std::vector<CacheEntry> entries(const std::string& folder) {
    Context context(options_of(folder));
    return cache_list(context);
  }
};

TEST_F(CudaBadCache, DamagedFilesAreMadeAgain) {
  const Folder folder;
  ASSERT_TRUE(works(folder.path(), true));
  const auto made = entries(folder.path());
  ASSERT_EQ(made.size(), 1u);
  const std::string path = made[0].path;
  const std::string good = read_text(path);
  for (const std::string& bad : {std::string(), good.substr(0, good.size() / 2), good + "x",
                                 std::string(good.size(), 'Z')}) {
    write_text(path, bad);
    EXPECT_FALSE(entries(folder.path())[0].valid);
    EXPECT_TRUE(works(folder.path(), true));
    EXPECT_EQ(read_text(path), good);
  }
}

TEST_F(CudaBadCache, FoldersThatCanNotBeWritten) {
  const Folder folder;
  ASSERT_EQ(::chmod(folder.path().c_str(), 0555), 0);
  EXPECT_TRUE(works(folder.path())) << "compiled in every process";
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  ASSERT_EQ(::chmod(folder.path().c_str(), 0755), 0);
  ASSERT_TRUE(works(folder.path(), true));
  ASSERT_EQ(::chmod(folder.path().c_str(), 0555), 0);
  EXPECT_TRUE(works(folder.path())) << "read";
  ASSERT_EQ(::chmod(folder.path().c_str(), 0755), 0);
  write_text(folder.path() + "/file", "");
  EXPECT_TRUE(works(folder.path() + "/file", true)) << "a file where the folder should be";
  EXPECT_EQ(read_text(folder.path() + "/file"), "");
}

TEST_F(CudaBadCache, TwoProcessesFillItAtOnce) {
  const Folder folder;
  const pid_t other = ::fork();
  if (other == 0) ::_exit(works(folder.path(), true) ? 0 : 1);
  EXPECT_TRUE(works(folder.path(), true));
  int status = -1;
  ASSERT_EQ(::waitpid(other, &status, 0), other);
  EXPECT_EQ(status, 0);
  const auto made = entries(folder.path());
  ASSERT_EQ(made.size(), 1u);
  EXPECT_TRUE(made[0].valid);
  std::size_t files = 0;
  for (const auto& one : std::filesystem::recursive_directory_iterator(folder.path())) {
    files += one.is_regular_file() ? 1 : 0;
  }
  EXPECT_EQ(files, 1u) << "nothing is left over";
}

}  // namespace
}  // namespace attn::cuda::test
