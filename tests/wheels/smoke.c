/* Tests a library through the C interface: forward, backward and bad input, compared with a naive
 * softmax in double. It needs no Python, so it runs under an emulator too. Prints one line; exit
 * status 1 after an error. */
#include <attn/attn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEN_Q = 37, LEN_KV = 53, HEADS = 4, DIM = 24 };

static float q[LEN_Q * HEADS * DIM], k[LEN_KV * HEADS * DIM], v[LEN_KV * HEADS * DIM];
static float o[LEN_Q * HEADS * DIM], lse[HEADS * LEN_Q], grad[LEN_Q * HEADS * DIM];
static float dq[LEN_Q * HEADS * DIM], dk[LEN_KV * HEADS * DIM], dv[LEN_KV * HEADS * DIM];
static double p[LEN_KV];
static double want_o[LEN_Q * HEADS * DIM], want_dq[LEN_Q * HEADS * DIM];
static double want_dk[LEN_KV * HEADS * DIM], want_dv[LEN_KV * HEADS * DIM];

static void must(int32_t code) {
  if (code == ATTN_OK) return;
  fprintf(stderr, "%s: %s\n", attn_error_name(code), attn_last_error());
  exit(1);
}

/* [1, len, HEADS, DIM] */
static attn_tensor rows(float* data, int64_t len) {
  const int64_t shape[4] = {1, len, HEADS, DIM};
  attn_tensor view;
  must(attn_tensor_contiguous(&view, sizeof view, data, ATTN_F32, 4, shape));
  return view;
}

static void fill(float* x, int count) {
  for (int n = 0; n < count; ++n) x[n] = 2.0f * (float)rand() / (float)RAND_MAX - 1.0f;
}

/* One causal row: its output, and what it adds to the gradients. */
static void naive_row(int n, int h, double scale) {
  const int seen = n + LEN_KV - LEN_Q + 1; /* the last query sees the last key */
  const int at = (n * HEADS + h) * DIM;
  double most = -INFINITY, sum = 0.0, delta = 0.0;
  for (int m = 0; m < seen; ++m) {
    p[m] = 0.0;
    for (int d = 0; d < DIM; ++d) p[m] += scale * q[at + d] * k[(m * HEADS + h) * DIM + d];
    if (p[m] > most) most = p[m];
  }
  for (int m = 0; m < seen; ++m) sum += p[m] = exp(p[m] - most);
  for (int m = 0; m < seen; ++m) {
    p[m] /= sum;
    for (int d = 0; d < DIM; ++d) want_o[at + d] += p[m] * v[(m * HEADS + h) * DIM + d];
  }
  for (int d = 0; d < DIM; ++d) delta += grad[at + d] * want_o[at + d];
  for (int m = 0; m < seen; ++m) {
    const int key = (m * HEADS + h) * DIM;
    double dp = 0.0;
    for (int d = 0; d < DIM; ++d) dp += grad[at + d] * v[key + d];
    const double ds = p[m] * (dp - delta) * scale;
    for (int d = 0; d < DIM; ++d) {
      want_dv[key + d] += p[m] * grad[at + d];
      want_dq[at + d] += ds * k[key + d];
      want_dk[key + d] += ds * q[at + d];
    }
  }
}

static double worst(const float* found, const double* wanted, int count) {
  double most = 0.0;
  for (int n = 0; n < count; ++n) {
    const double error = fabs(found[n] - wanted[n]);
    if (!(error <= most)) most = error;
  }
  return most;
}

int main(void) {
  attn_context* context = NULL;
  must(attn_context_create(NULL, &context));
  fill(q, LEN_Q * HEADS * DIM);
  fill(k, LEN_KV * HEADS * DIM);
  fill(v, LEN_KV * HEADS * DIM);
  fill(grad, LEN_Q * HEADS * DIM);
  attn_tensor tq = rows(q, LEN_Q), tk = rows(k, LEN_KV), tv = rows(v, LEN_KV), to = rows(o, LEN_Q);
  attn_tensor tgrad = rows(grad, LEN_Q), tdq = rows(dq, LEN_Q), tdk = rows(dk, LEN_KV);
  attn_tensor tdv = rows(dv, LEN_KV), tlse;
  const int64_t lse_shape[3] = {1, HEADS, LEN_Q};
  must(attn_tensor_contiguous(&tlse, sizeof tlse, lse, ATTN_F32, 3, lse_shape));

  attn_arguments a;
  ATTN_INIT(attn_arguments, &a);
  a.q = &tq, a.k = &tk, a.v = &tv, a.o = &to, a.lse = &tlse;
  attn_problem problem;
  ATTN_INIT(attn_problem, &problem);
  must(attn_describe(&a, &problem));
  problem.causal = 1;
  must(attn_forward(context, &problem, &a));
  a.dout = &tgrad, a.dq = &tdq, a.dk = &tdk, a.dv = &tdv;
  must(attn_backward(context, &problem, &a));
  for (int h = 0; h < HEADS; ++h) {
    for (int n = 0; n < LEN_Q; ++n) naive_row(n, h, 1.0 / sqrt((double)DIM));
  }
  const double errors[4] = {
      worst(o, want_o, LEN_Q * HEADS * DIM), worst(dq, want_dq, LEN_Q * HEADS * DIM),
      worst(dk, want_dk, LEN_KV * HEADS * DIM), worst(dv, want_dv, LEN_KV * HEADS * DIM)};

  problem.heads_kv = 3; /* 4 query heads can't share 3 */
  const int refused =
      attn_forward(context, &problem, &a) == ATTN_INVALID_ARGUMENT && strlen(attn_last_error()) > 0;
  const int threads = attn_context_threads(context);
  attn_context_destroy(context);
  printf("libattn %s, %d threads: o %.1e, dq %.1e, dk %.1e, dv %.1e; bad input %s\n",
         attn_version(), threads, errors[0], errors[1], errors[2], errors[3],
         refused ? "refused" : "ACCEPTED");
  for (int n = 0; n < 4; ++n) {
    if (!(errors[n] <= 1e-5)) return 1;
  }
  return refused ? 0 : 1;
}
