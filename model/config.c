#include "model/config_table.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the table ---------------------------------------------------------------------------------- */

const ConfigKey config_keys[CONFIG_KEYS] = {
#define CONFIG_KEY(field, kind, fallback, allowed, resume, help) \
    {#field, KEY_##kind, offsetof(Config, field), fallback, allowed, RESUME_##resume, help},
#define CONFIG_FUSION(name, index, help) \
    {"fusion." #name, KEY_WORD, offsetof(Config, fusion.mode[index]), "auto", "off|on|auto", RESUME_FREE, \
     help},
#include "model/config_keys.def"
};

const ConfigSection config_sections[CONFIG_SECTIONS] = {
#define CONFIG_SECTION(name, help) {#name, help},
#include "model/config_keys.def"
};

const FusionGroup config_groups[CONFIG_GROUPS] = {
#define CONFIG_FUSION_GROUP(name, members, help) {"fusion." #name, members, help},
#include "model/config_keys.def"
};

/* The kind in the table is the type of the field. */
enum { FIELD_INT, FIELD_WORD = FIELD_INT, FIELD_REAL, FIELD_BOOL, FIELD_TEXT };
#define FIELD_KIND(field) \
    _Generic(((Config *)0)->field, \
             int64_t: FIELD_INT, double: FIELD_REAL, bool: FIELD_BOOL, char *: FIELD_TEXT)
#define CONFIG_KEY(field, kind, fallback, allowed, resume, help) \
    static_assert(FIELD_KIND(field) == (int)FIELD_##kind, #field);
#include "model/config_keys.def"

int config_find(const char *path)
{
    for (int i = 0; i < CONFIG_KEYS; i++)
        if (!strcmp(path, config_keys[i].path)) return i;
    return -1;
}

int config_find_group(const char *path)
{
    for (int i = 0; i < CONFIG_GROUPS; i++)
        if (!strcmp(path, config_groups[i].path)) return i;
    return -1;
}

int config_find_section(const char *name)
{
    for (int i = 0; i < CONFIG_SECTIONS; i++)
        if (!strcmp(name, config_sections[i].name)) return i;
    return -1;
}

/* ---- storing one value -------------------------------------------------------------------------- */

void config_origin_text(Origin origin, char text[CONFIG_WHERE])
{
    if (origin.file) snprintf(text, CONFIG_WHERE, "%s:%d", origin.file, origin.line);
    else snprintf(text, CONFIG_WHERE, origin.line == ORIGIN_COMMAND ? "command line" : "default");
}

static void stored(ConfigLoad *load, int key, Origin origin)
{
    load->line[key] = origin.line;
    load->bad[key] = false;
    config_origin_text(origin, load->where[key]);
}

void config_bad_value(ConfigLoad *load, int key, const char *found, Origin origin, Errors *errors)
{
    char where[CONFIG_WHERE], expected[CONFIG_VALUE];
    config_origin_text(origin, where);
    config_expected(key, expected);
    errors_add(errors, "%s: %s: expected %s, found %s", where, config_keys[key].path, expected, found);
    load->bad[key] = true;
}

static bool in_interval(const char *interval, double value)
{
    char open, close;
    double low, high;
    int read = sscanf(interval, "%c%lf,%lf%c", &open, &low, &high, &close);
    assert(read == 4);
    (void)read;
    return (open == '[' ? value >= low : value > low) && (close == ']' ? value <= high : value < high);
}

void config_set_number(ConfigLoad *load, int key, double value, const char *found, Origin origin,
                       Errors *errors)
{
    const ConfigKey *k = &config_keys[key];
    /* No interval reaches 2^53, so an integer that a double cannot tell from its neighbour is refused. */
    bool good =
        isfinite(value) && in_interval(k->allowed, value) && (k->kind != KEY_INT || value == floor(value));
    if (!good) {
        config_bad_value(load, key, found, origin, errors);
        return;
    }
    if (k->kind == KEY_INT) CONFIG_INT(&load->values, key) = (int64_t)value;
    else CONFIG_REAL(&load->values, key) = value;
    stored(load, key, origin);
}

void config_set_bool(ConfigLoad *load, int key, bool value, Origin origin)
{
    CONFIG_BOOL(&load->values, key) = value;
    stored(load, key, origin);
}

/* Index of word in "a|b|c", -1 = none of them. */
static int find_word(const char *words, const char *word)
{
    size_t length = strlen(word);
    for (int i = 0; ; i++) {
        size_t n = strcspn(words, "|");
        if (n == length && !memcmp(words, word, n)) return i;
        if (!words[n]) return -1;
        words += n + 1;
    }
}

void config_set_string(ConfigLoad *load, int key, const char *value, Origin origin, Errors *errors)
{
    char found[CONFIG_VALUE];
    if (config_keys[key].kind == KEY_WORD) {
        int word = find_word(config_keys[key].allowed, value);
        if (word < 0) {
            snprintf(found, sizeof found, "\"%.64s\"", value);
            config_bad_value(load, key, found, origin, errors);
            return;
        }
        CONFIG_INT(&load->values, key) = word;
    } else {
        size_t length = strlen(value);
        if (length >= CONFIG_STRING) {
            snprintf(found, sizeof found, "%zu bytes", length);
            config_bad_value(load, key, found, origin, errors);
            return;
        }
        memcpy(CONFIG_TEXT(&load->values, key), value, length + 1);
    }
    stored(load, key, origin);
}

/* The whole of text as a decimal number. */
static bool read_number(const char *text, double *value)
{
    char *end;
    if (!*text || text[strspn(text, "0123456789+-.eE")]) return false;
    *value = strtod(text, &end);
    return end != text && !*end;
}

static void set_from_text(ConfigLoad *load, int key, const char *text, Origin origin, Errors *errors)
{
    char found[CONFIG_VALUE];
    snprintf(found, sizeof found, "\"%.64s\"", text);
    double number;
    switch (config_keys[key].kind) {
    case KEY_INT:
    case KEY_REAL:
        if (read_number(text, &number)) config_set_number(load, key, number, found, origin, errors);
        else config_bad_value(load, key, found, origin, errors);
        break;
    case KEY_BOOL:
        if (!strcmp(text, "true") || !strcmp(text, "on")) config_set_bool(load, key, true, origin);
        else if (!strcmp(text, "false") || !strcmp(text, "off")) config_set_bool(load, key, false, origin);
        else config_bad_value(load, key, found, origin, errors);
        break;
    case KEY_TEXT:
    case KEY_WORD:
        config_set_string(load, key, text, origin, errors);
        break;
    }
}

/* ---- fusion ------------------------------------------------------------------------------------- */

static int fusion_key(FusionKey gemm)
{
    size_t offset = offsetof(Config, fusion.mode) + gemm * sizeof(int64_t);
    int key = 0;
    while (config_keys[key].offset != offset) key++;
    return key;
}

static void set_members(ConfigLoad *load, unsigned members, const char *word, Origin origin, Errors *errors)
{
    for (int i = 0; i < FUSE_COUNT; i++)
        if (members >> i & 1) config_set_string(load, fusion_key(i), word, origin, errors);
}

void config_set_fusion(ConfigLoad *load, const char *word, Origin origin, Errors *errors)
{
    const char *mode = !strcmp(word, "all") ? "on" : !strcmp(word, "none") ? "off" : word;
    if (!strcmp(mode, "auto") || mode != word) {
        set_members(load, (1u << FUSE_COUNT) - 1, mode, origin, errors);
        return;
    }
    char where[CONFIG_WHERE];
    config_origin_text(origin, where);
    errors_add(errors, "%s: fusion: expected one of all, none, auto, found \"%.64s\"", where, word);
}

void config_set_group(ConfigLoad *load, int group, const char *word, Origin origin, Errors *errors)
{
    if (find_word(config_keys[fusion_key(FUSE_QKV)].allowed, word) >= 0) {
        set_members(load, config_groups[group].members, word, origin, errors);
        return;
    }
    char where[CONFIG_WHERE];
    config_origin_text(origin, where);
    errors_add(errors, "%s: %s: expected one of off, on, auto, found \"%.64s\"", where,
               config_groups[group].path, word);
}

/* ---- the command line --------------------------------------------------------------------------- */

static void apply_argument(ConfigLoad *load, const char *argument, Errors *errors)
{
    const Origin origin = {NULL, ORIGIN_COMMAND};
    if (strncmp(argument, "--", 2)) {
        errors_add(errors, "command line: unexpected \"%.128s\"; settings are written --section.key=value",
                   argument);
        return;
    }
    char path[128];
    const char *name = argument + 2, *equals = strchr(name, '=');
    snprintf(path, sizeof path, "%.*s", equals ? (int)(equals - name) : (int)strlen(name), name);
    int key = config_find(path), group = config_find_group(path);
    bool fusion = !strcmp(path, "fusion");
    if (key < 0 && group < 0 && !fusion) {
        config_unknown_key(path, origin, errors);
    } else if (!equals) {
        errors_add(errors, "command line: --%s needs \"=\" before its value: write --%s=VALUE", path, path);
    } else if (key >= 0) {
        set_from_text(load, key, equals + 1, origin, errors);
    } else if (group >= 0) {
        config_set_group(load, group, equals + 1, origin, errors);
    } else {
        config_set_fusion(load, equals + 1, origin, errors);
    }
}

/* ---- loading ------------------------------------------------------------------------------------ */

static void settle_accum(Config *c)
{
    if (c->train.accum) return;
    int64_t accum = c->train.tokens_per_step / (c->train.micro_batch * c->train.seq_len);
    c->train.accum = accum > 1 ? accum : 1;
}

ConfigLoad *config_load(const char *path, int argc, char *const argv[], Errors *errors)
{
    ConfigLoad *load = calloc(1, sizeof *load);
    char *file = path ? strdup(path) : NULL;
    if (!load || (path && !file)) {
        free(load);
        free(file);
        return NULL;
    }
    load->file = file;
    for (int key = 0; key < CONFIG_KEYS; key++)
        set_from_text(load, key, config_keys[key].fallback, (Origin){NULL, ORIGIN_DEFAULT}, errors);
    if (path) config_read_file(load, errors);
    for (int i = 0; i < argc; i++) apply_argument(load, argv[i], errors);
    load->given = load->values;
    settle_accum(&load->values);
    return load;
}

void config_free(ConfigLoad *load)
{
    if (!load) return;
    free(load->file);
    free(load);
}

Config *config_values(ConfigLoad *load) { return &load->values; }

bool config_is_readable(const ConfigLoad *load) { return !load->unreadable; }

const char *config_where(const ConfigLoad *load, const char *path)
{
    char value[CONFIG_VALUE], given[CONFIG_VALUE];
    int key = config_find(path);
    if (key < 0) return NULL;
    config_value_text(&load->values, key, value);
    config_value_text(&load->given, key, given);
    return strcmp(value, given) ? "derived" : load->where[key];
}
