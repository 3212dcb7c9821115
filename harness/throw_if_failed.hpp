// Statuses of the backends' own functions as exceptions.
#pragma once

#include <attn/attn.hpp>

#include "core/status.hpp"

namespace attn::harness {

inline void throw_if_failed(const core::Status& status) {
  if (!status.ok()) throw Error(status.code, status.message);
}

}  // namespace attn::harness
