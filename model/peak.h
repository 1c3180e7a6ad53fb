/* Peak arithmetic of known GPUs, for MFU. */
#pragma once

/* Dense BF16 FLOP/s of the GPU whose marketing name is `gpu`, from the vendor's datasheets; NAN for one that
 * is not listed: a guess would be worse than no MFU. */
double peak_bf16_flops(const char *gpu);
