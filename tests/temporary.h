/* Fresh directories for tests that write files. */
#pragma once

/* A new empty directory below $TMPDIR or /tmp. Give it to temporary_remove. */
char *temporary_make(void);
/* Removes the directory with all that is in it, and frees its name. */
void temporary_remove(char *dir);
