#include "model/checkpoint.h"
#include "model/checkpoint_manifest.h"
#include "model/files.h"
#include "model/weights_io.h"
#include "model/xxh64.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define STEP_NAME "step-%08" PRId64

void checkpoint_state_free(CheckpointState *state)
{
    for (int i = 0; i < state->choice_count; i++) free(state->choices[i]);
    free(state->choices);
    *state = (CheckpointState){0};
}

void checkpoint_add_choice(CheckpointState *state, const char *text)
{
    char **more = realloc(state->choices, (size_t)(state->choice_count + 1) * sizeof *more);
    if (!more) return;
    state->choices = more;
    char *copy = strdup(text);
    if (copy) state->choices[state->choice_count++] = copy;
}

/* ---- the directories of a run -------------------------------------------------------------------- */

/* The step of "step-00000123" + suffix, -1 for every other name. */
static int64_t step_of(const char *name, const char *suffix)
{
    int64_t step;
    char again[64];
    if (sscanf(name, "step-%" SCNd64, &step) != 1 || step < 0) return -1;
    snprintf(again, sizeof again, STEP_NAME "%s", step, suffix);
    return strcmp(name, again) == 0 ? step : -1;
}

static int newest_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

/* Steps whose directory name ends in suffix, newest first; owned by the caller. -1 when the directory cannot
 * be read, with an error added unless it doesn't exist. */
static int list_steps(const char *dir, const char *suffix, int64_t **steps, Errors *errors)
{
    *steps = NULL;
    DIR *d = opendir(dir);
    if (!d) {
        if (errno != ENOENT) errors_add(errors, "%s: cannot list: %s", dir, strerror(errno));
        return -1;
    }
    int count = 0;
    for (struct dirent *entry; (entry = readdir(d)); ) {
        int64_t step = step_of(entry->d_name, suffix);
        if (step < 0) continue;
        int64_t *more = realloc(*steps, (size_t)(count + 1) * sizeof *more);
        if (!more) break;
        *steps = more;
        more[count++] = step;
    }
    closedir(d);
    if (count) qsort(*steps, (size_t)count, sizeof **steps, newest_first);
    return count;
}

static char *step_path(const char *dir, int64_t step, const char *suffix)
{
    char name[64];
    snprintf(name, sizeof name, STEP_NAME "%s", step, suffix);
    return files_join(dir, name);
}

/* ---- saving -------------------------------------------------------------------------------------- */

static bool has_moments(const Llama *model)
{
    return model->mode == LLAMA_TRAIN;
}

bool checkpoint_has_room(const char *dir, const Llama *model, Errors *errors)
{
    struct statvfs s;
    if (statvfs(dir, &s) != 0) return true;     /* then writing itself will tell */
    double parameters = (double)llama_parameters(&model->shape), bytes = 4 * parameters + (1 << 16);
    if (has_moments(model)) bytes += 2 * parameters * (double)dtype_bytes(model->weights[0].m.dtype);
    double free_bytes = (double)s.f_bavail * (double)s.f_frsize;
    if (bytes <= free_bytes) return true;
    bool large = bytes >= 1e9;
    double unit = large ? 1e9 : 1e6;
    errors_add(errors, "%s: not enough space for a checkpoint: it needs %.2f %s, %.2f are free; free some, "
               "for instance by deleting the oldest of the run's checkpoints", dir, bytes / unit, large ? "GB" : "MB",
               free_bytes / unit);
    return false;
}

/* Writes all files of a checkpoint into an existing empty directory. */
static bool write_files(const char *dir, const Llama *model, const CheckpointState *state, Errors *errors)
{
    SafetensorsWritten *masters = NULL, *moments = NULL, files[MANIFEST_FILES];
    int n = 0, count = 0;
    bool ok = weights_save(model, dir, "model", ST_F32, 0, &masters, &n, errors);
    if (ok) files[count++] = masters[0];
    if (ok && has_moments(model)) {
        ok = moments_save(model, dir, "optimizer", &moments, &n, errors);
        if (ok) files[count++] = moments[0];
    }
    ok = ok && manifest_write(dir, state, files, count, errors) && files_sync_dir(dir, errors);
    free(masters);
    free(moments);
    return ok;
}

/* Moves a finished directory to its place; what stood there is put aside first and removed after. */
static bool put_in_place(const char *written, const char *place, const char *aside, Errors *errors)
{
    bool again = files_exists(place);
    if (again && (!files_remove_tree(aside, errors) || rename(place, aside) != 0)) {
        errors_add(errors, "%s: cannot move the earlier checkpoint aside: %s", place, strerror(errno));
        return false;
    }
    if (rename(written, place) != 0) {
        errors_add(errors, "%s: cannot rename to %s: %s", written, place, strerror(errno));
        if (again) (void)!rename(aside, place);
        return false;
    }
    return true;
}

bool checkpoint_save(const char *run_dir, const Llama *model, const CheckpointState *state, Errors *errors)
{
    char *dir = files_join(run_dir, "checkpoints"), *latest = dir ? files_join(dir, "latest") : NULL;
    char *place = dir ? step_path(dir, state->step, "") : NULL;
    char *written = dir ? step_path(dir, state->step, ".tmp") : NULL;
    char *aside = dir ? step_path(dir, state->step, ".old") : NULL;
    bool ok = latest && place && written && aside;
    if (!ok) errors_add(errors, "%s: not enough memory to save a checkpoint", run_dir);
    ok = ok && files_make_dirs(dir, errors) && files_remove_tree(written, errors) &&
         checkpoint_has_room(dir, model, errors) && files_make_dirs(written, errors);
    if (ok) {
        ok = write_files(written, model, state, errors) && put_in_place(written, place, aside, errors);
        Errors ignored = {0};
        if (!ok) files_remove_tree(written, &ignored);
        errors_free(&ignored);
    }
    if (ok) {
        char name[64];
        int length = snprintf(name, sizeof name, STEP_NAME "\n", state->step);
        ok = files_sync_dir(dir, errors) && files_remove_tree(aside, errors) &&
             files_replace(latest, name, (size_t)length, errors);
    }
    free(aside);
    free(written);
    free(place);
    free(latest);
    free(dir);
    return ok;
}

/* The step that `latest` names, or the largest possible one. */
static int64_t latest_step(const char *dir)
{
    char *path = files_join(dir, "latest");
    Errors ignored = {0};
    char *name = path ? files_read(path, NULL, &ignored) : NULL;
    if (name) name[strcspn(name, "\n")] = 0;
    int64_t step = name ? step_of(name, "") : -1;
    free(name);
    free(path);
    errors_free(&ignored);
    return step >= 0 ? step : INT64_MAX;
}

bool checkpoint_remove_torn(const char *run_dir, Errors *errors)
{
    char *dir = files_join(run_dir, "checkpoints");
    int64_t *torn = NULL;
    int count = dir ? list_steps(dir, ".tmp", &torn, errors) : 0;
    bool ok = dir != NULL;
    for (int i = 0; i < count; i++) {
        char *path = step_path(dir, torn[i], ".tmp");
        ok = path && files_remove_tree(path, errors) && ok;
        free(path);
    }
    free(torn);
    free(dir);
    return ok;
}

bool checkpoint_prune(const char *run_dir, int64_t keep_last, int64_t keep_every, Errors *errors)
{
    char *dir = files_join(run_dir, "checkpoints");
    int64_t *steps, latest = latest_step(dir);
    int count = list_steps(dir, "", &steps, errors);
    bool ok = checkpoint_remove_torn(run_dir, errors);
    for (int i = 0, kept = 0; i < count; i++) {
        if (steps[i] <= latest && (kept == 0 || keep_last == 0 || kept < keep_last ||
                                   (keep_every && steps[i] % keep_every == 0))) {
            kept++;
            continue;
        }
        char *path = step_path(dir, steps[i], "");
        ok = path && files_remove_tree(path, errors) && ok;
        free(path);
    }
    free(steps);
    free(dir);
    return ok;
}

/* ---- finding ------------------------------------------------------------------------------------- */

static bool check_file(const char *dir, const SafetensorsWritten *expected, Errors *errors)
{
    char *path = files_join(dir, expected->name);
    unsigned char *buffer = malloc(1 << 20);
    /* not blocking: of a FIFO nothing can be read, and nobody waits for it */
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    Xxh64 hash;
    xxh64_begin(&hash, 0);
    ssize_t n = -1;
    while (fd >= 0 && buffer && (n = read(fd, buffer, 1 << 20)) > 0) xxh64_add(&hash, buffer, (size_t)n);
    bool ok = false;
    if (n < 0) {
        errors_add(errors, "%s: passed over: cannot read %s: %s", dir, expected->name, strerror(errno));
    } else if ((int64_t)hash.total != expected->bytes) {
        errors_add(errors, "%s: passed over: %s has %" PRIu64 " bytes; its manifest says %" PRId64, dir,
                   expected->name, hash.total, expected->bytes);
    } else if (xxh64_end(&hash) != expected->xxh64) {
        errors_add(errors, "%s: passed over: %s is damaged (its checksum is not the manifest's)", dir,
                   expected->name);
    } else {
        ok = true;
    }
    if (fd >= 0) close(fd);
    free(buffer);
    free(path);
    return ok;
}

static bool is_whole(const char *dir, Errors *errors)
{
    CheckpointState state = {0};
    SafetensorsWritten files[MANIFEST_FILES];
    int count = 0;
    Errors wrong = {0};
    bool ok = manifest_read(dir, &state, files, &count, &wrong);
    for (int i = 0; i < wrong.count; i++) errors_add(errors, "%s: passed over: %s", dir, wrong.text[i]);
    for (int i = 0; i < count && ok; i++) ok = check_file(dir, &files[i], errors);
    errors_free(&wrong);
    checkpoint_state_free(&state);
    return ok;
}

/* A crash between the renames of put_in_place leaves only the earlier checkpoint, under its other name. */
static void undo_put_aside(const char *dir, Errors *errors)
{
    int64_t *steps;
    int count = list_steps(dir, ".old", &steps, errors);
    for (int i = 0; i < count; i++) {
        char *aside = step_path(dir, steps[i], ".old"), *place = step_path(dir, steps[i], "");
        if (aside && place && !files_exists(place)) (void)!rename(aside, place);
        free(place);
        free(aside);
    }
    free(steps);
}

char *checkpoint_find(const char *run_dir, Errors *skipped)
{
    char *dir = files_join(run_dir, "checkpoints"), *found = NULL;
    int64_t *steps, *torn;
    int torn_count = list_steps(dir, ".tmp", &torn, skipped);
    if (torn_count < 0) {       /* says so once */
        free(dir);
        return NULL;
    }
    undo_put_aside(dir, skipped);
    int count = list_steps(dir, "", &steps, skipped);
    for (int i = 0; i < torn_count; i++) {
        errors_add(skipped, "%s/" STEP_NAME ".tmp: passed over: its writing was interrupted", dir, torn[i]);
    }
    for (int i = 0; i < count && !found; i++) {
        char *path = step_path(dir, steps[i], "");
        if (path && is_whole(path, skipped)) found = path;
        else free(path);
    }
    free(torn);
    free(steps);
    free(dir);
    return found;
}

/* ---- loading ------------------------------------------------------------------------------------- */

static Safetensors *open_part(const char *dir, const char *name, Errors *errors)
{
    char *path = files_join(dir, name);
    Safetensors *st = path ? safetensors_open(path, errors) : NULL;
    free(path);
    return st;
}

static void zero_moments(Llama *model)
{
    for (int i = 0; i < model->weight_count; i++) {
        const Tensor *parts[] = {&model->weights[i].m, &model->weights[i].v};
        for (int p = 0; p < 2; p++) {
            const Tensor *t = parts[p];
            size_t bytes = (size_t)(t->rows * t->cols) * dtype_bytes(t->dtype);
            model->device->zero(model->ctx.stream, t->data, bytes);
        }
    }
    model->device->wait(model->ctx.stream);
}

int checkpoint_load(const char *checkpoint_dir, Llama *model, CheckpointState *state, Errors *errors)
{
    SafetensorsWritten files[MANIFEST_FILES];
    int count = 0, loaded = -1;
    CheckpointState fresh = {0};
    if (!manifest_read(checkpoint_dir, &fresh, files, &count, errors)) return -1;
    bool with_moments = has_moments(model) && count == MANIFEST_FILES;
    Safetensors *masters = open_part(checkpoint_dir, files[0].name, errors);
    Safetensors *moments = with_moments ? open_part(checkpoint_dir, files[1].name, errors) : NULL;
    if (masters && (moments || !with_moments)) loaded = weights_load(model, masters, moments, errors);
    safetensors_close(masters);
    safetensors_close(moments);
    if (loaded < 0) {
        checkpoint_state_free(&fresh);
        return -1;
    }
    if (has_moments(model) && !with_moments) {
        zero_moments(model);
        fresh.adam_step = 0;
    }
    llama_fold(model);
    checkpoint_state_free(state);
    *state = fresh;
    return loaded;
}
