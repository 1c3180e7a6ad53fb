/* Small file-system helpers. Each reports its failure with path and cause. */
#pragma once
#include "model/errors.h"
#include <stdbool.h>
#include <stddef.h>

/* Makes the directory where it is missing and takes it for this process: a descriptor, which keeps it until it is closed or
 * the process ends. -1 with an error added; FILES_BUSY when another process has it. Where a file system has no locks,
 * everybody gets it. */
enum { FILES_BUSY = -2 };
int files_lock_dir(const char *dir, Errors *errors);

/* dir/name, owned by the caller; NULL when memory ran out. */
char *files_join(const char *dir, const char *name);
bool files_exists(const char *path);
bool files_is_dir(const char *path);
/* Creates a directory and its parents. */
bool files_make_dirs(const char *path, Errors *errors);
/* Whole file with a 0 byte behind, owned by the caller. bytes may be NULL. */
char *files_read(const char *path, size_t *bytes, Errors *errors);
/* Replaces a file as a whole: written beside, synced, renamed. */
bool files_replace(const char *path, const char *text, size_t bytes, Errors *errors);
/* Makes renames and new names in a directory durable. */
bool files_sync_dir(const char *path, Errors *errors);
/* Removes a directory with all that is in it; does not follow links. */
bool files_remove_tree(const char *path, Errors *errors);
