/* The sub-commands of ./train. Each takes its own name as argv[0] and returns the exit code: 0 done, 1
 * failure at run time, 2 usage or input. */
#pragma once

int sample_command(int argc, char **argv);
int logits_command(int argc, char **argv);
int bench_command(int argc, char **argv);
int report_command(int argc, char **argv);
int import_command(int argc, char **argv);
int export_command(int argc, char **argv);
int tokenize_command(int argc, char **argv);
int story_command(int argc, char **argv);
