/* Which implementation of an op runs, and what the fused one takes. */
#include "kernels/cuda/fused/dispatch.h"
#include "kernels/cuda/formulas.h"
#include "kernels/cuda/decision.h"
#include "kernels/cuda/fused/autotune.h"
#include <cstdio>
#include <cstring>
#include <initializer_list>

static FusionKey key_of(OpId op)
{
    switch (op) {
    case OP_QKV: return FUSE_QKV;
    case OP_OUT: return FUSE_OUT;
    case OP_GATE_UP: return FUSE_GATE_UP;
    case OP_DOWN: return FUSE_DOWN;
    case OP_HEAD: case OP_HEAD_EVAL: return FUSE_HEAD;
    case OP_HEAD_DX: return FUSE_HEAD_DX;
    case OP_DOWN_DX: return FUSE_DOWN_DX;
    case OP_GATE_UP_DX: return FUSE_GATE_UP_DX;
    case OP_QKV_DX: return FUSE_QKV_DX;
    case OP_OUT_DX: case OP_DOWN_DW: case OP_GATE_UP_DW: case OP_OUT_DW: case OP_QKV_DW:
    case OP_HEAD_DW: return FUSE_DW;
    default: return FUSE_COUNT;
    }
}

static FusionMode mode_of(const OpContext *ctx, OpId op)
{
    FusionKey key = key_of(op);
    return key == FUSE_COUNT ? FUSION_OFF : backend_of(ctx)->options.fusion[key];
}

/* Plans are the same where there is no device to ask. */
static bool hopper(const CudaBackend *b) { return b->planning || b->sm90; }

int dispatch_parts(const OpContext *ctx, OpId op, int64_t cols)
{
    if (mode_of(ctx, op) == FUSION_OFF || !hopper(backend_of(ctx))) return 1;
    switch (op) {
    case OP_OUT: case OP_DOWN: case OP_HEAD: return fused_parts(cols);
    case OP_DOWN_DX: return fused_parts(cols / 2);      /* cols are those of dz, the GEMM's are those of y */
    default: return 1;
    }
}

const char *dispatch_choice(const OpContext *ctx, OpId op)
{
    CudaBackend *b = backend_of(ctx);
    FusionMode mode = mode_of(ctx, op);
    if (mode == FUSION_OFF || !hopper(b)) return nullptr;
    const bool plain = key_of(op) == FUSE_DW && op != OP_HEAD_DW;
    const char *library = plain ? "cublasLt" : "cublasLt + separate kernel";
    char *text = b->choices[op], fused[32];
    const size_t size = sizeof b->choices[op];
    if (b->unfit[op]) {
        snprintf(text, size, "%s: the fused form does not take these sizes", library);
        return text;
    }
    const FusedChoice *c = fused_last_choice(b->fused, op);
    if (!c && b->ran_flops[op] > 0) return mode == FUSION_ON ? "fused, too small to be measured" : nullptr;
    if (!c) return mode == FUSION_ON ? "fused on Hopper, where the sizes allow it"
                                     : "fused on Hopper, where that measures faster";
    const bool by_library = mode == FUSION_AUTO && !c->fused;
    snprintf(fused, sizeof fused, "fused %s, cluster %d", fused_tile_name(c->variant.tile), c->variant.cluster);
    if (!(c->fused_us > 0)) return by_library ? nullptr : strcpy(text, fused);
    if (by_library && c->fused_us < EVEN * c->separate_us) snprintf(text, size, "%s, even with %s", library, fused);
    else if (by_library) snprintf(text, size, "%s, %.3f times as fast as %s", library, c->fused_us / c->separate_us, fused);
    else snprintf(text, size, "%s, %.3f times as fast as %s", fused, c->separate_us / c->fused_us, library);
    return text;
}

/* ---- what the fused form takes ------------------------------------------------------------------------- */

/* Rows that the copy engine can fetch: 16-byte aligned, in BF16 (FP32 for gradients). */
static bool suits(const OpContext *ctx, Dtype dtype, std::initializer_list<Tensor> tensors)
{
    if (!hopper(backend_of(ctx))) return false;
    for (const Tensor &t : tensors)
        if (t.data && (t.dtype != dtype || ((uintptr_t)t.data & 15) || t.stride * dtype_bytes(dtype) % 16 ||
                       t.cols % 8 || t.rows > INT32_MAX || t.cols > INT32_MAX))
            return false;
    return true;
}

/* One part a column tile of the narrowest kind. */
static bool holds(RowSums sums, int64_t cols) { return sums.parts >= (cols + 127) / 128; }

/* For the table of choices: what the op's largest call does. Sampling makes small ones beside. */
static void note(const OpContext *ctx, const FusedShape &shape, bool fits)
{
    CudaBackend *b = backend_of(ctx);
    double flops = 2.0 * shape.m * shape.n * shape.k;
    if (flops < b->ran_flops[shape.op]) return;
    b->ran_flops[shape.op] = flops;
    b->unfit[shape.op] = !fits;
}

/* Runs op fused or by `library`. Both take the tensor to write to: `out`, except while they are measured and
 * out is one of the inputs. `again`: running the op twice does no harm. */
template <class Fused, class Library>
static void run(const OpContext *ctx, const FusedShape &shape, bool fits, Tensor out, bool in_place,
                bool again, const Fused &fused, const Library &library)
{
    FusionMode mode = mode_of(ctx, shape.op);
    if (key_of(shape.op) == FUSE_COUNT)
        cuda_fail(__FILE__, __LINE__, op_name(shape.op), "key_of", "the op has no fusion key");
    if (mode == FUSION_OFF) return library(out);
    fits = fits && fused_tiles_fit(shape.m, shape.n);
    note(ctx, shape, fits);
    if (!fits) return library(out);
    Tensor elsewhere = out;
    if (in_place) {
        elsewhere.data = op_scratch(ctx);
        again = again && op_scratch_bytes(ctx) >= (size_t)(out.rows * out.stride) * dtype_bytes(out.dtype);
    }
    std::function<void(const FusedCall &)> try_fused;
    std::function<void()> try_library;
    if (again) {
        try_fused = [&](const FusedCall &call) { fused(call, elsewhere); };
        try_library = [&] { library(elsewhere); };
    }
    FusedChoice choice = fused_choose(ctx, shape, try_fused, try_library);
    if (mode == FUSION_AUTO && !choice.fused) return library(out);
    OpRange range(ctx, shape.op);
    fused(FusedCall{ctx, shape.op, choice.variant}, out);
}

/* ---- the ops ------------------------------------------------------------------------------------------- */

void dispatch_qkv(const OpContext *ctx, Tensor qkv, Tensor x, Tensor w, RowNorm norm, Rope rope)
{
    bool fits = suits(ctx, DTYPE_BF16, {qkv, x, w}) && rope.head_dim % 64 == 0 && rope.rotated <= MOST_HEAD_COLUMNS;
    run(ctx, {OP_QKV, qkv.rows, qkv.cols, x.cols}, fits, qkv, false, true,
        [&](const FusedCall &call, Tensor) { fused_qkv(call, qkv, x, w, norm, rope); },
        [&](Tensor) { cuda_qkv(ctx, qkv, x, w, norm, rope); });
}

void dispatch_residual(const OpContext *ctx, OpId op, Tensor out, RowSums sumsq, Tensor xg, Tensor a,
                       Tensor w, Tensor residual, const float *gamma)
{
    bool fits = suits(ctx, DTYPE_BF16, {out, xg, a, w, residual}) && holds(sumsq, out.cols) &&
                ((uintptr_t)gamma & 7) == 0;
    run(ctx, {op, out.rows, out.cols, a.cols}, fits, out, out.data == residual.data, true,
        [&](const FusedCall &call, Tensor to) { fused_residual(call, to, sumsq, xg, a, w, residual, gamma); },
        [&](Tensor to) { cuda_residual(ctx, op, to, sumsq, xg, a, w, residual, gamma); });
}

void dispatch_gate_up(const OpContext *ctx, Tensor z, Tensor y, Tensor x1, Tensor w, RowNorm norm)
{
    run(ctx, {OP_GATE_UP, z.rows, z.cols, x1.cols}, suits(ctx, DTYPE_BF16, {z, y, x1, w}), z, false, true,
        [&](const FusedCall &call, Tensor) { fused_gate_up(call, z, y, x1, w, norm); },
        [&](Tensor) { cuda_gate_up(ctx, z, y, x1, w, norm); });
}

void dispatch_head(const OpContext *ctx, const HeadChunk *h)
{
    bool fits =
        suits(ctx, DTYPE_BF16, {h->e, h->xg, h->table}) && holds(h->d, h->e.cols) && holds(h->q, h->e.cols);
    run(ctx, {OP_HEAD, h->e.rows, h->e.cols, h->xg.cols}, fits, h->e, false, true,
        [&](const FusedCall &call, Tensor) { fused_head(call, h); }, [&](Tensor) { cuda_head(ctx, h); });
}

void dispatch_head_eval(const OpContext *ctx, const HeadChunk *h)
{
    bool fits =
        suits(ctx, DTYPE_BF16, {h->xg, h->table}) && holds(h->d, h->table.rows) && h->d.parts == h->q.parts;
    run(
        ctx, {OP_HEAD_EVAL, h->xg.rows, h->table.rows, h->xg.cols}, fits, h->e, false, true,
        [&](const FusedCall &call, Tensor) { fused_head_eval(call, h); },
        [&](Tensor) { cuda_head_eval(ctx, h); });
}

void dispatch_head_dx(const OpContext *ctx, Tensor dx, float *dgamma, const HeadChunk *h, const float *gamma,
                      bool accumulate)
{
    bool fits = suits(ctx, DTYPE_BF16, {dx, h->e, h->table, h->x}) && ((uintptr_t)gamma & 7) == 0;
    run(ctx, {OP_HEAD_DX, dx.rows, dx.cols, h->e.cols}, fits, dx, false, !accumulate,
        [&](const FusedCall &call, Tensor) { fused_head_dx(call, dx, dgamma, h, gamma, accumulate); },
        [&](Tensor) { cuda_head_dx(ctx, dx, dgamma, h, gamma, accumulate); });
}

void dispatch_down_dx(const OpContext *ctx, Tensor dz, Tensor y, RowSums zdz, Tensor dx, Tensor w, Tensor z,
                      RowNorm norm)
{
    bool fits = suits(ctx, DTYPE_BF16, {dz, y, dx, w, z}) && holds(zdz, w.cols);
    run(ctx, {OP_DOWN_DX, dx.rows, w.cols, dx.cols}, fits, dz, false, true,
        [&](const FusedCall &call, Tensor) { fused_down_dx(call, dz, y, zdz, dx, w, z, norm); },
        [&](Tensor) { cuda_down_dx(ctx, dz, y, zdz, dx, w, z, norm); });
}

void dispatch_norm_dx(const OpContext *ctx, OpId op, Tensor out, Tensor dz, Tensor w, Tensor residual_grad,
                      Tensor x, RowNorm norm, RowSums zdz)
{
    run(
        ctx, {op, out.rows, out.cols, dz.cols}, suits(ctx, DTYPE_BF16, {out, dz, w, residual_grad, x}), out,
        out.data == residual_grad.data, true,
        [&](const FusedCall &call, Tensor to) {
            fused_norm_dx(call, to, dz, w, residual_grad, x, norm, zdz);
        },
        [&](Tensor to) { cuda_norm_dx(ctx, op, to, dz, w, residual_grad, x, norm, zdz); });
}

void dispatch_out_dx(const OpContext *ctx, Tensor d_o, Tensor dx1, Tensor w)
{
    run(
        ctx, {OP_OUT_DX, d_o.rows, d_o.cols, dx1.cols}, suits(ctx, DTYPE_BF16, {d_o, dx1, w}), d_o, false,
        true, [&](const FusedCall &call, Tensor) { fused_out_dx(call, d_o, dx1, w); },
        [&](Tensor) { cuda_out_dx(ctx, d_o, dx1, w); });
}

void dispatch_dw(const OpContext *ctx, OpId op, Tensor grad, Tensor dy, Tensor a, bool accumulate,
                 double *sumsq)
{
    size_t partials = (size_t)((grad.rows + 15) / 16 * ((grad.cols + 127) / 128)) * sizeof(float);
    bool fits = suits(ctx, DTYPE_F32, {grad}) && suits(ctx, DTYPE_BF16, {dy, a}) &&
                fused_dw_fits(grad.rows, grad.cols, backend_of(ctx)->multiprocessors) &&
                (!sumsq || op_scratch_bytes(ctx) >= partials);
    run(ctx, {op, grad.rows, grad.cols, dy.rows}, fits, grad, false, !accumulate,
        [&](const FusedCall &call, Tensor) { fused_dw(call, grad, dy, a, accumulate, sumsq); },
        [&](Tensor) { cuda_dw(ctx, op, grad, dy, a, accumulate, sumsq); });
}

/* The product is dw's. Targets are a few rows of the table, gathered and added in a fixed order: a kernel of
 * their own costs less than looking for them in every tile. */
void dispatch_head_dw(const OpContext *ctx, Tensor grad, const HeadChunk *h, bool accumulate)
{
    bool fits = suits(ctx, DTYPE_F32, {grad}) && suits(ctx, DTYPE_BF16, {h->e, h->axg}) &&
                fused_dw_fits(grad.rows, grad.cols, backend_of(ctx)->multiprocessors);
    run(ctx, {OP_HEAD_DW, grad.rows, grad.cols, h->e.rows}, fits, grad, false, !accumulate,
        [&](const FusedCall &call, Tensor) {
            fused_dw(call, grad, h->e, h->axg, accumulate, nullptr);
            cuda_head_dw_targets(ctx, grad, h);
        },
        [&](Tensor) { cuda_head_dw(ctx, grad, h, accumulate); });
}
