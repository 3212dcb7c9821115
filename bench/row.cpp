// Formats rows as JSON lines and table lines; see row.hpp.
#include "bench/row.hpp"

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

namespace attn::bench {
namespace {

using nlohmann::json;

// The options that are on, as a JSON object; empty for a plain cell.
json options_of(const Cell& cell) {
  const Problem& p = cell.problem;
  json out = json::object();
  const auto flag = [&](const char* name, bool on) {
    if (on) out[name] = true;
  };
  const auto extent = [&](const char* name, const Extent& e) {
    if (!e.given) return;
    std::string letters;
    if (e.batch) letters += 'b';
    if (e.per_entry != 1) letters += '/' + std::to_string(e.per_entry);
    if (e.head) letters += 'h';
    if (e.q) letters += 'q';
    if (e.kv) letters += 'k';
    out[name] = letters.empty() ? "1" : letters;
  };
  if (cell.documents > 0) out["documents"] = cell.documents;
  flag("kv_begin", p.kv_begin);
  flag("kv_end", p.kv_end);
  if (p.window_left) out["window_left"] = *p.window_left;
  if (p.window_right) out["window_right"] = *p.window_right;
  if (p.softcap) out["softcap"] = cell.softcap;
  flag("alibi", p.alibi);
  flag("sink", p.sink);
  flag("dsink", p.dsink);
  if (p.dropout) out["dropout"] = cell.dropout_p;
  extent("mask", p.mask);
  if (cell.mask_fill == MaskFill::causal) out["mask_fill"] = "causal";
  if (cell.mask_fill == MaskFill::documents) out["mask_fill"] = "documents";
  extent("bias", p.bias);
  if (p.bias.given) out["bias_type"] = to_string(p.bias_type());
  flag("dbias", p.dbias);
  flag("dlse", p.dlse);
  flag("deterministic", p.deterministic);
  flag("accumulate", p.accumulate);
  if (p.rope != Rope::none) out["rope"] = p.rope == Rope::half ? "half" : "interleaved";
  flag("packed", p.layout_q == Layout::packed || p.layout_kv == Layout::packed);
  if (!cell.lengths.empty()) out["lengths"] = cell.lengths;
  flag("heads_first", cell.heads_first);
  if (p.page_size > 0) out["page_size"] = p.page_size;
  if (p.len_new > 0) out["append"] = p.len_new;
  if (cell.layers > 1) out["layers"] = cell.layers;
  if (p.split_keys > 0) out["split_keys"] = p.split_keys;
  return out;
}

double rounded(double value, double unit) {
  return std::isfinite(value) ? std::round(value / unit) * unit : value;
}

}  // namespace

double share_of_rate(const Rates& rates, const Cell& cell, const Measurement& m) {
  if (cell.pass == Pass::decode) {
    return rates.read_gbps > 0 ? m.gbps() / rates.read_gbps : 0.0;
  }
  const double gemm = rates.best_gemm();
  return gemm > 0 ? m.gflops() / gemm : 0.0;
}

json row_of(const Machine& machine, const Rates& rates, const Cell& cell, const Measurement& m) {
  const Problem& p = cell.problem;
  json peers = json::object();
  for (const auto& [name, gflops] : m.peers) peers[name] = gflops * 1e-3;
  json row = {{"backend", m.plan.backend},
              {"device", machine.device},
              {"driver", machine.driver},
              {"threads", m.threads},
              {"commit", machine.commit},
              {"date", machine.date},
              {"cell", cell.name},
              {"pass", pass_name(cell.pass)},
              {"dtype", to_string(p.dtype)},
              {"batch", p.batch},
              {"heads_q", p.heads_q},
              {"heads_kv", p.heads_kv},
              {"len_q", p.len_q},
              {"len_kv", p.len_kv},
              {"dim_qk", p.dim_qk},
              {"dim_vo", p.dim_vo},
              {"causal", p.causal},
              {"options", options_of(cell)},
              {"kernel", m.plan.kernel},
              {"config", m.plan.config},
              {"us", rounded(m.seconds * 1e6, 0.01)},
              {"tflops", m.gflops() * 1e-3},
              {"gbps", rounded(m.gbps(), 0.001)},
              {"extra_bytes", m.extra_bytes},
              {"peers", peers}};
  if (!rates.gemm.empty() || rates.read_gbps > 0) {
    json gemm = json::object();
    for (const auto& [name, gflops] : rates.gemm) gemm[name] = gflops * 1e-3;
    row["rates"] = {{"gemm_tflops", gemm}, {"read_gbps", rounded(rates.read_gbps, 0.001)}};
  }
  if (const double share = share_of_rate(rates, cell, m); share > 0) {
    row[cell.pass == Pass::decode ? "share_of_read" : "share_of_gemm"] = rounded(share, 1e-4);
  }
  if (m.verified) {
    row["error"] = {{"max_abs", m.error.max_abs}, {"ratio_to_naive", m.error.ratio_to_naive}};
  } else {
    row["error"] = nullptr;
  }
  if (m.gflops_against > 0) {
    row["against"] = {{"cell", cell.against->name},
                      {"tflops", m.gflops_against * 1e-3},
                      {"ratio", m.gflops() / m.gflops_against}};
  }
  return row;
}

std::string row_path(const std::string& out, const Machine& machine, const std::string& backend) {
  if (out != "auto") return out;
  return "bench/results/" + machine.folder + "/" + backend + ".jsonl";
}

RowFile::RowFile(const std::string& path) : path_(path) {
  if (path.empty()) return;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder);
  errno = 0;
  file_.open(path, std::ios::app);
  if (!file_) throw WriteError(path + ": can't write: " + std::strerror(errno));
}

void RowFile::append(const std::string& row) {
  if (!file_.is_open()) return;
  errno = 0;
  file_ << row << std::endl;
  if (!file_) throw WriteError(path_ + ": can't write: " + std::strerror(errno));
}

std::string table_head() {
  char text[200];
  std::snprintf(text, sizeof text, "%-44s %11s %10s %8s %8s %8s %10s %9s", "cell", "us", "speed",
                "/plain", "/torch", "/rate", "extra KiB", "err/naive");
  return text;
}

std::string rates_line(const Rates& rates, std::int32_t threads) {
  std::string text;
  const auto add = [&text](const char* name, double value, const char* unit) {
    char part[64];
    std::snprintf(part, sizeof part, "%s%s %.1f %s", text.empty() ? "" : ", ", name, value, unit);
    text += part;
  };
  for (const auto& [name, gflops] : rates.gemm) add(("gemm of " + name).c_str(), gflops, "GF/s");
  if (rates.read_gbps > 0) add("read", rates.read_gbps, "GB/s");
  if (text.empty()) return text;
  return "rates on " + std::to_string(threads) + (threads == 1 ? " thread: " : " threads: ") + text;
}

std::string table_line(const Rates& rates, const Cell& cell, const Measurement& m) {
  const auto ratio = [](double value) {
    char text[32];
    std::snprintf(text, sizeof text, value > 0 ? "%.2f" : "-", value);
    return std::string(text);
  };
  const auto torch = m.peers.find("torch");
  const double of_torch =
      torch != m.peers.end() && torch->second > 0 ? m.gflops() / torch->second : 0.0;
  const double of_plain = m.gflops_against > 0 ? m.gflops() / m.gflops_against : 0.0;
  char speed[32];
  if (cell.pass == Pass::decode) {
    std::snprintf(speed, sizeof speed, "%.1f GB/s", m.gbps());
  } else if (m.gflops() >= 1e5) {
    std::snprintf(speed, sizeof speed, "%.1f TF/s", m.gflops() * 1e-3);
  } else {
    std::snprintf(speed, sizeof speed, "%.1f GF/s", m.gflops());
  }
  char text[256];
  std::snprintf(text, sizeof text, "%-44s %11.1f %10s %8s %8s %8s %10.1f %9s", cell.name.c_str(),
                m.seconds * 1e6, speed, ratio(of_plain).c_str(), ratio(of_torch).c_str(),
                ratio(share_of_rate(rates, cell, m)).c_str(),
                static_cast<double>(m.extra_bytes) / 1024.0,
                m.verified ? ratio(m.error.ratio_to_naive).c_str() : "-");
  return text;
}

}  // namespace attn::bench
