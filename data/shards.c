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
#define SCAN_BLOCK    (1 << 20)    /* ids of one piece of the vocabulary pass */

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
    errors_add(errors, "%s: magic %u at byte 0%s, expected %d (uint16, version 1: llm.c's GPT-2 scripts) or %d "
               "(uint32, version 7: ./train tokenize, llm.c's Llama-3 scripts); a raw file needs data.dtype "
               "u16 or u32", path, magic, what, SHARD_MAGIC_U16, SHARD_MAGIC_U32);
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
    shard->vocab       = word[WORD_VOCAB];
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
        errors_add(errors, "%s: %zu bytes is not a multiple of %d, the width that data.dtype gives", shard->path,
                   shard->map_bytes, shard->width);
        return false;
    }
    shard->count = (int64_t)(shard->map_bytes / shard->width);
    return true;
}

/* What comes from outside memory: mapping and format. */
static bool open_file(Shard *shard, ShardDtype dtype, Errors *errors)
{
    const char *path = shard->path;
    struct stat status;
    /* Not blocking, so that a FIFO is reported instead of waited for. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &status)) {
        errors_add(errors, "%s: cannot be read: %s", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return false;
    }
    bool regular = S_ISREG(status.st_mode);
    if (!regular)
        errors_add(errors, "%s: %s, expected a token file", path,
                   S_ISDIR(status.st_mode) ? "a directory" : "not a regular file");
    else if (status.st_size == 0)
        errors_add(errors, "%s: empty, expected a token file", path);
    if (!regular || status.st_size == 0) {
        close(fd);
        return false;
    }
    shard->map_bytes = (size_t)status.st_size;
    shard->map       = mmap(NULL, shard->map_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    int map_error    = errno;
    close(fd);
    if (shard->map == MAP_FAILED) {
        shard->map = NULL;
        errors_add(errors, "%s: cannot be mapped: %s", path, strerror(map_error));
        return false;
    }

    uint32_t magic = 0;
    if (shard->map_bytes >= 4)
        memcpy(&magic, shard->map, 4);
    bool headed = magic == SHARD_MAGIC_U16 || magic == SHARD_MAGIC_U32, fine;
    if (megatron_has_index(path)) {
        fine = megatron_read_index(shard, errors);
    } else if (headed && shard->map_bytes >= HEADER_BYTES) {
        fine = read_header(shard, dtype, errors);
    } else if (headed || (dtype == SHARD_AUTO && shard->map_bytes < HEADER_BYTES)) {
        errors_add(errors, "%s: %zu bytes, shorter than the %d-byte header of a token file%s", path,
                   shard->map_bytes, HEADER_BYTES, headed ? " (truncated: copy or write it again)" :
                   "; a raw file needs data.dtype u16 or u32");
        fine = false;
    } else if (dtype == SHARD_AUTO) {
        explain_magic(path, shard->map, errors);
        fine = false;
    } else {
        fine = read_raw(shard, dtype, errors);
    }
    if (fine && shard->count == 0) {
        errors_add(errors, "%s: holds no tokens", path);
        fine = false;
    }
    if (fine)
        shard->tokens = (const uint8_t *)shard->map + shard->offset;
    return fine;
}

/* Largest id of [begin, end). One loop per width, so that the compiler makes each a vector loop. */
static uint64_t largest_id(const Shard *shard, int64_t begin, int64_t end)
{
    uint64_t wide = 0;
    uint32_t top  = 0;
    if (shard->width == 1) {
        for (int64_t i = begin; i < end; i++)
            top = shard->tokens[i] > top ? shard->tokens[i] : top;
    } else if (shard->width == 2) {
        const uint16_t *ids = (const uint16_t *)shard->tokens;
        uint16_t        top16 = 0;
        for (int64_t i = begin; i < end; i++)
            top16 = ids[i] > top16 ? ids[i] : top16;
        top = top16;
    } else if (shard->width == 4) {
        const uint32_t *ids = (const uint32_t *)shard->tokens;
        for (int64_t i = begin; i < end; i++)
            top = ids[i] > top ? ids[i] : top;
    } else {
        const uint64_t *ids = (const uint64_t *)shard->tokens;
        for (int64_t i = begin; i < end; i++)
            wide = ids[i] > wide ? ids[i] : wide;
    }
    return top > wide ? top : wide;
}

static bool check_ids(const Shard *shard, int64_t vocab, Errors *errors)
{
    uint64_t limit  = vocab > 0 ? (uint64_t)vocab : (uint64_t)INT32_MAX + 1;
    int64_t  blocks = (shard->count + SCAN_BLOCK - 1) / SCAN_BLOCK, bad = INT64_MAX;
    #pragma omp parallel for schedule(dynamic) reduction(min : bad)
    for (int64_t b = 0; b < blocks; b++) {
        int64_t begin = b * SCAN_BLOCK, end = begin + SCAN_BLOCK < shard->count ? begin + SCAN_BLOCK : shard->count;
        if (largest_id(shard, begin, end) < limit)
            continue;
        while (largest_id(shard, begin, begin + 1) < limit)
            begin++;
        bad = begin < bad ? begin : bad;
    }
    if (bad == INT64_MAX)
        return true;
    const char *hint = "check that data.tokenizer or model.vocab is the one the file was written with";
    if (vocab <= 0)
        hint = "no tokenizer has that many; check data.dtype";
    errors_add(errors, "%s: id %llu of token %lld (byte %llu) is not below the vocabulary's %llu; %s", shard->path,
               (unsigned long long)largest_id(shard, bad, bad + 1), (long long)bad,
               (unsigned long long)(shard->offset + (uint64_t)bad * shard->width), (unsigned long long)limit, hint);
    return false;
}

static void shard_free(Shard *shard)
{
    if (shard->map)
        munmap(shard->map, shard->map_bytes);
    free(shard->documents);
    free(shard->path);
}

/* Appends the files of one pattern. */
static void open_pattern(ShardSet *set, const char *pattern, ShardDtype dtype, int64_t vocab, Errors *errors)
{
    glob_t found;
    int    rc = glob(pattern, 0, NULL, &found);
    if (rc) {
        errors_add(errors, "%s: %s", pattern, rc != GLOB_NOMATCH ? "cannot be listed" : strpbrk(pattern, "*?[") ?
                   "no file matches this pattern" : "no such file");
        return;
    }
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
        else if (open_file(shard, dtype, errors))
            check_ids(shard, vocab, errors);
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
        set->vocab   = shard->vocab > set->vocab ? shard->vocab : set->vocab;
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

void shards_close(ShardSet *set)
{
    if (!set)
        return;
    for (int s = 0; s < set->count; s++)
        shard_free(&set->shards[s]);
    free(set->shards);
    free(set);
}
