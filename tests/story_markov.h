/* A byte Markov chain of order 24 over a text: what can be had without understanding. The story checker is
 * calibrated against it: it writes every sentence well and loses who and what the story is about. */
#pragma once
#include <stdint.h>

enum { MARKOV_ORDER = 24 };

typedef struct Markov Markov;

/* Learns text[length], documents separated by blank lines. `text` must outlive the chain. NULL if memory is
 * short. */
Markov *markov_create(const char *text, int64_t length);
void markov_free(Markov *m);

/* Writes one document into out[capacity] (not terminated) and returns its length. The first MARKOV_ORDER
 * bytes are those of a random document; every further byte follows a random occurrence of the MARKOV_ORDER
 * bytes before it. */
int markov_write(const Markov *m, uint64_t *state, char *out, int capacity);
