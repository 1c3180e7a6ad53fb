/* Llamas of a few thousand parameters, for tests of what reads and writes them. */
#pragma once
#include "model/llama.h"

/* d 12, f 16, 3 heads of size 4, 1 kv head, V 17; on the CPU. act BF16: moments in BF16 too (layout only). */
Llama *small_model(bool tied, int64_t layers, LlamaMode mode, Dtype act);
/* Different values in every master and moment (F32), so that no tensor can be mistaken for another. */
void small_fill(Llama *model, float start);
bool small_same_tensor(const Tensor *a, const Tensor *b);
/* Fails the test unless masters, and moments where both have them, are the same bits. */
void small_assert_same(const Llama *a, const Llama *b);
