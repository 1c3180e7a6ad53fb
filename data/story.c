#include "data/story.h"
#include "model/random.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* Uniform in [0, options); the bias of the multiplication, options / 2^32, is far below what could be
 * measured. */
static int draw(uint64_t *state, int options)
{
    *state += RANDOM_STEP;
    return (int)(((random_mix(*state) >> 32) * (uint64_t)options) >> 32);
}

static int draw_choice(Story *s, uint64_t *state, int options)
{
    assert(s->choices < STORY_MAX_CHOICES);
    const int option = draw(state, options);
    s->choice[s->choices++] = (uint8_t)option;
    s->bits += log2(options);
    return option;
}

static void append(Story *s, StoryText t)
{
    assert(s->length + t.length <= STORY_MAX_BYTES);
    memcpy(s->text + s->length, t.bytes, (size_t)t.length);
    s->length += t.length;
}

void story_generate(const StoryGrammar *g, uint64_t seed, int stream, uint64_t index, Story *out)
{
    int bound[STORY_BINDINGS];
    for (int i = 0; i < STORY_BINDINGS; i++) bound[i] = -1;
    uint64_t state = random_mix(random_mix(random_mix(seed) + (uint64_t)stream + 1) + index + 1);
    out->length = out->choices = 0;
    out->bits = 0;
    for (int at = 0; g->ops[at].kind != STORY_END;) {
        const StoryOp *op = &g->ops[at];
        int option = 0;
        if (op->kind == STORY_CHOICE || op->kind == STORY_SLOT) {
            int *binding = op->binding < 0 ? NULL : &bound[op->binding];
            option = binding && *binding >= 0 ? *binding : draw_choice(out, &state, op->options);
            if (binding) *binding = option;
        }
        switch (op->kind) {
        case STORY_TEXT: append(out, op->text), at++; break;
        case STORY_SLOT: append(out, story_slot_text(g, op, option)), at++; break;
        case STORY_CHOICE: at = g->branches[op->first + option]; break;
        case STORY_JUMP: at = op->first; break;
        case STORY_END: break;
        }
    }
}
