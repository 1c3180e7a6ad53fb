/* The effective configuration of a run, and the one key table behind it (config_keys.def): it drives JSON
 * parsing, --section.key=value overrides, --help, --print-config, validation and the README's reference. */
#pragma once
#include "kernels/fusion.h"
#include "model/errors.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define CONFIG_SCHEMA_VERSION 1

typedef enum RunDevice { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA } RunDevice;
typedef enum Precision { PRECISION_FP32, PRECISION_BF16, PRECISION_FP8 } Precision;   /* cpu is always fp32 */
typedef enum MomentDtype { MOMENTS_FP32, MOMENTS_BF16 } MomentDtype;
typedef enum ScheduleKind { SCHEDULE_COSINE, SCHEDULE_LINEAR, SCHEDULE_CONSTANT, SCHEDULE_WSD } ScheduleKind;
typedef enum DecayShape { DECAY_LINEAR, DECAY_SQRT } DecayShape;    /* of WSD's last part */
typedef enum RopeScaling { ROPE_NONE, ROPE_LLAMA3 } RopeScaling;
typedef enum Recompute { RECOMPUTE_NONE, RECOMPUTE_SWIGLU } Recompute;
typedef enum AttentionKind { ATTENTION_CUDNN, ATTENTION_REFERENCE } AttentionKind;
typedef enum RowsKind { ROWS_STREAM, ROWS_DOCUMENTS } RowsKind;   /* see data/loader.h */
typedef enum DataDtype { DATA_AUTO, DATA_U16, DATA_U32 } DataDtype;     /* auto: from the header */

#define CONFIG_STRING 512   /* longest string value, with its end */

typedef struct Config {
    int64_t schema_version;
    struct {
        char      dir[CONFIG_STRING];     /* run directory */
        int64_t   device;                 /* RunDevice */
        int64_t   seed;
        int64_t   threads;                /* CPU threads, 0 = all */
        int64_t   log_every;              /* steps between progress lines */
        bool      overwrite;              /* replace an existing run directory */
    } run;
    struct {
        int64_t layers, hidden, ffn, heads, kv_heads, head_dim;   /* head_dim 0 = hidden / heads */
        int64_t vocab;                    /* 0 = from the tokenizer */
        double  norm_eps, rope_theta;
        int64_t rope_scaling;             /* RopeScaling */
        double  rope_factor, rope_low_freq_factor, rope_high_freq_factor;
        int64_t rope_original_max_position;
        int64_t max_position;             /* longest context the model is declared for; 0 = train.seq_len */
        bool    tie_embeddings;
        double  init_std, embedding_init_std;
    } model;
    struct {
        int64_t steps, seq_len, micro_batch;   /* micro_batch: sequences */
        int64_t accum;                    /* micro-batches a step; config_load settles 0, so >= 1 */
        int64_t tokens_per_step;          /* 0 = micro_batch * seq_len * accum */
        double  lr, min_lr_ratio;         /* final lr = lr * min_lr_ratio */
        int64_t schedule;                 /* ScheduleKind */
        int64_t warmup_steps;
        double  decay_fraction;           /* WSD: last part of the run that decays */
        int64_t decay_shape;              /* DecayShape */
        double  beta1, beta2, eps, weight_decay, clip;
        bool    decay_embeddings;
        int64_t overfit_batch;            /* n > 0: cycle over the first n batches only */
        int64_t recompute;                /* Recompute */
        int64_t precision;                /* Precision; used on a GPU */
        int64_t moments;                  /* MomentDtype; used on a GPU */
        int64_t attention;                /* AttentionKind; used on a GPU */
        bool    deterministic;
        int64_t head_chunk;               /* rows of a head chunk; 0 = chosen from the sizes */
        int64_t workspace_mib;            /* limit for library workspaces; used on a GPU */
    } train;
    struct {
        char    train[CONFIG_STRING], val[CONFIG_STRING];   /* globs, comma-separated */
        int64_t dtype;                    /* DataDtype, for files without a header */
        int64_t rows;                     /* RowsKind of the training rows */
        char    tokenizer[CONFIG_STRING]; /* tokenizer.json, or "bytes", or "" when only ids are known */
        bool    shuffle;
        bool    document_mask;            /* attention stays inside a document, positions restart */
        int64_t boundary_token;           /* id that begins a document (BOS), -1 = none */
        double  reference_bits_per_byte;  /* entropy of the text's source: a line in the report; 0 = none */
    } data;
    struct {
        int64_t every, batches;           /* steps between (0 = never); micro-batches each, 0 = all */
        int64_t rows;                     /* RowsKind of the validation rows */
    } val;
    struct {
        int64_t every, tokens;            /* steps between samples (0 = never), longest sample */
        char    prompt[CONFIG_STRING];
        double  temperature, top_p;
        int64_t top_k;                    /* 0 = off */
    } sample;
    struct {
        int64_t every;                    /* steps between checkpoints; 0 = at the end only */
        int64_t keep_last;                /* newest ones kept; 0 = all */
        int64_t keep_every;               /* multiples of this many steps are never deleted; 0 = none */
    } checkpoint;
    struct {
        int64_t mode[FUSE_COUNT];         /* FusionMode by FusionKey; in JSON a word for all, or an object */
    } fusion;
    struct {
        int64_t start, end;               /* steps [start, end) are the profiler's; start -1 = off */
    } profile;
} Config;

/* Where an effective value came from. */
typedef struct Origin {
    const char *file;   /* NULL: line 0 is the default, -1 the command line */
    int         line;
} Origin;

typedef struct ConfigLoad ConfigLoad;   /* a Config with the origin of each value */

/* Reads `path` (NULL = defaults only), then applies `--section.key=value` arguments in order. Collects every
 * error (unknown key with nearest names, duplicate, type, range, trailing bytes, newer schema) with file and
 * line. Returns NULL only where memory ran out; check errors->count.
 * train.accum is settled here: where it is 0 it becomes tokens_per_step / (micro_batch * seq_len), or 1. */
ConfigLoad *config_load(const char *path, int argc, char *const argv[], Errors *errors);
void config_free(ConfigLoad *load);
Config *config_values(ConfigLoad *load);
/* False where the file gave no values at all: everything else that is wrong would only hide that. */
bool config_is_readable(const ConfigLoad *load);

/* Cross-field checks: heads % kv_heads, even head size, tokens per step, warm-up against steps, ... Adds all
 * conflicts to errors. Call after derived values (vocab from the tokenizer) are known. Keys that
 * config_load refused are left out, so both can report in one run. */
void config_validate(const ConfigLoad *load, Errors *errors);

/* Resume: keys of the model, the data and their order that differ are refused; all others are allowed, and
 * printed to changes (may be NULL) as "train.lr: 0.001 -> 0.0005". whole: now has no errors, and what it leaves open has
 * been derived; if not, only what it gives counts. */
void config_diff(const Config *saved, const ConfigLoad *now, bool whole, Errors *refused, FILE *changes);

/* Origin of the value of "section.key", for errors found elsewhere (files, data): "configs/demo.json:7",
 * "command line", "default" or, where it was changed since, "derived". NULL for an unknown key. */
const char *config_where(const ConfigLoad *load, const char *path);

void config_print_help(FILE *out);                          /* every key: type, default, range, help */
void config_print(const ConfigLoad *load, FILE *out);       /* --print-config: value and origin */
void config_print_markdown(FILE *out);                      /* the README's key reference */
/* Effective configuration as JSON that re-runs the job. Caller frees; NULL where memory ran out. */
char *config_to_json(const Config *config);
