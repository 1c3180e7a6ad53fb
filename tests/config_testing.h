/* What the tests of the configuration share. They work in a directory of their own. */
#pragma once
#include "model/config_table.h"

#include <setjmp.h>
#include <stdarg.h>
/* cmocka wants the headers above first */
#include <cmocka.h>

/* A configuration without faults; its keys stand on lines 2 to 5. */
#define GOOD_FILE \
    "{\n\"model\": {\"layers\": 2, \"hidden\": 64, \"ffn\": 96, \"heads\": 4, \"kv_heads\": 2,\n" \
    "\"vocab\": 300},\n\"train\": {\"steps\": 50, \"warmup_steps\": 5, \"seq_len\": 32},\n" \
    "\"data\": {\"train\": \"t.bin\", \"val\": \"v.bin\"}\n}\n"

/* Group set-up and tear-down: enter a fresh directory, leave and remove it with its files. */
int config_test_begin(void **state);
int config_test_end(void **state);
const char *config_test_root(void);     /* where the tests were started: the repository */

void write_file(const char *path, const char *text, size_t length);

/* All messages of loading and checking `path` with `arguments` (NULL-terminated, may be NULL), one a line.
 * Caller frees. */
char *messages(const char *path, char *const *arguments);

/* Fails with all three texts unless got is expected. */
void expect(const char *got, const char *expected, const char *input);
/* The messages about a file of this text, c.json, with everything set that a file must set. */
void expect_file(const char *json, const char *expected);
/* The messages about good.json (GOOD_FILE) with up to three arguments, NULL where there are fewer. */
void expect_arguments(const char *first, const char *second, const char *third, const char *expected);
