/* manifest.json of a checkpoint. Private to model/checkpoint*.c. */
#pragma once
#include "model/checkpoint.h"
#include "model/safetensors.h"

#define MANIFEST_FILES 2    /* model.safetensors, optimizer.safetensors */

/* The last file of a checkpoint: state, and size and checksum of the others and of itself. */
bool manifest_write(const char *dir, const CheckpointState *state, const SafetensorsWritten *files, int count,
                    Errors *errors);
/* Reads and checks it. On success *state is filled (its old contents are not released), and files [count] in
 * the order above. False with an error added. */
bool manifest_read(const char *dir, CheckpointState *state, SafetensorsWritten *files, int *count,
                   Errors *errors);
