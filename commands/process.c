#include "commands/process.h"
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* The next file to be opened would get a closed stream's descriptor, and messages would be written into it.
 * Opened for reading, so that writing to a closed standard output still fails. */
static void open_standard_streams(void)
{
    int fd = open("/dev/null", O_RDONLY);
    while (fd >= 0 && fd <= STDERR_FILENO) fd = open("/dev/null", O_RDONLY);
    if (fd > STDERR_FILENO) close(fd);
}

/* Token files and texts are mapped: reading where somebody has cut them off gives a signal. */
static void on_bus_error(int number)
{
    (void)number;
    static const char text[] = "error: a file became shorter while it was read; files in use must not be "
                               "changed (a training run goes on with --resume once they are whole)\n";
    (void)!write(STDERR_FILENO, text, sizeof text - 1);
    _exit(1);
}

/* Threads that wait for each other spin for 20,000 turns, then sleep. OpenMP's own 300,000 make a step three
 * times slower on a busy machine, where the awaited thread may not be running at all; sleeping at once makes
 * one a quarter slower on a quiet machine. OpenMP reads the setting before main. */
static void limit_spinning(char **argv)
{
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT")) return;
    setenv("GOMP_SPINCOUNT", "20000", 1);
    execv("/proc/self/exe", argv);      /* where this fails, training works all the same */
}

void process_begin(char **argv)
{
    open_standard_streams();
    signal(SIGXFSZ, SIG_IGN);
    signal(SIGBUS, on_bus_error);
    limit_spinning(argv);
}

int process_end(int code)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    fputs("error: standard output could not be written in full; is it closed, or its disk full?\n", stderr);
    return code ? code : 1;
}
