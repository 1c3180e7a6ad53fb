#include "commands/arguments.h"
#include <stdlib.h>
#include <string.h>

static bool is_override(const char *word)
{
    const char *equals = strchr(word, '='), *dot = strchr(word, '.');
    if (strncmp(word, "--", 2)) return false;
    return !strncmp(word, "--fusion=", 9) || (dot && (!equals || dot < equals));
}

/* Takes the flag at argv[*i], and its value from the next word where it has no '='. */
static bool take_flag(const Flag *flag, int argc, char **argv, int *i, Errors *errors)
{
    size_t length = strlen(flag->name);
    const char *rest = argv[*i] + length;
    if (strncmp(argv[*i], flag->name, length) || (*rest && *rest != '=')) return false;
    if (flag->set) {
        if (*rest) errors_add(errors, "%s takes no value", flag->name);
        *flag->set = true;
    } else if (*rest) {
        *flag->value = rest + 1;
    } else if (*i + 1 < argc) {
        *flag->value = argv[++*i];
    } else {
        errors_add(errors, "%s needs a value: %s=VALUE", flag->name, flag->name);
    }
    return true;
}

bool arguments_parse(Arguments *a, int argc, char **argv, const Flag *flags, int flag_count, int max_positional,
                     Errors *errors)
{
    *a = (Arguments){.overrides = calloc((size_t)argc + 1, sizeof *a->overrides)};
    if (!a->overrides) return false;
    for (int i = 1; i < argc; i++) {
        int f = 0;
        while (f < flag_count && !take_flag(&flags[f], argc, argv, &i, errors)) f++;
        if (f < flag_count) continue;
        if (is_override(argv[i])) a->overrides[a->override_count++] = argv[i];
        else if (argv[i][0] != '-' && a->positional_count < max_positional)
            a->positional[a->positional_count++] = argv[i];
        else errors_add(errors, "%s: unknown argument \"%s\"; see ./train --help", argv[0], argv[i]);
    }
    return true;
}

void arguments_free(Arguments *a)
{
    free(a->overrides);
    a->overrides = NULL;
}
