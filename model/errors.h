/* A list of messages, so that everything wrong with an input is reported at once. */
#pragma once
#include <stdarg.h>
#include <stdio.h>

typedef struct Errors {
    char **text;    /* owned */
    int    count, capacity;
} Errors;

__attribute__((format(printf, 2, 3))) void errors_add(Errors *e, const char *format, ...);
void errors_print(const Errors *e, FILE *out);   /* one "error: ..." line each */
void errors_free(Errors *e);
