/* What the CUDA files share: the backend's state, error checks, and the entry points between them. */
#pragma once
/* The contract's headers are C, which leaves the rest of an initialiser zero without a warning. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
extern "C" {
#include "kernels/cuda/cuda.h"
}
#pragma GCC diagnostic pop
#include "kernels/cuda/fused/gpcs.h"
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <nvtx3/nvToolsExt.h>
#include <string>

struct GemmTable;
struct FusedTable;
struct AttentionPlans;
struct OpTimes;

struct CudaBackend {
    CudaOptions      options;
    char             cache_dir[512];    /* behind options.cache_dir */
    bool             planning;          /* no device behind it */
    cudaStream_t     stream;
    cublasLtHandle_t lt;
    GemmTable       *gemms;             /* one entry a shape: descriptors and the chosen algorithm */
    FusedTable      *fused;             /* choices between library and fused kernels, one entry a shape */
    AttentionPlans  *attention;         /* cuDNN's plans, one pair a shape; NULL without cuDNN */
    int              multiprocessors;
    int64_t          cache_bytes;       /* of the L2 cache */
    bool             said_measuring, measuring;     /* timing.h */
    double           measured_s;        /* seconds that choices have taken */
    bool             sm90;              /* Hopper: the fused kernels run */
    bool             overlap;           /* separate kernels may begin before the one ahead has ended: launch.cuh */
    Gpcs             gpcs;              /* of Hopper */
    unsigned        *finished_blocks;   /* device: blocks of a kernel that are done; 0 between kernels */
    unsigned        *parts_arrived;     /* device, [multiprocessors]: of a split tile; 0 between kernels */
    double           ran_flops[OP_COUNT];       /* of an op's largest call that had the choice, and ... */
    bool             unfit[OP_COUNT];   /* ... whether its fused form, or cuDNN, does not take that */
    char             choices[OP_COUNT][96];     /* texts that Ops.choice returned */
    OpTimes         *times;             /* NULL: ops are not timed */
    nvtxDomainHandle_t ranges;          /* "llama" */
    char             gpu[256];          /* device name */
    char             versions[512];
};

static inline CudaBackend *backend_of(const OpContext *ctx) { return (CudaBackend *)ctx->backend; }
static inline cudaStream_t stream_of(const OpContext *ctx) { return (cudaStream_t)ctx->stream; }

/* Ends the process with exit code 1 after one line: file, line, op, cause. */
[[noreturn]] void cuda_fail(const char *file, int line, const char *op, const char *call, const char *cause);

#define CUDA_CHECK(op, call)                                                                      \
    do {                                                                                          \
        cudaError_t status_ = (call);                                                             \
        if (status_ != cudaSuccess) cuda_fail(__FILE__, __LINE__, op, #call, cudaGetErrorString(status_)); \
    } while (0)

#define LAUNCH_CHECK(op) CUDA_CHECK(op_name(op), cudaGetLastError())

/* Stands at the head of every op: an NVTX range with the layer as its payload, and the op's time where those
 * are collected (times.cu). */
struct OpRange {
    OpRange(const OpContext *ctx, OpId op);
    ~OpRange();
    CudaBackend *backend;
    cudaEvent_t  end;       /* NULL: not timed */
};

void op_times_free(OpTimes *times);

/* The workspace: cublasLt's share, or the sums of a fused product's split tiles; then the op's own scratch. */
enum { GEMM_WORKSPACE = 32 << 20 };

static inline void *op_scratch(const OpContext *ctx) { return (char *)ctx->workspace + GEMM_WORKSPACE; }
static inline size_t op_scratch_bytes(const OpContext *ctx)
{
    return ctx->workspace_bytes > GEMM_WORKSPACE ? ctx->workspace_bytes - GEMM_WORKSPACE : 0;
}

/* ---- files of measured choices (cache.cu) ------------------------------------------------------- */

/* DIR/kind-GPU-cublaslt-VERSION.txt; makes the folder. Empty where none is wanted. Where it cannot be made, says so
 * and clears options.cache_dir, so that none is wanted any more. */
std::string cache_file(CudaBackend *backend, const char *kind);

/* What it holds; empty where there is none. */
std::string cache_read(const std::string &file);

/* Adds a line. Runs may share the file, so it goes out in one write; the line break before it ends what a full
 * disk may have left of an earlier one. Where it cannot be written, says so once and clears *file. */
void cache_append(std::string *file, const std::string &line);

/* Whether a product is worth measuring: it is large, and not over the few rows of a prompt, whose number is
 * another each time. */
static inline bool worth_measuring(int64_t tokens, double flops) { return tokens >= 256 && flops >= 2e9; }

/* ---- GEMM (unfused/gemm_lt.cu) ------------------------------------------------------------------ */

typedef enum GemmForm {
    GEMM_NT,    /* d = a b^T    a: [M, K]  b: [N, K] */
    GEMM_NN,    /* d = a b      a: [M, K]  b: [K, N] */
    GEMM_TN,    /* d = a^T b    a: [K, M]  b: [K, N] */
} GemmForm;

/* d = a b in that form, or, where d is f32, d += a b: a and b bf16, d bf16 or f32, summed in f32. The first call of a
 * shape measures and so waits, unless it is being recorded. */
void gemm(const OpContext *ctx, OpId op, GemmForm form, Tensor d, Tensor a, Tensor b, bool accumulate = false);

/* d = a b^T + c, all bf16, c of d's shape and stride, perhaps the same memory. Or, where measuring found that faster,
 * only the product for a kernel behind it that adds c itself: then `added` is false, and what is returned stands in d,
 * or in the op's scratch when c and d are the same memory. */
Tensor gemm_add(const OpContext *ctx, OpId op, Tensor d, Tensor a, Tensor b, Tensor c, bool *added);

GemmTable *gemm_table_open(CudaBackend *backend);
void gemm_table_close(GemmTable *table);
char *gemm_table_text(const GemmTable *table);
bool gemm_table_restore(CudaBackend *backend, const char *text, Errors *errors);

/* ---- attention ---------------------------------------------------------------------------------- */

/* cuDNN (attention_cudnn.cpp). False where it cannot take the shape: the reference does. */
bool cudnn_attention(const OpContext *ctx, Tensor o, float *lse, Tensor qkv, AttentionShape shape);
bool cudnn_attention_bwd(const OpContext *ctx, Tensor dqkv, Tensor d_o, Tensor qkv, Tensor o,
                         const float *lse, AttentionShape shape);
void cudnn_plans_close(AttentionPlans *plans);
const char *cudnn_version_text();
bool cudnn_built();

void reference_attention(const OpContext *ctx, Tensor o, float *lse, Tensor qkv, AttentionShape shape);
void reference_attention_bwd(const OpContext *ctx, Tensor dqkv, Tensor d_o, Tensor qkv, Tensor o,
                             const float *lse, AttentionShape shape);

/* ---- ops, one file each in unfused/ --------------------------------------------------------------- */

void cuda_embed(const OpContext *ctx, Tensor x, RowSums sumsq, const int32_t *tokens, Tensor table);
void cuda_qkv(const OpContext *ctx, Tensor qkv, Tensor x, Tensor w, RowNorm norm, Rope rope);
void cuda_qkv_grad(const OpContext *ctx, Tensor dqkv, RowSums zdz, Tensor qkv, RowNorm norm, Rope rope);
void cuda_residual(const OpContext *ctx, OpId op, Tensor out, RowSums sumsq, Tensor xg, Tensor a, Tensor w,
                   Tensor residual, const float *gamma);
void cuda_gate_up(const OpContext *ctx, Tensor z, Tensor y, Tensor x1, Tensor w, RowNorm norm);
void cuda_down_dx(const OpContext *ctx, Tensor dz, Tensor y, RowSums zdz, Tensor dx, Tensor w, Tensor z,
                  RowNorm norm);
void cuda_head(const OpContext *ctx, const HeadChunk *h);
void cuda_head_loss(const OpContext *ctx, const HeadChunk *h, StepStats *stats);
void cuda_head_dx(const OpContext *ctx, Tensor dx, float *dgamma, const HeadChunk *h, const float *gamma,
                  bool accumulate);
void cuda_head_dw(const OpContext *ctx, Tensor grad, const HeadChunk *h, bool accumulate);
/* The targets' share of it: grad[target] -= beta xg. */
void cuda_head_dw_targets(const OpContext *ctx, Tensor grad, const HeadChunk *h);
void cuda_head_eval(const OpContext *ctx, const HeadChunk *h);
void cuda_logits(const OpContext *ctx, Tensor logits, const HeadChunk *h);
void cuda_out_dx(const OpContext *ctx, Tensor d_o, Tensor dx1, Tensor w);
void cuda_dw(const OpContext *ctx, OpId op, Tensor grad, Tensor dy, Tensor a, bool accumulate, double *sumsq);
void cuda_norm_dx(const OpContext *ctx, OpId op, Tensor out, Tensor dz, Tensor w, Tensor residual_grad,
                  Tensor x, RowNorm norm, RowSums zdz);
void cuda_embed_dw(const OpContext *ctx, Tensor grad, const int32_t *tokens, const int32_t *order, Tensor dx,
                   bool accumulate);
void cuda_fold(const OpContext *ctx, const Weight *w);
void cuda_grad_norm(const OpContext *ctx, const Weight *w, double *sumsq);
void cuda_clip(const OpContext *ctx, const double *sumsq, int count, const Hyper *hyper, StepStats *stats);
void cuda_adamw(const OpContext *ctx, const Weight *w, const Hyper *hyper, const StepStats *stats);
void cuda_attention_cached(const OpContext *ctx, Tensor o, Tensor qkv, Tensor k_cache, Tensor v_cache,
                           int64_t past, AttentionShape shape);
int64_t cuda_count_nonfinite(const OpContext *ctx, Tensor t);

/* ---- shared by ops (weights.cu, head_grad.cu) -------------------------------------------------------- */

/* Sum of squares of a packed f32 matrix into *out, in one fixed order. */
void cuda_sum_squares(const OpContext *ctx, OpId op, Tensor grad, double *sumsq);

/* out (+)= sum over rows of partial, in one fixed order.     out: [cols] f32  partial: [rows, cols] f32 */
void cuda_column_sums(const OpContext *ctx, OpId op, float *out, const float *partial, int64_t rows,
                      int64_t cols, bool accumulate);

/* Bytes of op scratch for a weight of this size, and for a head chunk of this size. */
size_t cuda_norm_scratch(int64_t rows, int64_t cols, bool folded);
size_t cuda_head_dx_scratch(int64_t rows, int64_t cols);
size_t reference_attention_scratch(AttentionShape shape);
