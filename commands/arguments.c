#include "commands/arguments.h"
#include "model/names.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool is_override(const char *word)
{
    const char *equals = strchr(word, '='), *dot = strchr(word, '.');
    return !strcmp(word, "--fusion") || !strncmp(word, "--fusion=", 9) || (dot && (!equals || dot < equals));
}

/* Takes the flag at argv[*i], and its value from the next word where it has no '='. */
static bool take_flag(const Flag *flag, const Syntax *syntax, int argc, char **argv, int *i, Errors *errors)
{
    size_t length = strlen(flag->name);
    const char *rest = argv[*i] + length;
    if (strncmp(argv[*i], flag->name, length) || (*rest && *rest != '=')) return false;
    if (flag->set) {
        if (*rest) errors_add(errors, "%s: %s takes no value", argv[0], flag->name);
        *flag->set = true;
        return true;
    }
    const char *next = *i + 1 < argc ? argv[*i + 1] : NULL, *value = *rest ? rest + 1 : NULL;
    if (!*rest && next && strncmp(next, "--", 2)) value = argv[++*i];
    if (value && (*value || syntax->empty_values)) {
        *flag->value = value;
    } else {
        errors_add(errors, "%s: %s needs a value: %s=VALUE", argv[0], flag->name, flag->name);
    }
    return true;
}

static void unknown_word(const char *command, const char *word, const Syntax *syntax, Errors *errors)
{
    char name[64];
    const char *nearest = NULL;
    int best = 4;               /* edits: more than a slip of the fingers makes */
    snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "="), word);
    for (int f = 0; f < syntax->flag_count; f++) {
        int edits = names_distance(name, syntax->flags[f].name);
        if (edits < best) best = edits, nearest = syntax->flags[f].name;
    }
    if (nearest)
        errors_add(errors, "%s: unknown argument \"%s\"; did you mean \"%s\"?", command, word, nearest);
    else errors_add(errors, "%s: unknown argument \"%s\"; see --help", command, word);
}

int arguments_parse(Arguments *a, int argc, char **argv, const Syntax *syntax, Errors *errors)
{
    *a = (Arguments){.positional = calloc((size_t)argc + 1, sizeof *a->positional),
                     .overrides = calloc((size_t)argc + 1, sizeof *a->overrides)};
    if (!a->positional || !a->overrides) return 1;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            fputs(syntax->usage, stdout);
            return 0;
        }
        int f = 0;
        while (f < syntax->flag_count && !take_flag(&syntax->flags[f], syntax, argc, argv, &i, errors)) f++;
        if (f < syntax->flag_count) continue;
        bool dashes = !strncmp(argv[i], "--", 2);
        if (dashes && syntax->overrides && is_override(argv[i])) {
            a->overrides[a->override_count++] = argv[i];
            /* "--train.lr 1e-3" lacks an equals sign, which config_load says: its value is no second mistake */
            if (!strchr(argv[i], '=') && a->positional_count == syntax->most && i + 1 < argc && strncmp(argv[i + 1], "--", 2)) i++;
        } else if (argv[i][0] && (argv[i][0] != '-' || !argv[i][1]) && a->positional_count < syntax->most)
            a->positional[a->positional_count++] = argv[i];
        else unknown_word(argv[0], argv[i], syntax, errors);
    }
    if (a->positional_count < syntax->least)
        errors_add(errors, "%s: what it works on is missing\n%s", argv[0], syntax->usage);
    return ARGUMENTS_GO_ON;
}

void arguments_free(Arguments *a)
{
    free(a->positional);
    free(a->overrides);
    *a = (Arguments){0};
}

int64_t arguments_integer(const char *option, const char *text, int64_t low, Errors *errors)
{
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (end == text || *end || errno || number < low)
        errors_add(errors, "%s%s: expected a whole number, %lld or more", option, text, (long long)low);
    return number;
}
