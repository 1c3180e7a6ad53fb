/* coda.c: trains LLaMA-3 models. Here are the command line and the training loop; a step is model/llama.c. */
#include "commands/arguments.h"
#include "commands/choices.h"
#include "commands/commands.h"
#include "commands/dry_run.h"
#include "commands/process.h"
#include "commands/setup.h"
#include "model/checkpoint.h"
#include "model/files.h"
#include "model/generate.h"
#include "model/names.h"
#include "model/machine.h"
#include "model/peak.h"
#include "model/progress.h"
#include "model/random.h"
#include "model/report.h"
#include "model/run.h"
#include "model/schedule.h"
#include "model/signals.h"
#include <math.h>
#include <omp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_DONE = 0, EXIT_RUNTIME = 1, EXIT_USAGE = 2, EXIT_NONFINITE = 3 };
enum { STEPS_BETWEEN_MEMORY = 50 };
enum { MOST_SKIPS_IN_A_ROW = 10 };  /* of updates with non-finite gradients, before the run is given up */

/* Everything that one training run holds. */
typedef struct Training {
    Setup           setup;
    Llama          *model;
    Batch          *batches;        /* [accum]: the micro-batches of a step, read before it begins */
    float          *loss;           /* [T]: of a validation batch */
    Log            *log;
    Progress        progress;
    CheckpointState state;
    double          started;        /* seconds, monotonic */
    double          elapsed_before; /* seconds of training in earlier parts of the run */
    int64_t         checkpoint_step;/* of the newest checkpoint, -1 = none */
    int             claim;          /* descriptor that keeps the run directory from others, 0 = none */
    bool            other_kernels;  /* resumed: a GPU adds in another order than before, and ... */
    bool            other_parts;    /* ... any device does, over other parts of the batch */
    int64_t         memory_used;    /* bytes; asked for now and then, because a GPU's driver answers slowly */
} Training;

/* ---- validation and samples ------------------------------------------------------------------------- */

/* False when a signal came in between: nothing is recorded then. */
static bool validate(Training *t)
{
    const Config *c = t->setup.config;
    Loader *val = t->setup.val;
    Batch *batch = &t->batches[0];
    Errors none = {0};
    double nats = 0, tokens = 0, bytes = 0;
    loader_seek(val, (LoaderCursor){0, 0}, &none);
    errors_free(&none);
    for (int64_t n = 0; (c->val.batches == 0 || n < c->val.batches) && loader_next(val, batch); n++) {
        if (signals_caught()) return false;
        llama_eval(t->model, batch, t->loss);
        for (int64_t i = 0; i < t->model->shape.rows; i++)
            if (batch->weights[i] > 0) nats += t->loss[i];
        tokens += (double)batch->valid, bytes += (double)batch->target_bytes;
    }
    if (tokens == 0) {
        progress_line(&t->progress,
                      "step %lld: not validated: no token of the first %lld micro-batches of data.val has a "
                      "target", (long long)t->state.step, (long long)c->val.batches);
        return true;
    }
    double loss = nats / tokens, bits = bytes > 0 ? nats / M_LN2 / bytes : NAN;
    char bits_text[64] = "";
    if (bytes > 0) snprintf(bits_text, sizeof bits_text, " | %.4f bits per byte", bits);
    log_validation(t->log, t->state.step, loss, bits);
    progress_line(&t->progress, "step %lld: validation loss %.4f | perplexity %.3f%s",
                  (long long)t->state.step, loss, exp(loss), bits_text);
    if (isnan(t->state.best_val_loss) || loss < t->state.best_val_loss)
        t->state.best_val_loss = loss, t->state.best_val_step = t->state.step;
    return true;
}

/* A text that grows piece by piece. */
typedef struct Text { char *bytes; size_t length, capacity; } Text;

static void append_piece(const char *bytes, size_t length, void *user)
{
    Text *text = user;
    if (text->length + length + 1 > text->capacity) {
        size_t capacity = 2 * (text->length + length + 1);
        char *larger = realloc(text->bytes, capacity);
        if (!larger) return;
        text->bytes = larger, text->capacity = capacity;
    }
    for (size_t i = 0; i < length; i++)     /* 0xff is no UTF-8 either, but ends no string */
        text->bytes[text->length++] = bytes[i] ? bytes[i] : '\xff';
    text->bytes[text->length] = 0;
}

/* A model may say what a terminal would obey. */
static void hide_control_characters(char *text)
{
    for (; *text; text++)
        if (((unsigned char)*text < 0x20 && !strchr("\t\n", *text)) || *text == 0x7f) *text = '?';
}

static void write_sample(Training *t)
{
    const Config *c = t->setup.config;
    Text text = {0};
    Errors errors = {0};
    GenerateOptions options = {
        .prompt = c->sample.prompt, .tokens = c->sample.tokens, .temperature = c->sample.temperature,
        .top_p = c->sample.top_p, .top_k = c->sample.top_k,
        .key = random_bits((uint64_t)c->run.seed, (uint64_t)t->state.step)};
    bool ok = generate(t->model, c->train.seq_len, t->setup.tokenizer, &options, append_piece, &text,
                       &errors);
    if (ok && text.bytes) {
        log_sample(t->log, t->state.step, c->sample.prompt, text.bytes);
        hide_control_characters(text.bytes);
        progress_line(&t->progress, "sample: %s", text.bytes);
    }
    for (int i = 0; i < errors.count; i++) progress_line(&t->progress, "no sample: %s", errors.text[i]);
    errors_free(&errors);
    free(text.bytes);
}

/* ---- checkpoints ------------------------------------------------------------------------------------ */

static bool save(Training *t)
{
    const Config *c = t->setup.config;
    Errors errors = {0};
    if (t->checkpoint_step == t->state.step) return true;
    t->state.elapsed_seconds = t->elapsed_before + machine_seconds() - t->started;
    choices_record(&t->state, &t->setup.backend);   /* tuning ends with the first steps */
    bool ok = checkpoint_save(c->run.dir, t->model, &t->state, &errors) &&
              checkpoint_prune(c->run.dir, c->checkpoint.keep_last, c->checkpoint.keep_every, &errors);
    for (int i = 0; i < errors.count; i++) {
        progress_line(&t->progress, "error: checkpoint of step %lld: %s", (long long)t->state.step,
                      errors.text[i]);
        log_note(t->log, t->state.step, errors.text[i]);
    }
    if (ok) {
        t->checkpoint_step = t->state.step;
        progress_line(&t->progress, "saved checkpoint of step %lld", (long long)t->state.step);
    }
    errors_free(&errors);
    return ok;
}

static void keep_cursor(Training *t)
{
    LoaderCursor cursor = loader_cursor(t->setup.train);
    t->state.cursor[0] = cursor.epoch, t->state.cursor[1] = cursor.index;
    t->state.cursor_count = 2;
}

/* ---- one step --------------------------------------------------------------------------------------- */

/* Reads the step's micro-batches; returns the rows that count, over which the loss is averaged. */
static int64_t read_batches(Training *t)
{
    int64_t valid = 0;
    for (int64_t m = 0; m < t->setup.config->train.accum; m++) {
        loader_next(t->setup.train, &t->batches[m]);
        valid += t->batches[m].valid;
    }
    return valid;
}

static Hyper hyper_of_step(const Training *t)
{
    const Config *c = t->setup.config;
    double updates = (double)t->state.adam_step + 1;
    return (Hyper){
        .lr = (float)schedule_lr(c, t->state.step),
        .beta1 = (float)c->train.beta1,
        .beta2 = (float)c->train.beta2,
        .eps = (float)c->train.eps,
        .weight_decay = (float)c->train.weight_decay,
        .bias1 = (float)(1 - pow(c->train.beta1, updates)),
        .bias2 = (float)(1 - pow(c->train.beta2, updates)),
        .clip = (float)c->train.clip,
        .seed = (uint32_t)c->run.seed,
        .step = (uint32_t)t->state.step,
    };
}

/* One optimiser step. False when a signal came in between: the step is then as if it had not begun. */
static bool train_step(Training *t, LogStep *record)
{
    const Config *c = t->setup.config;
    double begin = machine_seconds();
    int64_t valid = read_batches(t);
    float scale = valid > 0 ? 1.0f / (float)valid : 0.0f;

    llama_begin_step(t->model);
    for (int64_t m = 0; m < c->train.accum; m++) {
        if (signals_caught()) return false;
        llama_micro_step(t->model, &t->batches[m], scale, m == 0, m + 1 == c->train.accum);
    }
    Hyper hyper = hyper_of_step(t);
    StepStats stats = llama_update(t->model, &hyper);

    t->state.step++;
    t->state.tokens += valid;
    t->state.adam_step += !stats.skipped;
    t->state.skipped += stats.skipped;
    keep_cursor(t);
    if (t->memory_used == 0 || t->state.step % STEPS_BETWEEN_MEMORY == 0)
        t->memory_used = (int64_t)backend_memory_used(&t->setup.backend);
    double seconds = machine_seconds() - begin, rate = (double)c->train.tokens_per_step / seconds;
    *record = (LogStep){
        .step = t->state.step, .tokens = t->state.tokens, .loss = stats.loss, .grad_norm = stats.grad_norm,
        .lr = hyper.lr, .step_ms = seconds * 1e3, .tok_per_s = rate,
        .mfu = rate * llama_flops_per_token(&t->model->shape) / peak_bf16_flops(t->setup.backend.hardware),
        .mem_bytes = t->memory_used, .skipped = stats.skipped, .clamped_rows = stats.clamped_rows,
    };
    return true;
}

/* what: "the loss is not finite". Says in which tensor it began. */
static void explain_nonfinite(Training *t, const char *what)
{
    char *where = llama_find_nonfinite(t->model), text[256];
    snprintf(text, sizeof text, "step %lld: %s; %s", (long long)t->state.step, what,
             where ? where : "no saved tensor shows it");
    free(where);
    log_note(t->log, t->state.step, text);
    progress_line(&t->progress,
                  "error: %s. The weights were not changed by this step. What helps most often: "
                  "a lower train.lr, a longer train.warmup_steps, train.clip=1%s",
                  text, t->checkpoint_step < 0 ? "" : "; the last checkpoint can be resumed");
}

/* ---- choices ---------------------------------------------------------------------------------------- */

/* The first step measures which kernels are fastest: only now is it known what carries out each op. */
static void tell_choices(Training *t)
{
    if (t->setup.backend.device->host_memory) return;
    choices_record(&t->state, &t->setup.backend);
    log_choices(t->log, t->state.step, (const char *const *)t->state.choices, t->state.choice_count);
    print_choices(&t->setup.backend, stderr);
}

/* ---- the loop --------------------------------------------------------------------------------------- */

static int train_loop(Training *t)
{
    const Config *c = t->setup.config;
    const int64_t first = t->state.step + 1;
    int skips = 0;
    bool whole = true;      /* all that belongs to the steps taken was done */
    while (t->state.step < c->train.steps && !signals_caught()) {
        LogStep record;
        if (t->state.step == c->profile.start) backend_profiler(&t->setup.backend, true);
        if (!train_step(t, &record)) break;
        if (t->state.step == c->profile.end) backend_profiler(&t->setup.backend, false);
        log_step(t->log, &record);
        if (t->state.step == first) tell_choices(t);
        progress_step(&t->progress, &record);
        if (!isfinite(record.loss)) {
            explain_nonfinite(t, "the loss is not finite");
            return EXIT_NONFINITE;
        }
        skips = record.skipped ? skips + 1 : 0;
        if (record.skipped)
            progress_line(&t->progress, "step %lld: gradients are not finite, the update was skipped",
                          (long long)record.step);
        if (skips == MOST_SKIPS_IN_A_ROW) {
            explain_nonfinite(t, "gradients were not finite in many steps one after another");
            return EXIT_NONFINITE;
        }
        bool last = t->state.step == c->train.steps;
        if (t->setup.val && c->val.every && (t->state.step % c->val.every == 0 || last)) whole = validate(t);
        if (setup_sample_context(c) && (t->state.step % c->sample.every == 0 || last)) write_sample(t);
        bool due = c->checkpoint.every && t->state.step % c->checkpoint.every == 0;
        if (due && !last && !save(t)) return EXIT_RUNTIME;
        if (log_failure(t->log)) return save(t), EXIT_RUNTIME;   /* perhaps there is room for that elsewhere */
    }
    int caught = signals_caught();
    if (!save(t)) return EXIT_RUNTIME;
    return caught && (t->state.step < c->train.steps || !whole) ? 128 + caught : EXIT_DONE;
}

/* ---- beginning and end ------------------------------------------------------------------------------ */

static bool make_batches(Training *t, Errors *errors)
{
    const Config *c = t->setup.config;
    t->batches = calloc((size_t)c->train.accum, sizeof *t->batches);
    t->loss = malloc((size_t)t->model->shape.rows * sizeof *t->loss);
    bool ok = t->batches && t->loss;
    for (int64_t m = 0; ok && m < c->train.accum; m++)
        ok = batch_create(&t->batches[m], (int)c->train.micro_batch, (int)c->train.seq_len);
    if (!ok) errors_add(errors, "out of memory while preparing the batches");
    return ok;
}

/* Fresh weights, or those of the run's newest checkpoint that is whole. */
static bool load_or_init(Training *t, bool resume, Errors *errors)
{
    const Config *c = t->setup.config;
    if (!resume) {
        t->state = (CheckpointState){.seed = (uint64_t)c->run.seed, .best_val_loss = NAN};
        keep_cursor(t);
        fprintf(stderr, "initialised: random, seed %lld\n", (long long)c->run.seed);
        if (llama_init(t->model, c)) return true;
        errors_add(errors, "out of memory while initialising the weights");
        return false;
    }
    Errors skipped = {0};
    char *dir = checkpoint_find(c->run.dir, &skipped);
    errors_print(&skipped, stderr);
    errors_free(&skipped);
    if (!dir) {
        errors_add(errors,
                   "--resume: %s holds no checkpoint that is whole; --run.overwrite=true without --resume "
                   "begins the run anew", c->run.dir);
        return false;
    }
    int loaded = checkpoint_load(dir, t->model, &t->state, errors);
    bool ok = loaded >= 0;
    if (ok) fprintf(stderr, "resumed: %s, %d tensors, step %lld\n", dir, loaded, (long long)t->state.step);
    if (ok) choices_restore(&t->state, &t->setup.backend);
    const bool gpu = !t->setup.backend.device->host_memory;
    if (ok && gpu && t->other_kernels)
        fprintf(stderr, "note: other kernels than before, so this continuation is not bitwise the same\n");
    if (ok && gpu && c->train.attention == ATTENTION_CUDNN && !c->train.deterministic)
        fprintf(stderr, "note: attention's gradients are added in any order without train.deterministic=true, so this "
                "continuation is not bitwise the same\n");
    if (ok && t->other_parts)
        fprintf(stderr, "note: the batch is worked on in other parts than before, so this continuation is not bitwise the "
                "same\n");
    free(dir);
    ok = ok && setup_check_tokenizer(&t->setup, t->state.tokenizer, errors);
    int64_t data_tokens = loader_tokens(t->setup.train);
    if (ok && t->state.data_tokens && t->state.data_tokens != data_tokens)
        fprintf(stderr, "note: data.train had %lld tokens when the checkpoint was written; its order is "
                "another now\n", (long long)t->state.data_tokens);
    t->elapsed_before = t->state.elapsed_seconds;
    t->checkpoint_step = t->state.step;
    return ok && loader_seek(t->setup.train, (LoaderCursor){t->state.cursor[0], t->state.cursor[1]}, errors);
}

static void write_header(Training *t, const char *config_json, bool resume)
{
    const Setup *setup = &t->setup;
    const Backend *backend = &setup->backend;
    bool gpu = !backend->device->host_memory;
    LogHeader header = {
        .config_json = config_json, .backend = t->state.backend, .precision = t->state.precision,
        .gpu = gpu ? backend->hardware : NULL, .libraries = backend->libraries,
        .choices = (const char *const *)t->state.choices, .choice_count = t->state.choice_count,
        .parameters = llama_parameters(&t->model->shape),
        .flops_per_token = llama_flops_per_token(&t->model->shape),
        .train_tokens = loader_tokens(setup->train), .val_tokens = setup->val ? loader_tokens(setup->val) : 0,
        .threads = omp_get_max_threads(),
        .reference_bits_per_byte = setup->config->data.reference_bits_per_byte,
        .reference_label = "entropy of the text's generator", .resumed_step = resume ? t->state.step : -1,
    };
    log_header(t->log, &header);
}

static void close_training(Training *t)
{
    if (t->batches)
        for (int64_t m = 0; m < t->setup.config->train.accum; m++) batch_free(&t->batches[m]);
    free(t->batches);
    free(t->loss);
    checkpoint_state_free(&t->state);
    llama_destroy(t->model);
    setup_close(&t->setup);
    if (t->claim) close(t->claim);
}

/* Prints the errors, releases everything and returns code. */
static int finish(Training *t, Errors *errors, int code)
{
    errors_print(errors, stderr);
    errors_free(errors);
    close_training(t);
    return code;
}

/* Compares the config with the one the run began with: what shapes model and data must be the same. Notes what keeps the
 * continuation from being bitwise. */
static void check_resumed_config(Training *t, Errors *errors)
{
    const Config *c = t->setup.config;
    const bool whole = !errors->count;
    char *path = files_join(c->run.dir, "config.json");
    Errors broken = {0};
    ConfigLoad *saved = path ? config_load(path, 0, NULL, &broken) : NULL;
    if (saved && !broken.count) {
        setup_derive(config_values(saved));     /* an imported run has not been started yet */
        const Config *before = config_values(saved);
        config_diff(before, t->setup.load, whole, errors, whole ? stderr : NULL);
        t->other_kernels = memcmp(&before->fusion, &c->fusion, sizeof c->fusion) ||
                           before->train.attention != c->train.attention ||
                           before->train.deterministic != c->train.deterministic ||
                           before->train.workspace_mib != c->train.workspace_mib;
        t->other_parts = before->train.micro_batch != c->train.micro_batch ||
                         before->train.accum != c->train.accum || before->train.head_chunk != c->train.head_chunk;
    } else {
        errors_add(errors, "--resume: %s/config.json cannot be read, so nothing tells what to continue",
                   c->run.dir);
    }
    errors_free(&broken);
    config_free(saved);
    free(path);
}

/* A model on the device and batches for it. */
static bool make_model(Training *t, Errors *errors)
{
    Setup *setup = &t->setup;
    Backend *backend = &setup->backend;
    t->model = llama_create(setup->config, backend->act, LLAMA_TRAIN, backend->ops, backend->device,
                            &backend->ctx, setup_sample_context(setup->config), errors);
    if (!t->model || !make_batches(t, errors)) return false;
    fprintf(stderr, "device: %s, %s (%s), %d CPU threads\n", backend->ops->name, backend->hardware,
            backend->why, omp_get_max_threads());
    fprintf(stderr, "model: %lld parameters; plan %.2f GiB\n", (long long)llama_parameters(&t->model->shape),
            (double)t->model->memory_bytes / (1 << 30));
    fprintf(stderr, "data: %lld tokens to train on, %lld held out\n", (long long)loader_tokens(setup->train),
            setup->val ? (long long)loader_tokens(setup->val) : 0);
    return true;
}

/* The run directory with config.json, and the log with its header. */
static bool open_run(Training *t, RunStart start, Errors *errors)
{
    Config config = *t->setup.config;
    config.run.overwrite = false;   /* meant for this start alone: the run's config must not delete the run */
    char *json = config_to_json(&config);
    if (!json) errors_add(errors, "out of memory while writing the configuration");
    bool ok = json && run_open(config.run.dir, start, json, errors);
    if (ok) t->log = log_open(config.run.dir, start == RUN_RESUME ? t->state.step : -1, errors);
    if (t->setup.tokenizer) t->state.tokenizer = tokenizer_fingerprint(t->setup.tokenizer);
    t->state.data_tokens = loader_tokens(t->setup.train);
    if (t->log) {
        choices_record(&t->state, &t->setup.backend);
        write_header(t, json, start == RUN_RESUME);
    }
    free(json);
    return t->log != NULL;
}

static const char *end_status(int code)
{
    return code == EXIT_DONE ? "done" : code == EXIT_NONFINITE ? "non-finite loss"
         : code == EXIT_RUNTIME ? "failed" : "interrupted";
}

static int train(Training *t, RunStart start, Errors *errors)
{
    const Config *c = t->setup.config;
    signal(SIGPIPE, SIG_IGN);   /* whoever read the progress lines may go away (`| head`); the run goes on */
    if (!setup_backend(&t->setup, false, errors)) return EXIT_USAGE;
    if (!make_model(t, errors)) return EXIT_RUNTIME;
    t->claim = run_claim(c->run.dir, start, errors);
    if (t->claim < 0) return t->claim = 0, EXIT_USAGE;
    if (!checkpoint_remove_torn(c->run.dir, errors) || !checkpoint_has_room(c->run.dir, t->model, errors))
        return EXIT_RUNTIME;
    if (!load_or_init(t, start == RUN_RESUME, errors)) return EXIT_USAGE;
    signals_install();          /* from here on there is something to save */
    if (start == RUN_RESUME && t->state.step >= c->train.steps) {      /* the run's config.json stays as it was */
        fprintf(stderr, "nothing to train: the run is at step %lld, train.steps is %lld\n",
                (long long)t->state.step, (long long)c->train.steps);
        return EXIT_DONE;
    }
    if (!open_run(t, start, errors)) return EXIT_RUNTIME;

    t->progress = progress_begin(stderr, c->train.steps, c->run.log_every,
                                 (int64_t)t->setup.backend.memory_total);
    t->started = machine_seconds();
    int code = train_loop(t);
    progress_end(&t->progress);

    log_end(t->log, t->state.step, end_status(code), t->elapsed_before + machine_seconds() - t->started);
    if (!log_close(t->log, errors) && code == EXIT_DONE) code = EXIT_RUNTIME;
    if (report_write(c->run.dir, errors)) fprintf(stderr, "report: %s/report.html\n", c->run.dir);
    else if (code == EXIT_DONE) code = EXIT_RUNTIME;
    if (code > 128)
        fprintf(stderr, "interrupted at step %lld and saved; continue with --resume\n",
                (long long)t->state.step);
    return code;
}

static const char usage[] =
    "usage: ./train [CONFIG] [--section.key=value ...]   train\n"
    "         --resume         continue the run in run.dir from its newest checkpoint\n"
    "         --dry-run        print parameters, memory, FLOPs and kernels; needs no device\n"
    "         --gpu-mem=24GiB  with --dry-run: does it fit a GPU?\n"
    "         --print-config   print every value and where it came from\n";

static int train_command(int argc, char **argv)
{
    Training t = {.checkpoint_step = -1};
    Setup *setup = &t.setup;
    Errors errors = {0};
    Arguments args;
    bool resume = false, dry = false, print = false;
    const char *gpu_memory = NULL;
    const Flag flags[] = {{"--resume", &resume, NULL}, {"--dry-run", &dry, NULL},
                          {"--print-config", &print, NULL}, {"--gpu-mem", NULL, &gpu_memory}};
    const Syntax syntax = {.usage = usage, .most = 1, .overrides = true, .flags = flags, .flag_count = 4};
    int code = arguments_parse(&args, argc, argv, &syntax, &errors);
    const char *config_path = args.positional ? args.positional[0] : NULL;
    if (code == ARGUMENTS_GO_ON)
        setup_config(setup, config_path, args.override_count, args.overrides, !dry && !print, &errors);
    arguments_free(&args);
    if (code != ARGUMENTS_GO_ON) return finish(&t, &errors, code);
    if (!setup->load || !config_is_readable(setup->load)) return finish(&t, &errors, EXIT_USAGE);
    if (gpu_memory && !dry) errors_add(&errors, "--gpu-mem goes with --dry-run");
    if (print || dry) {
        if (print && !errors.count) config_print(setup->load, stdout);
        code = errors.count ? EXIT_USAGE : dry ? dry_run(setup, gpu_memory, &errors) : EXIT_DONE;
        return finish(&t, &errors, code);
    }

    const Config *c = setup->config;
    RunStart start = resume ? RUN_RESUME : c->run.overwrite ? RUN_OVERWRITE : RUN_NEW;
    if (errors.count) setup_find_data(setup, &errors);
    else setup_data(setup, &errors);
    const bool here = (!resume || setup_check_place(setup, config_path, &errors)) && run_check(c->run.dir, start, &errors);
    if (resume && here) check_resumed_config(&t, &errors);
    if (start == RUN_OVERWRITE && run_owns(c->run.dir, c->data.tokenizer))
        errors_add(&errors, "data.tokenizer = %s belongs to the run that --run.overwrite=true would delete; name another "
                   "run.dir, or copy it", c->data.tokenizer);
    return finish(&t, &errors, errors.count ? EXIT_USAGE : train(&t, start, &errors));
}

/* ---- the command line ------------------------------------------------------------------------------- */

static const struct { const char *name, *usage, *help; int (*run)(int argc, char **argv); } commands[] = {
    {"sample", "sample RUN --prompt=TEXT", "generate text from a run", sample_command},
    {"bench", "bench CONFIG", "time of a training step: one JSON line; --table: of each op", bench_command},
    {"report", "report RUN", "write RUN/report.html from RUN/log.jsonl", report_command},
    {"import", "import HF_DIR RUN", "start a run from a Hugging Face checkpoint", import_command},
    {"export", "export RUN HF_DIR", "write a run as a Hugging Face checkpoint or GGUF", export_command},
    {"logits", "logits RUN --ids=1,2,3", "print the logits after some tokens", logits_command},
    {"tokenize", "tokenize TEXT... --out=DIR", "make token shards from text", tokenize_command},
    {"story", "story generate|check|entropy", "the demo's corpus", story_command},
};
enum { COMMANDS = sizeof commands / sizeof *commands };

static void print_usage(FILE *out)
{
    fputs(usage, out);
    for (int i = 0; i < COMMANDS; i++)
        fprintf(out, "       ./train %-38s %s\n", commands[i].usage, commands[i].help);
    fputs("       each takes --help; ./train --help lists every setting too\n", out);
}

static int print_help(void)
{
    print_usage(stdout);
    printf("\nexit codes: 0 done, 1 run-time failure, 2 usage or config, 3 non-finite loss,\n"
           "            129/130/143 interrupted and saved\n\n");
    config_print_help(stdout);
    return EXIT_DONE;
}

/* A slip in a command's name must not be taken for a configuration that is missing. */
static const char *meant_command(const char *word)
{
    if (strpbrk(word, "./=") || files_exists(word)) return NULL;
    for (int i = 0; i < COMMANDS; i++)
        if (names_distance(word, commands[i].name) <= 2) return commands[i].name;
    return NULL;
}

static int run_command(int argc, char **argv)
{
    if (argc < 2) return print_usage(stderr), EXIT_USAGE;
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) return print_help();
    if (!strcmp(argv[1], "--help-markdown")) return config_print_markdown(stdout), EXIT_DONE;
    for (int i = 0; i < COMMANDS; i++)
        if (!strcmp(argv[1], commands[i].name)) return commands[i].run(argc - 1, argv + 1);
    const char *meant = meant_command(argv[1]);
    if (!meant) return train_command(argc, argv);
    fprintf(stderr, "error: there is no command \"%s\"; did you mean \"%s\"?\n", argv[1], meant);
    return EXIT_USAGE;
}

int main(int argc, char **argv)
{
    process_begin(argv);
    return process_end(run_command(argc, argv));
}
