/* What the user may have meant by a name that does not exist. */
#pragma once

#define NAMES_LIMIT 64      /* longer names are near nothing */

/* Edits between two names: insertion, deletion, replacement, and the swap of neighbours (optimal string
 * alignment). NAMES_LIMIT where one of them is longer than that. */
int names_distance(const char *a, const char *b);
