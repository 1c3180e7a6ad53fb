#include "model/run.h"
#include "model/files.h"
#include "model/hf_export.h"
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONFIG_UNFINISHED "config.json.tmp"     /* as files_replace leaves it when it is killed */

static bool has(const char *dir, const char *name)
{
    char *path = files_join(dir, name);
    bool found = path && files_exists(path);
    free(path);
    return found;
}

/* Nothing but files of these names: a, b (may be NULL). */
static bool holds_only(const char *dir, const char *a, const char *b)
{
    DIR *d = opendir(dir);
    if (!d) return false;
    bool only = true;
    for (struct dirent *entry; only && (entry = readdir(d)); ) {
        const char *name = entry->d_name;
        only = strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strcmp(name, a) == 0 ||
               (b && strcmp(name, b) == 0);
    }
    closedir(d);
    return only;
}

/* A run that was ended as it began has only its configuration. */
static bool is_run(const char *dir)
{
    return has(dir, "config.json") && (has(dir, "log.jsonl") || has(dir, "checkpoints") ||
                                       holds_only(dir, "config.json", CONFIG_UNFINISHED));
}

static bool is_empty(const char *dir)
{
    return holds_only(dir, CONFIG_UNFINISHED, NULL);
}

/* The directory itself, or the nearest parent that exists, must be writable. */
static bool check_writable(const char *dir, Errors *errors)
{
    char *path = strdup(dir);
    while (path && !files_exists(path)) {
        char *slash = strrchr(path, '/');
        if (slash && slash != path) *slash = 0;
        else strcpy(path, slash ? "/" : ".");   /* dir has at least one character */
    }
    bool ok = path && files_is_dir(path) && access(path, W_OK | X_OK) == 0;
    if (!ok) {
        errors_add(errors, "run directory %s: cannot write in %s: %s", dir, path ? path : dir,
                   path && !files_is_dir(path) ? "it is not a directory" : strerror(errno));
    }
    free(path);
    return ok;
}

bool run_check(const char *dir, RunStart start, Errors *errors)
{
    if (!dir[0]) {
        errors_add(errors, "run.dir is empty; expected the name of a run directory");
        return false;
    }
    if (start == RUN_RESUME) {
        if (has(dir, "config.json")) return check_writable(dir, errors);
        errors_add(errors, "run directory %s: there is no run to resume (no config.json in it)", dir);
        return false;
    }
    if (!files_exists(dir) || is_empty(dir)) return check_writable(dir, errors);
    if (!files_is_dir(dir)) {
        errors_add(errors, "run directory %s: it is not a directory", dir);
    } else if (!is_run(dir)) {
        errors_add(errors, "run directory %s: it holds other files and no run; name another one in run.dir",
                   dir);
    } else if (start == RUN_NEW) {
        errors_add(errors, "run directory %s: it holds a run already; continue it with --resume, replace it "
                   "with --run.overwrite=true, or name another one with --run.dir=...", dir);
    } else {
        return check_writable(dir, errors);
    }
    return false;
}

/* Deletes dir/name where it exists. */
static bool delete_one(const char *dir, const char *name, Errors *errors)
{
    char *path = files_join(dir, name);
    bool ok = path && files_remove_tree(path, errors);
    free(path);
    return ok;
}

static bool delete_run(const char *dir, Errors *errors)
{
    /* config.json last: without it the directory would not be a run any more if this stopped half-way. */
    bool ok = delete_one(dir, "report.html", errors);
    char *checkpoints = files_join(dir, "checkpoints");
    DIR *d = checkpoints ? opendir(checkpoints) : NULL;
    for (struct dirent *entry; d && ok && (entry = readdir(d)); ) {
        bool ours = strncmp(entry->d_name, "step-", 5) == 0 || strcmp(entry->d_name, "latest") == 0;
        if (ours) ok = delete_one(checkpoints, entry->d_name, errors);
    }
    if (d) closedir(d);
    if (checkpoints) rmdir(checkpoints);    /* stays where the user keeps something in it */
    free(checkpoints);
    ok = ok && delete_one(dir, HF_KEPT_DIR, errors);
    return ok && delete_one(dir, "log.jsonl", errors) && delete_one(dir, "config.json", errors);
}

static bool is_in(const char *path, const char *dir)
{
    const size_t length = strlen(dir);
    return strncmp(path, dir, length) == 0 && (path[length] == 0 || path[length] == '/');
}

bool run_owns(const char *dir, const char *path)
{
    static const char *const owned[] = {HF_KEPT_DIR, "checkpoints"};
    char *whole = realpath(path, NULL);
    bool owns = false;
    for (size_t i = 0; whole && i < sizeof owned / sizeof *owned; i++) {
        char *joined = files_join(dir, owned[i]), *there = joined ? realpath(joined, NULL) : NULL;
        owns |= there && is_in(whole, there);
        free(there);
        free(joined);
    }
    free(whole);
    return owns;
}

int run_claim(const char *dir, RunStart start, Errors *errors)
{
    int fd = files_lock_dir(dir, errors);
    if (fd == FILES_BUSY)
        errors_add(errors, "run directory %s: another process is writing this run; end it first, or name "
                   "another directory with --run.dir=...", dir);
    if (fd < 0) return -1;
    if (run_check(dir, start, errors)) return fd;
    close(fd);
    return -1;
}

bool run_open(const char *dir, RunStart start, const char *config_json, Errors *errors)
{
    if (!run_check(dir, start, errors) || !files_make_dirs(dir, errors)) return false;
    if (start == RUN_OVERWRITE && is_run(dir) && !delete_run(dir, errors)) return false;
    char *path = files_join(dir, "config.json");
    bool ok = path && files_replace(path, config_json, strlen(config_json), errors);
    free(path);
    return ok;
}
