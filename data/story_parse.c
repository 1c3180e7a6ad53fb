/* A backtracking matcher: where the generator draws, the parser tries every option. */
#include "data/story_parse.h"

#include <math.h>
#include <string.h>

typedef struct Search {
    const StoryGrammar *g;
    const char *text; /* [length] */
    int length;
    int bound[STORY_BINDINGS]; /* option of each class and tag, -1 while open */
    uint8_t choice[STORY_MAX_CHOICES];
    int options[STORY_MAX_CHOICES];
    int choices;
    StoryParse found;
} Search;

static int starts_with(const Search *s, int pos, StoryText t)
{
    return t.length <= s->length - pos && memcmp(s->text + pos, t.bytes, (size_t)t.length) == 0;
}

static void record(Search *s)
{
    if (++s->found.derivations > 1) return;
    s->found.choices = s->choices;
    memcpy(s->found.choice, s->choice, sizeof s->choice);
    for (int i = 0; i < s->choices; i++) s->found.bits += log2(s->options[i]);
}

static void search(Search *s, int at, int pos);

static void try_option(Search *s, int at, int pos, int option)
{
    const StoryOp *op = &s->g->ops[at];
    if (op->kind == STORY_CHOICE) {
        search(s, s->g->branches[op->first + option], pos);
        return;
    }
    const StoryText word = story_slot_text(s->g, op, option);
    if (starts_with(s, pos, word)) search(s, at + 1, pos + word.length);
}

static void search(Search *s, int at, int pos)
{
    for (; s->found.derivations < 2;) {
        const StoryOp *op = &s->g->ops[at];
        if (op->kind == STORY_END) {
            if (pos == s->length) record(s);
            return;
        }
        if (op->kind == STORY_JUMP) {
            at = op->first;
            continue;
        }
        if (op->kind == STORY_TEXT) {
            if (!starts_with(s, pos, op->text)) return;
            pos += op->text.length;
            at++;
            continue;
        }
        int *binding = op->binding < 0 ? NULL : &s->bound[op->binding];
        if (binding && *binding >= 0) {
            try_option(s, at, pos, *binding);
            return;
        }
        if (s->choices == STORY_MAX_CHOICES) return;
        s->options[s->choices++] = op->options;
        for (int option = 0; option < op->options; option++) {
            s->choice[s->choices - 1] = (uint8_t)option;
            if (binding) *binding = option;
            try_option(s, at, pos, option);
        }
        if (binding) *binding = -1;
        s->choices--;
        return;
    }
}

StoryParse story_parse(const StoryGrammar *g, const char *text, int length)
{
    Search s = {.g = g, .text = text, .length = length};
    for (int i = 0; i < STORY_BINDINGS; i++) s.bound[i] = -1;
    search(&s, 0, 0);
    return s.found;
}
