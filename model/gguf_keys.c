#include "model/gguf_keys.h"
#include <string.h>

void gguf_put_u32(FILE *out, uint32_t value)
{
    for (int i = 0; i < 4; i++) fputc((int)(value >> 8 * i & 0xff), out);
}

void gguf_put_u64(FILE *out, uint64_t value)
{
    gguf_put_u32(out, (uint32_t)value);
    gguf_put_u32(out, (uint32_t)(value >> 32));
}

void gguf_put_f32(FILE *out, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    gguf_put_u32(out, bits);
}

void gguf_put_string(FILE *out, const char *text, size_t length)
{
    gguf_put_u64(out, length);
    fwrite(text, 1, length, out);
}

bool gguf_keys_open(GgufKeys *keys)
{
    *keys = (GgufKeys){0};
    keys->out = open_memstream(&keys->text, &keys->bytes);
    return keys->out != NULL;
}

bool gguf_keys_close(GgufKeys *keys)
{
    bool ok = keys->out && !ferror(keys->out);
    if (keys->out && fclose(keys->out)) ok = false;
    keys->out = NULL;
    return ok;
}

static void begin_key(GgufKeys *keys, const char *name, GgufType type)
{
    keys->count++;
    gguf_put_string(keys->out, name, strlen(name));
    gguf_put_u32(keys->out, type);
}

void gguf_key_u32(GgufKeys *keys, const char *name, int64_t value)
{
    begin_key(keys, name, GGUF_U32);
    gguf_put_u32(keys->out, (uint32_t)value);
}

void gguf_key_f32(GgufKeys *keys, const char *name, double value)
{
    begin_key(keys, name, GGUF_F32);
    gguf_put_f32(keys->out, (float)value);
}

void gguf_key_bool(GgufKeys *keys, const char *name, bool value)
{
    begin_key(keys, name, GGUF_BOOL);
    fputc(value, keys->out);
}

void gguf_key_string(GgufKeys *keys, const char *name, const char *value)
{
    begin_key(keys, name, GGUF_STRING);
    gguf_put_string(keys->out, value, strlen(value));
}

void gguf_key_array(GgufKeys *keys, const char *name, GgufType type, uint64_t count)
{
    begin_key(keys, name, GGUF_ARRAY);
    gguf_put_u32(keys->out, type);
    gguf_put_u64(keys->out, count);
}
