/* report.html: well-formed and self-contained whatever the log holds, true to its numbers, and bounded in
 * size. Ticks and number formats by hand. */
#include "commands/commands.h"
#include "model/files.h"
#include "model/log.h"
#include "model/report.h"
#include "model/report_plot.h"
#include "tests/temporary.h"
#include <ctype.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* ---- an independent look at the page ----------------------------------------------------------------- */

/* Fails unless every element is closed in order, attributes are quoted, and text has no bare < or &. */
static void check_well_formed(const char *html)
{
    static const char *const empty[] = {"meta", "path", "circle", "!doctype"};
    char open[64][16];
    int depth = 0;
    for (const char *p = html; *p; ) {
        if (*p == '&') {
            assert_true(!strncmp(p, "&amp;", 5) || !strncmp(p, "&lt;", 4) || !strncmp(p, "&gt;", 4) ||
                        !strncmp(p, "&quot;", 6));
        }
        if (*p++ != '<') continue;
        bool closing = *p == '/';
        char name[16];
        int n = 0;
        for (p += closing; (isalnum((unsigned char)*p) || *p == '!') && n < 15; p++) name[n++] = *p;
        name[n] = 0;
        assert_true(n > 0);
        bool slash = false;
        while (*p != '>') {                 /* attributes */
            assert_true(*p && *p != '<');
            if (*p == '"') {
                p = strchr(p + 1, '"');
                assert_non_null(p);
            }
            slash = *p++ == '/';
        }
        p++;
        bool is_empty = slash;
        for (int i = 0; i < 4; i++) is_empty = is_empty || strcmp(name, empty[i]) == 0;
        if (closing) {
            assert_true(depth > 0);
            assert_string_equal(name, open[--depth]);
        } else if (!is_empty) {
            assert_true(depth < 64);
            strcpy(open[depth++], name);
            if (strcmp(name, "script") == 0 || strcmp(name, "style") == 0) {
                char end[24];
                snprintf(end, sizeof end, "</%s>", name);
                p = strstr(p, end);
                assert_non_null(p);
            }
        }
    }
    assert_int_equal(depth, 0);
}

static int count(const char *text, const char *what)
{
    int n = 0;
    for (const char *p = text; (p = strstr(p, what)); p += strlen(what)) n++;
    return n;
}

/* Writes the report of a run whose log.jsonl is `log`, checks its form, and returns it (owned). */
static char *report_of(const char *log)
{
    char *dir = temporary_make(), *path = files_join(dir, "log.jsonl");
    char *page = files_join(dir, "report.html");
    Errors errors = {0};
    assert_true(files_replace(path, log, strlen(log), &errors));
    bool ok = report_write(dir, &errors);
    errors_print(&errors, stderr);
    assert_true(ok);
    char *html = files_read(page, NULL, &errors);
    check_well_formed(html);
    assert_null(strstr(html, "://"));       /* nothing is fetched from anywhere */
    assert_null(strstr(html, " src="));
    assert_null(strstr(html, "nan"));
    free(page);
    free(path);
    temporary_remove(dir);
    return html;
}

#define HEADER "{\"header\":1,\"backend\":\"cpu\",\"cpu\":\"A & <B>\",\"parameters\":834560," \
    "\"train_tokens\":2048,\"reference_bits_per_byte\":0.1493," \
    "\"reference_label\":\"entropy of \\\"it\\\"\"," \
    "\"config\":{\"schema_version\":1,\"train\":{\"steps\":4,\"lr\":0.004},\"run\":{\"dir\":\"runs/<x>\"}}}\n"

static void step_line(char *line, size_t size, int step, double loss)
{
    snprintf(line, size, "{\"step\":%d,\"tokens\":%d,\"loss\":%.6g,\"grad_norm\":0.5,\"lr\":0.001,"
             "\"step_ms\":20.5,\"tok_per_s\":49951,\"mfu\":null,\"mem_bytes\":1000,\"skipped\":false}\n",
             step, step * 1024, loss);
}

/* ---- tests ------------------------------------------------------------------------------------------ */

static void test_ordinary(void **state)
{
    (void)state;
    char log[4096] = HEADER;
    for (int i = 1; i <= 4; i++) step_line(log + strlen(log), 512, i, 8.0 / i);
    strcat(log, "{\"step\":4,\"val_loss\":2.5,\"val_ppl\":12.18,\"val_bits_per_byte\":0.2986}\n"
           "{\"step\":4,\"prompt\":\"Once & \",\"sample\":\"Once & upon </p> a time\\u0007\"}\n"
           "{\"step\":3,\"note\":\"<b>something</b>\"}\n"
           "{\"end\":\"done\",\"step\":4,\"elapsed_seconds\":75}\n");
    char *html = report_of(log);
    assert_non_null(strstr(html, ">done<"));
    assert_non_null(strstr(html, "834.6k parameters"));
    assert_non_null(strstr(html, "A &amp; &lt;B&gt;"));
    assert_non_null(strstr(html, "<b>2</b><small>last step"));
    assert_non_null(strstr(html, "best 2.5 at step 4"));
    assert_non_null(strstr(html, "2.00 × entropy 0.1493"));
    assert_non_null(strstr(html, "<b>4096</b><small>2.00 epochs"));
    assert_non_null(strstr(html, "1 min 15 s with validation"));
    assert_non_null(strstr(html, "entropy of &quot;it&quot;"));
    assert_non_null(strstr(html, "<b>Once &amp; </b>upon &lt;/p&gt; a time</p>"));
    assert_non_null(strstr(html, "&lt;b&gt;something&lt;/b&gt;"));
    assert_non_null(strstr(html, "runs/&lt;x&gt;"));
    assert_non_null(strstr(html, "data-x=\"1,2,3,4\" data-y=\"8,4,2.66667,2\""));
    assert_int_equal(count(html, "<figure"), 6);
    assert_int_equal(count(html, "class=\"ref\" d="), 1);
    assert_null(strstr(html, "where nothing that came before is missing"));
    free(html);
}

/* Rows of validation that begin where documents do are easier: the page says so. */
static void test_rows_that_differ(void **state)
{
    (void)state;
    char log[2048] = "{\"header\":1,\"config\":{\"data\":{\"rows\":\"stream\"},\"val\":{\"rows\":\"documents\"}}}\n";
    for (int i = 1; i <= 2; i++) step_line(log + strlen(log), 512, i, 8.0 / i);
    strcat(log, "{\"step\":2,\"val_loss\":2.5,\"val_ppl\":12.18,\"val_bits_per_byte\":null}\n");
    char *html = report_of(log);
    assert_int_equal(count(html, "where nothing that came before is missing"), 1);
    free(html);
}

/* A log may end anywhere. */
static void test_torn(void **state)
{
    (void)state;
    char log[4096] = HEADER, cut[4096];
    for (int i = 1; i <= 3; i++) step_line(log + strlen(log), 512, i, 8.0 / i);
    strcat(log, "{\"step\":3,\"val_loss\":2.5,\"val_ppl\":12.18,\"val_bits_per_byte\":null}\n"
           "{\"end\":\"done\"");
    for (size_t length = strlen(HEADER); length <= strlen(log); length += 23) {
        snprintf(cut, sizeof cut, "%.*s", (int)length, log);
        char *html = report_of(cut);
        assert_non_null(strstr(html, "running or stopped without an end"));
        free(html);
    }
}

static void test_odd_logs(void **state)
{
    (void)state;
    /* nothing but a header; no header; foreign and broken lines; nulls for every number */
    free(report_of(HEADER));
    char *html = report_of("{\"step\":1,\"loss\":3}\n");
    assert_int_equal(count(html, "<figure"), 1);
    free(html);
    html = report_of("\n\n[1]\nwhat\n{\"x\":1}\n{\"step\":1,\"loss\":3}\n"
                     "{\"step\":\"no\",\"loss\":\"no\"}\n");
    assert_non_null(strstr(html, "3 lines of the log are no records"));
    free(html);
    html = report_of("{\"step\":1,\"tokens\":5,\"loss\":null,\"grad_norm\":null,\"lr\":null,\"step_ms\":null,"
                     "\"tok_per_s\":null,\"mfu\":null,\"mem_bytes\":0,\"skipped\":true}\n");
    assert_int_equal(count(html, "<figure"), 0);
    assert_non_null(strstr(html, "1 updates were skipped"));
    free(html);
    /* one value again and again, zero, negative, huge and tiny */
    free(report_of("{\"step\":1,\"loss\":0}\n{\"step\":2,\"loss\":0}\n"));
    free(report_of("{\"step\":7,\"loss\":-1e30,\"grad_norm\":1e-30}\n"
                   "{\"step\":9,\"loss\":1e30,\"grad_norm\":1e30}\n"));
    /* after a crash steps stand twice: the later record counts */
    html = report_of("{\"step\":1,\"loss\":5}\n{\"step\":2,\"loss\":6}\n{\"step\":3,\"loss\":7}\n"
                     "{\"step\":2,\"loss\":4}\n{\"step\":3,\"loss\":3}\n");
    assert_non_null(strstr(html, "data-x=\"1,2,3\" data-y=\"5,4,3\""));
    free(html);
    /* a gap where the loss was not finite */
    html = report_of("{\"step\":1,\"loss\":5}\n{\"step\":2,\"loss\":null}\n{\"step\":3,\"loss\":4}\n");
    assert_non_null(strstr(html, "data-y=\"5,,4\""));
    free(html);
}

static void test_failures(void **state)
{
    (void)state;
    char *dir = temporary_make(), *path = files_join(dir, "log.jsonl");
    Errors errors = {0};
    assert_false(report_write(dir, &errors));
    assert_non_null(strstr(errors.text[0], "log.jsonl: cannot open"));
    assert_true(files_replace(path, "", 0, &errors));
    assert_false(report_write(dir, &errors));
    assert_non_null(strstr(errors.text[1], "there is no record of a run in it"));
    char *wrong[] = {"report", "--all", NULL};
    assert_int_equal(report_command(1, wrong), 2);
    assert_int_equal(report_command(2, wrong), 2);
    errors_free(&errors);
    free(path);
    temporary_remove(dir);
}

/* Many steps: the page stays small and no spike is lost. */
static void test_decimation(void **state)
{
    (void)state;
    const int steps = 20000;
    char *log = malloc((size_t)steps * 200), *end = log;
    for (int i = 1; i <= steps; i++) {
        step_line(end, 200, i, i == 12345 ? 9.875 : 2 + 0.1 * sin(i));
        end += strlen(end);
    }
    char *html = report_of(log);
    assert_true(strlen(html) < 400000);
    assert_non_null(strstr(html, ",12345,"));
    assert_non_null(strstr(html, ",9.875,"));
    free(html);
    free(log);
}

static void expect_ticks(int found, const double *ticks, int expected, const double *values)
{
    assert_int_equal(found, expected);
    for (int i = 0; i < found; i++) assert_true(fabs(ticks[i] - values[i]) <= 1e-9 * fabs(values[i]));
}

static void test_ticks(void **state)
{
    (void)state;
    double t[24];
    expect_ticks(plot_ticks(0, 5000, 5, t, 24), t, 6, (double[]){0, 1000, 2000, 3000, 4000, 5000});
    expect_ticks(plot_ticks(0.13, 0.19, 3, t, 24), t, 3, (double[]){0.14, 0.16, 0.18});
    expect_ticks(plot_ticks(-1, 1, 4, t, 24), t, 5, (double[]){-1, -0.5, 0, 0.5, 1});
    expect_ticks(plot_ticks(1, 1, 4, t, 24), t, 0, NULL);
    expect_ticks(plot_log_ticks(0.5, 2000, 4, t, 24), t, 4, (double[]){1, 10, 100, 1000});
    expect_ticks(plot_log_ticks(0.9, 11, 5, t, 24), t, 4, (double[]){1, 2, 5, 10});
    expect_ticks(plot_log_ticks(2.1, 2.9, 4, t, 24), t, 4, (double[]){2.2, 2.4, 2.6, 2.8});
    for (double lo = 1e-7; lo < 1e7; lo *= 3.7) {
        for (double ratio = 1.01; ratio < 1e6; ratio *= 1.7) {
            int n = plot_log_ticks(lo, lo * ratio, 5, t, 24);
            assert_in_range(n, 2, 12);
            for (int i = 0; i < n; i++) assert_true(t[i] >= 0.999 * lo && t[i] <= 1.001 * lo * ratio);
        }
    }
}

static void test_values(void **state)
{
    (void)state;
    static const struct { double value; const char *text; } cases[] = {
        {0, "0"}, {1, "1"}, {0.1493, "0.1493"}, {2.5, "2.5"}, {12.3456, "12.35"}, {795321, "795.3k"},
        {9999, "9999"}, {10000, "10k"}, {1234567, "1.235M"}, {8.03e9, "8.03G"}, {2.94e-4, "0.000294"},
        {2.94e-5, "2.94e-5"},
        {0.004, "0.004"}, {0.0123456, "0.01235"}, {-3.5, "-3.5"}, {1e-10, "1e-10"}, {NAN, "–"},
        {INFINITY, "–"}, {3.2e15, "3200T"}, {999960, "1M"}, {1e30, "1.000e+30"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[48];
        plot_value(text, sizeof text, cases[i].value);
        assert_string_equal(text, cases[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ordinary), cmocka_unit_test(test_rows_that_differ),
        cmocka_unit_test(test_torn), cmocka_unit_test(test_odd_logs),
        cmocka_unit_test(test_failures), cmocka_unit_test(test_decimation), cmocka_unit_test(test_ticks),
        cmocka_unit_test(test_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
