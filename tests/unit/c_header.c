/* attn.h as C99: compiles with all warnings, and its calls work from C. */
#include <attn/attn.h>
#include <string.h>

int attn_test_from_c(void);

/* 0 when q = 1, k = 1, v = 3 over two keys gives o = 3 and lse = 1 + log 2. */
int attn_test_from_c(void) {
  float q[1] = {1.0F}, k[2] = {1.0F, 1.0F}, v[2] = {3.0F, 3.0F}, o[1] = {0.0F}, lse[1] = {0.0F};
  const int64_t one[4] = {1, 1, 1, 1}, two[4] = {1, 2, 1, 1}, row[3] = {1, 1, 1};
  attn_context* context = NULL;
  attn_problem problem;
  attn_arguments arguments;
  attn_tensor tq, tk, tv, to, tl;
  float error;
  const uint32_t size = (uint32_t)sizeof(attn_tensor);
  if (attn_tensor_contiguous(&tq, size, q, ATTN_F32, 4, one) != ATTN_OK ||
      attn_tensor_contiguous(&tk, size, k, ATTN_F32, 4, two) != ATTN_OK ||
      attn_tensor_contiguous(&tv, size, v, ATTN_F32, 4, two) != ATTN_OK ||
      attn_tensor_contiguous(&to, size, o, ATTN_F32, 4, one) != ATTN_OK ||
      attn_tensor_contiguous(&tl, size, lse, ATTN_F32, 3, row) != ATTN_OK) {
    return 1;
  }
  if (ATTN_INIT(attn_arguments, &arguments) != ATTN_OK) return 2;
  if (ATTN_INIT(attn_problem, &problem) != ATTN_OK) return 3;
  arguments.q = &tq;
  arguments.k = &tk;
  arguments.v = &tv;
  arguments.o = &to;
  arguments.lse = &tl;
  if (attn_describe(&arguments, &problem) != ATTN_OK) return 4;
  if (attn_context_create(NULL, &context) != ATTN_OK) return 5;
  if (attn_forward(context, &problem, &arguments) != ATTN_OK) return 6;
  attn_context_destroy(context);
  error = o[0] - 3.0F;
  if (!(error < 1e-5F && error > -1e-5F)) return 7;
  error = lse[0] - 1.6931472F;
  if (!(error < 1e-5F && error > -1e-5F)) return 8;
  return strcmp(attn_version(), "0.1.0") == 0 ? 0 : 9;
}
