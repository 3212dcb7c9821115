/* libattn, C interface: exact softmax attention, forward, backward and decode, in linear memory.
 *
 * docs/semantics.md defines what is computed; each field states its shape. Symbols: b batch, h
 * heads_q, g heads_kv, n len_q, m len_kv.
 *
 * Conventions
 * - Every struct begins with struct_size = sizeof the struct. Fill structs with their attn_*_init
 *   function (or macro) first, then set fields. A wrong struct_size is an error. Reserved fields
 *   are zero.
 * - Enums and switches are int32_t; a switch is on when it is not 0.
 * - A NULL tensor pointer means "not given"; numbers that may be absent have a has_ flag.
 * - Functions return ATTN_OK or an error code; attn_last_error() names in one line the broken rule,
 *   what was found and what is accepted. A call that returns ATTN_INVALID_ARGUMENT or
 *   ATTN_UNSUPPORTED launches and writes nothing. After other errors, all that the call writes is
 *   unspecified.
 * - Text goes into the caller's buffer: at most `size` bytes with the final 0; *needed (may be
 *   NULL) is set to the bytes that the complete text needs.
 * - Nothing here prints, exits, synchronizes a device or picks a stream. One context may serve many
 *   threads at once.
 */
#ifndef ATTN_ATTN_H
#define ATTN_ATTN_H

#include <attn/export.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Error codes. */
enum {
  ATTN_OK = 0,
  ATTN_INVALID_ARGUMENT = 1, /* the input breaks a rule */
  ATTN_UNSUPPORTED = 2,      /* valid, but no usable backend supports it */
  ATTN_OUT_OF_MEMORY = 3,
  ATTN_DEVICE_ERROR = 4, /* a call of a driver or runtime failed */
  ATTN_INTERNAL = 5,     /* a bug in libattn */
  ATTN_INTERRUPTED = 6   /* attn_arguments.should_stop ended the call; outputs are unspecified */
};

/* Element types; NONE in an attn_problem means "as dtype". */
enum {
  ATTN_NONE = 0,
  ATTN_F32 = 1,
  ATTN_F16 = 2,
  ATTN_BF16 = 3,
  ATTN_F64 = 4,
  ATTN_F8E4M3 = 5,
  ATTN_F8E5M2 = 6,
  ATTN_I32 = 7,
  ATTN_U8 = 8,
  ATTN_I8 = 9 /* only k and v */
};

enum { ATTN_HOST = 0, ATTN_CUDA = 1, ATTN_WEBGPU = 2 };
enum { ATTN_FORWARD = 0, ATTN_BACKWARD = 1, ATTN_DECODE = 2 };
enum { ATTN_PADDED = 0, ATTN_PACKED = 1 };
enum { ATTN_BOTTOM_RIGHT = 0, ATTN_TOP_LEFT = 1, ATTN_EXPLICIT = 2 };
enum { ATTN_TF32X3 = 0, ATTN_TF32 = 1, ATTN_IEEE = 2 };
enum { ATTN_ROPE_NONE = 0, ATTN_ROPE_INTERLEAVED = 1, ATTN_ROPE_HALF = 2 };

/* Bits of attn_problem.mask and .bias: which dimensions of [b|1, h|1, n|1, m|1] are full; the
 * others are broadcast (size 1 or stride 0). 0 = not given. The batch dimension may have b/n
 * entries, each shared by n consecutive sequences: n is attn_problem.mask_per_entry or
 * .bias_per_entry. */
enum {
  ATTN_EXTENT_GIVEN = 1,
  ATTN_EXTENT_BATCH = 2,
  ATTN_EXTENT_HEAD = 4,
  ATTN_EXTENT_Q = 8,
  ATTN_EXTENT_KV = 16
};

/* attn_problem.split_keys */
enum { ATTN_SPLIT_AUTO = 0, ATTN_SPLIT_NONE = -1 };

/* A strided view of memory on one device. */
typedef struct attn_tensor {
  uint32_t struct_size;
  int32_t dtype;        /* ATTN_F32, ... */
  int32_t device;       /* ATTN_HOST, ... */
  int32_t ordinal;      /* which CUDA device; 0 elsewhere */
  int32_t rank;         /* 1 to 4; 0 = not given */
  uint32_t reserved;    /* 0 */
  void* data;           /* address, or WGPUBuffer for ATTN_WEBGPU; inputs are not written */
  int64_t offset_bytes; /* added to the address or position of the first element */
  int64_t shape[4];
  int64_t strides[4]; /* in elements; the last is 1; inputs may have 0 (expanded) */
} attn_tensor;

/* Fills a contiguous (row-major) view of host memory. rank 1 to 4. */
ATTN_API int32_t attn_tensor_contiguous(attn_tensor* tensor, uint32_t struct_size, void* data,
                                        int32_t dtype, int32_t rank, const int64_t* shape);

/* What the choice of a kernel depends on: attn::Problem, field by field. */
typedef struct attn_problem {
  uint32_t struct_size;
  int32_t dtype;       /* of q */
  int32_t dtype_kv;    /* k, v and the KV cache */
  int32_t dtype_out;   /* o and dout: dtype or f32; with f8 inputs bf16, f16 or f32 */
  int32_t dtype_grad;  /* dq, dk, dv: dtype or f32 */
  int32_t dtype_bias;  /* f32, f16, bf16 (f64 with f64 inputs); none = f32 (f64) */
  int32_t dtype_dbias; /* f32 or the bias's type; none = the bias's type */
  int32_t precision;   /* ATTN_TF32X3, ...: f32 products on CUDA */
  int32_t layout_q;    /* ATTN_PADDED or ATTN_PACKED */
  int32_t layout_kv;
  int32_t lengths_q; /* len_q is given */
  int32_t lengths_kv;
  int32_t causal;
  int32_t diagonal;         /* ATTN_BOTTOM_RIGHT, ... */
  int32_t has_window_left;  /* 0 = unlimited */
  int32_t has_window_right; /* 0 = unlimited */
  int32_t kv_begin;
  int32_t kv_end;
  uint32_t mask; /* ATTN_EXTENT_* bits */
  int32_t softcap;
  int32_t alibi;
  uint32_t bias; /* ATTN_EXTENT_* bits */
  int32_t sink;
  int32_t dropout;
  int32_t rope;           /* ATTN_ROPE_NONE, ... */
  int32_t rope_tables;    /* rope_cos and rope_sin are given */
  int32_t rope_positions; /* rope_pos_q and rope_pos_k are given */
  int32_t lse;            /* forward: write lse (default 1) */
  int32_t dlse;           /* backward: a gradient of lse is given */
  int32_t delta;          /* backward: delta is given; o is then not read */
  int32_t dq;             /* backward: which gradients to write (default 1, 1, 1, 0, 0) */
  int32_t dk;
  int32_t dv;
  int32_t dbias;
  int32_t dsink;
  int32_t accumulate;     /* add to the gradients instead of overwriting them */
  int32_t deterministic;  /* bit-identical from run to run for the same plan */
  int32_t nonfinite_zero; /* write 0 for non-finite elements of o and gradients; count them */
  int32_t descale_rows;   /* descale_k and descale_v have a factor for each row or page */
  int64_t batch;
  int64_t heads_q; /* a multiple of heads_kv */
  int64_t heads_kv;
  int64_t len_q; /* the largest of the batch */
  int64_t len_kv;
  int64_t dim_qk;  /* 1 to 512 */
  int64_t dim_vo;  /* 1 to 512 */
  int64_t total_q; /* rows of packed tensors */
  int64_t total_kv;
  int64_t window_left;
  int64_t window_right;
  int64_t rot_dim;        /* even; 0 = dim_qk */
  int64_t page_size;      /* 0 = not paged */
  int64_t len_new;        /* decode: rows to append */
  int64_t split_keys;     /* decode: split every n keys, ATTN_SPLIT_AUTO or ATTN_SPLIT_NONE */
  int64_t mask_per_entry; /* sequences that share an entry of the mask's batch; 0 = 1 */
  int64_t bias_per_entry; /* the same for the bias */
  uint64_t reserved[2];
} attn_problem;

/* Returns a value other than 0 to end the running call. */
typedef int32_t (*attn_should_stop)(void* user);

/* What may change from call to call. */
typedef struct attn_arguments {
  uint32_t struct_size;
  int32_t has_scale;  /* 0 = 1 / sqrt(dim_qk) */
  int32_t has_diag;   /* with diagonal = ATTN_EXPLICIT */
  int32_t has_stream; /* a NULL stream is a valid stream */

  const attn_tensor* q;   /* [b, n, h, dim_qk], packed [total_q, h, dim_qk] */
  const attn_tensor* k;   /* [b, m, g, dim_qk], packed; paged [pages, page_size, g, dim_qk] */
  const attn_tensor* v;   /* [b, m, g, dim_vo], packed; paged [pages, page_size, g, dim_vo] */
  const attn_tensor* o;   /* [b, n, h, dim_vo], packed: output of forward, input of backward */
  const attn_tensor* lse; /* [b, h, n], packed [h, total_q]: output, then input */

  const attn_tensor* bias;         /* [b|b/s|1, h|1, n|1, m|1] */
  const attn_tensor* mask;         /* the same shape, u8 */
  const attn_tensor* alibi_slopes; /* [h] or [b, h] */
  const attn_tensor* sinks;        /* [h] */
  const attn_tensor* len_q;        /* i32 [b] */
  const attn_tensor* len_kv;       /* i32 [b], before the append */
  const attn_tensor* cu_len_q;     /* i32 [b + 1] */
  const attn_tensor* cu_len_kv;    /* i32 [b + 1] */
  const attn_tensor* kv_begin;     /* i32 [b|1, n], packed [total_q] */
  const attn_tensor* kv_end;       /* i32 [b|1, n], packed [total_q] */
  const attn_tensor* block_table;  /* i32 [b, pages per sequence] */
  const attn_tensor* k_new;        /* [b, len_new, g, dim_qk] */
  const attn_tensor* v_new;        /* [b, len_new, g, dim_vo] */
  const attn_tensor* descale_q;    /* f32 [b, g], f8 types */
  const attn_tensor* descale_k;    /* f32 [b, g]; see attn::Arguments for descale_rows */
  const attn_tensor* descale_v;
  const attn_tensor* rope_cos;        /* [positions, rot_dim / 2] */
  const attn_tensor* rope_sin;        /* the same shape */
  const attn_tensor* rope_pos_q;      /* i32 [b|1, n], packed [total_q] */
  const attn_tensor* rope_pos_k;      /* i32 [b|1, m], packed [total_kv]; decode [b|1, len_new] */
  const attn_tensor* nonfinite_count; /* i32 [1], added to */

  const attn_tensor* dout;  /* shaped like o */
  const attn_tensor* dlse;  /* shaped like lse */
  const attn_tensor* delta; /* shaped like lse: dot(dout, o) - dlse */
  const attn_tensor* dq;    /* outputs, shaped like q, k, v */
  const attn_tensor* dk;
  const attn_tensor* dv;
  const attn_tensor* dbias; /* the broadcast shape of bias */
  const attn_tensor* dsink; /* [h] */

  double scale;
  double softcap;               /* > 0 with attn_problem.softcap */
  double dropout_p;             /* 0 or [1/512, 1) with attn_problem.dropout */
  uint64_t seed;                /* used if seed_pointer is NULL */
  uint64_t offset;              /* used if offset_pointer is NULL */
  const uint64_t* seed_pointer; /* memory of the tensors' device, read when the work runs */
  const uint64_t* offset_pointer;
  int64_t diag;
  int64_t origin_batch; /* first sequence, head, query and key in a larger problem */
  int64_t origin_head;
  int64_t origin_q;
  int64_t origin_kv;
  int64_t origin_heads_q; /* heads of the larger problem; 0 = those of this call */
  double rope_base;       /* default 10000 */
  int64_t rope_pos_offset;

  void* workspace; /* 64-byte aligned, on the tensors' device; NULL = the context's pool */
  int64_t workspace_size;
  void* stream;
  /* Interrupts a long call on the CPU or the reference backend, see attn::Arguments. NULL = never.
   * It runs on the calling thread, first after 20 ms and then about every 20 ms. If it returns a
   * value other than 0, the call returns ATTN_INTERRUPTED, and all that it writes is unspecified.
   */
  attn_should_stop should_stop;
  void* should_stop_user;
  uint64_t reserved[2];
} attn_arguments;

/* Combines two partial results over disjoint keys. o and lse may be o1 and lse1. */
typedef struct attn_merge_arguments {
  uint32_t struct_size;
  int32_t has_stream;
  const attn_tensor* o1;   /* [b, n, h, dim] or [total, h, dim]: f32 or the type of o */
  const attn_tensor* lse1; /* [b, h, n] or [h, total] */
  const attn_tensor* o2;   /* NULL = zeros: merges a sink last */
  const attn_tensor* lse2;
  const attn_tensor* o;   /* output */
  const attn_tensor* lse; /* output, may be NULL */
  void* stream;
  uint64_t reserved[2];
} attn_merge_arguments;

/* The gradients of merge. dlse and each output may be NULL. */
typedef struct attn_merge_backward_arguments {
  uint32_t struct_size;
  int32_t has_stream;
  const attn_tensor* o1;
  const attn_tensor* lse1;
  const attn_tensor* o2;
  const attn_tensor* lse2;
  const attn_tensor* o;
  const attn_tensor* lse;
  const attn_tensor* dout;
  const attn_tensor* dlse;
  const attn_tensor* dout1; /* outputs */
  const attn_tensor* dlse1;
  const attn_tensor* dout2;
  const attn_tensor* dlse2;
  void* stream;
  uint64_t reserved[2];
} attn_merge_backward_arguments;

/* Rotary embedding. out may be x. */
typedef struct attn_rope_arguments {
  uint32_t struct_size;
  int32_t has_stream;
  int32_t style;        /* ATTN_ROPE_INTERLEAVED or ATTN_ROPE_HALF (default) */
  int32_t inverse;      /* rotate by the negative angle */
  const attn_tensor* x; /* [b, n, h, dim] or [total, h, dim] */
  const attn_tensor* out;
  const attn_tensor* positions; /* i32 [b|1, n] or [total]; NULL: row + pos_offset */
  const attn_tensor* cu_len;    /* packed: i32 [b + 1]; rows of no sequence count from 0 */
  const attn_tensor* cos;       /* [positions, rot_dim / 2] instead of base */
  const attn_tensor* sin;
  int64_t rot_dim; /* even, <= dim; 0 = dim */
  int64_t pos_offset;
  double base; /* default 10000 */
  void* stream;
  uint64_t reserved[2];
} attn_rope_arguments;

/* Runs body(body_data, worker) once for each worker in [0, workers) and returns when all have. */
typedef void (*attn_parallel_for)(void* user, int32_t workers,
                                  void (*body)(void* body_data, int32_t worker), void* body_data);

typedef struct attn_context_options {
  uint32_t struct_size;
  int32_t threads;                /* 0 = ATTN_NUM_THREADS, else one per available processor */
  attn_parallel_for parallel_for; /* NULL = OpenMP: linked, or the one that the process has loaded,
                                     else libattn's own threads. One thread with ATTN_OPENMP=OFF. */
  void* parallel_for_user;
  const char* backend;   /* the one backend to use; NULL = by device */
  const char* cache_dir; /* NULL = ATTN_CACHE_DIR, else the user's cache folder */
  int64_t pool_bytes;    /* scratch memory kept between calls; default 256 MiB */
  uint64_t reserved[4];
} attn_context_options;

typedef struct attn_outputs {
  uint32_t struct_size;
  uint32_t reserved;
  attn_tensor o, lse, dq, dk, dv, dbias, dsink; /* data is NULL; rank 0 = no such output */
} attn_outputs;

/* Longer texts are truncated to fit these structs. */
typedef struct attn_verdict {
  uint32_t struct_size;
  int32_t supported;
  char backend[32];  /* the backend that would run the call */
  char reason[1024]; /* why not, for each backend; empty when supported */
} attn_verdict;

typedef struct attn_plan_summary {
  uint32_t struct_size;
  uint32_t reserved;
  char backend[32];
  char kernel[96];
  char config[384];
  int64_t tile_q;
  int64_t tile_kv;
  int64_t tasks;
  int64_t workspace_bytes;
} attn_plan_summary;

typedef struct attn_backend_info {
  uint32_t struct_size;
  int32_t built;
  int32_t usable;
  uint32_t reserved;
  char name[32];
  char detail[256];
} attn_backend_info;

/* What attn_cache_build compiles ahead of time. */
typedef struct attn_cache_request {
  uint32_t struct_size;
  int32_t device; /* ATTN_CUDA */
  int32_t num_calls;
  int32_t num_architectures;
  const int32_t* passes;        /* [num_calls] ATTN_FORWARD, ... */
  const attn_problem* problems; /* [num_calls] */
  const int32_t* architectures; /* compute capability times 10; none: this machine's devices */
  int32_t threads;              /* that compile; 0 = one per processor */
  uint32_t reserved;            /* 0 */
} attn_cache_request;

typedef struct attn_cache_result {
  uint32_t struct_size;
  uint32_t reserved;
  int64_t binaries; /* number that the calls need */
  int64_t compiled; /* number compiled now; the others were in the cache */
  int64_t refused;  /* calls without a kernel, counted for each architecture */
  char reason[256]; /* why the first one was refused */
} attn_cache_result;

/* One file of the cache. */
typedef struct attn_cache_entry {
  uint32_t struct_size;
  int32_t valid; /* 0: damaged, or of another version; recompiled when needed */
  int64_t bytes;
  char architecture[16];
  char compiler[16];
  char kernel[1024]; /* source and constants */
  char path[1024];
} attn_cache_entry;

/* Defaults. struct_size is the sizeof that the caller was compiled with. */
ATTN_API int32_t attn_problem_init(attn_problem* problem, uint32_t struct_size);
ATTN_API int32_t attn_arguments_init(attn_arguments* arguments, uint32_t struct_size);
ATTN_API int32_t attn_merge_arguments_init(attn_merge_arguments* arguments, uint32_t struct_size);
ATTN_API int32_t attn_merge_backward_arguments_init(attn_merge_backward_arguments* arguments,
                                                    uint32_t struct_size);
ATTN_API int32_t attn_rope_arguments_init(attn_rope_arguments* arguments, uint32_t struct_size);
ATTN_API int32_t attn_context_options_init(attn_context_options* options, uint32_t struct_size);
ATTN_API int32_t attn_cache_request_init(attn_cache_request* request, uint32_t struct_size);

/* The same with the size filled in: ATTN_INIT(attn_problem, &problem). */
#define ATTN_INIT(type, pointer) type##_init((pointer), (uint32_t)sizeof(type))

typedef struct attn_context attn_context;

/* options may be NULL: defaults. attn_context_destroy frees *context. */
ATTN_API int32_t attn_context_create(const attn_context_options* options, attn_context** context);
ATTN_API void attn_context_destroy(attn_context* context); /* NULL is allowed */
ATTN_API int32_t attn_context_threads(const attn_context* context);

ATTN_API int32_t attn_forward(attn_context* context, const attn_problem* problem,
                              const attn_arguments* arguments);
ATTN_API int32_t attn_backward(attn_context* context, const attn_problem* problem,
                               const attn_arguments* arguments);
ATTN_API int32_t attn_decode(attn_context* context, const attn_problem* problem,
                             const attn_arguments* arguments);
ATTN_API int32_t attn_merge(attn_context* context, const attn_merge_arguments* arguments);
ATTN_API int32_t attn_merge_backward(attn_context* context,
                                     const attn_merge_backward_arguments* arguments);
ATTN_API int32_t attn_rope(attn_context* context, const attn_rope_arguments* arguments);

/* The problem that tensors and numbers determine; the other fields keep their defaults.
 * problem->struct_size must be set. */
ATTN_API int32_t attn_describe(const attn_arguments* arguments, attn_problem* problem);

/* Returns the error that such a call would return if the problem, a tensor's type or shape, or a
 * number breaks a rule. Launches nothing and reads no tensor's data. */
ATTN_API int32_t attn_validate(int32_t pass, const attn_problem* problem,
                               const attn_arguments* arguments);

/* Compiles and loads what such a call needs. */
ATTN_API int32_t attn_prepare(attn_context* context, int32_t pass, const attn_problem* problem,
                              int32_t device);
/* Bytes of scratch memory that such a call uses in total. */
ATTN_API int32_t attn_workspace_bytes(attn_context* context, int32_t pass,
                                      const attn_problem* problem, int32_t device, int64_t* bytes);

/* Each of these fills a struct whose struct_size the caller has set. */
ATTN_API int32_t attn_output_shapes(int32_t pass, const attn_problem* problem,
                                    attn_outputs* outputs);
ATTN_API int32_t attn_supports(attn_context* context, int32_t pass, const attn_problem* problem,
                               int32_t device, attn_verdict* verdict);
ATTN_API int32_t attn_plan(attn_context* context, int32_t pass, const attn_problem* problem,
                           int32_t device, attn_plan_summary* summary);
/* The backend at `index`, in order of preference; *count (may be NULL) is their number. */
ATTN_API int32_t attn_backend_at(attn_context* context, int32_t index, attn_backend_info* info,
                                 int32_t* count);

/* The cache of compiled kernels in attn_context_options.cache_dir, for devices that have one
 * (ATTN_CUDA). attn_cache_build needs the compiler, but no device and no driver. */
ATTN_API int32_t attn_cache_build(attn_context* context, const attn_cache_request* request,
                                  attn_cache_result* result);
ATTN_API int32_t attn_cache_folder(attn_context* context, int32_t device, char* buffer, size_t size,
                                   size_t* needed);
/* Fills up to `capacity` entries, sorted by path. The caller sets struct_size in each. *count (may
 * be NULL) is the number of files in the cache. */
ATTN_API int32_t attn_cache_list(attn_context* context, int32_t device, attn_cache_entry* entries,
                                 int32_t capacity, int32_t* count);
/* *removed (may be NULL) is the number of removed files. */
ATTN_API int32_t attn_cache_clear(attn_context* context, int32_t device, int64_t* removed);

/* How a call is dispatched, as text: validation, verdict of each backend, plan. */
ATTN_API int32_t attn_explain(attn_context* context, int32_t pass, const attn_problem* problem,
                              int32_t device, char* buffer, size_t size, size_t* needed);
/* Prints a problem as one line of key=value words, and parses it. problem->struct_size must be set.
 */
ATTN_API int32_t attn_problem_print(const attn_problem* problem, char* buffer, size_t size,
                                    size_t* needed);
ATTN_API int32_t attn_problem_parse(const char* text, attn_problem* problem);

/* Handlers for XLA's foreign function interface, which libattn.jax registers for the platforms
 * "cpu" and "CUDA": call_frame is an XLA_FFI_CallFrame*, the result an XLA_FFI_Error*.
 * src/api/xla.cpp lists the attributes that they read. */
ATTN_API void* attn_xla_forward_host(void* call_frame);
ATTN_API void* attn_xla_backward_host(void* call_frame);
ATTN_API void* attn_xla_forward_cuda(void* call_frame);
ATTN_API void* attn_xla_backward_cuda(void* call_frame);
/* Sets the number of CPU threads for later calls of these handlers; 0 = the default of
 * attn_context_options.threads. */
ATTN_API int32_t attn_xla_set_threads(int32_t threads);

/* The message of the last error of this thread; "" before the first. Valid until its next error. */
ATTN_API const char* attn_last_error(void);
ATTN_API const char* attn_version(void);             /* "0.1.0" */
ATTN_API const char* attn_error_name(int32_t code);  /* "invalid_argument", ...; "?" */
ATTN_API const char* attn_dtype_name(int32_t dtype); /* "f32", ...; "?" */
ATTN_API int64_t attn_dtype_size(int32_t dtype);     /* bytes of an element; 0 = unknown */

#ifdef __cplusplus
}
#endif

#endif
