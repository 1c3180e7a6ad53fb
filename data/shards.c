/* Reading of token files. */
#include "data/shards.h"
#include "data/megatron.h"
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEADER_BYTES  (SHARD_HEADER_INTS * 4)
#define SCAN_BYTES    (1 << 20)    /* one piece of the vocabulary pass */

/* Header words, all little-endian int32. Words 3-7 are zero in other tools' files. */
enum { WORD_MAGIC, WORD_VERSION, WORD_COUNT, WORD_COUNT_HIGH, WORD_VOCAB, WORD_BOUNDARY_PLUS_1,
       WORD_FINGERPRINT, WORD_FINGERPRINT_HIGH };

static void explain_magic(const char *path, const uint8_t *bytes, Errors *errors)
{
    uint32_t magic;
    memcpy(&magic, bytes, 4);
    const char *what = "";
    if (magic == 20240522)
        what = " (that is llm.c's multiple-choice evaluation file)";
    else if (magic == 20240326)
        what = " (that is an llm.c model checkpoint)";
    else if (__builtin_bswap32(magic) == SHARD_MAGIC_U16 || __builtin_bswap32(magic) == SHARD_MAGIC_U32)
        what = " (written big-endian)";
    else if (!memcmp(bytes, "BIN.TOK\n", 8))
        what = " (that is LLMQ's format)";
    else if (!memcmp(bytes, "MMIDIDX", 8))
        what = " (that is a Megatron index: name the .bin beside it)";
    errors_add(errors,
               "%s: magic %u at byte 0%s, expected %d (uint16, version 1: llm.c's GPT-2 scripts) or %d "
               "(uint32, version 7: ./train tokenize, llm.c's Llama-3 scripts); a raw file needs data.dtype "
               "u16 or u32",
               path, magic, what, SHARD_MAGIC_U16, SHARD_MAGIC_U32);
}

/* Fills the shard from its header. False with an error added. */
static bool read_header(Shard *shard, ShardDtype dtype, Errors *errors)
{
    uint32_t word[SHARD_HEADER_INTS];
    memcpy(word, shard->map, HEADER_BYTES);
    bool     wide    = word[WORD_MAGIC] == SHARD_MAGIC_U32;
    uint32_t version = wide ? 7 : 1;
    if (word[WORD_VERSION] != version) {
        errors_add(errors, "%s: version %u at byte 4, expected %u with magic %u", shard->path,
                   word[WORD_VERSION], version, word[WORD_MAGIC]);
        return false;
    }
    if (dtype != SHARD_AUTO && (dtype == SHARD_U32) != wide) {
        errors_add(errors, "%s: data.dtype says %s, the file's header says %s; leave data.dtype at auto for "
                   "files with a header", shard->path, wide ? "u16" : "u32", wide ? "u32" : "u16");
        return false;
    }
    shard->width       = wide ? 4 : 2;
    shard->offset      = HEADER_BYTES;
    shard->boundary    = (int64_t)word[WORD_BOUNDARY_PLUS_1] - 1;
    shard->fingerprint = word[WORD_FINGERPRINT] | (uint64_t)word[WORD_FINGERPRINT_HIGH] << 32;
    uint64_t count     = word[WORD_COUNT] | (uint64_t)word[WORD_COUNT_HIGH] << 32;
    uint64_t bytes     = shard->map_bytes - HEADER_BYTES;
    if (count > bytes / shard->width || count * shard->width != bytes) {
        errors_add(errors, "%s: the header says %llu tokens of %d bytes, which with the header makes %llu "
                   "bytes; the file has %zu (%s)", shard->path, (unsigned long long)count, shard->width,
                   (unsigned long long)(count * shard->width + HEADER_BYTES), shard->map_bytes,
                   bytes / shard->width < count ? "truncated: copy or write it again" : "bytes left over");
        return false;
    }
    shard->count = (int64_t)count;
    return true;
}

static bool read_raw(Shard *shard, ShardDtype dtype, Errors *errors)
{
    shard->width = dtype == SHARD_U16 ? 2 : 4;
    if (shard->map_bytes % shard->width) {
        errors_add(errors, "%s: %zu bytes is not a multiple of %d, the width that data.dtype gives",
                   shard->path, shard->map_bytes, shard->width);
        return false;
    }
    shard->count = (int64_t)(shard->map_bytes / shard->width);
    return true;
}

/* Whether the open file is one to map; its size goes to map_bytes. */
static bool check_kind(Shard *shard, int fd, Errors *errors)
{
    struct stat status;
    if (fstat(fd, &status)) {
        errors_add(errors, "%s: cannot be read: %s", shard->path, strerror(errno));
        return false;
    }
    shard->map_bytes = (size_t)status.st_size;
    bool regular = S_ISREG(status.st_mode);
    if (!regular)
        errors_add(errors, "%s: %s, expected a token file", shard->path,
                   S_ISDIR(status.st_mode) ? "a directory" : "not a regular file");
    else if (status.st_size == 0)
        errors_add(errors, "%s: empty, expected a token file", shard->path);
    return regular && status.st_size > 0;
}

/* Format and size of the mapped file. */
static bool read_format(Shard *shard, ShardDtype dtype, Errors *errors)
{
    const char *path  = shard->path;
    uint32_t    magic = 0;
    if (shard->map_bytes >= 4)
        memcpy(&magic, shard->map, 4);
    bool headed = magic == SHARD_MAGIC_U16 || magic == SHARD_MAGIC_U32, fine = false;
    if (megatron_has_index(path))
        fine = megatron_read_index(shard, errors);
    else if (headed && shard->map_bytes >= HEADER_BYTES)
        fine = read_header(shard, dtype, errors);
    else if (headed || (dtype == SHARD_AUTO && shard->map_bytes < HEADER_BYTES && !megatron_is_index(path)))
        errors_add(errors, "%s: %zu bytes, shorter than the %d-byte header of a token file%s", path,
                   shard->map_bytes, HEADER_BYTES, headed ? " (truncated: copy or write it again)" :
                   "; a raw file needs data.dtype u16 or u32");
    else if (dtype == SHARD_AUTO)
        explain_magic(path, shard->map, errors);
    else
        fine = read_raw(shard, dtype, errors);
    if (fine && shard->count == 0)
        errors_add(errors, "%s: holds no tokens", path);
    shard->tokens = (const uint8_t *)shard->map + shard->offset;
    return fine && shard->count > 0;
}

/* Largest of `count` ids. One loop per width, so that the compiler makes each a vector loop. */
static uint64_t largest_id(const void *ids, int width, int64_t count)
{
    uint64_t top = 0;
#define SCAN(type)                                                                                           \
    do {                                                                                                     \
        const type *list = ids;                                                                              \
        type largest = 0;                                                                                    \
        for (int64_t i = 0; i < count; i++)                                                                  \
            largest = list[i] > largest ? list[i] : largest;                                                 \
        top = largest;                                                                                       \
    } while (0)
    switch (width) {
    case 1:  SCAN(uint8_t);  break;
    case 2:  SCAN(uint16_t); break;
    case 4:  SCAN(uint32_t); break;
    default: SCAN(uint64_t); break;
    }
#undef SCAN
    return top;
}

static bool read_all(int fd, void *to, size_t bytes, uint64_t offset)
{
    for (ssize_t n; bytes; to = (char *)to + n, bytes -= (size_t)n, offset += (uint64_t)n)
        if ((n = pread(fd, to, bytes, (off_t)offset)) <= 0)
            return false;
    return true;
}

/* Index of the first id >= limit, -1 when there is none, -2 when reading failed; *id is that id. It reads
 * instead of touching the mapping, which would make the whole file count as memory of this process. */
static int64_t find_id_from(const Shard *shard, int fd, uint64_t limit, uint64_t *id)
{
    int64_t block = SCAN_BYTES / shard->width, blocks = (shard->count + block - 1) / block, first = INT64_MAX;
    int     failed = 0;
    #pragma omp parallel reduction(min : first) reduction(+ : failed)
    {
        void *buffer = malloc(SCAN_BYTES);
        #pragma omp for schedule(dynamic)
        for (int64_t b = 0; b < blocks; b++) {
            int64_t begin = b * block, count = begin + block < shard->count ? block : shard->count - begin;
            if (!buffer || !read_all(fd, buffer, (size_t)(count * shard->width),
                                     shard->offset + (uint64_t)(begin * shard->width))) {
                failed++;
            } else if (largest_id(buffer, shard->width, count) >= limit) {
                int64_t at = 0;
                while (largest_id((char *)buffer + at * shard->width, shard->width, 1) < limit)
                    at++;
                first = begin + at < first ? begin + at : first;
            }
        }
        free(buffer);
    }
    if (failed)
        return -2;
    if (first == INT64_MAX)
        return -1;
    *id = largest_id(shard->tokens + first * shard->width, shard->width, 1);
    return first;
}

static void check_ids(const Shard *shard, int fd, int64_t vocab, Errors *errors)
{
    uint64_t limit = vocab > 0 ? (uint64_t)vocab : (uint64_t)INT32_MAX + 1, id = 0;
    if (shard->width < 4 && limit >> 8 * shard->width)
        return;    /* ids of this width are all below it */
    int64_t bad = find_id_from(shard, fd, limit, &id);
    if (bad == -2)
        errors_add(errors, "%s: cannot be read: %s", shard->path, strerror(errno));
    if (bad < 0)
        return;
    const char *hint = "check that data.tokenizer or model.vocab is the one the file was written with";
    if (vocab <= 0)
        hint = "no tokenizer has that many; check data.dtype";
    errors_add(errors, "%s: id %llu of token %lld (byte %llu) is not below the vocabulary's %llu; %s",
               shard->path, (unsigned long long)id, (long long)bad,
               (unsigned long long)(shard->offset + (uint64_t)(bad * shard->width)),
               (unsigned long long)limit, hint);
}

static void open_file(Shard *shard, ShardDtype dtype, int64_t vocab, Errors *errors)
{
    /* Not blocking, so that a FIFO is reported instead of waited for. */
    int fd = open(shard->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        errors_add(errors, "%s: cannot be read: %s", shard->path, strerror(errno));
        return;
    }
    if (check_kind(shard, fd, errors)) {
        void *map = mmap(NULL, shard->map_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED)
            errors_add(errors, "%s: cannot be mapped: %s", shard->path, strerror(errno));
        else if (shard->map = map, read_format(shard, dtype, errors))
            check_ids(shard, fd, vocab, errors);
    }
    close(fd);
}

static void shard_free(Shard *shard)
{
    if (shard->map)
        munmap(shard->map, shard->map_bytes);
    free(shard->documents);
    free(shard->path);
}

/* The files of one pattern, to be released with globfree. False with an error added when there are none. */
static bool find_files(const char *pattern, glob_t *found, Errors *errors)
{
    int rc = glob(pattern, 0, NULL, found);
    if (rc == GLOB_NOMATCH && !access(pattern, F_OK))
        rc = glob(pattern, GLOB_NOCHECK, NULL, found);    /* a name that has brackets in it */
    if (rc)
        errors_add(errors, "%s: %s; data.train and data.val name token files (./train tokenize makes them)",
                   pattern,
                   rc != GLOB_NOMATCH        ? "cannot be listed"
                   : strpbrk(pattern, "*?[") ? "no file matches this pattern"
                                             : "no such file");
    return !rc;
}

/* Appends the files of one pattern. */
static void open_pattern(ShardSet *set, const char *pattern, ShardDtype dtype, int64_t vocab, Errors *errors)
{
    glob_t found;
    if (!find_files(pattern, &found, errors))
        return;
    Shard *shards = realloc(set->shards, (set->count + found.gl_pathc) * sizeof *shards);
    if (shards)
        set->shards = shards;
    else
        errors_add(errors, "%s: no memory for the list of files", pattern);
    for (size_t i = 0; shards && i < found.gl_pathc; i++) {
        const char *path = found.gl_pathv[i];
        if (megatron_is_index(path) && found.gl_pathc > 1)
            continue;    /* a pattern that takes in everything names the index beside its .bin */
        for (int s = 0; s < set->count; s++)
            if (!strcmp(set->shards[s].path, path))
                errors_add(errors, "%s: named twice; each file is read once per epoch", path);
        Shard *shard = &shards[set->count++];
        *shard = (Shard){ .path = strdup(path), .boundary = -1 };
        if (!shard->path)
            errors_add(errors, "%s: no memory for its name", path);
        else
            open_file(shard, dtype, vocab, errors);
    }
    globfree(&found);
}

/* Agreement of what the headers say. */
static void summarize(ShardSet *set, Errors *errors)
{
    set->boundary = -1;
    const Shard *named = NULL;
    for (int s = 0; s < set->count; s++) {
        const Shard *shard = &set->shards[s];
        set->tokens += shard->count;
        set->boundary = s == 0 || shard->boundary == set->boundary ? shard->boundary : -1;
        if (!shard->fingerprint)
            continue;
        if (named && named->fingerprint != shard->fingerprint)
            errors_add(errors, "%s: made with another tokenizer than %s", shard->path, named->path);
        named            = shard;
        set->fingerprint = shard->fingerprint;
    }
}

ShardSet *shards_open(const char *patterns, ShardDtype dtype, int64_t vocab, Errors *errors)
{
    int       before = errors->count;
    ShardSet *set    = calloc(1, sizeof *set);
    char     *list   = strdup(patterns), *rest = list;
    if (!set || !list)
        errors_add(errors, "%s: no memory for the list of files", patterns);
    for (char *pattern; set && list && (pattern = strsep(&rest, ","));)
        if (*pattern)
            open_pattern(set, pattern, dtype, vocab, errors);
    free(list);
    if (errors->count == before && set->count == 0)
        errors_add(errors, "\"%s\" names no token file; ./train tokenize makes them from text", patterns);
    if (errors->count == before)
        summarize(set, errors);
    if (errors->count > before) {
        shards_close(set);
        return NULL;
    }
    return set;
}

void shards_find(const char *patterns, Errors *errors)
{
    char  *list = strdup(patterns), *rest = list;
    glob_t found;
    for (char *pattern; list && (pattern = strsep(&rest, ","));)
        if (*pattern && find_files(pattern, &found, errors))
            globfree(&found);
    free(list);
}

void shards_close(ShardSet *set)
{
    if (!set)
        return;
    for (int s = 0; s < set->count; s++)
        shard_free(&set->shards[s]);
    free(set->shards);
    free(set);
}
