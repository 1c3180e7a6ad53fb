/* One string field out of a line of JSON, without a tree: jsonl files are large and need only this. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

/* Finds the string value of `field` in the object that the line holds: *value points at its escaped bytes
 * inside the line. False when the line is not an object (strings are checked, other values only skimmed) or
 * the field is absent or not a string; *problem then says which. */
bool jsonl_find(const char *line, size_t length, const char *field, const char **value, size_t *value_length,
                const char **problem);

/* Undoes the escapes: returns the bytes written to out (room for `length`; out may be text). Halves of
 * surrogate pairs that stand alone become U+FFFD. */
size_t jsonl_unescape(const char *text, size_t length, char *out);
