#include "model/errors.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static bool grow(Errors *e)
{
    if (e->count < e->capacity) return true;
    int capacity = e->capacity ? 2 * e->capacity : 8;
    char **text = realloc(e->text, (size_t)capacity * sizeof *text);
    if (!text) return false;
    memset(text + e->capacity, 0, (size_t)(capacity - e->capacity) * sizeof *text);
    e->text = text;
    e->capacity = capacity;
    return true;
}

/* Without memory for the text the error still counts, so that nobody takes the input for a good one. */
void errors_add(Errors *e, const char *format, ...)
{
    if (grow(e)) {
        va_list args;
        va_start(args, format);
        int length = vsnprintf(NULL, 0, format, args);
        va_end(args);
        char *text = length < 0 ? NULL : malloc((size_t)length + 1);
        if (text) {
            va_start(args, format);
            vsnprintf(text, (size_t)length + 1, format, args);
            va_end(args);
        }
        e->text[e->count] = text;
    }
    e->count++;
}

void errors_print(const Errors *e, FILE *out)
{
    for (int i = 0; i < e->count; i++) {
        const char *text = i < e->capacity ? e->text[i] : NULL;
        fprintf(out, "error: %s\n", text ? text : "no memory left to say what was wrong");
    }
}

void errors_free(Errors *e)
{
    for (int i = 0; i < e->count && i < e->capacity; i++) free(e->text[i]);
    free(e->text);
    *e = (Errors){0};
}
