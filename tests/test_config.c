/* Reading the configuration: every message about files and about the command line. */
#include "tests/config_testing.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- messages about files ------------------------------------------------------------------------ */

static void names_are_checked(void **state)
{
    (void)state;
    expect_file("{}", "");
    expect_file("{\"train\": {\n\"warmup_step\": 3}}",
                "error: c.json:2: unknown key \"train.warmup_step\"; did you mean \"train.warmup_steps\"?\n");
    expect_file("{\"model\": {\"layesr\": 3}}",
                "error: c.json:1: unknown key \"model.layesr\"; did you mean \"model.layers\"?\n");
    expect_file("{\"model\": {\"lr\": 3}}",
                "error: c.json:1: unknown key \"model.lr\"; did you mean \"train.lr\"?\n");
    expect_file("{\"train\": {\"rope_thet\": 3}}",
                "error: c.json:1: unknown key \"train.rope_thet\"; did you mean \"model.rope_theta\"?\n");
    expect_file(
        "{\"profile\": {\"every\": 3}}",
        "error: c.json:1: unknown key \"profile.every\"; did you mean \"val.every\" or \"sample.every\" or "
        "\"checkpoint.every\"?\n");
    expect_file("{\"profile\": {\"nonsense\": 3}}",
                "error: c.json:1: unknown key \"profile.nonsense\"; \"profile\" has start, end\n");
    expect_file("{\"fusion\": {\"swigl\": \"on\"}}",
                "error: c.json:1: unknown key \"fusion.swigl\"; did you mean \"fusion.swiglu\"?\n");
    expect_file("{\n\n\"modle\": {\"layers\": 3}}",
                "error: c.json:3: unknown section \"modle\"; did you mean \"model\"?\n");
    expect_file(
        "{\"optimizer\": {\"layers\": 3}}",
        "error: c.json:1: unknown section \"optimizer\"; the sections are run, model, train, data, val, "
        "sample, checkpoint, fusion, profile\n");
    expect_file("{\"lr\": 3}", "error: c.json:1: unknown key \"lr\"; did you mean \"train.lr\"?\n");
    expect_file(
        "{\"nonsense\": 3}",
        "error: c.json:1: unknown key \"nonsense\"; the sections are run, model, train, data, val, sample, "
        "checkpoint, fusion, profile\n");
    expect_file("{\"train.lr\": 3}",
                "error: c.json:1: \"train.lr\" must stand inside its section: \"train\": {\"lr\": ...}\n");
    expect_file("{\"train\": 3}",
                "error: c.json:1: \"train\" must be an object in braces, found 3\n");
    expect_file("{\"schema_versio\": 1}",
                "error: c.json:1: unknown key \"schema_versio\"; did you mean \"schema_version\"?\n");
}

static void duplicates_are_refused(void **state)
{
    (void)state;
    expect_file("{\"train\": {\"lr\": 0.1,\n\"steps\": 500,\n\"lr\": 0.2}}",
                "error: c.json:3: \"lr\" stands twice in its object, first on line 1; keep one\n");
    expect_file("{\"train\": {\"lr\": 0.1},\n\"model\": {\"layers\": 2},\n\n\"train\": {\"lr\": 0.2}}",
                "error: c.json:4: \"train\" stands twice in its object, first on line 1; keep one\n");
    /* escapes do not hide one; the same name in another section is none */
    expect_file("{\"train\": {\"lr\": 0.1,\n\"l\\u0072\": 0.2}}",
                "error: c.json:2: \"lr\" stands twice in its object, first on line 1; keep one\n");
    expect_file("{\"val\": {\"every\": 1}, \"sample\": {\"every\": 0}}", "");
}

static void comments_are_permitted(void **state)
{
    (void)state;
    expect_file("{\"_comment\": \"x\", \"train\": {\"_comment\": {\"lr\": [{\"a\": 1}, 2]}, \"_comment\": "
                "1,\n\"lrr\": 1},\n"
                "\"fusion\": {\"_comment\": 0}}",
                "error: c.json:2: unknown key \"train.lrr\"; did you mean \"train.lr\"?\n");
}

static void values_are_checked(void **state)
{
    (void)state;
#define LAYERS(found) \
    "error: c.json:1: model.layers: expected an integer in [1, 1024], found " found "\n"
    expect_file("{\"model\": {\"layers\": \"3\"}}", LAYERS("\"3\""));
    expect_file("{\"model\": {\"layers\": 3.5}}", LAYERS("3.5"));
    expect_file("{\"model\": {\"layers\": 0}}", LAYERS("0"));
    expect_file("{\"model\": {\"layers\": 1025}}", LAYERS("1025"));
    expect_file("{\"model\": {\"layers\": true}}", LAYERS("true"));
    expect_file("{\"model\": {\"layers\": null}}", LAYERS("null"));
    expect_file("{\"model\": {\"layers\": [3]}}", LAYERS("[3]"));
    expect_file("{\"model\": {\"layers\": {\"a\": 3}}}", LAYERS("{\"a\":3}"));
    expect_file("{\"model\": {\"layers\": 1e999}}", LAYERS("a number too large"));
    expect_file("{\"model\": {\"layers\": 3.0e0}}", "");
#undef LAYERS
    expect_file(
        "{\"run\": {\"seed\": 9007199254740993}}",
        "error: c.json:1: run.seed: expected an integer in [0, 4294967295], found 9.00719925474099e+15\n");
    expect_file("{\"train\": {\"lr\": 0}}",
                "error: c.json:1: train.lr: expected a number in (0, 10], found 0\n");
    expect_file("{\"train\": {\"beta2\": 1}}",
                "error: c.json:1: train.beta2: expected a number in [0, 0.999999], found 1\n");
    expect_file("{\"train\": {\"clip\": -1e999}}",
                "error: c.json:1: train.clip: expected a number in [0, inf), found a number too large\n");
    expect_file("{\"run\": {\"overwrite\": \"on\"}}",
                "error: c.json:1: run.overwrite: expected true or false, found \"on\"\n");
    expect_file("{\"run\": {\"overwrite\": 1}}",
                "error: c.json:1: run.overwrite: expected true or false, found 1\n");
    expect_file(
        "{\"train\": {\"schedule\": \"cosin\"}}",
        "error: c.json:1: train.schedule: expected one of cosine, linear, constant, wsd, found \"cosin\"\n");
    expect_file("{\"train\": {\"schedule\": 1}}",
                "error: c.json:1: train.schedule: expected one of cosine, linear, constant, wsd, found 1\n");
    expect_file("{\"run\": {\"dir\": 1}}",
                "error: c.json:1: run.dir: expected a string of at most 511 bytes, found 1\n");

    char json[1024] = "{\"run\": {\"dir\": \"";
    size_t start = strlen(json);
    memset(json + start, 'x', CONFIG_STRING);
    strcpy(json + start + CONFIG_STRING, "\"}}");
    expect_file(json, "error: c.json:1: run.dir: expected a string of at most 511 bytes, found 512 bytes\n");
    strcpy(json + start + CONFIG_STRING - 1, "\"}}");
    expect_file(json, "");
}

static void fusion_takes_words_and_groups(void **state)
{
    (void)state;
    expect_file("{\"fusion\": \"on\"}",
                "error: c.json:1: fusion: expected one of all, none, auto, found \"on\"\n");
    expect_file("{\"fusion\": true}", "error: c.json:1: \"fusion\" must be an object in braces, or one of "
                                      "\"all\", \"none\", \"auto\", found true\n");
    expect_file("{\"fusion\": {\"qkv\": true}}",
                "error: c.json:1: fusion.qkv: expected one of off, on, auto, found true\n");
    expect_file("{\"fusion\": {\"rope\": \"all\"}}",
                "error: c.json:1: fusion.rope: expected one of off, on, auto, found \"all\"\n");
    expect_file("{\"fusion\": {\"rope\": 1}}",
                "error: c.json:1: fusion.rope: expected one of off, on, auto, found \"1\"\n");

    /* a single key wins over its group, wherever it stands */
    static const char json[] =
        "{\"fusion\": {\"gate_up\": \"off\", \"swiglu\": \"on\",\n\"rmsnorm\": \"off\"}}";
    write_file("c.json", json, sizeof json - 1);
    Errors errors = {0};
    ConfigLoad *load = config_load("c.json", 0, NULL, &errors);
    assert_int_equal(errors.count, 0);
    int64_t wanted[FUSE_COUNT];
    for (int i = 0; i < FUSE_COUNT; i++) wanted[i] = FUSION_AUTO;   /* the default */
    wanted[FUSE_DOWN_DX] = FUSION_ON;
    wanted[FUSE_GATE_UP] = wanted[FUSE_GATE_UP_DX] = wanted[FUSE_QKV_DX] = FUSION_OFF;
    assert_memory_equal(config_values(load)->fusion.mode, wanted, sizeof wanted);
    assert_string_equal(config_where(load, "fusion.qkv_dx"), "c.json:2");
    config_free(load);

    /* the command line goes in order */
    char *arguments[] = {"--fusion=all", "--fusion.residual=off", "--fusion.dw=auto",
                         "--fusion.cross_entropy=off", "--fusion.rope=auto"};
    load = config_load("c.json", 5, arguments, &errors);
    assert_int_equal(errors.count, 0);
    int64_t *mode = config_values(load)->fusion.mode;
    for (int i = 0; i < FUSE_COUNT; i++) {
        bool off = i == FUSE_OUT || i == FUSE_DOWN || i == FUSE_HEAD || i == FUSE_HEAD_DX;
        assert_int_equal(mode[i], off ? FUSION_OFF : i == FUSE_DW || i == FUSE_QKV ? FUSION_AUTO : FUSION_ON);
    }
    config_free(load);
    char *none[] = {"--fusion=none"};
    load = config_load("c.json", 1, none, &errors);
    for (int i = 0; i < FUSE_COUNT; i++) assert_int_equal(config_values(load)->fusion.mode[i], FUSION_OFF);
    config_free(load);
    errors_free(&errors);
}

static void syntax_is_strict(void **state)
{
    (void)state;
    expect_file("", "error: c.json:1: the file ends before its braces and quotes are closed, near \"\"\n");
    expect_file("{\"train\": {\n\"lr\": 0.1\n",
                "error: c.json:3: the file ends before its braces and quotes are closed, near \"\"\n");
    expect_file("{\"train\": {\"lr\": 0.1,\n}}",
                "error: c.json:2: a comma before a closing bracket, near \"}}\"\n");
    expect_file("{\"train\": {\"lr\": 0.1\n\"steps\": 3}}",
                "error: c.json:2: a comma or colon is missing, near \"\"steps\": 3}}\"\n");
    expect_file("{\n// fast\n}",
                "error: c.json:2: JSON has no comments; use a \"_comment\" key, near \"// fast\"\n");
    expect_file("{\n'train': 3}", "error: c.json:2: strings stand in double quotes, near \"'train': 3}\"\n");
    expect_file("{\"train\":\n{\"lr\": NaN}}", "error: c.json:2: a syntax error, near \"NaN}}\"\n");
    expect_file("{\"train\": {\"lr\": Infinity}}", "error: c.json:1: a syntax error, near \"Infinity}}\"\n");
    expect_file("{\"train\": {\n\"lr: 3}}",
                "error: c.json:2: a string without its closing quote, near \"lr: 3}}\"\n");
    expect_file("{\"train\": {\n lr: 3}}", "error: c.json:2: a syntax error, near \"lr: 3}}\"\n");
    expect_file("{\"train\": {\"lr\" 3}}", "error: c.json:1: a comma or colon is missing, near \"3}}\"\n");
    expect_file("{}\n{}", "error: c.json:2: more text after the configuration's closing brace\n");
    expect_file("{} \n\nx", "error: c.json:3: more text after the configuration's closing brace\n");
    expect_file("[1]", "error: c.json:1: the configuration must be an object in braces\n");
    expect_file("{\"train\": {\"lr\": 00.1}}", "error: c.json:1: \"00.1\" is not a JSON number\n");
    expect_file("{\"train\": {\"lr\": 1.}}", "error: c.json:1: \"1.\" is not a JSON number\n");
    expect_file("{\"run\": {\"dir\": \"a\nb\"}}",
                "error: c.json:1: a string holds a control character; write \\n, \\t or \\u00XX\n");
    expect_file("{\"run\": {\n\"dir\": \"a\\u0000b\"}}",
                "error: c.json:2: a string holds \\u0000, which cannot be kept\n");
    expect_file("{\"run\": {\n\"dir\": \"a\\\\u0000b\"}}", "");
    expect_file("{\x01}", "error: c.json:1: control character 0x01\n");
    expect_file("\xef\xbb\xbf{}\n", "");    /* a byte order mark does no harm */
}

static void schema_version_is_checked(void **state)
{
    (void)state;
    expect_file("{\"schema_version\": 1}", "");
    expect_file("{\"future\": {},\n\"schema_version\": 2}",
                "error: c.json:2: schema_version 2 is newer than 1, the newest that this program reads; "
                "build a newer "
                "version of the program, or write the file for version 1\n");
    expect_file("{\"schema_version\": 0}",
                "error: c.json:1: schema_version: expected an integer in [1, 1], found 0\n");
    expect_file("{\"schema_version\": \"1\"}",
                "error: c.json:1: schema_version: expected an integer in [1, 1], found \"1\"\n");
}

static void files_are_checked(void **state)
{
    (void)state;
    char *got = messages("missing.json", NULL);
    expect(got, "error: missing.json: cannot read the configuration: No such file or directory\n",
           "missing.json");
    free(got);
    assert_int_equal(mkdir("folder", 0700), 0);
    got = messages("folder", NULL);
    expect(got, "error: folder: is a directory; give a configuration file\n", "folder");
    free(got);
    write_file("folder/config.json", "{}", 2);
    got = messages("folder", NULL);
    expect(got, "error: folder: is a directory; give a configuration file, such as folder/config.json\n",
           "folder");
    free(got);
    write_file("nul.json", "{\n\0}", 4);
    got = messages("nul.json", NULL);
    expect(got, "error: nul.json:2: a NUL byte, so this is no text file\n", "NUL");
    free(got);
    size_t size = (1 << 20) + 1;
    char *large = malloc(size);
    assert_non_null(large);
    memset(large, ' ', size);
    write_file("large.json", large, size);
    free(large);
    got = messages("large.json", NULL);
    expect(got, "error: large.json: has more than 1048576 bytes, which no configuration needs\n", "large");
    free(got);
}

/* Whatever a file holds, it is read or refused: a cut one is refused. */
static void damaged_files_are_refused(void **state)
{
    (void)state;
    char text[] = GOOD_FILE;
    size_t length = strlen(text), whole = length - 1;   /* the last newline is not needed */
    for (size_t cut = 0; cut < whole; cut++) {
        write_file("cut.json", text, cut);
        char *got = messages("cut.json", NULL);
        assert_non_null(strstr(got, "error: cut.json:"));
        free(got);
    }
    static const char bytes[] = {0, '"', '{', '}', '\\', ',', '9', '\n', (char)0xff};
    for (size_t at = 0; at < whole; at++) {
        char kept = text[at];
        text[at] = bytes[at % sizeof bytes];
        write_file("cut.json", text, length);
        free(messages("cut.json", NULL));
        text[at] = kept;
    }
}

/* ---- messages about the command line ------------------------------------------------------------- */

static void arguments_are_checked(void **state)
{
    (void)state;
    expect_arguments("--train.lr=1e-3", "--run.overwrite=on", "--data.boundary_token=-1", "");
    expect_arguments(
        "--train.warmup_step=3", "--train.lr=fast", NULL,
        "error: command line: unknown key \"train.warmup_step\"; did you mean \"train.warmup_steps\"?\n"
        "error: command line: train.lr: expected a number in (0, 10], found \"fast\"\n");
    expect_arguments(
        "--model.heads", "7", NULL,
        "error: command line: --model.heads needs \"=\" before its value: write --model.heads=VALUE\n"
        "error: command line: unexpected \"7\"; settings are written --section.key=value\n");
    expect_arguments("--fusion", NULL, NULL,
                     "error: command line: --fusion needs \"=\" before its value: write --fusion=VALUE\n");
    expect_arguments("--run.overwrite=yes", "--run.overwrite=", NULL,
                     "error: command line: run.overwrite: expected true or false, found \"yes\"\n"
                     "error: command line: run.overwrite: expected true or false, found \"\"\n");
    expect_arguments("--train.lr=0x1", "--train.lr=nan", "--train.lr=inf",
                     "error: command line: train.lr: expected a number in (0, 10], found \"0x1\"\n"
                     "error: command line: train.lr: expected a number in (0, 10], found \"nan\"\n"
                     "error: command line: train.lr: expected a number in (0, 10], found \"inf\"\n");
    expect_arguments(
        "--train.lr=1e", "--train.steps=", "--train.steps=10 ",
        "error: command line: train.lr: expected a number in (0, 10], found \"1e\"\n"
        "error: command line: train.steps: expected an integer in [1, 4294967295], found \"\"\n"
        "error: command line: train.steps: expected an integer in [1, 4294967295], found \"10 \"\n");
    expect_arguments(
        "--train.schedule=step", "--trian.lr=1", "--x.y=1",
        "error: command line: train.schedule: expected one of cosine, linear, constant, wsd, found \"step\"\n"
        "error: command line: unknown key \"trian.lr\"; did you mean \"train.lr\"?\n"
        "error: command line: unknown key \"x.y\"; the sections are run, model, train, data, val, sample, "
        "checkpoint, fusion, profile\n");
    expect_arguments("--fusion=on", "--fusion.swiglu=1", "--fusion.dw=none",
                     "error: command line: fusion: expected one of all, none, auto, found \"on\"\n"
                     "error: command line: fusion.swiglu: expected one of off, on, auto, found \"1\"\n"
                     "error: command line: fusion.dw: expected one of off, on, auto, found \"none\"\n");
}

/* A long name or value is cut in the message, nothing else. */
static void long_arguments_are_refused(void **state)
{
    (void)state;
    char argument[4096] = "--train.";
    memset(argument + 8, 'x', sizeof argument - 9);
    argument[sizeof argument - 1] = 0;
    char *arguments[] = {argument, argument, NULL};
    argument[3000] = '=';
    free(messages(NULL, arguments));
    memcpy(argument, "--run.dir=", 10);
    Errors errors = {0};
    ConfigLoad *load = config_load(NULL, 1, arguments, &errors);
    assert_int_equal(errors.count, 1);
    assert_string_equal(errors.text[0],
                        "command line: run.dir: expected a string of at most 511 bytes, found 4085 bytes");
    config_free(load);
    errors_free(&errors);
}

static void errors_keep_order(void **state)
{
    (void)state;
    Errors errors = {0};
    for (int i = 0; i < 100; i++) errors_add(&errors, "number %d", i);
    assert_int_equal(errors.count, 100);
    assert_string_equal(errors.text[0], "number 0");
    assert_string_equal(errors.text[99], "number 99");
    errors_free(&errors);
    assert_int_equal(errors.count, 0);
    errors_free(&errors);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_checked),
        cmocka_unit_test(duplicates_are_refused),
        cmocka_unit_test(comments_are_permitted),
        cmocka_unit_test(values_are_checked),
        cmocka_unit_test(fusion_takes_words_and_groups),
        cmocka_unit_test(syntax_is_strict),
        cmocka_unit_test(schema_version_is_checked),
        cmocka_unit_test(files_are_checked),
        cmocka_unit_test(damaged_files_are_refused),
        cmocka_unit_test(arguments_are_checked),
        cmocka_unit_test(long_arguments_are_refused),
        cmocka_unit_test(errors_keep_order),
    };
    return cmocka_run_group_tests_name("config", tests, config_test_begin, config_test_end);
}
