#include "model/signals.h"
#include <signal.h>
#include <time.h>
#include <unistd.h>

/* A handler can reach nothing but a static variable. */
static volatile sig_atomic_t caught;
static volatile time_t caught_at;   /* seconds */

/* `timeout` and some shells send the same signal twice, to the process and to its group: that is one wish. */
static void on_signal(int number)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!caught) caught_at = now.tv_sec, caught = number;
    else if (now.tv_sec - caught_at >= 2) _exit(128 + number);
}

static void install(int number, const struct sigaction *action)
{
    struct sigaction before;
    if (sigaction(number, NULL, &before) == 0 && before.sa_handler == SIG_IGN) return;  /* nohup, for one */
    sigaction(number, action, NULL);
}

void signals_install(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    install(SIGINT, &action);
    install(SIGTERM, &action);
    install(SIGHUP, &action);
}

int signals_caught(void)
{
    return caught;
}
