/* A command line cut into what the config takes and what the command itself takes. */
#pragma once
#include "model/errors.h"
#include <stdbool.h>
#include <stdint.h>

/* One flag of a command: "--resume", or "--prompt=TEXT" / "--prompt TEXT". */
typedef struct Flag {
    const char  *name;      /* with its dashes */
    bool        *set;       /* a flag without value, or NULL */
    const char **value;     /* a flag with a value, or NULL */
} Flag;

typedef struct Syntax {
    const char *usage;          /* printed for --help, and where words are missing */
    int         least, most;    /* words without dashes */
    bool        overrides;      /* --section.key=value and --fusion=... are taken */
    const Flag *flags;
    int         flag_count;
    bool        empty_values;   /* a flag's value may be an empty text */
} Syntax;

typedef struct Arguments {
    char **positional;          /* [positional_count], then NULL */
    int    positional_count;
    char **overrides;           /* for config_load */
    int    override_count;
} Arguments;

enum { ARGUMENTS_GO_ON = -1 };

/* argv[0] is the command's name. Every word that does not fit is an error of its own, with the nearest flag.
 * Returns ARGUMENTS_GO_ON, or the exit code where there is nothing more to do: 0 after printing the usage for
 * --help, 1 without memory. Free with arguments_free in any case. */
int arguments_parse(Arguments *arguments, int argc, char **argv, const Syntax *syntax, Errors *errors);
void arguments_free(Arguments *arguments);

/* The whole of text, which stands behind option ("--seed="), as a number of at least low. Adds an error where
 * it is none. */
int64_t arguments_integer(const char *option, const char *text, int64_t low, Errors *errors);
