/* Where a training step's time goes: one step with every op timed by itself, beside the time of the recorded step.
 *
 *   bench_step CONFIG [--section.key=value ...] */
#include "commands/setup.h"
#include "kernels/cuda/cuda.h"
#include "model/random.h"
#include <cuda_runtime.h>
#include <stdlib.h>
#include <string.h>

static bool no_capture(void *stream)
{
    (void)stream;
    return false;
}

static void step(Llama *model, const Batch *batch)
{
    Hyper hyper = {.lr = 1e-5f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .bias1 = 0.1f, .bias2 = 0.05f, .clip = 1};
    llama_begin_step(model);
    llama_micro_step(model, batch, 1.0f / (float)batch->valid, true, true);
    llama_update(model, &hyper);
}

/* Median milliseconds of a step, host work included. */
static double step_ms(Llama *model, const Batch *batch, int warmup, int steps)
{
    float times[64], ms;
    cudaEvent_t start, end;
    cudaEventCreate(&start), cudaEventCreate(&end);
    for (int i = 0; i < warmup; i++) step(model, batch);
    for (int i = 0; i < steps; i++) {
        cudaEventRecord(start, model->ctx.stream);
        step(model, batch);
        cudaEventRecord(end, model->ctx.stream);
        cudaEventSynchronize(end);
        cudaEventElapsedTime(&ms, start, end);
        int at = i;
        for (; at && times[at - 1] > ms; at--) times[at] = times[at - 1];
        times[at] = ms;
    }
    cudaEventDestroy(start), cudaEventDestroy(end);
    return times[steps / 2];
}

/* Matrix multiplications of one call of op, in flops. Attention counts its causal half. */
static double op_flops(const LlamaShape *s, OpId op)
{
    double T = (double)s->rows, d = (double)s->hidden, f = (double)s->ffn, q = (double)s->qkv_cols, a = (double)s->q_cols;
    double head = 2.0 * (double)s->head_chunk * d * (double)s->vocab_padded;
    switch (op) {
    case OP_QKV: case OP_QKV_DX: case OP_QKV_DW: return 2 * T * d * q;
    case OP_OUT: case OP_OUT_DX: case OP_OUT_DW: return 2 * T * d * a;
    case OP_GATE_UP: case OP_GATE_UP_DX: case OP_GATE_UP_DW: return 4 * T * d * f;
    case OP_DOWN: case OP_DOWN_DX: case OP_DOWN_DW: return 2 * T * d * f;
    case OP_HEAD: case OP_HEAD_DX: case OP_HEAD_DW: case OP_HEAD_EVAL: return head;
    case OP_ATTENTION: return 2 * T * s->seq * a;
    case OP_ATTENTION_BWD: return 5 * T * s->seq * a;
    default: return 0;
    }
}

int main(int argc, char **argv)
{
    Errors errors = {0};
    Setup setup = {0};
    Batch batch = {0};
    if (argc < 2 || !setup_config(&setup, argv[1], argc - 2, argv + 2, false, &errors) ||
        !setup_backend(&setup, false, &errors) || setup.backend.device != &cuda_device)
        return setup_failed(&setup, &errors, 2);
    const Config *c = setup.config;
    OpContext *ctx = &setup.backend.ctx;
    Device eager = cuda_device;
    eager.capture_begin = no_capture;
    if (!batch_create(&batch, (int)c->train.micro_batch, (int)c->train.seq_len)) return 1;
    batch.valid = c->train.micro_batch * c->train.seq_len;
    for (int64_t i = 0; i < batch.valid; i++) {
        batch.tokens[i] = (int32_t)(random_bits(1, (uint64_t)i) % (uint64_t)c->model.vocab);
        batch.targets[i] = (int32_t)(random_bits(2, (uint64_t)i) % (uint64_t)c->model.vocab);
        batch.pos[i] = (int32_t)(i % c->train.seq_len);
        batch.doc_start[i] = 0;
        batch.weights[i] = 1;
    }

    double times[2];    /* recorded, eager */
    for (int pass = 0; pass < 2; pass++) {
        Llama *model = llama_create(c, DTYPE_BF16, LLAMA_TRAIN, &cuda_ops, pass ? &eager : &cuda_device, ctx, 0, &errors);
        if (!model || !llama_init(model, c)) return setup_failed(&setup, &errors, 1);
        times[pass] = step_ms(model, &batch, 4, 10);
        if (pass) {
            cuda_backend_time_ops(ctx->backend);
            enum { STEPS = 6 };
            for (int i = 0; i < STEPS; i++) step(model, &batch);
            double sum = 0;
            printf("op               calls   ms a step    us a call   TFLOP/s\n");
            for (int op = 0; op < OP_COUNT; op++) {
                int calls;
                double ms = cuda_backend_op_ms(ctx->backend, (OpId)op, &calls) / STEPS;
                if (!calls) continue;
                double each = ms * STEPS / calls;
                printf("%-15s %6d  %10.3f   %10.1f", op_name((OpId)op), calls / STEPS, ms, each * 1e3);
                double flops = op_flops(&model->shape, (OpId)op);
                if (flops > 0) printf("    %6.0f", flops / each * 1e-9);
                printf("\n");
                sum += ms;
            }
            printf("sum of ops %.2f ms, eager step %.2f ms, recorded step %.2f ms: %.0f tokens/s\n", sum, times[1], times[0],
                   (double)batch.valid / times[0] * 1e3);
        }
        llama_destroy(model);
    }
    batch_free(&batch);
    setup_close(&setup);
    return 0;
}
