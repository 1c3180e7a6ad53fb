/* The sub-commands of ./train. Each takes its own name as argv[0] and returns the exit code. */
#pragma once

int train_command(int argc, char **argv);
int sample_command(int argc, char **argv);
int logits_command(int argc, char **argv);
int bench_command(int argc, char **argv);
int import_command(int argc, char **argv);
int export_command(int argc, char **argv);
