/* Generates the demo's stories: children's tales from a grammar, each a pure function of (seed, stream,
 * index). So a corpus of any size costs nothing to keep, parts of it can be made in any order, and two
 * streams (training, held out) never share draws. */
#pragma once
#include "data/story_grammar.h"

enum { STORY_STREAM_TRAIN, STORY_STREAM_HELD_OUT };

typedef struct Story {
    char text[STORY_MAX_BYTES]; /* [length], one paragraph without a line break, not terminated */
    int length;
    uint8_t
        choice[STORY_MAX_CHOICES]; /* [choices]: the option taken at each draw, in the order of the text */
    int choices;
    double bits; /* sum of log2(options) over the draws: the information of the text */
} Story;

/* Two different indices give the same text with probability 2^-bits (about 2^-100), so a corpus is free of
 * repeats in practice; `story check --against` verifies it. */
void story_generate(const StoryGrammar *g, uint64_t seed, int stream, uint64_t index, Story *out);
