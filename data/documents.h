/* Text inputs of ./train tokenize, cut into documents. */
#pragma once
#include "model/errors.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum InputFormat { INPUT_AUTO, INPUT_TEXT, INPUT_JSONL } InputFormat;   /* AUTO: by the name's end */

typedef struct InputFile {
    char       *path;           /* owned */
    const char *text;           /* [bytes], mapped read-only */
    size_t      bytes;
    bool        jsonl;
} InputFile;

typedef struct Inputs {
    InputFile *files;           /* [count] */
    int        count;
    size_t     bytes;           /* sum */
    int        skipped;         /* files of directories whose names don't end like text */
} Inputs;

/* Maps files, the text files (.txt, .text, .md, .jsonl, .ndjson) under directories, sorted, and "-" for
 * standard input. False with an error for each path that cannot be read. Release with inputs_close always. */
bool inputs_open(Inputs *inputs, char *const *paths, int count, InputFormat format, Errors *errors);
void inputs_close(Inputs *inputs);

/* Where documents end in text files; in jsonl files each line is one. */
typedef struct DocumentRules {
    bool        whole_files;    /* a file is a document, else: */
    const char *separator;      /* documents end at lines equal to this; NULL: at blank lines. Neither these
                                 * lines nor the newline before them belong to a document */
    const char *field;          /* of jsonl lines */
} DocumentRules;

typedef struct Document {
    const char *text;           /* inside the mapping */
    size_t      length;         /* > 0 */
    bool        escaped;        /* a JSON string: jsonl_unescape gives its bytes */
} Document;

typedef struct DocumentReader {
    const Inputs  *inputs;
    DocumentRules  rules;
    int            file;
    size_t         at;          /* in the file */
    int64_t        line;        /* of it, for errors; counted in jsonl only */
} DocumentReader;

/* The next document that isn't empty. False at the end, or with an error added for a line that is no document
 * (file and line are named). */
bool documents_next(DocumentReader *reader, Document *document, Errors *errors);
