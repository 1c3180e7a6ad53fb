/* What carried out each op, on its way into a checkpoint and back: a resumed run is bitwise the same only
 * with the same kernels. */
#pragma once
#include "commands/backend.h"
#include "model/checkpoint.h"

/* Replaces state's choices, backend, precision, device and libraries by what is in use now. */
void choices_record(CheckpointState *state, const Backend *backend);

/* Makes the backend use the checkpoint's choices. Says on stderr why the continuation is not bitwise the
 * same, where it is not. Before the first op. */
void choices_restore(const CheckpointState *state, Backend *backend);
