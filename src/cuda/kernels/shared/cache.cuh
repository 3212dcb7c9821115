// A KV cache: where its rows are, and rows to append. For the host, which fills it, and kernels.
#pragma once
#include "shared/arguments.cuh"

namespace attn::device {

struct Cache {
  // Pages: key j of sequence b is row j % page_size of page table[b][j / page_size], and
  // stride_batch of k and v is a page's. Null: not paged. Strides in elements.
  const int* table = nullptr;
  long long table_stride_batch = 0;
  long long table_stride_page = 0;
  int page_size = 0;
  int num_pages = 0;
  int len_new = 0;             // rows to append to each sequence
  StridedTensor k_new, v_new;  // [b, len_new, head_kv]
};

// Factors of K or V of 8 bits: one for each (sequence, key head), or for each row or page
// (descale_rows). Null: 1. Strides in elements.
struct Descale {
  const float* base = nullptr;
  long long stride_batch = 0;  // or of a page
  long long stride_row = 0;
  long long stride_head = 0;
};

}  // namespace attn::device
