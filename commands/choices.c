#include "commands/choices.h"
#include <stdlib.h>
#include <string.h>

#define TUNED "tuned "      /* begins the lines that the libraries' tuning left */

static const char *precision_name(const Backend *backend)
{
    return backend->act == DTYPE_F32 ? "fp32" : "bf16";
}

static void add_tuned(CheckpointState *state, const Backend *backend)
{
    char *lines = backend_choices(backend), *rest = lines;
    if (!lines) return;
    for (char *line = strsep(&rest, "\n"); line; line = strsep(&rest, "\n")) {
        size_t bytes = sizeof TUNED + strlen(line);
        char *text = *line ? malloc(bytes) : NULL;
        if (!text) continue;
        snprintf(text, bytes, TUNED "%s", line);
        checkpoint_add_choice(state, text);
        free(text);
    }
    free(lines);
}

void choices_record(CheckpointState *state, const Backend *backend)
{
    CheckpointState kept = *state;          /* all but the choices of an earlier part of the run */
    kept.choices = NULL, kept.choice_count = 0;
    checkpoint_state_free(state);
    *state = kept;
    for (int op = 0; op < OP_COUNT; op++) {
        char text[160];
        const char *choice = backend->ops->choice(&backend->ctx, (OpId)op);
        snprintf(text, sizeof text, "%s=%s", op_name((OpId)op), choice);
        checkpoint_add_choice(state, text);
    }
    add_tuned(state, backend);
    snprintf(state->backend, sizeof state->backend, "%s", backend->ops->name);
    snprintf(state->precision, sizeof state->precision, "%s", precision_name(backend));
    snprintf(state->device, sizeof state->device, "%s", backend->hardware);
    snprintf(state->libraries, sizeof state->libraries, "%s", backend->libraries);
}

/* The tuned lines of a checkpoint as one text; NULL without any. Caller frees. */
static char *tuned_lines(const CheckpointState *state)
{
    size_t bytes = 1;
    for (int i = 0; i < state->choice_count; i++) bytes += strlen(state->choices[i]) + 1;
    char *text = calloc(bytes, 1), *end = text;
    for (int i = 0; text && i < state->choice_count; i++)
        if (!strncmp(state->choices[i], TUNED, strlen(TUNED)))
            end += sprintf(end, "%s\n", state->choices[i] + strlen(TUNED));
    return text;
}

void choices_restore(const CheckpointState *state, Backend *backend)
{
    if (!*state->device) return;            /* imported: no run of ours before this one */
    const char *differs = strcmp(state->backend, backend->ops->name) ? "another backend"
                        : strcmp(state->precision, precision_name(backend)) ? "another precision"
                        : strcmp(state->device, backend->hardware) ? "another device"
                        : strcmp(state->libraries, backend->libraries) ? "other library versions" : NULL;
    if (differs) {
        fprintf(stderr,
                "note: the checkpoint was written with %s (%s, %s), so this continuation is not bitwise the "
                "same\n",
                differs, state->device, state->libraries);
        return;
    }
    Errors unfit = {0};
    char *lines = tuned_lines(state);
    if (lines && *lines && !backend_restore_choices(backend, lines, &unfit))
        for (int i = 0; i < unfit.count; i++)
            fprintf(stderr, "note: %s, so this continuation is not bitwise the same\n", unfit.text[i]);
    errors_free(&unfit);
    free(lines);
}
