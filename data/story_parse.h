/* Recovers the draws of a story from its text alone. */
#pragma once
#include "data/story_grammar.h"

typedef struct StoryParse {
    int derivations; /* 0: not a story of this grammar; 1: exactly one; 2: two or more (the search stops) */
    uint8_t choice[STORY_MAX_CHOICES]; /* [choices], of the first derivation */
    int choices;
    double bits; /* sum of log2(options) over these choices */
} StoryParse;

/* Explores every derivation of text[length]. With exactly one, -log2 p(text) is `bits`. */
StoryParse story_parse(const StoryGrammar *g, const char *text, int length);
