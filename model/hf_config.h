/* Hugging Face's config.json of a LlamaForCausalLM (docs/FORMATS.md), to and from Config.model. */
#pragma once
#include "model/config.h"

/* Fills config->model from the text of a config.json; `path` is for messages. Absent fields get the defaults
 * of transformers' LlamaConfig. Everything that this program cannot represent is refused, one error a reason:
 * other architectures and activations, biases, dropout, RoPE types besides default and llama3, quantisation,
 * sliding windows. Both RoPE forms are read (rope_theta + rope_scaling, and rope_parameters); a file that
 * has both must say the same in both. config is unchanged where an error was added. */
bool hf_config_read(const char *text, const char *path, Config *config, Errors *errors);

/* Special ids of a config.json. -1 = none. */
#define HF_EOS_IDS 8
typedef struct HfTokenIds {
    int64_t bos, pad;
    int64_t eos[HF_EOS_IDS];
    int     eos_count;
} HfTokenIds;

/* text: of a config.json or generation_config.json; what it does not say is none. */
HfTokenIds hf_config_token_ids(const char *text);

/* The text of a config.json, owned by the caller; NULL when memory ran out. dtype: "bfloat16", "float16" or
 * "float32". Both RoPE forms are written: transformers 4 reads only the old one, 5 writes only the new. */
char *hf_config_write(const Config *config, const char *dtype, const HfTokenIds *ids);

/* The text of a generation_config.json with the same ids; same ownership. */
char *hf_generation_config_write(const HfTokenIds *ids);
