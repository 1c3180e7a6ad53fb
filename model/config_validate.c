/* Rules between keys, and what may change on resume. */
#include "model/config_table.h"

#include <string.h>

#define MOST_MICRO_BATCHES 1048576  /* of a step; train.accum has the same limit */

/* A value as a message names it: "model.heads = 7 (command line)". */
typedef struct Said { char text[CONFIG_STRING + CONFIG_WHERE + 64]; } Said;

static Said said(const ConfigLoad *load, const char *path)
{
    Said s;
    char value[CONFIG_VALUE];
    int key = config_find(path);
    config_value_text(&load->values, key, value);
    snprintf(s.text, sizeof s.text, "%s = %s (%s)", path, *value ? value : "\"\"", config_where(load, path));
    return s;
}

static bool all_good(const ConfigLoad *load, const char *const paths[])
{
    for (; *paths; paths++)
        if (load->bad[config_find(*paths)]) return false;
    return true;
}

/* No value among these was refused before: a rule about them says something new. */
#define GOOD(load, ...) all_good(load, (const char *const[]){__VA_ARGS__, NULL})

static bool is_given(const ConfigLoad *load, const char *path)
{
    return load->line[config_find(path)] != ORIGIN_DEFAULT;
}

/* ---- suggestions -------------------------------------------------------------------------------- */

typedef struct Nearest { char text[96]; } Nearest;

/* "4 or 8"; 0 = there is none on that side. */
static Nearest name_nearest(int64_t below, int64_t above)
{
    Nearest n = {""};
    if (below && above && above != below)
        snprintf(n.text, sizeof n.text, "%lld or %lld", (long long)below, (long long)above);
    else if (below || above)
        snprintf(n.text, sizeof n.text, "%lld", (long long)(below ? below : above));
    return n;
}

/* The nearest values below and above that fit. "" = none up to `limit`. */
static Nearest nearest(int64_t wanted, int64_t limit, bool (*fits)(int64_t, const void *), const void *with)
{
    int64_t below = wanted, above = wanted;
    while (below > 0 && !fits(below, with)) below--;
    while (above <= limit && !fits(above, with)) above++;
    return name_nearest(below, above <= limit ? above : 0);
}

/* wanted is no multiple of unit. */
static Nearest nearest_multiple(int64_t wanted, int64_t unit)
{
    int64_t below = wanted - wanted % unit;
    return name_nearest(below, below + unit);
}

static bool is_divisor(int64_t value, const void *with) { return *(const int64_t *)with % value == 0; }

static bool fits_heads(int64_t heads, const void *with)
{
    const Config *c = with;
    bool splits = c->model.head_dim || (c->model.hidden % heads == 0 && c->model.hidden / heads % 2 == 0);
    return splits && heads % c->model.kv_heads == 0;
}

/* "; set model.heads to 4 or 8", or nothing where no number of heads would do. */
static Said suggest(const char *before, const char *path, const char *values)
{
    Said s = {""};
    if (*values) snprintf(s.text, sizeof s.text, "%s%s to %s", before, path, values);
    return s;
}

/* ---- rules -------------------------------------------------------------------------------------- */

static void check_heads(const ConfigLoad *load, Errors *errors)
{
    const Config *c = &load->values;
    const int64_t heads = c->model.heads, kv_heads = c->model.kv_heads, hidden = c->model.hidden;
    if (!GOOD(load, "model.heads", "model.kv_heads", "model.hidden", "model.head_dim")) return;
    Nearest fitting = nearest(heads, 1024, fits_heads, c);

    if (heads % kv_heads) {
        Nearest groups = nearest(kv_heads, heads, is_divisor, &heads);
        errors_add(errors, "%s is not a multiple of %s%s%s", said(load, "model.heads").text,
                   said(load, "model.kv_heads").text, suggest("; set ", "model.heads", fitting.text).text,
                   suggest(*fitting.text ? ", or " : "; set ", "model.kv_heads", groups.text).text);
    }
    if (c->model.head_dim) {
        if (c->model.head_dim % 2)
            errors_add(errors, "%s is odd, but rotary pairs need an even head size; set it to %lld",
                       said(load, "model.head_dim").text, (long long)c->model.head_dim + 1);
    } else if (hidden % heads) {
        errors_add(errors, "%s is not divisible by %s%s%s give model.head_dim",
                   said(load, "model.hidden").text, said(load, "model.heads").text,
                   suggest("; set ", "model.heads", fitting.text).text, *fitting.text ? ", or" : ";");
    } else if (hidden / heads % 2) {
        errors_add(errors, "%s / %s gives the odd head size %lld, but rotary pairs need an even one%s%s "
                   "give model.head_dim", said(load, "model.hidden").text, said(load, "model.heads").text,
                   (long long)(hidden / heads), suggest("; set ", "model.heads", fitting.text).text,
                   *fitting.text ? ", or" : ";");
    }
}

static void check_widths(const ConfigLoad *load, Errors *errors)
{
    static const char *const widths[] = {"model.hidden", "model.ffn"};
    for (int i = 0; i < 2; i++) {
        int64_t width = CONFIG_INT(&load->values, config_find(widths[i]));
        if (GOOD(load, widths[i]) && width % 8)
            errors_add(errors, "%s is not a multiple of 8; set it to %s", said(load, widths[i]).text,
                       nearest_multiple(width, 8).text);
    }
}

static void check_rope(const ConfigLoad *load, Errors *errors)
{
    const Config *c = &load->values;
    if (!GOOD(load, "model.rope_scaling")) return;
    if (c->model.rope_scaling == ROPE_NONE) {
        if (GOOD(load, "model.rope_factor") && c->model.rope_factor != 1)
            errors_add(errors,
                       "%s has no effect with %s; set model.rope_scaling to llama3 or leave the factor out",
                       said(load, "model.rope_factor").text, said(load, "model.rope_scaling").text);
        return;
    }
    if (GOOD(load, "model.rope_factor") && c->model.rope_factor <= 1)
        errors_add(errors, "%s needs model.rope_factor above 1: 8 for Llama 3.1, 32 for Llama 3.2 1B and 3B; "
                   "found %s", said(load, "model.rope_scaling").text, said(load, "model.rope_factor").text);
    if (GOOD(load, "model.rope_low_freq_factor", "model.rope_high_freq_factor") &&
        c->model.rope_low_freq_factor >= c->model.rope_high_freq_factor)
        errors_add(errors, "%s must be below %s; Llama 3 has 1 and 4",
                   said(load, "model.rope_low_freq_factor").text,
                   said(load, "model.rope_high_freq_factor").text);
}

static void check_vocab(const ConfigLoad *load, Errors *errors)
{
    const Config *c = &load->values;
    if (!GOOD(load, "model.vocab", "data.tokenizer")) return;
    if (!c->model.vocab && !*c->data.tokenizer)
        errors_add(errors, "%s and no data.tokenizer to take it from; set either of them",
                   said(load, "model.vocab").text);
    if (c->model.vocab && c->data.boundary_token >= c->model.vocab && GOOD(load, "data.boundary_token"))
        errors_add(errors, "%s is outside of %s; token ids end at %lld",
                   said(load, "data.boundary_token").text, said(load, "model.vocab").text,
                   (long long)c->model.vocab - 1);
}

static void check_tokens(const ConfigLoad *load, Errors *errors)
{
    const Config *c = &load->values;
    if (!GOOD(load, "train.micro_batch", "train.seq_len")) return;
    const int64_t micro = c->train.micro_batch * c->train.seq_len, step = c->train.tokens_per_step;
    if (micro > INT32_MAX)
        errors_add(errors, "%s times %s are %lld tokens at once, at most %d are possible; use train.accum",
                   said(load, "train.micro_batch").text, said(load, "train.seq_len").text, (long long)micro,
                   INT32_MAX);
    if (!step || !GOOD(load, "train.tokens_per_step", "train.accum")) return;
    if (step % micro) {
        errors_add(errors, "%s is not a multiple of %s times %s, that is %lld; set it to %s",
                   said(load, "train.tokens_per_step").text, said(load, "train.micro_batch").text,
                   said(load, "train.seq_len").text, (long long)micro,
                   nearest_multiple(step, micro).text);
    } else if (step / micro > MOST_MICRO_BATCHES) {
        errors_add(errors, "%s is %lld micro-batches, more than the %d that a step can have; raise "
                   "train.micro_batch", said(load, "train.tokens_per_step").text, (long long)(step / micro),
                   MOST_MICRO_BATCHES);
    } else if (is_given(load, "train.accum") && c->train.accum * micro != step) {
        errors_add(errors, "%s and %s contradict each other: with %s and %s the step has %lld micro-batches; "
                   "give one of the two", said(load, "train.tokens_per_step").text,
                   said(load, "train.accum").text, said(load, "train.micro_batch").text,
                   said(load, "train.seq_len").text, (long long)(step / micro));
    }
}

static void check_schedule(const ConfigLoad *load, Errors *errors)
{
    const Config *c = &load->values;
    if (!GOOD(load, "train.steps", "train.warmup_steps")) return;
    if (c->train.warmup_steps > c->train.steps) {
        errors_add(errors, "%s is longer than the run, %s; warm up for less or train for more steps",
                   said(load, "train.warmup_steps").text, said(load, "train.steps").text);
    } else if (GOOD(load, "train.schedule", "train.decay_fraction") && c->train.schedule == SCHEDULE_WSD) {
        double decay = c->train.decay_fraction * (double)c->train.steps;
        if ((double)c->train.warmup_steps + decay > (double)c->train.steps)
            errors_add(errors, "%s and %s overlap in %s: set train.decay_fraction to %.3g or less",
                       said(load, "train.warmup_steps").text, said(load, "train.decay_fraction").text,
                       said(load, "train.steps").text,
                       1 - (double)c->train.warmup_steps / (double)c->train.steps);
    }
}

static void check_context(const ConfigLoad *load, Errors *errors)
{
    const Config *c = &load->values;
    if (GOOD(load, "model.max_position", "train.seq_len") && c->model.max_position &&
        c->model.max_position < c->train.seq_len)
        errors_add(errors, "%s is longer than the model's context, %s; raise the context, or set it to 0",
                   said(load, "train.seq_len").text, said(load, "model.max_position").text);
}

/* A list of globs without an empty one in it. */
static void check_globs(const ConfigLoad *load, const char *path, Errors *errors)
{
    const char *globs = CONFIG_TEXT(&load->values, config_find(path));
    if (!*globs || !GOOD(load, path)) return;
    for (const char *p = globs; ; p++) {
        size_t blank = strspn(p, " "), length = strcspn(p, ",");
        if (blank >= length) {
            errors_add(errors, "%s has an empty pattern beside a comma; remove it", said(load, path).text);
            return;
        }
        p += length;
        if (!*p) return;
    }
}

static void check_data(const ConfigLoad *load, Errors *errors)
{
    const Config *c = &load->values;
    check_globs(load, "data.train", errors);
    check_globs(load, "data.val", errors);
    if (GOOD(load, "data.tokenizer", "sample.every") && c->sample.every && !*c->data.tokenizer)
        errors_add(errors, "%s needs data.tokenizer to write text; set it, or sample.every to 0",
                   said(load, "sample.every").text);
    if (GOOD(load, "run.dir") && !*c->run.dir)
        errors_add(errors, "%s: the run needs a directory, such as runs/first", said(load, "run.dir").text);
}

static void check_profile(const ConfigLoad *load, Errors *errors)
{
    const Config *c = &load->values;
    if (!GOOD(load, "profile.start") || c->profile.start < 0) return;
    if (GOOD(load, "profile.end") && c->profile.end <= c->profile.start)
        errors_add(errors, "%s is not after %s; a window of two steps ends at %lld",
                   said(load, "profile.end").text, said(load, "profile.start").text,
                   (long long)c->profile.start + 2);
    if (GOOD(load, "train.steps") && c->profile.start >= c->train.steps)
        errors_add(errors, "%s comes after the last step, %s; start the window earlier",
                   said(load, "profile.start").text, said(load, "train.steps").text);
}

void config_validate(const ConfigLoad *load, Errors *errors)
{
    if (load->unreadable) return;   /* conflicts between defaults would only hide what is wrong */
    check_heads(load, errors);
    check_widths(load, errors);
    check_rope(load, errors);
    check_vocab(load, errors);
    check_context(load, errors);
    check_tokens(load, errors);
    check_schedule(load, errors);
    check_data(load, errors);
    check_profile(load, errors);
}

/* ---- resume ------------------------------------------------------------------------------------- */

void config_diff(const Config *saved, const ConfigLoad *now, bool whole, Errors *refused, FILE *changes)
{
    for (int key = 0; key < CONFIG_KEYS; key++) {
        char before[CONFIG_VALUE], after[CONFIG_VALUE];
        config_value_text(saved, key, before);
        config_value_text(&now->values, key, after);
        if (!strcmp(before, after)) continue;
        if (!whole && (now->bad[key] || now->line[key] == ORIGIN_DEFAULT || !strcmp(after, "0"))) continue;
        const char *path = config_keys[key].path;
        bool filled_in = config_keys[key].kind == KEY_TEXT && !*before;    /* as in a run that was imported */
        if (config_keys[key].resume == RESUME_FIXED && !filled_in)
            errors_add(refused,
                       "%s cannot change on resume: the run has \"%s\", now \"%s\"; keep the run's value, "
                       "or start a new run",
                       path, before, after);
        else if (changes)
            fprintf(changes, "%s: %s -> %s\n", path, *before ? before : "\"\"", *after ? after : "\"\"");
    }
}
