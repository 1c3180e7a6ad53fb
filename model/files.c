#include "model/files.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

char *files_join(const char *dir, const char *name)
{
    size_t size = strlen(dir) + strlen(name) + 2;
    char *path = malloc(size);
    if (path) snprintf(path, size, "%s/%s", dir, name);
    return path;
}

bool files_exists(const char *path)
{
    struct stat s;
    return lstat(path, &s) == 0;
}

bool files_is_dir(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

bool files_make_dirs(const char *path, Errors *errors)
{
    char part[PATH_MAX];
    if ((size_t)snprintf(part, sizeof part, "%s", path) >= sizeof part) {
        errors_add(errors, "%s: path is longer than %d bytes", path, PATH_MAX);
        return false;
    }
    for (char *p = part + 1; ; p++) {
        if (*p != '/' && *p != 0) continue;
        char end = *p;
        *p = 0;
        if (mkdir(part, 0777) != 0 && (errno != EEXIST || !files_is_dir(part))) {
            errors_add(errors, "%s: cannot create directory: %s", part, strerror(errno));
            return false;
        }
        *p = end;
        if (end == 0) return true;
    }
}

int files_lock_dir(const char *dir, Errors *errors)
{
    if (!files_make_dirs(dir, errors)) return -1;
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        errors_add(errors, "%s: cannot open: %s", dir, strerror(errno));
        return -1;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return fd;
    close(fd);
    return FILES_BUSY;
}

char *files_read(const char *path, size_t *bytes, Errors *errors)
{
    FILE *file = fopen(path, "rb");
    if (!file) {
        errors_add(errors, "%s: cannot open: %s", path, strerror(errno));
        return NULL;
    }
    size_t used = 0, room = 4096;
    char *text = malloc(room + 1);
    while (text) {
        used += fread(text + used, 1, room - used, file);
        if (used < room) break;
        char *more = realloc(text, 2 * room + 1);
        if (!more) free(text);
        text = more;
        room *= 2;
    }
    if (!text) {
        errors_add(errors, "%s: not enough memory to read it", path);
    } else if (ferror(file)) {
        errors_add(errors, "%s: cannot read: %s", path, strerror(errno));
        free(text);
        text = NULL;
    } else {
        text[used] = 0;
        if (bytes) *bytes = used;
    }
    fclose(file);
    return text;
}

static bool write_all(int fd, const char *text, size_t bytes)
{
    while (bytes) {
        ssize_t n = write(fd, text, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        text += n;
        bytes -= (size_t)n;
    }
    return true;
}

bool files_replace(const char *path, const char *text, size_t bytes, Errors *errors)
{
    char beside[PATH_MAX];
    if ((size_t)snprintf(beside, sizeof beside, "%s.tmp", path) >= sizeof beside) {
        errors_add(errors, "%s: path is longer than %d bytes", path, PATH_MAX);
        return false;
    }
    int fd = open(beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    bool ok = fd >= 0 && write_all(fd, text, bytes) && fsync(fd) == 0;
    int cause = errno;
    if (fd >= 0 && close(fd) != 0 && ok) {
        ok = false;
        cause = errno;
    }
    if (ok && rename(beside, path) != 0) {
        ok = false;
        cause = errno;
    }
    if (ok) return true;
    unlink(beside);
    errors_add(errors, "%s: cannot write: %s", path, strerror(cause));
    return false;
}

bool files_sync_dir(const char *path, Errors *errors)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* Some file systems cannot sync a directory and say EINVAL: nothing to be done then. */
    bool ok = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL);
    if (!ok) errors_add(errors, "%s: cannot sync directory: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    return ok;
}

bool files_remove_tree(const char *path, Errors *errors)
{
    struct stat s;
    if (lstat(path, &s) != 0) {
        if (errno == ENOENT) return true;
        errors_add(errors, "%s: cannot look at it: %s", path, strerror(errno));
        return false;
    }
    bool ok = true;
    if (S_ISDIR(s.st_mode)) {
        DIR *dir = opendir(path);
        if (!dir) {
            errors_add(errors, "%s: cannot list: %s", path, strerror(errno));
            return false;
        }
        for (struct dirent *d; (d = readdir(dir)); ) {
            if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0) continue;
            char *inner = files_join(path, d->d_name);
            ok = inner && files_remove_tree(inner, errors) && ok;
            free(inner);
        }
        closedir(dir);
    }
    if (ok && remove(path) != 0) {
        errors_add(errors, "%s: cannot delete: %s", path, strerror(errno));
        ok = false;
    }
    return ok;
}
