#include "data/documents.h"
#include "data/jsonl.h"
#include "model/files.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- inputs -------------------------------------------------------------------------------------- */

static bool ends_with(const char *name, const char *end)
{
    size_t length = strlen(name), tail = strlen(end);
    return length >= tail && !strcmp(name + length - tail, end);
}

static bool is_jsonl(const char *path)
{
    return ends_with(path, ".jsonl") || ends_with(path, ".ndjson");
}

static bool is_text(const char *path)
{
    return is_jsonl(path) || ends_with(path, ".txt") || ends_with(path, ".text") || ends_with(path, ".md");
}

/* Copies standard input to a file without a name, so that it can be mapped like others. -1 with an error. */
static int spool_standard_input(Errors *errors)
{
    FILE *spool = tmpfile();
    char  buffer[1 << 16];
    for (size_t n; spool && (n = fread(buffer, 1, sizeof buffer, stdin)) > 0;)
        if (fwrite(buffer, 1, n, spool) != n)
            break;
    bool fine = spool && !ferror(stdin) && feof(stdin) && !fflush(spool);
    int  fd   = fine ? dup(fileno(spool)) : -1;
    if (fd < 0)
        errors_add(errors, "standard input: cannot be copied to a temporary file: %s", strerror(errno));
    if (spool)
        fclose(spool);
    return fd;
}

/* Maps a file, or standard input for "-", at the end of the list. */
static bool add_file(Inputs *inputs, const char *path, InputFormat format, Errors *errors)
{
    bool        standard = !strcmp(path, "-");
    struct stat status;
    int         fd = standard ? spool_standard_input(errors) : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && standard)
        return false;
    if (fd < 0 || fstat(fd, &status) || !S_ISREG(status.st_mode)) {
        errors_add(errors, "%s: %s", path,
                   fd < 0 ? strerror(errno) : "not a regular file (use - to read a pipe)");
        if (fd >= 0)
            close(fd);
        return false;
    }
    size_t bytes = (size_t)status.st_size;
    void  *map   = bytes ? mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
    close(fd);
    InputFile *files = realloc(inputs->files, (size_t)(inputs->count + 1) * sizeof *files);
    if (files)
        inputs->files = files;
    char *name = strdup(path);
    if (map == MAP_FAILED || !files || !name) {
        errors_add(errors, "%s: cannot be mapped: %s", path, strerror(errno));
        if (map && map != MAP_FAILED)
            munmap(map, bytes);
        free(name);
        return false;
    }
    bool jsonl = format == INPUT_JSONL || (format == INPUT_AUTO && is_jsonl(path));
    files[inputs->count++] = (InputFile){ name, map, bytes, jsonl };
    inputs->bytes += bytes;
    return true;
}

static bool add_directory(Inputs *inputs, const char *path, InputFormat format, Errors *errors)
{
    struct dirent **entries;
    int  count = scandir(path, &entries, NULL, alphasort);
    bool fine  = count >= 0;
    if (!fine)
        errors_add(errors, "%s: cannot be listed: %s", path, strerror(errno));
    for (int e = 0; e < count; e++) {
        char *child = files_join(path, entries[e]->d_name);
        if (entries[e]->d_name[0] != '.' && child) {
            if (files_is_dir(child))
                fine = add_directory(inputs, child, format, errors) && fine;
            else if (is_text(child))
                fine = add_file(inputs, child, format, errors) && fine;
            else
                inputs->skipped++;
        }
        free(child);
        free(entries[e]);
    }
    if (count >= 0)
        free(entries);
    return fine;
}

bool inputs_open(Inputs *inputs, char *const *paths, int count, InputFormat format, Errors *errors)
{
    bool fine = true;
    *inputs = (Inputs){ 0 };
    for (int p = 0; p < count; p++) {
        if (files_is_dir(paths[p]))
            fine = add_directory(inputs, paths[p], format, errors) && fine;
        else
            fine = add_file(inputs, paths[p], format, errors) && fine;
    }
    if (fine && inputs->bytes == 0)
        errors_add(errors, "%s: no text in the input%s", paths[0], inputs->skipped ?
                   " (of directories, only .txt, .text, .md, .jsonl and .ndjson files are read)" : "");
    return fine && inputs->bytes > 0;
}

void inputs_close(Inputs *inputs)
{
    for (int f = 0; f < inputs->count; f++) {
        if (inputs->files[f].bytes)
            munmap((void *)inputs->files[f].text, inputs->files[f].bytes);
        free(inputs->files[f].path);
    }
    free(inputs->files);
    *inputs = (Inputs){ 0 };
}

/* ---- documents ----------------------------------------------------------------------------------- */

/* The line at text[at], without its end; returns where the next one begins. */
static size_t line_at(const InputFile *file, size_t at, size_t *length)
{
    const char *newline = memchr(file->text + at, '\n', file->bytes - at);
    size_t      end     = newline ? (size_t)(newline - file->text) : file->bytes;
    *length = end - at;
    if (*length && file->text[end - 1] == '\r')
        --*length;
    return newline ? end + 1 : end;
}

static bool is_separator(const DocumentRules *rules, const char *line, size_t length)
{
    if (rules->separator)
        return length == strlen(rules->separator) && !memcmp(line, rules->separator, length);
    while (length && (line[length - 1] == ' ' || line[length - 1] == '\t'))
        length--;
    return length == 0;
}

/* The next run of lines between separators; false at the end of the file. */
static bool next_lines(DocumentReader *reader, const InputFile *file, Document *document)
{
    size_t begin = reader->at, end = begin, at = begin, length;
    while (at < file->bytes) {
        size_t line = at;
        at = line_at(file, at, &length);
        if (!is_separator(&reader->rules, file->text + line, length)) {
            end = line + length;
            continue;
        }
        if (end > begin)
            break;
        begin = end = at;
    }
    reader->at = at;
    *document  = (Document){ file->text + begin, end - begin, false };
    return end > begin;
}

static bool next_json(DocumentReader *reader, const InputFile *file, Document *document, Errors *errors)
{
    while (reader->at < file->bytes) {
        size_t      begin = reader->at, length;
        const char *problem;
        reader->at = line_at(file, begin, &length);
        reader->line++;
        *document = (Document){ .escaped = true };
        if (strspn(file->text + begin, " \t") >= length)
            continue;
        if (!jsonl_find(file->text + begin, length, reader->rules.field, &document->text, &document->length,
                        &problem)) {
            errors_add(errors, "%s:%lld: %s; expected a line like {\"%s\": \"...\"}", file->path,
                       (long long)reader->line, problem, reader->rules.field);
            return false;
        }
        if (document->length > 0)
            return true;
    }
    return false;
}

bool documents_next(DocumentReader *reader, Document *document, Errors *errors)
{
    int before = errors->count;
    for (; reader->file < reader->inputs->count; reader->file++, reader->at = 0, reader->line = 0) {
        const InputFile *file = &reader->inputs->files[reader->file];
        if (file->jsonl) {
            if (next_json(reader, file, document, errors))
                return true;
            if (errors->count > before)
                return false;
        } else if (!reader->rules.whole_files) {
            if (next_lines(reader, file, document))
                return true;
        } else if (reader->at < file->bytes) {
            *document  = (Document){ file->text, file->bytes, false };
            reader->at = file->bytes;
            return true;
        }
    }
    return false;
}
