#include "model/hf_config.h"
#include "model/config_table.h"
#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading ------------------------------------------------------------------------------------- */

typedef struct Reader {
    const cJSON *root;
    const char  *path;
    Errors      *errors;
} Reader;

/* What both RoPE forms come down to. */
typedef struct RopeForm {
    bool    llama3;
    double  theta, factor, low, high;
    double  original;
} RopeForm;

/* NULL where the key is absent or null. */
static const cJSON *field(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNull(item) ? NULL : item;
}

static double number(Reader *r, const cJSON *object, const char *key, double absent)
{
    const cJSON *item = field(object, key);
    if (!item) return absent;
    if (cJSON_IsNumber(item) && item->valuedouble > 0) return item->valuedouble;
    errors_add(r->errors, "%s: \"%s\" must be a number above 0", r->path, key);
    return absent;
}

static int64_t integer(Reader *r, const char *key, int64_t absent)
{
    double value = number(r, r->root, key, (double)absent);
    if (value == floor(value) && value < 9e15) return (int64_t)value;
    errors_add(r->errors, "%s: \"%s\" is %g; expected a whole number", r->path, key, value);
    return absent;
}

static bool flag(Reader *r, const char *key)
{
    const cJSON *item = field(r->root, key);
    if (item && !cJSON_IsBool(item)) errors_add(r->errors, "%s: \"%s\" must be true or false", r->path, key);
    return cJSON_IsTrue(item);
}

static void refuse_architecture(Reader *r)
{
    const cJSON *type = field(r->root, "model_type"), *list = field(r->root, "architectures"), *item;
    if (!cJSON_IsString(type) || strcmp(type->valuestring, "llama") != 0)
        errors_add(r->errors, "%s: model_type is \"%s\"; only \"llama\" can be imported", r->path,
                   cJSON_IsString(type) ? type->valuestring : "missing");
    cJSON_ArrayForEach(item, list)
        if (cJSON_IsString(item) && strcmp(item->valuestring, "LlamaForCausalLM") != 0)
            errors_add(r->errors, "%s: architecture %s has no counterpart here; expected LlamaForCausalLM",
                       r->path, item->valuestring);
    const cJSON *act = field(r->root, "hidden_act");
    if (act && (!cJSON_IsString(act) || strcmp(act->valuestring, "silu") != 0))
        errors_add(r->errors, "%s: hidden_act is \"%s\"; the only activation here is \"silu\"", r->path,
                   cJSON_IsString(act) ? act->valuestring : "not a string");
}

static void refuse_extras(Reader *r)
{
    static const char *const biases[] = {"attention_bias", "mlp_bias"};
    for (int i = 0; i < 2; i++)
        if (flag(r, biases[i]))
            errors_add(r->errors, "%s: %s is true; matrices have no bias here", r->path, biases[i]);
    const cJSON *dropout = field(r->root, "attention_dropout");
    if (dropout && !(cJSON_IsNumber(dropout) && dropout->valuedouble == 0))
        errors_add(r->errors, "%s: attention_dropout is not 0; there is no dropout here", r->path);
    if (integer(r, "pretraining_tp", 1) != 1)
        errors_add(r->errors, "%s: pretraining_tp is not 1; there are no sliced matrices here", r->path);
    static const char *const absent[] = {"quantization_config", "sliding_window", "partial_rotary_factor"};
    for (int i = 0; i < 3; i++) {
        const cJSON *item = field(r->root, absent[i]);
        if (item && !(i == 2 && cJSON_IsNumber(item) && item->valuedouble == 1))
            errors_add(r->errors, "%s: %s is set; such models cannot be represented", r->path, absent[i]);
    }
}

/* scaling: the object with rope_type and its numbers, or NULL. */
static RopeForm rope_form(Reader *r, const cJSON *scaling, const char *key, double theta)
{
    RopeForm form = {.theta = theta, .factor = 1, .low = 1, .high = 4, .original = 8192};
    if (!scaling) return form;
    if (!cJSON_IsObject(scaling)) {
        errors_add(r->errors, "%s: \"%s\" must be an object or null", r->path, key);
        return form;
    }
    const cJSON *type = field(scaling, "rope_type");
    if (!type) type = field(scaling, "type");
    const char *name = cJSON_IsString(type) ? type->valuestring : type ? "not a string" : "default";
    const cJSON *partial = field(scaling, "partial_rotary_factor");
    if (partial && !(cJSON_IsNumber(partial) && partial->valuedouble == 1))
        errors_add(r->errors, "%s: %s.partial_rotary_factor is not 1; heads are rotated as a whole here",
                   r->path, key);
    form.theta = number(r, scaling, "rope_theta", theta);
    if (strcmp(name, "default") == 0) return form;
    if (strcmp(name, "llama3") != 0) {
        errors_add(r->errors, "%s: %s has rope_type \"%s\"; only \"default\" and \"llama3\" are known",
                   r->path, key, name);
        return form;
    }
    static const char *const keys[] = {
        "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"};
    for (int i = 0; i < 4; i++)
        if (!field(scaling, keys[i]))
            errors_add(r->errors, "%s: %s has rope_type \"llama3\" but no %s", r->path, key, keys[i]);
    form.llama3 = true;
    form.factor = number(r, scaling, keys[0], form.factor);
    form.low = number(r, scaling, keys[1], form.low);
    form.high = number(r, scaling, keys[2], form.high);
    form.original = number(r, scaling, keys[3], form.original);
    return form;
}

static bool same_form(RopeForm a, RopeForm b)
{
    if (a.theta != b.theta || a.llama3 != b.llama3) return false;
    if (!a.llama3) return true;
    return a.factor == b.factor && a.low == b.low && a.high == b.high && a.original == b.original;
}

static RopeForm rope(Reader *r)
{
    const cJSON *old = field(r->root, "rope_scaling"), *new = field(r->root, "rope_parameters");
    const cJSON *top_theta = field(r->root, "rope_theta");
    double theta = number(r, r->root, "rope_theta", 10000.0);
    RopeForm form = rope_form(r, new ? new : old, new ? "rope_parameters" : "rope_scaling", theta);
    if (new && (old || top_theta)) {
        RopeForm other = rope_form(r, old, "rope_scaling", theta);
        if (!same_form(form, other))
            errors_add(r->errors, "%s: rope_parameters disagrees with rope_theta and rope_scaling; programs "
                       "that read one of them would run different models: remove the wrong one", r->path);
    }
    return form;
}

/* The limits that a config of this program has. */
static void check_limits(Reader *r, const Config *config)
{
    ConfigLoad *scratch = config_load(NULL, 0, NULL, r->errors);
    const Origin origin = {r->path, 1};
    for (int key = 0; scratch && key < CONFIG_KEYS; key++) {
        KeyKind kind = config_keys[key].kind;
        bool number = kind == KEY_INT || kind == KEY_REAL;
        if (!number || strncmp(config_keys[key].path, "model.", 6) != 0) continue;
        double value = kind == KEY_INT ? (double)CONFIG_INT(config, key) : CONFIG_REAL(config, key);
        char found[CONFIG_VALUE];
        config_value_text(config, key, found);
        config_set_number(scratch, key, value, found, origin, r->errors);
    }
    config_free(scratch);
}

bool hf_config_read(const char *text, const char *path, Config *config, Errors *errors)
{
    int before = errors->count;
    cJSON *root = cJSON_Parse(text);
    if (!cJSON_IsObject(root)) {
        errors_add(errors, "%s: not a JSON object", path);
        cJSON_Delete(root);
        return false;
    }
    Reader reader = {root, path, errors}, *r = &reader;
    Config out = *config;
    refuse_architecture(r);
    refuse_extras(r);
    out.model.vocab = integer(r, "vocab_size", 32000);
    out.model.hidden = integer(r, "hidden_size", 4096);
    out.model.ffn = integer(r, "intermediate_size", 11008);
    out.model.layers = integer(r, "num_hidden_layers", 32);
    out.model.heads = integer(r, "num_attention_heads", 32);
    out.model.kv_heads = integer(r, "num_key_value_heads", out.model.heads);
    out.model.head_dim = integer(r, "head_dim", out.model.hidden / out.model.heads);
    out.model.max_position = integer(r, "max_position_embeddings", 2048);
    out.model.norm_eps = number(r, root, "rms_norm_eps", 1e-6);
    out.model.init_std = number(r, root, "initializer_range", 0.02);
    out.model.embedding_init_std = out.model.init_std;
    out.model.tie_embeddings = flag(r, "tie_word_embeddings");
    RopeForm form = rope(r);
    out.model.rope_theta = form.theta;
    out.model.rope_scaling = form.llama3 ? ROPE_LLAMA3 : ROPE_NONE;
    if (form.llama3) {
        out.model.rope_factor = form.factor;
        out.model.rope_low_freq_factor = form.low;
        out.model.rope_high_freq_factor = form.high;
        out.model.rope_original_max_position = (int64_t)form.original;
    } else {
        out.model.rope_factor = 1;
    }
    cJSON_Delete(root);
    if (errors->count == before) check_limits(r, &out);
    if (errors->count > before) return false;
    *config = out;
    return true;
}

HfTokenIds hf_config_token_ids(const char *text)
{
    HfTokenIds ids = {.bos = -1, .pad = -1};
    cJSON *root = cJSON_Parse(text);
    const cJSON *bos = field(root, "bos_token_id"), *pad = field(root, "pad_token_id");
    const cJSON *eos = field(root, "eos_token_id"), *item;
    if (cJSON_IsNumber(bos)) ids.bos = (int64_t)bos->valuedouble;
    if (cJSON_IsNumber(pad)) ids.pad = (int64_t)pad->valuedouble;
    if (cJSON_IsNumber(eos)) ids.eos[ids.eos_count++] = (int64_t)eos->valuedouble;
    if (cJSON_IsArray(eos))
        cJSON_ArrayForEach(item, eos)
            if (cJSON_IsNumber(item) && ids.eos_count < HF_EOS_IDS)
                ids.eos[ids.eos_count++] = (int64_t)item->valuedouble;
    cJSON_Delete(root);
    return ids;
}

/* ---- writing ------------------------------------------------------------------------------------- */

static cJSON *scaling_object(const Config *c)
{
    cJSON *rope = cJSON_CreateObject();
    if (c->model.rope_scaling == ROPE_LLAMA3) {
        cJSON_AddStringToObject(rope, "rope_type", "llama3");
        cJSON_AddNumberToObject(rope, "factor", c->model.rope_factor);
        cJSON_AddNumberToObject(rope, "low_freq_factor", c->model.rope_low_freq_factor);
        cJSON_AddNumberToObject(rope, "high_freq_factor", c->model.rope_high_freq_factor);
        cJSON_AddNumberToObject(rope, "original_max_position_embeddings",
                                (double)c->model.rope_original_max_position);
    } else {
        cJSON_AddStringToObject(rope, "rope_type", "default");
    }
    return rope;
}

static void write_rope(cJSON *root, const Config *c)
{
    cJSON_AddNumberToObject(root, "rope_theta", c->model.rope_theta);
    cJSON_AddItemToObject(root, "rope_scaling",
                          c->model.rope_scaling == ROPE_LLAMA3 ? scaling_object(c) : cJSON_CreateNull());
    cJSON *parameters = scaling_object(c);
    cJSON_AddNumberToObject(parameters, "rope_theta", c->model.rope_theta);
    cJSON_AddItemToObject(root, "rope_parameters", parameters);
}

static void write_id(cJSON *root, const char *key, int64_t id)
{
    cJSON_AddItemToObject(root, key, id < 0 ? cJSON_CreateNull() : cJSON_CreateNumber((double)id));
}

static void write_token_ids(cJSON *root, const HfTokenIds *ids)
{
    write_id(root, "bos_token_id", ids->bos);
    if (ids->eos_count < 2) {
        write_id(root, "eos_token_id", ids->eos_count ? ids->eos[0] : -1);
    } else {
        cJSON *list = cJSON_AddArrayToObject(root, "eos_token_id");
        for (int i = 0; i < ids->eos_count; i++)
            cJSON_AddItemToArray(list, cJSON_CreateNumber((double)ids->eos[i]));
    }
    write_id(root, "pad_token_id", ids->pad);
}

char *hf_config_write(const Config *c, const char *dtype, const HfTokenIds *ids)
{
    int64_t head_dim = c->model.head_dim ? c->model.head_dim : c->model.hidden / c->model.heads;
    int64_t max_position = c->model.max_position ? c->model.max_position : c->train.seq_len;
    const struct { const char *key; double value; } numbers[] = {
        {"vocab_size", (double)c->model.vocab},
        {"hidden_size", (double)c->model.hidden},
        {"intermediate_size", (double)c->model.ffn},
        {"num_hidden_layers", (double)c->model.layers},
        {"num_attention_heads", (double)c->model.heads},
        {"num_key_value_heads", (double)c->model.kv_heads},
        {"head_dim", (double)head_dim},
        {"max_position_embeddings", (double)max_position},
        {"rms_norm_eps", c->model.norm_eps},
        {"initializer_range", c->model.init_std},
        {"attention_dropout", 0},
        {"pretraining_tp", 1},
    };
    cJSON *root = cJSON_CreateObject(), *architectures = cJSON_AddArrayToObject(root, "architectures");
    cJSON_AddItemToArray(architectures, cJSON_CreateString("LlamaForCausalLM"));
    cJSON_AddStringToObject(root, "model_type", "llama");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        cJSON_AddNumberToObject(root, numbers[i].key, numbers[i].value);
    cJSON_AddStringToObject(root, "hidden_act", "silu");
    cJSON_AddFalseToObject(root, "attention_bias");
    cJSON_AddFalseToObject(root, "mlp_bias");
    cJSON_AddTrueToObject(root, "use_cache");
    cJSON_AddBoolToObject(root, "tie_word_embeddings", c->model.tie_embeddings);
    write_rope(root, c);
    write_token_ids(root, ids);
    cJSON_AddStringToObject(root, "dtype", dtype);
    cJSON_AddStringToObject(root, "torch_dtype", dtype);
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    return text;
}

char *hf_generation_config_write(const HfTokenIds *ids)
{
    cJSON *root = cJSON_CreateObject();
    write_token_ids(root, ids);
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    return text;
}
