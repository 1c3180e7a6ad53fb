#include "data/split.h"
#include "data/unicode_tables.h"
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static void mark(uint8_t *classes, const UnicodeRange *ranges, size_t count, SymbolClass class)
{
    for (size_t r = 0; r < count; r++)
        memset(classes + ranges[r].first, class, ranges[r].last - ranges[r].first + 1);
}

uint8_t *split_make_classes(void)
{
    uint8_t *classes = calloc(0x110000, 1);
    if (!classes)
        return NULL;
    mark(classes, unicode_letters, sizeof unicode_letters / sizeof *unicode_letters, SYMBOL_LETTER);
    mark(classes, unicode_numbers, sizeof unicode_numbers / sizeof *unicode_numbers, SYMBOL_NUMBER);
    mark(classes, unicode_spaces, sizeof unicode_spaces / sizeof *unicode_spaces, SYMBOL_SPACE);
    return classes;
}

typedef struct Symbol { SymbolClass class; int length; } Symbol;

static bool continues(const uint8_t *p, int n)
{
    for (int i = 1; i <= n; i++)
        if ((p[i] & 0xc0) != 0x80)
            return false;
    return true;
}

/* The symbol at p < end, by Unicode's table of well-formed UTF-8. */
static inline Symbol symbol_at(const uint8_t *classes, const uint8_t *p, const uint8_t *end)
{
    uint32_t point  = *p;
    ptrdiff_t left  = end - p;
    if (point < 0x80)
        return (Symbol){ classes[point], 1 };
    if (point >= 0xc2 && point < 0xe0 && left >= 2 && continues(p, 1))
        return (Symbol){ classes[(point & 0x1f) << 6 | (p[1] & 0x3f)], 2 };
    if (point >= 0xe0 && point < 0xf0 && left >= 3 && continues(p, 2)) {
        point = (point & 0xf) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3f);
        if (point >= 0x800 && (point < 0xd800 || point > 0xdfff))
            return (Symbol){ classes[point], 3 };
    } else if (point >= 0xf0 && point < 0xf5 && left >= 4 && continues(p, 3)) {
        point = (point & 7) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3f);
        if (point >= 0x10000 && point <= 0x10ffff)
            return (Symbol){ classes[point], 4 };
    }
    return (Symbol){ SYMBOL_OTHER, 1 };
}

static inline bool is_newline(uint8_t byte)
{
    return byte == '\n' || byte == '\r';
}

/* End of the run of symbols of a class that begins at p, at most `most` of them. */
static const uint8_t *run_end(const uint8_t *classes, const uint8_t *p, const uint8_t *end, SymbolClass class,
                              int64_t most)
{
    while (p < end && most-- > 0) {
        Symbol symbol = symbol_at(classes, p, end);
        if (symbol.class != class)
            break;
        p += symbol.length;
    }
    return p;
}

/* Bytes of a contraction at the apostrophe p, or 0. Simple case folding also takes U+017F for an s. */
static size_t contraction(const uint8_t *p, const uint8_t *end)
{
    if (end - p < 2)
        return 0;
    uint8_t first = p[1] | 0x20, second = end - p > 2 ? p[2] | 0x20 : 0;
    if (p[1] == 0xc5 && end - p > 2 && p[2] == 0xbf)
        return 3;
    if (p[1] >= 0x80)
        return 0;
    if (first == 's' || first == 't' || first == 'm' || first == 'd')
        return 2;
    bool pair = (first == 'r' && second == 'e') || (first == 'v' && second == 'e') ||
                (first == 'l' && second == 'l');
    return pair ? 3 : 0;
}

/* White space at p: up to the last newline of the run; without one, all but the last symbol, which belongs to
 * the word behind it; all of it at the end of the text or when it is a single symbol. */
static const uint8_t *space_end(const uint8_t *classes, const uint8_t *p, const uint8_t *end)
{
    const uint8_t *newline = NULL, *last = p, *begin = p;
    while (p < end) {
        Symbol symbol = symbol_at(classes, p, end);
        if (symbol.class != SYMBOL_SPACE)
            break;
        last = p;
        p += symbol.length;
        if (is_newline(*last))
            newline = p;
    }
    if (newline)
        return newline;
    return p == end || last == begin ? p : last;
}

size_t split_next(const uint8_t *classes, const char *text, size_t length)
{
    const uint8_t *begin = (const uint8_t *)text, *end = begin + length, *p = begin;
    if (*p == '\'') {
        size_t bytes = contraction(p, end);
        if (bytes)
            return bytes;
    }
    Symbol first = symbol_at(classes, p, end);
    if (first.class == SYMBOL_NUMBER)
        return run_end(classes, p, end, SYMBOL_NUMBER, 3) - begin;
    if (first.class == SYMBOL_LETTER)
        return run_end(classes, p, end, SYMBOL_LETTER, INT64_MAX) - begin;

    const uint8_t *behind = p + first.length;
    Symbol         second = behind < end ? symbol_at(classes, behind, end) : (Symbol){ SYMBOL_SPACE, 0 };
    if (!is_newline(*p) && second.class == SYMBOL_LETTER)
        return run_end(classes, behind, end, SYMBOL_LETTER, INT64_MAX) - begin;
    if (first.class == SYMBOL_OTHER || (*p == ' ' && second.class == SYMBOL_OTHER)) {
        p = run_end(classes, first.class == SYMBOL_OTHER ? p : behind, end, SYMBOL_OTHER, INT64_MAX);
        while (p < end && is_newline(*p))
            p++;
        return p - begin;
    }
    return space_end(classes, p, end) - begin;
}

size_t split_safe_cut(const uint8_t *classes, const char *text, size_t from, size_t length)
{
    const uint8_t *p = (const uint8_t *)text, *end = p + length;
    for (size_t i = from ? from : 1; i < length; i++)
        if (p[i - 1] == '\n' && symbol_at(classes, p + i, end).class != SYMBOL_SPACE)
            return i;
    return length;
}
