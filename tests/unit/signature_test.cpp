// output_shapes, and that the signature knows every tensor of Arguments.
#include "core/signature.hpp"

#include <gtest/gtest.h>

#include <attn/attn.hpp>

#include "core/tensor.hpp"

namespace attn {
namespace {

std::string shapes(Pass pass, const char* text) {
  const Outputs o = output_shapes(pass, parse_problem(text));
  std::string result;
  for (const auto& [name, view] : {std::pair{"o", o.o},
                                   {"lse", o.lse},
                                   {"dq", o.dq},
                                   {"dk", o.dk},
                                   {"dv", o.dv},
                                   {"dbias", o.dbias},
                                   {"dsink", o.dsink}}) {
    if (!view.given()) continue;
    EXPECT_EQ(view.data, nullptr);
    TensorView contiguous = view;
    core::set_contiguous_strides(contiguous);
    EXPECT_EQ(view.strides, contiguous.strides);
    const std::string form = to_string(view);
    result +=
        std::string(result.empty() ? "" : " ") + name + "=" + form.substr(0, form.find(" strides"));
  }
  return result;
}

TEST(OutputShapes, OfEachPass) {
  const char* sizes = "batch=2 heads_q=4 heads_kv=2 len_q=3 len_kv=5 dim_qk=8 dim_vo=6";
  EXPECT_EQ(shapes(Pass::forward, sizes), "o=f32[2, 3, 4, 6] lse=f32[2, 4, 3]");
  EXPECT_EQ(shapes(Pass::decode, sizes), "o=f32[2, 3, 4, 6] lse=f32[2, 4, 3]");
  EXPECT_EQ(shapes(Pass::backward, sizes),
            "dq=f32[2, 3, 4, 8] dk=f32[2, 5, 2, 8] dv=f32[2, 5, 2, 6]");
}

TEST(OutputShapes, OfOptions) {
  EXPECT_EQ(shapes(Pass::forward, "dtype=bf16 lse=off len_q=3 dim_vo=6"), "o=bf16[1, 3, 1, 6]");
  EXPECT_EQ(shapes(Pass::forward, "dtype=f64 layout_q=packed total_q=7 heads_q=2 dim_vo=6"),
            "o=f64[7, 2, 6] lse=f64[2, 7]");
  EXPECT_EQ(shapes(Pass::forward, "dtype=bf16 dtype_out=f32 len_q=3"),
            "o=f32[1, 3, 1, 64] lse=f32[1, 1, 3]");
  EXPECT_EQ(shapes(Pass::backward,
                   "dtype=bf16 dtype_grad=f32 dq=off dk=off heads_q=2 heads_kv=1 "
                   "len_q=3 len_kv=4 bias=hk dtype_bias=f16 dbias sink dsink"),
            "dv=f32[1, 4, 1, 64] dbias=f16[1, 2, 1, 4] dsink=f32[2]");
  EXPECT_EQ(shapes(Pass::backward, "layout_kv=packed total_kv=9 dq=off dv=off dim_qk=8"),
            "dk=f32[9, 1, 8]");
}

TEST(OutputShapes, RefusesBadProblems) {
  EXPECT_THROW(output_shapes(Pass::forward, parse_problem("dim_qk=0")), Error);
}

// A tensor that no signature knew would never be checked.
TEST(Signature, KnowsEveryTensorOfArguments) {
  const char* problems[] = {"dtype=bf16 dtype_kv=f8e4m3 page_size=4 len_new=1 lengths_kv",
                            "dlse delta bias=1 dbias sink dsink layout_q=packed layout_kv=packed",
                            "rope=half rope_positions rope_tables"};
  Arguments arguments;
  for (const char* text : problems) {
    for (const Pass pass : {Pass::forward, Pass::backward, Pass::decode}) {
      for (const core::Slot& slot : core::slots_of(pass, parse_problem(text))) {
        (arguments.*slot.view).rank = 1;
      }
    }
  }
  // The tensors stand together, from q to dsink.
  const TensorView* first = &arguments.q;
  const TensorView* last = &arguments.dsink;
  EXPECT_EQ(last - first + 1, 34);
  for (const TensorView* view = first; view <= last; ++view) {
    EXPECT_TRUE(view->given()) << "tensor " << view - first;
  }
}

TEST(Signature, AppendWritesTheCache) {
  for (const bool appends : {false, true}) {
    const Problem problem = parse_problem(appends ? "lengths_kv len_new=2" : "lengths_kv");
    for (const core::Slot& slot : core::slots_of(Pass::decode, problem)) {
      if (slot.view == &Arguments::k || slot.view == &Arguments::v) {
        EXPECT_EQ(slot.written, appends);
      }
    }
  }
}

}  // namespace
}  // namespace attn
