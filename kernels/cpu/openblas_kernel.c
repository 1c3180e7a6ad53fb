/* Picks OpenBLAS's kernels at start where its own choice is wrong or slow.
 *
 * An OpenBLAS older than the processor falls back to kernels of a much older one (five times slower on a 2023
 * Xeon with Debian 12's version) or, on some, computes wrong products. scripts/setup.sh measures and checks
 * the candidates and names the best one in OPENBLAS_KERNEL where it is not OpenBLAS's own. The choice cannot
 * be made through the environment alone: OpenBLAS reads it before main. A user's own OPENBLAS_CORETYPE
 * stands. */
#ifdef OPENBLAS_KERNEL
#include <stdlib.h>

/* OpenBLAS's own, exported but in no header. */
void gotoblas_dynamic_quit(void);
void gotoblas_dynamic_init(void);

__attribute__((constructor)) static void openblas_pick_kernel(void)
{
    if (getenv("OPENBLAS_CORETYPE")) return;
    setenv("OPENBLAS_CORETYPE", OPENBLAS_KERNEL, 1);
    gotoblas_dynamic_quit();
    gotoblas_dynamic_init();
    unsetenv("OPENBLAS_CORETYPE");
}
#else
typedef int openblas_kernel_is_its_own_choice;   /* ISO C wants a declaration */
#endif
