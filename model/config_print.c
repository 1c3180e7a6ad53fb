/* The key table and its values as text. */
#include "model/config_table.h"

#include <stdlib.h>
#include <string.h>

void config_value_text(const Config *config, int key, char text[CONFIG_VALUE])
{
    const char *words = config_keys[key].allowed;
    switch (config_keys[key].kind) {
    case KEY_INT:
        snprintf(text, CONFIG_VALUE, "%lld", (long long)CONFIG_INT(config, key));
        break;
    case KEY_REAL:
        for (int digits = 6; digits <= 17; digits++) {
            snprintf(text, CONFIG_VALUE, "%.*g", digits, CONFIG_REAL(config, key));
            if (strtod(text, NULL) == CONFIG_REAL(config, key)) break;
        }
        break;
    case KEY_BOOL:
        snprintf(text, CONFIG_VALUE, "%s", CONFIG_BOOL(config, key) ? "true" : "false");
        break;
    case KEY_TEXT:
        snprintf(text, CONFIG_VALUE, "%s", CONFIG_TEXT(config, key));
        break;
    case KEY_WORD:
        for (int64_t i = CONFIG_INT(config, key); i > 0; i--) words += strcspn(words, "|") + 1;
        snprintf(text, CONFIG_VALUE, "%.*s", (int)strcspn(words, "|"), words);
        break;
    }
}

static void print_words(char *text, size_t size, const char *words, const char *between)
{
    size_t used = 0;
    for (;;) {
        size_t n = strcspn(words, "|");
        int wrote = snprintf(text + used, size - used, "%.*s%s", (int)n, words, words[n] ? between : "");
        used += (size_t)wrote < size - used ? (size_t)wrote : 0;
        if (!words[n]) return;
        words += n + 1;
    }
}

void config_expected(int key, char text[CONFIG_VALUE])
{
    const ConfigKey *k = &config_keys[key];
    char words[CONFIG_VALUE - 16];
    switch (k->kind) {
    case KEY_INT: snprintf(text, CONFIG_VALUE, "an integer in %s", k->allowed); break;
    case KEY_REAL: snprintf(text, CONFIG_VALUE, "a number in %s", k->allowed); break;
    case KEY_BOOL: snprintf(text, CONFIG_VALUE, "true or false"); break;
    case KEY_TEXT: snprintf(text, CONFIG_VALUE, "a string of at most %d bytes", CONFIG_STRING - 1); break;
    case KEY_WORD:
        print_words(words, sizeof words, k->allowed, ", ");
        snprintf(text, CONFIG_VALUE, "one of %s", words);
        break;
    }
}

/* "integer [1, 1024]", "auto | cpu | cuda", ... */
static void type_text(int key, char text[CONFIG_VALUE])
{
    const ConfigKey *k = &config_keys[key];
    switch (k->kind) {
    case KEY_INT: snprintf(text, CONFIG_VALUE, "integer %s", k->allowed); break;
    case KEY_REAL: snprintf(text, CONFIG_VALUE, "number %s", k->allowed); break;
    case KEY_BOOL: snprintf(text, CONFIG_VALUE, "true | false"); break;
    case KEY_TEXT: snprintf(text, CONFIG_VALUE, "text"); break;
    case KEY_WORD: print_words(text, CONFIG_VALUE, k->allowed, " | "); break;
    }
}

static bool in_section(const char *path, const char *section)
{
    size_t n = strlen(section);
    return !strncmp(path, section, n) && path[n] == '.';
}

static const char *shown(const char *fallback) { return *fallback ? fallback : "\"\""; }

static void print_key_help(FILE *out, int key)
{
    const ConfigKey *k = &config_keys[key];
    char type[CONFIG_VALUE];
    type_text(key, type);
    fprintf(out, "  %s = %s   (%s%s)\n      %s\n", k->path, shown(k->fallback), type,
            k->resume == RESUME_FIXED ? "; fixed on resume" : "", k->help);
}

void config_print_help(FILE *out)
{
    fputs("Settings: the command line (--section.key=value, the last one counts) goes before the file,\n"
          "and that before the default. In the file each section is an object: {\"train\": {\"lr\": 3e-4}}.\n"
          "Booleans are true and false, on the command line also on and off. [ ] include the end of a\n"
          "range, ( ) exclude it. Keys named \"_comment\" are permitted anywhere in the file and ignored;\n"
          "other unknown keys are errors.\n\n",
          out);
    print_key_help(out, config_find("schema_version"));
    for (int s = 0; s < CONFIG_SECTIONS; s++) {
        const char *section = config_sections[s].name;
        fprintf(out, "\n%s: %s\n", section, config_sections[s].help);
        for (int key = 0; key < CONFIG_KEYS; key++)
            if (in_section(config_keys[key].path, section)) print_key_help(out, key);
        for (int g = 0; g < CONFIG_GROUPS; g++)
            if (in_section(config_groups[g].path, section))
                fprintf(out, "  %s   (off | on | auto)\n      sets %s\n", config_groups[g].path,
                        config_groups[g].help);
    }
}

void config_print(const ConfigLoad *load, FILE *out)
{
    for (int key = 0; key < CONFIG_KEYS; key++) {
        char value[CONFIG_VALUE];
        const char *path = config_keys[key].path;
        config_value_text(&load->values, key, value);
        fprintf(out, "%-34s %-28s %s\n", path, shown(value), config_where(load, path));
    }
}

static void print_key_markdown(FILE *out, int key)
{
    const ConfigKey *k = &config_keys[key];
    char type[CONFIG_VALUE];
    type_text(key, type);
    fprintf(out, "| `%s` | ", k->path);
    for (const char *p = type; *p; p++) fprintf(out, *p == '|' ? "\\|" : "%c", *p);
    fprintf(out, " | `%s` | %s%s |\n", shown(k->fallback), k->help,
            k->resume == RESUME_FIXED ? " (fixed on resume)" : "");
}

void config_print_markdown(FILE *out)
{
    for (int s = 0; s < CONFIG_SECTIONS; s++) {
        const char *section = config_sections[s].name;
        fprintf(out, "%s### `%s`: %s\n\n| key | type | default | meaning |\n|---|---|---|---|\n",
                s ? "\n" : "", section, config_sections[s].help);
        if (!s) print_key_markdown(out, config_find("schema_version"));
        for (int key = 0; key < CONFIG_KEYS; key++)
            if (in_section(config_keys[key].path, section)) print_key_markdown(out, key);
        for (int g = 0; g < CONFIG_GROUPS; g++)
            if (in_section(config_groups[g].path, section))
                fprintf(out, "| `%s` | off \\| on \\| auto | | sets %s |\n", config_groups[g].path,
                        config_groups[g].help);
    }
}
