/* Llama-3's split rules: how text falls into words that BPE then works on one by one. Written by hand for
 *
 *     (?i:'s|'t|'re|'ve|'m|'ll|'d) | [^\r\n\p{L}\p{N}]?\p{L}+ | \p{N}{1,3} | ?[^\s\p{L}\p{N}]+[\r\n]*
 *     | \s*[\r\n]+ | \s+(?!\S) | \s+
 *
 * (the fourth alternative begins with an optional space). A byte that is not UTF-8 is a symbol that is no
 * letter, number or space. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define SPLIT_LLAMA3_REGEX                                                                                   \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"  \
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

typedef enum SymbolClass { SYMBOL_OTHER, SYMBOL_LETTER, SYMBOL_NUMBER, SYMBOL_SPACE } SymbolClass;

/* [0x110000] SymbolClass of every code point; caller frees. NULL when memory is short. */
uint8_t *split_make_classes(void);

/* Bytes of the word that text begins with; length > 0. */
size_t split_next(const uint8_t *classes, const char *text, size_t length);

/* The first place at or after `from` where a cut falls between two words whatever surrounds it, else length:
 * behind a newline that no white space follows. For work in pieces. */
size_t split_safe_cut(const uint8_t *classes, const char *text, size_t from, size_t length);
