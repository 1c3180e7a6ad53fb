/* Configuration files: strict JSON by cJSON, with the line of every key found by a scan of the same text. */
#include "model/config_table.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define FILE_LIMIT (1 << 20)    /* bytes: more is not a configuration */

/* ---- the scan ----------------------------------------------------------------------------------- */

/* Keys stand in the text in the order in which a walk over cJSON's tree, parents first, meets them. */
typedef struct KeyLines {
    int *line;      /* owned */
    int  count, capacity;
} KeyLines;

static bool keys_add(KeyLines *keys, int line)
{
    if (keys->count == keys->capacity) {
        int capacity = keys->capacity ? 2 * keys->capacity : 128;
        int *grown = realloc(keys->line, (size_t)capacity * sizeof *grown);
        if (!grown) return false;
        keys->line = grown;
        keys->capacity = capacity;
    }
    keys->line[keys->count++] = line;
    return true;
}

static int line_of(const char *text, const char *at)
{
    int line = 1;
    for (; text < at; text++) line += *text == '\n';
    return line;
}

static const char *skip_space(const char *s) { return s + strspn(s, " \t\r\n"); }

/* Length of the number at s by JSON's grammar, 0 = none. cJSON takes what strtod takes. */
static size_t number_length(const char *s)
{
    static const char digits[] = "0123456789";
    const char *p = s + (*s == '-');
    size_t n = strspn(p, digits);
    if (!n || (n > 1 && *p == '0')) return 0;
    p += n;
    if (*p == '.') {
        if (!(n = strspn(p + 1, digits))) return 0;
        p += 1 + n;
    }
    if (*p == 'e' || *p == 'E') {
        p += 1 + (p[1] == '-' || p[1] == '+');
        if (!(n = strspn(p, digits))) return 0;
        p += n;
    }
    return (size_t)(p - s);
}

/* Notes the line of every key, and finds what cJSON lets through. text is JSON by cJSON's measure. */
static bool scan(const char *path, const char *text, KeyLines *keys, Errors *errors)
{
    int line = 1, before = errors->count;
    for (const char *p = text; *p; ) {
        if (*p == '"') {
            int first = line;
            for (p++; *p && *p != '"'; p++) {
                if ((unsigned char)*p < 0x20)
                    errors_add(errors, "%s:%d: a string holds a control character; write \\n, \\t or \\u00XX",
                               path, line);
                if (!strncmp(p, "\\u0000", 6))
                    errors_add(errors, "%s:%d: a string holds \\u0000, which cannot be kept", path, line);
                line += *p == '\n';
                p += *p == '\\' && p[1];
            }
            if (*p) p++;
            if (*skip_space(p) == ':' && !keys_add(keys, first)) {
                errors_add(errors, "%s: no memory left to read it", path);
                return false;
            }
        } else if (strchr("+-.0123456789", *p)) {
            size_t length = strspn(p, "+-.0123456789eE");
            if (number_length(p) != length)
                errors_add(errors, "%s:%d: \"%.*s\" is not a JSON number", path, line, (int)length, p);
            p += length;
        } else {
            if ((unsigned char)*p < 0x20 && !strchr("\t\r\n", *p))
                errors_add(errors, "%s:%d: control character 0x%02x", path, line, (unsigned char)*p);
            line += *p++ == '\n';
        }
    }
    return errors->count == before;
}

/* ---- the tree ----------------------------------------------------------------------------------- */

typedef struct Reader {
    ConfigLoad *load;
    Errors     *errors;
    KeyLines    keys;
} Reader;

static Origin origin_at(const Reader *r, int key_index)
{
    return (Origin){r->load->file, r->keys.line[key_index]};
}

/* Keys below an item. */
static int count_keys(const cJSON *item)
{
    int n = 0;
    const cJSON *child;
    cJSON_ArrayForEach(child, item) n += (child->string != NULL) + count_keys(child);
    return n;
}

static bool is_comment(const cJSON *item) { return !strcmp(item->string, "_comment"); }

/* Reports item if an earlier member of its object has the same name. at: key index of the first member. */
static bool is_duplicate(Reader *r, const cJSON *object, int at, const cJSON *item, Origin origin)
{
    for (const cJSON *other = object->child; other != item; other = other->next) {
        if (!strcmp(other->string, item->string)) {
            errors_add(r->errors, "%s:%d: \"%.64s\" stands twice in its object, first on line %d; keep one",
                       origin.file, origin.line, item->string, r->keys.line[at]);
            return true;
        }
        at += 1 + count_keys(other);
    }
    return false;
}

/* The value as it would be written, shortened. */
static void literal(const cJSON *item, char text[CONFIG_VALUE])
{
    char *written = cJSON_PrintUnformatted(item);
    snprintf(text, CONFIG_VALUE, "%.64s%s", written ? written : "?",
             written && strlen(written) > 64 ? "..." : "");
    cJSON_free(written);
}

static void read_value(Reader *r, int key, const cJSON *item, Origin origin)
{
    char found[CONFIG_VALUE];
    switch (config_keys[key].kind) {
    case KEY_INT:
    case KEY_REAL:
        if (!cJSON_IsNumber(item)) break;
        if (isfinite(item->valuedouble)) literal(item, found);
        else snprintf(found, sizeof found, "a number too large");
        config_set_number(r->load, key, item->valuedouble, found, origin, r->errors);
        return;
    case KEY_BOOL:
        if (!cJSON_IsBool(item)) break;
        config_set_bool(r->load, key, cJSON_IsTrue(item), origin);
        return;
    case KEY_TEXT:
    case KEY_WORD:
        if (!cJSON_IsString(item)) break;
        config_set_string(r->load, key, item->valuestring, origin, r->errors);
        return;
    }
    literal(item, found);
    config_bad_value(r->load, key, found, origin, r->errors);
}

/* Reads the members of a section. at: key index of the first one. Groups of fusion keys are read in a pass
 * of their own, before single keys, so that the order in an object means nothing. */
static void read_members(Reader *r, const cJSON *object, int at, bool groups)
{
    const int first = at;
    const cJSON *item;
    cJSON_ArrayForEach(item, object) {
        Origin origin = origin_at(r, at);
        at += 1 + count_keys(item);
        char path[256];
        snprintf(path, sizeof path, "%.64s.%.128s", object->string, item->string);
        int key = config_find(path), group = config_find_group(path);
        if (is_comment(item) || groups != (group >= 0)) continue;
        if (is_duplicate(r, object, first, item, origin)) continue;
        if (key >= 0) {
            read_value(r, key, item, origin);
        } else if (group < 0) {
            config_unknown_key(path, origin, r->errors);
        } else {
            char found[CONFIG_VALUE];
            literal(item, found);
            config_set_group(r->load, group, cJSON_IsString(item) ? item->valuestring : found, origin,
                             r->errors);
        }
    }
}

static void read_section(Reader *r, const cJSON *section, int at, Origin origin)
{
    const char *name = section->string;
    bool fusion = !strcmp(name, "fusion");
    if (config_find_section(name) < 0) {
        if (cJSON_IsObject(section)) config_unknown_section(name, origin, r->errors);
        else if (config_find(name) >= 0)
            errors_add(r->errors, "%s:%d: \"%s\" must stand inside its section: \"%.*s\": {\"%s\": ...}",
                       origin.file, origin.line, name, (int)strcspn(name, "."), name, strchr(name, '.') + 1);
        else config_unknown_key(name, origin, r->errors);
    } else if (cJSON_IsObject(section)) {
        if (fusion) read_members(r, section, at + 1, true);
        read_members(r, section, at + 1, false);
    } else if (fusion && cJSON_IsString(section)) {
        config_set_fusion(r->load, section->valuestring, origin, r->errors);
    } else {
        char found[CONFIG_VALUE];
        literal(section, found);
        errors_add(r->errors, "%s:%d: \"%s\" must be an object in braces%s, found %s", origin.file,
                   origin.line, name, fusion ? ", or one of \"all\", \"none\", \"auto\"" : "", found);
    }
}

static void read_root(Reader *r, const cJSON *root)
{
    int at = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, root) {
        if (!strcmp(item->string, "schema_version") && cJSON_IsNumber(item) &&
            item->valuedouble > CONFIG_SCHEMA_VERSION) {
            errors_add(r->errors,
                       "%s:%d: schema_version %.17g is newer than %d, the newest that this program reads; "
                       "build a newer version of the program, or write the file for version %d",
                       r->load->file, r->keys.line[at], item->valuedouble, CONFIG_SCHEMA_VERSION,
                       CONFIG_SCHEMA_VERSION);
            r->load->unreadable = true;
            return;
        }
        at += 1 + count_keys(item);
    }
    at = 0;
    cJSON_ArrayForEach(item, root) {
        Origin origin = origin_at(r, at);
        if (!is_comment(item) && !is_duplicate(r, root, 0, item, origin)) {
            int version = strcmp(item->string, "schema_version") ? -1 : config_find("schema_version");
            if (version >= 0) read_value(r, version, item, origin);
            else read_section(r, item, at, origin);
        }
        at += 1 + count_keys(item);
    }
}

/* ---- the file ----------------------------------------------------------------------------------- */

/* The file's bytes and a NUL behind them. NULL with an error added. Caller frees. */
static char *read_all(const char *path, size_t *length, Errors *errors)
{
    struct stat info;
    FILE *file = fopen(path, "rb");
    if (!file) {
        errors_add(errors, "%s: cannot read the configuration: %s", path, strerror(errno));
        return NULL;
    }
    char *text = NULL;
    if (!fstat(fileno(file), &info) && S_ISDIR(info.st_mode)) {
        char run[4096];     /* the run's, if it is one */
        const bool is_run = snprintf(run, sizeof run, "%s/config.json", path) < (int)sizeof run && !stat(run, &info);
        errors_add(errors, "%s: is a directory; give a configuration file%s%s", path, is_run ? ", such as " : "",
                   is_run ? run : "");
    } else if (!(text = malloc(FILE_LIMIT + 1))) {
        errors_add(errors, "%s: no memory left to read it", path);
    } else {
        *length = fread(text, 1, FILE_LIMIT + 1, file);
        if (ferror(file)) errors_add(errors, "%s: cannot read the configuration: %s", path, strerror(errno));
        else if (*length > FILE_LIMIT)
            errors_add(errors, "%s: has more than %d bytes, which no configuration needs", path, FILE_LIMIT);
        else {
            text[*length] = 0;
            fclose(file);
            return text;
        }
    }
    free(text);
    fclose(file);
    return NULL;
}

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

/* The place where cJSON stopped, set right: at a name without quotes it has gone one byte too far. */
static const char *error_place(const char *text, const char *stop)
{
    if (stop - text >= 2 && !is_space(stop[-1]) && stop[-1] != '"') {
        const char *before = stop - 2;
        while (before > text && is_space(*before)) before--;
        if (*before == '{' || *before == ',') return stop - 1;
    }
    return skip_space(stop);
}

static bool in_string(const char *text, const char *at)
{
    bool inside = false;
    for (; text < at; text++) {
        if (*text == '"') inside = !inside;
        else if (inside && *text == '\\') text++;
    }
    return inside;
}

/* What is wrong at such a place. */
static const char *syntax_hint(const char *text, const char *at)
{
    const char *before = at;
    while (before > text && is_space(before[-1])) before--;
    char previous = before > text ? before[-1] : 0;
    if (!*at) return "the file ends before its braces and quotes are closed";
    if (previous == ',' && (*at == '}' || *at == ']')) return "a comma before a closing bracket";
    if (*at == '\\' && in_string(text, at)) return "an escape that JSON does not have";
    if (in_string(text, at)) return "a string without its closing quote";
    if (*at == '/' || *at == '#') return "JSON has no comments; use a \"_comment\" key";
    if (*at == '\'') return "strings stand in double quotes";
    if (previous && !strchr(",:{[", previous) && !strchr(",:}]", *at)) return "a comma or colon is missing";
    return "a syntax error";
}

void config_read_file(ConfigLoad *load, Errors *errors)
{
    const char *path = load->file;
    size_t length;
    load->unreadable = true;
    char *text = read_all(path, &length, errors);
    if (!text) return;

    Reader reader = {.load = load, .errors = errors};
    const char *end = NULL, *nul = memchr(text, 0, length);
    cJSON *root = nul ? NULL : cJSON_ParseWithLengthOpts(text, length + 1, &end, false);
    if (nul) {
        errors_add(errors, "%s:%d: a NUL byte, so this is no text file", path, line_of(text, nul));
    } else if (!root) {
        end = error_place(text, end ? end : text);
        errors_add(errors, "%s:%d: %s, near \"%.*s\"", path, line_of(text, end), syntax_hint(text, end),
                   (int)strcspn(end, "\r\n") < 24 ? (int)strcspn(end, "\r\n") : 24, end);
    } else if (*skip_space(end)) {
        end = skip_space(end);
        errors_add(errors, "%s:%d: more text after the configuration's closing brace", path,
                   line_of(text, end));
    } else if (!cJSON_IsObject(root)) {
        errors_add(errors, "%s:1: the configuration must be an object in braces", path);
    } else if (scan(path, text, &reader.keys, errors)) {
        load->unreadable = false;
        read_root(&reader, root);
    }
    free(reader.keys.line);
    cJSON_Delete(root);
    free(text);
}

/* ---- writing ------------------------------------------------------------------------------------ */

static cJSON *value_item(const Config *config, int key)
{
    char text[CONFIG_VALUE];
    switch (config_keys[key].kind) {
    case KEY_INT:
    case KEY_REAL:
        config_value_text(config, key, text);   /* cJSON's own numbers do not all read back exactly */
        return cJSON_CreateRaw(text);
    case KEY_BOOL: return cJSON_CreateBool(CONFIG_BOOL(config, key));
    case KEY_TEXT: return cJSON_CreateString(CONFIG_TEXT(config, key));
    case KEY_WORD:
        config_value_text(config, key, text);
        return cJSON_CreateString(text);
    }
    return NULL;
}

char *config_to_json(const Config *config)
{
    /* accum follows from tokens_per_step, also when the resumed run has another micro_batch. */
    Config written = *config;
    if (written.train.tokens_per_step) written.train.accum = 0;

    cJSON *root = cJSON_CreateObject();
    bool good = root != NULL;
    for (int key = 0; key < CONFIG_KEYS && good; key++) {
        char section[64];
        const char *path = config_keys[key].path, *dot = strchr(path, '.');
        cJSON *object = root;
        if (dot) {
            snprintf(section, sizeof section, "%.*s", (int)(dot - path), path);
            object = cJSON_GetObjectItemCaseSensitive(root, section);
            if (!object) object = cJSON_AddObjectToObject(root, section);
        }
        good = object && cJSON_AddItemToObject(object, dot ? dot + 1 : path, value_item(&written, key));
    }
    char *text = good ? cJSON_Print(root) : NULL;
    cJSON_Delete(root);
    return text;
}
