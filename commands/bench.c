/* ./train bench CONFIG: steady-state time of a training step on random tokens, as one JSON line. The tokens
 * are the same in every step, so the loss falls where training works. */
#include "commands/arguments.h"
#include "commands/commands.h"
#include "commands/dry_run.h"
#include "commands/setup.h"
#include "model/machine.h"
#include "model/random.h"
#include <math.h>
#include <stdlib.h>

enum { OP_TIMING_STEPS = 5, MOST_STEPS = 1000000, SLOW_S = 5 };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void fill_random(Batch *batch, int64_t vocab, uint64_t key)
{
    int64_t T = (int64_t)batch->sequences * batch->seq;
    for (int64_t i = 0; i < T; i++) {
        batch->tokens[i] = (int32_t)(random_bits(key, (uint64_t)i) % (uint64_t)vocab);
        batch->targets[i] = (int32_t)(random_bits(key + 1, (uint64_t)i) % (uint64_t)vocab);
        batch->pos[i] = (int32_t)(i % batch->seq);
        batch->doc_start[i] = 0;
        batch->weights[i] = 1;
    }
    batch->valid = T;
}

/* Returns the loss. */
static double step(Llama *model, const Batch *batch, const Config *c)
{
    int64_t accum = c->train.accum;
    float scale = 1.0f / (float)(batch->valid * accum);
    Hyper hyper = {.lr = (float)c->train.lr, .beta1 = (float)c->train.beta1, .beta2 = (float)c->train.beta2,
                   .eps = (float)c->train.eps, .weight_decay = (float)c->train.weight_decay,
                   .bias1 = 1, .bias2 = 1, .clip = (float)c->train.clip};
    llama_begin_step(model);
    for (int64_t m = 0; m < accum; m++) llama_micro_step(model, batch, scale, m == 0, m + 1 == accum);
    return llama_update(model, &hyper).loss;
}

/* One step op by op, slower than a whole step since nothing overlaps: where the time goes. */
static void print_op_times(Llama *model, const Batch *batch, const Config *c, Backend *backend)
{
    if (!backend_time_ops(backend)) {
        fprintf(stderr, "no times of single ops on this device\n");
        return;
    }
    llama_record_steps(model, false);
    for (int i = 0; i < OP_TIMING_STEPS; i++) step(model, batch, c);
    fprintf(stderr, "  %-16s %8s %12s\n", "op", "calls", "ms a step");
    for (int op = 0; op < OP_COUNT; op++) {
        int calls;
        double ms = backend_op_ms(backend, (OpId)op, &calls);
        if (calls)
            fprintf(stderr, "  %-16s %8d %12.4f\n", op_name((OpId)op), calls / OP_TIMING_STEPS,
                    ms / OP_TIMING_STEPS);
    }
}

typedef struct Result {
    double *ms;             /* [steps] */
    double  loss[2];        /* of the first step and of the last */
    double  weights_s;      /* seconds for the initial weights */
    double  first_step_s;   /* seconds of the first step: measures, makes plans, records */
    size_t  memory_before;  /* bytes in use without a model: on a GPU, its context */
} Result;

/* One JSON line. Sorts ms. */
static void print_result(const Llama *model, const Config *c, const Backend *backend, const Result *r,
                         int64_t steps)
{
    double *ms = r->ms;
    const double *loss = r->loss;
    qsort(ms, (size_t)steps, sizeof *ms, by_value);
    char texts[2][32];
    for (int i = 0; i < 2; i++)
        snprintf(texts[i], sizeof texts[i], isfinite(loss[i]) ? "%.4f" : "null", loss[i]);
    double median = ms[steps / 2], p90 = ms[steps * 9 / 10];
    double tokens = (double)c->train.tokens_per_step, flops = llama_flops_per_token(&model->shape) * tokens;
    printf("{\"device\":\"%s\",\"hardware\":\"%s\",\"tokens_per_step\":%.0f,\"step_ms\":%.4f,\"step_ms_p90\":"
           "%.4f,"
           "\"tok_per_s\":%.1f,\"tflops\":%.3f,\"plan_bytes\":%zu,\"mem_bytes\":%zu,\"context_bytes\":%zu,\"steps\":%lld,"
           "\"first_loss\":%s,\"last_loss\":%s,\"weights_s\":%.2f,\"first_step_s\":%.2f}\n",
           backend->ops->name, backend->hardware, tokens, median, p90, tokens / median * 1e3,
           flops / median * 1e-9, model->memory_bytes, backend_memory_used(backend), r->memory_before, (long long)steps,
           texts[0], texts[1], r->weights_s, r->first_step_s);
    fflush(stdout);
}

/* Returns the exit code. ms: room for [steps] */
static int bench(Setup *setup, int64_t warmup, int64_t steps, bool table, double *ms, Errors *errors)
{
    const Config *c = setup->config;
    Backend *backend = &setup->backend;
    Batch batch = {0};
    Result r = {.ms = ms, .memory_before = backend_memory_used(backend)};
    Llama *model = llama_create(c, backend->act, LLAMA_TRAIN, backend->ops, backend->device, &backend->ctx, 0,
                                errors);
    double start = machine_seconds();
    bool ok = model && batch_create(&batch, (int)c->train.micro_batch, (int)c->train.seq_len) &&
              llama_init(model, c);
    r.weights_s = machine_seconds() - start;
    if (model && !ok) errors_add(errors, "out of memory while preparing the benchmark");
    if (ok) {
        fill_random(&batch, model->shape.vocab, (uint64_t)c->run.seed);
        fprintf(stderr, "device: %s, %s: %lld steps to warm up and %lld that count, of %lld tokens\n", backend->ops->name,
                backend->hardware, (long long)warmup, (long long)steps, (long long)c->train.tokens_per_step);
        for (int64_t i = 0; i < warmup + steps; i++) {
            double begin = machine_seconds();
            r.loss[1] = step(model, &batch, c);
            double seconds = machine_seconds() - begin;
            if (!i) r.loss[0] = r.loss[1], r.first_step_s = seconds;
            if (!i && seconds > SLOW_S) fprintf(stderr, "the first step took %.0f s\n", seconds);
            if (i >= warmup) ms[i - warmup] = 1e3 * seconds;
        }
        print_result(model, c, backend, &r, steps);
        if (!isfinite(r.loss[1])) {
            errors_add(errors, "the loss is not finite any more: times of such steps say little");
            ok = false;
        }
    }
    if (ok && table) {
        print_choices(backend, stderr);
        print_op_times(model, &batch, c, backend);
    }
    batch_free(&batch);
    llama_destroy(model);
    return ok ? 0 : 1;
}

int bench_command(int argc, char **argv)
{
    Errors errors = {0};
    Setup setup = {0};
    Arguments args;
    const char *steps_text = "20", *warmup_text = "10";
    bool table = false;
    const Flag flags[] = {
        {"--steps", NULL, &steps_text}, {"--warmup", NULL, &warmup_text}, {"--table", &table, NULL}};
    const Syntax syntax = {
        .usage =
            "usage: ./train bench CONFIG [--steps=20] [--warmup=10] [--table] [--section.key=value ...]\n"
            "       steps on random tokens; prints one JSON line: times, tokens/s, TFLOP/s, memory, losses\n"
            "       --table adds what carries out each op and, on a GPU, its time\n",
        .least = 1,
        .most = 1,
        .overrides = true,
        .flags = flags,
        .flag_count = 3};
    int code = arguments_parse(&args, argc, argv, &syntax, &errors);
    int64_t steps = arguments_integer("--steps=", steps_text, 1, &errors);
    int64_t warmup = arguments_integer("--warmup=", warmup_text, 0, &errors);
    if (steps > MOST_STEPS || warmup > MOST_STEPS)
        errors_add(&errors, "--steps and --warmup: expected %d at most", MOST_STEPS);
    char no_samples[] = "--sample.every=0";     /* so it needs no tokenizer either, where model.vocab is given */
    if (code == ARGUMENTS_GO_ON) args.overrides[args.override_count++] = no_samples;
    if (code == ARGUMENTS_GO_ON && args.positional_count)
        setup_config(&setup, args.positional[0], args.override_count, args.overrides, false, &errors);
    bool ok = code == ARGUMENTS_GO_ON && !errors.count && setup_backend(&setup, false, &errors);
    arguments_free(&args);
    if (!ok) return setup_finish(&setup, &errors, code == ARGUMENTS_GO_ON ? 2 : code);
    double *ms = calloc((size_t)steps, sizeof *ms);
    if (!ms) errors_add(&errors, "out of memory for %lld steps", (long long)steps);
    code = ms ? bench(&setup, warmup, steps, table, ms, &errors) : 1;
    free(ms);
    return setup_finish(&setup, &errors, code);
}
