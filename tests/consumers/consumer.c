/* A program outside the tree, in C: one forward on a tiny problem. 0 when the result is right. */
#include <attn/attn.h>
#include <math.h>
#include <stdio.h>

static int check(int32_t code) {
  if (code != ATTN_OK) fprintf(stderr, "%s: %s\n", attn_error_name(code), attn_last_error());
  return code != ATTN_OK;
}

int main(void) {
  enum { kLen = 4, kDim = 2 };
  float q[kLen * kDim] = {0}, k[kLen * kDim] = {0}, v[kLen * kDim], o[kLen * kDim];
  const int64_t shape[4] = {1, kLen, 1, kDim};
  attn_tensor tensors[4];
  float* data[4];
  attn_context* context = NULL;
  attn_problem problem;
  attn_arguments arguments;
  int i, failed = 0;
  data[0] = q, data[1] = k, data[2] = v, data[3] = o;
  for (i = 0; i < kLen * kDim; ++i) v[i] = (float)(i / kDim);
  for (i = 0; i < 4; ++i) {
    failed |= check(attn_tensor_contiguous(&tensors[i], (uint32_t)sizeof tensors[i], data[i],
                                           ATTN_F32, 4, shape));
  }
  failed |= check(ATTN_INIT(attn_arguments, &arguments));
  failed |= check(ATTN_INIT(attn_problem, &problem));
  arguments.q = &tensors[0];
  arguments.k = &tensors[1];
  arguments.v = &tensors[2];
  arguments.o = &tensors[3];
  failed |= check(attn_describe(&arguments, &problem));
  problem.causal = 1;
  failed |= check(attn_context_create(NULL, &context));
  if (failed) return 1;
  failed = check(attn_forward(context, &problem, &arguments));
  attn_context_destroy(context);
  /* Scores are all 0: row i is the mean of 0..i. */
  for (i = 0; i < kLen * kDim; ++i) {
    if (!(fabs(o[i] - 0.5 * (i / kDim)) < 1e-6)) failed = 1;
  }
  printf("attn %s from C: %s\n", attn_version(), failed ? "wrong" : "right");
  return failed;
}
