/* SIGINT, SIGTERM and SIGHUP: the first asks the training loop to save and stop, another a moment later ends the process. */
#pragma once

/* Installs the handlers, but not for signals that whoever started the process has it ignore. A second signal, one to two
 * seconds after the first or later, exits at once with 128 + its number (129, 130, 143). */
void signals_install(void);
/* 0, or the signal that was caught: poll once a micro-batch. Exit code after saving: 128 + it. */
int signals_caught(void);
