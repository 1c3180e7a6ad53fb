/* From a config to everything a run needs: backend, tokenizer, data. Shared by the commands. */
#pragma once
#include "commands/backend.h"
#include "data/loader.h"
#include "data/tokenizer.h"
#include "model/config.h"
#include "model/llama.h"

typedef struct Setup {
    ConfigLoad *load;
    Config     *config;         /* inside load */
    Tokenizer  *tokenizer;      /* NULL when data.tokenizer is empty */
    int32_t    *token_bytes;    /* [vocab], NULL without a tokenizer */
    ShardSet   *train_set, *val_set;
    Loader     *train, *val;    /* val NULL without data.val */
    Backend     backend;
} Setup;

/* Reads and checks the config, and derives what it leaves open (vocab from the tokenizer, setup_derive).
 * need_tokenizer false: a tokenizer.json that is not there yet is passed over when model.vocab is given. */
bool setup_config(Setup *setup, const char *path, int override_count, char **overrides, bool need_tokenizer,
                  Errors *errors);
/* Settles the values of a checked config that follow from others. */
void setup_derive(Config *config);
/* Opens the token shards and makes the loaders. */
bool setup_data(Setup *setup, Errors *errors);
/* Only whether the token shards exist: for reporting together with errors of the config. */
void setup_find_data(const Setup *setup, Errors *errors);
/* False with an error added where data.tokenizer is not the one of a checkpoint: the ids mean other texts then.
 * fingerprint 0: unknown. */
bool setup_check_tokenizer(const Setup *setup, uint64_t fingerprint, Errors *errors);
/* On resume: a run that was copied or moved has a config that still names its old place. False with an error
 * added where config_path is RUN/config.json and run.dir, not given on the command line, is another one. */
bool setup_check_place(const Setup *setup, const char *config_path, Errors *errors);
/* Opens the backend that run.device asks for. */
bool setup_backend(Setup *setup, bool plan_only, Errors *errors);
/* From a run directory: its config, tokenizer, backend, and a model with the weights of its newest
 * checkpoint, for texts of up to train.seq_len tokens. Sentences about what was passed over go to stderr.
 * NULL with an error added when that fails; where `errors` holds some already, it only adds those of the config. */
Llama *setup_trained(Setup *setup, const char *run_dir, int override_count, char **overrides, Errors *errors);
/* Longest text that training samples may have: train.seq_len, or 0 where there are none to be written. */
int64_t setup_sample_context(const Config *config);
void setup_close(Setup *setup);

/* The end of a command: prints the errors, releases everything and returns code. */
int setup_finish(Setup *setup, Errors *errors, int code);
