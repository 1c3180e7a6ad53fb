#include "tests/temporary.h"
#include "model/files.h"
#include <stdlib.h>

char *temporary_make(void)
{
    const char *parent = getenv("TMPDIR");
    char *dir = files_join(parent && *parent ? parent : "/tmp", "coda-test-XXXXXX");
    if (!dir || !mkdtemp(dir)) abort();
    return dir;
}

void temporary_remove(char *dir)
{
    Errors errors = {0};
    files_remove_tree(dir, &errors);
    errors_print(&errors, stderr);
    errors_free(&errors);
    free(dir);
}
