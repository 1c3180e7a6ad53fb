/* The arithmetic of epilogues and separate kernels, one value at a time, for the device and for the host:
 * tests/test_epilogues.c holds it against naive formulas without a GPU. Formulas: docs/MATH.md, sections 1
 * to 4. */
#pragma once
#include "kernels/cuda/host_device.h"
#include <math.h>

/* One special-function instruction each on the device, 2 ulp; results below 1e-38 are 0. */
#ifdef __CUDA_ARCH__
static __device__ __forceinline__ float exp2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
static __device__ __forceinline__ float reciprocal(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* Unlike fminf, NaN where x is. */
static __device__ __forceinline__ float at_most(float x, float most)
{
    float y;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(most));
    return y;
}
#define reciprocal_root(x) rsqrtf(x)
#else
static inline float at_most(float x, float most) { return x > most ? most : x; }
static inline float exp2_approx(float x) { return exp2f(x); }
static inline float reciprocal(float x) { return 1.0f / x; }
static inline float reciprocal_root(float x) { return 1.0f / sqrtf(x); }
#endif

HOST_DEVICE float fast_exp(float x) { return exp2_approx(x * 1.44269504f); }

/* ---- the norm ------------------------------------------------------------------------------------------ */

/* What a pair of neighbours adds to a sum of squares: of the residual stream, of a weight's gradient. */
HOST_DEVICE float squares(float a, float b) { return a * a + b * b; }

/* r = 1 / sqrt(mean(x^2) + eps) from the sum of squares over `cols`. */
HOST_DEVICE float norm_rstd(float sumsq, float cols, float eps) { return reciprocal_root(sumsq / cols + eps); }

/* s = r^2 sum(z dz) / d: how much of x the norm's gradient takes away. */
HOST_DEVICE float norm_pull(float r, float zdz, float cols) { return r * r * zdz / cols; }

/* dx = residual gradient + dz W' - s x. */
HOST_DEVICE float norm_grad(float product, float residual_grad, float s, float x)
{
    return product + residual_grad - s * x;
}

/* ---- SwiGLU -------------------------------------------------------------------------------------------- */

HOST_DEVICE float sigmoid(float x) { return reciprocal(1.0f + fast_exp(-x)); }

/* y = silu(gate) up. */
HOST_DEVICE float swiglu(float gate, float up) { return up * (gate * sigmoid(gate)); }

typedef struct SwigluGrad {
    float gate, up;     /* gradients of both halves of z */
    float zdz;          /* z times its gradient, both halves */
    float y;            /* what the forward pass computed */
} SwigluGrad;

HOST_DEVICE SwigluGrad swiglu_grad(float gate, float up, float dy)
{
    float sig = sigmoid(gate), silu = gate * sig, slope = sig + silu * (1.0f - sig), dsilu = dy * up;
    SwigluGrad grad;
    grad.gate = dsilu * slope;
    grad.up = dy * silu;
    grad.zdz = dsilu * (gate * slope + silu);
    grad.y = silu * up;
    return grad;
}

/* ---- rotary embedding ---------------------------------------------------------------------------------- */

/* col % head_dim, for columns below MOST_HEAD_COLUMNS; less than half as long as a division. heads_a_column: 1 / head_dim */
enum { MOST_HEAD_COLUMNS = 1 << 21 };

HOST_DEVICE int column_in_head(int col, int head_dim, float heads_a_column)
{
    return col - (int)((col + 0.5f) * heads_a_column) * head_dim;
}

typedef struct RotatedPair { float a, b; } RotatedPair;

HOST_DEVICE RotatedPair rotate_pair(float a, float b, float cosine, float sine)
{
    RotatedPair out;
    out.a = a * cosine - b * sine;
    out.b = a * sine + b * cosine;
    return out;
}

/* ---- the head ------------------------------------------------------------------------------------------ */

typedef struct HeadTerm { float e, q; } HeadTerm;

/* One column's share: E = exp(min(logit - anchor, clamp)) and E times the exponent; both 0 where the column
 * is the target or padding. */
HOST_DEVICE HeadTerm head_term(float logit, float anchor, float clamp, int counts)
{
    float shifted = at_most(logit - anchor, clamp);
    HeadTerm term;
    term.e = counts ? fast_exp(shifted) : 0.0f;
    term.q = counts ? term.e * shifted : 0.0f;
    return term;
}

/* u = alpha (E W) - beta W[target];  dx = u gamma - s x. */
HOST_DEVICE float head_pull(float product, float alpha, float beta, float target_weight)
{
    return alpha * product - beta * target_weight;
}

HOST_DEVICE float head_grad(float u, float gamma, float s, float x) { return u * gamma - s * x; }

/* A sum of exponentials behind its largest exponent: sum exp(x) = exp(most) * sum. Empty: sum = 0. */
typedef struct RunningSum { float most, sum; } RunningSum;

HOST_DEVICE RunningSum running_merge(RunningSum a, RunningSum b)
{
    if (a.sum == 0.0f) return b;
    if (b.sum == 0.0f) return a;
    RunningSum out;
    out.most = fmaxf(a.most, b.most);
    out.sum = a.sum * fast_exp(a.most - out.most) + b.sum * fast_exp(b.most - out.most);
    return out;
}

/* Adds `count` values of one row; -INFINITY stands for one that does not count. A NaN stays in the sum. */
HOST_DEVICE RunningSum running_add(RunningSum total, const float *x, int count)
{
    float most = total.most;
    int counts = 0;
    for (int i = 0; i < count; i++) most = fmaxf(most, x[i]), counts |= x[i] != -INFINITY;
    if (!counts) return total;
    total.sum *= fast_exp(total.most - most);
    for (int i = 0; i < count; i++) total.sum += fast_exp(x[i] - most);
    total.most = most;
    return total;
}

/* Cross entropy of a row: log(1 + sum over the others of exp(logit - the target's)). */
HOST_DEVICE float running_loss(RunningSum others, float target_logit)
{
    float delta = others.most + logf(others.sum) - target_logit;
    return delta > 0.0f ? delta + log1pf(expf(-delta)) : log1pf(expf(delta));
}
