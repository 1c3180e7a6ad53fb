/* Messages about unknown keys and sections, with the nearest names. */
#include "model/config_table.h"
#include "model/names.h"

#include <string.h>

#define NAMES (CONFIG_KEYS + CONFIG_GROUPS)

/* Two edits make any three letters into any other: short names must be nearer. */
static int edits_allowed(const char *name) { return strlen(name) <= 3 ? 1 : 2; }

static const char *path_of(int i)
{
    return i < CONFIG_KEYS ? config_keys[i].path : config_groups[i - CONFIG_KEYS].path;
}

static const char *name_of(const char *path)
{
    const char *dot = strchr(path, '.');
    return dot ? dot + 1 : path;
}

static bool same_section(const char *a, const char *b)
{
    size_t n = (size_t)(name_of(a) - a);
    return n == (size_t)(name_of(b) - b) && !memcmp(a, b, n);
}

static int distance(const char *wanted, const char *path)
{
    int by_name = names_distance(name_of(wanted), name_of(path));
    if (by_name > edits_allowed(name_of(wanted))) by_name = NAMES_LIMIT;
    int by_path = names_distance(wanted, path);
    if (by_path > edits_allowed(wanted)) by_path = NAMES_LIMIT;
    return by_name < by_path ? by_name : by_path;
}

/* A list of names in a sentence. */
typedef struct NameList { char text[2048]; size_t length; } NameList;

static void list_add(NameList *list, const char *between, const char *quote, const char *name)
{
    size_t room = sizeof list->text - list->length;
    int n = snprintf(list->text + list->length, room, "%s%s%s%s", list->length ? between : "", quote, name,
                     quote);
    if (n > 0 && (size_t)n < room) list->length += (size_t)n;
    else list->text[list->length] = 0;
}

void config_unknown_key(const char *path, Origin origin, Errors *errors)
{
    char where[CONFIG_WHERE];
    config_origin_text(origin, where);

    int best = NAMES_LIMIT;
    bool in_section = false;    /* a name of the same section is as near as any */
    for (int i = 0; i < NAMES; i++) {
        int d = distance(path, path_of(i));
        bool same = same_section(path, path_of(i));
        if (d < best) { best = d; in_section = same; }
        else if (d == best && same) in_section = true;
    }
    NameList names = {{0}, 0};
    if (best < NAMES_LIMIT) {
        for (int i = 0; i < NAMES; i++)
            if (distance(path, path_of(i)) == best && (!in_section || same_section(path, path_of(i))))
                list_add(&names, " or ", "\"", path_of(i));
        errors_add(errors, "%s: unknown key \"%.64s\"; did you mean %s?", where, path, names.text);
        return;
    }
    char section[NAMES_LIMIT] = "";
    const char *dot = strchr(path, '.');
    if (dot) snprintf(section, sizeof section, "%.*s", (int)(dot - path), path);
    if (dot && config_find_section(section) >= 0) {
        for (int i = 0; i < NAMES; i++)
            if (same_section(path, path_of(i))) list_add(&names, ", ", "", name_of(path_of(i)));
        errors_add(errors, "%s: unknown key \"%.64s\"; \"%s\" has %s", where, path, section, names.text);
    } else {
        for (int i = 0; i < CONFIG_SECTIONS; i++) list_add(&names, ", ", "", config_sections[i].name);
        errors_add(errors, "%s: unknown key \"%.64s\"; the sections are %s", where, path, names.text);
    }
}

void config_unknown_section(const char *name, Origin origin, Errors *errors)
{
    char where[CONFIG_WHERE];
    config_origin_text(origin, where);
    int best = edits_allowed(name) + 1;
    for (int i = 0; i < CONFIG_SECTIONS; i++) {
        int d = names_distance(name, config_sections[i].name);
        if (d < best) best = d;
    }
    NameList names = {{0}, 0};
    bool near = best <= edits_allowed(name);
    for (int i = 0; i < CONFIG_SECTIONS; i++)
        if (!near) list_add(&names, ", ", "", config_sections[i].name);
        else if (names_distance(name, config_sections[i].name) == best)
            list_add(&names, " or ", "\"", config_sections[i].name);
    if (near) errors_add(errors, "%s: unknown section \"%.64s\"; did you mean %s?", where, name, names.text);
    else errors_add(errors, "%s: unknown section \"%.64s\"; the sections are %s", where, name, names.text);
}
