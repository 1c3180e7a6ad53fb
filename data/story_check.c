#include "data/story_check.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum {
    LITERAL = STORY_CLASSES, /* a word of the templates or a pronoun */
    UNKNOWN,
    MAX_WORDS = 400,  /* a longer text cannot be a story: the longest has about 140 words */
    TABLE_SIZE = 8192 /* power of two, several times the number of entries */
};

typedef struct Entry {
    StoryText word; /* empty slot: length 0 */
    int class_index, index;
} Entry;

struct StoryChecker {
    const StoryGrammar *g;
    Entry table[TABLE_SIZE]; /* open addressing */
};

typedef struct Word {
    StoryText text;
    int class_index, index, sentence;
} Word;

/* A text cut into words and sentences. */
typedef struct Reading {
    char copy[STORY_MAX_BYTES + 1];
    Word words[MAX_WORDS]; /* [count] */
    int count, sentences;
    int sentence_start[MAX_WORDS + 1]; /* [sentences + 1]: first word of each */
} Reading;

/* Where one class appears in a reading. */
typedef struct Trail {
    int count, first, last; /* words; first and last are indices of words, -1 if none */
    int same;               /* all are the same word of the class */
} Trail;

static Entry *find(const StoryChecker *c, StoryText word)
{
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (int i = 0; i < word.length; i++) hash = (hash ^ (uint8_t)word.bytes[i]) * 16777619u;
    for (uint32_t i = hash & (TABLE_SIZE - 1);; i = (i + 1) & (TABLE_SIZE - 1)) {
        const Entry *e = &c->table[i];
        if (e->word.length == 0) return (Entry *)e;
        if (e->word.length == word.length && memcmp(e->word.bytes, word.bytes, (size_t)word.length) == 0)
            return (Entry *)e;
    }
}

/* Takes the next run of letters off *at; length 0 at the end. */
static StoryText next_word(const char **at, const char *end)
{
    while (*at < end && !isalpha((unsigned char)**at)) ++*at;
    StoryText word = {*at, 0};
    while (*at < end && isalpha((unsigned char)**at)) ++*at;
    word.length = (int)(*at - word.bytes);
    return word;
}

static void add_words(StoryChecker *c, const char *text, int length, int class_index)
{
    const char *at = text, *end = text + length;
    int index = 0;
    for (StoryText w = next_word(&at, end); w.length; w = next_word(&at, end), index++) {
        Entry *e = find(c, w);
        if (e->word.length == 0) *e = (Entry){w, class_index, index};
    }
}

StoryChecker *story_checker_create(const StoryGrammar *g)
{
    StoryChecker *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->g = g;
    for (int k = 0; k < STORY_CLASSES; k++) {
        const char *words = story_class_words(k);
        add_words(c, words, (int)strlen(words), k);
    }
    for (int i = 0; i < g->op_count; i++) {
        const StoryOp *op = &g->ops[i];
        if (op->kind == STORY_TEXT) add_words(c, op->text.bytes, op->text.length, LITERAL);
    }
    static const char pronouns[] = "he He him his she She her";
    add_words(c, pronouns, sizeof pronouns - 1, LITERAL);
    return c;
}

void story_checker_free(StoryChecker *c) { free(c); }

/* 0 when the text is too long to be a story. */
static int read_words(const StoryChecker *c, const char *text, int64_t length, Reading *r)
{
    if (length > STORY_MAX_BYTES) return 0;
    memcpy(r->copy, text, (size_t)length);
    r->copy[length] = 0;
    const char *at = r->copy, *end = r->copy + length;
    r->count = r->sentences = 0;
    r->sentence_start[0] = 0;
    for (;;) {
        const char *gap = at;
        const StoryText w = next_word(&at, end);
        const char *stop = gap;
        while (stop < w.bytes && !strchr(".!?", *stop)) stop++;
        if (stop < w.bytes && r->count > r->sentence_start[r->sentences])
            r->sentence_start[++r->sentences] = r->count;
        if (w.length == 0) break;
        if (r->count == MAX_WORDS) return 0;
        const Entry *e = find(c, w);
        r->words[r->count++] = (Word){w, e->word.length ? e->class_index : UNKNOWN, e->index, r->sentences};
    }
    if (r->sentence_start[r->sentences] < r->count) r->sentence_start[++r->sentences] = r->count;
    return 1;
}

static Trail follow(const Reading *r, int class_index)
{
    Trail t = {0, -1, -1, 1};
    for (int i = 0; i < r->count; i++) {
        if (r->words[i].class_index != class_index) continue;
        if (t.first < 0) t.first = i;
        t.last = i;
        t.count++;
        if (r->words[i].index != r->words[t.first].index) t.same = 0;
    }
    return t;
}

static int is(const Reading *r, int i, const char *word)
{
    return i >= 0 && i < r->count && (size_t)r->words[i].text.length == strlen(word) &&
           memcmp(r->words[i].text.bytes, word, strlen(word)) == 0;
}

/* A word or a sign that no story has. */
static int has_unknown(const Reading *r, int64_t length)
{
    for (int i = 0; i < r->count; i++) {
        if (r->words[i].class_index == UNKNOWN) return 1;
    }
    for (int64_t i = 0; i < length; i++) {
        if (!isalpha((unsigned char)r->copy[i]) && !memchr(" .,!\"", r->copy[i], 5)) return 1;
    }
    return 0;
}

/* The same word throughout, at least `least` times, the last time among the last `tail` sentences. */
static int carried(const Reading *r, Trail t, int least, int tail)
{
    return t.same && t.count >= least && r->words[t.last].sentence >= r->sentences - tail;
}

/* Every word of class b directly follows one of class a, and there are as many. */
static int paired(const Reading *r, int a, int b)
{
    int count_a = 0, count_b = 0;
    for (int i = 0; i < r->count; i++) {
        count_a += r->words[i].class_index == a;
        if (r->words[i].class_index != b) continue;
        count_b++;
        if (i == 0 || r->words[i - 1].class_index != a) return 0;
    }
    return count_a == count_b;
}

static int is_person(const Word *w)
{
    return w->class_index == STORY_HERO || w->class_index == STORY_FRIEND || w->class_index == STORY_TITLE;
}

/* Class of the person who last got the object ("gave the red kite to Tom", "let Tom keep the red kite"),
 * looking at the sentences before `sentence`; -1 if nobody did. */
static int last_receiver(const Reading *r, int sentence)
{
    int receiver = -1;
    for (int i = 0; i < r->count && r->words[i].sentence < sentence; i++) {
        if (r->words[i].class_index == STORY_THING) {
            const int to = i + 1 + is(r, i + 1, "back");
            if (is(r, to, "to") && to + 1 < r->count && is_person(&r->words[to + 1]))
                receiver = r->words[to + 1].class_index;
        }
        if (is(r, i, "let") && is(r, i + 2, "keep") && is_person(&r->words[i + 1]))
            receiver = r->words[i + 1].class_index;
    }
    return receiver;
}

/* Class of the first person named after the object in a sentence; -1 if none. */
static int owner_in(const Reading *r, int sentence)
{
    int object_seen = 0;
    for (int i = r->sentence_start[sentence]; i < r->sentence_start[sentence + 1]; i++) {
        if (r->words[i].class_index == STORY_THING) object_seen = 1;
        if (object_seen && is_person(&r->words[i])) return r->words[i].class_index;
    }
    return -1;
}

static int wrong_pronoun(const StoryChecker *c, const Reading *r, Trail hero)
{
    static const char *const male[] = {"he", "He", "him", "his"}, *const female[] = {"she", "She", "her"};
    if (hero.count == 0) return 0;
    const int girl = story_hero_is_girl(c->g, r->words[hero.first].index);
    for (int i = 0; i < r->count; i++) {
        for (int k = 0; girl && k < 4; k++) {
            if (is(r, i, male[k])) return 1;
        }
        for (int k = 0; !girl && k < 3; k++) {
            if (is(r, i, female[k])) return 1;
        }
    }
    return 0;
}

/* Each pair comes together, the cause first. */
static int broken_cause(const Reading *r)
{
    static const char *const pairs[][2] = {
        {"a gust of wind", "dangling"},
        {"magpie", "in a nest"},
        {"hound", "kennel"},
        {"brook", "rushes"},
        {"flour", "baked"},
        {" ink ", "letters"},
        {" hay ", "horses"},
        {" salt ", "sailed"},
        {"puddle", "rinsed"},
        {" tub ", "scrubbed"},
        {" heap ", "brushed"},
        {" bowl ", "licked"},
        {" pit ", "rope"},
        {"thin ice", "plank"},
        {"thorns", "scissors"},
        {" roof ", "ladder"},
        {"running contest", "ran like"},
        {"swimming contest", "swam like"},
        {"rowing contest", "rowed like"},
        {"skating contest", "skated like"},
        {"ran like", "ankle"},
        {"swam like", "swallowed"},
        {"rowed like", "an oar"},
        {"skated like", "blade"},
        {"windows", "fetched"},
        {"shovelled", "scattered"},
        {"chopped", "stacked"},
        {"raked", "filled"},
        {"of fireflies", "flown"},
        {"block of ice", "melted"},
        {"goldfish", "dried"},
        {"paper dragon", "burned"},
        {"rattled", "shutter"},
        {"howled", "pipe"},
        {"tapped", "twig"},
        {"thumped", "pumpkin"},
        {" present from ", "let go of a gift"},
        {"There was ", "returned whatever"},
        {"both wanted", "to share"},
        {"had borrowed", "good neighbours"},
        {" had promised a ", "for medals"},
        {"pennies", "afraid of work"},
        {" a swap for ", "rash bargains"},
        {" for courage", "slept soundly"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const char *cause = strstr(r->copy, pairs[i][0]), *effect = strstr(r->copy, pairs[i][1]);
        if (!cause != !effect || effect < cause) return 1;
    }
    return 0;
}

static int repeats_sentence(const Reading *r)
{
    for (int a = 0; a < r->sentences; a++) {
        const int length = r->sentence_start[a + 1] - r->sentence_start[a];
        for (int b = a + 1; b < r->sentences; b++) {
            if (r->sentence_start[b + 1] - r->sentence_start[b] != length) continue;
            int k = 0;
            while (k < length) {
                const StoryText x = r->words[r->sentence_start[a] + k].text,
                                y = r->words[r->sentence_start[b] + k].text;
                if (x.length != y.length || memcmp(x.bytes, y.bytes, (size_t)x.length) != 0) break;
                k++;
            }
            if (k == length) return 1;
        }
    }
    return 0;
}

static int introduces_two(const Reading *r, Trail hero, Trail friend_)
{
    return hero.count && friend_.count && r->words[hero.first].sentence < 2 &&
           r->words[friend_.first].sentence < 2 && is(r, hero.first - 1, "named") &&
           is(r, friend_.first - 1, "called");
}

unsigned story_check(const StoryChecker *c, const char *text, int64_t length)
{
    Reading r;
    if (length <= 0 || !read_words(c, text, length, &r) || r.sentences < 3)
        return STORY_UNENDED | STORY_CARRY_FAULTS;
    unsigned faults = 0;
    const int last = r.sentences - 1;
    const Trail hero = follow(&r, STORY_HERO), friend_ = follow(&r, STORY_FRIEND),
                kind = follow(&r, STORY_KIND);
    const Trail title = follow(&r, STORY_TITLE), surname = follow(&r, STORY_SURNAME);
    const Trail adjective = follow(&r, STORY_ADJECTIVE), thing = follow(&r, STORY_THING);
    const Trail place = follow(&r, STORY_PLACE), job = follow(&r, STORY_JOB);

    const int owner = owner_in(&r, last);
    if (text[length - 1] != '.' || owner < 0) faults |= STORY_UNENDED;
    if (has_unknown(&r, length)) faults |= STORY_UNKNOWN;
    if (!introduces_two(&r, hero, friend_)) faults |= STORY_PEOPLE;
    if (!carried(&r, hero, 4, 1)) faults |= STORY_HERO_LOST;
    if (!carried(&r, thing, 4, 1) || !adjective.same || !paired(&r, STORY_ADJECTIVE, STORY_THING) ||
        !is(&r, adjective.first - 1, "a"))
        faults |= STORY_OBJECT_LOST;
    if (!carried(&r, friend_, 3, 2) || !kind.count || !kind.same) faults |= STORY_FRIEND_LOST;
    if (!title.count || !title.same || !surname.same || !paired(&r, STORY_TITLE, STORY_SURNAME))
        faults |= STORY_ELDER_LOST;
    if (!carried(&r, place, 2, 2)) faults |= STORY_PLACE_LOST;
    if (!job.same) faults |= STORY_OTHER_JOB;
    if (owner < 0 || owner != last_receiver(&r, last)) faults |= STORY_OWNER;
    if (wrong_pronoun(c, &r, hero)) faults |= STORY_PRONOUN;
    if (broken_cause(&r)) faults |= STORY_CAUSE;
    if (repeats_sentence(&r)) faults |= STORY_REPEAT;
    return faults;
}

const char *story_fault_text(int bit)
{
    static const char *const texts[STORY_FAULTS] = {
        "does not end after the sentence on who has the object",
        "has unknown words or signs",
        "does not introduce two people",
        "loses the child's name",
        "loses the object or its adjective",
        "loses the friend",
        "has no elder, or another name for him or her",
        "loses the place",
        "changes a passer-by's trade",
        "gives the object to one and lets another have it",
        "mixes up he and she",
        "breaks cause and effect",
        "says a sentence twice",
    };
    return texts[bit];
}
