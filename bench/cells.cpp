// The list of cells.
#include "bench/cells.hpp"

#include <algorithm>
#include <stdexcept>

#include "bench/cell_list.hpp"
#include "harness/values.hpp"

namespace attn::bench {

Problem problem_of(const Shape& shape, DType dtype, bool causal) {
  Problem problem;
  problem.dtype = dtype;
  problem.batch = shape.batch;
  problem.heads_q = shape.heads_q;
  problem.heads_kv = shape.heads_kv;
  problem.len_q = problem.len_kv = shape.len;
  problem.dim_qk = problem.dim_vo = shape.dim;
  problem.causal = causal;
  return problem;
}

std::string shape_name(const Problem& problem) {
  std::string heads = std::to_string(problem.heads_q);
  if (problem.heads_kv != problem.heads_q) heads += "." + std::to_string(problem.heads_kv);
  return "b" + std::to_string(problem.batch) + "-h" + heads + "-n" +
         std::to_string(problem.len_kv) + "-d" + std::to_string(problem.dim_qk) +
         (problem.causal ? "-causal" : "-full");
}

std::string tail(DType dtype, Pass pass) {
  return std::string("/") + to_string(dtype) + "/" + pass_name(pass);
}

Cell plain_cell(const Shape& shape, DType dtype, Pass pass, bool causal) {
  Cell cell;
  cell.suite = "plain";
  cell.pass = pass;
  cell.problem = problem_of(shape, dtype, causal);
  cell.name = "plain/" + shape_name(cell.problem) + tail(dtype, pass);
  return cell;
}

Cell decode_cell(const char* option, const Shape& shape, DType dtype) {
  Cell cell;
  cell.suite = "decode";
  cell.pass = Pass::decode;
  cell.problem = problem_of(shape, dtype, true);
  cell.problem.len_q = 1;
  cell.problem.lse = false;
  cell.option = option;
  cell.name =
      std::string("decode/") + option + "-" + shape_name(cell.problem) + tail(dtype, Pass::decode);
  return cell;
}

namespace {

// The cells that PyTorch is also measured on; the recorded peer files contain them too.
constexpr Shape kPlain[] = {
    {1, 12, 12, 512, 64}, {1, 12, 12, 1024, 64}, {1, 12, 12, 4096, 64}, {1, 8, 8, 2048, 128}};
// Many problems that are smaller than one tile: what a call costs in addition to its products.
constexpr Shape kTiny{256, 4, 4, 32, 32};
constexpr Shape kQuick[] = {{1, 4, 4, 256, 64}};

// The shape for options: long enough for several tiles in both directions.
constexpr Shape kOption{1, 12, 12, 2048, 64};
constexpr Shape kLongRow{1, 12, 12, 4096, 64};

DType parse_dtype(const std::string& name) {
  for (const DType dtype :
       {DType::f32, DType::f16, DType::bf16, DType::f64, DType::f8e4m3, DType::f8e5m2}) {
    if (name == to_string(dtype)) return dtype;
  }
  throw std::invalid_argument("type '" + name + "' is none of f32, f16, bf16, f64, f8e4m3, f8e5m2");
}

void add_masks(DType dtype, Pass pass, OptionList& list, std::vector<Cell>& out) {
  const Extent of_pairs{.given = true, .batch = false, .head = false, .q = true, .kv = true};
  list.add("mask", kOption, false, kOption, [of_pairs](Cell& c) { c.problem.mask = of_pairs; });
  list.add("mask-documents16", kLongRow, false, {16, 12, 12, 256, 64}, [of_pairs](Cell& c) {
    c.problem.mask = of_pairs;
    c.mask_fill = MaskFill::documents;
    c.documents = 16;
  });
  list.add("mask-causal", kOption, false, kOption, [of_pairs](Cell& c) {
    c.problem.mask = of_pairs;
    c.mask_fill = MaskFill::causal;
  });
  out.back().against = std::make_shared<const Cell>(plain_cell(kOption, dtype, pass, true));
}

void add_options(DType dtype, Pass pass, std::vector<Cell>& out) {
  OptionList list(dtype, pass, "", out);
  const auto add = [&list](const char* option, bool causal, auto change) {
    list.add(option, kOption, causal, kOption, change);
  };
  const bool backward = pass == Pass::backward;
  list.add("documents16", kLongRow, true, {16, 12, 12, 256, 64}, [](Cell& c) {
    c.problem.kv_begin = true;
    c.documents = 16;
  });
  list.add("documents16-bidirectional", kLongRow, false, {16, 12, 12, 256, 64}, [](Cell& c) {
    c.problem.kv_begin = c.problem.kv_end = true;
    c.documents = 16;
  });
  // Plain causal cells with about the same number of pairs: 2 x 1024^2 / 2 and 2720^2 / 2.
  list.add("window256", kLongRow, true, {2, 12, 12, 1024, 64},
           [](Cell& c) { c.problem.window_left = 256; });
  list.add("window1024", kLongRow, true, {1, 12, 12, 2720, 64},
           [](Cell& c) { c.problem.window_left = 1024; });
  add("softcap", true, [](Cell& c) {
    c.problem.softcap = true;
    c.softcap = 20.0;
  });
  add("alibi", true, [](Cell& c) { c.problem.alibi = true; });
  add("sink", true, [backward](Cell& c) {
    c.problem.sink = true;
    c.problem.dsink = backward;
  });
  add("dropout", true, [](Cell& c) {
    c.problem.dropout = true;
    c.dropout_p = 0.1;
  });
  add_masks(dtype, pass, list, out);
  add("bias", false, [dtype](Cell& c) {
    c.problem.bias = {.given = true, .batch = false, .head = true, .q = true, .kv = true};
    c.problem.dtype_bias = dtype;
  });
  if (backward) {
    add("bias-gradient", false, [dtype](Cell& c) {
      c.problem.bias = {.given = true, .batch = false, .head = true, .q = true, .kv = true};
      c.problem.dtype_bias = dtype;
      c.problem.dbias = true;
    });
    list.add("bias-gradient-batch", {4, 12, 12, 1024, 64}, false, {4, 12, 12, 1024, 64},
             [dtype](Cell& c) {
               c.problem.bias = {
                   .given = true, .batch = false, .head = true, .q = true, .kv = true};
               c.problem.dtype_bias = dtype;
               c.problem.dbias = true;
             });
    add("deterministic", true, [](Cell& c) { c.problem.deterministic = true; });
    add("dlse", true, [](Cell& c) { c.problem.dlse = true; });
  }
  list.add("gqa4", {1, 12, 3, 2048, 64}, true, kOption, [](Cell&) {});
  list.add("mqa", {1, 12, 1, 2048, 64}, true, kOption, [](Cell&) {});
  add("heads-first", true, [](Cell& c) { c.heads_first = true; });
  add("rope", true, [](Cell& c) { c.problem.rope = Rope::half; });
  const std::vector<std::int64_t> lengths = {1024, 700, 333, 1000};
  list.add("lengths", {4, 12, 12, 1024, 64}, true, {3, 12, 12, 1024, 64}, [&](Cell& c) {
    c.problem.lengths_q = c.problem.lengths_kv = true;
    c.lengths = lengths;
  });
  list.add("packed", {4, 12, 12, 1024, 64}, true, {3, 12, 12, 1024, 64}, [&](Cell& c) {
    c.problem.layout_q = c.problem.layout_kv = Layout::packed;
    c.lengths = lengths;
    for (const std::int64_t length : lengths) c.problem.total_q += length;
    c.problem.total_kv = c.problem.total_q;
  });
  list.add("cross", {1, 12, 12, 4096, 64}, false, {1, 12, 12, 2048, 64},
           [](Cell& c) { c.problem.len_q = 1024; });
  list.add("dims-80-48", {1, 12, 12, 2048, 80}, true, {1, 12, 12, 2048, 64},
           [](Cell& c) { c.problem.dim_vo = 48; });
}

void add_decode(DType dtype, std::vector<Cell>& out) {
  const auto add = [&](const char* name, const Shape& shape, std::int64_t len_q, auto change) {
    Cell cell = decode_cell(name, shape, dtype);
    cell.problem.len_q = len_q;
    change(cell);
    out.push_back(std::move(cell));
  };
  const auto paged = [](Cell& c) {
    c.problem.page_size = 16;
    c.problem.lengths_kv = true;
  };
  add("contiguous", {1, 32, 8, 4096, 128}, 1, [](Cell&) {});
  add("contiguous", {16, 32, 8, 4096, 128}, 1, [](Cell&) {});
  add("contiguous-mha", {1, 12, 12, 16384, 64}, 1, [](Cell&) {});
  add("paged16", {16, 32, 8, 4096, 128}, 1, paged);
  add("lengths", {4, 32, 8, 4096, 128}, 1, [](Cell& c) {
    c.problem.lengths_kv = true;
    c.lengths = {4096, 1000, 17, 3000};
  });
  add("append", {16, 32, 8, 4096, 128}, 1, [](Cell& c) {
    c.problem.lengths_kv = true;
    c.problem.len_new = 1;
    c.lengths.assign(16, 4000);
  });
  add("four-queries", {4, 32, 8, 4096, 128}, 4, [](Cell&) {});
}

std::vector<DType> default_types(Device device) {
  switch (device) {
    case Device::host: return {DType::f32, DType::bf16};
    case Device::cuda: return {DType::bf16};
    case Device::webgpu: break;
  }
  return {DType::f16, DType::f32};
}

bool has(const std::vector<std::string>& wanted, const std::string& word) {
  return wanted.empty() || std::find(wanted.begin(), wanted.end(), word) != wanted.end();
}

}  // namespace

const char* pass_name(Pass pass) {
  switch (pass) {
    case Pass::forward: return "fwd";
    case Pass::backward: return "bwd";
    case Pass::decode: return "decode";
  }
  return "?";
}

std::vector<Cell> cells(const std::string& suite, const std::vector<std::string>& dtypes,
                        const std::vector<std::string>& passes, Device device) {
  if (suite != "all" && suite != "plain" && suite != "options" && suite != "decode" &&
      suite != "quick" && suite != "pair") {
    throw std::invalid_argument("suite '" + suite +
                                "' is none of all, plain, options, decode, pair, quick");
  }
  for (const std::string& pass : passes) {
    if (pass != "fwd" && pass != "bwd" && pass != "decode") {
      throw std::invalid_argument("pass '" + pass + "' is none of fwd, bwd, decode");
    }
  }
  std::vector<DType> types;
  for (const std::string& name : dtypes) types.push_back(parse_dtype(name));
  const bool on_host = device == Device::host;
  if (types.empty()) types = default_types(device);

  std::vector<Cell> out;
  const auto for_passes = [&](auto add) {
    for (const DType dtype : types) {
      for (const Pass pass : {Pass::forward, Pass::backward}) {
        const bool exists = pass != Pass::backward || !harness::is_f8(dtype);
        if (exists && has(passes, pass_name(pass))) add(dtype, pass);
      }
    }
  };
  const auto add_plain = [&](const auto& shapes) {
    for_passes([&](DType dtype, Pass pass) {
      for (const Shape& shape : shapes) {
        for (const bool causal : {false, true}) {
          out.push_back(plain_cell(shape, dtype, pass, causal));
        }
      }
    });
  };
  if (suite == "quick") add_plain(kQuick);
  if (suite == "pair") {
    for_passes([&](DType dtype, Pass pass) { add_pair(device, dtype, pass, out); });
  }
  const bool plain = suite == "all" || suite == "plain";
  const bool options = suite == "all" || suite == "options";
  const bool decode = (suite == "all" || suite == "decode") && has(passes, "decode");
  if (device == Device::webgpu) {
    for_passes([&](DType dtype, Pass pass) {
      if (plain) add_webgpu_plain(dtype, pass, out);
      if (options) add_device_options(dtype, pass, out);
    });
    for (const DType dtype : types) {
      if (decode) add_webgpu_decode(dtype, out);
    }
    return out;
  }
  if (!on_host) {
    for_passes([&](DType dtype, Pass pass) {
      if (plain) add_device_plain(dtype, pass, out);
      if (options) add_device_options(dtype, pass, out);
    });
    for (const DType dtype : types) {
      if (decode) add_device_decode(dtype, out);
    }
    return out;
  }
  if (plain) {
    add_plain(kPlain);
    for_passes(
        [&](DType dtype, Pass pass) { out.push_back(plain_cell(kTiny, dtype, pass, false)); });
  }
  if (options) for_passes([&](DType dtype, Pass pass) { add_options(dtype, pass, out); });
  for (const DType dtype : types) {
    if (decode) add_decode(dtype, out);
  }
  return out;
}

Cell divided(Cell cell, std::int64_t by) {
  const auto divide = [by](std::int64_t length) { return std::max<std::int64_t>(length / by, 1); };
  Problem& p = cell.problem;
  for (std::int64_t* length : {&p.len_q, &p.len_kv, &p.total_q, &p.total_kv}) {
    if (*length > 1) *length = divide(*length);
  }
  for (std::int64_t& length : cell.lengths) length = divide(length);
  if (p.window_left) p.window_left = divide(*p.window_left);
  cell.name += "/" + std::to_string(by) + "th";
  if (cell.against) cell.against = std::make_shared<const Cell>(divided(*cell.against, by));
  return cell;
}

}  // namespace attn::bench
