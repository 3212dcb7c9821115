/* A generation loop through the C interface: each step appends one row to a cache of keys and
 * values and attends to the cache. The last step is compared with one forward over the complete
 * cache. */
#include <attn/attn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { CAPACITY = 64, STEPS = 50, HEADS_Q = 8, HEADS_KV = 2, DIM = 32 };

static float cache_k[CAPACITY * HEADS_KV * DIM], cache_v[CAPACITY * HEADS_KV * DIM];
static float q[HEADS_Q * DIM], k_new[HEADS_KV * DIM], v_new[HEADS_KV * DIM];
static float o[HEADS_Q * DIM], whole[HEADS_Q * DIM];

static attn_tensor tensor(void* data, int32_t dtype, int64_t len, int64_t heads) {
  const int64_t shape[4] = {1, len, heads, DIM};
  attn_tensor view;
  attn_tensor_contiguous(&view, sizeof view, data, dtype, 4, shape);
  return view;
}

static void fill(float* x, int count) {
  for (int n = 0; n < count; ++n) x[n] = 4.0f * (float)rand() / (float)RAND_MAX - 2.0f;
}

static void must(int32_t code) {
  if (code == ATTN_OK) return;
  fprintf(stderr, "%s: %s\n", attn_error_name(code), attn_last_error());
  exit(1);
}

int main(void) {
  attn_context* context = NULL;
  must(attn_context_create(NULL, &context));

  attn_tensor q_view = tensor(q, ATTN_F32, 1, HEADS_Q), o_view = tensor(o, ATTN_F32, 1, HEADS_Q);
  attn_tensor k_view = tensor(cache_k, ATTN_F32, CAPACITY, HEADS_KV);
  attn_tensor v_view = tensor(cache_v, ATTN_F32, CAPACITY, HEADS_KV);
  attn_tensor k_row = tensor(k_new, ATTN_F32, 1, HEADS_KV);
  attn_tensor v_row = tensor(v_new, ATTN_F32, 1, HEADS_KV);
  int32_t filled = 0; /* rows in the cache, before the append */
  const int64_t one = 1;
  attn_tensor len_kv;
  must(attn_tensor_contiguous(&len_kv, sizeof len_kv, &filled, ATTN_I32, 1, &one));

  attn_arguments a;
  ATTN_INIT(attn_arguments, &a);
  a.q = &q_view, a.k = &k_view, a.v = &v_view, a.o = &o_view;
  a.k_new = &k_row, a.v_new = &v_row, a.len_kv = &len_kv;
  attn_problem problem;
  ATTN_INIT(attn_problem, &problem);
  must(attn_describe(&a, &problem));
  problem.lse = 0;
  must(attn_prepare(context, ATTN_DECODE, &problem, ATTN_HOST)); /* the plan of every step */
  for (; filled < STEPS; ++filled) {
    fill(q, HEADS_Q * DIM);
    fill(k_new, HEADS_KV * DIM);
    fill(v_new, HEADS_KV * DIM);
    must(attn_decode(context, &problem, &a));
  }

  k_view.shape[1] = v_view.shape[1] = STEPS;
  attn_tensor whole_view = tensor(whole, ATTN_F32, 1, HEADS_Q);
  ATTN_INIT(attn_arguments, &a);
  a.q = &q_view, a.k = &k_view, a.v = &v_view, a.o = &whole_view;
  must(attn_describe(&a, &problem));
  problem.lse = 0;
  must(attn_forward(context, &problem, &a));
  attn_context_destroy(context);

  float worst = 0.0f;
  for (int n = 0; n < HEADS_Q * DIM; ++n) {
    const float difference = fabsf(o[n] - whole[n]);
    if (!(difference <= worst)) worst = difference;
  }
  printf("%d steps with libattn %s: the last differs from one forward by %.2g\n", STEPS,
         attn_version(), worst);
  return worst <= 1e-5f ? 0 : 1;
}
