/* The key table as data, shared by the config_*.c files; everyone else includes model/config.h. */
#pragma once
#include "model/config.h"

typedef enum KeyKind { KEY_INT, KEY_REAL, KEY_BOOL, KEY_TEXT, KEY_WORD } KeyKind;
typedef enum OnResume { RESUME_FREE, RESUME_FIXED } OnResume;

typedef struct ConfigKey {
    const char *path;       /* "section.name"; "schema_version" stands alone */
    KeyKind     kind;
    size_t      offset;     /* in Config */
    const char *fallback;   /* the default, spelled as on the command line */
    const char *allowed;    /* interval or words, see config_keys.def */
    OnResume    resume;
    const char *help;
} ConfigKey;

typedef struct ConfigSection { const char *name, *help; } ConfigSection;

/* A word for several fusion keys. */
typedef struct FusionGroup {
    const char *path;       /* "fusion.swiglu" */
    unsigned    members;    /* bits by FusionKey */
    const char *help;
} FusionGroup;

enum {
    CONFIG_KEYS =
#define CONFIG_KEY(...)          +1
#define CONFIG_FUSION(...)       +1
#include "model/config_keys.def"
    ,
    CONFIG_SECTIONS =
#define CONFIG_SECTION(...)      +1
#include "model/config_keys.def"
    ,
    CONFIG_GROUPS =
#define CONFIG_FUSION_GROUP(...) +1
#include "model/config_keys.def"
};

extern const ConfigKey config_keys[CONFIG_KEYS];
extern const ConfigSection config_sections[CONFIG_SECTIONS];
extern const FusionGroup config_groups[CONFIG_GROUPS];

#define CONFIG_WHERE 600    /* longest "file:line", with its end */

/* Lines of an Origin that are none. */
#define ORIGIN_DEFAULT 0
#define ORIGIN_COMMAND (-1)

struct ConfigLoad {
    Config values;
    Config given;                   /* values before anything was derived from others */
    char  *file;                    /* owned; NULL without one */
    int    line[CONFIG_KEYS];       /* origin of each value: a line of file, or ORIGIN_ */
    bool   bad[CONFIG_KEYS];        /* an error was reported about it: cross-checks leave it out */
    char   where[CONFIG_KEYS][CONFIG_WHERE];
    bool   unreadable;              /* the file gave no values at all */
};

int config_find(const char *path);          /* index in config_keys, -1 = unknown */
int config_find_group(const char *path);    /* index in config_groups, -1 = unknown */
int config_find_section(const char *name);  /* index in config_sections, -1 = unknown */

void config_origin_text(Origin origin, char text[CONFIG_WHERE]);

/* Store a value after checking kind and range; otherwise add an error. found: as the user wrote it. */
void config_set_number(ConfigLoad *load, int key, double value, const char *found, Origin origin,
                       Errors *errors);
void config_set_bool(ConfigLoad *load, int key, bool value, Origin origin);
void config_set_string(ConfigLoad *load, int key, const char *value, Origin origin, Errors *errors);
/* Adds "expected ..., found ..." and marks the key as bad. */
void config_bad_value(ConfigLoad *load, int key, const char *found, Origin origin, Errors *errors);

/* fusion as a whole: "all", "none", "auto". */
void config_set_fusion(ConfigLoad *load, const char *word, Origin origin, Errors *errors);
/* One group: "on", "off", "auto". */
void config_set_group(ConfigLoad *load, int group, const char *word, Origin origin, Errors *errors);

/* "unknown key ..." or "unknown section ..." with the nearest names. */
void config_unknown_key(const char *path, Origin origin, Errors *errors);
void config_unknown_section(const char *name, Origin origin, Errors *errors);

/* Reads load->file into load. */
void config_read_file(ConfigLoad *load, Errors *errors);

/* The value as it is spelled on the command line. Numbers read back as the same double. */
#define CONFIG_VALUE CONFIG_STRING
void config_value_text(const Config *config, int key, char text[CONFIG_VALUE]);
/* "an integer in [1, 1024]", "one of auto, cpu, cuda", ... */
void config_expected(int key, char text[CONFIG_VALUE]);

/* The value itself, by the kind of its key (a WORD is an int). */
#define CONFIG_INT(config, key)  (*(int64_t *)((char *)(config) + config_keys[key].offset))
#define CONFIG_REAL(config, key) (*(double *)((char *)(config) + config_keys[key].offset))
#define CONFIG_BOOL(config, key) (*(bool *)((char *)(config) + config_keys[key].offset))
#define CONFIG_TEXT(config, key) ((char *)(config) + config_keys[key].offset)
