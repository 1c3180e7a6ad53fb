/* ./train story: makes, checks and measures the demo's corpus.
 *   story generate --bytes=N --out=DIR [--seed=1] [--held-out=0.05]   writes DIR/train.txt and
 * DIR/held_out.txt story check FILE [--against=FILE]                                 how many stories hold
 * together, and why not story entropy FILE                                                information
 * recovered by the parser A file of stories holds one per paragraph: a blank line ends a document, and no
 * story contains one. */
#pragma once

/* argv[0] is "story". Returns the exit code: 0 done, 1 run-time failure, 2 usage or input. */
int story_command(int argc, char **argv);
