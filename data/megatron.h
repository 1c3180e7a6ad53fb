/* Megatron-LM's indexed data sets: X.bin holds the ids, X.idx their width and where documents begin. */
#pragma once
#include "data/shards.h"

/* Whether path is X.idx with Megatron's mark at its start. */
bool megatron_is_index(const char *path);
/* Whether path is X.bin and Megatron's index lies beside it. */
bool megatron_has_index(const char *path);

/* Fills width, count and documents of a shard whose .bin is mapped. False with an error added when the index
 * is damaged, does not fit the .bin, or its ids are floats or signed 8 or 16 bit. */
bool megatron_read_index(Shard *shard, Errors *errors);
