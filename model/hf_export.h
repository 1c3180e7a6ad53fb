/* From a checkpoint to a directory that Hugging Face's transformers (and vLLM, llama.cpp's converter, ...)
 * load. Tensors are streamed from file to file; no model is made. */
#pragma once
#include "data/tokenizer.h"
#include "model/hf_config.h"
#include "model/safetensors.h"

/* What stands beside the weights in a model directory, and is kept unchanged from import to export:
 * tokenizer.json, generation_config.json, ... */
#define HF_KEPT_DIR "hf"            /* RUN/hf holds what the import kept, and the original config.json */

/* Copies those companion files that `from` has to the existing directory `to`. */
bool hf_copy_companions(const char *from, const char *to, Errors *errors);

typedef struct HfExport {
    const Config    *config;        /* of the run */
    const char      *run_dir;
    const char      *checkpoint;    /* directory of the checkpoint to export */
    const Tokenizer *tokenizer;     /* NULL: only ids are known, no tokenizer files are written */
    SafetensorsDtype dtype;         /* ST_BF16, ST_F16 or ST_F32 */
    int64_t          shard_bytes;   /* largest tensor data of a file, 0 = one file */
} HfExport;

/* Writes out_dir, which must not exist or be empty. False with errors added: what cannot be represented there
 * is refused, e.g. values that overflow F16. */
bool hf_export(const HfExport *e, const char *out_dir, Errors *errors);

/* RUN/hf/config.json of an imported run, NULL in every other run. Caller frees. */
char *hf_original_config(const char *run_dir);

/* Whether the import kept a tokenizer. */
bool hf_kept_tokenizer(const char *run_dir);

/* Ids of the exported model: those of the original config.json, else the tokenizer's. */
HfTokenIds hf_token_ids(const char *original, const Tokenizer *tokenizer);
