/* ./train report RUN: writes RUN/report.html from RUN/log.jsonl. */
#include "commands/arguments.h"
#include "commands/commands.h"
#include "model/report.h"

int report_command(int argc, char **argv)
{
    Errors errors = {0};
    Arguments args;
    const Syntax syntax = {
        .usage = "usage: ./train report RUN\n       writes RUN/report.html from RUN/log.jsonl\n",
        .least = 1,
        .most = 1};
    int code = arguments_parse(&args, argc, argv, &syntax, &errors);
    if (code == ARGUMENTS_GO_ON) {
        code = errors.count || !report_write(args.positional[0], &errors) ? 2 : 0;
        if (!code) printf("%s/report.html\n", args.positional[0]);
    }
    errors_print(&errors, stderr);
    errors_free(&errors);
    arguments_free(&args);
    return code;
}
