/* ./train tokenize: text to token shards with a held-out split by documents. */
#pragma once

/* argv[0] is "tokenize". Returns the exit code: 0 done, 1 run-time failure, 2 usage or input. */
int tokenize_command(int argc, char **argv);
