// Chooses the engine for bf16 problems on this machine.
#include <cstdlib>
#include <cstring>
#include <string>

#include "cpu/kernels/kernels.hpp"
#include "cpu/kernels/tile_ops/bf16_decode.hpp"

namespace attn::cpu {
namespace {

const Bf16Engine* usable(Engine engine) {
  switch (engine) {
    case Engine::float_simd: return nullptr;
    case Engine::bf16_dot: return bf16_dot_engine();
    case Engine::bf16_mmla: return bf16_mmla_engine();
    case Engine::amx_bf16: break;
  }
  return amx_bf16_engine();
}

Engine choose() {
  // If ATTN_CPU_TARGET forces an older instruction set, no bf16 engine is used either.
  const bool newest = std::strncmp(target_name(), "AVX3", 4) == 0 ||  // or AVX3_ZEN4, ...
                      std::strncmp(target_name(), "NEON", 4) == 0;
  if (!newest) return Engine::float_simd;
  const char* wanted = std::getenv("ATTN_CPU_ENGINE");
  if (wanted != nullptr) {
    for (const Engine engine :
         {Engine::float_simd, Engine::bf16_dot, Engine::bf16_mmla, Engine::amx_bf16}) {
      if (std::strcmp(wanted, to_string(engine)) != 0) continue;
      if (engine == Engine::float_simd || usable(engine) != nullptr) return engine;
    }
  }
  if (usable(Engine::amx_bf16) != nullptr) return Engine::amx_bf16;
  if (bf16_mmla_is_fast()) return Engine::bf16_mmla;
  return bf16_dot_is_fast() ? Engine::bf16_dot : Engine::float_simd;
}

}  // namespace

const char* to_string(Engine engine) {
  switch (engine) {
    case Engine::float_simd: return "f32";
    case Engine::bf16_dot: return "bf16_dot";
    case Engine::bf16_mmla: return "bf16_mmla";
    case Engine::amx_bf16: break;
  }
  return "amx_bf16";
}

Engine bf16_problems_engine() {
  static const Engine engine = choose();
  return engine;
}

const Bf16Engine& bf16_engine(Engine engine) {
  return *usable(engine);
}

const Bf16Decode* bf16_decode(Engine engine) {
  switch (engine) {
    case Engine::float_simd:
    case Engine::bf16_mmla: return nullptr;
    case Engine::bf16_dot: return bf16_dot_decode();
    case Engine::amx_bf16: break;
  }
  return amx_bf16_decode();
}

}  // namespace attn::cpu
