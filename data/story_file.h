/* A file of stories, one a paragraph, and which stories it holds. */
#pragma once
#include "data/documents.h"

typedef struct StoryFile {
    Inputs inputs;     /* what the stories point into */
    Document *stories; /* [count], owned; without surrounding white space */
    uint64_t *hashes;  /* [count], owned: of the stories, sorted */
    int64_t count;
} StoryFile;

/* Reads `path`. False with an error when it cannot be read or holds no text. Release with story_file_close
 * always. */
bool story_file_open(StoryFile *f, const char *path, Errors *errors);
void story_file_close(StoryFile *f);

/* Whether the file holds exactly this text (by a 64-bit hash). */
bool story_file_contains(const StoryFile *f, const char *text, size_t length);

/* Stories of the file that are there already, further up. */
int64_t story_file_repeats(const StoryFile *f);
