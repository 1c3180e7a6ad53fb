/* Causal attention by cuDNN's fused kernels, through the headers of cudnn-frontend 1.18.0.
 *
 * q, k and v are strided views of packed qkv, and gradients go straight into packed dqkv: no copies. Plans
 * are built at the first call of a shape, which must not be captured. Three traps: every tensor needs its own
 * uid above those that the frontend deals out (it numbers its scalars from 1); execute() must be given
 * exactly the graph's own tensors; and where a sequence is no multiple of 128, the frontend gives cuDNN up to
 * 9.15 a padding mask for the backward pass whose lengths it copies from a temporary of the host, which a
 * recorded graph reads again long after. So such a mask comes from here, with lengths in device memory. */
#include "kernels/cuda/backend.h"
#include <cmath>
#include <cstdio>
#include <cudnn_frontend.h>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace fe = cudnn_frontend;

enum Uid : int64_t { UID_Q = 1001, UID_K, UID_V, UID_O, UID_LSE, UID_DO, UID_DQ, UID_DK, UID_DV,
                   UID_LENGTHS_Q, UID_LENGTHS_KV };

enum { UNMASKED_MULTIPLE = 128 };

typedef std::shared_ptr<fe::graph::Tensor_attributes> Node;
typedef std::unordered_map<int64_t, void *> Pack;

/* One graph and what it needs. batch: sequences a call; the batch is walked through in such steps. */
struct Plan {
    AttentionShape shape;
    int64_t qkv_stride, o_stride;
    bool backward, usable;
    int batch;
    int64_t workspace;
    int32_t *lengths;       /* [batch] on the device, all seq; NULL: no padding mask */
    std::shared_ptr<fe::graph::Graph> graph;
};

struct AttentionPlans {
    cudnnHandle_t handle;
    std::string broken;     /* why there is no handle */
    std::vector<Plan> plans;
};

bool cudnn_built() { return true; }

const char *cudnn_version_text()
{
    static const std::string text = "cuDNN " + std::to_string(cudnnGetVersion());
    return text.c_str();
}

void cudnn_plans_close(AttentionPlans *plans)
{
    if (!plans) return;
    for (Plan &p : plans->plans) cudaFree(p.lengths);
    plans->plans.clear();       /* graphs go before their handle */
    if (plans->handle) cudnnDestroy(plans->handle);
    delete plans;
}

static fe::graph::Tensor_attributes view(const char *name, Uid uid, int64_t batch, int64_t heads, int64_t seq,
                                         int64_t dim, int64_t stride)
{
    return fe::graph::Tensor_attributes().set_name(name).set_uid(uid).set_dim({batch, heads, seq, dim})
        .set_stride({seq * stride, dim, stride, 1}).set_data_type(fe::DataType_t::BFLOAT16);
}

static fe::graph::Tensor_attributes lengths(const char *name, Uid uid, int64_t batch)
{
    return fe::graph::Tensor_attributes().set_name(name).set_uid(uid).set_dim({batch, 1, 1, 1})
        .set_stride({1, 1, 1, 1}).set_data_type(fe::DataType_t::INT32);
}

static void
output(const Node &t, Uid uid, int64_t batch, int64_t heads, int64_t seq, int64_t dim, int64_t stride)
{
    t->set_output(true)
        .set_uid(uid)
        .set_dim({batch, heads, seq, dim})
        .set_stride({seq * stride, dim, stride, 1})
        .set_data_type(fe::DataType_t::BFLOAT16);
}

/* The graph of plan->batch sequences, with its kernel chosen. An empty string, or cuDNN's message. */
static std::string build(Plan *plan, cudnnHandle_t handle)
{
    const AttentionShape &s = plan->shape;
    int64_t B = plan->batch, S = s.seq, H = s.heads, KV = s.kv_heads, D = s.head_dim;
    float scale = 1.0f / std::sqrt((float)D);
    auto g = std::make_shared<fe::graph::Graph>();
    g->set_io_data_type(fe::DataType_t::BFLOAT16).set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    Node q = g->tensor(view("q", UID_Q, B, H, S, D, plan->qkv_stride));
    Node k = g->tensor(view("k", UID_K, B, KV, S, D, plan->qkv_stride));
    Node v = g->tensor(view("v", UID_V, B, KV, S, D, plan->qkv_stride));
    if (!plan->backward) {
        auto [o, lse] = g->sdpa(q, k, v,
                                fe::graph::SDPA_attributes()
                                    .set_name("attention")
                                    .set_generate_stats(true)
                                    .set_causal_mask(true)
                                    .set_attn_scale(scale));
        output(o, UID_O, B, H, S, D, plan->o_stride);
        lse->set_output(true).set_uid(UID_LSE).set_data_type(fe::DataType_t::FLOAT);
    } else {
        Node o = g->tensor(view("o", UID_O, B, H, S, D, plan->o_stride));
        Node d_o = g->tensor(view("do", UID_DO, B, H, S, D, plan->o_stride));
        Node lse = g->tensor(fe::graph::Tensor_attributes()
                                 .set_name("lse")
                                 .set_uid(UID_LSE)
                                 .set_dim({B, H, S, 1})
                                 .set_stride({H * S, S, 1, 1})
                                 .set_data_type(fe::DataType_t::FLOAT));
        auto attributes = fe::graph::SDPA_backward_attributes()
                              .set_name("attention_bwd")
                              .set_causal_mask(true)
                              .set_attn_scale(scale)
                              .set_deterministic_algorithm(s.deterministic);
        if (S % UNMASKED_MULTIPLE)
            attributes.set_padding_mask(true)
                .set_seq_len_q(g->tensor(lengths("lengths_q", UID_LENGTHS_Q, B)))
                .set_seq_len_kv(g->tensor(lengths("lengths_kv", UID_LENGTHS_KV, B)));
        auto [dq, dk, dv] = g->sdpa_backward(q, k, v, o, d_o, lse, attributes);
        output(dq, UID_DQ, B, H, S, D, plan->qkv_stride);
        output(dk, UID_DK, B, KV, S, D, plan->qkv_stride);
        output(dv, UID_DV, B, KV, S, D, plan->qkv_stride);
    }
    fe::error_t status = g->validate();
    if (status.is_good()) status = g->build_operation_graph(handle);
    if (status.is_good()) status = g->create_execution_plans({fe::HeurMode_t::A});
    if (status.is_good()) status = g->check_support(handle);
    if (status.is_good()) status = g->build_plans(handle, fe::BuildPlanPolicy_t::HEURISTICS_CHOICE);
    if (status.is_good()) status = g->get_workspace_size(plan->workspace);
    if (!status.is_good()) return status.get_message().empty() ? "no reason given" : status.get_message();
    plan->graph = g;
    return "";
}

static bool same(const Plan &p, const AttentionShape &s, int64_t qkv_stride, int64_t o_stride, bool backward)
{
    return p.backward == backward && p.qkv_stride == qkv_stride && p.o_stride == o_stride &&
           p.shape.batch == s.batch && p.shape.seq == s.seq && p.shape.heads == s.heads &&
           p.shape.kv_heads == s.kv_heads && p.shape.head_dim == s.head_dim &&
           p.shape.deterministic == s.deterministic;
}

/* "attention_bwd for batch 8, seq 2048, ... on NVIDIA H200 with cuDNN 91400: cause". */
static std::string failure(const CudaBackend *backend, const Plan &p, const std::string &cause)
{
    const AttentionShape &s = p.shape;
    char text[512];
    snprintf(text, sizeof text, "%s for batch %d, seq %d, heads %d, kv_heads %d, head_dim %d%s on %s with %s: ",
             p.backward ? "attention_bwd" : "attention", s.batch, s.seq, s.heads, s.kv_heads, s.head_dim,
             s.deterministic ? ", deterministic" : "", backend->gpu, cudnn_version_text());
    return text + cause;
}

/* Where cuDNN cannot: says so once a shape, and the reference takes over. */
static void refuse(const CudaBackend *backend, const Plan &p, const std::string &cause)
{
    fprintf(stderr, "warning: cuDNN cannot run %s. The much slower reference attention takes its place.\n",
            failure(backend, p, cause).c_str());
}

/* The whole batch at once where the workspace allows, otherwise its largest divisor that does. */
static Plan make_plan(const OpContext *ctx, AttentionPlans *plans, Plan p)
{
    const int64_t limit = (int64_t)op_scratch_bytes(ctx);
    if (!plans->broken.empty()) {
        refuse(backend_of(ctx), p, plans->broken);
        return p;
    }
    for (p.batch = p.shape.batch; p.batch; p.batch--) {
        if (p.shape.batch % p.batch) continue;
        std::string cause = build(&p, plans->handle);
        if (!cause.empty()) {
            refuse(backend_of(ctx), p, cause);
            return p;
        }
        if (p.workspace <= limit) {
            p.usable = true;
            return p;
        }
    }
    const int64_t mib = 1 << 20, enough = (p.workspace + GEMM_WORKSPACE + mib - 1) / mib;
    std::string cause = "one sequence needs a workspace of " + std::to_string((p.workspace + mib - 1) / mib) +
                        " MiB and the plan has " + std::to_string(limit / mib);
    if (enough * mib > (int64_t)backend_of(ctx)->options.workspace_limit)
        cause += "; train.workspace_mib=" + std::to_string(enough) + " would do";
    refuse(backend_of(ctx), p, cause);
    return p;
}

static AttentionPlans *plans_of(const OpContext *ctx)
{
    CudaBackend *backend = backend_of(ctx);
    if (backend->attention) return backend->attention;
    backend->attention = new AttentionPlans{};
    cudnnStatus_t status = cudnnCreate(&backend->attention->handle);
    if (status == CUDNN_STATUS_SUCCESS) status = cudnnSetStream(backend->attention->handle, stream_of(ctx));
    if (status != CUDNN_STATUS_SUCCESS) backend->attention->broken = cudnnGetErrorString(status);
    return backend->attention;
}

static const Plan &plan_for(const OpContext *ctx, AttentionPlans *plans, const AttentionShape &s,
                            int64_t qkv_stride, int64_t o_stride, bool backward)
{
    for (const Plan &p : plans->plans)
        if (same(p, s, qkv_stride, o_stride, backward)) return p;
    Plan wanted = {};
    wanted.shape = s, wanted.qkv_stride = qkv_stride, wanted.o_stride = o_stride, wanted.backward = backward;
    Plan made = make_plan(ctx, plans, wanted);
    if (made.usable && backward && s.seq % UNMASKED_MULTIPLE) {
        std::vector<int32_t> all(made.batch, s.seq);
        size_t bytes = all.size() * sizeof all[0];
        CUDA_CHECK("attention_bwd", cudaMalloc((void **)&made.lengths, bytes));
        CUDA_CHECK("attention_bwd", cudaMemcpyAsync(made.lengths, all.data(), bytes, cudaMemcpyHostToDevice,
                                                    stream_of(ctx)));
        CUDA_CHECK("attention_bwd", cudaStreamSynchronize(stream_of(ctx)));
    }
    plans->plans.push_back(made);
    return plans->plans.back();
}

static void
execute(const OpContext *ctx, const AttentionPlans *plans, const Plan &p, Pack &pack, const char *op)
{
    fe::error_t status = p.graph->execute(plans->handle, pack, op_scratch(ctx));
    if (!status.is_good())
        cuda_fail(__FILE__, __LINE__, op, "cudnn execute", failure(backend_of(ctx), p, status.get_message()).c_str());
}

/* Fast kernels exist for whole 16-byte rows, and a document mask is not among their masks. */
static bool takes(const AttentionShape &s)
{
    return !s.doc_start && s.seq > 1 && s.head_dim % 8 == 0 && s.head_dim <= 256;
}

/* What both passes read, from sequence `first` on. Elements of qkv and o are two bytes. */
static Pack inputs(const Plan &p, int first, Tensor qkv, Tensor o, const float *lse)
{
    const AttentionShape &s = p.shape;
    char *at = (char *)qkv.data + (int64_t)first * s.seq * qkv.stride * 2;
    int64_t head = s.head_dim * 2;
    return {{UID_Q, at},
            {UID_K, at + s.heads * head},
            {UID_V, at + (s.heads + s.kv_heads) * head},
            {UID_O, (char *)o.data + (int64_t)first * s.seq * o.stride * 2},
            {UID_LSE, (void *)(lse + (int64_t)first * s.heads * s.seq)}};
}

bool cudnn_attention(const OpContext *ctx, Tensor o, float *lse, Tensor qkv, AttentionShape s)
{
    if (!takes(s)) return false;
    AttentionPlans *plans = plans_of(ctx);
    const Plan &p = plan_for(ctx, plans, s, qkv.stride, o.stride, false);
    if (!p.usable) return false;
    for (int first = 0; first < s.batch; first += p.batch) {
        Pack pack = inputs(p, first, qkv, o, lse);
        execute(ctx, plans, p, pack, "attention");
    }
    return true;
}

bool cudnn_attention_bwd(const OpContext *ctx, Tensor dqkv, Tensor d_o, Tensor qkv, Tensor o,
                         const float *lse, AttentionShape s)
{
    if (!takes(s)) return false;
    AttentionPlans *plans = plans_of(ctx);
    const Plan &p = plan_for(ctx, plans, s, qkv.stride, o.stride, true);
    if (!p.usable) return false;
    for (int first = 0; first < s.batch; first += p.batch) {
        Pack pack = inputs(p, first, qkv, o, lse);
        char *at = (char *)dqkv.data + (int64_t)first * s.seq * dqkv.stride * 2;
        int64_t head = s.head_dim * 2;
        pack[UID_DO] = (char *)d_o.data + (int64_t)first * s.seq * d_o.stride * 2;
        pack[UID_DQ] = at;
        pack[UID_DK] = at + s.heads * head;
        pack[UID_DV] = at + (s.heads + s.kv_heads) * head;
        if (p.lengths) pack[UID_LENGTHS_Q] = pack[UID_LENGTHS_KV] = p.lengths;
        execute(ctx, plans, p, pack, "attention_bwd");
    }
    return true;
}
