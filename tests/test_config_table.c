/* The key table, Config, files and texts agree. */
#include "tests/config_testing.h"

#include <stdlib.h>
#include <string.h>

/* Another value than the default that the key takes, as on the command line. */
static void other_value(int key, char text[CONFIG_VALUE])
{
    const ConfigKey *k = &config_keys[key];
    double low, high;
    switch (k->kind) {
    case KEY_INT:
    case KEY_REAL:
        assert_int_equal(sscanf(k->allowed + 1, "%lf,%lf", &low, &high), 2);
        if (high > 1e9) high = 1e9;
        snprintf(text, CONFIG_VALUE, "%.17g",
                 k->kind == KEY_INT ? high - (high > low) : low + (high - low) / 3);
        break;
    case KEY_BOOL: strcpy(text, strcmp(k->fallback, "true") ? "true" : "false"); break;
    case KEY_TEXT: strcpy(text, "some \"where\\ \xc3\xa9\t*.bin"); break;
    case KEY_WORD: strcpy(text, strrchr(k->allowed, '|') + 1); break;
    }
}

static void every_key_is_reachable(void **state)
{
    (void)state;
    for (int key = 0; key < CONFIG_KEYS; key++) {
        const char *path = config_keys[key].path, *dot = strchr(path, '.');
        char value[CONFIG_VALUE], got[CONFIG_VALUE], argument[2 * CONFIG_VALUE];
        other_value(key, value);
        assert_int_equal(config_find(path), key);

        Errors errors = {0};
        char *arguments[] = {argument};
        snprintf(argument, sizeof argument, "--%s=%s", path, value);
        ConfigLoad *load = config_load(NULL, 1, arguments, &errors);
        assert_int_equal(errors.count, 0);
        assert_string_equal(config_where(load, path), "command line");
        config_value_text(config_values(load), key, got);
        bool number = config_keys[key].kind == KEY_INT || config_keys[key].kind == KEY_REAL;
        if (number) assert_true(strtod(got, NULL) == strtod(value, NULL));
        else assert_string_equal(got, value);

        /* the same through a file */
        if (dot) {
            bool quoted = config_keys[key].kind == KEY_WORD;
            char json[2 * CONFIG_VALUE];
            if (config_keys[key].kind == KEY_TEXT) strcpy(value, "\"some \\\"where\\\\ \\u00e9\\t*.bin\"");
            snprintf(json, sizeof json,
                     quoted ? "{\"%.*s\":\n{\"%s\": \"%s\"}}" : "{\"%.*s\":\n{\"%s\": %s}}",
                     (int)(dot - path), path, dot + 1, value);
            write_file("c.json", json, strlen(json));
            ConfigLoad *from_file = config_load("c.json", 0, NULL, &errors);
            assert_int_equal(errors.count, 0);
            assert_memory_equal(config_values(from_file), config_values(load), sizeof(Config));
            assert_string_equal(config_where(from_file, path), "c.json:2");
            config_free(from_file);
        }
        config_free(load);
    }
    assert_null(config_where(NULL, "model.nothing"));
}

/* No member of Config is missing in the table: with their padding, the keys fill it. */
static void every_field_has_a_key(void **state)
{
    (void)state;
    unsigned char *covered = calloc(1, sizeof(Config));
    assert_non_null(covered);
    for (int key = 0; key < CONFIG_KEYS; key++) {
        const ConfigKey *k = &config_keys[key];
        size_t size = k->kind == KEY_TEXT   ? CONFIG_STRING
                      : k->kind == KEY_BOOL ? sizeof(bool)
                                            : sizeof(int64_t);
        for (size_t i = k->offset; i < k->offset + size; i++) {
            assert_int_equal(covered[i], 0);
            covered[i] = 1;
        }
    }
    /* gaps are padding behind a bool, up to the next multiple of 8 */
    bool after_bool = false;
    for (size_t i = 0; i < sizeof(Config); i++) {
        if (i % 8 == 0) {
            after_bool = false;
            if (!covered[i]) fail_msg("no key for the field at offset %zu of Config", i);
        }
        if (!covered[i] && !after_bool) after_bool = i % 8 != 0 && covered[i - 1];
        if (!covered[i]) assert_true(after_bool);
    }
    free(covered);
}

static void defaults_are_in_range(void **state)
{
    (void)state;
    Errors errors = {0};
    ConfigLoad *load = config_load(NULL, 0, NULL, &errors);
    assert_int_equal(errors.count, 0);
    const Config *c = config_values(load);
    assert_true(c->train.beta1 == 0.9 && c->train.beta2 == 0.95 && c->train.eps == 1e-8);
    assert_true(c->train.weight_decay == 0.1 && c->train.clip == 1 && c->train.min_lr_ratio == 0.1);
    assert_true(c->model.init_std == 0.02 && c->model.norm_eps == 1e-5 && c->model.rope_theta == 500000);
    assert_string_equal(config_where(load, "train.lr"), "default");
    config_free(load);
}

static void json_round_trip(void **state)
{
    (void)state;
    char values[CONFIG_KEYS][2 * CONFIG_VALUE], *arguments[CONFIG_KEYS];
    int count = 0;
    for (int key = 0; key < CONFIG_KEYS; key++) {
        char value[CONFIG_VALUE];
        other_value(key, value);
        if (!strcmp(config_keys[key].path, "schema_version") || !strcmp(config_keys[key].path, "train.accum"))
            continue;
        snprintf(values[key], sizeof values[key], "--%s=%s", config_keys[key].path, value);
        arguments[count++] = values[key];
    }
    /* doubles that need all 17 digits */
    char *more[] = {"--train.lr=0.30000000000000004", "--train.eps=1.2345678901234567e-9",
                    "--train.tokens_per_step=4096",   "--train.seq_len=32",
                    "--train.micro_batch=4",          "--train.accum=32"};
    Errors errors = {0};
    for (int i = 0; i < 3; i++) {
        ConfigLoad *load = i == 0 ? config_load(NULL, 0, NULL, &errors) : i == 1
                         ? config_load(NULL, count, arguments, &errors) : config_load(NULL, 6, more, &errors);
        assert_int_equal(errors.count, 0);
        char *json = config_to_json(config_values(load));
        assert_non_null(json);
        write_file("saved.json", json, strlen(json));
        ConfigLoad *again = config_load("saved.json", 0, NULL, &errors);
        errors_print(&errors, stderr);
        assert_int_equal(errors.count, 0);
        assert_memory_equal(config_values(again), config_values(load), sizeof(Config));
        for (int key = 0; key < CONFIG_KEYS; key++)     /* all keys were written */
            assert_true(again->line[key] > 0);
        free(json);
        config_free(load);
        config_free(again);
    }
}

/* Words of a key in a text that also holds longer ones: "model.rope" is not "model.rope_theta". */
static bool holds_key(const char *text, const char *path)
{
    size_t n = strlen(path);
    for (const char *p = text; (p = strstr(p, path)); p += n)
        if (!strchr("_abcdefghijklmnopqrstuvwxyz", p[n]) && (p == text || !strchr("_.", p[-1]))) return true;
    return false;
}

static void expect_every_key(const char *text, const char *what)
{
    for (int i = 0; i < CONFIG_KEYS + CONFIG_GROUPS; i++) {
        const char *path = i < CONFIG_KEYS ? config_keys[i].path : config_groups[i - CONFIG_KEYS].path;
        if (!holds_key(text, path)) fail_msg("%s does not mention %s", what, path);
    }
}

static void texts_list_every_key(void **state)
{
    (void)state;
    char *help = NULL, *markdown = NULL, *values = NULL, path[4200];
    size_t length;
    FILE *out = open_memstream(&help, &length);
    config_print_help(out);
    fclose(out);
    expect_every_key(help, "--help");
    out = open_memstream(&markdown, &length);
    config_print_markdown(out);
    fclose(out);
    expect_every_key(markdown, "the reference");
    assert_null(strstr(markdown, "``"));

    Errors errors = {0};
    char *arguments[] = {"--train.lr=0.5"};
    ConfigLoad *load = config_load(NULL, 1, arguments, &errors);
    config_values(load)->model.head_dim = 64;
    out = open_memstream(&values, &length);
    config_print(load, out);
    fclose(out);
    for (int key = 0; key < CONFIG_KEYS; key++) assert_non_null(strstr(values, config_keys[key].path));
    assert_non_null(
        strstr(values, "\ntrain.lr                           0.5                          command line\n"));
    assert_non_null(
        strstr(values, "\nmodel.head_dim                     64                           derived\n"));
    assert_non_null(
        strstr(values, "\nmodel.layers                       16                           default\n"));
    config_free(load);

    snprintf(path, sizeof path, "%s/README.md", config_test_root());
    FILE *readme = fopen(path, "rb");
    if (readme) {
        char *text = calloc(1, 1 << 20);
        assert_non_null(text);
        assert_true(fread(text, 1, (1 << 20) - 1, readme) > 0);
        fclose(readme);
        expect_every_key(text, "README.md (scripts/update_readme.sh writes it)");
        free(text);
    }
    free(help);
    free(markdown);
    free(values);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key_is_reachable),
        cmocka_unit_test(every_field_has_a_key),
        cmocka_unit_test(defaults_are_in_range),
        cmocka_unit_test(json_round_trip),
        cmocka_unit_test(texts_list_every_key),
    };
    return cmocka_run_group_tests_name("config_table", tests, config_test_begin, config_test_end);
}
