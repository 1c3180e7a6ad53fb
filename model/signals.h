/* SIGINT and SIGTERM: the first asks the training loop to save and stop, the second ends the process. */
#pragma once

/* Installs the handlers. A second signal exits at once with 128 + its number (130, 143). */
void signals_install(void);
/* 0, or the signal that was caught: poll once a micro-batch. Exit code after saving: 128 + it. */
int signals_caught(void);
