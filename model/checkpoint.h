/* Checkpoints of a run: RUN/checkpoints/step-00000123/ holds model.safetensors (FP32 masters under Hugging
 * Face's names and rows), optimizer.safetensors (Adam's moments) and manifest.json (everything else, with
 * size and checksum of both files). Written beside, synced, renamed; RUN/checkpoints/latest names the newest
 * one and is replaced last. A directory of that name is therefore always complete, barring a broken disk. */
#pragma once
#include "model/llama.h"

#define CHECKPOINT_SCHEMA_VERSION 1
#define CHECKPOINT_CURSOR 16        /* most numbers in a loader's position */

/* What a resumed run needs beside tensors. Zero-initialise; checkpoint_state_free releases `choices`. */
typedef struct CheckpointState {
    int64_t  step;                  /* steps done */
    int64_t  tokens;                /* trained on, without padding */
    int64_t  adam_step;             /* updates applied: step less the skipped ones */
    int64_t  skipped;               /* updates skipped so far */
    uint64_t seed;
    uint64_t tokenizer;             /* fingerprint of the one that made the ids, 0 = unknown */
    int64_t  data_tokens;           /* of the training data as they were, 0 = unknown */
    int64_t  cursor[CHECKPOINT_CURSOR];   /* the loader's position */
    int      cursor_count;
    double   best_val_loss;         /* NAN = no validation yet */
    int64_t  best_val_step;
    double   elapsed_seconds;       /* of training, over all parts of the run */
    char   **choices;               /* "gate_up=cpu": what carried out each op */
    int      choice_count;
    char     backend[32];           /* "cpu", "cuda" */
    char     precision[16];         /* "fp32", "bf16", "fp8" */
    char     device[128];           /* CPU or GPU model */
    char     libraries[256];        /* their versions */
} CheckpointState;

void checkpoint_state_free(CheckpointState *state);
/* Copies `text` into state->choices. */
void checkpoint_add_choice(CheckpointState *state, const char *text);

/* Whether the file system of an existing directory has room for one more checkpoint: a full disk is better
 * noticed before hours of training than after. False with an error added. */
bool checkpoint_has_room(const char *dir, const Llama *model, Errors *errors);

/* Saves the model (without optimizer.safetensors where it has no moments). On failure an error with path and
 * cause is added, nothing new is left behind, and earlier checkpoints are as they were. */
bool checkpoint_save(const char *run_dir, const Llama *model, const CheckpointState *state, Errors *errors);

/* Removes what a save that was killed has left. False with errors added. */
bool checkpoint_remove_torn(const char *run_dir, Errors *errors);

/* Call after a successful save. Deletes all but the newest keep_last (0 = all are kept) and multiples of
 * keep_every steps (0 = none); the remains of interrupted saves; and checkpoints of later steps than the one
 * just saved, left behind where a run was resumed from an earlier one. Never deletes the one just saved. */
bool checkpoint_prune(const char *run_dir, int64_t keep_last, int64_t keep_every, Errors *errors);

/* Directory of the newest checkpoint that is whole: its files have the size and checksum of the manifest.
 * What had to be passed over is added to skipped, one sentence each. NULL when there is none. Caller frees.
 * `latest` is for people and scripts: this looks at the directories themselves. */
char *checkpoint_find(const char *run_dir, Errors *skipped);

/* Loads one checkpoint directory: masters, moments where the model trains (zeroed where the checkpoint has
 * none), working copies (llama_fold), state. All missing, unknown and mismatched tensors are listed and the
 * model is untouched in that case. Returns the number of tensors loaded, -1 with errors added. */
int checkpoint_load(const char *checkpoint_dir, Llama *model, CheckpointState *state, Errors *errors);
