/* Compiles the rules of story_plots.c: one pass counts ops and branches, a second one writes them. */
#include "data/story_grammar.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef struct Compiler {
    StoryGrammar *g;
    const char *at; /* next unread byte of the rule */
    int writing;    /* 0: count only, g->ops and g->branches are NULL */
} Compiler;

static int add_op(Compiler *c, StoryOp op)
{
    if (c->writing) c->g->ops[c->g->op_count] = op;
    return c->g->op_count++;
}

static void compile_sequence(Compiler *c);

/* {name}: another rule, a class's word, or the hero's pronoun. */
static void compile_slot(Compiler *c)
{
    static const struct {
        const char *name;
        enum StoryForm form;
    } pronouns[] = {{"he", STORY_HE}, {"He", STORY_HE_CAPITAL}, {"him", STORY_HIM}, {"his", STORY_HIS}};
    const char *name = ++c->at, *end = strchr(name, '}');
    assert(end);
    const size_t length = (size_t)(end - name);
    const char *rule = story_rule(name, length);
    if (rule) {
        c->at = rule;
        compile_sequence(c);
        assert(!*c->at);
        c->at = end + 1;
        return;
    }
    StoryOp op = {.kind = STORY_SLOT, .binding = -1, .form = STORY_WORD};
    for (int i = 0; i < STORY_CLASSES; i++) {
        const char *class_name = story_class_name(i);
        if (strlen(class_name) == length && memcmp(class_name, name, length) == 0) op.binding = i;
    }
    for (size_t i = 0; i < sizeof pronouns / sizeof *pronouns; i++) {
        if (strlen(pronouns[i].name) == length && memcmp(pronouns[i].name, name, length) == 0) {
            op.binding = STORY_HERO;
            op.form = pronouns[i].form;
        }
    }
    assert(op.binding >= 0);
    op.options = c->g->word_count[op.binding];
    add_op(c, op);
    c->at = end + 1;
}

/* Number of options of the blank that starts at `at` (a '['). */
static int count_options(const char *at)
{
    int depth = 0, options = 1;
    do {
        assert(*at);
        depth += (*at == '[') - (*at == ']');
        options += *at == '|' && depth == 1;
        at++;
    } while (depth > 0);
    return options;
}

/* [a|b]: CHOICE, then each branch followed by a JUMP behind the last. */
static void compile_choice(Compiler *c)
{
    StoryGrammar *g = c->g;
    StoryOp op = {
        .kind = STORY_CHOICE, .options = count_options(c->at), .first = g->branch_count, .binding = -1};
    assert(op.options <= 255);
    c->at++;
    if (*c->at == '@') {
        assert(c->at[1] >= 'a' && c->at[1] <= 'z' && c->at[2] == ' ');
        op.binding = STORY_CLASSES + c->at[1] - 'a';
        c->at += 3;
    }
    g->branch_count += op.options;
    add_op(c, op);
    int *jumps = c->writing ? malloc(sizeof *jumps * (size_t)op.options) : NULL;
    for (int i = 0; i < op.options; i++) {
        if (c->writing) g->branches[op.first + i] = g->op_count;
        compile_sequence(c);
        const int jump = add_op(c, (StoryOp){.kind = STORY_JUMP});
        if (jumps) jumps[i] = jump;
        c->at++; /* past '|' or ']' */
    }
    for (int i = 0; jumps && i < op.options; i++) g->ops[jumps[i]].first = g->op_count;
    free(jumps);
}

/* Until '|', ']' or the end, which stays unread. */
static void compile_sequence(Compiler *c)
{
    while (*c->at && *c->at != '|' && *c->at != ']') {
        if (*c->at == '[') {
            compile_choice(c);
        } else if (*c->at == '{') {
            compile_slot(c);
        } else {
            const int length = (int)strcspn(c->at, "[]{|");
            add_op(c, (StoryOp){.kind = STORY_TEXT, .text = {c->at, length}});
            c->at += length;
        }
    }
}

static int split_words(StoryGrammar *g, int class_index)
{
    const char *text = story_class_words(class_index);
    int count = 1;
    for (const char *p = text; *p; p++) count += *p == ' ';
    StoryText *words = calloc((size_t)count, sizeof *words);
    if (!words) return 0;
    for (int i = 0; i < count; i++) {
        const int length = (int)strcspn(text, " ");
        words[i] = (StoryText){text, length};
        text += length + 1;
    }
    g->words[class_index] = words;
    g->word_count[class_index] = count;
    return 1;
}

StoryGrammar *story_grammar_create(void)
{
    StoryGrammar *g = calloc(1, sizeof *g);
    if (!g) return NULL;
    for (int i = 0; i < STORY_CLASSES; i++) {
        if (!split_words(g, i)) goto fail;
    }
    for (int writing = 0; writing < 2; writing++) {
        if (writing) {
            g->ops = calloc((size_t)g->op_count, sizeof *g->ops);
            g->branches = calloc((size_t)g->branch_count, sizeof *g->branches);
            if (!g->ops || !g->branches) goto fail;
        }
        g->op_count = g->branch_count = 0;
        Compiler c = {.g = g, .at = story_rule("story", 5), .writing = writing};
        compile_sequence(&c);
        assert(!*c.at);
        add_op(&c, (StoryOp){.kind = STORY_END});
    }
    return g;
fail:
    story_grammar_free(g);
    return NULL;
}

void story_grammar_free(StoryGrammar *g)
{
    if (!g) return;
    for (int i = 0; i < STORY_CLASSES; i++) free(g->words[i]);
    free(g->ops);
    free(g->branches);
    free(g);
}

int story_hero_is_girl(const StoryGrammar *g, int index) { return index < g->word_count[STORY_HERO] / 2; }

StoryText story_slot_text(const StoryGrammar *g, const StoryOp *op, int index)
{
    static const StoryText pronouns[2][4] = {
        {{"he", 2}, {"He", 2}, {"him", 3}, {"his", 3}},
        {{"she", 3}, {"She", 3}, {"her", 3}, {"her", 3}},
    };
    if (op->form == STORY_WORD) return g->words[op->binding][index];
    return pronouns[story_hero_is_girl(g, index)][op->form - STORY_HE];
}
