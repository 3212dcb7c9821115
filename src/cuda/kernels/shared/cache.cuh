// A KV cache: the location of its rows, and rows to append. Included by the host, which fills it,
// and by kernels.
#pragma once
#include "shared/arguments.cuh"

namespace attn::device {

struct Cache {
  // Pages: key j of sequence b is row j % page_size of page table[b][j / page_size], and
  // stride_batch of k and v is the distance of pages. A null table: not paged. Strides of the table
  // are in elements.
  const int* table = nullptr;
  long long table_stride_batch = 0;
  long long table_stride_page = 0;
  int page_size = 0;
  int num_pages = 0;
  int len_new = 0;             // rows to append to each sequence
  StridedTensor k_new, v_new;  // [b, len_new, head_kv]
};

// Descale factors of 8-bit K or V: one per (sequence, key head), or one per row or page
// (descale_rows). A null base: all factors are 1. Strides are in elements.
struct Descale {
  const float* base = nullptr;
  long long stride_batch = 0;  // or of pages
  long long stride_row = 0;
  long long stride_head = 0;
};

}  // namespace attn::device
