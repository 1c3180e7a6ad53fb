/* The demo's corpus: its entropy (against the parser), its variety, and the checker on good and on broken
 * stories. */
#include "data/story.h"
#include "data/story_check.h"
#include "data/story_parse.h"
#include "tests/story_markov.h"

#include <ctype.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

typedef struct Fixture {
    StoryGrammar *grammar;
    StoryChecker *checker;
} Fixture;

static int set_up(void **state)
{
    static Fixture f;
    f.grammar = story_grammar_create();
    f.checker = story_checker_create(f.grammar);
    *state = &f;
    return f.grammar && f.checker ? 0 : -1;
}

static int tear_down(void **state)
{
    Fixture *f = *state;
    story_checker_free(f->checker);
    story_grammar_free(f->grammar);
    return 0;
}

/* `count` stories of a stream with a blank line after each: the owned text and its length. */
static char *corpus(const Fixture *f, int stream, int count, int64_t *length)
{
    char *text = malloc((size_t)count * (STORY_MAX_BYTES + 2));
    assert_non_null(text);
    Story s;
    *length = 0;
    for (int i = 0; i < count; i++) {
        story_generate(f->grammar, 1, stream, (uint64_t)i, &s);
        memcpy(text + *length, s.text, (size_t)s.length);
        memcpy(text + *length + s.length, "\n\n", 2);
        *length += s.length + 2;
    }
    return text;
}

static void parser_recovers_every_choice(void **state)
{
    const Fixture *f = *state;
    double generated = 0, recovered = 0, bytes = 0;
    for (int i = 0; i < 1000; i++) {
        Story s;
        story_generate(f->grammar, 7, i % 2, (uint64_t)i, &s);
        const StoryParse p = story_parse(f->grammar, s.text, s.length);
        assert_int_equal(p.derivations, 1);
        assert_int_equal(p.choices, s.choices);
        assert_memory_equal(p.choice, s.choice, (size_t)s.choices);
        assert_true(fabs(p.bits - s.bits) < 1e-9);
        assert_true(s.bits >= 80);
        generated += s.bits;
        recovered += p.bits;
        bytes += s.length;
    }
    assert_true(fabs(generated - recovered) < 1e-6);
    assert_true(recovered / bytes >= 0.14);
    print_message("entropy %.4f bits/byte, %.1f bits a story\n", recovered / bytes, recovered / 1000);
}

/* The uniform draws that the entropy assumes: frequencies of the heroes and of the plots within five sigma.
 */
static void draws_are_uniform(void **state)
{
    const Fixture *f = *state;
    enum { STORIES = 20000 };
    int heroes[64] = {0}, first[8] = {0};
    for (int i = 0; i < STORIES; i++) {
        Story s;
        story_generate(f->grammar, 3, 0, (uint64_t)i, &s);
        s.text[s.length - 1] = 0;
        const char *name = strstr(s.text, " named ");
        assert_non_null(name);
        for (int k = 0; k < f->grammar->word_count[STORY_HERO]; k++) {
            const StoryText w = f->grammar->words[STORY_HERO][k];
            heroes[k] += strncmp(name + 7, w.bytes, (size_t)w.length) == 0 && name[7 + w.length] == ' ';
        }
        first[s.choice[0]]++;
    }
    const int options[2] = {f->grammar->word_count[STORY_HERO], f->grammar->ops[0].options};
    for (int k = 0; k < 2; k++) {
        const double p = 1.0 / options[k];
        for (int i = 0; i < options[k]; i++)
            assert_true(fabs((k ? first : heroes)[i] - STORIES * p) < 5 * sqrt(STORIES * p * (1 - p)));
    }
}

static void parser_refuses_what_the_grammar_cannot_write(void **state)
{
    const Fixture *f = *state;
    for (int i = 0; i < 200; i++) {
        Story s;
        story_generate(f->grammar, 2, 0, (uint64_t)i, &s);
        assert_int_equal(story_parse(f->grammar, s.text, s.length - 1).derivations, 0);
        s.text[i * 2] ^= 1;
        assert_int_equal(story_parse(f->grammar, s.text, s.length).derivations, 0);
    }
    assert_int_equal(story_parse(f->grammar, "", 0).derivations, 0);
}

/* Longest way through the program, ignoring that tags tie choices together: no story can be longer. */
static void bounds_hold_for_every_story(void **state)
{
    const StoryGrammar *g = ((const Fixture *)*state)->grammar;
    int *bytes = calloc((size_t)g->op_count, sizeof *bytes),
        *choices = calloc((size_t)g->op_count, sizeof *choices);
    for (int at = g->op_count - 2; at >= 0; at--) { /* every jump goes forward */
        const StoryOp *op = &g->ops[at];
        int longest = 0;
        if (op->kind == STORY_CHOICE) {
            for (int i = 0; i < op->options; i++) {
                const int to = g->branches[op->first + i];
                if (bytes[to] > bytes[at]) bytes[at] = bytes[to];
                if (choices[to] + 1 > choices[at]) choices[at] = choices[to] + 1;
            }
            continue;
        }
        for (int i = 0; op->kind == STORY_SLOT && i < op->options; i++) {
            const int length = story_slot_text(g, op, i).length;
            if (length > longest) longest = length;
        }
        const int next = op->kind == STORY_JUMP ? op->first : at + 1;
        bytes[at] = bytes[next] + (op->kind == STORY_TEXT ? op->text.length : longest);
        choices[at] = choices[next] + (op->kind == STORY_SLOT);
    }
    print_message("at most %d bytes and %d draws\n", bytes[0], choices[0]);
    assert_true(bytes[0] <= STORY_MAX_BYTES);
    assert_true(choices[0] <= STORY_MAX_CHOICES);
    free(bytes);
    free(choices);
}

static void same_seed_same_story(void **state)
{
    const Fixture *f = *state;
    Story a, b;
    story_generate(f->grammar, 5, 0, 1234567890123u, &a);
    story_generate(f->grammar, 5, 0, 17, &b);
    story_generate(f->grammar, 5, 0, 1234567890123u, &b);
    assert_int_equal(a.length, b.length);
    assert_memory_equal(a.text, b.text, (size_t)a.length);
    static const int other[3][2] = {{6, 0}, {5, 1}, {5, 0}};
    for (int i = 0; i < 3; i++) {
        story_generate(f->grammar, (uint64_t)other[i][0], other[i][1], 1234567890123u + (i == 2), &b);
        assert_false(a.length == b.length && memcmp(a.text, b.text, (size_t)a.length) == 0);
    }
}

/* The corpus of the demo must not change unnoticed: its figures are quoted. */
static void first_story_is_known(void **state)
{
    const Fixture *f = *state;
    static const char expected[] =
        "In a hut by the stable lived a patient child named Ivy and a kitten called Pebble. One chilly "
        "Saturday, they were drawing outside. Behind the bench, Ivy noticed a tiny teapot. \"Its owner may "
        "be sad,\" remarked Pebble. There was hay on it, and only Grandpa Reed kept horses in that valley. "
        "Ivy carried the tiny teapot along the railway. Grandpa Reed gasped, for it had been missing since "
        "Easter. Ivy merrily gave the tiny teapot back to Grandpa Reed. Later, Ivy and Pebble enjoyed "
        "crackers behind the stable. From then on, the tiny teapot was safe with Grandpa Reed, and Ivy "
        "returned whatever she found.";
    Story s;
    story_generate(f->grammar, 1, STORY_STREAM_TRAIN, 0, &s);
    assert_int_equal(s.length, (int)strlen(expected));
    assert_memory_equal(s.text, expected, strlen(expected));
}

typedef struct Fingerprint {
    uint64_t high, low;
} Fingerprint;

static int compare_fingerprints(const void *a, const void *b) { return memcmp(a, b, sizeof(Fingerprint)); }

static void no_story_twice_nor_in_both_streams(void **state)
{
    const Fixture *f = *state;
    enum { TRAIN = 60000, HELD_OUT = 20000, ALL = TRAIN + HELD_OUT };
    Fingerprint *prints = calloc(ALL, sizeof *prints);
    assert_non_null(prints);
    Story s;
    for (int i = 0; i < ALL; i++) {
        const int held_out = i >= TRAIN;
        story_generate(f->grammar, 1, held_out, (uint64_t)(held_out ? i - TRAIN : i), &s);
        for (int k = 0; k < s.length; k++) {
            assert_true(s.text[k] != '\n');
            prints[i].high = prints[i].high * 6364136223846793005u + (uint8_t)s.text[k] + 1;
            prints[i].low = (prints[i].low ^ (uint8_t)s.text[k]) * 1099511628211u;
        }
    }
    qsort(prints, ALL, sizeof *prints, compare_fingerprints);
    for (int i = 1; i < ALL; i++) assert_true(compare_fingerprints(&prints[i], &prints[i - 1]) != 0);
    free(prints);
}

/* Counts case-folded runs of letters, without any of the checker's tables. */
static void uses_many_words(void **state)
{
    const Fixture *f = *state;
    int64_t length;
    char *text = corpus(f, 0, 8000, &length);
    static char seen[4096][24];
    int types = 0;
    for (int64_t at = 0; at < length;) {
        char word[24] = {0};
        int n = 0;
        while (at < length && !isalpha((unsigned char)text[at])) at++;
        while (at < length && isalpha((unsigned char)text[at]))
            word[n++] = (char)tolower((unsigned char)text[at++]);
        unsigned slot = 0;
        for (int i = 0; i < n; i++) slot = slot * 131 + (unsigned char)word[i];
        slot &= 4095;
        while (n && seen[slot][0] && strcmp(seen[slot], word) != 0) slot = (slot + 1) & 4095;
        if (!n || seen[slot][0]) continue;
        strcpy(seen[slot], word);
        types++;
    }
    print_message("%d word types\n", types);
    assert_true(types >= 800);
    free(text);
}

/* The checker needs to tell from a word which role it plays. */
static void classes_share_no_word(void **state)
{
    const StoryGrammar *g = ((const Fixture *)*state)->grammar;
    for (int a = 0; a < STORY_CLASSES; a++) {
        for (int i = 0; i < g->word_count[a]; i++) {
            const StoryText w = g->words[a][i];
            for (int b = 0; b < STORY_CLASSES; b++) {
                for (int k = 0; k < g->word_count[b]; k++) {
                    const StoryText other = g->words[b][k];
                    if (a == b && i == k) continue;
                    assert_false(w.length == other.length &&
                                 memcmp(w.bytes, other.bytes, (size_t)w.length) == 0);
                }
            }
            for (int k = 0; k < g->op_count; k++) {
                const StoryText t = g->ops[k].text;
                for (int at = 0; g->ops[k].kind == STORY_TEXT && at + w.length <= t.length; at++) {
                    const int inside =
                        (at > 0 && isalpha((unsigned char)t.bytes[at - 1])) ||
                        (at + w.length < t.length && isalpha((unsigned char)t.bytes[at + w.length]));
                    if (!inside && memcmp(t.bytes + at, w.bytes, (size_t)w.length) == 0)
                        fail_msg("\"%.*s\" is also in a template", w.length, w.bytes);
                }
            }
        }
    }
}

static void resists_xz(void **state)
{
    const Fixture *f = *state;
    const int have_xz = system("xz --version >/dev/null 2>&1") == 0;
    if (!have_xz && system("python3 -c 'import lzma' >/dev/null 2>&1") != 0) skip();
    char dir[] = "/tmp/test_story_XXXXXX", path[64], command[512];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/corpus", dir);
    int64_t length;
    char *text = corpus(f, 0, 8000, &length);
    FILE *file = fopen(path, "wb");
    assert_int_equal(fwrite(text, 1, (size_t)length, file), (size_t)length);
    fclose(file);
    free(text);
    if (have_xz) {
        snprintf(command, sizeof command, "xz -9e -c %s | wc -c", path);
    } else {
        snprintf(command, sizeof command,
                 "python3 -c \"import lzma; print(len(lzma.compress(open('%s','rb').read(), preset=9 | "
                 "lzma.PRESET_EXTREME)))\"",
                 path);
    }
    FILE *pipe = popen(command, "r");
    long packed = 0;
    assert_int_equal(fscanf(pipe, "%ld", &packed), 1);
    pclose(pipe);
    unlink(path);
    rmdir(dir);
    print_message("xz -9e: %.3f bits/byte of %.1f MB\n", 8.0 * (double)packed / (double)length,
                  (double)length / 1e6);
    assert_true(8.0 * (double)packed / (double)length >= 0.75);
}

static void is_fast(void **state)
{
    const Fixture *f = *state;
    Story s;
    int64_t bytes = 0;
    const clock_t begun = clock();
    for (int i = 0; i < 20000; i++) {
        story_generate(f->grammar, 9, 0, (uint64_t)i, &s);
        bytes += s.length;
    }
    const double rate = (double)bytes / 1e6 / ((double)(clock() - begun) / CLOCKS_PER_SEC);
    print_message("%.0f MB/s\n", rate);
    assert_true(rate >= 20);
}

static void checker_passes_real_stories(void **state)
{
    const Fixture *f = *state;
    int hold = 0, carry = 0;
    for (int i = 0; i < 2000; i++) {
        Story s;
        story_generate(f->grammar, 11, 1, (uint64_t)i, &s);
        const unsigned faults = story_check(f->checker, s.text, s.length);
        hold += faults == 0;
        carry += (faults & STORY_CARRY_FAULTS) == 0;
    }
    print_message("real stories: %.1f %% hold together, %.1f %% carry through\n", hold / 20.0, carry / 20.0);
    assert_true(hold >= 1960);
    assert_true(carry >= 1960);
}

static void checker_fails_a_markov_chain(void **state)
{
    const Fixture *f = *state;
    enum { STORIES = 8000, SAMPLES = 500 };
    int64_t length;
    char *text = corpus(f, 0, STORIES, &length), sample[2 * STORY_MAX_BYTES];
    Markov *m = markov_create(text, length);
    assert_non_null(m);
    uint64_t random = 88172645463325252u;
    int hold = 0, carry = 0, known = 0;
    for (int i = 0; i < SAMPLES; i++) {
        const int n = markov_write(m, &random, sample, sizeof sample);
        const unsigned faults = story_check(f->checker, sample, n);
        hold += faults == 0;
        carry += (faults & STORY_CARRY_FAULTS) == 0;
        known += (faults & (STORY_UNENDED | STORY_UNKNOWN | STORY_PEOPLE)) == 0;
    }
    print_message(
        "Markov chain of order %d: %.1f %% hold together, %.1f %% carry through, %.1f %% end and have two "
        "people and no unknown word\n",
        MARKOV_ORDER, 100.0 * hold / SAMPLES, 100.0 * carry / SAMPLES, 100.0 * known / SAMPLES);
    assert_true(carry <= SAMPLES / 20);
    assert_true(hold <= SAMPLES / 20);
    assert_true(known >= SAMPLES / 2); /* the chain is a fair opponent: it writes stories */
    markov_free(m);
    free(text);
}

/* One story of the grammar, sentence by sentence, and ways to break it. */
static void checker_names_each_fault(void **state)
{
    const Fixture *f = *state;
    static const char good[] =
        "One sunny Monday, a brave child named Lily was fishing by the lake with a rabbit called Pip. Lily "
        "had a red "
        "kite, a birthday present from Farmer Reed. Suddenly, a greedy magpie snatched the red kite away. "
        "Lily wept, "
        "for nothing was dearer to her. Pip looked behind the bench and asked a sailor, but in vain. At "
        "last, they "
        "found the red kite glittering in a nest. Lily gladly gave the red kite to Pip. Later, Lily and Pip "
        "ate plums "
        "by the lake. From then on, the red kite belonged to Pip, and Lily never let go of a gift.";
    static const struct {
        const char *from, *to; /* every occurrence of `from` after the first `skip` */
        int skip;
        unsigned fault;
    } cases[] = {
        {"never let go of a gift.", "never let go of a gift", 0, STORY_UNENDED},
        {" From then on, the red kite belonged to Pip, and Lily never let go of a gift.", "", 0,
         STORY_UNENDED},
        {"a gift.", "a gift. Lily", 0, STORY_UNENDED},
        {"greedy", "greddy", 0, STORY_UNKNOWN},
        {"greedy", "\xc3 greedy", 0, STORY_UNKNOWN},
        {"a rabbit called Pip", "a rabbit", 0, STORY_PEOPLE},
        {"Lily", "Molly", 3, STORY_HERO_LOST},
        {"and Lily never", "and she never", 0, STORY_HERO_LOST},
        {"red", "blue", 2, STORY_OBJECT_LOST},
        {"kite", "drum", 3, STORY_OBJECT_LOST},
        {"the red kite away", "the kite away", 0, STORY_OBJECT_LOST},
        {"Pip", "Hazel", 2, STORY_FRIEND_LOST},
        {"Farmer Reed", "a sailor", 0, STORY_ELDER_LOST},
        {"ate plums by the lake", "ate plums by the mill", 0, STORY_PLACE_LOST},
        {"gave the red kite to Pip", "brought the red kite back to Farmer Reed", 0, STORY_OWNER},
        {"belonged to Pip", "belonged to Lily", 0, STORY_OWNER},
        {"to her", "to him", 0, STORY_PRONOUN},
        {"glittering in a nest", "floating among the rushes", 0, STORY_CAUSE},
        {"Later,", "Pip looked behind the bench and asked a sailor, but in vain. Later,", 0, STORY_REPEAT},
    };
    assert_int_equal(story_check(f->checker, good, sizeof good - 1), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char broken[2 * sizeof good];
        size_t length = 0;
        int seen = 0;
        for (const char *at = good; *at;) {
            const size_t n = strlen(cases[i].from);
            if (strncmp(at, cases[i].from, n) == 0 && seen++ >= cases[i].skip) {
                memcpy(broken + length, cases[i].to, strlen(cases[i].to));
                length += strlen(cases[i].to);
                at += n;
            } else {
                broken[length++] = *at++;
            }
        }
        if (!(story_check(f->checker, broken, (int64_t)length) & cases[i].fault))
            fail_msg("\"%s\" -> \"%s\": fault %#x not seen", cases[i].from, cases[i].to, cases[i].fault);
    }
    assert_true(story_check(f->checker, "", 0) & STORY_UNENDED);
    char endless[5000];
    memset(endless, 'a', sizeof endless);
    assert_true(story_check(f->checker, endless, sizeof endless) & STORY_UNENDED);
    for (int i = 0; i < STORY_FAULTS; i++) assert_non_null(story_fault_text(i));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parser_recovers_every_choice),
        cmocka_unit_test(draws_are_uniform),
        cmocka_unit_test(parser_refuses_what_the_grammar_cannot_write),
        cmocka_unit_test(bounds_hold_for_every_story),
        cmocka_unit_test(same_seed_same_story),
        cmocka_unit_test(first_story_is_known),
        cmocka_unit_test(no_story_twice_nor_in_both_streams),
        cmocka_unit_test(uses_many_words),
        cmocka_unit_test(classes_share_no_word),
        cmocka_unit_test(resists_xz),
        cmocka_unit_test(is_fast),
        cmocka_unit_test(checker_passes_real_stories),
        cmocka_unit_test(checker_fails_a_markov_chain),
        cmocka_unit_test(checker_names_each_fault),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
