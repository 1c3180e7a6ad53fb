/* ./train story: files, figures and messages. */
#include "commands/commands.h"
#include "data/story_file.h"
#include "data/story_grammar.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static char dir[64];

static int set_up(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/test_story_command_XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", dir);
    return system(command);
}

/* Where `name` lies in the test's directory. Four results stay valid at a time. */
static const char *in_dir(const char *name)
{
    static char paths[4][128];
    static int next;
    char *path = paths[next++ & 3];
    snprintf(path, sizeof paths[0], "%s/%s", dir, name);
    return path;
}

/* Runs the command with what it prints (both streams) in `output`, and returns its exit code. */
static int run(char *output, size_t capacity, const char *first, const char *second, const char *third)
{
    const char *argv[] = {"story", first, second, third, NULL};
    int argc = 1;
    while (argv[argc]) argc++;
    fflush(NULL);
    const int old[2] = {dup(1), dup(2)}, file = open(in_dir("output"), O_RDWR | O_CREAT | O_TRUNC, 0666);
    dup2(file, 1);
    dup2(file, 2);
    const int code = story_command(argc, (char **)argv);
    fflush(NULL);
    dup2(old[0], 1);
    dup2(old[1], 2);
    close(old[0]);
    close(old[1]);
    lseek(file, 0, SEEK_SET);
    const ssize_t n = read(file, output, capacity - 1);
    output[n < 0 ? 0 : n] = 0;
    close(file);
    return code;
}

static void write_file(const char *name, const char *text)
{
    FILE *f = fopen(in_dir(name), "wb");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void has(const char *output, const char *expected)
{
    if (!strstr(output, expected)) fail_msg("\"%s\" is not in:\n%s", expected, output);
}

static void generates_checks_and_measures(void **state)
{
    (void)state;
    char output[4096], out[160], against[160];
    snprintf(out, sizeof out, "--out=%s", dir);
    snprintf(against, sizeof against, "--against=%s", in_dir("train.txt"));
    assert_int_equal(run(output, sizeof output, "generate", "--bytes=3e5", out), 0);

    static const struct {
        const char *name;
        int64_t bytes;
    } splits[] = {{"train.txt", 285000}, {"held_out.txt", 15000}};
    for (int k = 0; k < 2; k++) {
        StoryFile file = {0};
        Errors errors = {0};
        assert_true(story_file_open(&file, in_dir(splits[k].name), &errors));
        int64_t bytes = 0;
        for (int64_t i = 0; i < file.count; i++) bytes += (int64_t)file.stories[i].length + 2;
        assert_in_range(bytes, splits[k].bytes, splits[k].bytes + STORY_MAX_BYTES);
        assert_int_equal(story_file_repeats(&file), 0);
        assert_true(story_file_contains(&file, file.stories[1].text, file.stories[1].length));
        assert_false(story_file_contains(&file, file.stories[1].text, file.stories[1].length - 1));
        story_file_close(&file);
    }

    assert_int_equal(run(output, sizeof output, "check", in_dir("held_out.txt"), against), 0);
    has(output, "holds together: 100.0 %");
    has(output, "carries name and object through: 100.0 %");
    has(output, "train.txt: 0\n");
    assert_int_equal(run(output, sizeof output, "check", in_dir("train.txt"), against), 0);
    assert_null(strstr(output, "train.txt: 0\n"));
    assert_int_equal(run(output, sizeof output, "entropy", in_dir("train.txt"), NULL), 0);
    has(output, " 0 in several");
    double h = 0;
    assert_int_equal(sscanf(strstr(output, "entropy: "), "entropy: %lf bits/byte", &h), 1);
    assert_true(h >= 0.14 && h <= 0.18);
}

static void says_why_a_story_fails(void **state)
{
    (void)state;
    char output[4096];
    write_file("bad.txt", "Once there was a frog.\n\n\n  Once there was a frog.\n\nZzz.");
    assert_int_equal(run(output, sizeof output, "check", in_dir("bad.txt"), NULL), 0);
    has(output, "bad.txt: 3 stories");
    has(output, "holds together: 0.0 %");
    has(output, "repeats an earlier story of the file: 1");
    has(output, "100.0 % loses the object or its adjective");
    assert_int_equal(run(output, sizeof output, "entropy", in_dir("bad.txt"), NULL), 0);
    has(output, "3 stories, 0 parsed in one way");
}

static void explains_wrong_use(void **state)
{
    (void)state;
    char output[4096], out[160];
    snprintf(out, sizeof out, "--out=%s", dir);
    assert_int_equal(run(output, sizeof output, NULL, NULL, NULL), 2);
    has(output, "expected generate, check or entropy");
    assert_int_equal(run(output, sizeof output, "generate", "--bytes=many", "--colour=red"), 2);
    has(output, "--bytes=many: expected a number");
    has(output, "unknown argument \"--colour=red\"");
    has(output, "--out=DIR is missing");
    assert_int_equal(run(output, sizeof output, "generate", out, NULL), 2);
    has(output, "--bytes=N is missing");
    assert_int_equal(run(output, sizeof output, "generate", "--bytes=10", "--out="), 2);
    has(output, "--out needs a value");
    assert_int_equal(run(output, sizeof output, "generate", "--bytes=10", "--out=/dev/null/x"), 2);
    has(output, "/dev/null: cannot create directory");
    assert_int_equal(run(output, sizeof output, "check", in_dir("absent.txt"), NULL), 2);
    has(output, "absent.txt: No such file or directory");
    assert_int_equal(run(output, sizeof output, "check", "/dev/null", NULL), 2);
    has(output, "not a regular file");
    write_file("empty.txt", " \n\n \n");
    assert_int_equal(run(output, sizeof output, "entropy", in_dir("empty.txt"), NULL), 2);
    has(output, "holds no text");
    assert_int_equal(run(output, sizeof output, "check", NULL, NULL), 2);
    has(output, "check: what it works on is missing\nusage: ");
    assert_int_equal(run(output, sizeof output, "entropy", NULL, NULL), 2);
    assert_int_equal(run(output, sizeof output, "--help", NULL, NULL), 0);
    has(output, "usage: ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generates_checks_and_measures),
        cmocka_unit_test(says_why_a_story_fails),
        cmocka_unit_test(explains_wrong_use),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
