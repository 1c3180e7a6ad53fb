#include "data/jsonl.h"
#include <stdint.h>
#include <string.h>

static const char *skip_space(const char *p, const char *end)
{
    while (p < end && (*p == ' ' || *p == '\t' || *p == '\r' || *p == '\n'))
        p++;
    return p;
}

/* Value of n hexadecimal digits at p, -1 when they are none. */
static int32_t hex_at(const char *p, const char *end)
{
    int32_t value = 0;
    for (int i = 0; i < 4; i++, p++) {
        if (p >= end)
            return -1;
        int digit = *p >= '0' && *p <= '9' ? *p - '0' : (*p | 0x20) >= 'a' && (*p | 0x20) <= 'f' ?
                    (*p | 0x20) - 'a' + 10 : -1;
        if (digit < 0)
            return -1;
        value = value << 4 | digit;
    }
    return value;
}

/* Behind the closing quote of the string whose opening quote is at p; NULL when it is no JSON string. */
static const char *string_end(const char *p, const char *end)
{
    for (p++; p < end && *p != '"'; p++) {
        if ((uint8_t)*p < 0x20)
            return NULL;
        if (*p != '\\')
            continue;
        p++;
        if (p >= end || !strchr("\"\\/bfnrtu", *p) || !*p || (*p == 'u' && hex_at(p + 1, end) < 0))
            return NULL;
    }
    return p < end ? p + 1 : NULL;
}

/* Behind the value at p: a string, or anything balanced up to a comma or brace of the object around it. */
static const char *value_end(const char *p, const char *end)
{
    int depth = 0;
    while (p < end) {
        if (*p == '"') {
            p = string_end(p, end);
            if (!p)
                return NULL;
            continue;
        }
        if (depth == 0 && (*p == ',' || *p == '}'))
            return p;
        depth += (*p == '{' || *p == '[') - (*p == '}' || *p == ']');
        p++;
    }
    return NULL;
}

bool jsonl_find(const char *line, size_t length, const char *field, const char **value, size_t *value_length,
                const char **problem)
{
    const char *end = line + length, *p = skip_space(line, end), *found = NULL;
    *problem = "not a JSON object";
    if (p >= end || *p != '{')
        return false;
    do {
        const char *key = skip_space(p + 1, end);
        if (!found && key < end && *key == '}' && *p == '{') {
            p = key;    /* {} */
            break;
        }
        const char *behind = key < end && *key == '"' ? string_end(key, end) : NULL;
        const char *colon  = behind ? skip_space(behind, end) : end;
        if (colon >= end || *colon != ':')
            return false;
        const char *content = skip_space(colon + 1, end);
        p = value_end(content, end);
        if (!p || p == content)
            return false;
        bool named = (size_t)(behind - key) == strlen(field) + 2 && !memcmp(key + 1, field, strlen(field));
        if (named && *content == '"') {
            const char *close = string_end(content, end);
            found         = content + 1;
            *value_length = (size_t)(close - 1 - found);
        } else if (named) {
            *problem = "the text field is not a string";
            return false;
        }
    } while (*p == ',');
    if (skip_space(p + 1, end) != end)
        return false;
    *problem = "has no text field of that name";
    *value   = found;
    return found != NULL;
}

static char *put_utf8(char *out, uint32_t point)
{
    if (point < 0x80) {
        *out++ = (char)point;
        return out;
    }
    int more = point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
    *out++ = (char)((0xff00 >> (more + 1) & 0xff) | point >> 6 * more);
    while (more--)
        *out++ = (char)(0x80 | (point >> 6 * more & 0x3f));
    return out;
}

size_t jsonl_unescape(const char *text, size_t length, char *out)
{
    const char *p = text, *end = text + length;
    char       *to = out;
    while (p < end) {
        const char *slash = memchr(p, '\\', (size_t)(end - p));
        size_t      plain = (size_t)((slash ? slash : end) - p);
        memmove(to, p, plain);
        to += plain;
        p  += plain;
        if (!slash)
            break;
        static const char codes[] = "\"\\/bfnrt", bytes[] = "\"\\/\b\f\n\r\t";
        if (p[1] != 'u') {
            *to++ = bytes[strchr(codes, p[1]) - codes];
            p += 2;
            continue;
        }
        uint32_t point = (uint32_t)hex_at(p + 2, end);
        p += 6;
        if (point >= 0xd800 && point < 0xdc00 && end - p >= 6 && p[0] == '\\' && p[1] == 'u') {
            uint32_t low = (uint32_t)hex_at(p + 2, end);
            if (low >= 0xdc00 && low < 0xe000) {
                point = 0x10000 + ((point - 0xd800) << 10) + (low - 0xdc00);
                p += 6;
            }
        }
        to = put_utf8(to, point >= 0xd800 && point < 0xe000 ? 0xfffd : point);
    }
    return (size_t)(to - out);
}
