/* What every command shares as a process: its standard streams, and how its threads wait. */
#pragma once

/* Called first in main. Standard streams that were closed are opened, a file-size limit shows as a failed
 * write with a message, a file that is cut off while it is read ends the process with a message, and waiting
 * threads do not spin for long. */
void process_begin(char **argv);

/* Called last: code, or 1 with a message where what was printed did not arrive in full. */
int process_end(int code);
