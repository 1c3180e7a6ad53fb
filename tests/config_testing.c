#include "tests/config_testing.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char root[4096], scratch[64];

int config_test_begin(void **state)
{
    (void)state;
    const char *base = getenv("TMPDIR");
    snprintf(scratch, sizeof scratch, "%s/config_XXXXXX", base && strlen(base) < 40 ? base : "/tmp");
    return !getcwd(root, sizeof root) || !mkdtemp(scratch) || chdir(scratch) ? -1 : 0;
}

int config_test_end(void **state)
{
    (void)state;
    DIR *dir = opendir(".");
    for (const struct dirent *entry; dir && (entry = readdir(dir)); )
        if (entry->d_name[0] != '.') remove(entry->d_name);
    if (dir) closedir(dir);
    return chdir(root) || rmdir(scratch) ? -1 : 0;
}

const char *config_test_root(void) { return root; }

void write_file(const char *path, const char *text, size_t length)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

char *messages(const char *path, char *const *arguments)
{
    int count = 0;
    while (arguments && arguments[count]) count++;
    Errors errors = {0};
    ConfigLoad *load = config_load(path, count, arguments, &errors);
    assert_non_null(load);
    config_validate(load, &errors);
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    errors_print(&errors, out);
    fclose(out);
    config_free(load);
    errors_free(&errors);
    return text;
}

void expect(const char *got, const char *expected, const char *input)
{
    if (strcmp(got, expected)) fail_msg("input: %s\nexpected:\n%sgot:\n%s", input, expected, got);
}

void expect_file(const char *json, const char *expected)
{
    write_file("c.json", json, strlen(json));
    char *none[] = {"--data.train=t", "--data.val=v", "--model.vocab=300", NULL};
    char *got = messages("c.json", none);
    expect(got, expected, json);
    free(got);
}

void expect_arguments(const char *first, const char *second, const char *third, const char *expected)
{
    write_file("good.json", GOOD_FILE, strlen(GOOD_FILE));
    char *arguments[] = {(char *)first, (char *)second, (char *)third, NULL};
    char *got = messages("good.json", arguments);
    expect(got, expected, first);
    free(got);
}
