/* The run directory, log.jsonl, the progress line, and signals. */
#include "model/files.h"
#include "model/log.h"
#include "model/machine.h"
#include "model/progress.h"
#include "model/run.h"
#include "model/signals.h"
#include "tests/temporary.h"
#include <cjson/cJSON.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static char *make(const char *dir, const char *name, const char *text)
{
    char *path = files_join(dir, name);
    Errors errors = {0};
    assert_true(text ? files_replace(path, text, strlen(text), &errors) : files_make_dirs(path, &errors));
    return path;
}

static void expect_error(Errors *errors, bool result, const char *text)
{
    if (result || errors->count != 1 || !strstr(errors->text[0], text)) {
        errors_print(errors, stderr);
        fail_msg("expected one error with \"%s\"", text);
    }
    errors_free(errors);
}

static char *read_config(const char *dir)
{
    Errors errors = {0};
    char *path = files_join(dir, "config.json"), *text = files_read(path, NULL, &errors);
    assert_non_null(text);
    free(path);
    return text;
}

/* ---- run directory --------------------------------------------------------------------------------- */

static void test_run_directory(void **state)
{
    (void)state;
    char *parent = temporary_make(), *dir = files_join(parent, "runs/a");
    Errors errors = {0};
    expect_error(&errors, run_open(dir, RUN_RESUME, "{}", &errors), "no run to resume");
    expect_error(&errors, run_check("", RUN_NEW, &errors), "run.dir is empty");
    assert_true(run_check(dir, RUN_NEW, &errors));
    assert_false(files_exists(dir));                    /* a check changes nothing */
    assert_true(run_open(dir, RUN_NEW, "{\"a\":1}", &errors));
    char *text = read_config(dir);
    assert_string_equal(text, "{\"a\":1}");
    free(text);
    expect_error(&errors, run_open(dir, RUN_NEW, "{}", &errors), "continue it with --resume");
    free(make(dir, "notes.txt", "mine"));           /* then the configuration alone makes no run */
    expect_error(&errors, run_open(dir, RUN_NEW, "{}", &errors), "it holds other files and no run");
    free(make(dir, "log.jsonl", "{}\n"));
    expect_error(&errors, run_open(dir, RUN_NEW, "{}", &errors), "continue it with --resume");
    assert_true(run_open(dir, RUN_RESUME, "{\"a\":2}", &errors));
    text = read_config(dir);
    assert_string_equal(text, "{\"a\":2}");
    free(text);
    assert_int_equal(errors.count, 0);
    free(dir);
    temporary_remove(parent);
}

/* One process at a time writes a run. flock counts descriptors, so this process stands for two. */
static void test_claim(void **state)
{
    (void)state;
    char *parent = temporary_make(), *dir = files_join(parent, "runs/a");
    Errors errors = {0};
    int first = run_claim(dir, RUN_NEW, &errors);
    assert_true(first >= 0);
    expect_error(&errors, run_claim(dir, RUN_NEW, &errors) >= 0, "another process is writing this run");
    assert_true(run_open(dir, RUN_NEW, "{}", &errors));
    expect_error(&errors, run_claim(dir, RUN_OVERWRITE, &errors) >= 0, "another process is writing this run");
    close(first);
    expect_error(&errors, run_claim(dir, RUN_NEW, &errors) >= 0, "it holds a run already");
    int second = run_claim(dir, RUN_RESUME, &errors);
    assert_true(second >= 0);
    close(second);
    assert_int_equal(errors.count, 0);
    free(dir);
    temporary_remove(parent);
}

/* Overwriting deletes what runs make and nothing else. */
static void test_overwrite(void **state)
{
    (void)state;
    char *parent = temporary_make(), *dir = files_join(parent, "run");
    Errors errors = {0};
    char *kept[] = {
        make(parent, "outside", "x"), make(parent, "run", NULL), make(dir, "checkpoints", NULL),
        make(dir, "notes.txt", "mine"), make(dir, "checkpoints/mine", "x"),
    };
    char *gone[] = {
        make(dir, "log.jsonl", "{}\n"), make(dir, "report.html", "x"), make(dir, "checkpoints/latest", "x"),
        make(dir, "checkpoints/step-00000001", NULL),
        make(dir, "checkpoints/step-00000001/manifest.json", "x"),
        make(dir, "checkpoints/step-00000002.tmp", NULL),
    };
    expect_error(&errors, run_open(dir, RUN_OVERWRITE, "{}", &errors), "it holds other files and no run");
    for (int i = 0; i < 6; i++) assert_true(files_exists(gone[i]));
    free(make(dir, "config.json", "{\"old\":1}"));
    char *link = files_join(dir, "checkpoints/step-00000003");
    assert_int_equal(symlink(parent, link), 0);         /* must not be followed */
    assert_true(run_open(dir, RUN_OVERWRITE, "{\"new\":1}", &errors));
    for (int i = 0; i < 6; i++) assert_false(files_exists(gone[i]));
    for (int i = 0; i < 5; i++) assert_true(files_exists(kept[i]));
    assert_false(files_exists(link));
    char *text = read_config(dir);
    assert_string_equal(text, "{\"new\":1}");
    free(text);

    char *fresh = files_join(parent, "fresh"), *file = kept[0];
    assert_true(run_open(fresh, RUN_OVERWRITE, "{}", &errors));     /* nothing to overwrite is fine */
    expect_error(&errors, run_open(file, RUN_NEW, "{}", &errors), "it is not a directory");
    char *below = files_join(file, "run");
    expect_error(&errors, run_open(below, RUN_NEW, "{}", &errors), "it is not a directory");
    free(below);
    free(fresh);
    free(link);
    for (int i = 0; i < 6; i++) free(gone[i]);
    for (int i = 0; i < 5; i++) free(kept[i]);
    free(dir);
    temporary_remove(parent);
}

/* ---- log ------------------------------------------------------------------------------------------- */

static LogStep step_record(int64_t step)
{
    return (LogStep){.step = step, .tokens = step * 1024, .loss = 1.0 / (double)step, .grad_norm = 0.5,
                     .lr = 3e-4, .step_ms = 41.25, .tok_per_s = 24824.5, .mfu = NAN,
                     .mem_bytes = (int64_t)5 << 30};
}

/* Line `index` of the log, parsed; the number of lines when index is beyond them. */
static cJSON *record(const char *dir, int index, int *lines)
{
    Errors errors = {0};
    char *path = files_join(dir, "log.jsonl"), *text = files_read(path, NULL, &errors);
    cJSON *found = NULL;
    int count = 0;
    assert_non_null(text);
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1, count++) {
        *end = 0;
        cJSON *parsed = cJSON_ParseWithOpts(line, NULL, true);
        assert_non_null(parsed);
        if (count == index) found = parsed;
        else cJSON_Delete(parsed);
    }
    if (lines) *lines = count;
    free(text);
    free(path);
    return found;
}

/* The keys of a record in their order, separated by commas. */
static void expect_keys(const cJSON *r, const char *keys)
{
    char found[512] = "";
    const cJSON *item;
    cJSON_ArrayForEach(item, r) {
        if (found[0]) strcat(found, ",");
        strcat(found, item->string);
    }
    assert_string_equal(found, keys);
}

static double number(const cJSON *r, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(r, key);
    assert_true(cJSON_IsNumber(item));
    return item->valuedouble;
}

static const char *text_of(const cJSON *r, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(r, key);
    assert_true(cJSON_IsString(item));
    return item->valuestring;
}

#define GOOD "\x01 tab\t\n \xc3\xa9 \xf0\x9f\x98\x80"
#define BAD "\xef\xbf\xbd"      /* U+FFFD */

static void test_log_fields(void **state)
{
    (void)state;
    char *dir = temporary_make();
    Errors errors = {0};
    Log *log = log_open(dir, -1, &errors);
    assert_non_null(log);
    const char *choices[] = {"qkv=cpu", "out=cpu"};
    log_header(log, &(LogHeader){
        .config_json = "{\n  \"train\": {\"steps\": 9}\n}", .backend = "cpu", .precision = "fp32",
        .libraries = "x 1", .choices = choices, .choice_count = 2, .parameters = 123, .flops_per_token = 1e10,
        .threads = 2, .reference_bits_per_byte = 0.1493, .reference_label = "entropy", .resumed_step = -1});
    LogStep s = step_record(3);
    log_step(log, &s);
    s.mfu = 0.431, s.clamped_rows = 2, s.skipped = true, s.loss = INFINITY;
    log_step(log, &s);
    log_validation(log, 3, 1.5, NAN);
    log_validation(log, 3, 1.5, 0.25);
    log_sample(log, 3, "He \"said\"\\", GOOD " bad \xff\xc3 \xed\xa0\x80 \xc0\xaf end");
    log_note(log, 3, "a note");
    log_choices(log, 3, choices, 2);
    log_end(log, 3, "done", 12.5);
    assert_null(log_failure(log));
    assert_true(log_close(log, &errors));

    int lines;
    cJSON *r = record(dir, 0, &lines);
    assert_int_equal(lines, 9);
    assert_int_equal(number(cJSON_GetObjectItem(cJSON_GetObjectItem(r, "config"), "train"), "steps"), 9);
    assert_true(number(r, "reference_bits_per_byte") == 0.1493);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(r, "choices")), 2);
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(r, "gpu")));
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(r, "resumed_step")));
    assert_true(strlen(text_of(r, "cpu")) > 0 && number(r, "cores") >= 1 && number(r, "memory_bytes") > 1e6);
    assert_true(strlen(text_of(r, "compiler")) > 4 && text_of(r, "compiler_flags") && text_of(r, "git"));
    cJSON_Delete(r);
    r = record(dir, 1, NULL);
    expect_keys(r, "step,tokens,loss,grad_norm,lr,step_ms,tok_per_s,mfu,mem_bytes,skipped");
    assert_true(fabs(number(r, "loss") - 1.0 / 3) < 1e-9 && number(r, "lr") == 3e-4);
    assert_true(number(r, "mem_bytes") == 5368709120.0 && number(r, "tok_per_s") == 24824.5);
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(r, "mfu")));
    assert_true(cJSON_IsFalse(cJSON_GetObjectItem(r, "skipped")));
    cJSON_Delete(r);
    r = record(dir, 2, NULL);
    assert_true(number(r, "clamped_rows") == 2 && number(r, "mfu") == 0.431);
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(r, "loss")));
    assert_true(cJSON_IsTrue(cJSON_GetObjectItem(r, "skipped")));
    cJSON_Delete(r);
    r = record(dir, 3, NULL);
    expect_keys(r, "step,val_loss,val_ppl,val_bits_per_byte");
    assert_true(fabs(number(r, "val_ppl") - exp(1.5)) < 1e-6);
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(r, "val_bits_per_byte")));
    cJSON_Delete(r);
    r = record(dir, 5, NULL);
    assert_string_equal(text_of(r, "prompt"), "He \"said\"\\");
    assert_string_equal(text_of(r, "sample"), GOOD " bad " BAD BAD " " BAD BAD BAD " " BAD BAD " end");
    cJSON_Delete(r);
    r = record(dir, 7, NULL);
    expect_keys(r, "step,choices");
    assert_string_equal(cJSON_GetArrayItem(cJSON_GetObjectItem(r, "choices"), 1)->valuestring, "out=cpu");
    cJSON_Delete(r);
    r = record(dir, 8, NULL);
    assert_string_equal(text_of(r, "end"), "done");
    assert_true(number(r, "elapsed_seconds") == 12.5);
    cJSON_Delete(r);
    assert_int_equal(errors.count, 0);
    temporary_remove(dir);
}

/* Ten steps with validations at 5 and 10, and an end; then what a crash may add. */
static void write_log(const char *dir, const char *more)
{
    Errors errors = {0};
    Log *log = log_open(dir, -1, &errors);
    log_header(log, &(LogHeader){.resumed_step = -1});
    for (int64_t i = 1; i <= 10; i++) {
        LogStep s = step_record(i);
        log_step(log, &s);
        if (i % 5 == 0) log_validation(log, i, 2, 1);
    }
    if (!more) log_end(log, 10, "interrupted", 1);
    assert_true(log_close(log, &errors));
    if (!more) return;
    char *path = files_join(dir, "log.jsonl");
    FILE *file = fopen(path, "ab");
    fputs(more, file);
    assert_int_equal(fclose(file), 0);
    free(path);
}

static void test_log_resume(void **state)
{
    (void)state;
    static const struct { int64_t resumed; const char *more; int lines; } cases[] = {
        {10, NULL, 13}, {7, NULL, 9}, {5, NULL, 7}, {4, NULL, 5}, {0, NULL, 1},
        {10, "{\"step\":11,\"tok", 13}, {10, "{\"step\":11}\n{\"st", 13}, {8, "{\"step\":11}\n", 10},
        {10, "", 13},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *dir = temporary_make();
        Errors errors = {0};
        write_log(dir, cases[i].more);
        Log *log = log_open(dir, cases[i].resumed, &errors);
        assert_non_null(log);
        LogStep s = step_record(cases[i].resumed + 1);
        log_step(log, &s);
        assert_true(log_close(log, &errors));
        int lines;
        cJSON *r = record(dir, cases[i].lines, &lines);
        assert_int_equal(lines, cases[i].lines + 1);
        assert_true(number(r, "step") == (double)(cases[i].resumed + 1));
        cJSON_Delete(r);
        temporary_remove(dir);
    }
    char *dir = temporary_make();       /* an imported run has no log yet */
    Errors errors = {0};
    Log *log = log_open(dir, 0, &errors);
    assert_true(log && log_close(log, &errors));
    temporary_remove(dir);
}

/* A disk that is full for a while tears no record, and is told at the end. */
static void test_log_full_disk(void **state)
{
    (void)state;
    char *dir = temporary_make();
    Errors errors = {0};
    struct rlimit before, limit;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    Log *log = log_open(dir, -1, &errors);
    for (int64_t i = 1; i <= 6; i++) {
        limit = (struct rlimit){.rlim_cur = i == 3 || i == 4 ? 400 : 100000, .rlim_max = before.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        LogStep s = step_record(i);
        log_step(log, &s);
    }
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_non_null(strstr(log_failure(log), "log.jsonl: cannot write: File too large"));
    expect_error(&errors, log_close(log, &errors), "log.jsonl: cannot write: File too large");
    int lines;
    cJSON *r = record(dir, 2, &lines);
    assert_int_equal(lines, 4);
    assert_true(number(r, "step") == 5);
    cJSON_Delete(r);
    temporary_remove(dir);
    expect_error(&errors, log_open("/nowhere", -1, &errors) != NULL, "/nowhere/log.jsonl: cannot open");
}

/* ---- progress -------------------------------------------------------------------------------------- */

static void test_progress_format(void **state)
{
    (void)state;
    char line[512];
    LogStep s = {.step = 120, .loss = 4.81234, .grad_norm = 0.911, .lr = 2.94e-4, .step_ms = 41.2,
                 .tok_per_s = 795321, .mfu = 0.4312, .mem_bytes = (int64_t)(18.3 * (1 << 30))};
    progress_format(line, sizeof line, &s, 5000, (int64_t)139 << 30, 202);
    assert_string_equal(line, "step 120/5000 | loss 4.8123 | gnorm 0.91 | lr 2.94e-04 | 41.2 ms | 795k tok/s "
                        "| MFU 43.1% | mem 18.3/139 GiB | eta 00:03:22");
    s.mfu = NAN, s.mem_bytes = (int64_t)200 << 20, s.tok_per_s = 9512, s.step_ms = 512.3, s.skipped = true;
    progress_format(line, sizeof line, &s, 5000, 0, -1);
    assert_string_equal(line, "step 120/5000 | loss 4.8123 | gnorm 0.91 | lr 2.94e-04 | 512 ms | 9.5k tok/s "
                        "| mem 0.20 GiB | skipped");
    static const struct { double rate; const char *text; } rates[] = {
        {12.4, "12 tok/s"}, {999.4, "999 tok/s"}, {999.6, "1.0k tok/s"}, {9994, "10.0k tok/s"},
        {12345, "12.3k tok/s"}, {99960, "100k tok/s"}, {999600, "1.00M tok/s"}, {12.3456e6, "12.3M tok/s"},
    };
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        s.tok_per_s = rates[i].rate;
        progress_format(line, sizeof line, &s, 1, 0, -1);
        assert_non_null(strstr(line, rates[i].text));
    }
    s.step_ms = 12345;
    progress_format(line, sizeof line, &s, 1, 0, 3 * 86400 + 3661);
    assert_non_null(strstr(line, "| 12.3 s |"));
    assert_non_null(strstr(line, "| eta 3d 01:01:01"));
    progress_format(line, 20, &s, 1, 0, 0);         /* too short a buffer cuts */
    assert_int_equal(strlen(line), 19);
}

/* Not on a terminal: the first, every third and the last step, each on a line of its own, and no codes. */
static void test_progress_lines(void **state)
{
    (void)state;
    char *dir = temporary_make(), *path = files_join(dir, "out"), name[32];
    FILE *out = fopen(path, "w");
    Progress p = progress_begin(out, 8, 3, 0);
    assert_false(p.terminal);
    for (int64_t i = 1; i <= 8; i++) {
        LogStep s = step_record(i);
        progress_step(&p, &s);
        if (i == 4) progress_line(&p, "step %d: validation loss %.3f", 4, 2.0);
    }
    progress_end(&p);
    assert_int_equal(fclose(out), 0);
    Errors errors = {0};
    char *text = files_read(path, NULL, &errors), *at = text;
    static const int shown[] = {1, 3, 4, 6, 8};
    for (int i = 0; i < 5; i++) {
        snprintf(name, sizeof name, shown[i] == 4 ? "step %d: " : "step %d/8 |", shown[i]);
        assert_int_equal(strncmp(at, name, strlen(name)), 0);
        at = strchr(at, '\n') + 1;
    }
    assert_int_equal(*at, 0);
    assert_null(strchr(text, '\r'));
    assert_null(strchr(text, '\033'));
    free(text);
    free(path);
    temporary_remove(dir);
}

/* On a terminal one line is rewritten, cut to its width, and ended before anything else is said. */
static void test_progress_terminal(void **state)
{
    (void)state;
    int keyboard = posix_openpt(O_RDWR | O_NOCTTY);
    assert_true(keyboard >= 0 && grantpt(keyboard) == 0 && unlockpt(keyboard) == 0);
    FILE *out = fopen(ptsname(keyboard), "w");
    assert_non_null(out);
    struct winsize size = {.ws_row = 24, .ws_col = 31};
    assert_int_equal(ioctl(fileno(out), TIOCSWINSZ, &size), 0);
    Progress p = progress_begin(out, 1000, 100, 0);
    assert_true(p.terminal);
    for (int64_t i = 1; i <= 3; i++) {      /* within a tenth of a second: the first one is shown */
        LogStep s = step_record(i);
        progress_step(&p, &s);
    }
    progress_line(&p, "hello");
    char text[256];
    ssize_t n = read(keyboard, text, sizeof text - 1);
    text[n > 0 ? n : 0] = 0;
    assert_string_equal(text, "\rstep 1/1000 | loss 1.0000 | gn\033[K\r\nhello\r\n");
    fclose(out);
    close(keyboard);
}

/* ---- signals and machine --------------------------------------------------------------------------- */

/* Runs a child that waits for `signals` signals; returns its exit code. */
static int signalled(int number, int signals)
{
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        signals_install();
        if (signals_caught() != 0 || write(ready[1], "x", 1) != 1) _exit(1);
        while (!signals_caught()) usleep(1000);
        if (write(ready[1], "y", 1) != 1) _exit(1);
        for (int i = 0; signals == 2 && i < 100; i++) usleep(100000);
        _exit(signals_caught());
    }
    char byte;
    int status;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(read(ready[0], &byte, 1), 1);
        if (i == 1 && signals == 2) kill(child, number), usleep(2100000);    /* one so soon is the same wish */
        if (i < signals) kill(child, number);
    }
    close(ready[0]);
    close(ready[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void test_signals(void **state)
{
    (void)state;
    assert_int_equal(signalled(SIGINT, 1), SIGINT);         /* seen by the loop */
    assert_int_equal(signalled(SIGTERM, 1), SIGTERM);
    assert_int_equal(signalled(SIGINT, 2), 130);
    assert_int_equal(signalled(SIGTERM, 2), 143);
}

static void test_machine(void **state)
{
    (void)state;
    char text[256];
    machine_cpu_name(text, sizeof text);
    assert_true(strlen(text) > 2);
    machine_libraries(text, sizeof text);
    assert_non_null(strstr(text, "OpenBLAS"));
    assert_non_null(strstr(text, "cJSON 1."));
    int64_t before = machine_resident(), bytes = 64 << 20;
    volatile char *block = malloc((size_t)bytes);
    for (int64_t i = 0; i < bytes; i += 1024) block[i] = 1;
    assert_in_range(machine_resident() - before, (uint64_t)(bytes * 0.9), (uint64_t)(bytes * 1.1));
    free((void *)block);
    assert_true(machine_peak_resident() >= before + bytes * 0.9);
    assert_true(machine_memory() > machine_peak_resident());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run_directory), cmocka_unit_test(test_claim), cmocka_unit_test(test_overwrite),
        cmocka_unit_test(test_log_fields), cmocka_unit_test(test_progress_terminal),
        cmocka_unit_test(test_log_resume), cmocka_unit_test(test_log_full_disk),
        cmocka_unit_test(test_progress_format), cmocka_unit_test(test_progress_lines),
        cmocka_unit_test(test_signals), cmocka_unit_test(test_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
