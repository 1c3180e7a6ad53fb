/* GGUF version 3 files, as llama.cpp reads them (docs/FORMATS.md). */
#pragma once
#include "model/hf_export.h"

/* Writes a checkpoint with its tokenizer as one GGUF file: matrices in e->dtype, norms in F32, rows of q and
 * k in interleaved rotary pairs, llama3 scaling as divisors of the frequencies. Replaces `path` as a whole.
 * False with errors added. */
bool gguf_export(const HfExport *e, const char *path, Errors *errors);
