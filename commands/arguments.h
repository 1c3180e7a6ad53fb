/* A command line cut into what the config takes and what the command itself takes. */
#pragma once
#include "model/errors.h"
#include <stdbool.h>

/* One flag of a command: "--resume", or "--prompt=TEXT" / "--prompt TEXT". */
typedef struct Flag {
    const char  *name;      /* with its dashes */
    bool        *set;       /* a flag without value, or NULL */
    const char **value;     /* a flag with a value, or NULL */
} Flag;

typedef struct Arguments {
    const char *positional[4];
    int         positional_count;
    char      **overrides;      /* --section.key=value and --fusion=..., for config_load; owned array */
    int         override_count;
} Arguments;

/* argv[0] is the command's name. At most `max_positional` words without dashes are taken. Every unknown word is an
 * error of its own. False when memory ran out. */
bool arguments_parse(Arguments *arguments, int argc, char **argv, const Flag *flags, int flag_count,
                     int max_positional, Errors *errors);
void arguments_free(Arguments *arguments);
