/* The grammar of the demo's stories, compiled into a small program that the generator runs forwards and the
 * parser runs backwards.
 *
 * A rule is literal text with three kinds of blanks:
 *   {rule}     the text of another rule.
 *   {class}    a word of a class (a name, an object, ...). The word is drawn when the first slot of its class
 *              is reached and repeated at every later one: so names and objects carry through a story.
 *   [a|b|c]    one of several texts. "[@x a|b|c]" remembers the choice as x: the first such blank of a story
 *              draws, the later ones follow (a cause and its effect; who has the object in the end).
 * Every draw is uniform, and is made only when its text is written: so the sum of log2(options) over the
 * draws is exactly the information of the text, provided that no text has two derivations (story_parse
 * proves it). */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum StoryClass {
    STORY_HERO, STORY_FRIEND, STORY_KIND, STORY_TITLE, STORY_SURNAME, STORY_ADJECTIVE, STORY_THING,
    STORY_PLACE, STORY_SPOT, STORY_JOB, STORY_FOOD, STORY_TREE, STORY_WEATHER,
    STORY_DAY, STORY_TRAIT, STORY_DOING,
    STORY_CLASSES
};

/* How a slot is written. The hero is the only class with pronouns. */
enum StoryForm { STORY_WORD, STORY_HE, STORY_HE_CAPITAL, STORY_HIM, STORY_HIS };

enum StoryOpKind { STORY_TEXT, STORY_CHOICE, STORY_JUMP, STORY_SLOT, STORY_END };

enum {
    STORY_TAGS = 26, /* a..z */
    STORY_BINDINGS = STORY_CLASSES + STORY_TAGS,
    STORY_MAX_BYTES = 1200, /* longest text; a test measures the true maximum */
    STORY_MAX_CHOICES = 96  /* most draws of one story */
};

typedef struct StoryText {
    const char *bytes; /* not owned, not terminated */
    int length;
} StoryText;

typedef struct StoryOp {
    enum StoryOpKind kind;
    StoryText text;      /* TEXT */
    int options;         /* CHOICE: number of branches; SLOT: number of words */
    int first;           /* CHOICE: index of its first entry in branches; JUMP: target op */
    int binding;         /* CHOICE: STORY_CLASSES + tag, or -1; SLOT: its class */
    enum StoryForm form; /* SLOT */
} StoryOp;

typedef struct StoryGrammar {
    StoryOp *ops;                    /* [op_count], owned; run from ops[0] to END */
    int *branches;                   /* [branch_count], owned: index of the first op of each branch */
    StoryText *words[STORY_CLASSES]; /* [word_count[c]], owned */
    int word_count[STORY_CLASSES];
    int op_count, branch_count;
} StoryGrammar;

/* Compiles the built-in rules. The caller frees. NULL only when memory is short. */
StoryGrammar *story_grammar_create(void);
void story_grammar_free(StoryGrammar *g);

/* The text of a slot for word `index` of its class. */
StoryText story_slot_text(const StoryGrammar *g, const StoryOp *op, int index);

/* Heroes are listed girls first: word `index` of STORY_HERO is a girl's name. */
int story_hero_is_girl(const StoryGrammar *g, int index);

/* The built-in text (data/story_plots.c). */
const char *story_class_name(enum StoryClass c);    /* as written in a slot */
const char *story_class_words(enum StoryClass c);   /* separated by spaces */
const char *story_rule(const char *name, size_t length);   /* NULL if there is none; "story" is the whole */
