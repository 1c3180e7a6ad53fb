#include "data/shards.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BUFFER_BYTES (1 << 20)

struct ShardWriter {
    char      *path, *unfinished;   /* the file's name, and the one it has while it is written */
    FILE      *file;
    ShardDtype dtype;
    ShardInfo  info;
    int64_t    count;
};

static void writer_free(ShardWriter *writer)
{
    if (writer->file)
        fclose(writer->file);
    free(writer->path);
    free(writer->unfinished);
    free(writer);
}

void shard_writer_abandon(ShardWriter *writer)
{
    if (!writer)
        return;
    if (writer->unfinished && writer->file)
        unlink(writer->unfinished);
    writer_free(writer);
}

static bool write_header(ShardWriter *writer)
{
    uint32_t word[SHARD_HEADER_INTS] = { 0 };
    bool     wide = writer->dtype == SHARD_U32;
    word[0] = wide ? SHARD_MAGIC_U32 : SHARD_MAGIC_U16;
    word[1] = wide ? 7 : 1;
    word[2] = (uint32_t)writer->count;
    word[3] = (uint32_t)((uint64_t)writer->count >> 32);
    word[4] = (uint32_t)writer->info.vocab;
    word[5] = (uint32_t)(writer->info.boundary + 1);
    word[6] = (uint32_t)writer->info.fingerprint;
    word[7] = (uint32_t)(writer->info.fingerprint >> 32);
    return fwrite(word, sizeof word, 1, writer->file) == 1;
}

ShardWriter *shard_writer_open(const char *path, ShardDtype dtype, const ShardInfo *info, Errors *errors)
{
    ShardWriter *writer = calloc(1, sizeof *writer);
    if (writer) {
        writer->path  = strdup(path);
        writer->dtype = dtype;
        writer->info  = *info;
    }
    if (writer && writer->path && (writer->unfinished = malloc(strlen(path) + sizeof ".tmp")))
        sprintf(writer->unfinished, "%s.tmp", path);
    if (!writer || !writer->unfinished) {
        errors_add(errors, "%s: no memory to write it", path);
        if (writer)
            writer_free(writer);
        return NULL;
    }
    writer->file = fopen(writer->unfinished, "wbe");
    if (!writer->file || setvbuf(writer->file, NULL, _IOFBF, BUFFER_BYTES) || !write_header(writer)) {
        errors_add(errors, "%s: cannot be written: %s", writer->unfinished, strerror(errno));
        shard_writer_abandon(writer);
        return NULL;
    }
    return writer;
}

bool shard_writer_append(ShardWriter *writer, const int32_t *ids, int64_t count, Errors *errors)
{
    uint16_t narrow[4096];
    bool     wide = writer->dtype == SHARD_U32;
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || (!wide && ids[i] > UINT16_MAX)) {
            errors_add(errors, "%s: id %d of token %lld does not fit %s", writer->path, ids[i],
                       (long long)(writer->count + i), wide ? "uint32" : "uint16; write u32");
            return false;
        }
    for (int64_t done = 0, block; done < count; done += block) {
        block = count - done < 4096 ? count - done : 4096;
        for (int64_t i = 0; i < block; i++)
            narrow[i] = (uint16_t)ids[done + i];
        const void *from = wide ? (const void *)(ids + done) : narrow;
        if (fwrite(from, wide ? 4 : 2, (size_t)block, writer->file) != (size_t)block) {
            errors_add(errors, "%s: cannot be written: %s", writer->unfinished, strerror(errno));
            return false;
        }
    }
    writer->count += count;
    return true;
}

int64_t shard_writer_count(const ShardWriter *writer)
{
    return writer->count;
}

bool shard_writer_finish(ShardWriter *writer, Errors *errors)
{
    bool fine = !fseeko(writer->file, 0, SEEK_SET) && write_header(writer) && !fflush(writer->file) &&
                !fsync(fileno(writer->file));
    int  code = errno;
    if (fclose(writer->file) && fine) {
        fine = false;
        code = errno;
    }
    writer->file = NULL;
    if (fine && rename(writer->unfinished, writer->path)) {
        fine = false;
        code = errno;
    }
    if (!fine) {
        errors_add(errors, "%s: cannot be written: %s", writer->path, strerror(code));
        unlink(writer->unfinished);
    }
    writer_free(writer);
    return fine;
}
