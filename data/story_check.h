/* Tells a story that holds together from one that does not, by rules on the text alone.
 * Unlike the parser it accepts sentences that the grammar would not write, and unlike a likelihood it says
 * why. */
#pragma once
#include "data/story_grammar.h"

/* One bit each. */
enum StoryFault {
    STORY_UNENDED = 1 << 0,     /* does not stop right after the sentence that says who has the object now */
    STORY_UNKNOWN = 1 << 1,     /* a word or a sign outside the vocabulary */
    STORY_PEOPLE = 1 << 2,      /* the first two sentences do not introduce a child and a friend */
    STORY_HERO_LOST = 1 << 3,   /* the child's name changes, or does not come back to the end */
    STORY_OBJECT_LOST = 1 << 4, /* the object or its adjective changes, or does not come back to the end */
    STORY_FRIEND_LOST = 1 << 5, /* the friend's name or kind changes, or does not come back */
    STORY_ELDER_LOST = 1 << 6,  /* no elder, or title or surname change */
    STORY_PLACE_LOST = 1 << 7,  /* another place, or not back there at the end */
    STORY_OTHER_JOB = 1 << 8,   /* a passer-by changes trade */
    STORY_OWNER = 1 << 9,       /* the object ends with somebody else than it was last handed to */
    STORY_PRONOUN = 1 << 10,    /* he and she do not agree with the child's name */
    STORY_CAUSE = 1 << 11,      /* an effect without its cause, or a cause without its effect */
    STORY_REPEAT = 1 << 12      /* a sentence twice */
};
enum {
    STORY_FAULTS = 13,
    /* What "carries name and object through" means: finished, in known words, two people, the same child and
     * the same object (with its adjective) from their introduction to the last sentence. */
    STORY_CARRY_FAULTS = STORY_UNENDED | STORY_UNKNOWN | STORY_PEOPLE | STORY_HERO_LOST | STORY_OBJECT_LOST
};

typedef struct StoryChecker StoryChecker;

/* Collects the vocabulary. The grammar must outlive the checker. NULL when memory is short. */
StoryChecker *story_checker_create(const StoryGrammar *g);
void story_checker_free(StoryChecker *c);

/* Faults of text[length]; 0 when it holds together. */
unsigned story_check(const StoryChecker *c, const char *text, int64_t length);

/* In words, for `bit` 0..STORY_FAULTS-1. */
const char *story_fault_text(int bit);
