/* Masters and Adam moments between a model and safetensors files, through a host buffer of bounded size. */
#pragma once
#include "model/hf_names.h"
#include "model/safetensors.h"

/* Writes all masters to `dir` as `stem` (see safetensors_create). files as in safetensors_finish. */
bool weights_save(const Llama *model, const char *dir, const char *stem, SafetensorsDtype dtype,
                  int64_t shard_bytes, SafetensorsWritten **files, int *file_count, Errors *errors);

/* Moments as `stem`.safetensors in their own dtype: the names of the masters with ".m" and ".v" behind. */
bool moments_save(const Llama *model, const char *dir, const char *stem, SafetensorsWritten **files,
                  int *file_count, Errors *errors);

/* Fills all masters from a file in any dtype, and the moments where `moments` is not NULL. First lists every
 * missing, unknown and wrongly shaped tensor of both; then the model is as it was. `*.rotary_emb.inv_freq`,
 * and lm_head.weight of a tied model where it equals the embedding, are passed over. The caller folds
 * (llama_fold). Returns the number of tensors loaded, -1 with errors added. */
int weights_load(Llama *model, const Safetensors *masters, const Safetensors *moments, Errors *errors);
