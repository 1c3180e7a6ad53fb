#include "model/signals.h"
#include <signal.h>
#include <unistd.h>

/* A handler can reach nothing but a static variable. */
static volatile sig_atomic_t caught;

static void on_signal(int number)
{
    if (caught) _exit(128 + number);
    caught = number;
}

void signals_install(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

int signals_caught(void)
{
    return caught;
}
