/* One micro-batch on the host, T = sequences * seq rows. Filled by the loader, uploaded by the model. */
#pragma once
#include <stdint.h>

typedef struct Batch {
    int      sequences, seq;
    int32_t *tokens;     /* [T] */
    int32_t *targets;    /* [T]: the token that follows; 0 where weights is 0 */
    int32_t *pos;        /* [T]: position in the row, or in the document under data.document_mask */
    int32_t *doc_start;  /* [T]: first index of the row's sequence that belongs to its document */
    float   *weights;    /* [T]: 1 counts, 0 is ignored (padding); the trainer divides by the step's sum */
    int64_t  valid;      /* rows with weight 1 */
    int64_t  target_bytes; /* bytes of text behind the valid targets, 0 when no tokenizer is known */
} Batch;
