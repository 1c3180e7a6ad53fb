/* Learning byte-level BPE from counted words. */
#include "data/split.h"
#include "data/tokenizer_parts.h"
#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES (1 << 20)   /* text that a thread counts at a time */
#define WORD_BYTES  256         /* longer words are counted in pieces: they are no language */

/* ---- counting words ------------------------------------------------------------------------------ */

typedef struct Word { const char *text; uint32_t length; int64_t count; } Word;   /* text inside the input */

typedef struct WordCounts {
    Word    *words;             /* [mask + 1], open addressing; text NULL: free */
    uint64_t mask;
    int64_t  used;
} WordCounts;

static uint64_t word_hash(const char *text, size_t length)
{
    uint64_t hash = length * 0x9e3779b97f4a7c15ull, part;
    for (; length >= 8; text += 8, length -= 8) {
        memcpy(&part, text, 8);
        hash = (hash ^ part) * 0xd6e8feb86659fd93ull;
        hash ^= hash >> 32;
    }
    part = 0;
    memcpy(&part, text, length);
    hash = (hash ^ part) * 0xd6e8feb86659fd93ull;
    return hash ^ hash >> 32;
}

static bool counts_add(WordCounts *counts, const char *text, uint32_t length, int64_t count);

static bool counts_grow(WordCounts *counts)
{
    WordCounts larger = { .mask = counts->words ? 2 * counts->mask + 1 : 0xffff };
    larger.words = calloc(larger.mask + 1, sizeof *larger.words);
    if (!larger.words)
        return false;
    for (uint64_t w = 0; counts->words && w <= counts->mask; w++)
        if (counts->words[w].text)
            counts_add(&larger, counts->words[w].text, counts->words[w].length, counts->words[w].count);
    free(counts->words);
    *counts = larger;
    return true;
}

static bool counts_add(WordCounts *counts, const char *text, uint32_t length, int64_t count)
{
    if ((!counts->words || 2 * (uint64_t)counts->used > counts->mask) && !counts_grow(counts))
        return false;
    uint64_t slot = word_hash(text, length) & counts->mask;
    Word    *word;
    for (; (word = &counts->words[slot])->text; slot = (slot + 1) & counts->mask)
        if (word->length == length && !memcmp(word->text, text, length)) {
            word->count += count;
            return true;
        }
    *word = (Word){ text, length, count };
    counts->used++;
    return true;
}

static bool count_chunk(WordCounts *counts, const uint8_t *classes, const char *text, size_t length)
{
    size_t word;
    for (size_t at = 0; at < length; at += word) {
        word = split_next(classes, text + at, length - at);
        if (word > WORD_BYTES)
            word = WORD_BYTES;
        if (!counts_add(counts, text + at, (uint32_t)word, 1))
            return false;
    }
    return true;
}

/* Texts cut between words into pieces of about CHUNK_BYTES. NULL when memory is short. */
static TextSpan *cut_chunks(const uint8_t *classes, const TextSpan *texts, int64_t count,
                            int64_t *chunk_count)
{
    int64_t capacity = 1;
    for (int64_t t = 0; t < count; t++)
        capacity += (int64_t)(texts[t].length / CHUNK_BYTES) + 1;
    TextSpan *chunks = malloc((size_t)capacity * sizeof *chunks);
    int64_t   used   = 0;
    for (int64_t t = 0; chunks && t < count; t++) {
        size_t length = texts[t].length;
        for (size_t at = 0, end; at < length; at = end) {
            end = length;
            if (length - at > CHUNK_BYTES)
                end = split_safe_cut(classes, texts[t].text, at + CHUNK_BYTES, length);
            chunks[used++] = (TextSpan){ texts[t].text + at, end - at };
        }
    }
    *chunk_count = used;
    return chunks;
}

static int compare_words(const void *a, const void *b)
{
    const Word *left = a, *right = b;
    uint32_t shared = left->length < right->length ? left->length : right->length;
    int      order  = memcmp(left->text, right->text, shared);
    return order ? order : (left->length > right->length) - (left->length < right->length);
}

/* Distinct words in the order of their bytes (so that nothing depends on threads), or NULL. */
static Word *count_words(const TextSpan *texts, int64_t count, int64_t *word_count)
{
    uint8_t    *classes = split_make_classes();
    int64_t     chunk_count = 0;
    TextSpan   *chunks  = classes ? cut_chunks(classes, texts, count, &chunk_count) : NULL;
    WordCounts  all     = { 0 };
    bool        fine    = chunks && counts_grow(&all);
    #pragma omp parallel if (fine)
    {
        WordCounts own  = { 0 };
        bool       good = fine;
        #pragma omp for schedule(dynamic)
        for (int64_t c = 0; c < chunk_count; c++)
            good = good && count_chunk(&own, classes, chunks[c].text, chunks[c].length);
        #pragma omp critical
        {
            for (uint64_t w = 0; own.words && w <= own.mask && good; w++)
                if (own.words[w].text)
                    good = counts_add(&all, own.words[w].text, own.words[w].length, own.words[w].count);
            fine = fine && good;
        }
        free(own.words);
    }
    free(chunks);
    free(classes);
    int64_t used = 0;
    for (uint64_t w = 0; all.words && w <= all.mask; w++)
        if (all.words[w].text)
            all.words[used++] = all.words[w];
    if (!fine) {
        free(all.words);
        return NULL;
    }
    qsort(all.words, (size_t)used, sizeof *all.words, compare_words);
    *word_count = used;
    return all.words;
}

/* ---- merging ------------------------------------------------------------------------------------- */

typedef struct Pair {
    int32_t  left, right;       /* left -1: free slot */
    int64_t  count;
    int32_t *words;             /* [word_count] words that hold or held the pair, some twice; owned */
    int32_t  word_count, capacity;
    bool     raised;            /* its count rose in this step, and it waits in Trainer.raised */
} Pair;

/* A pair in the queue, with its count at the time. */
typedef struct Candidate { int64_t count; int32_t left, right; } Candidate;

typedef struct Trainer {
    const Word *words;          /* [word_count] */
    int64_t     word_count;
    int32_t    *symbols;        /* the words' ids, one word after another */
    int64_t    *first;          /* [word_count] */
    uint32_t   *length;         /* [word_count] ids left in each */
    Pair       *pairs;          /* [mask + 1], open addressing */
    uint64_t    mask;
    int64_t     pair_count;
    Candidate  *queue;          /* heap: largest count, then smallest ids, first */
    int64_t     queue_count, queue_capacity;
    Candidate  *raised;         /* pairs that this step made or raised, to be queued at its end */
    int64_t     raised_count, raised_capacity;
} Trainer;

static bool goes_before(const Candidate *a, const Candidate *b)
{
    if (a->count != b->count)
        return a->count > b->count;
    return a->left != b->left ? a->left < b->left : a->right < b->right;
}

static bool queue_push(Trainer *trainer, Candidate candidate)
{
    if (trainer->queue_count == trainer->queue_capacity) {
        int64_t    capacity = 2 * trainer->queue_capacity + 1024;
        Candidate *queue    = realloc(trainer->queue, (size_t)capacity * sizeof *queue);
        if (!queue)
            return false;
        trainer->queue          = queue;
        trainer->queue_capacity = capacity;
    }
    int64_t at = trainer->queue_count++;
    for (int64_t up; at > 0 && goes_before(&candidate, &trainer->queue[up = (at - 1) / 2]); at = up)
        trainer->queue[at] = trainer->queue[up];
    trainer->queue[at] = candidate;
    return true;
}

static Candidate queue_pop(Trainer *trainer)
{
    Candidate *queue = trainer->queue, top = queue[0], last = queue[--trainer->queue_count];
    int64_t    at = 0, count = trainer->queue_count;
    for (int64_t child; (child = 2 * at + 1) < count; at = child) {
        child += child + 1 < count && goes_before(&queue[child + 1], &queue[child]);
        if (!goes_before(&queue[child], &last))
            break;
        queue[at] = queue[child];
    }
    queue[at] = last;
    return top;
}

static bool raised_push(Trainer *trainer, int32_t left, int32_t right)
{
    if (trainer->raised_count == trainer->raised_capacity) {
        int64_t    capacity = 2 * trainer->raised_capacity + 1024;
        Candidate *raised   = realloc(trainer->raised, (size_t)capacity * sizeof *raised);
        if (!raised)
            return false;
        trainer->raised          = raised;
        trainer->raised_capacity = capacity;
    }
    trainer->raised[trainer->raised_count++] = (Candidate){ .left = left, .right = right };
    return true;
}

static Pair *pair_slot(const Trainer *trainer, int32_t left, int32_t right)
{
    uint64_t slot = pair_hash(left, right) & trainer->mask;
    while (trainer->pairs[slot].left >= 0 &&
           (trainer->pairs[slot].left != left || trainer->pairs[slot].right != right))
        slot = (slot + 1) & trainer->mask;
    return &trainer->pairs[slot];
}

static bool pairs_grow(Trainer *trainer)
{
    Pair    *old  = trainer->pairs;
    uint64_t size = old ? trainer->mask + 1 : 0, larger = old ? 2 * size : 1 << 16;
    Pair    *pairs = malloc(larger * sizeof *pairs);
    if (!pairs)
        return false;
    for (uint64_t p = 0; p < larger; p++)
        pairs[p] = (Pair){ .left = -1 };
    trainer->pairs = pairs;
    trainer->mask  = larger - 1;
    for (uint64_t p = 0; p < size; p++)
        if (old[p].left >= 0)
            *pair_slot(trainer, old[p].left, old[p].right) = old[p];
    free(old);
    return true;
}

/* Queues what the step raised, with its final counts. Counts only fall afterwards, so no entry of the queue
 * is below the truth. */
static bool queue_raised(Trainer *trainer)
{
    for (int64_t r = 0; r < trainer->raised_count; r++) {
        Candidate raised = trainer->raised[r];
        Pair     *pair   = pair_slot(trainer, raised.left, raised.right);
        pair->raised = false;
        raised.count = pair->count;
        if (!queue_push(trainer, raised))
            return false;
    }
    trainer->raised_count = 0;
    return true;
}

/* Adds count occurrences of a pair in a word; the word is listed when the count rises. */
static bool pair_add(Trainer *trainer, int32_t left, int32_t right, int64_t count, int32_t word)
{
    Pair *pair = pair_slot(trainer, left, right);
    if (pair->left < 0) {
        if (2 * (uint64_t)trainer->pair_count > trainer->mask) {
            if (!pairs_grow(trainer))
                return false;
            pair = pair_slot(trainer, left, right);
        }
        *pair = (Pair){ .left = left, .right = right };
        trainer->pair_count++;
    }
    pair->count += count;
    if (count > 0 && !pair->raised) {
        pair->raised = true;
        if (!raised_push(trainer, left, right))
            return false;
    }
    if (count < 0 || (pair->word_count && pair->words[pair->word_count - 1] == word))
        return true;
    if (pair->word_count == pair->capacity) {
        int32_t  capacity = 2 * pair->capacity + 2;
        int32_t *words    = realloc(pair->words, (size_t)capacity * sizeof *words);
        if (!words)
            return false;
        pair->words    = words;
        pair->capacity = capacity;
    }
    pair->words[pair->word_count++] = word;
    return true;
}

/* Lists the words as bytes and their pairs. */
static bool trainer_begin(Trainer *trainer)
{
    int64_t total = 0;
    for (int64_t w = 0; w < trainer->word_count; w++)
        total += trainer->words[w].length;
    trainer->symbols = malloc((size_t)(total + 1) * sizeof *trainer->symbols);
    trainer->first   = malloc((size_t)(trainer->word_count + 1) * sizeof *trainer->first);
    trainer->length  = malloc((size_t)(trainer->word_count + 1) * sizeof *trainer->length);
    if (!trainer->symbols || !trainer->first || !trainer->length || !pairs_grow(trainer))
        return false;
    int64_t at = 0;
    for (int64_t w = 0; w < trainer->word_count; w++) {
        const Word *word = &trainer->words[w];
        trainer->first[w]  = at;
        trainer->length[w] = word->length;
        for (uint32_t i = 0; i < word->length; i++)
            trainer->symbols[at + i] = (uint8_t)word->text[i];
        for (uint32_t i = 0; i + 1 < word->length; i++)
            if (!pair_add(trainer, trainer->symbols[at + i], trainer->symbols[at + i + 1], word->count,
                          (int32_t)w))
                return false;
        at += word->length;
    }
    return queue_raised(trainer);
}

static void trainer_end(Trainer *trainer)
{
    for (uint64_t p = 0; trainer->pairs && p <= trainer->mask; p++)
        free(trainer->pairs[p].words);
    free(trainer->pairs);
    free(trainer->symbols);
    free(trainer->first);
    free(trainer->length);
    free(trainer->queue);
    free(trainer->raised);
}

/* Replaces left, right by merged in a word and updates the pairs around. */
static bool merge_in_word(Trainer *trainer, int32_t w, int32_t left, int32_t right, int32_t merged)
{
    int32_t *ids = trainer->symbols + trainer->first[w];
    uint32_t length = trainer->length[w], to = 0;
    int64_t  count = trainer->words[w].count;
    bool     fine = true;
    for (uint32_t i = 0; i < length; i++) {
        if (i + 1 == length || ids[i] != left || ids[i + 1] != right) {
            ids[to++] = ids[i];
            continue;
        }
        if (to > 0)
            fine = fine && pair_add(trainer, ids[to - 1], left, -count, w) &&
                   pair_add(trainer, ids[to - 1], merged, count, w);
        if (i + 2 < length)
            fine = fine && pair_add(trainer, right, ids[i + 2], -count, w) &&
                   pair_add(trainer, merged, ids[i + 2], count, w);
        ids[to++] = merged;
        i++;
    }
    trainer->length[w] = to;
    return fine;
}

/* The pair that occurs most often, or left -1 when none occurs twice or (*fine false) memory is short. */
static Candidate best_pair(Trainer *trainer, bool *fine)
{
    while (*fine && trainer->queue_count) {
        Candidate best = queue_pop(trainer);
        int64_t   now  = pair_slot(trainer, best.left, best.right)->count;
        if (now == best.count && now > 1)
            return best;
        best.count = now;
        if (now > 1)
            *fine = queue_push(trainer, best);
    }
    return (Candidate){ .left = -1, .right = -1 };
}

/* Replaces left, right by merged in all words. */
static bool merge_everywhere(Trainer *trainer, int32_t left, int32_t right, int32_t merged)
{
    /* The list is taken out of the table, which may move while the words change. */
    Pair    *pair  = pair_slot(trainer, left, right);
    int32_t *words = pair->words, word_count = pair->word_count;
    pair->words      = NULL;
    pair->word_count = pair->capacity = 0;
    bool fine = true;
    for (int32_t i = 0; i < word_count && fine; i++)
        fine = merge_in_word(trainer, words[i], left, right, merged);
    free(words);
    pair_slot(trainer, left, right)->count = 0;
    return fine && queue_raised(trainer);
}

/* ---- the tokenizer ------------------------------------------------------------------------------- */

/* Names the token that a merge makes. It is always new: the bytes between two edges of tokens merge in the
 * same way wherever they stand, so no two merges spell the same token. */
static bool set_merged(Tokenizer *tokenizer, const Merge *merge)
{
    size_t left = tokenizer->length[merge->left], right = tokenizer->length[merge->right];
    char  *text = malloc(left + right);
    if (!text)
        return false;
    memcpy(text, tokenizer->text[merge->left], left);
    memcpy(text + left, tokenizer->text[merge->right], right);
    bool fine = tokenizer_set(tokenizer, merge->merged, TOKEN_PLAIN, text, left + right);
    free(text);
    return fine;
}

/* Learns at most `count` merges. False when memory is short. */
static bool learn(Tokenizer *tokenizer, Trainer *trainer, int64_t count)
{
    tokenizer->merges = malloc((size_t)(count + 1) * sizeof *tokenizer->merges);
    bool fine = tokenizer->merges && trainer_begin(trainer);
    while (fine && tokenizer->merge_count < count) {
        Candidate best = best_pair(trainer, &fine);
        if (best.left < 0)
            break;
        int32_t rank   = (int32_t)tokenizer->merge_count++;
        Merge  *merge  = &tokenizer->merges[rank];
        *merge = (Merge){ best.left, best.right, 256 + rank, rank };
        fine   = set_merged(tokenizer, merge) &&
               merge_everywhere(trainer, merge->left, merge->right, merge->merged);
    }
    return fine;
}

Tokenizer *tokenizer_train(const TextSpan *texts, int64_t count, int64_t vocab, Errors *errors)
{
    Trainer    trainer   = { 0 };
    Word      *words     = count_words(texts, count, &trainer.word_count);
    Tokenizer *tokenizer = words ? tokenizer_new(vocab) : NULL;
    bool       fine      = tokenizer != NULL;
    for (int b = 0; b < 256 && fine; b++)
        fine = tokenizer_set(tokenizer, b, TOKEN_PLAIN, &(char){ (char)b }, 1);
    trainer.words = words;
    fine = fine && learn(tokenizer, &trainer, vocab - 258);
    trainer_end(&trainer);
    free(words);
    if (fine) {
        int32_t bos = 256 + (int32_t)tokenizer->merge_count;
        tokenizer->vocab       = bos + 2;    /* fewer than asked for when the text has no more pairs */
        tokenizer->whole_words = true;
        fine = tokenizer_set(tokenizer, bos, TOKEN_SPECIAL, TOKENIZER_BOS, strlen(TOKENIZER_BOS)) &&
               tokenizer_set(tokenizer, bos + 1, TOKEN_SPECIAL, TOKENIZER_EOS, strlen(TOKENIZER_EOS));
    }
    if (!fine)
        errors_add(errors, "no memory to learn a tokenizer of %lld tokens", (long long)vocab);
    if (fine && tokenizer_complete(tokenizer, "the tokenizer just learned", errors))
        return tokenizer;
    tokenizer_free(tokenizer);
    return NULL;
}
