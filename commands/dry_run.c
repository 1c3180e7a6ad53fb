#include "commands/dry_run.h"
#include "model/machine.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

void print_choices(const Backend *backend, FILE *out)
{
    fprintf(out, "kernels\n");
    for (int op = 0; op < OP_COUNT; op++)
        fprintf(out, "  %-24s %s\n", op_name((OpId)op), backend->ops->choice(&backend->ctx, (OpId)op));
}

/* "24GiB", "80e9B", "512MiB" in bytes; 0 when it cannot be read. */
static double parse_bytes(const char *text)
{
    static const struct { const char *unit; double bytes; } units[] = {
        {"B", 1}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1024.0 * (1 << 30)},
        {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}};
    char *end;
    double number = strtod(text, &end);
    if (end == text || !isfinite(number)) return 0;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (!strcmp(end, units[i].unit)) return number * units[i].bytes;
    return 0;
}

/* What a GPU's driver keeps for a process: 0.52 GiB were measured on an H200. */
static const double DRIVER_BYTES = 0.6 * (1 << 30);

int dry_run(Setup *setup, const char *gpu_memory, Errors *errors)
{
    Config *c = setup->config;
    double available = gpu_memory ? parse_bytes(gpu_memory) : 0;
    if (gpu_memory && available <= 0)
        errors_add(errors, "--gpu-mem=%s: expected a size with its unit, such as 24GiB", gpu_memory);
    /* Whether a GPU has room is no question about the machine that is asked. */
    bool asked = gpu_memory && c->run.device == DEVICE_AUTO;
    if (asked) {
#ifdef WITH_CUDA
        c->run.device = DEVICE_CUDA;
#else
        if (available > 0)
            errors_add(errors, "--gpu-mem=%s: needs a build with CUDA: make CUDA=1", gpu_memory);
#endif
    }
    if (errors->count || !setup_backend(setup, true, errors)) return 2;

    const Backend *backend = &setup->backend;
    LlamaShape shape = llama_shape(c, backend->act);
    Plan plan = llama_plan(c, backend->act, LLAMA_TRAIN, backend->ops, &backend->ctx,
                           setup_sample_context(c));
    double flops = llama_flops_per_token(&shape);
    printf("device        %s (%s)%s\n", backend->ops->name, asked ? "for --gpu-mem" : backend->why,
           backend->device->host_memory ? "; --gpu-mem=SIZE shows a GPU's plan" : "");
    printf("parameters    %lld\n", (long long)llama_parameters(&shape));
    printf("tokens/step   %lld  (%lld sequences x %lld tokens x %lld micro-batches)\n",
           (long long)c->train.tokens_per_step, (long long)c->train.micro_batch, (long long)c->train.seq_len,
           (long long)c->train.accum);
    printf("FLOPs/step    %.6e  (%.6e a token)\n", flops * (double)c->train.tokens_per_step, flops);
    printf("head chunk    %lld of %lld rows; the head's gradient is read and written once a chunk (%lld "
           "bytes)\n",
           (long long)shape.head_chunk, (long long)shape.rows,
           (long long)(8 * shape.vocab_padded * shape.hidden));
    printf("memory\n");
    plan_print(&plan, stdout);
    if (gpu_memory)
        printf("  %s %s, of which the driver keeps about 0.6 GiB\n",
               (double)plan.total + DRIVER_BYTES <= available ? "fits in" : "DOES NOT FIT in", gpu_memory);
    const double machine = (double)machine_memory();
    if (backend->device->host_memory && machine > 0)
        printf("  %s this machine's %.2f GiB\n", (double)plan.total <= machine ? "fits in" : "DOES NOT FIT in",
               machine / (double)(1 << 30));
    print_choices(backend, stdout);
    return 0;
}
