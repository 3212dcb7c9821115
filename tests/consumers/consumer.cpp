// A program outside the tree, in C++: one forward on a tiny problem, and an error caught.
#include <attn/attn.hpp>
#include <cmath>
#include <cstdio>
#include <vector>

int main() {
  constexpr int kLen = 4;
  constexpr int kDim = 2;
  const std::vector<float> q(kLen * kDim);
  std::vector<float> v(kLen * kDim);
  std::vector<float> o(kLen * kDim);
  for (int i = 0; i < kLen * kDim; ++i)
    v[static_cast<std::size_t>(i)] = static_cast<float>(i / kDim);

  attn::Context context;
  attn::Arguments arguments;
  const auto view = [](const std::vector<float>& data) {
    return attn::TensorView::contiguous(data.data(), attn::DType::f32, {1, kLen, 1, kDim});
  };
  arguments.q = view(q);
  arguments.k = view(q);
  arguments.v = view(v);
  arguments.o = view(o);
  attn::Problem problem = attn::describe(arguments);
  problem.causal = true;
  attn::forward(context, problem, arguments);

  // Scores are all 0: row i is the mean of 0..i.
  bool right = true;
  for (int i = 0; i < kLen * kDim; ++i) {
    if (!(std::abs(o[static_cast<std::size_t>(i)] - 0.5f * static_cast<float>(i / kDim)) < 1e-6f)) {
      right = false;
    }
  }
  // The library's exception is caught by its type across the library's edge.
  bool caught = false;
  try {
    arguments.o = arguments.v;
    attn::forward(context, problem, arguments);
  } catch (const attn::Error& error) {
    caught = error.code() == attn::ErrorCode::invalid_argument;
  }
  std::printf("attn %s from C++: %s\n", attn::version(), right && caught ? "right" : "wrong");
  return right && caught ? 0 : 1;
}
