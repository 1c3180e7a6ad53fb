/* Which of an op's implementations runs at a shape: measured where the run has the choice, remembered on
 * disk. */
#pragma once
#include "kernels/cuda/fused/fused.h"
#include <functional>
#include <string>
#include <vector>

/* Raise it where kernels change: old times mean nothing then, and a run that goes on may add in another order. */
enum { FUSED_TABLE_VERSION = 20 };

/* What a choice depends on. Ops that differ in an operand only (the last layer's xg, adding to a gradient)
 * share it. */
struct FusedShape {
    OpId op;
    int64_t m, n, k;
};

struct FusedChoice {
    FusedShape shape;
    bool fused;
    FusedVariant variant;                   /* what runs fused, or would with `on` */
    double fused_us, separate_us;           /* time_of both; 0 = not measured. Where fused loses, its time is the
                                             * library's times how much longer it takes in what it is worse at */
};

/* What is worth measuring: every tile and cluster, walked in the groups that read least. */
std::vector<FusedVariant> fused_variants(const CudaBackend *backend, const FusedShape &shape);

/* The choice for this call. `fused` and `library` run the op into its own outputs or, where it cannot be repeated in
 * place, into others; both empty: nothing can be measured now. Without a measurement, and without a choice for
 * nearly the same shape, .fused is false and .variant the first of fused_variants: `auto` then runs the library,
 * `on` that variant. */
FusedChoice fused_choose(const OpContext *ctx, const FusedShape &shape,
                         const std::function<void(const FusedCall &)> &fused,
                         const std::function<void()> &library);

/* The last choice that was made for op; NULL before the first. */
const FusedChoice *fused_last_choice(const FusedTable *table, OpId op);

FusedTable *fused_table_open(CudaBackend *backend);
void fused_table_close(FusedTable *table);

/* Choices used or restored so far, one a line that begins with "fused "; read_line takes such a line back and
 * wins over the file's. restored: it comes from a checkpoint. False where it does not read. */
std::string fused_table_text(const FusedTable *table);
bool fused_table_read_line(FusedTable *table, const char *line, bool restored);
